"""Games in which counting cards pays: Count Recall, and Higher Lower."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from envs.core import Plain, State, Uniform
from envs.errors import require
from envs.numpy_backend import concatenate, where
from envs.popgym.cards import DECK, RANKS, CardGame, card_name, card_pictures, check_decks
from envs.popgym.shuffle import left_of, left_of_each
from envs.spaces import MultiDiscrete

Picture = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class CountState(State):
    """N games of Count Recall, each with two shuffles of the same cards."""

    piles: Tensor  # (N, 2, categories + 1) int16, cards left to be shown and to be asked for, see `shuffle.Piles`
    query: Tensor  # (N,) int64, category that is asked for


class CountRecall(CardGame[CountState]):
    """Tell how many cards of a category have been shown: +-1/(cards - 1) at every step; only the exact number is right.

    The observation is the category of the newest card and the one asked for, from another shuffle of the same cards.
    The newest card counts. `decks` of 52 cards fall into `categories` of equal size: 2 colours, 4 suits, 13 ranks.
    """

    def __init__(
        self,
        decks: int = 1,
        categories: int = 2,
        time_limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        check_decks("CountRecall", decks)
        cards = decks * DECK
        divides = 1 <= categories <= cards and cards % categories == 0
        require(divides, f"categories of CountRecall must divide its {cards} cards, not be {categories}.")
        super().__init__(decks, categories, cards - 1, cards - 1, time_limit, device)
        copies = cards // categories
        self.num_actions = copies + 1
        self.copies = torch.tensor(copies, device=self.device)
        self.observation_space = MultiDiscrete([categories] * 2)
        self.state_space = MultiDiscrete([*[copies + 1] * 2 * categories, categories])

    def reset(self, u: Tensor) -> CountState:
        """Draw the first card and the first query by u (N, 1)."""
        pile = self.deck.full(len(u))[:, None]
        cards, piles = self.deck.draw_two(concatenate([pile, pile]), u[:, 0])
        return CountState(cards, *self.counters(len(u)), piles, cards[:, 1])

    def step(self, state: CountState, action: Tensor, u: Tensor) -> tuple[CountState, Tensor, Tensor, Tensor, Tensor]:
        """Answer the query with a number of cards."""
        piles = state.piles.reshape(len(action), 2 * (self.kinds + 1))  # the cards left to be shown come first
        reward = self.pay(action == self.copies - left_of(piles, state.query))
        cards, piles = self.deck.draw_two(state.piles, u[:, 0])
        steps = state.steps + self.one
        after = CountState(cards, steps, state.returns + reward, piles, cards[:, 1])
        terminated = steps == self.last
        return after, cards, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, (shown, asked), query = row
        reward, u, steps = self.pay(action == self.copies - shown[query + 1] + shown[query]), draw(), steps + 1
        card, left = self.deck.plain_draw(shown, u)
        query, asked = self.deck.plain_draw(asked, u * shown[-1] % 1.0)  # as `draw_two` does
        return ((card, query), steps, returns + reward, [left, asked], query), reward, steps == self.last, False

    def observe_state(self, state: CountState) -> Tensor:
        """Return the cards left to be shown and to be asked for of each category, and the query: (N, 2 c + 1) int64."""
        left = left_of_each(state.piles)
        return concatenate([left[:, 0], left[:, 1], state.query[:, None]])

    def frame(self, state: CountState, row: int) -> Picture:
        """Draw the newest card, a card's back, and the card that is asked for."""
        value, query = (int(kind) for kind in state.observation[row])
        return card_pictures([value, None, query], self.kinds, 3)

    def text(self, state: CountState, row: int) -> str:
        """Name the newest card and the one asked for, and tell the right answer."""
        value, query = (int(kind) for kind in state.observation[row])
        pile, (shown, asked) = state.piles[row, 0], (card_name(kind, self.kinds) for kind in (value, query))
        copies = self.num_actions - 1
        count = copies - int(pile[query + 1]) + int(pile[query])
        return f"{shown}; how many {asked}? {count} of {copies}"


@dataclass
class RankState(State):
    """N games of Higher Lower."""

    piles: Tensor  # (N, 14) int16, cards left, see `shuffle.Piles`
    rank: Tensor  # (N,) int64, rank of the newest card


class HigherLower(CardGame[RankState]):
    """Tell whether the next card is higher or lower than the newest: +-1/cards, and 0 if the ranks are equal.

    The observation is the rank of the newest card; the ace, 0, is the lowest. An episode shows all `decks` of 52 cards.
    """

    num_actions = 2
    action_names = ("higher", "lower")
    observation_space = Discrete(RANKS)

    def __init__(self, decks: int = 1, time_limit: int | None = None, device: str | torch.device = "cpu") -> None:
        check_decks("HigherLower", decks)
        cards = decks * DECK
        super().__init__(decks, RANKS, cards - 1, cards, time_limit, device)
        self.state_space = MultiDiscrete([*[cards // RANKS + 1] * RANKS, RANKS])
        self.higher = torch.tensor(0, device=self.device)

    def reset(self, u: Tensor) -> RankState:
        """Draw the first card by u (N, 1)."""
        rank, piles = self.deck.draw(self.deck.full(len(u)), u[:, 0])
        return RankState(rank[:, None], *self.counters(len(u)), piles, rank)

    def step(self, state: RankState, action: Tensor, u: Tensor) -> tuple[RankState, Tensor, Tensor, Tensor, Tensor]:
        """Guess once: 0 higher, 1 lower."""
        rank, piles = self.deck.draw(state.piles, u[:, 0])
        right = (rank > state.rank) == (action == self.higher)
        reward = where(rank == state.rank, self.nothing, self.pay(right))
        steps = state.steps + self.one
        after = RankState(rank[:, None], steps, state.returns + reward, piles, rank)
        terminated = steps == self.last
        return after, after.observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, piles, old = row
        rank, piles = self.deck.plain_draw(piles, draw())
        reward = 0.0 if rank == old else self.pay((rank > old) == (action == self.higher))
        steps += 1
        return ((rank,), steps, returns + reward, piles, rank), reward, steps == self.last, False

    def observe_state(self, state: RankState) -> Tensor:
        """Return the cards left of each rank, and the rank of the newest card: (N, 14) int64."""
        return concatenate([left_of_each(state.piles), state.rank[:, None]])

    def frame(self, state: RankState, row: int) -> Picture:
        """Draw the newest card, and the backs of those that are left."""
        return card_pictures([int(state.rank[row]), *[None] * int(state.piles[row, -1])], self.kinds)

    def text(self, state: RankState, row: int) -> str:
        """Name the newest card, and tell how many cards are left above, at and below its rank."""
        rank, left = int(state.rank[row]), int(state.piles[row, -1])
        upto, below = int(state.piles[row, rank + 1]), int(state.piles[row, rank])
        return f"{card_name(rank, self.kinds)}; left: {left - upto} higher, {upto - below} equal, {below} lower"
