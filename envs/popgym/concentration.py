"""Concentration: turn up pairs of equal cards that lie face down."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.core import State, World
from envs.errors import require
from envs.numpy_backend import converted, copied, integers, put_column, take_column, where
from envs.popgym.cards import draw_cards, name
from envs.popgym.shuffle import MAX_CARDS, draw, full_pile, repeated
from envs.spaces import MultiDiscrete


@dataclass
class TableState(State):
    """N tables of cards."""

    piles: Tensor  # (N, categories + 1) int16, cards never turned up, see `shuffle.full_pile`
    values: Tensor  # (N, cards) int16, category of each card, or `categories` if it has never been turned up
    table: Tensor  # (N, cards + 1) int16, the same for found pairs only; the last column is nobody's
    found: Tensor  # (N,) int64, pairs found
    first: Tensor  # (N,) int64, the card that waits for its partner, or 0
    waits: Tensor  # (N,) bool, whether there is one


class Concentration(World[TableState]):
    """Turn up a card, then a second one: a pair of the same category stays up, others are turned down again.

    The observation has each card's category, or `categories` for one that lies face down, and the card chosen last,
    which is 0 at first. Both cards are seen once before they are turned down. A pair pays 2/cards, and no pair costs
    2/T. A card that lies face up already, as part of a pair, costs 1/T, or 2/T as second card; the first is then turned
    down, too. An episode ends when all pairs are found. It is truncated after T steps, about twice the cards.

    A card's category is drawn when it is first turned up, which is the same as shuffling at the start. So the state
    holds what has been seen, and no more: what a perfect memory would hold.
    """

    reset_draws = 0
    step_draws = 1
    defines_success = False
    runs_on_numpy = True

    def __init__(
        self,
        cards: int = 52,
        categories: int = 2,
        time_limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        require(categories >= 1, f"categories of Concentration must be at least 1, not {categories}.")
        fits, wanted = 1 <= cards <= MAX_CARDS and cards % (2 * categories) == 0, f"a multiple of {2 * categories}"
        rule = f"{wanted}, which is twice its categories, up to {MAX_CARDS}"
        require(fits, f"cards of Concentration must be {rule}, not {cards}.")
        longest = math.ceil(2 * cards - cards / (2 * cards - 1))
        super().__init__(longest if time_limit is None else time_limit, device)
        self.num_actions, self.categories = cards, categories
        self.observation_space = MultiDiscrete([*[categories + 1] * cards, cards])
        self.state_space = MultiDiscrete([3 * (categories + 1)] * cards)
        self.pile = full_pile(categories, cards // categories, self.device)
        self.down = torch.full((cards + 1,), categories, dtype=torch.int16, device=self.device)
        self.back = self.down[0].clone()
        self.zero, self.pairs, self.more = torch.tensor([0, cards // 2, categories + 1], device=self.device)
        numbers = [2 / cards, -1 / longest, -2 / longest, 1.0]
        self.gain, self.loss, self.losses, self.whole = torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def reset(self, u: Tensor) -> TableState:
        """Lay all cards face down."""
        steps, returns = self.counters(len(u))
        piles, table = repeated(self.pile, len(u)), repeated(self.down, len(u))
        observation = put_column(integers(table), steps + self.num_actions, steps)
        values = table[:, :-1]
        return TableState(observation, steps, returns, piles, copied(values), table, steps, steps, steps != steps)

    def step(self, state: TableState, action: Tensor, u: Tensor) -> tuple[TableState, Tensor, Tensor, Tensor, Tensor]:
        """Turn up one card; its category is drawn by u (N, 1) if it has never been seen."""
        known, face = take_column(state.values, action), take_column(state.table, action)
        is_new, is_up = known == self.back, face != self.back
        category, piles = draw(state.piles, where(is_new, u[:, 0], self.whole))
        value = where(is_new, converted(category, known), known)  # (N,)
        values = put_column(copied(state.values), action, value)
        first = where(state.waits, state.first, action)
        partner = take_column(values, first)
        match = (value == partner) & (action != first) & ~is_up

        observation = integers(put_column(put_column(copied(state.table), first, partner), action, value))
        observation[:, -1] = action
        stays = where(match, value, self.back)
        table = put_column(copied(state.table), first, stays)
        table = put_column(table, action, where(is_up, face, stays))

        wrong = where(state.waits, self.losses, where(is_up, self.loss, self.nothing))
        reward = where(match, self.gain, wrong)
        found, waits = state.found + match, ~(state.waits | is_up)
        steps, returns = state.steps + self.one, state.returns + reward
        first = where(waits, action, self.zero)
        after = TableState(observation, steps, returns, piles, values, table, found, first, waits)
        terminated = found == self.pairs
        return after, observation, reward, terminated, terminated != terminated

    def observe_state(self, state: TableState) -> Tensor:
        """Return each card's category as far as it has been seen, (N, cards) int64.

        `categories` is a card never seen; with n = categories + 1, n is added for a found pair, and 2 n for the card
        that waits.
        """
        found = integers(state.table[:, :-1] != self.back)
        codes = integers(state.values) + found * self.more
        waiting = take_column(codes, state.first) + integers(state.waits) * (self.more + self.more)
        return put_column(codes, state.first, waiting)

    def frame(self, state: TableState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the table as it was seen after the last choice."""
        faces = [int(face) for face in state.observation[row, :-1]]
        return draw_cards([None if face == self.categories else face for face in faces], self.categories)

    def text(self, state: TableState, row: int) -> str:
        """Write the table as it was seen after the last choice, with # for a card that lies face down."""
        faces = [int(face) for face in state.observation[row, :-1]]
        names = ["#" if face == self.categories else name(face, self.categories) for face in faces]
        lines = [" ".join(names[start : start + 13]) for start in range(0, len(names), 13)]
        return "\n".join([*lines, f"{int(state.found[row])} of {int(self.pairs)} pairs"])
