"""Concentration: turn up pairs of equal cards that lie face down."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import require
from envs.numpy_backend import concatenate, converted, copied, integers, put_column, take, take_column, where
from envs.popgym.cards import card_name, card_pictures
from envs.popgym.shuffle import MAX_CARDS, Piles, repeated
from envs.spaces import MultiDiscrete

BITS = 8
SEEN = 2**BITS  # times 1 + the category of a card that has been seen
MAX_CATEGORIES = 126  # that so fit into 16 bits


@dataclass
class TableState(State):
    """N tables of cards; c is the number of categories."""

    piles: Tensor  # (N, c + 1) int16, cards never turned up, see `shuffle.Piles`
    cells: Tensor  # (N, cards + 1) int16: 256 (1 + category) once seen, plus the category face up, or c face down
    waiting: Tensor  # (N,) int64, 1 + the card that waits for its partner, or 0
    found: Tensor  # (N,) int64, pairs found


class Concentration(World[TableState]):
    """Turn up a card, then a second one: a pair of the same category stays up, others are turned down again.

    The observation has each card's category, or `categories` for one that lies face down, and the card chosen last,
    which is 0 at first. Both cards are seen once before they are turned down. A pair pays 2/cards, and no pair costs
    2/T. A card that lies face up already, as part of a pair, costs 1/T, or 2/T as second card; the first is then turned
    down, too. An episode ends when all pairs are found. It is truncated after T steps, twice as many as cards; another
    `time_limit` leaves T in the rewards.

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
        few = 1 <= categories <= MAX_CATEGORIES
        require(few, f"categories of Concentration must be from 1 to {MAX_CATEGORIES}, not {categories}.")
        fits, wanted = 1 <= cards <= MAX_CARDS and cards % (2 * categories) == 0, f"a multiple of {2 * categories}"
        rule = f"{wanted}, which is twice its categories, up to {MAX_CARDS}"
        require(fits, f"cards of Concentration must be {rule}, not {cards}.")
        longest = 2 * cards
        super().__init__(longest if time_limit is None else time_limit, device)
        self.num_actions, self.categories = cards, categories
        self.observation_space = MultiDiscrete([*[categories + 1] * cards, cards], dtype=np.int16)
        self.state_space = MultiDiscrete([*[2 * categories + 1] * cards, cards + 1])
        self.deck = Piles(categories, cards // categories, self.device)
        self.down = torch.full((cards + 1,), categories, dtype=torch.int16, device=self.device)
        numbers = torch.tensor([categories, SEEN - 1, SEEN, BITS, 1], dtype=torch.int16, device=self.device)
        self.back, self.face, self.seen, self.bits, self.next = numbers.unbind()
        self.zero, self.two, self.pairs = torch.tensor([0, 2, cards // 2], device=self.device)
        payments = [0.0, -1 / longest, -2 / longest, -2 / longest, 2 / cards, 1.0]
        self.payments = torch.tensor(payments, dtype=torch.float64, device=self.device)  # by what `step` finds
        self.whole = self.payments[-1].clone()

    def reset(self, u: Tensor) -> TableState:
        """Lay all cards face down."""
        steps, returns = self.counters(len(u))
        cells = repeated(self.down, len(u))
        observation = copied(cells)
        observation[:, -1] = self.zero
        return TableState(observation, steps, returns, self.deck.full(len(u)), cells, steps, steps)

    def step(self, state: TableState, action: Tensor, u: Tensor) -> tuple[TableState, Tensor, Tensor, Tensor, Tensor]:
        """Turn up one card; its category is drawn by u (N, 1) if it has never been seen."""
        cell, waits = take_column(state.cells, action), state.waiting > self.zero
        known, is_up = cell >> self.bits, (cell & self.face) != self.back
        is_new = known < self.next
        category, piles = self.deck.draw(state.piles, where(is_new, u[:, 0], self.whole))
        value = where(is_new, converted(category, cell), known - self.next)  # (N,)
        first = where(waits, state.waiting - self.one, action)
        other = take_column(state.cells, first)  # without meaning if no card waits: then first is action
        partner = (other >> self.bits) - self.next
        match = (value == partner) & (action != first) & ~is_up

        change = value - self.back
        cells = put_column(copied(state.cells), first, other + change * match)
        memory = (value + self.next) * self.seen + self.back
        cells = put_column(cells, action, memory + change * (match | is_up))
        shown = put_column(cells & self.face, first, partner)
        observation = put_column(shown, action, value)
        observation[:, -1] = action

        reward = take(self.payments, integers(is_up) + self.two * waits + self.two * match)
        waiting, found = (action + self.one) * ~(waits | is_up), state.found + match
        steps, returns = state.steps + self.one, state.returns + reward
        after = TableState(observation, steps, returns, piles, cells, waiting, found)
        terminated = found == self.pairs
        return after, observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, piles, cells, waits, found = row
        cells, u, back = np.array(cells, np.int16), draw(), self.back
        cell, first = cells.item(action), waits - 1 if waits else action
        value, is_up, other = (cell >> BITS) - 1, cell & self.face != back, cells.item(first)
        if value < 0:
            value, piles = self.deck.plain_draw(piles, u)
        partner = (other >> BITS) - 1
        match = value == partner and action != first and not is_up
        if match:
            cells[first] = other + value - back
        cells[action] = (value + 1) * SEEN + (value if match or is_up else back)
        seen = cells & self.face
        seen[first], seen[action], seen[-1] = partner, value, action
        reward, found = self.payments.item(is_up + 2 * (waits > 0) + 2 * match), found + match
        waits = 0 if waits or is_up else action + 1
        row = seen, steps + 1, returns + reward, piles, cells, waits, found
        return row, reward, found == self.pairs, False

    def observe_state(self, state: TableState) -> Tensor:
        """Return a number for each card, and 1 + the card that waits for its partner, or 0: (N, cards + 1) int64.

        Of c categories, a card of category k is 1 + k if it was seen and lies face down or waits, and 1 + c + k if it
        lies face up in a pair. A card never seen is 0.
        """
        cells = integers(state.cells[:, :-1])
        is_up = cells & (SEEN - 1) != self.categories
        return concatenate([(cells >> BITS) + is_up * self.categories, state.waiting[:, None]])

    def frame(self, state: TableState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the table as it was seen after the last choice."""
        faces = [int(face) for face in state.observation[row, :-1]]
        return card_pictures([None if face == self.categories else face for face in faces], self.categories)

    def text(self, state: TableState, row: int) -> str:
        """Write the table as it was seen after the last choice, with # for a card that lies face down."""
        faces = [int(face) for face in state.observation[row, :-1]]
        names = ["#" if face == self.categories else card_name(face, self.categories) for face in faces]
        lines = [" ".join(names[start : start + 13]) for start in range(0, len(names), 13)]
        return "\n".join([*lines, f"{int(state.found[row])} of {int(self.pairs)} pairs"])
