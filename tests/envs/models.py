"""Random finite models: zeros, resets, rewards that depend on less than everything, names or numbers."""

import numpy as np

from envs.worlds.tabular import Tables, numbers


def random_model(seed, sizes=(4, 3, 3), resets=0.1, whole=(True, True), prefix=""):
    """Make tables of S states, A actions and Z observations.

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
    names = (tuple(f"{prefix}{number}" for number in numbers(count)) for count in sizes)
    state_names, action_names, observation_names = names
    O = rows(actions, states, observations)  # noqa: E741
    return Tables(T, O, R, start, reset, state_names, action_names, observation_names, float(rng.random()))
