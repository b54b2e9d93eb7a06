"""Games that ask for suits seen before: Repeat First, Repeat Previous, and Autoencode."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from envs.core import Plain, State, Uniform
from envs.errors import require
from envs.numpy_backend import (
    concatenate,
    converted,
    copied,
    integers,
    maximum,
    minimum,
    put_column,
    stack,
    take_column,
    take_columns,
    where,
)
from envs.popgym.cards import DECK, SUITS, CardGame, card_name, card_pictures, check_cards, check_decks
from envs.popgym.shuffle import left_of_each, repeated
from envs.spaces import MultiDiscrete

Picture = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class FirstState(State):
    """N games of Repeat First."""

    piles: Tensor  # (N, 5) int16, cards left, see `shuffle.Piles`
    first: Tensor  # (N,) int64, suit of the first card


class RepeatFirst(CardGame[FirstState]):
    """Repeat the suit of the episode's first card at every step: +-1/(cards - 1), until all cards have been shown.

    The observation is the suit of the newest card. The delay is the episode's length: `decks` of 52 cards,
    or the first `cards` of them.
    """

    num_actions = SUITS
    observation_space = Discrete(SUITS)

    def __init__(
        self,
        decks: int = 1,
        cards: int | None = None,
        time_limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        steps = check_cards("RepeatFirst", decks, cards) - 1
        super().__init__(decks, SUITS, steps, steps, time_limit, device)
        self.state_space = MultiDiscrete([SUITS, *[decks * DECK // SUITS + 1] * SUITS])

    def reset(self, u: Tensor) -> FirstState:
        """Draw the first card by u (N, 1)."""
        suit, piles = self.deck.draw(self.deck.full(len(u)), u[:, 0])
        return FirstState(suit[:, None], *self.counters(len(u)), piles, suit)

    def step(self, state: FirstState, action: Tensor, u: Tensor) -> tuple[FirstState, Tensor, Tensor, Tensor, Tensor]:
        """Name the suit of the first card."""
        suit, piles = self.deck.draw(state.piles, u[:, 0])
        reward = self.pay(action == state.first)
        steps = state.steps + self.one
        after = FirstState(suit[:, None], steps, state.returns + reward, piles, state.first)
        terminated = steps == self.last
        return after, after.observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, piles, first = row
        suit, piles = self.deck.plain_draw(piles, draw())
        reward, steps = self.pay(action == first), steps + 1
        return ((suit,), steps, returns + reward, piles, first), reward, steps == self.last, False

    def observe_state(self, state: FirstState) -> Tensor:
        """Return the first suit, and the cards left of each suit: (N, 5) int64."""
        return concatenate([state.first[:, None], left_of_each(state.piles)])

    def frame(self, state: FirstState, row: int) -> Picture:
        """Draw the first card, a card's back, and the newest card."""
        return card_pictures([int(state.first[row]), None, int(state.observation[row, 0])], self.kinds, 3)

    def text(self, state: FirstState, row: int) -> str:
        """Name the newest card, the first one and how many are left."""
        newest, first = (card_name(int(suit), self.kinds) for suit in (state.observation[row, 0], state.first[row]))
        return f"{newest}; the first was {first}; {int(self.last) - int(state.steps[row])} cards left"


@dataclass
class PreviousState(State):
    """N games of Repeat Previous."""

    piles: Tensor  # (N, 5) int16, cards left, see `shuffle.Piles`
    recent: Tensor  # (N, k) int8, suits of the last k cards; card i is in column i % k


class RepeatPrevious(CardGame[PreviousState]):
    """Repeat the suit of the k-th newest card at every step, until all `decks` of 52 cards have been shown.

    The observation is the suit of the newest card; with k = 1 this is the answer. As soon as k cards have been shown,
    each step pays +-1/(cards - k).
    """

    num_actions = SUITS
    observation_space = Discrete(SUITS)

    def __init__(
        self, decks: int = 1, k: int = 4, time_limit: int | None = None, device: str | torch.device = "cpu"
    ) -> None:
        check_decks("RepeatPrevious", decks)
        cards = decks * DECK
        require(1 <= k < cards, f"k of RepeatPrevious must be from 1 to {cards - 1}, its cards less one, not {k}.")
        super().__init__(decks, SUITS, cards - 1, cards - k, time_limit, device)
        self.state_space = MultiDiscrete([*[SUITS] * k, *[cards // SUITS + 1] * SUITS])
        self.k = torch.tensor(k, device=self.device)
        self.empty = torch.zeros(k, dtype=torch.int8, device=self.device)
        self.ages = torch.arange(1, k + 1, device=self.device)

    def reset(self, u: Tensor) -> PreviousState:
        """Draw the first card by u (N, 1)."""
        suit, piles = self.deck.draw(self.deck.full(len(u)), u[:, 0])
        steps, returns = self.counters(len(u))
        recent = put_column(repeated(self.empty, len(u)), steps, converted(suit, self.empty))
        return PreviousState(suit[:, None], steps, returns, piles, recent)

    def step(
        self, state: PreviousState, action: Tensor, u: Tensor
    ) -> tuple[PreviousState, Tensor, Tensor, Tensor, Tensor]:
        """Name the suit of the k-th newest card."""
        suit, piles = self.deck.draw(state.piles, u[:, 0])
        steps = state.steps + self.one
        oldest = steps % self.k  # (N,) column of the card that the newest replaces
        payment = self.pay(action == take_column(state.recent, oldest))
        reward = where(steps >= self.k, payment, self.nothing)
        recent = put_column(copied(state.recent), oldest, converted(suit, self.empty))
        after = PreviousState(suit[:, None], steps, state.returns + reward, piles, recent)
        terminated = steps == self.last
        return after, after.observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, piles, recent = row
        suit, piles = self.deck.plain_draw(piles, draw())
        steps, recent = steps + 1, recent.copy()
        oldest = steps % self.k
        reward = self.pay(action == recent[oldest]) if steps >= self.k else 0.0
        recent[oldest] = suit
        return ((suit,), steps, returns + reward, piles, recent), reward, steps == self.last, False

    def observe_state(self, state: PreviousState) -> Tensor:
        """Return the last k suits, the oldest first, and the cards left of each suit: (N, k + 4) int64."""
        recent = take_columns(state.recent, (state.steps[:, None] + self.ages) % self.k)
        return concatenate([integers(recent), left_of_each(state.piles)])

    def frame(self, state: PreviousState, row: int) -> Picture:
        """Draw the last k cards, the oldest first; backs are those that have not been shown yet."""
        return card_pictures(self._recent(state, row), self.kinds, 16)

    def text(self, state: PreviousState, row: int) -> str:
        """Name the newest card and the one asked for, and tell how many are left."""
        asked, *_, newest = ("?" if suit is None else card_name(suit, SUITS) for suit in self._recent(state, row) * 2)
        return f"{newest}; {int(self.k) - 1} steps ago {asked}; {int(state.piles[row, -1])} cards left"

    def _recent(self, state: PreviousState, row: int) -> list[int | None]:
        shown, k = int(state.steps[row]) + 1, int(self.k)
        return [int(state.recent[row, card % k]) if card >= 0 else None for card in range(shown - k, shown)]


@dataclass
class CodeState(State):
    """N games of Autoencode."""

    piles: Tensor  # (N, 5) int16, cards left, see `shuffle.Piles`
    order: Tensor  # (N, cards) int8, suits in the order of dealing; 0 if not dealt yet or played back already


class Autoencode(CardGame[CodeState]):
    """Watch all cards, then play back their suits from the last to the first, each for +-1/cards.

    These are `decks` of 52 cards, or the first `cards` of them. The observation is (1, suit of the newest card) while
    the agent watches. The last card comes with a 0, and then follow (0, 0): the first answer is due with the last card
    in view. Actions before it do not matter.
    """

    num_actions = SUITS
    observation_space = MultiDiscrete([2, SUITS])

    def __init__(
        self,
        decks: int = 1,
        cards: int | None = None,
        time_limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.cards = cards = check_cards("Autoencode", decks, cards)
        super().__init__(decks, SUITS, 2 * cards - 1, cards, time_limit, device)
        self.state_space = MultiDiscrete([*[SUITS] * cards, 2 * cards])
        self.zero, self.dealt, self.last_card = torch.tensor([0, cards, cards - 1], device=self.device)
        self.empty = torch.zeros(cards, dtype=torch.int8, device=self.device)

    def reset(self, u: Tensor) -> CodeState:
        """Draw the first card by u (N, 1)."""
        suit, piles = self.deck.draw(self.deck.full(len(u)), u[:, 0])
        steps, returns = self.counters(len(u))
        order = put_column(repeated(self.empty, len(u)), steps, converted(suit, self.empty))
        return CodeState(stack([steps + self.one, suit]), steps, returns, piles, order)

    def step(self, state: CodeState, action: Tensor, u: Tensor) -> tuple[CodeState, Tensor, Tensor, Tensor, Tensor]:
        """Watch the next card, or name the suit of the last card that has not been played back."""
        suit, piles = self.deck.draw(state.piles, u[:, 0])
        steps = state.steps + self.one
        watches = steps < self.dealt
        suit = suit * watches  # 0 when all are dealt
        place = maximum(minimum(steps, self.last - steps), self.zero)  # (N,) of the card in question
        payment = self.pay(action == take_column(state.order, place))
        reward = where(watches, self.nothing, payment)
        order = put_column(copied(state.order), place, converted(suit, self.empty))
        observation = stack([integers(steps < self.last_card), suit])
        after = CodeState(observation, steps, state.returns + reward, piles, order)
        terminated = steps == self.last
        return after, observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, piles, order = row
        suit, piles = self.deck.plain_draw(piles, draw())
        steps, order = steps + 1, order.copy()
        watches = steps < self.dealt
        place = steps if watches else max(self.last - steps, 0)
        reward = 0.0 if watches else self.pay(action == order[place])
        order[place] = suit = suit * watches
        seen = int(steps < self.last_card), suit
        return (seen, steps, returns + reward, piles, order), reward, steps == self.last, False

    def observe_state(self, state: CodeState) -> Tensor:
        """Return the suits, 0 for those not dealt or already played back, and the step's number: (N, cards + 1)."""
        return concatenate([integers(state.order), state.steps.clip(self.zero, self.last)[:, None]])

    def frame(self, state: CodeState, row: int) -> Picture:
        """Draw the cards that have been dealt and not played back."""
        return card_pictures([*self._known(state, row), *[None] * self.cards][: self.cards], self.kinds)

    def text(self, state: CodeState, row: int) -> str:
        """Name the newest cards that have been dealt and not played back."""
        known, watches = self._known(state, row), bool(state.observation[row, 0])
        newest = " ".join(card_name(suit, self.kinds) for suit in known[-4:])
        return f"{'watch' if watches else 'play back'}: {len(known)} of {self.cards} cards, at the end {newest or '-'}"

    def _known(self, state: CodeState, row: int) -> list[int]:
        steps, last = int(state.steps[row]), int(self.last)
        return [int(suit) for suit in state.order[row, : max(0, min(steps + 1, last - steps))]]
