"""A benchmark's tables on a terminal and in files, with the machine that they were measured on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table as RichTable

from dqn_memory.benchmark_tables import Table, Value
from envs.files import disk_errors, write_atomic
from envs.machine import describe_environment

TEXT = (
    "world",
    "architecture",
    "form",
    "preset",
    "device",
    "engine",
    "precision",
    "trees",
    "prior",
    "part",
    "pass",
    "backend",
)


def machine(module: str, argv: Sequence[str]) -> dict[str, object]:
    """What the numbers of `python -m module argv` depend on."""
    facts = describe_environment()
    names = ("cpu", "cores", "torch", "python", "threads", "revision", "dirty", "platform")
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    facts |= {"cores": torch.multiprocessing.cpu_count()}
    command = shlex.join(["python", "-m", module, *argv])
    return {"command": command, "accelerator": cuda, **{name: facts[name] for name in names}}


def write(folder: Path, name: str, title: str, facts: Mapping[str, object], tables: Sequence[Table]) -> None:
    """Put `name`.md and `name`.json into `folder`; a UserError says what the disk refused."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    page = {"machine": facts, "tables": [asdict(table) for table in tables]}
    write_atomic(folder / f"{name}.json", (json.dumps(page, indent=1) + "\n").encode())
    write_atomic(folder / f"{name}.md", markdown_page(title, facts, tables).encode())


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


def markdown_page(title: str, facts: Mapping[str, object], tables: Sequence[Table]) -> str:
    """The whole report."""
    lines = [f"# {title}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value is not None]
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
