"""The parameter report as text: aligned columns, CSV, and a Markdown page that checks the paper's Table 3."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from dqn_memory.analysis.size import world_row
from dqn_memory.network import NetworkConfig
from dqn_memory.parameter_rows import Row, make_row
from dqn_memory.table3 import MISSING_COLUMNS, PRINTED, PRINTED_COLUMNS, printed

COLUMNS = tuple(field.name for field in fields(Row))
TABLE3_WORLDS = (*PRINTED, "Gridverse/Keydoor-5x5-v0")  # the paper prints no count for Keydoor
TABLE3_ARCHITECTURES = (*PRINTED_COLUMNS, *MISSING_COLUMNS)

DEFINITIONS = """\
- **published**: the count as the reference prints it: trainable parameters and, for each attention
  layer, the K x K cells of a causal mask that it keeps as a frozen parameter. Blank where the paper and
  its reference have no such network.
- **trainable**, **frozen**: parameters that an optimiser changes, and those that none does. **buffers**:
  elements of tables that are not parameters (positions, distances).
- **flops**: floating-point operations of one forward pass over a full window of K observations, batch 1:
  two for each multiply-add of linear maps, recurrences and gates, and 4 K^2 D for each attention (all K
  x K scores, masked ones included). Look-ups, biases, activations, softmax, LayerNorm and priors are not
  counted.
- **width**: D. **head_width**: hidden units of the Q head. **embedding ... head**: how the trainable
  parameters divide.
- **ms_per_update**: median time of one update with the learner's defaults on full windows, if asked for."""


def text_page(rows: Sequence[Row]) -> str:
    """Aligned columns with a header; columns without any value are left out."""
    shown = [name for name in COLUMNS if any(getattr(row, name) is not None for row in rows)]
    cells = [shown, *([_cell(getattr(row, name)) for name in shown] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(shown))]
    left = {"world", "architecture"}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(shown, line, widths, strict=True)
        ).rstrip()
        for line in cells
    )


def csv_page(rows: Sequence[Row], origin: Sequence[str] = ()) -> str:
    """Comma-separated values, an absent one empty; `origin` lines stand above as comments."""
    stream = io.StringIO()
    stream.writelines(f"# {line}\n" for line in origin)
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue()


def markdown_page(rows: Sequence[Row], origin: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The whole report: definitions, Table 3 and its reconciliation, the rows with alike worlds together."""
    sections = [
        "# Parameters",
        "\n".join(f"- {line}" for line in origin),
        "## What is counted\n\n" + DEFINITIONS,
        table3_section(),
        reconciliation_section(),
        *_size_sections(rows),
    ]
    if notes:
        sections.append("## Left out\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(sections) + "\n"


def table3_section() -> str:
    """The paper's count beside ours in every cell, and the columns that the paper leaves out."""
    cells = [_table3_cell(world, name) for world in TABLE3_WORLDS for name in TABLE3_ARCHITECTURES]
    matching = sum(cell.endswith("✓") for cell in cells)
    total = sum(printed(world, name) is not None for world in TABLE3_WORLDS for name in TABLE3_ARCHITECTURES)
    lines = [[world, *(_table3_cell(world, a) for a in TABLE3_ARCHITECTURES)] for world in TABLE3_WORLDS]
    return (
        "## The DBGFQN paper's Table 3\n\n"
        f"Paper / ours, for K = 50 and the causal prior: {matching} of {total} printed cells match. "
        "A dash is a cell that the paper does not print; its DBGFQN and DTQN4 columns are filled in here.\n\n"
        + _markdown_table(["world", *(name.upper() for name in TABLE3_ARCHITECTURES)], lines)
    )


def reconciliation_section() -> str:
    """What a published count is made of: trainable parameters and mask cells."""
    lines = []
    for world in TABLE3_WORLDS:
        rows = [_table3_row(world, name) for name in TABLE3_ARCHITECTURES]
        lines.append([world, *(f"{r.trainable:,} + {(r.published or 0) - r.trainable:,}" for r in rows)])
    return (
        "## Trainable parameters and causal masks\n\n"
        "Published = trainable + masks; the masks are 2 layers x 50 x 50 cells that never learn. "
        "Here they are not parameters, and not stored.\n\n"
        + _markdown_table(["world", *(name.upper() for name in TABLE3_ARCHITECTURES)], lines)
    )


def _table3_row(world: str, architecture: str) -> Row:
    return make_row(world, NetworkConfig(architecture=architecture))


def _table3_cell(world: str, architecture: str) -> str:
    theirs, ours = printed(world, architecture), _table3_row(world, architecture).published
    if theirs is None:
        return f"– / {ours:,}"
    return f"{theirs:,} / {ours:,} {'✓' if theirs == ours else '✗'}"


def _size_sections(rows: Sequence[Row]) -> Iterable[str]:
    """One table for all worlds whose rows are the same."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.world, []).append(row)
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for world, members in groups.items():
        key = tuple(tuple(_cell(getattr(row, name)) for name in COLUMNS[1:]) for row in members)
        alike.setdefault(key, []).append(world)
    for lines, worlds in alike.items():
        sizes = world_row(worlds[0])
        vocabulary = f", V = {sizes.vocabulary}" if sizes.kind == "discrete" else ""
        title = f"## {sizes.kind.capitalize()}, d = {sizes.components}{vocabulary}, A = {sizes.num_actions}"
        yield f"{title}\n\n{', '.join(worlds)}\n\n{_markdown_table(COLUMNS[1:], lines)}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))
