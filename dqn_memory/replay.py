"""Store transitions on the training device in a ring of columns; a column is one step of N environments.

Every environment step is one cell (column, environment); episodes run down an environment's cells without gaps, so that
a window is one gather over consecutive columns. Cells hold the observation acted on and the true next one: the end of
an episode (terminal or time limit) needs no extra cell, and every environment step is drawn with equal probability.

Shapes: B cells drawn, T positions of a window (T <= K, the context length), S positions of a history.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import require
from dqn_memory.runs.ring import Ring


@dataclass
class WindowBatch:
    """B windows of up to K consecutive transitions, each of one episode, left-aligned; padding follows.

    At T = K one more observation follows the last transition; a narrower window has room for it (L < T).
    """

    observation: Tensor  # (B, T or T + 1, ...): o_0 .. o_L, then padding
    previous_action: Tensor  # (B, T or T + 1): the action that led to each observation; A where there is none
    action: Tensor  # (B, T)
    reward: Tensor  # (B, T), 0 in the padding
    terminated: Tensor  # (B, T), True in the padding, as the published code stores it
    lengths: Tensor  # (B,): L, the number of real transitions, 1 .. K
    terminal_weight: Tensor  # (): weight of terminal steps in the loss


@dataclass
class ContextBatch:
    """B contexts as acting sees them, the action taken at the end of each, and the context n steps later."""

    observation: Tensor  # (B, T, ...), left-aligned
    previous_action: Tensor  # (B, T)
    lengths: Tensor  # (B,)
    action: Tensor  # (B,)
    reward: Tensor  # (B,): sum of gamma^i r over the n steps
    discount: Tensor  # (B,): gamma^n, 0 where the episode terminated
    next_observation: Tensor  # (B, T, ...)
    next_previous_action: Tensor  # (B, T)
    next_lengths: Tensor  # (B,)


class Replay(Ring):
    """A ring of `columns` x N cells. `capacity` counts environment steps and is rounded down to whole columns."""

    def __init__(
        self, spec: ObservationSpec, num_actions: int, num_envs: int, capacity: int, device: torch.device
    ) -> None:
        columns = capacity // num_envs
        require(columns >= 2, f"--capacity {capacity} holds fewer than two steps of --num-envs {num_envs} environments")
        super().__init__(columns, num_envs, device)
        self.spec, self.num_actions = spec, num_actions
        self.allocate(
            observation=(spec.dtype, spec.shape),
            next_observation=(spec.dtype, spec.shape),
            previous_action=(torch.int16, ()),
            action=(torch.int16, ()),
            reward=(torch.float32, ()),
            terminated=(torch.bool, ()),
            done=(torch.bool, ()),
            time=(torch.int32, ()),  # step within the episode
        )
        # copies on the host, so that a batch's longest window is known without waiting for the device
        kinds = {"time": np.int32, "done": np.bool_, "terminated": np.bool_}
        self.host: dict[str, np.ndarray] = {name: np.zeros((columns, num_envs), kind) for name, kind in kinds.items()}

    def add(self, **cells: Tensor) -> None:
        column = self.written % self.num_columns
        super().add(**cells)
        self._copy_to_host(np.array([column]), {name: value.unsqueeze(0) for name, value in cells.items()})

    def cut(self) -> None:
        super().cut()
        self.host["done"][(self.written - 1) % self.num_columns] = True

    def restore(self, start: int, cells: dict[str, Tensor]) -> None:
        super().restore(start, cells)
        if cells:
            self._copy_to_host(np.arange(start, self.written) % self.num_columns, cells)

    def _copy_to_host(self, columns: np.ndarray, cells: dict[str, Tensor]) -> None:
        for name, copy in self.host.items():
            copy[columns] = cells[name].cpu().numpy()

    # ---- which cells -------------------------------------------------------------------------------------------------
    def draw(
        self, batch_size: int, context: int, generator: torch.Generator, around: bool = False,
        terminal_fraction: float = 0.0,
    ) -> tuple[Tensor, int]:  # fmt: skip
        """Draw B cells uniformly over the stored steps, as the ends of windows.

        When the ring has wrapped, its oldest `context` - 1 columns are history only, so that no window is cut.

        Args:
            batch_size: B.
            context: K.
            generator: generator of the draws, on the host.
            around: place a drawn step at a random position in its window: the window ends up to K - 1 steps later in
                the same episode. Otherwise windows end at the drawn steps, and a terminal step is in K times fewer
                windows than any other, because no later window contains it.
            terminal_fraction: fraction of the cells that are drawn among terminal ones.

        Returns:
            The cells as column x N + environment, (B,) on the host, and the length of the longest window.
        """
        oldest = max(self.written - self.num_columns, 0)
        first = oldest + (context - 1 if oldest else 0)
        bounds = (first * self.num_envs, self.written * self.num_envs)
        drawn = torch.randint(*bounds, (batch_size,), generator=generator).numpy()
        if terminal_fraction > 0:
            count = max(1, round(batch_size * terminal_fraction))
            drawn = self._draw_terminal(drawn, count, first, generator)
        column, env = drawn // self.num_envs, drawn % self.num_envs
        if around:
            shift = torch.randint(context, (batch_size,), generator=generator).numpy()
            column = column + np.minimum(shift, self._steps_left(column, env, context))
        longest = int(self.host["time"][column % self.num_columns, env].max()) + 1
        return torch.from_numpy(column * self.num_envs + env), min(longest, context)

    def _draw_terminal(self, drawn: np.ndarray, count: int, first: int, generator: torch.Generator) -> np.ndarray:
        """Replace the first `count` cells by terminal ones from column `first` on, if there are any yet."""
        in_ring = np.flatnonzero(self.host["terminated"])
        column, env = in_ring // self.num_envs, in_ring % self.num_envs
        newest = self.written - 1
        column = newest - (newest - column) % self.num_columns  # counted from the run's beginning
        cells = (column * self.num_envs + env)[column >= first]
        if len(cells):
            drawn[:count] = cells[torch.randint(len(cells), (count,), generator=generator).numpy()]
        return drawn

    def _steps_left(self, column: np.ndarray, env: np.ndarray, context: int) -> np.ndarray:
        """Count the stored steps of the same episode after each cell, at most K - 1; (B,)."""
        columns = column[:, None] + np.arange(context)  # (B, K)
        last = self.host["done"][columns % self.num_columns, env[:, None]] | (columns >= self.written - 1)
        last[:, -1] = True
        return last.argmax(1)

    # ---- batches of them ---------------------------------------------------------------------------------------------
    def windows(self, drawn: Tensor, context: int, width: int, generator: torch.Generator | None = None) -> WindowBatch:
        """Gather the window of up to K transitions that ends at each drawn cell.

        Args:
            drawn: the cells, from `draw`.
            context: K.
            width: T, the context or a smaller width that fits the longest window and its last observation.
            generator: generator of one uniform action a window, which fills the padding as in the published code
                (None: 0). An unmasked loss trains on it.
        """
        column, env = self._cell(drawn)
        lengths = self._lengths(column, env, context)  # (B,)
        offset = torch.arange(width, device=self.device)  # (T,)
        real = offset < lengths.unsqueeze(1)  # (B, T)
        columns = (column - lengths + 1).unsqueeze(1) + offset.minimum(lengths.unsqueeze(1) - 1)  # (B, T)
        envs = env.unsqueeze(1)
        observation, previous = self._history(column, env, lengths, width + (width == context))
        action = self._at("action", columns, envs).long()
        filler = torch.zeros_like(lengths)
        if generator is not None:
            filler = torch.randint(self.num_actions, lengths.shape, generator=generator).to(self.device)
        return WindowBatch(
            observation=observation,
            previous_action=previous,
            action=torch.where(real, action, filler.unsqueeze(1)),
            reward=self._at("reward", columns, envs) * real,
            terminated=self._at("terminated", columns, envs) | ~real,
            lengths=lengths,
            terminal_weight=torch.ones((), device=self.device),
        )

    def contexts(
        self, drawn: Tensor, context: int, gamma: float, n_step: int = 1, width: int | None = None
    ) -> ContextBatch:
        """Gather the context of acting at each drawn cell, the action, and the context up to `n_step` steps later.

        The n-step return stops at the episode's end (terminal: no bootstrap; time limit: bootstrap there). Both
        contexts are padded to `width`, which must fit them (None: `context`).
        """
        width = context if width is None else width
        column, env = self._cell(drawn)
        taken, reward, terminated = self._n_step_returns(column, env, gamma, n_step)
        last = column + taken - 1  # (B,): the column whose next observation is bootstrapped from
        lengths = self._lengths(column, env, context)
        observation, previous = self._history(column, env, lengths, width, with_next=False)
        next_lengths = (self._at("time", last, env) + 2).clamp(max=context)
        next_observation, next_previous = self._history(last, env, next_lengths - 1, width)
        return ContextBatch(
            observation=observation,
            previous_action=previous,
            lengths=lengths,
            action=self._at("action", column, env).long(),
            reward=reward,
            discount=torch.where(terminated, 0.0, gamma ** taken.float()),
            next_observation=next_observation,
            next_previous_action=next_previous,
            next_lengths=next_lengths,
        )

    def _lengths(self, column: Tensor, env: Tensor, context: int) -> Tensor:
        return (self._at("time", column, env) + 1).clamp(max=context)

    def _n_step_returns(self, column: Tensor, env: Tensor, gamma: float, n_step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sum up to n steps: steps taken, discounted reward, and whether the last of them terminated; each (B,)."""
        offset = torch.arange(n_step, device=self.device)
        columns = (column.unsqueeze(1) + offset).clamp(max=self.written - 1)  # (B, n)
        envs = env.unsqueeze(1)
        done = self._at("done", columns, envs)
        ended_before = (done.cumsum(1) - done.long()).bool()
        real = ~ended_before & (column.unsqueeze(1) + offset < self.written)
        reward = (self._at("reward", columns, envs) * real * gamma**offset).sum(1)
        terminated = (self._at("terminated", columns, envs) & real).any(1)
        return real.sum(1), reward, terminated

    def _history(
        self, column: Tensor, env: Tensor, lengths: Tensor, size: int, with_next: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Gather the last `lengths` observations up to each cell, and the next one, padded to (B, size, ...)."""
        offset = torch.arange(size, device=self.device)  # (S,)
        clamped = offset.minimum(lengths.unsqueeze(1) - 1)  # (B, S)
        columns, envs = (column - lengths + 1).unsqueeze(1) + clamped, env.unsqueeze(1)
        observation = self._at("observation", columns, envs)
        previous = self._at("previous_action", columns, envs)
        real = offset < lengths.unsqueeze(1)
        if with_next:
            is_next = offset == lengths.unsqueeze(1)
            after = self._at("next_observation", column, env).unsqueeze(1)
            observation = torch.where(self._like_observation(is_next), after, observation)
            previous = torch.where(is_next, self._at("action", column, env).unsqueeze(1), previous)
            real = real | is_next
        # `torch.tensor` would wait for the device
        padding = torch.full((), self.spec.padding, dtype=self.spec.dtype, device=self.device)
        observation = torch.where(self._like_observation(real), observation, padding)
        return observation, torch.where(real, previous, self.num_actions).long()

    def _like_observation(self, mask: Tensor) -> Tensor:
        """Give a mask (B, S) as many dimensions as the observations that it selects."""
        return mask.reshape(*mask.shape, *[1] * len(self.spec.shape))
