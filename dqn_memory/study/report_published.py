"""Our scores beside the published ones, for worlds and architectures that both have."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dqn_memory.errors import UserError
from dqn_memory.study import published
from dqn_memory.study.normalisation import game
from dqn_memory.study.report_data import Data, Entry, meaning
from dqn_memory.study.report_page import Grid, Section, Words
from dqn_memory.study.report_scores import READ, interval

TITLE = "Beside the published scores"
# By trainer: published tables, and the papers' names of what our studies call otherwise. Names are compared by their
# letters and digits, so that "Gaussian Adaptive" is gaussian_adaptive.
TABLES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "dqn_memory.train": {"dbgfqn_table1": {"dtqn4": "DTQN", "dbgfqn as published": "DBGFQN"}},
    "world_models.unizero.train": {
        "focus_table1": {"causal": "UniZero"},
        "focus_table2": {},
        "thesis_table1": {"causal": "UniZero"},
        "thesis_table3": {"causal": "Vanilla UniZero"},
    },
    "world_models.glam.train": {
        "glam_table1": {},
        "glam_table2": {
            "GLAM": "Ours", "w/o G&L": "Ours w/o G&L", "w/o G": "Ours w/o G", "w/o variation loss": "Ours w/o L_VAR",
        },
    },
}  # fmt: skip
READINGS = ("last average", "mean average", "final")


def published_section(data: Data) -> Section:
    """A row for each world, series and published table that has both."""
    rows = [
        row
        for name, names in TABLES.get(data.source.kind, {}).items()
        for row in _rows(data, name, published.scores(name), names)
    ]
    if not rows:
        return Section(
            TITLE, (Words("No published table has a world and an architecture of this study's finished runs."),)
        )
    told = "; ".join(f"**{name}**: {meaning(data.source, name.replace(' ', '_'))}" for name in READINGS)
    words = Words(
        "The published score, then ours with 95 % bootstrap intervals over seeds. The papers do not define their "
        f"column, so three readings stand beside it. {told}. **Budget**: environment steps of our runs; the DBGFQN "
        "paper has 2,000,000 and the Atari papers have 100,000. Under another budget the two are not comparable."
    )
    header = ("table", "world", "series", "published as", "published", *READINGS, "seeds", "budget")
    return Section(TITLE, (words, Grid(header, tuple(rows))))


def _rows(
    data: Data, table: str, scores: Mapping[str, Mapping[str, float]], names: Mapping[str, str]
) -> list[tuple[str, ...]]:
    rows = []
    for world in data.worlds:
        for series in data.series:
            runs = data.of(world, series)
            theirs = scores.get(place(runs[0]), {}) if runs else {}
            model = matching(series, names, theirs)
            if model is not None:
                ours = [str(interval([READ[name](run) for run in runs])) for name in READINGS]
                budget = ", ".join(f"{steps:,}" for steps in sorted({run.curve.trained for run in runs}))
                rows.append((table, world, series, model, f"{theirs[model]:g}", *ours, str(len(runs)), budget))
    return rows


def place(entry: Entry) -> str:
    """A run's world as the published tables name it: an id of this suite, or ale-py's name of a game."""
    try:
        return game(entry.env)
    except UserError:
        return entry.env.removeprefix("envs:")


def matching(series: str, names: Mapping[str, str], theirs: Mapping[str, float]) -> str | None:
    """The paper's name of a series, None where the table has none."""
    wanted = _letters(names.get(series, series))
    return next((model for model in theirs if _letters(model) == wanted), None)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
