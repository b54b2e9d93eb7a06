"""The tables that define a finite POMDP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs.errors import UserError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

TOLERANCE = 1e-5  # how far a row of probabilities may be from one: files give them to a few decimals
MOST_ENTRIES = 2**26  # of T and of O, half a gigabyte each


def numbers(count: int) -> tuple[str, ...]:
    """The names 0, 1, 2, ... of things that have no other."""
    return tuple(map(str, range(count)))


@dataclass(frozen=True, eq=False)
class Tables:
    """A POMDP of S states, A actions and Z observations, with the episodes of gym-pomdps.

    A step from state s with action a leads to s' with probability T[a, s, s'], shows z with probability
    O[a, s', z] and pays R[a, s, s', z]. Where reset[a, s] holds, that step is the last of the episode and s' is a
    start state; the rows of T hold `start` there. R may be a broadcast view, which costs no memory along the
    axes that it does not depend on.

    Raises:
        UserError: shapes do not fit, a number is not finite, a row of T, O or start is negative or does not sum
            to one within 1e-5, the row of a reset is not `start`, or names are repeated.
    """

    T: Floats  # (A, S, S')
    O: Floats  # (A, S', Z)  # noqa: E741  (the symbol of every text on POMDPs)
    R: Floats  # (A, S, S', Z)
    start: Floats  # (S,)
    reset: Flags  # (A, S)
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    observation_names: tuple[str, ...]
    discount: float

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_names()
        self._check_numbers()
        for table, rows, kinds in self._rows():
            wrong = wrong_row(rows)
            if wrong is not None:
                where = " and ".join(f"{kind} {names[i]!r}" for (kind, names), i in zip(kinds, wrong, strict=True))
                total = f"{rows[wrong].sum():g}"
                raise UserError(f"{table} of {where or 'the model'} sums to {total}, but probabilities sum to 1.")
        if (self.T[self.reset] != self.start).any():
            raise UserError("Where reset holds, the row of T must be start.")

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.state_names)

    @property
    def num_actions(self) -> int:
        """A."""
        return len(self.action_names)

    @property
    def num_observations(self) -> int:
        """Z."""
        return len(self.observation_names)

    def numbered(self) -> Tables:
        """The same model with numbers for names."""
        states, actions, observations = self.num_states, self.num_actions, self.num_observations
        return replace(
            self,
            state_names=numbers(states),
            action_names=numbers(actions),
            observation_names=numbers(observations),
        )

    def rewards_by_observation(self) -> bool:
        """Whether R depends on the observation."""
        return self.R.strides[3] != 0 and bool((self.R[..., :1] != self.R).any())

    def _rows(self) -> tuple[tuple[str, Floats, tuple[tuple[str, Sequence[str]], ...]], ...]:
        action, state = ("action", self.action_names), ("state", self.state_names)
        return ("T", self.T, (action, state)), ("O", self.O, (action, state)), ("start", self.start, ())

    def _check_shapes(self) -> None:
        states, actions, observations = self.num_states, self.num_actions, self.num_observations
        wanted = {
            "T": (actions, states, states),
            "O": (actions, states, observations),
            "R": (actions, states, states, observations),
            "start": (states,),
            "reset": (actions, states),
        }
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape:
                raise UserError(f"{name} must have shape {shape}, not {getattr(self, name).shape}.")
        if not states or not actions or not observations:
            raise UserError("A model needs at least one state, one action and one observation.")

    def _check_names(self) -> None:
        for kind in ("state", "action", "observation"):
            names = getattr(self, f"{kind}_names")
            if len(set(names)) != len(names):
                raise UserError(f"The {kind} names must differ from one another, not {names}.")

    def _check_numbers(self) -> None:
        if not np.isfinite(self.R[..., :1] if self.R.strides[3] == 0 else self.R).all():
            raise UserError("R must hold finite numbers.")
        if not 0 <= self.discount <= 1:
            raise UserError(f"discount must be from 0 to 1, not {self.discount}.")


def check_size(states: int, actions: int, observations: int, where: str) -> None:
    """Refuse a model whose tables would fill the memory; `where` begins the sentence.

    Raises:
        UserError: T or O would have more than 2**26 entries.
    """
    entries = actions * states * max(states, observations)
    if entries > MOST_ENTRIES:
        sizes = f"{states} states, {actions} actions and {observations} observations"
        raise UserError(f"{where}: found {sizes}, expected tables of at most {MOST_ENTRIES} entries, not {entries}.")


def wrong_row(rows: Floats) -> tuple[int, ...] | None:
    """Index of the first row along the last axis that is no distribution, or None."""
    right = (np.abs(rows.sum(-1) - 1.0) <= TOLERANCE) & (rows >= 0.0).all(-1)
    if right.all():
        return None
    return tuple(int(i) for i in np.argwhere(~right)[0])
