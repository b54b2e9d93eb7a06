"""Claims of the DBGFQN paper against its Tables 1 and 3."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers.claim import Claim, Figure, count, verdict
from dqn_memory.study.papers.gains import gains
from dqn_memory.study.papers.tables import DBGFQN, FOLDER, Table, half_unit, load, number
from dqn_memory.study.statistics import Floats
from envs import baselines

MODELS = ("DRQN", "DTQN", "DGFQN", "DBGFQN")
AVERAGES = {"DTQN": "87.39%", "DGFQN": "96.14%", "DRQN": "482.04%"}


def claims(folder: Path = FOLDER) -> list[Claim]:
    """All claims of the paper that its tables can test."""
    scores, counts = load("dbgfqn_table1", folder), load("dbgfqn_table3", folder)
    ours = _parameters(folder.parent / "parameters.csv")
    return [
        *(_average(scores, other, published) for other, published in AVERAGES.items()),
        _best(scores),
        _four_rooms(scores),
        _favoured(scores),
        _hallucinated(scores),
        _table3(counts, ours),
        _smaller(counts, ours),
    ]


def _average(table: Table, other: str, published: str) -> Claim:
    found = gains(table.scores("DBGFQN"), table.scores(other))
    largest = f"{table.rows[found.largest_row]['environment']} alone gives {100 * found.largest:+.0f} %"
    readings = [Figure.exact(found.median), Figure.exact(found.ratio), _mean_gain(table, other)]
    readings += _other_columns(table, other)
    agrees = any(figure.agrees(published) for figure in readings)
    undefined = f", {found.undefined} of them with nothing to divide by" if found.undefined else ""
    note = f"{found.rows} rows{undefined}; {largest}. " + _missing_note(table, other)
    statement = f"performance gain of DBGFQN over {other}, on average across the 23 worlds"
    return Claim(
        DBGFQN, "abstract, Section 5.3", statement, f"+{published[:-1]} %", found.text(), verdict(agrees), note
    )


def _mean_gain(table: Table, other: str) -> Figure:
    """Mean of relative gains, over the range that rounding to four decimals leaves."""
    ours, theirs = table.scores("DBGFQN"), table.scores(other)
    theirs[theirs == 0] = np.nan
    step = half_unit("0.0000")
    return Figure.monotone(lambda shift: gains(ours + shift * step, theirs - shift * step).mean)


def _missing_note(table: Table, other: str) -> str:
    tried = ", ".join(f"{100 * figure.value:+.1f} %" for figure in _other_columns(table, other))
    return f"Were the column that five rows lack another one, the mean of relative gains would be {tried}"


def _other_columns(table: Table, other: str) -> list[Figure]:
    """Mean of relative gains where the three-value rows have lost a column other than DRQN's."""
    found = []
    for missing in ("DTQN", "DGFQN"):
        kept = [model for model in MODELS if model != missing]
        columns = {model: table.scores(model) for model in MODELS}
        short = np.isnan(columns["DRQN"])
        moved = {new: columns[old][short] for new, old in zip(kept, MODELS[1:], strict=True)}
        ours, theirs = (_moved(columns[name], short, moved.get(name)) for name in ("DBGFQN", other))
        found.append(Figure.exact(gains(ours, theirs).mean))
    return found


def _moved(column: Floats, short: np.ndarray, values: Floats | None) -> Floats:
    changed = column.copy()
    changed[short] = np.nan if values is None else values
    return changed


def _best(table: Table) -> Claim:
    rivals = np.nanmax([table.scores(model) for model in MODELS[:-1]], axis=0)
    found = list(table.scores("DBGFQN") > rivals)
    lost = [row["environment"] for row, won in zip(table.rows, found, strict=True) if not won]
    return count(
        DBGFQN,
        "Section 5.3",
        '"consistent superior performance" of DBGFQN (read as: best of its row)',
        "23 of 23",
        found,
        f"Not in {', '.join(lost)}",
    )


def _four_rooms(table: Table) -> Claim:
    row = table.row(environment="GV Memory 4 Rooms 7x7")
    cells = [row[model] for model in ("DBGFQN", "DTQN", "DGFQN")]
    first, middle, last = map(number, cells)
    return Claim(
        DBGFQN,
        "Section 5.2",
        "4 Rooms 7x7: bi-directional recurrence above DTQN, uni-directional below it",
        "DBGFQN > DTQN > DGFQN",
        " > ".join(cells) if first > middle > last else ", ".join(cells),
        verdict(first > middle > last),
    )


def _favoured(table: Table) -> Claim:
    chosen = [row for row in table.rows if any(word in row["id"] for word in ("CarFlag", "Rooms", "Keydoor"))]
    best = [number(row["DBGFQN"]) > max(number(row["DTQN"]), number(row["DGFQN"])) for row in chosen]
    lost = [row["environment"] for row, won in zip(chosen, best, strict=True) if not won]
    return count(
        DBGFQN,
        "Section 5.3",
        "Car Flag, Memory Rooms and Keydoor benefit from bi-directional recurrence (read as: above DTQN and DGFQN)",
        f"{len(chosen)} of {len(chosen)}",
        best,
        f"Not in {', '.join(lost)}" if lost else "",
    )


def _hallucinated(table: Table) -> Claim:
    row = table.row(environment="GV Memory 13x13 (Hallucinated)")
    lines = baselines.lines(row["id"])
    if lines is None:
        raise UserError(f"envs/baselines/lines.toml has no lines for {row['id']}")
    random = f"random actions {lines.random.success.mean:.3f}"
    return Claim(
        DBGFQN,
        "Section 5.4",
        "hallucinated rooms in an empty 13x13 world improve DTQN and DGFQN",
        "improved (Figure 8)",
        f"DTQN {row['DTQN']}, DGFQN {row['DGFQN']} with the rooms; {random}",
        "cannot be checked",
        "No table has the empty world without them. Both are where random actions are, in the reading of the "
        "construction that is this suite's",
    )


def _table3(counts: Table, ours: Mapping[tuple[str, str], str]) -> Claim:
    models = counts.header[2:]
    found = [row[model] == ours.get((row["id"], model.lower())) for row in counts.rows for model in models]
    return count(
        DBGFQN,
        "Table 3",
        "parameter counts of eight models in eight worlds (recomputed: results/parameters.csv)",
        f"{len(found)} of {len(found)}",
        found,
        "The printed counts contain 5,000 mask entries each, which never learn",
    )


def _smaller(counts: Table, ours: Mapping[tuple[str, str], str]) -> Claim:
    pairs = [(ours[row["id"], "dbgfqn"], ours[row["id"], "dtqn4"]) for row in counts.rows]
    saved = sorted(1 - number(small) / number(large) for small, large in pairs)
    agrees = saved[0] - half_unit("0.25") <= 0.25 <= saved[-1] + half_unit("0.25")
    return Claim(
        DBGFQN,
        "Section 1",
        "DBGFQN has fewer parameters than a traditional transformer (read as: than DTQN with its 4D feed-forward)",
        "25 %",
        f"{100 * saved[0]:.1f} % to {100 * saved[-1]:.1f} %, by world",
        verdict(agrees),
        "Table 3 prints neither count; both are from results/parameters.csv, masks counted as the paper does",
    )


def _parameters(path: Path) -> dict[tuple[str, str], str]:
    """Published-style counts of results/parameters.csv by world and architecture."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; `python -m dqn_memory.parameters` writes it") from None
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {(row["world"], row["architecture"]): row["published"] for row in rows}
