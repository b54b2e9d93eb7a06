"""The four papers' published tables and claims, as one page: what they print, and what their figures give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers import dbgfqn, focus, glam, thesis
from dqn_memory.study.papers.aggregates import aggregate_sections, markdown_table
from dqn_memory.study.papers.claim import VERDICTS, Claim
from dqn_memory.study.papers.tables import DBGFQN, FOCUS, FOLDER, GLAM, THESIS, Table, load, number, tables
from dqn_memory.study.statistics import game

__all__ = ["FOLDER", "Claim", "Table", "claims", "claims_page", "scores", "tables"]

PAPERS = {DBGFQN: dbgfqn, FOCUS: focus, THESIS: thesis, GLAM: glam}
COLUMNS = ("where", "claim", "published", "recomputed", "", "remarks")
LONG = ("focus_table2", "thesis_table1", "thesis_table3")  # one row a cell
WIDE = ("dbgfqn_table1", "focus_table1", "glam_table1", "glam_table2")

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


def claims(folder: Path = FOLDER) -> tuple[Claim, ...]:
    """Every claim that the published tables can test, paper by paper. A UserError names an unreadable table."""
    return tuple(claim for paper in PAPERS.values() for claim in paper.claims(folder))


def claims_page(command: str, folder: Path = FOLDER) -> str:
    """The Markdown page of all claims and of the tables' aggregates."""
    found = claims(folder)
    sections = [HEAD.format(command=command), _summary(found)]
    sections += [_section(paper, [claim for claim in found if claim.paper == paper]) for paper in PAPERS]
    sections += aggregate_sections(folder)
    return "\n\n".join(sections) + "\n"


def scores(name: str, folder: Path = FOLDER) -> dict[str, dict[str, float]]:
    """A published table of scores by world id or ale-py game, then by the paper's name of the model.

    Cells that were not printed are absent; of a long table's repeated cells the first counts. A UserError names a
    table that holds no scores.
    """
    table = load(name, folder)
    if name not in LONG + WIDE:
        raise UserError(f"the published table {name} holds no scores; these do: {', '.join(LONG + WIDE)}")
    if name in LONG:
        return _long(table)
    if name == "glam_table2":
        return {game(column): {row["model"]: number(row[column]) for row in table.rows} for column in table.header[1:]}
    key = "id" if "id" in table.header else "game"
    rows = table.rows if key == "id" else table.games()
    models = table.header[3:] if key == "id" else table.header[1:]
    return {_place(key, row[key]): {m: number(row[m]) for m in models if row[m]} for row in rows}


def _place(key: str, name: str) -> str:
    return name if key == "id" else game(name)


def _long(table: Table) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in table.rows:
        model = row["model"] if "model" in row else f"{row['parameter']} {row['value']}"
        found.setdefault(game(row["game"]), {}).setdefault(model, number(row["mean"]))
    return found


def _summary(found: Sequence[Claim]) -> str:
    rows = [[paper, *_counts(claim for claim in found if claim.paper == paper)] for paper in PAPERS]
    rows.append(["**all**", *_counts(found)])
    return "## Summary\n\n" + markdown_table(("paper", *VERDICTS), rows)


def _counts(found: Iterable[Claim]) -> list[str]:
    counts: Mapping[str, int] = Counter(claim.verdict for claim in found)
    return [str(counts.get(word, 0)) for word in VERDICTS]


def _section(paper: str, found: Sequence[Claim]) -> str:
    return f"## {paper}\n\n" + markdown_table(COLUMNS, [_row(claim) for claim in found])


def _row(claim: Claim) -> list[str]:
    word = f"**{claim.verdict}**" if claim.verdict == "disagrees" else claim.verdict
    return [claim.place, claim.statement, claim.published, claim.recomputed, word, claim.note]
