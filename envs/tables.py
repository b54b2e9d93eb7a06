"""Tables of results as Markdown, CSV and terminal text, and pages of tables with the origin of their numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.console import one_line, say
from envs.errors import UserError
from envs.files import make_folder, parse_json, read_bytes, write_text
from envs.markup import escape, latex, prose, without_tags

Value = str | int | float | bool | None
Section = dict[str, Any]  # "machine": facts by name; "tables": a list of title, note and rows


def format_value(value: Value, spec: str | None = None) -> str:
    """Format a cell: numbers by `spec`, else 100 and above as integers and smaller ones with three digits."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if math.isnan(value):
        return "-"
    if spec or isinstance(value, int):
        return format(value, spec or ",")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]  # numbers are formatted by `format_value`
    title: str = ""  # heading of the table on a page
    note: str = ""  # meaning of the columns, between heading and table
    formats: Mapping[str, str] = field(default_factory=dict)  # by column, such as ".3f"

    @classmethod
    def from_records(
        cls,
        records: Iterable[Mapping[str, Value]],
        title: str = "",
        note: str = "",
        formats: Mapping[str, str] | None = None,
    ) -> Table:
        """Make a table from rows that name their values; columns are in the order of first appearance."""
        records = list(records)
        columns = list(dict.fromkeys(name for record in records for name in record))
        return cls(columns, [[record.get(name) for name in columns] for record in records], title, note, formats or {})

    def records(self) -> list[dict[str, Value]]:
        """Return each row as a dict by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def replace_rows(self, key: str, records: Sequence[Mapping[str, Value]]) -> Table:
        """Replace the rows that have the same `key` as a record, add the other records, and sort all rows by `key`."""
        replaced = {record[key] for record in records}
        others = [record for record in self.records() if record[key] not in replaced]
        ordered = sorted([*others, *records], key=lambda record: str(record[key]))
        return Table.from_records(ordered, self.title, self.note, self.formats)

    def markdown(self) -> str:
        """Write the rows as Markdown, numbers to the right and texts escaped, without title and note."""
        marks = ["---:" if _numeric(values) else "---" for values in self._values()]
        formats = [self.formats.get(name) for name in self.columns]
        body = [[_cell(*cell) for cell in zip(row, formats, strict=True)] for row in self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in (map(escape, self.columns), marks, *body))

    def csv(self, origin: Sequence[str] = ()) -> str:
        """Write comma-separated values, unformatted; `origin` lines come first, as comments."""
        stream = io.StringIO()
        stream.writelines(f"# {line}\n" for line in origin)
        csv.writer(stream, lineterminator="\n").writerows([self.columns, *self.rows])
        return stream.getvalue()

    def latex(self) -> str:
        """Write a LaTeX table for the package booktabs, texts escaped, with the note as a comment."""
        formats = [self.formats.get(name) for name in self.columns]
        rows = [self.columns, *([*map(format_value, row, formats)] for row in self.rows)]
        head, *body = (f"{' & '.join(map(latex, row))} \\\\" for row in rows)
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}"
        lines = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([f"% {one_line(self.note)}", *lines]) + "\n"

    def text(self) -> str:
        """Align the columns for a terminal; leave out columns without a value."""
        columns = []
        for name, values in zip(self.columns, self._values(), strict=True):
            if any(value is not None for value in values):
                cells = [
                    one_line(text)
                    for text in (name, *(format_value(value, self.formats.get(name)) for value in values))
                ]
                width = max(map(len, cells))
                columns.append([cell.rjust(width) if _numeric(values) else cell.ljust(width) for cell in cells])
        lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
        return "\n".join([*([self.title, ""] if self.title else []), *lines])

    def _values(self) -> list[list[Value]]:
        """List the values of each column."""
        return [[row[index] for row in self.rows] for index in range(len(self.columns))]


def _cell(value: Value, spec: str | None) -> str:
    """Write a cell in Markdown."""
    return escape(value) if isinstance(value, str) else format_value(value, spec)


def _numeric(values: Sequence[Value]) -> bool:
    """Tell whether a column has no text."""
    return not any(isinstance(value, str | bool) for value in values)


def origin(module: str, argv: Sequence[str], **facts: Value) -> dict[str, Value]:
    """Return the origin of numbers: the command `python -m module argv`, and facts such as seed and machine."""
    return {"command": shlex.join(["python", "-m", module, *argv]), **facts}


def tables_page(title: str, facts: Mapping[str, Value], tables: Iterable[Table]) -> str:
    """Write a page: heading, facts as a list, every table below its title and note."""
    shown = {name: escape(value) if isinstance(value, str) else value for name, value in facts.items()}
    listed = [f"- {name}: {value}" for name, value in shown.items() if value is not None]
    lines = [f"# {prose(title)}", *(["", *listed] if listed else [])]
    for table in tables:
        lines += [
            "",
            f"## {prose(table.title)}",
            "",
            *([without_tags(table.note), ""] if table.note else []),
            table.markdown(),
        ]
    return "\n".join(lines) + "\n"


def write_page(
    folder: Path, name: str, title: str, facts: Mapping[str, Value], tables: Sequence[Table], section: str = ""
) -> None:
    """Write `name`.md for readers and `name`.json with the unrounded numbers; `facts` are their `origin`.

    With a `section`, only that section of the page is replaced; the others keep their own facts.
    """
    measured: Section = {"machine": dict(facts), "tables": [_plain(table) for table in tables]}
    path = folder / f"{name}.json"
    if section:
        sections = read_page(path).get("sections", {}) | {section: measured}
        content = {"title": title, "sections": dict(sorted(sections.items()))}
    else:
        content = {"title": title, **measured}
    write_text(path, json.dumps(content, indent=1) + "\n")
    write_text(path.with_suffix(".md"), stored_page(content))


def publish(
    tables: Iterable[Table], folder: Path | None, name: str, title: str, facts: Mapping[str, Value], section: str = ""
) -> None:
    """Print and write each table as soon as it is made, so that a later failure loses none of the earlier tables.

    A table with the title of an earlier one replaces it. Without a folder nothing is written. The other arguments are
    those of `write_page`.
    """
    if folder is not None:
        make_folder(folder)
    made: dict[str, Table] = {}
    for table in tables:
        note = "" if table.title in made else table.note
        say("\n\n".join(filter(None, (table.text(), note))), end="\n\n")
        made[table.title] = table
        if folder is not None:
            write_page(folder, name, title, facts, list(made.values()), section)
    if folder is not None and made:
        say(f"wrote {folder / name}.md and {folder / name}.json" + (f", section {section!r}" if section else ""))


def remake_page(path: Path) -> str | None:
    """Make the Markdown of a page from its JSON file; None if the file is no page of tables."""
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return None
    paged = isinstance(content, dict) and "title" in content and not {"tables", "sections"}.isdisjoint(content)
    return stored_page(read_page(path)) if paged else None


def read_page(path: Path) -> dict[str, Any]:
    """Read the numbers of a page that `write_page` wrote; nothing if there is no file yet."""
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = parse_json(read_bytes(path))
        stored_page(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} does not hold a page of tables; move it away or choose another folder") from None
    return content


def read_tables(path: Path) -> dict[str, Table]:
    """Read the tables of a page without sections by their titles; none if there is no file yet."""
    return {plain["title"]: _table(plain) for plain in read_page(path).get("tables", ())}


def stored_page(content: Mapping[str, Any]) -> str:
    """Write the Markdown of a page and its sections from their numbers."""
    parts = {content["title"]: content}
    if "sections" in content:
        parts = {f"{content['title']}: {key}": part for key, part in content["sections"].items()}
    return "\n".join(tables_page(title, part["machine"], map(_table, part["tables"])) for title, part in parts.items())


def _plain(table: Table) -> dict[str, Any]:
    formats = {"formats": dict(table.formats)} if table.formats else {}
    return {"title": table.title, "note": table.note, **formats, "rows": table.records()}


def _table(plain: Mapping[str, Any]) -> Table:
    return Table.from_records(plain["rows"], plain["title"], plain["note"], plain.get("formats"))
