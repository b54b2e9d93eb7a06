"""How far learned spans reach at the end, over all heads, layers and seeds ("Learning to Focus", Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dqn_memory.analysis.plots import STYLE
from dqn_memory.study.report_data import Data
from dqn_memory.study.report_figures import FAINT, GRID
from dqn_memory.study.report_page import Grid, Part, Picture, Section, Words, slug
from dqn_memory.study.report_priors import first_values, learned_values
from dqn_memory.study.report_style import Look, looks
from dqn_memory.study.statistics import Floats

TITLE = "Learned spans"
COLUMNS = 3  # of panels
BINS = 30
Spans = Mapping[str, tuple[Floats, float]]  # by series: spans at the end (any number,), and where all began


def spans_section(data: Data) -> Section:
    """A histogram of spans for each world, a panel a series."""
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for world in data.worlds:
        found = {name: spans for name in data.series if (spans := last_spans(data, world, name)) is not None}
        if found:
            figure = spans_figure(found, looks(data.series), f"Learned spans in {world}")
            words = f"Spans of every head, layer and seed at the end of training in {world}; dashed: where all began."
            parts.append(Picture(f"spans-{slug(world)}", figure, words))
            rows += [_row(world, name, *spans) for name, spans in found.items()]
    if not parts:
        return Section(TITLE, (Words("No finished run has a span that learns."),))
    header = ("world", "series", "spans", "start", "least", "quartile", "median", "quartile", "most")
    return Section(TITLE, (*parts, Grid(header, tuple(rows))))


def last_spans(data: Data, world: str, series: str) -> tuple[Floats, float] | None:
    """Spans of all heads, layers and runs at the end, and where they began; None where there are none."""
    runs = data.of(world, series)
    _, learned = learned_values(runs)
    starts = first_values(runs[0].config) if runs else {}
    if "span" not in learned or "span" not in starts:
        return None
    return np.concatenate([values[:, -1] for values in learned["span"].values()]), starts["span"]


def _row(world: str, series: str, spans: Floats, start: float) -> tuple[str, ...]:
    marks = np.percentile(spans, (0, 25, 50, 75, 100))
    return (world, series, str(len(spans)), f"{start:.3f}", *(f"{mark:.3f}" for mark in marks))


@matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10})
def spans_figure(found: Spans, styles: Mapping[str, Look], title: str) -> Figure:
    """Histograms on common axes."""
    columns = min(COLUMNS, ceil(sqrt(len(found))))
    lines = ceil(len(found) / columns)
    figure = Figure(figsize=(2.9 * columns + 0.6, 2.1 * lines + 0.7), layout="constrained")
    panels: Any = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    top = max(max(float(spans.max()), start) for spans, start in found.values())
    edges = np.linspace(0.0, 1.05 * top, BINS + 1)
    for place, (name, (spans, start)) in enumerate(found.items()):
        panel = panels.flat[place]
        panel.tick_params(labelbottom=place + columns >= len(found))  # the lowest of its column
        panel.hist(spans, edges, color=styles[name].colour, alpha=0.85)
        panel.axvline(start, color=FAINT, linestyle="--", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.grid(**GRID)
        panel.set_axisbelow(True)
    for panel in list(panels.flat)[len(found) :]:
        panel.set_axis_off()
    figure.supxlabel("span at the end", fontsize=10)
    figure.supylabel("heads", fontsize=10)
    figure.suptitle(title)
    return figure
