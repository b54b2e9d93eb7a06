"""What searches without a memory have found, as a file and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envs.files import read_entries

HEAD = """# How far one gets without a memory

The best policy from the newest observation alone that a search found: a table with one action for every look of an
observation, and a table of chances that begins at it. Both are lower bounds on the best policy of their kind.
`reached`: how many restarts of the search for success, or for return, ended with the best value that it found. Each
number is the best of both searches, and the two numbers need not be one policy's. Where starts are few and chance ends
with them, numbers are exact; elsewhere they are means of fresh episodes.

Such a policy is not without any past: the place, the speed and the direction that it sees are what it has done before,
and a table can make them say what it has seen. Where it comes near the best known player, a world does not show that an
agent remembers; there, only the number of steps or another world does.
"""


@dataclass(frozen=True)
class Found:
    """Success and return of the best table and of the best chances, as one of the two was searched for."""

    table: list[float]
    chances: list[float]
    reached: int


@dataclass(frozen=True)
class Record:
    """One world's searches, and how they came about."""

    found: dict[str, Found]  # by what was searched for
    looks: int
    exact: bool
    restarts: int
    episodes: int | None
    time_limit: int
    seed: int
    command: str
    revision: str
    machine: str
    seconds: float

    def best(self, name: str) -> float:
        """The best success or return, of a table or of chances, whatever they were searched for."""
        return max(self.best_of(name, "table"), self.best_of(name, "chances"))

    def best_of(self, name: str, form: Literal["table", "chances"]) -> float:
        """The same of one form: a search for success may find a better return than that for return, too."""
        place = list(self.found).index(name)
        return max(float(getattr(found, form)[place]) for found in self.found.values())


def read(path: Path) -> dict[str, Record]:
    """Records by world; none where there is no file yet.

    Raises:
        UserError: the file is something else.
    """
    return read_entries(path, _record, "memoryless policies")


def _record(_: str, entry: dict[str, Any]) -> Record:
    found = entry.pop("found")
    if not isinstance(found, dict):
        raise TypeError("no table")
    return Record(found={name: Found(**part) for name, part in found.items()}, **entry)


def in_words(name: str, record: Record) -> str:
    """Both best values and how firm they are."""
    parts = [
        f"best {measure} {record.best(measure):.3f} ({part.reached} of {record.restarts} restarts reach its table)"
        for measure, part in record.found.items()
    ]
    return f"{name} without a memory: {', '.join(parts)}"


def markdown(records: Mapping[str, Record]) -> str:
    """The whole page."""
    titles = ("world", "success of a table", "of chances", "reached", "return of a table", "of chances", "reached")
    lines = [HEAD, *_rows(titles)]
    for name, record in records.items():
        cells = [name]
        for measure, found in record.found.items():
            cells += [f"{record.best_of(measure, 'table'):.3f}", f"{record.best_of(measure, 'chances'):.3f}"]
            cells.append(f"{found.reached} of {record.restarts}")
        lines += _row(cells)
    lines += ["", "## How the rows were made", ""]
    lines += _rows(("world", "looks", "judged by", "time limit", "seed", "revision", "minutes", "machine", "command"))
    for name, record in records.items():
        judged = "every start" if record.exact else f"{record.episodes:,} episodes"
        lines += _row((
            name, str(record.looks), judged, str(record.time_limit), str(record.seed), record.revision,
            f"{record.seconds / 60:.1f}", record.machine, f"`{record.command}`",
        ))  # fmt: skip
    lines += [
        "",
        "Minutes on the wall of machines that had other work. A + behind a revision: with uncommitted changes.",
    ]
    return "\n".join(lines) + "\n"


def _rows(titles: tuple[str, ...]) -> list[str]:
    return [*_row(titles), *_row(["---"] * len(titles))]


def _row(cells: list[str] | tuple[str, ...]) -> list[str]:
    return [f"| {' | '.join(cells)} |"]
