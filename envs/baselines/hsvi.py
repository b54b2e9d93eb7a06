"""Heuristic search value iteration: a lower and an upper bound on what a tabular POMDP is worth (Smith & Simmons 2005).

The lower bound is the largest of some linear functions of the belief, each the value of a real plan; the upper one
is the fast informed bound, pulled down by values at single beliefs, with a sawtooth in between. Trials walk from the
start along the action of the best upper bound to where the gap matters most, and back up both bounds on the way back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from envs.baselines.model import Floats, Model, blind, informed

TINY = 1e-12  # a joint belief with less mass is taken as impossible
PRUNED_EVERY = 1.3  # growth after which bounds are pruned
DEEPEST = 200  # steps of a trial


@dataclass(frozen=True)
class Bounds:
    """What the search has found out about the discounted value of the start."""

    lower: float
    upper: float
    vectors: Floats  # (K, S), the lower bound's linear functions
    actions: np.ndarray  # (K,) int64, the first action of the plan behind each

    @property
    def gap(self) -> float:
        return self.upper - self.lower


def solve(model: Model, gap: float = 0.01, size: int = 1_500) -> Bounds:
    """Search until the bounds at the start differ by at most `gap`, or consist of `size` vectors and points."""
    lower, upper = Lower(model), Upper(model)
    start = model.start[None]
    while upper(start)[0] - lower(start)[0] > gap and len(lower.vectors) + len(upper.points) < size:
        if not _trial(model, lower, upper, gap):
            break
    return Bounds(float(lower(start)[0]), float(upper(start)[0]), lower.vectors, lower.actions)


def _trial(model: Model, lower: Lower, upper: Upper, gap: float) -> bool:
    """One walk and the backups on its way back; False where they changed nothing."""
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
    """The upper bound of every action (A,)."""
    actions, looks, states = after.shape
    flat = after.reshape(-1, states)
    possible = flat.sum(1) > TINY
    values = np.zeros(len(flat))
    values[possible] = bound(flat[possible])
    return model.reward @ belief + model.discount * values.reshape(actions, looks).sum(1)


@dataclass
class Lower:
    """The largest of linear functions."""

    model: Model
    vectors: Floats = field(init=False)  # (K, S)
    actions: np.ndarray = field(init=False)  # (K,)
    pruned: int = 0

    def __post_init__(self) -> None:
        self.vectors = blind(self.model)
        self.actions = np.arange(len(self.vectors))

    def __call__(self, beliefs: Floats) -> Floats:
        """Values (B,) of joint beliefs (B, S)."""
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
        self.vectors, self.actions = self.vectors[keep], self.actions[keep]
        self.pruned = len(self.vectors)


@dataclass
class Upper:
    """The fast informed bound and the sawtooth below it."""

    model: Model
    planes: Floats = field(init=False)  # (A, S)
    corners: Floats = field(init=False)  # (S,)
    points: Floats = field(init=False)  # (P, S), beliefs
    depths: Floats = field(init=False)  # (P,), how far the value there lies below the corners' plane; > 0
    pruned: int = 0

    def __post_init__(self) -> None:
        self.planes = informed(self.model)
        self.corners = self.planes.max(0)
        self.points, self.depths = np.empty((0, len(self.corners))), np.empty(0)

    def __call__(self, beliefs: Floats) -> Floats:
        """Values (B,) of joint beliefs (B, S)."""
        values = (beliefs @ self.planes.T).max(1)
        return np.minimum(values, beliefs @ self.corners - _sunk(beliefs, self.points, self.depths))

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
        self.points, self.depths = self.points[keep], self.depths[keep]
        self.pruned = len(self.depths)


def _sunk(beliefs: Floats, points: Floats, depths: Floats) -> Floats:
    """How far the sawtooth over points (P, S) lies below the corners' plane at beliefs (B, S): (B,)."""
    if len(points) == 0:
        return np.zeros(len(beliefs))
    return np.asarray((_shares(beliefs, points) * depths).max(1))


def _shares(beliefs: Floats, points: Floats) -> Floats:
    """The largest multiple of each point (P, S) that fits under each belief (B, S): (B, P)."""
    shares = np.full((len(beliefs), len(points)), np.inf)
    scaled = np.empty_like(shares)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = 1.0 / points.T  # (S, P)
        for mass, scale in zip(beliefs.T, scales, strict=True):  # by states, because (B, P, S) is too large
            np.multiply(mass[:, None], scale, out=scaled)
            np.fmin(shares, scaled, out=shares)  # fmin skips 0 * inf
    return shares


def _kept(covered: np.ndarray) -> np.ndarray:
    """Which of M things stay, (M,) bool, where covered[i, j] says that j makes i needless; of equals the newest."""
    keep = np.ones(len(covered), bool)
    for i in range(len(covered)):
        keep[i] = False
        keep[i] = not (covered[i] & keep).any()
    return keep
