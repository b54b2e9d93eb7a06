"""Recall by key, in the manner of POPGym's games: pairs are shown, and then the value of each key is asked for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import require
from envs.numpy_backend import concatenate, converted, copied, integers, put_column, stack, take_column, where
from envs.popgym.cards import card_pictures
from envs.popgym.shuffle import Piles, left_of_each, repeated
from envs.spaces import MultiDiscrete

VALUES = 4
MAX_PAIRS = 1000


@dataclass
class PairState(State):
    """N games of Pair Recall."""

    keys: Tensor  # (N, pairs + 1) int16, keys left to be shown, or to be asked for, see `shuffle.Piles`
    deck: Tensor  # (N, 5) int16, values left to be shown
    values: Tensor  # (N, pairs) int8, the value of each key; 0 if not shown yet
    key: Tensor  # (N,) int64, the newest key


class PairRecall(World[PairState]):
    """Watch pairs of a key and a value, one a step, then name the value of each key: +-1/pairs.

    The observation is (0, key, value) for a pair, (1, key, 0) for a question, and (1, 0, 0) after the last answer. Keys
    are shown in a random order, and asked for in another. The four values are dealt from a deck with equally many of
    each, so that the most frequent one is hardly worth more than any other. Actions do not matter before the first
    question.
    """

    num_actions = VALUES
    reset_draws = step_draws = 2
    defines_success = False
    runs_on_numpy = True

    def __init__(self, pairs: int = 8, time_limit: int | None = None, device: str | torch.device = "cpu") -> None:
        require(2 <= pairs <= MAX_PAIRS, f"pairs of PairRecall must be from 2 to {MAX_PAIRS}, not {pairs}.")
        super().__init__(2 * pairs if time_limit is None else time_limit, device)
        self.pairs, self.copies = pairs, -(-pairs // VALUES)
        self.observation_space = MultiDiscrete([2, pairs, VALUES])
        self.state_space = MultiDiscrete([*[2] * pairs, *[VALUES] * pairs, pairs, 2 * pairs + 1])
        self.key_piles = Piles(pairs, 1, self.device)
        self.value_piles = Piles(VALUES, self.copies, self.device)
        self.empty = torch.zeros(pairs, dtype=torch.int8, device=self.device)
        self.first, self.last = torch.tensor([pairs, 2 * pairs], device=self.device)  # steps: first question, end
        self.share, self.double = torch.tensor([1 / pairs, 2 / pairs], dtype=torch.float64, device=self.device)

    def reset(self, u: Tensor) -> PairState:
        """Show the first pair by u (N, 2)."""
        key, keys = self.key_piles.draw(self.key_piles.full(len(u)), u[:, 0])
        value, deck = self.value_piles.draw(self.value_piles.full(len(u)), u[:, 1])
        steps, returns = self.counters(len(u))
        values = put_column(repeated(self.empty, len(u)), key, converted(value, self.empty))
        return PairState(stack([steps, key, value]), steps, returns, keys, deck, values, key)

    def step(self, state: PairState, action: Tensor, u: Tensor) -> tuple[PairState, Tensor, Tensor, Tensor, Tensor]:
        """Show the next pair, or take an answer and ask the next question."""
        right = action == take_column(state.values, state.key)
        reward = where(state.steps >= self.first, right * self.double - self.share, self.nothing)
        steps = state.steps + self.one
        keys = where((steps == self.first)[:, None], self.key_piles.whole, state.keys)
        key, keys = self.key_piles.draw(keys, u[:, 0])
        value, deck = self.value_piles.draw(state.deck, u[:, 1])
        asks = steps >= self.first
        value = value * ~asks
        known = where(asks, take_column(state.values, key), converted(value, self.empty))
        values = put_column(copied(state.values), key, known)
        observation = stack([integers(asks), key, value])
        after = PairState(observation, steps, state.returns + reward, keys, deck, values, key)
        terminated = steps == self.last
        return after, observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, keys, deck, values, key = row
        reward = (action == values[key]) * self.double - self.share if steps >= self.first else 0.0
        steps += 1
        asks = steps >= self.first
        key, keys = self.key_piles.plain_draw([*range(self.pairs + 1)] if steps == self.first else keys, draw())
        value, deck = self.value_piles.plain_draw(deck, draw())
        if asks:
            value = 0
        else:
            values = [*values[:key], value, *values[key + 1 :]]
        after = (int(asks), key, value), steps, returns + reward, keys, deck, values, key
        return after, reward, steps == self.last, False

    def observe_state(self, state: PairState) -> Tensor:
        """Return which keys are left, each key's value, the newest key, and the step's number: (N, 2 pairs + 2)."""
        steps = state.steps.clip(max=2 * self.pairs)
        return concatenate([left_of_each(state.keys), integers(state.values), stack([state.key, steps])])

    def frame(self, state: PairState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the key and its value as cards; a value that is asked for is the back of a card."""
        asks, key, value = (int(number) for number in state.observation[row])
        return card_pictures([key, None if asks else value], self.pairs, 2)

    def text(self, state: PairState, row: int) -> str:
        """Name the key and its value."""
        asks, key, _ = (int(number) for number in state.observation[row])
        return f"{'ask' if asks else 'show'}: {key} is {int(state.values[row, key])}"
