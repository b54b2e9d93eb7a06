"""Recorded episodes of the original environments, and their replay in many rows at once."""

from pathlib import Path

import numpy as np
import torch

from envs.core import where
from envs.worlds.car_flag import CarState
from envs.worlds.memory_cards import CardState

DATA = Path(__file__).parents[1] / "data" / "envs"


def load(name):
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key] for key in file}


def tensor(array, dtype=torch.int64):
    return torch.as_tensor(np.asarray(array), dtype=dtype)


def counters(count):
    return torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.float64)


def car_state(world, trace):
    position, velocity, _ = tensor(trace["init_state"], torch.float64).T
    heaven = tensor(trace["heaven"], torch.float64)
    return CarState(world.observe(position, velocity, heaven), *counters(len(heaven)), position, velocity, heaven)


def card_state(world, trace):
    cards, current = tensor(trace["cards"]), tensor(trace["init_current"])
    removed = torch.zeros_like(current)
    observation = world.observe(cards, removed, current)
    return CardState(observation, *counters(len(cards)), cards, removed, current)


def card_draws(trace):
    """The uniforms (rows, 1) that make a world turn up the recorded cards."""
    present = trace["obs"] != 6
    rank = np.take_along_axis(present.cumsum(1), trace["current_after"][:, None].astype(int), 1)
    return tensor((rank - 0.5) / np.maximum(present.sum(1, keepdims=True), 1), torch.float64)


def replay(world, state, trace, draws):
    """Feed the recorded actions; returns what every step gave, in the order of the trace.

    Every episode is one row. A row whose episode is over stands still until the longest one is over too.
    """
    start, stop = trace["ep_start"][:-1].astype(int), trace["ep_start"][1:].astype(int)
    steps = []
    for t in range((stop - start).max()):
        running = start + t < stop
        index = np.where(running, start + t, stop - 1)
        after, observation, *rest = world.step(state, tensor(trace["action"][index]), draws[index])
        truncated = world.truncated(after, rest[1])
        state = where(torch.from_numpy(running), after, state)
        values = dict(zip(("reward", "terminated", "success"), rest, strict=True))
        values |= vars(after) | {"observation": observation, "truncated": truncated}
        steps.append({k: v.numpy()[running] for k, v in values.items()} | {"index": index[running]})
    order = np.argsort(np.concatenate([step["index"] for step in steps]))
    return {key: np.concatenate([step[key] for step in steps])[order] for key in steps[0]}


def normal_score(ours, theirs):
    """Two-sample chi-square of two histograms, as a standard normal score."""
    ours, theirs = np.ravel(ours).astype(float), np.ravel(theirs).astype(float)
    total = ours + theirs
    ours, theirs, total = ours[total > 0], theirs[total > 0], total[total > 0]
    ratio = np.sqrt(theirs.sum() / ours.sum())
    freedom = len(total) - 1
    return (((ratio * ours - theirs / ratio) ** 2 / total).sum() - freedom) / np.sqrt(2 * freedom)
