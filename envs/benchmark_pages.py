"""The benchmark's tables on a terminal and as files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table as RichTable

from envs.benchmark_measures import Value
from envs.errors import UserError


@dataclass(frozen=True)
class Table:
    """Rows of named values under one title, with a note that defines the columns."""

    title: str
    note: str
    rows: list[dict[str, Value]]

    @property
    def columns(self) -> list[str]:
        """Every name that some row has, in the order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def terminal(table: Table) -> RichTable:
    """Aligned columns."""
    shown = RichTable(title=table.title, box=SIMPLE, title_justify="left")
    for name in table.columns:
        shown.add_column(name, justify="left" if name == "world" else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(cell(row.get(name)) for name in table.columns))
    return shown


def markdown(facts: Mapping[str, object], tables: Sequence[Table]) -> str:
    """The whole report."""
    lines = ["# Speed of the worlds", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value is not None]
    for table in tables:
        marks = ["---" if name == "world" else "---:" for name in table.columns]
        cells = [table.columns, marks, *([cell(row.get(name)) for name in table.columns] for row in table.rows)]
        lines += ["", f"## {table.title}", "", table.note, "", *("| " + " | ".join(line) + " |" for line in cells)]
    return "\n".join(lines) + "\n"


def write(folder: Path, facts: Mapping[str, object], tables: Sequence[Table]) -> None:
    """Put worlds.md and worlds.json into a folder, each whole or not at all.

    Raises:
        UserError: the system refuses.
    """
    report = {"machine": dict(facts), "tables": [asdict(table) for table in tables]}
    pages = {"worlds.json": json.dumps(report, indent=1) + "\n", "worlds.md": markdown(facts, tables)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            temporary = folder / f".{name}.tmp"
            temporary.write_text(page, encoding="utf-8")
            temporary.replace(folder / name)
    except OSError as error:
        raise UserError(f"--folder {folder} cannot be written: {error.strerror or error}.") from error


def cell(value: Value) -> str:
    """Large numbers whole, small ones with three digits that say something."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float | int):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return value
