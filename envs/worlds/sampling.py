"""Exact draws from rows of probabilities: one uniform and a few look-ups a draw, however long the rows are.

Walker's alias method. For every row [0, 1) is cut into equal slots, a power of two of them, and every slot into two
pieces, one of which may be empty; each piece belongs to one outcome, and the pieces of an outcome are together as
long as its probability. A uniform finds its slot by its leading bits and its piece by one comparison.

Lengths are whole numbers of 2**-53, the step of the uniforms. So every row sums to exactly one whatever rounding
left of its probabilities, an outcome of probability 0 has no piece, and any other outcome has one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from envs.numpy_backend import integers, take
from envs.worlds.tables import Floats

Integers = np.ndarray[Any, np.dtype[np.int64]]
Values = Any  # tensors, or numpy arrays in their place

UNITS = 2**53


class Draw(NamedTuple):
    """How to choose from R rows of probabilities, which have C slots together.

    Where every row has one possible outcome, nothing is drawn: there are no slots, and each row is one piece.
    """

    slots: Floats  # (R,), how many each row has; whole numbers, as factors of uniforms
    first: Integers  # (R,), the first slot of each row
    cuts: Floats  # (C,), where each slot is cut in two
    choices: Integers  # (P,), the outcome of each piece; P is 2 * C, or R if nothing is drawn

    @property
    def draws(self) -> int:
        """Uniforms that a choice takes."""
        return int(len(self.cuts) > 0)

    @property
    def row(self) -> Integers:
        """The row (P,) that each piece belongs to."""
        rows = np.arange(len(self.slots))
        return np.repeat(rows, 2 * self.slots.astype(int)) if self.draws else rows

    def uniform(self, row: int, outcome: int) -> float:
        """The least uniform that chooses this outcome in this row.

        Raises:
            ValueError: the outcome has probability 0.
        """
        ours = self.row == row
        left = np.arange(self.slots[row]) / self.slots[row]
        cuts = self.cuts[int(self.first[row]) :][: len(left)] if self.draws else np.empty((1, 0))
        begin = np.column_stack([left, cuts]).flatten()
        found = (self.choices[ours] == outcome) & (begin < np.append(begin[1:], 1.0))
        if not found.any():
            raise ValueError(f"Row {row} never chooses outcome {outcome}.")
        return float(begin[found][0])


def piece(slots: Values, first: Values, cuts: Values, row: Values, u: Values, column: int) -> Values:
    """The piece (N,) int64 that u[:, column] falls into.

    Args:
        slots: of the `Draw`.
        first: of the `Draw`.
        cuts: of the `Draw`.
        row: (N,) int64, row of the table of probabilities.
        u: (N, D) float64 from [0, 1).
        column: the uniform to use; none is used where nothing is drawn.
    """
    if len(cuts) == 0:
        return row
    ours = u[:, column]
    slot = take(first, row) + integers(ours * take(slots, row))  # the product with a power of two is exact
    return slot + slot + (ours >= take(cuts, slot))


def draw(probabilities: Floats) -> Draw:
    """The draw for rows (R, C) of probabilities that need not sum to one exactly, but are not all 0."""
    count = (probabilities > 0).sum(1)
    slots = 1 << np.ceil(np.log2(count)).astype(int)  # (R,)
    first = slots.cumsum() - slots
    if (count == 1).all():
        return Draw(slots.astype(float), first, np.empty(0), probabilities.argmax(1))
    cuts, choices = np.empty(slots.sum()), np.empty((slots.sum(), 2), np.int64)
    for width in np.unique(slots).tolist():
        rows = np.flatnonzero(slots == width)
        place = first[rows][:, None] + np.arange(width)  # (rows, width)
        cuts[place], choices[place] = cut(probabilities[rows], width)
    return Draw(slots.astype(float), first, cuts, choices.flatten())


def cut(probabilities: Floats, slots: int) -> tuple[Floats, Integers]:
    """Where to cut the slots (R, K), and whose the two pieces are (R, K, 2), for at most K possible outcomes a row."""
    outcome, mass = support(probabilities, slots)
    order = mass.argsort(1, kind="stable")
    outcome, mass = (np.take_along_axis(table, order, 1) for table in (outcome, mass))
    kept, other = pair(mass)
    left = np.arange(slots) * (UNITS // slots)
    return (left + kept) / UNITS, np.stack([outcome, np.take_along_axis(outcome, other, 1)], 2)


def support(probabilities: Floats, width: int) -> tuple[Integers, Integers]:
    """Possible outcomes (R, width) and their units of probability, filled up with the first outcome and none."""
    rows, columns = (probabilities > 0).nonzero()
    count = np.bincount(rows)
    first = count.cumsum() - count
    place = np.arange(len(rows)) - first[rows]
    outcome = np.repeat(columns[first][:, None], width, 1)
    chance = np.zeros(outcome.shape)
    outcome[rows, place], chance[rows, place] = columns, probabilities[rows, columns]
    return outcome, units(chance)


def units(chance: Floats) -> Integers:
    """Probabilities (R, K) as whole numbers that sum to 2**53 in each row; only 0 becomes 0."""
    scaled = chance / chance.sum(1, keepdims=True) * UNITS
    mass = np.maximum(np.rint(scaled), chance > 0).astype(np.int64)
    # What rounding left over, a few units, goes to the largest.
    mass[np.arange(len(mass)), mass.argmax(1)] += UNITS - mass.sum(1)
    return mass


def pair(mass: Integers) -> tuple[Integers, Integers]:
    """Share out K slots: slot k holds kept[k] units of outcome k, and outcome other[k] fills it up.

    Lights, which have less than a slot, take their own slot, filled up by the current heavy one. When that has
    less than a slot left, it takes its own too, and the next heavy one fills it up.

    Args:
        mass: (R, K), ascending in each row, summing to 2**53.
    """
    slots, every = mass.shape[1], np.arange(len(mass))
    share = UNITS // slots
    lights = heavy = (mass < share).sum(1)  # (R,)
    light, rest = np.zeros_like(lights), mass[every, heavy]
    kept, other = np.empty_like(mass), np.empty_like(mass)
    for _ in range(slots):
        small = (rest >= share) & (light < lights)
        slot = np.where(small, light, heavy)
        kept[every, slot] = np.where(small, mass[every, slot], rest)
        heavy = np.where(small, heavy, np.minimum(heavy + 1, slots - 1))
        other[every, slot] = heavy
        rest = np.where(small, rest, mass[every, heavy]) - (share - kept[every, slot])
        light = light + small
    return kept, other
