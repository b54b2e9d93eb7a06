"""A tabular POMDP as its planner sees it: beliefs, and the two bounds that planning starts from.

A belief here need not sum to 1: what an action and an observation leave of it is the joint probability, so that
value functions are linear in it and an ended episode simply drops out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from envs.errors import UserError

Floats = np.ndarray[Any, np.dtype[np.float64]]
SETTLED = 1e-9  # change of a sweep, as a share of the largest value, at which a bound is taken as settled


class Arrays(Protocol):
    """What a tabular POMDP gives; T's rows of a reset action hold the start of the next episode."""

    T: Any  # (A, S, S')
    O: Any  # (A, S', Z)  # noqa: E741
    R: Any  # (A, S, S', Z)
    start: Any  # (S,)
    reset: Any  # (A, S) bool, the action ends the episode
    discount: float


@dataclass(frozen=True)
class Model:
    """Dynamics without what follows an episode's end."""

    move: Floats  # (A, S, S'), rows of an ending action are 0
    look: Floats  # (A, S', Z)
    reward: Floats  # (A, S), expected
    start: Floats  # (S,)
    discount: float

    @classmethod
    def of(cls, tables: Arrays) -> Model:
        """Take the tables apart.

        Raises:
            UserError: without a discount below 1 an endless episode has no value to bound.
        """
        if not 0.0 < tables.discount < 1.0:
            raise UserError(f"Bounds need a discount above 0 and below 1, not {tables.discount}.")
        T, O, start = (_normalised(rows) for rows in (tables.T, tables.O, tables.start))  # noqa: E741
        gain = np.einsum("apz,aspz->asp", O, tables.R)  # expected over observations
        move = np.where(np.asarray(tables.reset)[:, :, None], 0.0, T)
        return cls(move, O, np.einsum("asp,asp->as", T, gain), start, float(tables.discount))

    def successors(self, belief: Floats) -> Floats:
        """Joint beliefs (A, Z, S') after every action and observation from a belief (S,)."""
        return np.einsum("ap,apz->azp", belief @ self.move, self.look)

    def backed_up(self, vectors: Floats) -> Floats:
        """One linear value (A, S) for each action, where vectors (A, Z, S') are worth it after each observation."""
        after = np.einsum("apz,azp->ap", self.look, vectors)
        return self.reward + self.discount * np.einsum("asp,ap->as", self.move, after)


def _normalised(rows: Any) -> Floats:
    """Chances that sum to 1, as worlds draw them: what a file's rounded ones lack would be lost again in every step."""
    chances = np.asarray(rows, np.float64)
    return chances / chances.sum(-1, keepdims=True)


def blind(model: Model) -> Floats:
    """Values (A, S) of repeating one action for ever: the lower bound to start from."""
    identity = np.eye(model.move.shape[1])
    values = [np.linalg.solve(identity - model.discount * t, r) for t, r in zip(model.move, model.reward, strict=True)]
    return np.stack(values)


def informed(model: Model, sweeps: int = 10_000) -> Floats:
    """The fast informed bound (A, S): the maximum over A at a belief is no less than its value (Hauskrecht 2000).

    Iterated from the value of the best reward for ever, it is a bound after every sweep, settled or not.
    """
    best = max(float(model.reward.max()), 0.0) / (1.0 - model.discount)
    values = np.full(model.reward.shape, best)
    for _ in range(sweeps):
        weighted = np.einsum("apz,bp->azbp", model.look, values)  # (A, Z, A', S')
        chosen = np.einsum("asp,azbp->abzs", model.move, weighted, optimize=True).max(1)  # (A, Z, S)
        after = model.reward + model.discount * chosen.sum(1)
        change = float(np.abs(after - values).max())
        values = after
        if change <= SETTLED * max(1.0, best):
            break
    return values


def full_state(model: Model, horizon: int) -> float:
    """Greatest expected undiscounted return in `horizon` steps of a player who sees the state; an upper bound."""
    values = np.zeros(model.move.shape[1])
    for _ in range(horizon):
        values = (model.reward + model.move @ values).max(0)
    return float(model.start @ values)
