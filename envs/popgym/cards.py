"""What the card games have in common: decks, their lengths and rewards, and pictures of cards."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from envs.core import State, World
from envs.errors import require
from envs.numpy_backend import Values
from envs.popgym.shuffle import MAX_CARDS, Piles

S = TypeVar("S", bound=State)
DECK, SUITS, RANKS = 52, 4, 13
MAX_DECKS = MAX_CARDS // DECK
NAMES = {  # of a card's kinds, in popgym's order
    2: ("black", "red"),
    SUITS: ("spades", "diamonds", "clubs", "hearts"),
    RANKS: ("A", *map(str, range(2, 11)), "J", "Q", "K"),
}
BACKGROUND, FACE, BACK = (245, 245, 245), (255, 250, 235), (62, 108, 205)  # RGB
PIPS = ((40, 40, 50), (214, 66, 61))


class CardGame(World[S]):
    """A game with shuffled decks that pays the same sum, or takes it, in each of several steps.

    Cards are drawn when they are needed, which is the same as shuffling first.

    Args:
        kinds: kinds of cards that the game tells apart.
        steps: length of an episode.
        paid: number of steps with a reward; all right answers give a return of 1, all wrong ones -1.
    """

    reset_draws = 1
    step_draws = 1
    defines_success = False
    runs_on_numpy = True

    def __init__(
        self, decks: int, kinds: int, steps: int, paid: int, time_limit: int | None, device: str | torch.device
    ) -> None:
        super().__init__(steps if time_limit is None else time_limit, device)
        self.kinds, self.in_decks = kinds, decks * DECK
        self.deck = Piles(kinds, self.in_decks // kinds, self.device)
        self.last = torch.tensor(steps, device=self.device)
        self.share, self.double = torch.tensor([1 / paid, 2 / paid], dtype=torch.float64, device=self.device)

    def pay(self, right: Values) -> Values:
        """Return the reward (N,) of right and wrong answers (N,) bool, or of a single one."""
        return right * self.double - self.share  # which is exact; on a CPU a choice takes twice as long


def check_decks(game: str, decks: int) -> None:
    """Refuse a number of decks that cannot be shuffled."""
    require(1 <= decks <= MAX_DECKS, f"decks of {game} must be from 1 to {MAX_DECKS}, not {decks}.")


def check_cards(game: str, decks: int, cards: int | None) -> int:
    """Return how many cards of the decks an episode shows: all of them if `cards` is None."""
    check_decks(game, decks)
    most = decks * DECK
    if cards is None:
        return most
    require(2 <= cards <= most, f"cards of {game} must be from 2 to {most}, those of its decks, not {cards}.")
    return cards


def card_name(kind: int, kinds: int) -> str:
    """Name a kind of card."""
    return NAMES[kinds][kind] if kinds in NAMES else str(kind)


def card_pictures(cards: Sequence[int | None], kinds: int, columns: int = 13) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Draw cards in rows, each with one pip more than the number of its kind; None is the back of a card."""
    rows = -(-len(cards) // columns)
    pictures = [_card(card, kinds) for card in cards]
    pictures += [np.full_like(pictures[0], BACKGROUND)] * (rows * columns - len(cards))
    return np.concatenate([np.concatenate(pictures[row * columns :][:columns], 1) for row in range(rows)], 0)


def _card(kind: int | None, kinds: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Draw the picture (56, 44, 3) of one card."""
    picture = np.full((56, 44, 3), BACKGROUND, np.uint8)
    picture[4:52, 4:40] = BACK if kind is None else FACE
    across = max(3, int(np.ceil(kinds**0.5)))
    height, width = 44 // across, 32 // across
    for pip in range(0 if kind is None else kind + 1):
        y, x = 6 + height * (pip // across), 6 + width * (pip % across)
        picture[y : y + max(height - 2, 1), x : x + max(width - 2, 1)] = PIPS[(kind or 0) % 2]
    return picture
