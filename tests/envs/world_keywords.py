"""All ids, what those need that are made from a file, the uniforms that environments draw by, and random models."""

from pathlib import Path

import numpy as np
import torch

from envs import WORLDS
from envs.registry import make_world
from envs.vector import advance
from envs.worlds.tabular import Tables, number_names

IDS = [*sorted(WORLDS), "Ladder/bind-8-v0"]  # the family that only a ladder has
DATA = Path(__file__).parents[1] / "data" / "envs"
FILES = {
    "Gridverse/Yaml-v0": {"path": "dynamic_obstacles.5x5"},
    "POMDP/File-v0": {"path": str(DATA / "pomdp" / "tiger.pomdp")},
}


def keywords(id, **kwargs):
    """The keywords without which a world cannot be made, and others."""
    return {**FILES.get(id, {}), **kwargs}


def build(id, *args, **kwargs):
    return make_world(id, *args, **keywords(id, **kwargs))


def uniforms(*shape, seed=0, generator=None):
    generator = generator or torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def random_action(world, count, generator):
    """Random actions of a World, (N,) or (N, k)."""
    if world.num_actions:
        return torch.randint(world.num_actions, (count,), generator=generator)
    low, high = map(torch.from_numpy, (world.action_space.low, world.action_space.high))
    return low + (high - low) * torch.rand(count, len(low), generator=generator)


def play(world, count, steps, engine=advance, device="cpu"):
    """Random actions: the state and Step after each, as lists."""
    generator = torch.Generator().manual_seed(0)
    state, path = world.reset(uniforms(count, world.reset_draws, generator=generator).to(device)), []
    for _ in range(steps):
        action = random_action(world, count, generator).to(device)
        u = uniforms(count, world.step_draws + world.reset_draws, generator=generator).to(device)
        state, step = engine(world, state, action, u)
        path.append((state, step))
    return path


def same(ours, theirs, but=()):
    """Whether two states or steps hold the same numbers, `but` for those of some names."""
    pairs = [(value, getattr(theirs, name)) for name, value in vars(ours).items() if name not in but]
    return all(torch.equal(one.cpu(), other.cpu()) for one, other in pairs)


def check_same(paths):
    """Compare two paths of `play`, state by state and step by step."""
    for (ours, step), (theirs, other) in zip(*paths, strict=True):
        assert same(ours, theirs) and same(step, other)


def actions(vector, steps, seed=0):
    """Random actions (steps, N), or rows (steps, N, a) as the vector takes them."""
    generator = torch.Generator().manual_seed(seed)
    if not vector.num_actions:
        return vector.actions.random(torch.rand(steps, vector.num_envs, *vector.actions.shape, generator=generator))
    return torch.randint(vector.num_actions, (steps, vector.num_envs), generator=generator)


def roll(vector, steps, seed=0):
    return [vector.step(action) for action in actions(vector, steps, seed)]


def random_model(seed, sizes=(4, 3, 3), resets=0.1, whole=(True, True), prefix=""):
    """Tables of S states, A actions and Z observations.

    A share `resets` of state-action pairs ends the episode. `whole` says whether rewards depend on the next state and
    on the observation; names are numbers behind the prefix.
    """
    rng, (states, actions, observations) = np.random.default_rng(seed), sizes

    def rows(*shape):
        weight = rng.random(shape) ** 3 * (rng.random(shape) < 0.7)
        weight[..., rng.integers(shape[-1])] += 0.01
        return weight / weight.sum(-1, keepdims=True)

    reset, start = rng.random((actions, states)) < resets, rows(states)
    T = np.where(reset[:, :, None], start, rows(actions, states, states))
    shape = (actions, states, states if whole[0] else 1, observations if whole[1] else 1)
    values = np.stack([rng.normal(size=shape), rng.integers(-3, 4, shape), np.zeros(shape), -np.zeros(shape)])
    R = np.broadcast_to(rng.permuted(values)[0], (*T.shape, observations))
    names = (tuple(f"{prefix}{number}" for number in number_names(count)) for count in sizes)
    state_names, action_names, observation_names = names
    O = rows(actions, states, observations)  # noqa: E741
    return Tables(T, O, R, start, reset, state_names, action_names, observation_names, float(rng.random()))
