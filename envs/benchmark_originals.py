"""How long the original environments take, and how much faster ours must be."""

from __future__ import annotations

from dataclasses import dataclass

# Source: measured by us on the original code, gym-gridverse 07909d9 and gym-pomdps 81ffa37 as DTQN (9f8d72b) wraps
# them, on one core of an AMD EPYC, processor time, medians, +-20 %. "Step" is one wrapped env.step: dynamics,
# observation and conversion; "reset" is not part of it. Microseconds, (step, reset) by id.
ORIGINALS: dict[str, tuple[float, float]] = {
    "Gridverse/Memory-5x5-v0": (214, 223),
    "Gridverse/Memory-7x7-v0": (276, 246),
    "Gridverse/Memory-9x9-v0": (363, 319),
    "Gridverse/Memory-11x11-v0": (466, 407),
    "Gridverse/Memory-13x13-v0": (636, 627),
    "Gridverse/Memory-FourRooms-7x7-v0": (269, 373),
    "Gridverse/Memory-FourRooms-13x13-v0": (554, 610),
    "Gridverse/Memory-NineRooms-13x13-v0": (590, 739),
    "Gridverse/Memory-NineRooms-13x13-2Beacons-v0": (549, 734),
    "Gridverse/Memory-NineRooms-13x13-3Beacons-v0": (558, 794),
    "Gridverse/Memory-SixteenRooms-13x13-v0": (586, 750),
    "Gridverse/Memory-SixteenRooms-15x15-v0": (730, 1089),
    "Gridverse/Memory-SixteenRooms-17x17-v0": (867, 1033),
    "Gridverse/Memory-SixteenRooms-21x21-v0": (1283, 1423),
    "Gridverse/Memory-TwentyFiveRooms-13x13-v0": (566, 833),
    "Gridverse/Memory-13x13-Hallucinated-v0": (625, 1163),
    "Gridverse/Memory-13x13-HallucinatedCorridor-v0": (600, 811),
    "Gridverse/Keydoor-5x5-v0": (279, 189),
    "Gridverse/Keydoor-7x7-v0": (382, 448),
    "Gridverse/Keydoor-9x9-v0": (488, 275),
    "POMDP/CarFlag-v0": (2.6, 14.7),
    "POMDP/MemoryCards-v0": (8.4, 8.9),
    "POMDP/Hallway-v0": (5.7, 3.7),
    "POMDP/HeavenHell-v0": (5.2, 3.1),
}

SMALL = tuple(f"Gridverse/{name}-v0" for name in (
    "Memory-5x5", "Memory-7x7", "Memory-9x9", "Memory-11x11", "Memory-FourRooms-7x7",
    "Keydoor-5x5", "Keydoor-7x7", "Keydoor-9x9",
))  # fmt: skip
"""Grids below 13x13."""
MANY = 300.0  # times the original's steps, for 1,024 worlds of a grid
MILLIONS = 5e6  # steps a second, for 1,024 of the other worlds
GRAPH = 20e6  # steps a second of 65,536 worlds inside one CUDA graph, resets included


@dataclass(frozen=True)
class Bars:
    """What a world must reach; None where nothing is asked."""

    original: float | None
    """Steps a second of the original."""
    single: float | None
    """Steps a second of one world."""
    many: float | None
    """Steps a second of 1,024 worlds."""


def bars(id: str) -> Bars:
    """The bars of a world by its id; a world that the originals do not have has none."""
    if id not in ORIGINALS:
        return Bars(None, None, None)
    original = 1e6 / ORIGINALS[id][0]
    if not id.startswith("Gridverse/"):
        return Bars(original, None, MILLIONS)
    return Bars(original, original * (1.0 if id in SMALL else 3.0), original * MANY)
