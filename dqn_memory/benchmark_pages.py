"""The benchmark's tables on a terminal and as a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table as RichTable

from dqn_memory.benchmark_tables import Table, Value

TEXT = ("world", "architecture", "form")


def rich_tables(tables: Sequence[Table]) -> Group:
    """Aligned columns, one table below the other."""
    return Group(*(_rich_table(table) for table in tables))


def _rich_table(table: Table) -> RichTable:
    shown = RichTable(title=table.title, box=SIMPLE, title_justify="left")
    names = columns(table)
    for name in names:
        shown.add_column(name, justify="left" if name in TEXT else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(cell(row.get(name)) for name in names))
    return shown


def markdown_page(machine: Mapping[str, object], tables: Sequence[Table]) -> str:
    """The whole report."""
    lines = ["# Speed of the core", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items() if value is not None]
    for table in tables:
        lines += ["", f"## {table.title}", "", table.note, "", *_markdown_rows(table)]
    return "\n".join(lines) + "\n"


def _markdown_rows(table: Table) -> list[str]:
    names = columns(table)
    marks = ["---" if name in TEXT else "---:" for name in names]
    cells = [names, marks, *([cell(row.get(name)) for name in names] for row in table.rows)]
    return ["| " + " | ".join(line) + " |" for line in cells]


def columns(table: Table) -> list[str]:
    """Every name that some row has, in the order of first appearance."""
    return list(dict.fromkeys(name for row in table.rows for name in row))


def cell(value: Value) -> str:
    """Three digits that say something; whole numbers whole."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
