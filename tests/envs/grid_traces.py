"""Recorded episodes of the original grid worlds, brought into our states and back."""

import golden_traces as golden
import torch

from envs.gridverse.objects import BEACON, FLOOR, PHANTOM, WALL, Scene, colours, kinds, pack, statuses
from envs.gridverse.world import GridState

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
IDS = {name: f"Gridverse/{id}-v0" for name, id in {**MEMORY, **ROOMS, **HALLUCINATED, **KEYDOOR}.items()}
PHANTOM_STATUS = 1  # of a wall in the recorded grids


def scene(trace):
    """The recorded initial scenes (E, ...). A recorded phantom wall is a floor that only looks like a wall."""
    kind, status, colour = (golden.tensor(trace[f"init_{name}"]).flatten(1) for name in ("type", "status", "color"))
    phantom = (kind == WALL) & (status == PHANTOM_STATUS)
    cells = torch.where(phantom, pack(FLOOR), pack(kind, status, colour)).to(torch.int16)
    y, x, heading = golden.tensor(trace["init_agent"]).T
    good = (colour * (kind == BEACON)).amax(1)
    return Scene(cells, y * trace["init_type"].shape[2] + x, heading, pack(*golden.tensor(trace["init_held"]).T), good)


def state(world, trace):
    begin = scene(trace)
    return GridState(world.observe(begin, begin.held[:, None]), *golden.counters(len(begin.cells)), *begin)


def replay(world, trace):
    none = torch.empty(len(trace["action"]), 0, dtype=torch.float64)
    return golden.replay(world, state(world, trace), trace, none)


def channels(codes):
    """Type, status and colour of codes, as recorded in states."""
    codes = torch.as_tensor(codes).long()
    codes = torch.where(codes == (PHANTOM | pack(FLOOR)), pack(WALL, PHANTOM_STATUS), codes)
    return kinds(codes).numpy(), statuses(codes).numpy(), colours(codes).numpy()


def flagged(world, cells):
    """Grids (N, H*W) with what only the view knows of."""
    return cells if world.phantoms is None else cells + world.phantoms.flags.numpy()
