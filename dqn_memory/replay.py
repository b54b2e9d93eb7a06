"""Replay on the training device: one column of N transitions per step of N parallel worlds, in a ring.

Every environment step is one cell (column, world); episodes run down a world's cells without gaps, so a window is
one gather over consecutive columns. Cells hold the observation acted on and the true next one, so episode ends
(terminal or time limit) need no extra cells and every environment step is drawn with equal probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.ring import Ring


@dataclass
class Windows:
    """B windows of up to K consecutive transitions of one episode each, left-aligned; padding stands behind.

    They are T tokens wide. At T = K one more observation follows; a narrower bucket has room for it (L < T).
    """

    observation: Tensor  # (B, T + 1 or T, ...): o_0 .. o_L, then padding
    previous_action: Tensor  # (B, T + 1 or T): the action that led to each observation; A = none
    action: Tensor  # (B, T)
    reward: Tensor  # (B, T), 0 in the padding
    terminated: Tensor  # (B, T), True in the padding (as the reference stores it)
    lengths: Tensor  # (B,): L, the number of real transitions, 1 .. K
    terminal_weight: Tensor  # (): of terminal steps in the loss, a float


@dataclass
class Prefixes:
    """B acting contexts with the action taken at their end, and the context n steps later, each left-aligned."""

    observation: Tensor  # (B, K, ...)
    previous_action: Tensor  # (B, K)
    lengths: Tensor  # (B,)
    action: Tensor  # (B,)
    reward: Tensor  # (B,): sum of gamma^i r over the n steps
    discount: Tensor  # (B,): gamma^n, 0 where the episode terminated
    next_observation: Tensor  # (B, K, ...)
    next_previous_action: Tensor  # (B, K)
    next_lengths: Tensor  # (B,)


class Replay(Ring):
    """A ring of `columns` x N cells. `capacity` counts environment steps and is rounded down to whole columns."""

    def __init__(
        self, spec: ObservationSpec, num_actions: int, num_envs: int, capacity: int, device: torch.device
    ) -> None:
        columns = capacity // num_envs
        if columns < 2:
            raise UserError(f"--capacity {capacity} holds fewer than two steps of --num-envs {num_envs} environments")
        super().__init__(columns, num_envs, device)
        self.spec, self.num_actions = spec, num_actions
        self.cells = {
            "observation": self.room(spec.dtype, *spec.shape),
            "next_observation": self.room(spec.dtype, *spec.shape),
            "previous_action": self.room(torch.int16),
            "action": self.room(torch.int16),
            "reward": self.room(torch.float32),
            "terminated": self.room(torch.bool),
            "done": self.room(torch.bool),
            "time": self.room(torch.int32),
        }
        # the host knows each cell's place in its episode, so a batch's longest window is known without a sync
        self.host_time, self.host_done, self.host_terminated = (
            np.zeros((columns, num_envs), kind) for kind in (np.int32, np.bool_, np.bool_)
        )

    def add(self, **cells: Tensor) -> None:
        """One column of every kind of cell, (N, ...) each, under the names of `cells`."""
        column = self.written % self.num_columns
        super().add(**cells)
        self._tell_host(np.array([column]), {name: value.unsqueeze(0) for name, value in cells.items()})

    def restore(self, start: int, cells: dict[str, Tensor]) -> None:
        """Put back columns that began at `start`, the newest ones of the run."""
        super().restore(start, cells)
        if cells:
            self._tell_host(np.arange(start, self.written) % self.num_columns, cells)

    def _tell_host(self, columns: np.ndarray, cells: dict[str, Tensor]) -> None:
        self.host_time[columns] = cells["time"].cpu().numpy()
        self.host_done[columns] = cells["done"].cpu().numpy()
        self.host_terminated[columns] = cells["terminated"].cpu().numpy()

    def draw(
        self,
        batch: int,
        context: int,
        generator: torch.Generator,
        around: bool = False,
        terminal_share: float = 0.0,
    ) -> tuple[Tensor, int]:
        """B cells drawn uniformly over the steps held, as column x N + world, (B,) on the host, and the longest
        window that ends at one of them.

        With `around` a drawn step may lie anywhere in its window, so the cell returned is up to `context` - 1 steps
        later, but in the same episode. Otherwise windows end at the drawn steps, and a terminal step, which no later
        window holds, is seen `context` times less often than any other. `terminal_share` of the cells are drawn among
        the terminal ones instead.

        Once the ring has wrapped, the oldest `context` - 1 columns serve as history only, so that no window is cut
        short by the ring.
        """
        oldest = max(self.written - self.num_columns, 0)
        first = oldest + (context - 1 if oldest else 0)
        bounds = (first * self.num_envs, self.written * self.num_envs)
        drawn = torch.randint(*bounds, (batch,), generator=generator).numpy()
        if terminal_share > 0:
            drawn = self._draw_terminal(drawn, round(batch * terminal_share), first, generator)
        column, world = drawn // self.num_envs, drawn % self.num_envs
        if around:
            shift = torch.randint(context, (batch,), generator=generator).numpy()
            column = column + np.minimum(shift, self._steps_left(column, world, context))
        longest = int(self.host_time[column % self.num_columns, world].max()) + 1
        return torch.from_numpy(column * self.num_envs + world), min(longest, context)

    def _draw_terminal(self, drawn: np.ndarray, count: int, first: int, generator: torch.Generator) -> np.ndarray:
        """Replace the first `count` cells by terminal ones from column `first` on; none where there is none yet."""
        ring = np.flatnonzero(self.host_terminated)  # cells of the ring, whose columns wrapped around
        column, world = ring // self.num_envs, ring % self.num_envs
        newest = self.written - 1
        column = newest - (newest - column) % self.num_columns
        cells = (column * self.num_envs + world)[column >= first]
        if len(cells):
            drawn[:count] = cells[torch.randint(len(cells), (count,), generator=generator).numpy()]
        return drawn

    def _steps_left(self, column: np.ndarray, world: np.ndarray, most: int) -> np.ndarray:
        """Steps of the same episode held after each cell, at most `most` - 1; (B,)."""
        columns = column[:, None] + np.arange(most)  # (B, K)
        ends = self.host_done[columns % self.num_columns, world[:, None]] | (columns >= self.written - 1)
        ends[:, -1] = True
        return ends.argmax(1)

    def windows(self, drawn: Tensor, context: int, tokens: int, generator: torch.Generator | None = None) -> Windows:
        """The window of up to `context` transitions that ends at each drawn cell, `tokens` wide.

        `tokens` is the context or a smaller bucket that holds the longest window and its last observation.

        The padding's action is 0, or one uniform action a window where a generator is given (the reference's
        padding, which its unmasked loss trains on).
        """
        column, world = self._cell(drawn)
        length = (self._at("time", column, world) + 1).clamp(max=context)  # (B,)
        offset = torch.arange(tokens, device=self.device)  # (T,)
        real = offset < length.unsqueeze(1)  # (B, T)
        columns = (column - length + 1).unsqueeze(1) + offset.minimum(length.unsqueeze(1) - 1)  # (B, T)
        worlds = world.unsqueeze(1)
        observation, previous = self._history(column, world, length, tokens + (tokens == context))
        action = self._at("action", columns, worlds).long()
        filler = torch.zeros_like(length)
        if generator is not None:
            filler = torch.randint(self.num_actions, length.shape, generator=generator).to(self.device)
        return Windows(
            observation=observation,
            previous_action=previous,
            action=torch.where(real, action, filler.unsqueeze(1)),
            reward=self._at("reward", columns, worlds) * real,
            terminated=self._at("terminated", columns, worlds) | ~real,
            lengths=length,
            terminal_weight=torch.ones((), device=self.device),
        )

    def prefixes(self, drawn: Tensor, context: int, gamma: float, steps: int = 1) -> Prefixes:
        """What acting saw at each drawn cell, the action, and what acting sees up to `steps` steps later.

        The n-step return stops at the episode's end (terminal: no bootstrap; time limit: bootstrap there).
        """
        column, world = self._cell(drawn)
        taken, reward, terminated = self._returns(column, world, gamma, steps)
        last = column + taken - 1  # (B,): the column whose next observation is bootstrapped from
        observation, previous = self._history(column, world, self._lengths(column, world, context), context, False)
        next_lengths = (self._at("time", last, world) + 2).clamp(max=context)
        following, next_previous = self._history(last, world, next_lengths - 1, context)
        return Prefixes(
            observation=observation,
            previous_action=previous,
            lengths=self._lengths(column, world, context),
            action=self._at("action", column, world).long(),
            reward=reward,
            discount=torch.where(terminated, 0.0, gamma ** taken.float()),
            next_observation=following,
            next_previous_action=next_previous,
            next_lengths=next_lengths,
        )

    def _lengths(self, column: Tensor, world: Tensor, context: int) -> Tensor:
        return (self._at("time", column, world) + 1).clamp(max=context)

    def _returns(self, column: Tensor, world: Tensor, gamma: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Steps taken (1 .. n), discounted reward and whether the last one terminated; each (B,)."""
        offset = torch.arange(steps, device=self.device)
        columns = (column.unsqueeze(1) + offset).clamp(max=self.written - 1)  # (B, n)
        worlds = world.unsqueeze(1)
        done = self._at("done", columns, worlds)
        before = (done.cumsum(1) - done.long()).bool()  # an earlier step of the n ended the episode
        real = ~before & (column.unsqueeze(1) + offset < self.written)
        reward = (self._at("reward", columns, worlds) * real * gamma**offset).sum(1)
        terminated = (self._at("terminated", columns, worlds) & real).any(1)
        return real.sum(1), reward, terminated

    def _history(
        self, column: Tensor, world: Tensor, length: Tensor, size: int, ahead: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The `length` observations that end at each cell, its next one behind them if `ahead`, padded to `size`."""
        offset = torch.arange(size, device=self.device)  # (S,)
        bounded = offset.minimum(length.unsqueeze(1) - 1)  # (B, S)
        columns, worlds = (column - length + 1).unsqueeze(1) + bounded, world.unsqueeze(1)
        observation = self._at("observation", columns, worlds)
        previous = self._at("previous_action", columns, worlds)
        real = offset < length.unsqueeze(1)
        if ahead:
            here = offset == length.unsqueeze(1)
            following = self._at("next_observation", column, world).unsqueeze(1)
            observation = torch.where(self._wide(here), following, observation)
            previous = torch.where(here, self._at("action", column, world).unsqueeze(1), previous)
            real = real | here
        observation = torch.where(self._wide(real), observation, self._padding())
        return observation, torch.where(real, previous, self.num_actions).long()

    def _wide(self, mask: Tensor) -> Tensor:
        return mask.reshape(*mask.shape, *[1] * len(self.spec.shape))

    def _padding(self) -> Tensor:
        # `torch.tensor` would wait for all that the device was asked to do before
        return torch.full((), self.spec.padding, dtype=self.spec.dtype, device=self.device)
