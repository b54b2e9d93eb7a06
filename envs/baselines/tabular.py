"""Tabular POMDPs: bounds on their value, and the policy of the lower bound, played with exact beliefs.

A belief here need not sum to 1. After an action and an observation it is the joint probability, so that value functions
are linear in it, and an ended episode contributes 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from envs.baselines.players import Player
from envs.errors import require
from envs.worlds.tabular import Floats, Integers, Tables

SETTLED = 1e-9  # change of a sweep, divided by the largest value, that counts as convergence
TINY = 1e-12  # a joint belief with less mass counts as impossible
PRUNED_EVERY = 1.3  # growth after which bounds are pruned
MAX_DEPTH = 200  # maximum steps of a trial
MAX_SWEEPS = 10_000  # maximum sweeps of the fast informed bound


@dataclass(frozen=True)
class Model:
    """The dynamics of one episode, without the next one."""

    transition: Floats  # (A, S, S'), rows of an ending action are 0
    observation: Floats  # (A, S', Z)
    reward: Floats  # (A, S), expected
    start: Floats  # (S,)
    discount: float

    @classmethod
    def of(cls, tables: Tables) -> Model:
        """Make a model from tables, without T's rows of reset actions, which lead to the next episode.

        Raises:
            UserError: the discount is not below 1, so that an endless episode has no finite value.
        """
        require(0.0 < tables.discount < 1.0, f"Bounds need a discount above 0 and below 1, not {tables.discount}.")
        chances = (np.asarray(rows, np.float64) for rows in (tables.T, tables.O, tables.start))
        # Rows sum to 1, as the World draws them. Otherwise a file's rounding would lose mass in every step.
        T, O, start = (each / each.sum(-1, keepdims=True) for each in chances)  # noqa: E741
        gain = np.einsum("apz,aspz->asp", O, tables.R)  # expected over observations
        move = np.where(np.asarray(tables.reset)[:, :, None], 0.0, T)
        return cls(move, O, np.einsum("asp,asp->as", T, gain), start, float(tables.discount))

    def successors(self, belief: Floats) -> Floats:
        """Return joint beliefs (A, Z, S') after every action and observation from a belief (S,)."""
        return np.einsum("ap,apz->azp", belief @ self.transition, self.observation)

    def backed_up(self, vectors: Floats) -> Floats:
        """Return linear values (A, S), one per action, backed up from vectors (A, Z, S') after each observation."""
        after = np.einsum("apz,azp->ap", self.observation, vectors)
        return self.reward + self.discount * np.einsum("asp,ap->as", self.transition, after)


def blind(model: Model) -> Floats:
    """Compute the values (A, S) of repeating one action for ever: the initial lower bound."""
    identity = np.eye(model.transition.shape[1])
    pairs = zip(model.transition, model.reward, strict=True)
    return np.stack([np.linalg.solve(identity - model.discount * t, r) for t, r in pairs])


def informed(model: Model) -> Floats:
    """Compute the fast informed bound (A, S) of Hauskrecht (2000): its maximum over A bounds a belief's value.

    The iteration starts from the value of the best reward for ever, so every sweep gives a bound, converged or not.
    """
    best = max(float(model.reward.max()), 0.0) / (1.0 - model.discount)
    values = np.full(model.reward.shape, best)
    for _ in range(MAX_SWEEPS):
        weighted = np.einsum("apz,bp->azbp", model.observation, values)  # (A, Z, A', S')
        chosen = np.einsum("asp,azbp->abzs", model.transition, weighted, optimize=True).max(1)  # (A, Z, S)
        after = model.reward + model.discount * chosen.sum(1)
        change = float(np.abs(after - values).max())
        values = after
        if change <= SETTLED * max(1.0, best):
            break
    return values


def full_state(model: Model, horizon: int) -> float:
    """Compute the maximum expected undiscounted return in `horizon` steps of a player who sees the state."""
    values = np.zeros(model.transition.shape[1])
    for _ in range(horizon):
        values = (model.reward + model.transition @ values).max(0)
    return float(model.start @ values)


@dataclass(frozen=True)
class ValueBounds:
    """Bounds on the discounted value of the start, and the policy of the lower bound."""

    lower: float
    upper: float
    vectors: Floats  # (K, S), the lower bound's linear functions
    actions: np.ndarray  # (K,) int64, the first action of each vector's plan


def bound_value(model: Model, gap: float = 0.01, size: int = 1_500) -> ValueBounds:
    """Search until the bounds at the start differ by at most `gap`, or have `size` vectors and points.

    This is heuristic search value iteration (Smith & Simmons 2005). The lower bound is the maximum of linear functions
    of the belief, each the value of a plan. The upper bound is the fast informed bound, lowered by values at single
    beliefs with sawtooth interpolation. A trial follows the actions of the best upper bound, and the observations with
    the largest gap, from the start. It then backs up both bounds along its path in reverse.
    """
    lower, upper = Lower(model), Upper(model)
    start = model.start[None]
    while upper(start)[0] - lower(start)[0] > gap and len(lower.vectors) + len(upper.points) < size:
        if not _trial(model, lower, upper, gap):
            break
    return ValueBounds(float(lower(start)[0]), float(upper(start)[0]), lower.vectors, lower.actions)


def _trial(model: Model, lower: Lower, upper: Upper, gap: float) -> bool:
    """Walk once from the start, and back up along the path in reverse; return whether a bound changed."""
    belief, allowed = model.start, gap
    path: list[Floats] = []
    while len(path) < MAX_DEPTH:
        path.append(belief)
        if upper(belief[None])[0] - lower(belief[None])[0] <= allowed:
            break
        allowed /= model.discount
        after = model.successors(belief)  # (A, Z, S)
        action = int(_worth(model, belief, after, upper).argmax())
        mass = after[action].sum(1)  # (Z,)
        excess = upper(after[action]) - lower(after[action]) - allowed * mass
        chosen = int(np.where(mass > TINY, excess, -np.inf).argmax())
        if excess[chosen] <= 0.0 or mass[chosen] <= TINY:
            break
        belief = after[action, chosen] / mass[chosen]
    changed = False
    for belief in reversed(path):
        after = model.successors(belief)
        changed |= lower.improve(belief, after)
        changed |= upper.improve(belief, float(_worth(model, belief, after, upper).max()))
    return changed


def _worth(model: Model, belief: Floats, after: Floats, bound: Upper) -> Floats:
    """Compute the upper bound of every action (A,)."""
    values = np.zeros(after.shape[:2])
    possible = after.sum(2) > TINY
    values[possible] = bound(after[possible])
    return model.reward @ belief + model.discount * values.sum(1)


class Lower:
    """The lower bound: the maximum of linear functions."""

    def __init__(self, model: Model) -> None:
        self.model, self.vectors, self.pruned = model, blind(model), 0  # (K, S)
        self.actions = np.arange(len(self.vectors))  # (K,)

    def __call__(self, beliefs: Floats) -> Floats:
        """Evaluate joint beliefs (B, S): (B,)."""
        return (beliefs @ self.vectors.T).max(1)

    def improve(self, belief: Floats, after: Floats) -> bool:
        """Add the best plan at a belief (S,) with joint successors `after` (A, Z, S), if it raises the bound."""
        best = (after @ self.vectors.T).argmax(2)  # (A, Z)
        backed_up = self.model.backed_up(self.vectors[best])  # (A, S)
        action = int((backed_up @ belief).argmax())
        if backed_up[action] @ belief <= self(belief[None])[0] + TINY:
            return False
        self.vectors = np.concatenate([self.vectors, backed_up[action : action + 1]])
        self.actions = np.append(self.actions, action)
        if len(self.vectors) > PRUNED_EVERY * self.pruned + 10:
            self._prune()
        return True

    def _prune(self) -> None:
        """Drop functions that another one dominates; of equal ones the newest stays."""
        below = np.ones((len(self.vectors), len(self.vectors)), bool)  # (K, K), row nowhere above column
        for values in self.vectors.T:
            below &= values[:, None] <= values
        keep = _undominated(below)
        self.vectors, self.actions, self.pruned = self.vectors[keep], self.actions[keep], int(keep.sum())


class Upper:
    """The upper bound: the fast informed bound with sawtooth interpolation below it."""

    def __init__(self, model: Model) -> None:
        self.planes, self.pruned = informed(model), 0  # (A, S)
        self.corners = self.planes.max(0)  # (S,)
        self.points = np.empty((0, len(self.corners)))  # (P, S), beliefs
        self.depths = np.empty(0)  # (P,), distances of the values below the corners' plane; > 0

    def __call__(self, beliefs: Floats) -> Floats:
        """Evaluate joint beliefs (B, S): (B,)."""
        values = (beliefs @ self.planes.T).max(1)
        lowered = (_shares(beliefs, self.points) * self.depths).max(1, initial=0.0)
        return np.minimum(values, beliefs @ self.corners - lowered)

    def improve(self, belief: Floats, value: float) -> bool:
        """Add a value at one belief (S,), if it lowers the bound."""
        if value >= self(belief[None])[0] - TINY:
            return False
        self.points = np.concatenate([self.points, belief[None]])
        self.depths = np.append(self.depths, belief @ self.corners - value)
        if len(self.depths) > PRUNED_EVERY * self.pruned + 10:
            self._prune()
        return True

    def _prune(self) -> None:
        """Drop points at which the other points give a bound as low."""
        keep = _undominated(_shares(self.points, self.points) * self.depths >= self.depths[:, None] - TINY)
        self.points, self.depths, self.pruned = self.points[keep], self.depths[keep], int(keep.sum())


def _shares(beliefs: Floats, points: Floats) -> Floats:
    """Find the largest multiple of each point (P, S) that fits under each belief (B, S): (B, P)."""
    shares = np.full((len(beliefs), len(points)), np.inf)
    scaled = np.empty_like(shares)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = 1.0 / points.T  # (S, P)
        for mass, scale in zip(beliefs.T, scales, strict=True):  # by states, because (B, P, S) is too large
            np.multiply(mass[:, None], scale, out=scaled)
            np.fmin(shares, scaled, out=shares)  # fmin skips 0 * inf
    return shares


def _undominated(covered: np.ndarray) -> np.ndarray:
    """Choose the items (M,) bool to keep: covered[i, j] is True if j replaces i; of equal items the newest stays."""
    keep = np.ones(len(covered), bool)
    for i in range(len(covered)):
        keep[i] = False
        keep[i] = not (covered[i] & keep).any()
    return keep


def belief_player(model: Model, bounds: ValueBounds) -> Player:
    """Track the belief of every row, and act by the linear function with the maximum at it.

    The first observation of an episode has no information. Later observations (N, 1) are numbers below Z.
    """
    observations = model.observation.shape[2]
    beliefs: Floats | None = None  # (N, S)
    actions: Integers = np.empty(0, np.int64)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal beliefs, actions
        if beliefs is None:
            beliefs = np.repeat(model.start[None], len(observation), 0)
        else:
            seen, after = observation[:, 0].cpu().numpy(), np.empty_like(beliefs)
            for action in range(len(model.transition)):
                rows = np.flatnonzero(actions == action)
                likely = model.observation[action][:, np.minimum(seen[rows], observations - 1)].T  # (rows, S')
                after[rows] = (beliefs[rows] @ model.transition[action]) * likely
            mass = after.sum(1, keepdims=True)  # 0 only for ended episodes, whose actions are unused
            beliefs = np.where(mass > TINY, after / np.maximum(mass, TINY), model.start)
        actions = bounds.actions[(beliefs @ bounds.vectors.T).argmax(1)]
        return torch.from_numpy(actions).to(observation.device)

    return act
