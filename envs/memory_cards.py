"""Memory Cards: find the partner of the one card that lies face up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import State, UserError, World

HIDDEN = 0


@dataclass
class CardState(State):
    """N tables of 2P cards."""

    cards: Tensor  # (N, 2P) int64, values 1..P, each twice
    removed: Tensor  # (N, 2P) bool
    current: Tensor  # (N,) int64, index of the card that lies face up


class MemoryCards(World[CardState]):
    """Name the place of the face-up card's partner; a found pair is removed, anything else costs 1.

    Observation MultiDiscrete([P + 2] * 2P): 0 hidden, 1..P the face-up card's value, P + 1 removed. A guessed
    card is not shown. After every step a card is turned up uniformly among those that remain. Success is an
    empty table.
    """

    step_draws = 1

    def __init__(self, pairs: int = 5, time_limit: int = 50, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        if pairs < 2:
            raise UserError(f"pairs of Memory Cards must be at least 2, not {pairs}.")
        self.pairs = pairs
        self.num_actions = 2 * pairs
        self.reset_draws = 2 * pairs + 1
        self.observation_space = gymnasium.spaces.MultiDiscrete([pairs + 2] * self.num_actions)
        self.values = torch.arange(1, pairs + 1, device=self.device).repeat(2)  # (2P,)
        self.places = torch.arange(self.num_actions, device=self.device)  # (2P,)

    def reset(self, u: Tensor) -> CardState:
        """Shuffle by the order of u[:, :-1] and turn up the card that u[:, -1] chooses."""
        cards = self.values[u[:, :-1].argsort(dim=1, stable=True)]  # (N, 2P)
        removed = torch.zeros_like(cards, dtype=torch.bool)
        current = turn_up(removed, u[:, -1])
        steps, returns = self.counters(len(u))
        return CardState(self.observe(cards, removed, current), steps, returns, cards, removed, current)

    def observe(self, cards: Tensor, removed: Tensor, current: Tensor) -> Tensor:
        """The table as the player sees it, (N, 2P) int64."""
        face_up = self.places == current[:, None]
        return cards.masked_fill(~face_up, HIDDEN).masked_fill(removed, self.pairs + 1)

    def step(self, state: CardState, action: Tensor, u: Tensor) -> tuple[CardState, Tensor, Tensor, Tensor, Tensor]:
        """One guess: the place of the partner."""
        pair = torch.stack([state.current, action], 1)  # (N, 2)
        values = state.cards.gather(1, pair)
        match = (values[:, 0] == values[:, 1]) & (action != state.current)
        match = match & ~state.removed.gather(1, action[:, None])[:, 0]
        chosen = (self.places == pair[:, :1]) | (self.places == pair[:, 1:])  # (N, 2P)
        removed = state.removed | (match[:, None] & chosen)
        terminated = removed.all(1)
        reward = match.double() - 1.0
        current = torch.where(terminated, state.current, turn_up(removed, u[:, 0]))
        observation = self.observe(state.cards, removed, current)
        returns = state.returns + reward
        state = CardState(observation, state.steps + 1, returns, state.cards, removed, current)
        return state, observation, reward, terminated, terminated

    def frame(self, state: CardState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Two rows of cards: backs, the face-up card with as many pips as its value, gaps."""
        cards = [_card(int(value), self.pairs) for value in state.observation[row]]
        rows = [np.concatenate(cards[: self.pairs], 1), np.concatenate(cards[self.pairs :], 1)]
        return np.concatenate(rows, 0)


def turn_up(removed: Tensor, u: Tensor) -> Tensor:
    """A place (N,) uniform among the cards not removed (N, 2P), chosen by u (N,); 0 if none is left."""
    rank = (~removed).long().cumsum(1)  # (N, 2P), 1-based among the remaining
    wanted = torch.minimum((u * rank[:, -1]).long() + 1, rank[:, -1])
    return (rank >= wanted[:, None]).long().argmax(1)


def _card(value: int, pairs: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Picture (56, 44, 3) of one card."""
    picture = np.full((56, 44, 3), 245, np.uint8)
    if value == pairs + 1:
        return picture
    picture[4:52, 4:40] = (62, 108, 205) if value == HIDDEN else (255, 250, 235)
    for pip in range(value):
        y, x = 8 + 12 * (pip // 3 % 4), 8 + 11 * (pip % 3)
        picture[y : y + 8, x : x + 7] = (214, 66, 61)
    return picture
