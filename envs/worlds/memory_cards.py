"""Memory Cards: find the partner of the one card that lies face up."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import require
from envs.numpy_backend import argsort, integers, put_column, take, take_column, where, zeros
from envs.spaces import MultiDiscrete

HIDDEN = 0
MAX_TABLED_PAIRS = 6  # maximum of pairs with look-up tables over all sets of removed cards
MAX_PAIRS = 31  # maximum of pairs whose cards fit as bits into one integer


@dataclass
class CardState(State):
    """N tables of 2P cards."""

    cards: Tensor  # (N, 2P) int64, values 1..P, each twice
    removed: Tensor  # (N,) int64, bit i is set when card i has been removed
    current: Tensor  # (N,) int64, index of the card that lies face up


class MemoryCards(World[CardState]):
    """Choose the index of the face-up card's partner; a correct pair is removed, any other choice costs 1.

    Observation MultiDiscrete([P + 2] * 2P): 0 hidden, 1..P the face-up card's value, P + 1 removed. A chosen card is
    not shown. After every step one of the remaining cards is turned up uniformly at random. Success is an empty table.
    """

    step_draws = 1
    runs_on_numpy = True

    def __init__(self, pairs: int = 5, time_limit: int = 50, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        require(2 <= pairs <= MAX_PAIRS, f"pairs of Memory Cards must be from 2 to {MAX_PAIRS}, not {pairs}.")
        self.pairs = pairs
        self.num_actions = 2 * pairs
        self.reset_draws = 2 * pairs + 1
        self.observation_space = MultiDiscrete([pairs + 2] * self.num_actions)
        self.state_space = MultiDiscrete([2 * pairs + 2] * self.num_actions)
        self.values = torch.arange(1, pairs + 1, device=self.device).repeat(2)  # (2P,)
        self.bits = torch.tensor([1 << card for card in range(self.num_actions)], device=self.device)  # (2P,)
        self.all_removed = self.bits.sum()
        self.gap = torch.tensor(pairs + 1, device=self.device)
        self.right, self.wrong = torch.tensor([0.0, -1.0], dtype=torch.float64, device=self.device)
        self.tabled = pairs <= MAX_TABLED_PAIRS
        if self.tabled:  # look-up tables with a row for each set of removed cards
            sets = torch.arange(1 << self.num_actions, device=self.device)
            self.gaps = self._gaps(sets)  # (2**2P, 2P)
            self.left = (self.gaps == HIDDEN).sum(1).double()  # (2**2P,)
            # The last rank is for products u * left that rounding raises to left itself.
            ranks = torch.arange(self.num_actions + 1, device=self.device)
            self.ranks = torch.tensor(len(ranks), device=self.device)
            middle = ((ranks + 0.5) / self.left[:, None].clip(min=1.0)).clip(max=1.0).flatten()
            self.card = self._turn_up(sets.repeat_interleave(len(ranks)), middle)

    def reset(self, u: Tensor) -> CardState:
        """Shuffle by the order of u[:, :-1] and turn up the card that u[:, -1] chooses."""
        steps, returns = self.counters(len(u))
        cards = take(self.values, argsort(u[:, :-1]).reshape(-1)).reshape(-1, self.num_actions)  # (N, 2P)
        removed = zeros(self.one, len(u))
        current = self.turn_up(removed, u[:, -1])
        return CardState(self.observe(cards, removed, current), steps, returns, cards, removed, current)

    def step(self, state: CardState, action: Tensor, u: Tensor) -> tuple[CardState, Tensor, Tensor, Tensor, Tensor]:
        """Guess once: the index of the partner."""
        cards, shown = state.cards, state.current
        # Partners are removed together, so a removed card never equals the face-up card.
        match = (take_column(cards, action) == take_column(cards, shown)) & (action != shown)  # (N,)
        pair = take(self.bits, action) | take(self.bits, shown)
        removed = where(match, state.removed | pair, state.removed)
        terminated = removed == self.all_removed
        reward = where(match, self.right, self.wrong)
        current = self.turn_up(removed, u[:, 0])
        observation = self.observe(cards, removed, current)
        steps, returns = state.steps + self.one, state.returns + reward
        after = CardState(observation, steps, returns, cards, removed, current)
        return after, observation, reward, terminated, terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, cards, removed, current = row
        match = cards[action] == cards[current] and action != current
        if match:
            removed |= 1 << action | 1 << current
        reward = self.right if match else self.wrong
        table = [self.gap if removed >> card & 1 else HIDDEN for card in range(2 * self.pairs)]
        left = [card for card, value in enumerate(table) if value == HIDDEN]
        rank, current = min(int(draw() * len(left)), len(left) - 1), 0  # rounding may give their number itself
        if left:
            current = left[rank]
            table[current] = cards[current]
        return (table, steps + 1, returns + reward, cards, removed, current), reward, not left, not left

    def observe(self, cards: Tensor, removed: Tensor, current: Tensor) -> Tensor:
        """Return the observation (N, 2P) int64."""
        table: Tensor = take(self.gaps, removed) if self.tabled else self._gaps(removed)
        face_up = where(removed == self.all_removed, self.gap, take_column(cards, current))  # none on an empty table
        return put_column(table, current, face_up)

    def observe_state(self, state: CardState) -> Tensor:
        """Return every card (N, 2P) int64: its value 1..P, P + 1 if removed, P + 1 plus its value if face up."""
        gone = (state.removed[:, None] & self.bits) != 0
        table = where(gone, self.gap, state.cards)
        value = take_column(state.cards, state.current) + self.gap
        empty = state.removed == self.all_removed
        return put_column(table, state.current, where(empty, self.gap, value))

    def turn_up(self, removed: Tensor, u: Tensor) -> Tensor:
        """Choose a card (N,) uniformly by u (N,) among those that are not bits of `removed` (N,); 0 if none is left."""
        if not self.tabled:
            return self._turn_up(removed, u)
        rank = integers(u * take(self.left, removed))
        return take(self.card, removed * self.ranks + rank)

    def _gaps(self, removed: Tensor) -> Tensor:
        """Return the table (N, 2P) without the face-up card: P + 1 for a removed card, else HIDDEN."""
        return ((removed[:, None] & self.bits) != 0) * self.gap

    def _turn_up(self, removed: Tensor, u: Tensor) -> Tensor:
        """Turn up a card as `turn_up` does, for any number of cards."""
        rank = ((removed[:, None] & self.bits) == 0).cumsum(1)  # (N, 2P), 1-based among the remaining
        left = rank[:, -1]
        wanted = (integers(u * left) + self.one).clip(self.one, left)  # rounding may give left itself
        return integers(rank >= wanted[:, None]).argmax(1)

    def frame(self, state: CardState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw two rows of cards: backs, the face-up card with as many pips as its value, gaps."""
        cards = [_card(int(value), self.pairs) for value in state.observation[row]]
        rows = [np.concatenate(cards[: self.pairs], 1), np.concatenate(cards[self.pairs :], 1)]
        return np.concatenate(rows, 0)

    def text(self, state: CardState, row: int) -> str:
        """Draw two rows of cards: backs (#), the face-up card's value, gaps (.)."""
        names = {HIDDEN: "#", self.pairs + 1: "."}
        cards = [f"{names.get(value, value)!s:>2}" for value in state.observation[row].tolist()]
        return " ".join(cards[: self.pairs]) + "\n" + " ".join(cards[self.pairs :])


def _card(value: int, pairs: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Draw the picture (56, 44, 3) of one card."""
    picture = np.full((56, 44, 3), 245, np.uint8)
    if value == pairs + 1:
        return picture
    picture[4:52, 4:40] = (62, 108, 205) if value == HIDDEN else (255, 250, 235)
    for pip in range(value):
        y, x = 8 + 12 * (pip // 3 % 4), 8 + 11 * (pip % 3)
        picture[y : y + 8, x : x + 7] = (214, 66, 61)
    return picture
