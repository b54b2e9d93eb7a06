"""Memory Cards with a perfect memory: the exact optimum of return and of success.

What such a player knows is: the values of the cards it has seen, and which guesses were wrong. A wrong guess does not
show the guessed card, but says that it is not the partner. Up to the names of cards and values that is a table with one
column for every card never seen and, in a column, one bit for every seen card whose partner it cannot be (a `Table`).
All decks that fit the table are equally likely, and how many do is a permanent, so the optimum is a finite-horizon
dynamic program over tables.

A card whose partner is known is matched at once. That loses nothing: whoever waits pays for it, and all other cards
would be turned up in the same order, only sooner, had the pair been removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Table = tuple[int, tuple[int, ...]]  # seen cards that lie there; for every unseen card the bits of those it is not for
EMPTY: Table = (0, ())
Sum = tuple[int, float, bool, int]  # of a turn: table, chance, whether it leads to a decision, and to which, or table
Choice = tuple[float, int, int]  # of a guess: chance, right, wrong


@dataclass(frozen=True)
class Options:
    """What can be guessed for one face-up card, one entry a choice."""

    column: tuple[int, ...]  # the unseen card that is guessed; equal columns are listed once
    chance: tuple[float, ...]  # that it is the partner
    right: tuple[Table, ...]  # the table after a match
    wrong: tuple[Table, ...]


@dataclass(frozen=True)
class Solution:
    """Optimal values with k = 0..horizon steps to go, before the next card is turned up."""

    number: dict[Table, int]
    returns: Floats  # (horizon + 1, tables), expected undiscounted return
    success: Floats  # (horizon + 1, tables), greatest probability of an empty table in k steps

    def best(self, pairs: int) -> tuple[float, float]:
        """Return the greatest probability of success and, by another policy perhaps, the greatest return."""
        start = self.number[full(pairs)]
        return float(self.success[-1, start]), float(self.returns[-1, start])


def full(pairs: int) -> Table:
    """Return the table where nothing is known of any card."""
    return 0, (0,) * (2 * pairs)


@cache
def tidy(table: Table) -> Table:
    """Bring tables that differ in the names of cards only into one form."""
    rows, columns = table
    orders = itertools.product(*(itertools.permutations(group) for group in _alike(rows, columns)))
    moved = ([bit for group in order for bit in group] for order in orders)
    return rows, min(tuple(sorted(_renamed(column, order) for column in columns)) for order in moved)


@cache
def decks(table: Table) -> int:
    """Count the ways to give every seen card a partner, a number proportional to the decks that fit."""
    rows, columns = table
    if rows == 0:
        return 1
    last = rows - 1
    return sum(decks(tidy(without(table, last, j))) for j, column in enumerate(columns) if not column >> last & 1)


def without(table: Table, row: int, column: int) -> Table:
    """Remove a seen card and an unseen one that have been matched."""
    rows, columns = table
    low = (1 << row) - 1
    kept = columns[:column] + columns[column + 1 :]
    return rows - 1, tuple(c & low | c >> 1 & ~low for c in kept)


@cache
def options(table: Table, row: int) -> Options:
    """List all guesses at the partner of a seen card that may be right."""
    found: dict[int, tuple[int, float, Table, Table]] = {}
    rows, columns = table
    for j, column in enumerate(columns):
        chance = partner(table, row, j)
        if chance > 0.0 and column not in found:
            wrong = (rows, (*columns[:j], column | 1 << row, *columns[j + 1 :]))  # the guess is noted
            found[column] = (j, chance, tidy(without(table, row, j)), tidy(wrong))
    return Options(*zip(*found.values(), strict=True))


def partner(table: Table, row: int, column: int) -> float:
    """Return the chance that a seen and an unseen card belong together."""
    if table[1][column] >> row & 1:
        return 0.0
    return decks(tidy(without(table, row, column))) / decks(tidy(table))


def turns(table: Table) -> Iterator[tuple[float, Table, int | None]]:
    """List what the next card may be: chance, the table then, and its row, None where it was matched at once."""
    rows, columns = table
    each = 1.0 / max(rows + len(columns), 1)
    for row in range(rows):
        yield each, table, row
    for j in range(len(columns)):
        known = [partner(table, row, j) for row in range(rows)]
        yield from ((each * p, tidy(without(table, row, j)), None) for row, p in enumerate(known) if p > 0.0)
        fresh = 1.0 - sum(known)
        if fresh > 1e-12:
            yield each * fresh, (rows + 1, columns[:j] + columns[j + 1 :]), rows  # the last of the seen ones


def solve(pairs: int, horizon: int) -> Solution:
    """Run value iteration over every table that a player can come to; pairs up to 5 take seconds."""
    number, sums, choices, starts = _program(pairs)
    chance, right, wrong = (np.array(column) for column in zip(*choices, strict=True))
    table, weight, decides, target = (np.array(column) for column in zip(*sums, strict=True))
    target = target + len(number) * decides  # in the values of the tables, then of the decisions

    def swept(values: Floats, cost: float) -> Floats:
        """Compute the values (tables,) with one step more to go."""
        decisions = np.maximum.reduceat(chance * values[right] + (1.0 - chance) * (values[wrong] - cost), starts)
        worth = np.concatenate([values, decisions])[target]
        return np.asarray(np.bincount(table, weight * worth, minlength=len(values)), np.float64)

    empty = number[EMPTY]
    returns, success = np.zeros((2, horizon + 1, len(number)))
    success[:, empty] = 1.0
    for k in range(horizon):
        returns[k + 1] = swept(returns[k], cost=1.0)
        success[k + 1] = swept(success[k], cost=0.0)
        success[k + 1, empty] = 1.0
    return Solution(number, returns, success)


def _program(pairs: int) -> tuple[dict[Table, int], list[Sum], list[Choice], list[int]]:
    """Write the dynamic program: a number for every table that can come up, what it sums, and all choices.

    The last list says where the choices of each decision begin.
    """
    number: dict[Table, int] = {}
    sums: list[Sum] = []
    choices: list[Choice] = []
    starts: list[int] = []
    decided: dict[tuple[Table, int], int] = {}
    tables: list[Table] = []

    def named(table: Table) -> int:
        if table not in number:
            number[table] = len(number)
            tables.append(table)
        return number[table]

    named(full(pairs))
    for table in tables:  # which grows meanwhile
        for chance, then, row in turns(table):
            if row is None:
                sums.append((number[table], chance, False, named(then)))
                continue
            if (then, row) not in decided:
                decided[then, row] = len(starts)
                starts.append(len(choices))
                guess = options(then, row)
                each = zip(guess.chance, guess.right, guess.wrong, strict=True)
                choices += [(p, named(right), named(wrong) if p < 1.0 else 0) for p, right, wrong in each]
            sums.append((number[table], chance, True, decided[then, row]))
    return number, sums, choices, starts


def _alike(rows: int, columns: tuple[int, ...]) -> list[list[int]]:
    """Group the seen cards that have as many exclusions in as crowded columns: only their order is open."""
    sign = {row: tuple(sorted(c.bit_count() for c in columns if c >> row & 1)) for row in range(rows)}
    order = sorted(range(rows), key=lambda row: sign[row])
    return [list(group) for _, group in itertools.groupby(order, key=lambda row: sign[row])]


def _renamed(column: int, order: list[int]) -> int:
    return sum((column >> row & 1) << digit for digit, row in enumerate(order))
