"""Robust aggregates of the published score tables, one line a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers.tables import DBGFQN, FOCUS, GLAM, Table, load
from dqn_memory.study.statistics import Floats, games_won, iqm, world_scale
from envs import baselines
from envs.baselines.known import above

WORLD_MODELS = ("DRQN", "DTQN", "DGFQN", "DBGFQN")
ATARI = ((FOCUS, "focus_table1"), (GLAM, "glam_table1"))
SCALES = ("Random", "Human")  # columns that are no models


def aggregate_sections(folder: Path) -> list[str]:
    """Markdown sections: the 23 worlds, then each table of Atari scores."""
    return [_worlds(load("dbgfqn_table1", folder)), *(_atari(paper, load(name, folder)) for paper, name in ATARI)]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _worlds(table: Table) -> str:
    header = ("model", "worlds", "IQM", "median", "mean", "normalised IQM", "normalised median", "above random")
    rows = [_world_row(table, model) for model in WORLD_MODELS]
    return (
        f'## Aggregates of Table 1 of "{DBGFQN}"\n\n'
        "Success over the worlds; normalised, 0 is random actions and 1 the best known player; above random: by more "
        "than two standard errors of the random score. One number a world, so no interval over seeds can be given.\n\n"
        + markdown_table(header, rows)
    )


def _world_row(table: Table, model: str) -> list[str]:
    scores = table.scores(model)
    kept = np.flatnonzero(~np.isnan(scores))
    ids = [table.rows[place]["id"] for place in kept]
    normal = np.array([world_scale(id)(score) for id, score in zip(ids, scores[kept], strict=True)])
    higher = sum(_above_random(id, score) for id, score in zip(ids, scores[kept], strict=True))
    shown = [*_three(scores[kept]), *_three(normal)[:2]]
    return [model, str(len(kept)), *shown, f"{higher} of {len(kept)}"]


def _above_random(id: str, score: float) -> bool:
    lines = baselines.lines(id)
    if lines is None:
        raise UserError(f"envs/baselines/lines.toml has no lines for {id}")
    return above(score, lines)


def _atari(paper: str, table: Table) -> str:
    header = ("model", "games", "IQM", "median", "mean", "better than human")
    models = [column for column in table.header[1:] if column not in SCALES]
    return (
        f'## Aggregates of Table 1 of "{paper}"\n\n'
        "Human-normalised scores over the games. One number a game, so no interval over seeds can be given.\n\n"
        + markdown_table(header, [_atari_row(table, model) for model in models])
    )


def _atari_row(table: Table, model: str) -> list[str]:
    normal = table.human_normalised(model)
    return [model, str(len(normal)), *_three(normal), str(games_won(normal[None]))]


def _three(scores: Floats) -> list[str]:
    """IQM, median and mean over tasks."""
    return [f"{float(value):.3f}" for value in (iqm(scores[None]), np.median(scores), scores.mean())]
