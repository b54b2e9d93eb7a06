"""Recorded episodes of the original environments: brought into our states, replayed in many rows at once, compared."""

import numpy as np
import torch
from world_keywords import DATA

from envs.core import where_state
from envs.gridverse.objects import BEACON, FLOOR, PHANTOM, WALL, Scene, colours, kinds, pack, statuses
from envs.gridverse.world import GridState
from envs.worlds.car_flag import CarState
from envs.worlds.memory_cards import CardState
from envs.worlds.tabular import Draw

MEMORY = {f"memory_{n}x{n}": f"Memory-{n}x{n}" for n in (5, 7, 9, 11, 13)}
ROOMS = {
    "memory_four_rooms_7x7": "Memory-FourRooms-7x7",
    "memory_four_rooms_13x13": "Memory-FourRooms-13x13",
    "memory_nine_rooms_13x13": "Memory-NineRooms-13x13",
    "memory_nine_rooms_13x13_2beacons": "Memory-NineRooms-13x13-2Beacons",
    "memory_nine_rooms_13x13_3beacons": "Memory-NineRooms-13x13-3Beacons",
    **{f"memory_sixteen_rooms_{n}x{n}": f"Memory-SixteenRooms-{n}x{n}" for n in (13, 15, 17, 21)},
    "memory_twentyfive_rooms_13x13": "Memory-TwentyFiveRooms-13x13",
}
HALLUCINATED = {
    "memory_13x13_hallucinated_open": "Memory-13x13-Hallucinated",
    "memory_13x13_hallucinated_corridor": "Memory-13x13-HallucinatedCorridor",
}
KEYDOOR = {f"keydoor_{n}x{n}": f"Keydoor-{n}x{n}" for n in (5, 7, 9)}
GRIDS = {name: f"Gridverse/{id}-v0" for name, id in {**MEMORY, **ROOMS, **HALLUCINATED, **KEYDOOR}.items()}
PHANTOM_STATUS = 1  # of a wall in the recorded grids


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


def scene(trace):
    """The recorded initial scenes (E, ...). A recorded phantom wall is a floor that only looks like a wall."""
    kind, status, colour = (tensor(trace[f"init_{name}"]).flatten(1) for name in ("type", "status", "color"))
    phantom = (kind == WALL) & (status == PHANTOM_STATUS)
    cells = torch.where(phantom, pack(FLOOR), pack(kind, status, colour)).to(torch.int16)
    y, x, heading = tensor(trace["init_agent"]).T
    good = (colour * (kind == BEACON)).amax(1)
    return Scene(cells, y * trace["init_type"].shape[2] + x, heading, pack(*tensor(trace["init_held"]).T), good)


def grid(world, trace):
    """Do the same for a grid, whose steps take no chance."""
    begin = scene(trace)
    state = GridState(world.observe(begin, begin.held[:, None]), *counters(len(begin.cells)), *begin)
    return state, torch.empty(len(trace["action"]), 0, dtype=torch.float64)


def channels(codes):
    """Type, status and colour of codes, as recorded in states."""
    codes = torch.as_tensor(codes).long()
    codes = torch.where(codes == (PHANTOM | pack(FLOOR)), pack(WALL, PHANTOM_STATUS), codes)
    return kinds(codes).numpy(), statuses(codes).numpy(), colours(codes).numpy()


def replay(world, trace, begin=grid):
    """Feed the recorded actions; returns the first states and what every step gave, in the order of the trace.

    Every episode is one row. A row whose episode is over stands still until the longest one is over too.
    """
    first, draws = begin(world, trace)
    state = first
    start, stop = trace["ep_start"][:-1].astype(int), trace["ep_start"][1:].astype(int)
    steps = []
    for t in range((stop - start).max()):
        running = start + t < stop
        index = np.where(running, start + t, stop - 1)
        after, observation, *rest = world.step(state, tensor(trace["action"][index]), draws[index])
        truncated = world.truncated(after, rest[1])
        state = where_state(torch.from_numpy(running), after, state)
        values = dict(zip(("reward", "terminated", "success"), rest, strict=True))
        values |= vars(after) | {"observation": observation, "truncated": truncated}
        steps.append({k: v.numpy()[running] for k, v in values.items()} | {"index": index[running]})
    order = np.argsort(np.concatenate([step["index"] for step in steps]))
    return first, {key: np.concatenate([step[key] for step in steps])[order] for key in steps[0]}


def check_replay(world, name, begin=grid, window="obs"):
    """Compare a replay with its trace, rewards and returns to the last bit; gives the trace and what our steps gave."""
    trace = load(name)
    first, ours = replay(world, trace, begin)
    last = trace["ep_start"][1:] - 1
    recorded = {key: trace.get(key) for key in ("terminated", "truncated")} | {"success": trace.get("is_success")}
    pairs = {
        "first": (first.observation.numpy().reshape(trace[f"init_{window}"].shape), trace[f"init_{window}"]),
        "order": (ours["index"], np.arange(len(trace["action"]))),
        "observation": (ours["observation"].reshape(trace[window].shape), trace[window]),
        **{key: (ours[key], theirs) for key, theirs in recorded.items() if theirs is not None},
    }
    for key, (one, other) in pairs.items():
        assert np.array_equal(one, other), key
    assert ours["reward"].tobytes() == trace["reward"].astype(np.float64).tobytes()
    assert ours["returns"][last].tobytes() == trace["ep_return"].astype(np.float64).tobytes()
    ended = trace.get("ep_ended", np.ones(len(last), bool))
    assert np.array_equal(ours["success"][last][ended], trace["ep_success_dtqn"][ended])
    assert not ours["success"][~ours["terminated"]].any()
    return trace, ours


def check_scenes(world, trace, ours):
    """Compare the whole grid, the agent's pose and its hand after every step."""
    pose = np.stack([*np.divmod(ours["position"], world.width), ours["heading"]], 1)
    assert np.array_equal(pose, trace["agent"])
    assert np.array_equal(np.stack(channels(ours["held"]), 1), trace["held"])
    lines = 0 if world.phantoms is None else world.phantoms.numpy()  # what only the view knows of
    for channel, key in zip(channels(ours["cells"] + lines), ("type", "status", "color"), strict=True):
        assert np.array_equal(channel.reshape(trace[f"grid_{key}"].shape), trace[f"grid_{key}"]), key


LIMIT = 4.0  # a score beyond 4 has a chance of about 1 in 10,000
ENDLESS = 1e12  # a sample so large that it is the distribution


def normal_score(ours, theirs):
    """Two-sample chi-square of two histograms, as a standard normal score; probabilities are an ENDLESS sample."""
    ours, theirs = np.ravel(ours).astype(float), np.ravel(theirs).astype(float)
    total = ours + theirs
    ours, theirs, total = ours[total > 0], theirs[total > 0], total[total > 0]
    ratio = np.sqrt(theirs.sum() / ours.sum())
    freedom = len(total) - 1
    return (((ratio * ours - theirs / ratio) ** 2 / total).sum() - freedom) / np.sqrt(2 * freedom)
