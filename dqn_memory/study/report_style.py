"""One look for every series, the same in all reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dqn_memory.architectures import ARCHITECTURES
from dqn_memory.drawing import COLOURS

# Seven colours, so that the paper's twelve recurrent and feed-forward rows that stand beside each other differ; the
# eighth of the palette is too near to the second.
PALETTE = COLOURS[:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D")


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    dash: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a line."""
        return {"color": self.colour, "linestyle": self.dash}


LOOKS = tuple(Look(colour, dash, marker) for dash, marker in zip(DASHES, MARKERS, strict=True) for colour in PALETTE)


def looks(series: Sequence[str]) -> dict[str, Look]:
    """A look for each series: an architecture of the registry has its own in every study.

    Other names take what the study's architectures leave free, in the order of the study's file, and from the
    beginning again where all are taken.
    """
    own = {name: LOOKS[place % len(LOOKS)] for place, name in enumerate(ARCHITECTURES) if name in series}
    taken = {look.colour for look in own.values()}
    free = [look for look in LOOKS if look not in own.values()] or list(LOOKS)
    free.sort(key=lambda look: look.colour in taken)  # stable: unused colours first
    others = [name for name in series if name not in own]
    return own | {name: free[place % len(free)] for place, name in enumerate(others)}
