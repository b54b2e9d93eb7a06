"""Set our scores beside the published ones, for environments and architectures that both have."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dqn_memory.runs.errors import UserError
from dqn_memory.study.collect import Data, Entry, meaning
from dqn_memory.study.page import Part, Section, counted
from dqn_memory.study.papers import verdicts
from dqn_memory.study.papers.tables import PAPERS, scores
from dqn_memory.study.sections.scores import READ, interval
from dqn_memory.study.statistics import game
from envs.tables import Table

TITLE = "Beside the published scores"
# By trainer: published tables, and the papers' names of what our studies call otherwise. Names are compared by their
# letters and digits, so that "Gaussian Adaptive" is gaussian_adaptive.
# One series may stand in several rows of a table: that with mean 6 is also that with width 1.
Names = Mapping[str, tuple[str, ...]]
TABLES: Mapping[str, Mapping[str, Names]] = {
    "q_network": {"dbgfqn_table1": {"dtqn4": ("DTQN",), "dbgfqn as published": ("DBGFQN",)}},
    "unizero": {
        "focus_table1": {
            "causal": ("UniZero",), "causal, released": ("UniZero",), "adaptive, released": ("Adaptive",),
            "gaussian, released": ("Gaussian",), "gaussian_adaptive, released": ("Gaussian Adaptive",),
        },
        "focus_table2": {"mu 6": ("mu 6", "sigma 1")},
        "thesis_table1": {"causal": ("UniZero",)},
        "thesis_table3": {"causal": ("Vanilla UniZero",)} | {f"local {w}": (f"Local (w={w})",) for w in (2, 6, 10, 12)},
    },
    "glam": {
        "glam_table1": {},
        "glam_table2": {
            "GLAM": ("Ours",), "w/o G&L": ("Ours w/o G&L",), "w/o G": ("Ours w/o G",),
            "w/o variation loss": ("Ours w/o L_VAR",),
        },
    },
}  # fmt: skip
READINGS = ("last average", "mean average", "final")


def published_section(data: Data) -> Section:
    """Write a row for each environment, series and published table that has both."""
    rows = [
        row
        for name, names in TABLES.get(data.source.kind, {}).items()
        for row in _rows(data, name, scores(name), names)
    ]
    if not rows:
        return Section(
            TITLE, ("No published table has an environment and an architecture of this study's finished runs.",)
        )
    readings = "; ".join(f"**{name}**: {meaning(data, name.replace(' ', '_'))}" for name in READINGS)
    words = (
        "The published score, then ours with 95 % bootstrap intervals over seeds. The papers do not define their "
        f"column, so three readings stand beside it. {readings}. **Budget**: environment steps of our runs; the DBGFQN "
        "paper has 2,000,000 and the Atari papers have 100,000. Under another budget the two are not comparable."
    )
    header = ("table", "environment", "series", "published as", "published", *READINGS, "seeds", "budget")
    return Section(TITLE, (words, Table(header, tuple(rows)), *_disagreements({row[0] for row in rows})))


def _disagreements(names: set[str]) -> tuple[Part, ...]:
    """List what the papers print of these tables and their own cells do not give."""
    papers = [paper for prefix, paper in PAPERS.items() if any(name.startswith(prefix) for name in names)]
    found = [claim for claim in verdicts.claims() if claim.paper in papers]
    wrong = [claim for claim in found if claim.verdict == "disagrees"]
    rows = tuple((claim.where, claim.statement, claim.published, claim.recomputed) for claim in wrong)
    words = (
        f"Recomputed from those papers' own tables (aggregates, percentages, p-values): {len(wrong)} of "
        f"{counted(len(found), 'figure')} disagree. `results/claims.md` lists all figures of all papers."
    )
    return (words, Table(("where", "claim", "published", "recomputed"), rows)) if rows else (words,)


def _rows(data: Data, table: str, scores: Mapping[str, Mapping[str, float]], names: Names) -> list[tuple[str, ...]]:
    rows = []
    for world in data.worlds:
        for series in data.series:
            runs = data.of(world, series)
            theirs = scores.get(published_name(runs[0]), {}) if runs else {}
            for model in matching(series, names, theirs):
                ours = [str(interval([READ[name](run) for run in runs])) for name in READINGS]
                budget = ", ".join(f"{steps:,}" for steps in sorted({run.curve.trained for run in runs}))
                rows.append((table, world, series, model, f"{theirs[model]:g}", *ours, str(len(runs)), budget))
    return rows


def published_name(entry: Entry) -> str:
    """Name a run's environment as the published tables do: an id of this suite, or ale-py's name of a game."""
    try:
        return game(entry.env)
    except UserError:
        return entry.env.removeprefix("envs:")


def matching(series: str, names: Names, theirs: Mapping[str, float]) -> list[str]:
    """Give the paper's names of a series; none where the table has none."""
    wanted = {_letters(name) for name in names.get(series, (series,))}
    return [model for model in theirs if _letters(model) in wanted]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
