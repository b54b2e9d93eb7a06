"""The claims of the four papers, recomputed from their own tables, and the page that lists them."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers.measures import Given, recompute
from dqn_memory.study.papers.tables import FOLDER, PAPERS, Table, Tables, load
from dqn_memory.study.statistics import Floats, games_won, iqm, known_lines, world_scale
from envs import tables
from envs.baselines.known import above

CLAIMS = "claims.toml"  # beside the published tables
Verdict = Literal["agrees", "disagrees", "cannot be checked", "not claimed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
COLUMNS = ("where", "claim", "published", "recomputed", "", "remarks")
ENVIRONMENT_MODELS = ("DRQN", "DTQN", "DGFQN", "DBGFQN")
SCALES = ("Random", "Human")  # columns of Atari tables that are no models

HEAD = """# The papers' claims, recomputed

Machine-written by `{command}` from the published tables in `published/`, the parameter
counts in `parameters.csv` and the lines of `envs/baselines`; nothing was trained for this page.

- **published** is what the paper prints. Where a claim is in words, the reading that was tested stands beside it
  ("read as"), and this column says what the reading asks for.
- **recomputed** is the same figure from the tables' cells. Square brackets hold the range that the rounding of the
  cells leaves; a figure agrees if some number in that range prints as published.
- **not claimed** marks a figure that the paper leaves out and that bears on what it says.
- Human-normalised scores have 0 at random play and 1 at the human's score. P values are Welch's, two-sided, from means,
  standard errors and the stated number of seeds.
- Relative gains are given as their median and as the ratio of mean scores first: one row with a score near 0 can carry
  their mean alone."""


@dataclass(frozen=True)
class Claim:
    """One claim of a paper. `recomputed` is text made of figures from the published tables.

    "not claimed" is a figure that the paper leaves out and that bears on what it says; `published` is then empty.
    """

    paper: str
    where: str
    statement: str
    published: str
    recomputed: str
    verdict: Verdict
    note: str = ""


def claims(folder: Path = FOLDER) -> tuple[Claim, ...]:
    """Recompute every claim of claims.toml, paper by paper. A UserError names an unreadable file."""
    path = folder / CLAIMS
    try:
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the claims in {path}: {getattr(error, 'strerror', '') or error}") from None
    found, published = [], Tables(folder)
    for paper, title in PAPERS.items():
        for entry in listed[paper]:
            rest = {key: value for key, value in entry.items() if key != "each_of"}
            found += [_claim(title, published, _filled(rest, case)) for case in entry.get("each_of", [{}])]
    return tuple(found)


def _filled(value: Any, case: Mapping[str, str]) -> Any:
    """Put the names of one case into the texts of an entry; other braces are left for later."""
    if isinstance(value, dict):
        return {key: _filled(item, case) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, case) for item in value]
    for name, text in case.items() if isinstance(value, str) else ():
        value = value.replace(f"{{{name}}}", text)
    return value


def _claim(paper: str, published: Tables, entry: dict[str, Any]) -> Claim:
    """Recompute one entry; where `published` is a list it is the place of a cell."""
    given = entry.get("published", "")
    text = published.cell(*given) if isinstance(given, list) else given
    result = recompute(entry["measure"], Given(published.folder, text), entry.get("with", {}))
    verdict: Verdict = "agrees" if result.agrees else "disagrees"
    if result.agrees is None or entry.get("unchecked"):
        verdict = "cannot be checked" if text else "not claimed"
    note = entry.get("note", "").format(**result.facts)
    return Claim(paper, entry["where"], entry["claim"], text, result.recomputed, verdict, note)


def claims_page(command: str, folder: Path = FOLDER) -> str:
    """Write the Markdown page of all claims and of the tables' aggregates."""
    found = claims(folder)
    rows = [[paper, *_counts(claim for claim in found if claim.paper == paper)] for paper in PAPERS.values()]
    rows.append(["**all**", *_counts(found)])
    sections = [HEAD.format(command=command), "## Summary\n\n" + tables.Table(("paper", *VERDICTS), rows).markdown()]
    for paper in PAPERS.values():
        lines = [_row(claim) for claim in found if claim.paper == paper]
        sections.append(f"## {paper}\n\n" + tables.Table(COLUMNS, lines).markdown())
    return "\n\n".join([*sections, *_aggregate_sections(folder)]) + "\n"


def _counts(found: Iterable[Claim]) -> list[str]:
    counts: Mapping[str, int] = Counter(claim.verdict for claim in found)
    return [str(counts.get(word, 0)) for word in VERDICTS]


def _row(claim: Claim) -> list[str]:
    word = f"**{claim.verdict}**" if claim.verdict == "disagrees" else claim.verdict
    return [claim.where, claim.statement, claim.published, claim.recomputed, word, claim.note]


# Robust aggregates of the published score tables, one line a model


def _aggregate_sections(folder: Path) -> list[str]:
    """Write a section for the 23 environments, then for each table of Atari scores."""
    table = load("dbgfqn_table1", folder)
    found = [
        _section(
            "dbgfqn",
            "Success over the worlds; normalised, 0 is random actions and 1 the best known player; above random: by "
            "more than two standard errors of the random score. One number a world, so no interval over seeds can be "
            "given.",
            ("model", "worlds", "IQM", "median", "mean", "normalised IQM", "normalised median", "above random"),
            [_environment_row(table, model) for model in ENVIRONMENT_MODELS],
        )
    ]
    for paper in ("focus", "glam"):
        table = load(f"{paper}_table1", folder)
        found.append(
            _section(
                paper,
                "Human-normalised scores over the games. One number a game, so no interval over seeds can be given.",
                ("model", "games", "IQM", "median", "mean", "better than human"),
                [_atari_row(table, model) for model in table.header[1:] if model not in SCALES],
            )
        )
    return found


def _section(paper: str, words: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f'## Aggregates of Table 1 of "{PAPERS[paper]}"\n\n{words}\n\n{tables.Table(header, rows).markdown()}'


def _environment_row(table: Table, model: str) -> list[str]:
    scores = {row["id"]: score for row, score in zip(table.rows, table.scores(model), strict=True) if row[model]}
    normal = np.array([world_scale(id)(score) for id, score in scores.items()])
    higher = sum(above(score, known_lines(id)) for id, score in scores.items())
    shown = [*_three(np.array(list(scores.values()))), *_three(normal)[:2]]
    return [model, str(len(scores)), *shown, f"{higher} of {len(scores)}"]


def _atari_row(table: Table, model: str) -> list[str]:
    normal = table.human_normalised(model)
    return [model, str(len(normal)), *_three(normal), str(games_won(normal[None]))]


def _three(scores: Floats) -> list[str]:
    """Show IQM, median and mean over tasks."""
    return [f"{float(value):.3f}" for value in (iqm(scores[None]), np.median(scores), scores.mean())]
