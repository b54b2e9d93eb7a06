"""A policy with a memory of this suite for RecurrentPPO of sb3-contrib.

    from sb3_contrib import RecurrentPPO
    model = RecurrentPPO(MemoryPolicy, env, policy_kwargs={"memory": "gru", "lstm_hidden_size": 64})

RecurrentPPO carries and stores two tensors (1, N, H), made for an LSTM. The state of any memory travels in them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import State
from dqn_memory.integrations.stacked import StackedMemory
from dqn_memory.runs.errors import require
from envs.extras import extra

with extra("sb3"):
    from gymnasium import spaces
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN

Packed = tuple[Tensor, Tensor]  # each (1, N, H)


class PackedMemory(nn.Module):
    """Memories whose state is a pair of tensors, as that of an LSTM.

    A row of the pair holds a 1, then the bytes of each part of the state as float32: copies keep them, so that integers
    stay exact. The 1 is a 0 in the zeros with which RecurrentPPO begins; such rows stand for the initial state.
    """

    num_layers = 1  # of the pair; all layers of the stack are in one row

    def __init__(self, stack: StackedMemory) -> None:
        super().__init__()
        self.stack, self.input_size = stack, stack.features
        self.form = [(part.shape[1:], part.dtype) for part in stack.initial_state(1, "meta")]
        self.sizes = [shape.numel() * stored_as(dtype).itemsize // 4 for shape, dtype in self.form]
        self.hidden_size = (1 + sum(self.sizes) + 1) // 2  # half of a row, rounded up

    def pack(self, state: State, rows: int) -> Packed:
        """Write a state of N rows into a pair of tensors."""
        row = [torch.ones(rows, 1, device=self.stack.enter.weight.device)]
        for part, (shape, dtype) in zip(state, self.form, strict=True):
            flat = part.detach().to(dtype).to(stored_as(dtype)).reshape(rows, shape.numel())
            row.append(flat.contiguous().view(torch.float32))
        halves = F.pad(torch.cat(row, 1), (0, 2 * self.hidden_size - 1 - sum(self.sizes))).chunk(2, 1)
        return halves[0][None], halves[1][None]

    def unpack(self, packed: Packed) -> tuple[State, Tensor]:
        """Read a state, and whether each row (N,) was never written."""
        row = torch.cat((packed[0][0], packed[1][0]), 1)  # (N, 2 H)
        written, *parts = row[:, : 1 + sum(self.sizes)].split([1, *self.sizes], 1)
        state = []
        for part, (shape, dtype) in zip(parts, self.form, strict=True):
            if stored_as(dtype) != torch.float32:  # numbers of 8 bytes need an aligned place
                part = part.clone(memory_format=torch.contiguous_format).view(stored_as(dtype))
            state.append(part.reshape(len(row), *shape).to(dtype))
        return tuple(state), written[:, 0] == 0

    def forward(self, features: Tensor, packed: Packed, starts: Tensor) -> tuple[Tensor, Packed]:
        """Encode features (N T, F), the T positions of each row after one another; starts (N T,) are 1 at resets."""
        rows = packed[0].shape[1]
        x, reset = features.reshape(rows, -1, self.input_size), starts.reshape(rows, -1) > 0.5
        state, blank = self.unpack(packed)
        reset[:, 0] |= blank
        if x.shape[1] == 1:
            y, after = self.stack.step(x[:, 0], state, reset[:, 0])
        else:
            y, after = self.stack.sequence(x, state, reset)
        return y.reshape(len(features), -1), self.pack(after, rows)


def stored_as(dtype: torch.dtype) -> torch.dtype:
    """Give the type whose bytes hold numbers of `dtype` in whole float32: itself, or float32 for small types."""
    return dtype if dtype.itemsize % 4 == 0 else torch.float32


class MemoryPolicy(RecurrentActorCriticPolicy):
    """A recurrent policy of sb3-contrib whose LSTM is a memory of this suite.

    All other keywords are those of RecurrentActorCriticPolicy. `lstm_hidden_size` is the memory's width, and
    `n_lstm_layers` the number of memories. As there, actor and critic have memories of their own, or share one by
    `shared_lstm=True, enable_critic_lstm=False`. Images and dictionaries get sb3's extractors for them by default.

    Args:
        observation_space: that of the environment.
        action_space: that of the environment.
        lr_schedule: learning rate, a function of the remaining share of the training.
        memory: a name of `dqn_memory.blocks.MEMORY` that keeps a state.
        memory_kwargs: options of the memory, keywords of `dqn_memory.blocks.build`.
        kwargs: keywords of RecurrentActorCriticPolicy.

    Raises:
        UserError: a memory without a state, or keywords that do not fit together.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, lr_schedule: Any, *, memory: str = "gru",
        memory_kwargs: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        shared, own = kwargs.get("shared_lstm", False), kwargs.get("enable_critic_lstm", True)
        require(
            shared != own,
            f"policy_kwargs: shared_lstm={shared}, enable_critic_lstm={own}; one of them must be True, the other False",
        )
        require(
            own or kwargs.get("share_features_extractor", True),
            "policy_kwargs: a shared memory reads one extractor's features; share_features_extractor must be True",
        )
        require(not kwargs.get("lstm_kwargs"), "policy_kwargs: lstm_kwargs are options of an LSTM; give memory_kwargs")
        kwargs.setdefault("features_extractor_class", default_extractor(observation_space))
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)
        self.given = kwargs | {"memory": memory, "memory_kwargs": memory_kwargs}

        def packed() -> PackedMemory:
            layers = kwargs.get("n_lstm_layers", 1)
            return PackedMemory(StackedMemory(self.features_dim, self.lstm_output_dim, memory, layers, memory_kwargs))

        self.lstm_actor = packed()
        if own:
            self.lstm_critic = packed()
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def make_features_extractor(self) -> Any:
        """Make sb3's extractor; of multi-discrete observations its width is a number of numpy, which no LSTM takes."""
        extractor = super().make_features_extractor()
        extractor._features_dim = int(extractor._features_dim)
        return extractor

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Add what the class of sb3-contrib leaves out, so that `policy.save` and `MemoryPolicy.load` work."""
        return super()._get_constructor_parameters() | self.given

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: Packed, episode_starts: Tensor, lstm: PackedMemory
    ) -> tuple[Tensor, Packed]:
        """Encode the rows of a step, or the padded sequences of an update; padding comes last, and is never read."""
        return lstm(features, lstm_states, episode_starts)


def default_extractor(space: Any) -> Any:
    """Give the class of sb3 that its policies use for observations of a space."""
    if isinstance(space, spaces.Dict):
        return CombinedExtractor
    return NatureCNN if is_image_space(space) else FlattenExtractor
