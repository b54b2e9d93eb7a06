"""Redraw a figure at the width of a paper's column: small text, fewer columns of panels, the legend below them."""

import io
import pickle
import re
from itertools import pairwise
from math import ceil
from textwrap import TextWrapper
from typing import Any

import numpy as np

from dqn_memory.analysis.plots import STYLE
from envs.extras import extra

with extra("plots"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation, Text
    from matplotlib.ticker import MaxNLocator

SMALL, LARGE = 7, 8  # points of text; titles of figures and labels are large
LETTER = 0.54 / 72  # inches of an average letter of one point
THIN = 0.7  # share that stays of the width of lines
PANEL, NARROW = 1.3, 0.95  # min inches across for a panel, and for one of many
ROWS = 4  # max rows of panels that are not narrow
FLAT, TALL = 0.55, 1.0  # min and max height of a panel over its width
PAGE = 9.0  # max inches of a figure's height
ROUNDS = 2  # each measures the figure and corrects it
BREAK = re.compile(r"(\s+)|(?<=[_/-])(?!v\d)")  # between words, and within names but not before their version


@matplotlib.rc_context({**STYLE, "pdf.fonttype": 42})  # TrueType; publishers refuse Type 3
def pdf(figure: Figure, width: float) -> bytes:
    """Encode a figure as PDF, fitted to a width in inches. Equal figures give equal bytes."""
    drawn = io.BytesIO()
    fitted(figure, width).savefig(drawn, format="pdf", metadata={"CreationDate": None})
    return drawn.getvalue()


@matplotlib.rc_context(STYLE)
def fitted(figure: Figure, width: float) -> Figure:
    """Fit a copy of a figure to a width in inches."""
    figure = pickle.loads(pickle.dumps(figure))
    figure.draw_without_rendering()
    ratio = np.median([panel.bbox.height / panel.bbox.width for panel in _panels(figure)] or [FLAT])
    figure.set_size_inches(width, PAGE)
    for text in figure.findobj(Text):
        text.set_fontsize(SMALL if float(text.get_fontsize()) < 10 else LARGE)
    for line in figure.findobj(Line2D):
        line.set(linewidth=THIN * line.get_linewidth(), markersize=THIN * line.get_markersize())
    for panel in figure.axes:
        panel.tick_params(labelsize=SMALL)
    _stack(figure)
    _legend_below(figure)
    for _ in range(ROUNDS):
        figure.draw_without_rendering()
        _wrap_titles(figure)
        for panel in figure.axes:
            _untangle(panel.xaxis, "x")
            _untangle(panel.yaxis, "y")
        figure.draw_without_rendering()
        _set_height(figure, float(np.clip(ratio, FLAT, TALL)))
    return figure


def _panels(figure: Figure, visible: bool = True) -> list[Axes]:
    """List the panels that are visible, or those that are not, without colour bars."""
    return [panel for panel in figure.axes if panel.get_visible() == visible and panel.get_subplotspec()]


def _stack(figure: Figure) -> None:
    """Arrange the panels of each grid in fewer columns, if every panel says what it shows."""
    grids: dict[Any, list[Axes]] = {}
    for panel in _panels(figure):
        grids.setdefault(panel.get_gridspec(), []).append(panel)
    for grid, shown in grids.items():
        most = max(1, int(figure.get_figwidth() / PANEL))
        most = most if len(shown) <= ROWS * most else int(figure.get_figwidth() / NARROW)
        if grid.ncols <= most or not (grid.nrows == 1 or all(panel.get_title() for panel in shown)):
            continue
        across = ceil(len(shown) / ceil(len(shown) / most))
        new = figure.add_gridspec(ceil(len(shown) / across), across)
        hidden = [panel for panel in _panels(figure, visible=False) if panel.get_gridspec() is grid]
        for place, panel in enumerate([*shown, *hidden]):
            panel.set_subplotspec(new[min(place, new.nrows * new.ncols - 1)])
        _share_edges(shown, across)
        notes = [text for panel in shown for text in panel.texts if isinstance(text, Annotation)]
        if notes:  # beside a panel they would take much width
            lines = " and ".join(note.get_text() for note in notes)
            figure.suptitle(f"{figure.get_suptitle()}\ndashed: {lines}")
            for note in notes:
                note.remove()


def _share_edges(panels: list[Axes], across: int) -> None:
    """Show the labels and numbers of shared axes at the left and the lower edge only."""
    left, below = panels[0].get_ylabel(), panels[-1].get_xlabel()
    for place, panel in enumerate(panels):
        first, last = place % across == 0, place + across >= len(panels)
        if len(panel.get_shared_y_axes().get_siblings(panel)) > 1:
            panel.tick_params(labelleft=first)
            panel.set_ylabel(left * first)
        if len(panel.get_shared_x_axes().get_siblings(panel)) > 1:
            panel.tick_params(labelbottom=last)
            panel.set_xlabel(below * last)


def _legend_below(figure: Figure) -> None:
    """Put all legends below the panels, in as many columns as fit, and the figure's label of x on top of them."""
    legends = [*figure.legends, *(legend for panel in figure.axes if (legend := panel.get_legend()))]
    entries: dict[str, Any] = {}
    for legend in legends:
        names = [_wrapped(text.get_text(), SMALL, 0.85 * figure.get_figwidth()) for text in legend.get_texts()]
        entries |= dict(zip(names, legend.legend_handles, strict=True))
        legend.remove()
    form: dict[str, Any] = {"fontsize": SMALL, "handlelength": 1.8, "columnspacing": 1.0, "borderpad": 0}
    if entries and (title := figure.get_supxlabel()):
        figure.supxlabel("")
        form |= {"title": title, "title_fontsize": LARGE}
    for columns in range(len(entries), 0, -1):
        legend = figure.legend([*entries.values()], [*entries], loc="outside lower center", ncols=columns, **form)
        if columns == 1 or legend.get_window_extent().width < 0.95 * figure.bbox.width:
            break
        legend.remove()


def _wrap_titles(figure: Figure) -> None:
    """Break the lines of titles and labels that are longer than the figure, or than their panel."""
    for text, put in ((figure.get_suptitle(), figure.suptitle), (figure.get_supxlabel(), figure.supxlabel)):
        if text:
            put(_wrapped(text, LARGE, 0.93 * figure.get_figwidth()), fontsize=LARGE)
    for panel in _panels(figure):
        panel.set_ylabel(_wrapped(panel.get_ylabel(), LARGE, panel.bbox.height / figure.dpi))
        for side in ("center", "left"):
            title = _wrapped(panel.get_title(side), SMALL, panel.bbox.width / figure.dpi)
            panel.set_title(title, loc=side, fontsize=SMALL)


def _wrapped(text: str, size: float, inches: float) -> str:
    wrapper = TextWrapper(max(1, int(inches / LETTER / size)))
    wrapper.wordsep_re = BREAK
    return "\n".join("\n".join(wrapper.wrap(line)) for line in text.split("\n"))


def _untangle(axis: Any, side: str) -> None:
    """Show fewer numbers on an axis, or turn its names, until none touches the next."""
    for bins in range(5, 0, -1):
        labels = [text for text in axis.get_ticklabels() if text.get_visible()]
        ends = sorted(
            getattr(text.get_window_extent(), f"interval{side}").tolist() for text in labels if text.get_text()
        )
        if not any(high + 4 > low for (_, high), (low, _) in pairwise(ends)):
            break
        if isinstance(axis.get_major_locator(), MaxNLocator):
            axis.get_major_locator().set_params(nbins=bins)
        elif all(text.get_text().isdigit() for text in labels):
            axis.set_ticks(axis.get_ticklocs()[::2], [text.get_text() for text in labels[::2]])
        elif side == "x":
            axis.set_ticks(axis.get_ticklocs(), [text.get_text().replace("\n", " ") for text in labels], rotation=90)


def _set_height(figure: Figure, ratio: float) -> None:
    """Give the panels of each row their height; the figure is at most as high as a page."""
    width, height = figure.get_size_inches()
    rows: dict[Any, Axes] = {}
    for panel in _panels(figure):
        spec: Any = panel.get_subplotspec()
        rows[spec.get_gridspec(), spec.rowspan.start] = panel
    places = [panel.get_position(original=True) for panel in rows.values()]  # before an equal aspect shrinks them
    missing = sum(ratio * width * place.width - height * place.height for place in places)
    figure.set_figheight(min(PAGE, height + missing))
