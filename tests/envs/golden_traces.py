"""Recorded episodes of the original environments, and their replay in many rows at once."""

from pathlib import Path

import numpy as np
import torch

from envs.core import where
from envs.worlds.car_flag import CarState
from envs.worlds.memory_cards import CardState
from envs.worlds.tabular import Draw

DATA = Path(__file__).parents[1] / "data" / "envs"


def load(name):
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key] for key in file}


def tensor(array, dtype=torch.int64):
    return torch.as_tensor(np.asarray(array), dtype=dtype)


def counters(count):
    return torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.float64)


def car_flag(world, trace):
    """The first states (E,), and the uniforms (rows, step_draws) by which a world does what was recorded."""
    position, velocity, _ = tensor(trace["init_state"], torch.float64).T
    heaven = tensor(trace["heaven"], torch.float64)
    observation = world.observe(position, velocity, heaven)
    state = CarState(observation, *counters(len(heaven)), position, velocity, heaven)
    return state, torch.empty(len(trace["action"]), 0)


def memory_cards(world, trace):
    """Do the same, by uniforms that turn up the recorded cards."""
    cards, current = tensor(trace["cards"]), tensor(trace["init_current"])
    removed = torch.zeros_like(current)
    observation = world.observe(cards, removed, current)
    present = trace["obs"] != 6
    rank = np.take_along_axis(present.cumsum(1), trace["current_after"][:, None].astype(int), 1)
    draws = (rank - 0.5) / np.maximum(present.sum(1, keepdims=True), 1)
    return CardState(observation, *counters(len(cards)), cards, removed, current), tensor(draws, torch.float64)


def tabular(world, trace):
    """Do the same for a world made from tables, which goes and sees as was recorded."""
    tables, rows = world.tables, world.tables.num_states + 1
    begin, draws = Draw(tables.start[None]), np.zeros((len(trace["action"]), 2))
    for index, (a, s, z) in enumerate(zip(trace["action"], trace["state_before"], trace["obs"], strict=True)):
        to = int(trace["state_after"][index])
        if to == -1:
            to = int(np.flatnonzero((tables.start > 0) & (tables.O[a, :, z] > 0))[-1])
        draws[index, 0] = world.transition.uniform(int(a) * rows + int(s), to)
        draws[index, 1] = world.sight.uniform(int(a) * rows + to, int(z))
    first = tensor([[begin.uniform(0, int(s))] for s in trace["init_state"]], torch.float64)
    return world.reset(first), torch.from_numpy(draws[:, : world.step_draws])


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
