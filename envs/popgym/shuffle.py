"""Shuffles that draw few numbers: cards that are drawn when they are needed, and many uniforms from one.

A vector draws the uniforms of a reset at every step, because any row may end. So a reset that shuffles a whole deck
would cost far more than the step. Arguments are tensors or numpy arrays, as in `envs.numpy_backend`.
"""

from bisect import bisect

import torch

from envs.numpy_backend import Values, converted, double, integers, single, stack, take_column, truncate, zeros

MAX_CARDS = 2**15 - 1  # int16 counts them
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64, a public generator


def repeated(row: Values, count: int) -> Values:
    """Repeat a row of numbers (K,): (count, K)."""
    return zeros(row, count)[:, None] + row


# ---- cards without replacement ---------------------------------------------------------------------------------------
class Piles:
    """Shuffled piles of cards, `copies` of each kind at first.

    A pile is a row (kinds + 1,) int16. Column k counts the cards of all kinds below k that are left, so the first
    column is 0 and the last counts all.
    """

    runs_on_numpy = True

    def __init__(self, kinds: int, copies: int, device: torch.device) -> None:
        self.whole = (torch.arange(kinds + 1, device=device) * copies).short()
        # A card is taken from the columns above its kind. On a CPU a product with them takes half as long as a search.
        self.weights = torch.full((kinds + 1,), -1.0, device=device)
        self.weights[-1] = kinds - 1

    def full(self, count: int) -> Values:
        """Make full piles (count, kinds + 1)."""
        return repeated(self.whole, count)

    def draw(self, piles: Values, u: Values) -> tuple[Values, Values]:
        """Draw a card from each pile (N, kinds + 1) by a uniform u (N,); returns its kind (N,) int64 and what is left.

        All cards that are left are equally likely. Where none is left, or u is 1, the kind is 0 and the pile stays.
        """
        place = converted(u * piles[:, -1], piles)  # (N,) among the cards in order of their kinds
        taken = piles > place[:, None]
        return integers(single(taken) @ self.weights), piles - converted(taken, piles)

    def plain_draw(self, pile: list[int], u: float) -> tuple[int, list[int]]:
        """Draw a card as `draw` does, from one pile."""
        first = bisect(pile, int(u * pile[-1]))  # the first column that counts the card
        left = pile.copy()
        for column in range(first, len(pile)):
            left[column] -= 1
        return first - 1 if first < len(pile) else 0, left

    def draw_two(self, piles: Values, u: Values) -> tuple[Values, Values]:
        """Draw a card from each of two equally high piles (N, 2, kinds + 1) by one uniform u (N,): kinds (N, 2).

        What the first card leaves unused of u is a uniform number too.
        """
        count, width = len(u), len(self.whole)
        place = u * piles[:, 0, -1]
        both = stack([u, place - truncate(place)]).reshape(2 * count)
        kinds, left = self.draw(piles.reshape(2 * count, width), both)
        return kinds.reshape(count, 2), left.reshape(count, 2, width)


def left_of(piles: Values, kind: Values) -> Values:
    """Count the cards of one kind (N,) in each pile, (N,)."""
    return take_column(piles, kind + 1) - take_column(piles, kind)


def left_of_each(piles: Values) -> Values:
    """Count the cards of each kind in each pile, (N, ..., kinds) int64."""
    return integers(piles[..., 1:] - piles[..., :-1])


# ---- many uniforms from one ------------------------------------------------------------------------------------------
def hashed(key: Values, count: int) -> Values:
    """Turn one or two uniforms per row, (N, 1) or (N, 2) float64, into `count` uniforms (N, count) float64.

    Equal keys give equal numbers, on every device. A key has 53 bits, so among ten million episodes with one key each
    two are equal with a probability of half a percent.
    """
    words = integers(key * 2.0**53)  # (N, 1..2)
    start = _mixed(words[:, 0])
    if words.shape[1] == 2:
        start = _mixed(start ^ words[:, 1])
    order = (zeros(start, count) + 1).cumsum(0)  # 1 .. count
    numbers = _mixed(start[:, None] + order * _signed(GOLDEN))
    return double(_shifted(numbers, 11)) * 2.0**-53


def _mixed(words: Values) -> Values:
    """Scramble integers of 64 bits, one to one."""
    words = (words ^ _shifted(words, 30)) * _signed(FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(SECOND)
    return words ^ _shifted(words, 31)


def _shifted(words: Values, bits: int) -> Values:
    """Shift to the right and fill with zeros; the operator would fill with the sign."""
    return (words >> bits) & (2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    """Write 64 bits as a signed integer; products of these overflow, as they should."""
    return word - 2**64
