"""Replay on the training device: a ring of columns, each one step of N environments.

The ring has no gaps between an environment's episodes, so a sequence is one gather over consecutive columns. The
published buffer stores segments of 400 steps and copies the first steps of the next segment after each. Here a
segment's end cuts the sequence's mask instead; the next steps follow in the next columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.ring import Ring
from world_models.unizero.config import UniZeroReplayConfig

SEGMENT_LENGTH = 400  # steps of a segment of the published buffer; the first begins with the episode


@dataclass(frozen=True)
class Sequences:
    """B sequences of T steps and the n steps after them, each of one episode with padding after its end."""

    observation: Tensor  # (B, T + n, ...), with a truncated episode's final one; the padding repeats the last
    action: Tensor  # (B, T + n) int64, 0 in the padding
    reward: Tensor  # (B, T + n) float32, 0 in the padding
    policy: Tensor  # (B, T, A) float32, sums to 1; uniform in the padding
    mask: Tensor  # (B, T) bool: steps before the end of episode and segment
    left: Tensor  # (B,) int64: number of the episode's steps from the first one on, at most T + n
    truncated: Tensor  # (B,) bool: the episode is truncated within these steps, and its final observation is stored


@dataclass(frozen=True)
class Contexts:
    """The inputs of a search at each of the T steps of B sequences."""

    observation: Tensor  # (B, W + T, ...): W steps before the sequence, then its own
    action: Tensor  # (B, W + T) int64
    count: Tensor  # (B, T) int64, 0 .. W: number of the W steps before each one that are of its episode


class SequenceReplay(Ring):
    """A ring of columns x N cells.

    Value targets read the n = `lookahead` steps after a sequence of T = `horizon` steps, so it can be drawn once these
    are stored. After the ring has wrapped, its W = `history` oldest columns serve as context only.

    `add` takes tensors (N, ...). `time` is the step's number in its episode. `policy` (N, A) has the search's visits,
    or any weights with a sum above 0. `done` ends an episode; `terminated` ends it without a value afterwards.
    `next_observation` is the observation before a reset; it is absent if `final_observations` is off.
    """

    def __init__(
        self, config: UniZeroReplayConfig, spec: ObservationSpec, num_actions: int, num_envs: int, device: torch.device,
        horizon: int, lookahead: int, history: int = 0, segment_length: int = SEGMENT_LENGTH,
    ) -> None:  # fmt: skip
        self.sequence_length = horizon + lookahead
        columns = config.capacity // num_envs
        if columns < self.sequence_length + history + 1:
            smallest = num_envs * (self.sequence_length + history + 1)
            raise UserError(
                f"--capacity {config.capacity} is too small: {num_envs} environments with sequences of "
                f"{self.sequence_length} steps and {history} steps of history need at least {smallest}"
            )
        super().__init__(columns, num_envs, device)
        self.config, self.spec, self.num_actions = config, spec, num_actions
        self.horizon, self.history, self.segment_length = horizon, history, segment_length
        final = {"next_observation": (spec.dtype, spec.shape)} if config.final_observations else {}
        self.allocate(
            observation=(spec.dtype, spec.shape),
            action=(torch.int16, ()),
            reward=(torch.float32, ()),
            terminated=(torch.bool, ()),
            done=(torch.bool, ()),
            time=(torch.int32, ()),
            policy=(torch.float32, (num_actions,)),
            **final,
        )

    @property
    def drawable(self) -> int:
        """Count the steps at which a sequence can begin; learning needs at least one."""
        first, stop = self._drawable_columns()
        return (stop - first) * self.num_envs

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        """Draw B steps at which a sequence begins, as column x N + environment; (B,) int64 on the host.

        A share `terminal_fraction` is drawn from the sequences that end at a terminal step, once there is one. All
        others are uniform draws without replacement from the drawable steps; with replacement if these are below B.
        """
        drawn = self._draw_uniformly(batch, generator)
        fraction = self.config.terminal_fraction
        count = max(1, round(batch * fraction)) if fraction else 0
        before_ends = self._before_ends() if count else drawn[:0]
        if len(before_ends):
            drawn[:count] = before_ends[torch.randint(len(before_ends), (count,), generator=generator)]
            drawn = drawn[torch.randperm(batch, generator=generator)]
        return drawn

    def _before_ends(self) -> Tensor:
        """Find the drawable sequences whose last step is terminal; they begin no earlier than its segment."""
        slot, env = self.cells["terminated"].nonzero(as_tuple=True)
        time = self.cells["time"][slot, env].cpu()
        slot, env = slot.cpu(), env.cpu()
        newest = self.written - 1
        column = newest - (newest - slot) % self.num_columns
        back = time % self.segment_length  # the mask ends with the segment of a sequence's first step
        start = column - back.clamp(max=self.horizon - 1)
        first, stop = self._drawable_columns()
        drawable = (column >= 0) & (start >= first) & (start < stop)
        return (start * self.num_envs + env)[drawable]

    def _draw_uniformly(self, batch: int, generator: torch.Generator) -> Tensor:
        first, stop = self._drawable_columns()
        bounds = (first * self.num_envs, stop * self.num_envs)
        if not self.drawable:
            raise ValueError(f"no sequence of {self.sequence_length} steps has been stored yet")
        if self.drawable < batch:
            return torch.randint(*bounds, (batch,), generator=generator)
        drawn: dict[int, None] = {}  # in the order of first appearance: all subsets are equally likely
        while len(drawn) < batch:
            drawn |= dict.fromkeys(torch.randint(*bounds, (batch,), generator=generator).tolist())
        return torch.tensor(list(drawn)[:batch])

    def sequences(self, drawn: Tensor) -> Sequences:
        """Gather the sequences that begin at the drawn steps."""
        column, env = self._cell(drawn)
        offset = torch.arange(self.sequence_length, device=self.device)  # (T + n,)
        columns, envs = column.unsqueeze(1) + offset, env.unsqueeze(1)
        done = self._at("done", columns, envs)
        real = done.cumsum(1) - done.long() == 0  # no earlier step ended the episode
        left = real.sum(1)
        cut = (done & ~self._at("terminated", columns, envs) & real).any(1) & self.config.final_observations
        policy = self._at("policy", columns[:, : self.horizon], envs)
        inside, begins = real[:, : self.horizon], self._at("time", columns[:, :1], envs).long()  # (B, T), (B, 1)
        mask = inside & (offset[: self.horizon] < self.segment_length - begins % self.segment_length)
        return Sequences(
            observation=self._observations(columns, env, left, cut),
            action=torch.where(real, self._at("action", columns, envs), 0).long(),
            reward=torch.where(real, self._at("reward", columns, envs), 0.0),
            policy=torch.where(inside.unsqueeze(2), policy / policy.sum(2, keepdim=True), 1.0 / self.num_actions),
            mask=mask,
            left=left,
            truncated=cut,
        )

    def contexts(self, drawn: Tensor) -> Contexts:
        """Gather the drawn sequences with the W steps before them; `count` leaves out earlier episodes."""
        column, env = self._cell(drawn)
        offset, envs = torch.arange(-self.history, self.horizon, device=self.device), env.unsqueeze(1)
        columns = (column.unsqueeze(1) + offset).clamp(min=0)  # (B, W + T)
        time = self._at("time", columns[:, self.history :], envs)
        return Contexts(
            observation=self._at("observation", columns, envs),
            action=self._at("action", columns, envs).long(),
            count=time.clamp(max=self.history).long(),
        )

    def _drawable_columns(self) -> tuple[int, int]:
        first = self.oldest + (self.history if self.oldest else 0)
        return first, max(self.written - self.sequence_length + 1, first)

    def _observations(self, columns: Tensor, env: Tensor, left: Tensor, cut: Tensor) -> Tensor:
        """Gather observations (B, T + n, ...): the episode's, its final one if truncated, then repeats of the last one.

        The padding repeats real images because it counts in the statistics of batch normalisation.
        """
        last = (columns[:, 0] + left - 1).unsqueeze(1)  # (B, 1)
        envs = env.unsqueeze(1)
        observation = self._at("observation", columns.minimum(last), envs)
        if not self.config.final_observations:
            return observation
        after_end = (cut.unsqueeze(1) & (columns > last)).reshape(*columns.shape, *[1] * len(self.spec.shape))
        return torch.where(after_end, self._at("next_observation", last, envs), observation)
