"""Table 3 of the DBGFQN paper ("Parameters count in the ablated model"), as printed."""

from __future__ import annotations

PRINTED_COLUMNS = ("dtqn1", "dtqn2", "dtqn3", "drfqn", "dlfqn", "dgfqn", "dbrfqn", "dblfqn")
MISSING_COLUMNS = ("dbgfqn", "dtqn4")  # the proposed model and its baseline, which the table leaves out

_GRIDVERSE = (234566, 300358, 366150, 234566, 432710, 366662, 218182, 367174)

PRINTED: dict[str, tuple[int, ...]] = {
    "POMDP/Hallway-v0": (64005, 80517, 97029, 64005, 113925, 97285, 59909, 97541),
    "POMDP/HeavenHell-v0": (63892, 80404, 96916, 63892, 113812, 97172, 59796, 97428),
    "Gridverse/Memory-5x5-v0": _GRIDVERSE,
    "Gridverse/Memory-7x7-v0": _GRIDVERSE,
    "Gridverse/Memory-9x9-v0": _GRIDVERSE,
    "Gridverse/Memory-FourRooms-7x7-v0": _GRIDVERSE,
    "POMDP/CarFlag-v0": (63371, 79883, 96395, 63371, 113291, 96651, 59275, 96907),
    "POMDP/MemoryCards-v0": (239066, 304858, 370650, 239066, 437210, 371162, 222682, 371674),
}


def printed(world: str, architecture: str) -> int | None:
    """The paper's count, or None where the table has no such cell."""
    if world not in PRINTED or architecture not in PRINTED_COLUMNS:
        return None
    return PRINTED[world][PRINTED_COLUMNS.index(architecture)]
