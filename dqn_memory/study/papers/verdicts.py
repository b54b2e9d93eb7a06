"""The claims of the four papers, recomputed from their own tables, and the page that lists them."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers.measures import SINGLE, Recipe, filled, operand, recompute
from dqn_memory.study.papers.tables import FOLDER, PAPERS, Row, Tables, human_normalised, number
from dqn_memory.study.statistics import Floats, Scale, games_won, iqm
from envs.baselines.known import above, shipped
from envs.files import read_text
from envs.markup import Markup
from envs.tables import Table

CLAIMS = "claims.toml"  # beside the published tables
VERDICTS = ("agrees", "disagrees", "cannot be checked", "not claimed")
COLUMNS = ("where", "claim", "published", "recomputed", "", "remarks")
ENVIRONMENT_MODELS = ("DRQN", "DTQN", "DGFQN", "DBGFQN")


class Claim(NamedTuple):
    """One claim of a paper, as a row of the page. `recomputed` is text made of figures from the published tables.

    "not claimed" is a figure that the paper leaves out and that bears on what it says; `published` is then empty.
    """

    where: str
    statement: str
    published: str
    recomputed: str
    verdict: str
    note: str = ""


def claims(folder: Path = FOLDER) -> dict[str, list[Claim]]:
    """Recompute every claim of claims.toml; give them by the paper's title."""
    listed, tables = _listed(folder), Tables(folder)
    return {
        title: [_claim(tables, filled(entry, case)) for entry in listed[paper] for case in entry.get("each_of", [{}])]
        for paper, title in PAPERS.items()
    }


def _listed(folder: Path) -> dict[str, Any]:
    """Read claims.toml; a UserError names a file that cannot be read."""
    path = folder / CLAIMS
    try:
        return tomllib.loads(read_text(path, "the claims in "))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"cannot read the claims in {path}: {error}") from None


def _claim(published: Tables, entry: dict[str, Any]) -> Claim:
    """Recompute one entry; where `published` is a list it is the place of a cell."""
    text, measure, settings = entry.get("published", ""), entry["measure"], entry.get("with", {})
    if isinstance(text, list):
        found = operand(published, text)
        text = found.printed if found else ""
    checked = "" if entry.get("unchecked") else text
    if measure in SINGLE:
        result = SINGLE[measure](published, checked, **settings)
    else:
        result = recompute(published, checked, Recipe(measure, **settings))
    verdict = "agrees" if result.agrees else "disagrees"
    if result.agrees is None:
        verdict = "cannot be checked" if text else "not claimed"
    note = entry.get("note", "").format(**result.facts)
    return Claim(entry["where"], entry["claim"], text, result.recomputed, verdict, note)


def claims_page(command: str, folder: Path = FOLDER) -> str:
    """Write the Markdown page of all claims and of the tables' aggregates."""
    found, words = claims(folder), _listed(folder)["page"]
    every = {Markup("**all**"): list(chain.from_iterable(found.values()))}
    summary = Table(("paper", *VERDICTS), [_counts(*each) for each in (found | every).items()])
    sections = {"Summary": summary.markdown()}
    sections |= {paper: Table(COLUMNS, list(map(_row, each))).markdown() for paper, each in found.items()}
    for paper, rows in _aggregates(Tables(folder)).items():
        text = words["worlds" if paper == "dbgfqn" else "games"]
        table = Table.from_records(rows).markdown()
        sections[f'Aggregates of Table 1 of "{PAPERS[paper]}"'] = f"{text}\n\n{table}"
    parts = [words["head"].format(command=command), *(f"## {name}\n\n{each}" for name, each in sections.items())]
    return "\n\n".join(parts) + "\n"


def _counts(paper: str, found: Iterable[Claim]) -> list[str]:
    counts: Mapping[str, int] = Counter(claim.verdict for claim in found)
    return [paper, *(str(counts.get(word, 0)) for word in VERDICTS)]


def _row(claim: Claim) -> Claim:
    return claim._replace(verdict=Markup("**disagrees**")) if claim.verdict == "disagrees" else claim


# Robust aggregates of the published score tables, one line a model


def _aggregates(tables: Tables) -> dict[str, list[dict[str, str]]]:
    """Give the aggregates of the 23 environments, then of each table of Atari scores, by model."""
    worlds = tables["dbgfqn_table1"]
    found = {"dbgfqn": [_environments(worlds, model) for model in ENVIRONMENT_MODELS]}
    for paper in ("focus", "glam"):
        rows = tables[f"{paper}_table1"]
        _, _, _, *models = rows[0]  # a game, its random and its human score
        found[paper] = [_games(rows, model) for model in models]
    return found


def _environments(rows: Sequence[Row], model: str) -> dict[str, str]:
    scores = {row["id"]: number(row[model]) for row in rows if row[model]}
    known = shipped()
    levels = {id: Scale(known[id].random.success.mean, known[id].lower.success.mean) for id in scores}
    normal = _averages([levels[id](score) for id, score in scores.items()], "normalised ")
    higher = sum(above(score, known[id]) for id, score in scores.items())
    cells = {"model": model, "worlds": str(len(scores)), **_averages(list(scores.values())), **normal}
    del cells["normalised mean"]
    return cells | {"above random": f"{higher} of {len(scores)}"}


def _games(rows: Sequence[Row], model: str) -> dict[str, str]:
    normal = human_normalised(rows, model)[:1]
    cells = {"model": model, "games": str(normal.size), **_averages(normal[0])}
    return cells | {"better than human": str(games_won(normal))}


def _averages(scores: Sequence[float] | Floats, name: str = "") -> dict[str, str]:
    """Show IQM, median and mean over tasks."""
    found = {"IQM": iqm(np.array(scores)[None]), "median": np.median(scores), "mean": np.mean(scores)}
    return {f"{name}{key}": f"{float(value):.3f}" for key, value in found.items()}
