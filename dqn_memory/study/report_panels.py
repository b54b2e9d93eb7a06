"""Panels that a report's pictures consist of: one for all, or one for each where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

GRID: Any = {"color": "#e6e6e6", "linewidth": 0.7}
FAINT = "#666666"
GREY = "#c4c4c4"
FEW_SERIES = 6  # up to which one panel holds all
ACROSS = 4  # panels side by side


def single() -> tuple[Figure, list[Axes]]:
    """One panel."""
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    return figure, [figure.subplots()]


def multiples(count: int) -> tuple[Figure, list[Axes]]:
    """Panels with common axes, with room left where they do not fill the last row."""
    across = min(ACROSS, count)
    down = -(-count // across)
    figure = Figure(figsize=(9.6, (1.75 + 0.35 * (ACROSS - across)) * down + 0.75), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for place, panel in enumerate(grid.flat[:count]):
        panel.tick_params(labelbottom=place + across >= count)  # the lowest of its column, also above an empty place
    for panel in grid.flat[count:]:
        panel.set_visible(False)
    return figure, list(grid.flat[:count])


def short_steps(value: float, _: int | None = None) -> str:
    """A number of steps in little room: 12k, 2.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def titled(figure: Figure, panels: Sequence[Axes], across: str, up: str, title: str = "") -> None:
    """Words for the axes and the whole; a legend where all series are in one panel."""
    if len(panels) == 1:
        plain(panels[0], across, up)
        panels[0].set_title(title, fontsize=11)
        panels[0].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return
    figure.supxlabel(across, fontsize=10)
    figure.supylabel(up, fontsize=10)
    figure.suptitle(f"{title} (grey: the other series)".strip(), fontsize=11)


def plain(panel: Axes, across: str, up: str) -> None:
    """A grid, and words for the axes."""
    panel.grid(**GRID)
    panel.set_axisbelow(True)
    panel.set_xlabel(across)
    panel.set_ylabel(up)
