"""The picture of what priors learn over training."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dqn_memory.analysis.plots import COLOURS, STYLE
from dqn_memory.study.report_panels import FAINT, GRID, short_steps
from dqn_memory.study.statistics import Floats

FEW_HEADS = 2  # up to which lines have bands


@matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9})
def over_time_figure(
    lines: Mapping[str, tuple[Floats, Mapping[tuple[int, int], Floats]]], starts: Mapping[str, float], title: str
) -> Figure:
    """Learned values over training, a column a name and a row a layer: the steps (E,), and (R, E) by layer and head.

    A panel of a few heads has bands of the standard deviation over R runs.
    """
    layers = sorted({layer for _, heads in lines.values() for layer, _ in heads})
    figure = Figure(figsize=(3.3 * len(lines) + 1.5, 2.1 * len(layers) + 0.9), layout="constrained")
    grid = figure.subplots(len(layers), len(lines), squeeze=False, sharex=True, sharey="col")
    for row, layer in zip(grid, layers, strict=True):
        for panel, (name, (steps, heads)) in zip(row, lines.items(), strict=True):
            _heads(panel, steps, {head: values for (place, head), values in heads.items() if place == layer})
            panel.axhline(starts[name], color=FAINT, linestyle="--", linewidth=1)
        row[0].set_ylabel(f"layer {layer}")
    for panel, name in zip(grid[0], lines, strict=True):
        panel.set_title(name)
    figure.supxlabel("environment steps", fontsize=10)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title)
    return figure


def _heads(panel: Axes, steps: Floats, heads: Mapping[int, Floats]) -> None:
    for head, values in heads.items():
        mean, dash = values.mean(0), "-" if head < len(COLOURS) else "--"
        (line,) = panel.plot(steps, mean, label=f"head {head}", linewidth=1.5, linestyle=dash)
        if len(values) > 1 and len(heads) <= FEW_HEADS:
            spread = values.std(0, ddof=1)
            panel.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.12, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.xaxis.set_major_formatter(FuncFormatter(short_steps))
    panel.grid(**GRID)
