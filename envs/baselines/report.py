"""The table of baselines as Markdown and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.baselines.known import DOUBT, LEVELS, Lines, Measure, from_plain, plain
from envs.files import read_entries

HEAD = """# How good is good?

A score says little before it stands between two lines: what uniformly random actions reach, and the best that is
known. `x ± e` is a mean with its standard error; a number without one was computed and not sampled, or came out the
same in every episode. Where the best is not known exactly, two numbers enclose it, and the kinds say what they are.
The best success and the best return need not be one player's. Success is the world's own verdict; returns are
undiscounted.

- exact: the optimum over all policies. Car Flag: the signpost player wins from all of 4,002 starts on a grid that holds
  both ends of the line and both sides of heaven, and no return is above 1. Memory Cards: dynamic program over what a
  player with a perfect memory can know.
- belief-optimal: the optimum over all policies, by search among sets of states that fit what was seen.
- lower by scripted player: a player who gets the registered observation and knows the world's plan, nothing else.
- lower by point-based player: the policy of the discounted lower bound below, played with exact beliefs.
- upper by full-state player: what could be reached by seeing everything.
"""


PUBLISHED = f"""
## Published scores beside random actions

Table 1 of "Bi-directional Recurrence Improves Transformer in POMDPs": mean over training of the greedy policy's
success. **Bold with ▼**: below the success of random actions by more than {DOUBT:g} of its standard errors; ≈: not told
apart from it. Rows with three values have lost one in the text; it is assumed to be DRQN's. The hallucinated world's
construction was not published; its row stands beside ours.
"""


DISCOUNTED = """
## Discounted value of the tabular worlds

Bounds on the best expected discounted return without a time limit, by heuristic search value iteration.
"""


WORLDS = ("world", "random success", "best success", "random return", "best return", "kind", "time limit")


MADE = ("world", "episodes", "of scripted players", "seed", "revision", "minutes", "command")


def markdown(records: Records) -> str:
    """The whole page."""
    all_lines = [record.lines for record in records.values()]
    parts = [HEAD, _table(WORLDS, map(_world_row, all_lines))]
    parts += [PUBLISHED, published_table(all_lines)]
    discounted = [lines for lines in all_lines if lines.discounted]
    if discounted:
        parts += [DISCOUNTED, _table(("world", "discount", "lower", "upper"), map(_discounted_row, discounted))]
    return "\n".join([*parts, _made(records)])


def _made(records: Records) -> str:
    """Commands, machine, and what each row took."""
    commands = list(dict.fromkeys(record.command for record in records.values()))
    machines = "; ".join(sorted({record.machine for record in records.values()}))
    lines = ["", "## How the rows were made", ""]
    lines += [f"{number}. `{command}`" for number, command in enumerate(commands, 1)]
    lines += ["", f"Machine: {machines}; other work ran on it. A + behind a revision: with uncommitted changes.", ""]
    rows = [
        (
            record.lines.id,
            f"{record.lines.episodes:,}",
            f"{record.lines.scripted_episodes:,}" if record.lines.scripted_episodes else "-",
            record.lines.seed,
            record.lines.revision,
            f"{record.seconds / 60:.1f}",
            commands.index(record.command) + 1,
        )
        for record in records.values()
    ]
    return "\n".join([*lines, _table(MADE, rows)])


def published_table(all_lines: Sequence[Lines]) -> str:
    """Published scores with a mark on those that random actions beat."""
    known = {lines.id: lines for lines in all_lines}
    names = list(next(iter(published().values())))
    rows = [
        (id, show(known[id].random.success), *(_marked(scores[name], known[id]) for name in names), best(known[id]))
        for id, scores in published().items()
        if id in known
    ]
    return _table(("world", "random", *names, "best known"), rows)


def beaten(scores: Scores, lines: Lines) -> list[str]:
    """The architectures whose published score lies below random actions' success."""
    return [name for name, score in scores.items() if score is not None and score < _floor(lines)]


def as_csv(records: Records) -> str:
    """One flat row a world."""
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for record in records.values():
        row = _flat(record.lines) | {"command": record.command, "machine": record.machine}
        if writer is None:
            writer = csv.DictWriter(text, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return text.getvalue()


def show(value: Measure) -> str:
    """Three decimals, and the error where there is one; a dash for what nobody knows."""
    if math.isnan(value.mean):
        return "-"
    return f"{value.mean:.3f}" + (f" ± {value.error:.3f}" if value.error else "")


def best(lines: Lines) -> str:
    """The best success, or what encloses it."""
    return _range(lines.lower.success, lines.upper.success)


def _world_row(lines: Lines) -> tuple[str, ...]:
    kinds = dict.fromkeys((lines.lower.kind, lines.upper.kind))
    returns = _range(lines.lower.returns, lines.upper.returns)
    shown = (show(lines.random.success), best(lines), show(lines.random.returns), returns)
    return lines.id, *shown, "; ".join(kinds), str(lines.time_limit)


def _discounted_row(lines: Lines) -> tuple[str, ...]:
    found = lines.discounted or {}
    return lines.id, f"{found['discount']:g}", f"{found['lower']:.4f}", f"{found['upper']:.4f}"


def _range(lower: Measure, upper: Measure) -> str:
    same = f"{lower.mean:.3f}" == f"{upper.mean:.3f}"
    return show(lower) if same else f"{show(lower)} to {show(upper)}"


def _marked(score: float | None, lines: Lines) -> str:
    """A published score, with a mark where it is not above random."""
    if score is None:
        return ""
    if score < _floor(lines):
        return f"**{score:.4f}** ▼"
    near = score <= lines.random.success.mean + DOUBT * lines.random.success.error
    return f"{score:.4f}{' ≈' if near else ''}"


def _floor(lines: Lines) -> float:
    return lines.random.success.mean - DOUBT * lines.random.success.error


def _flat(lines: Lines) -> dict[str, object]:
    row: dict[str, object] = {"id": lines.id, "time_limit": lines.time_limit}
    for name in LEVELS:
        level = getattr(lines, name)
        for measure in ("success", "returns"):
            value = getattr(level, measure)
            known = not math.isnan(value.mean)
            row[f"{name}_{measure}"], row[f"{name}_{measure}_error"] = (value.mean, value.error) if known else ("", "")
        row[f"{name}_kind"] = level.kind
    for name in ("discount", "lower", "upper"):
        row[f"discounted_{name}".replace("discounted_discount", "discount")] = (lines.discounted or {}).get(name, "")
    counts = {"episodes": lines.episodes, "scripted_episodes": lines.scripted_episodes}
    return row | counts | {"seed": lines.seed, "revision": lines.revision}


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


FILE = Path(__file__).parent / "published.csv"


Scores = Mapping[str, float | None]  # by architecture; None where the text has no value


@cache
def published() -> Mapping[str, Scores]:
    """Scores by id."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row.pop("id"): {name: float(value) if value else None for name, value in row.items()} for row in rows}


@dataclass(frozen=True)
class Record:
    """Lines, and how they came about."""

    lines: Lines
    command: str
    machine: str
    seconds: float


Records = Mapping[str, Record]


def read(path: Path) -> dict[str, Record]:
    """Records by id; none where there is no file yet.

    Raises:
        UserError: the file is something else.
    """
    return read_entries(path, _record, "baselines")


def as_json(records: Records) -> str:
    """The text that `read` reads."""
    entries = {}
    for id, record in records.items():
        made = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)[1:]}
        entries[id] = plain(record.lines) | made
    return json.dumps(entries, indent=1) + "\n"


def _record(id: str, entry: dict[str, Any]) -> Record:
    made = {name: entry.pop(name) for name in ("command", "machine", "seconds")}
    return Record(from_plain(id, entry), **made)
