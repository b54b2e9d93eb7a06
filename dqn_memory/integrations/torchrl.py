"""A module with a memory of this suite for TorchRL, used as its GRUModule.

from torchrl.envs import InitTracker
module = MemoryModule(64, 64, "gru", in_key="embed", out_key="hidden")
env = env.append_transform(InitTracker()).append_transform(module.make_tensordict_primer())
"""

from collections.abc import Mapping
from typing import Any

from torch import Size, Tensor

from dqn_memory.blocks import State
from dqn_memory.integrations.stacked import StackedMemory
from dqn_memory.runs.errors import require
from envs.extras import extra

with extra("torchrl"):
    from tensordict import TensorDictBase
    from tensordict.nn import TensorDictModuleBase
    from torchrl.data import Unbounded
    from torchrl.envs import TensorDictPrimer
    from torchrl.modules import recurrent_mode


class MemoryModule(TensorDictModuleBase):
    """A linear map to `hidden_size`, then memories; the output of each is added to its input.

    A call takes one step, as in a collector. Inside of `set_recurrent_mode(True)`, as in TorchRL's losses, the last
    axis of the batch is time, and the state before the first step begins the sequence. A step writes the next state;
    a sequence leaves the states as they were collected. `is_init` (see InitTracker) begins episodes.

    Args:
        input_size: features of the input.
        hidden_size: features of the output, the memory's width.
        memory: a name of `dqn_memory.blocks.MEMORY` that keeps a state.
        num_layers: number of memories.
        memory_kwargs: options of the memory, keywords of `dqn_memory.blocks.build`.
        in_key: key of the input (*batch, input_size).
        out_key: key of the output (*batch, hidden_size).
        state_key: keys of the state are this and `_0`, `_1`, and so on; give each module of a policy another.
        default_recurrent_mode: whether calls outside of `set_recurrent_mode` take sequences.

    Raises:
        UserError: there is no layer, or the memory keeps no state.
        ValueError: the name or an option is unknown or invalid.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        memory: str = "gru",
        num_layers: int = 1,
        memory_kwargs: Mapping[str, Any] | None = None,
        *,
        in_key: Any,
        out_key: Any,
        state_key: str = "memory_state",
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        self.stack = StackedMemory(input_size, hidden_size, memory, num_layers, memory_kwargs)
        self.state_keys = [f"{state_key}_{index}" for index in range(len(self.stack.initial_state(1, "meta")))]
        self.in_keys = [in_key, *self.state_keys, "is_init"]
        self.out_keys = [out_key, *(("next", key) for key in self.state_keys)]
        self.default_recurrent_mode = default_recurrent_mode

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Make the transform by which an environment carries the state from step to step."""
        state = zip(self.state_keys, self.stack.initial_state(1, "meta"), strict=True)
        specs = {key: Unbounded(shape=part.shape[1:], dtype=part.dtype) for key, part in state}
        return TensorDictPrimer(specs, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the output, and the next state of a step."""
        batch, x = tensordict.shape, tensordict.get(self.in_keys[0])
        chosen = recurrent_mode()
        if self.default_recurrent_mode if chosen is None else chosen:
            require(batch, "a sequence has the batch size (*batch, time), but that of the tensordict is empty")
            rows = Size((batch[:-1].numel(), batch[-1]))
            y, _ = self.stack.sequence(*self._arguments(tensordict, x, rows))
            return tensordict.set(self.out_keys[0], y.reshape((*batch, -1)))
        y, after = self.stack.step(*self._arguments(tensordict, x, Size((batch.numel(),))))
        for key, part in zip(self.out_keys, (y, *after), strict=True):
            tensordict.set(key, part.reshape((*batch, *part.shape[1:])))
        return tensordict

    def _arguments(self, tensordict: TensorDictBase, x: Tensor, rows: Size) -> tuple[Tensor, State, Tensor]:
        """Read input, state and resets of a step, rows (B,), or of a sequence, rows (B, T)."""
        state = []
        for key, initial in zip(self.state_keys, self.stack.initial_state(rows[0], x.device), strict=True):
            part = tensordict.get(key, None)
            if part is not None:
                part = part.reshape(*rows, *initial.shape[1:])
                part = part[:, 0] if len(rows) > 1 else part
            state.append(initial if part is None else part)
        return x.reshape(*rows, -1), tuple(state), tensordict.get("is_init").reshape(rows)
