"""Tabular POMDPs: bounds on their value, and the policy behind the lower one, played with exact beliefs.

A belief here need not sum to 1: what an action and an observation leave of it is the joint probability, so that
value functions are linear in it and an ended episode simply drops out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from envs.baselines.players import Player
from envs.errors import require
from envs.worlds.tabular import Floats, Integers, Tables

SETTLED = 1e-9  # change of a sweep, as a share of the largest value, at which a bound is taken as settled
TINY = 1e-12  # a joint belief with less mass is taken as impossible
PRUNED_EVERY = 1.3  # growth after which bounds are pruned
DEEPEST = 200  # steps of a trial


@dataclass(frozen=True)
class Model:
    """Dynamics without what follows an episode's end."""

    transition: Floats  # (A, S, S'), rows of an ending action are 0
    observation: Floats  # (A, S', Z)
    reward: Floats  # (A, S), expected
    start: Floats  # (S,)
    discount: float

    @classmethod
    def of(cls, tables: Tables) -> Model:
        """Take the tables apart; T's rows of a reset action hold the start of the next episode.

        Raises:
            UserError: without a discount below 1 an endless episode has no value to bound.
        """
        require(0.0 < tables.discount < 1.0, f"Bounds need a discount above 0 and below 1, not {tables.discount}.")
        chances = (np.asarray(rows, np.float64) for rows in (tables.T, tables.O, tables.start))
        # A sum of 1, as worlds draw them: what rounding in a file took from them would be lost in every step.
        T, O, start = (each / each.sum(-1, keepdims=True) for each in chances)  # noqa: E741
        gain = np.einsum("apz,aspz->asp", O, tables.R)  # expected over observations
        move = np.where(np.asarray(tables.reset)[:, :, None], 0.0, T)
        return cls(move, O, np.einsum("asp,asp->as", T, gain), start, float(tables.discount))

    def successors(self, belief: Floats) -> Floats:
        """Return joint beliefs (A, Z, S') after every action and observation from a belief (S,)."""
        return np.einsum("ap,apz->azp", belief @ self.transition, self.observation)

    def backed_up(self, vectors: Floats) -> Floats:
        """Back up linear values (A, S), one for each action, from vectors (A, Z, S') after each observation."""
        after = np.einsum("apz,azp->ap", self.observation, vectors)
        return self.reward + self.discount * np.einsum("asp,ap->as", self.transition, after)


def blind(model: Model) -> Floats:
    """Compute the values (A, S) of repeating one action for ever: the lower bound to start from."""
    identity = np.eye(model.transition.shape[1])
    pairs = zip(model.transition, model.reward, strict=True)
    return np.stack([np.linalg.solve(identity - model.discount * t, r) for t, r in pairs])


def informed(model: Model, sweeps: int = 10_000) -> Floats:
    """Compute the fast informed bound (A, S) of Hauskrecht (2000): a belief is worth no more than its maximum over A.

    Iterated from the value of the best reward for ever, it is a bound after every sweep, settled or not.
    """
    best = max(float(model.reward.max()), 0.0) / (1.0 - model.discount)
    values = np.full(model.reward.shape, best)
    for _ in range(sweeps):
        weighted = np.einsum("apz,bp->azbp", model.observation, values)  # (A, Z, A', S')
        chosen = np.einsum("asp,azbp->abzs", model.transition, weighted, optimize=True).max(1)  # (A, Z, S)
        after = model.reward + model.discount * chosen.sum(1)
        change = float(np.abs(after - values).max())
        values = after
        if change <= SETTLED * max(1.0, best):
            break
    return values


def full_state(model: Model, horizon: int) -> float:
    """Compute the greatest expected return in `horizon` steps of a player who sees the state, without discount."""
    values = np.zeros(model.transition.shape[1])
    for _ in range(horizon):
        values = (model.reward + model.transition @ values).max(0)
    return float(model.start @ values)


@dataclass(frozen=True)
class ValueBounds:
    """Bounds on the discounted value of the start, and the policy of the lower one."""

    lower: float
    upper: float
    vectors: Floats  # (K, S), the lower bound's linear functions
    actions: np.ndarray  # (K,) int64, the first action of the plan that each stands for


def bound_value(model: Model, gap: float = 0.01, size: int = 1_500) -> ValueBounds:
    """Search until the bounds at the start differ by at most `gap`, or consist of `size` vectors and points.

    This is heuristic search value iteration (Smith & Simmons 2005). The lower bound is the largest of some linear
    functions of the belief, each the value of a real plan; the upper one is the fast informed bound, pulled down by
    values at single beliefs, with a sawtooth in between. Trials walk from the start along the action of the best upper
    bound to where the gap matters most, and back up both bounds on the way back.
    """
    lower, upper = Lower(model), Upper(model)
    start = model.start[None]
    while upper(start)[0] - lower(start)[0] > gap and len(lower.vectors) + len(upper.points) < size:
        if not _trial(model, lower, upper, gap):
            break
    return ValueBounds(float(lower(start)[0]), float(upper(start)[0]), lower.vectors, lower.actions)


def _trial(model: Model, lower: Lower, upper: Upper, gap: float) -> bool:
    """Walk once from the start and back up on the way back; False where that changed nothing."""
    belief, allowed = model.start, gap
    path: list[Floats] = []
    while len(path) < DEEPEST:
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
    """The largest of linear functions."""

    def __init__(self, model: Model) -> None:
        self.model, self.vectors, self.pruned = model, blind(model), 0  # (K, S)
        self.actions = np.arange(len(self.vectors))  # (K,)

    def __call__(self, beliefs: Floats) -> Floats:
        """Evaluate joint beliefs (B, S): (B,)."""
        return (beliefs @ self.vectors.T).max(1)

    def improve(self, belief: Floats, after: Floats) -> bool:
        """Add the best plan that begins at a belief (S,) with joint successors `after` (A, Z, S), if it is better."""
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
        """Drop what another function is nowhere below; of equals the newest stays."""
        below = np.ones((len(self.vectors), len(self.vectors)), bool)  # (K, K), row is nowhere above column
        for values in self.vectors.T:
            below &= values[:, None] <= values
        keep = _kept(below)
        self.vectors, self.actions, self.pruned = self.vectors[keep], self.actions[keep], int(keep.sum())


class Upper:
    """The fast informed bound and the sawtooth below it."""

    def __init__(self, model: Model) -> None:
        self.planes, self.pruned = informed(model), 0  # (A, S)
        self.corners = self.planes.max(0)  # (S,)
        self.points = np.empty((0, len(self.corners)))  # (P, S), beliefs
        self.depths = np.empty(0)  # (P,), how far the value there lies below the corners' plane; > 0

    def __call__(self, beliefs: Floats) -> Floats:
        """Evaluate joint beliefs (B, S): (B,)."""
        values = (beliefs @ self.planes.T).max(1)
        sunk = (_shares(beliefs, self.points) * self.depths).max(1, initial=0.0)  # by the sawtooth
        return np.minimum(values, beliefs @ self.corners - sunk)

    def improve(self, belief: Floats, value: float) -> bool:
        """Remember a value at one belief (S,), if it is lower."""
        if value >= self(belief[None])[0] - TINY:
            return False
        self.points = np.concatenate([self.points, belief[None]])
        self.depths = np.append(self.depths, belief @ self.corners - value)
        if len(self.depths) > PRUNED_EVERY * self.pruned + 10:
            self._prune()
        return True

    def _prune(self) -> None:
        """Drop points that the others already pull down as far."""
        keep = _kept(_shares(self.points, self.points) * self.depths >= self.depths[:, None] - TINY)
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


def _kept(covered: np.ndarray) -> np.ndarray:
    """Choose which of M things stay, (M,) bool: covered[i, j] says that j makes i needless; of equals the newest."""
    keep = np.ones(len(covered), bool)
    for i in range(len(covered)):
        keep[i] = False
        keep[i] = not (covered[i] & keep).any()
    return keep


def belief_player(model: Model, bounds: ValueBounds) -> Player:
    """Track the belief of every row, and act by the linear function that is largest there.

    The first observation of an episode says nothing. Observations (N, 1) are numbers below Z after that.
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
            mass = after.sum(1, keepdims=True)  # impossible for ended episodes alone, and nobody asks for those
            beliefs = np.where(mass > TINY, after / np.maximum(mass, TINY), model.start)
        actions = bounds.actions[(beliefs @ bounds.vectors.T).argmax(1)]
        return torch.from_numpy(actions).to(observation.device)

    return act
