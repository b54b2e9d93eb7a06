"""How large GLAM is, part by part: `python -m world_models.glam.parameters`.

Counts every preset and every sequence form, tells parameters that learn from frozen ones and from those that no loss
reaches, and holds the preset `code` against what was counted on the released classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dqn_memory.runs.errors import one_line_errors
from world_models.glam.config import FORMS, PRESETS, ModelConfig
from world_models.glam.sizes import RELEASED, RELEASED_PER_ACTION, Size, agent_sizes, build, sizes, total
from world_models.size_report import Counting, cell, publish, table

GAMES = (3, 4, 6, 9, 18)  # numbers of actions for which totals are printed


@dataclass(frozen=True)
class Args(Counting):
    """Count the parameters of the world model and of its agent."""

    actions: int = 18
    """Actions A of the game (18: all of Atari's)."""
    results: str = "results/glam"
    """Folder of the two files."""


def report(args: Args) -> dict[str, Any]:
    """All numbers as plain values."""
    presets = {name: sizes(build(config, args.actions)) for name, config in PRESETS.items()}
    return {
        "actions": args.actions,
        "presets": {name: [_plain(row) for row in rows] for name, rows in presets.items()},
        "formulas": {name: _formula(config) for name, config in PRESETS.items()},
        "totals_by_actions": {name: {str(n): total(c, n) for n in GAMES} for name, c in PRESETS.items()},
        "released": [_against(row, args.actions) for row in presets["code"]],
        "forms": {name: [_plain(row) for row in sizes(build(_form(name), args.actions))] for name in FORMS},
        "agent": [_plain(row) for row in agent_sizes(args.actions, PRESETS["paper"])],
        "agent_formula": _line(*(agent_sizes(n, PRESETS["paper"])[-1].parameters for n in (1, 2))),
    }


def _form(name: str) -> ModelConfig:
    return replace(PRESETS["paper"], sequence=name)  # type: ignore[arg-type]


def _plain(row: Size) -> dict[str, Any]:
    return {**asdict(row), "parameters": row.parameters}


def _formula(config: ModelConfig) -> dict[str, int]:
    return _line(total(config, 1), total(config, 2))


def _line(one: int, two: int) -> dict[str, int]:
    """Base and slope of a count that is linear in the number of actions."""
    return {"base": 2 * one - two, "per_action": two - one}


def _against(row: Size, actions: int) -> dict[str, Any]:
    per_action = RELEASED_PER_ACTION * actions
    released = sum(RELEASED.values()) if row.part == "total" else RELEASED[row.part]
    released += per_action if row.part in ("stem", "total") else 0
    return {"part": row.part, "released": released, "ours": row.parameters, "equal": released == row.parameters}


def markdown(numbers: dict[str, Any], origin: Sequence[str]) -> str:
    """The whole report as a page."""
    pages = [
        "# GLAM's size",
        "\n".join(f"- {line}" for line in origin),
        f"A = {numbers['actions']} actions. *Trained* parameters get a gradient from the loss of a random sequence, "
        "*frozen* ones ask for none, and *unreached* ones ask for a gradient that never comes. Buffers are the "
        "running statistics of batch normalisation, and no parameters.",
        "## World model: the three presets",
    ]
    for name, rows in numbers["presets"].items():
        pages += [f"### {name}: {_sum(numbers['formulas'][name])}", _sizes_table(rows)]
    totals = [[name, *map(cell, row.values())] for name, row in numbers["totals_by_actions"].items()]
    pages += [
        table(["preset", *(f"A = {n}" for n in GAMES)], totals),
        "## `code` beside the released classes",
        table(["part", "released", "ours", "equal"], [[cell(v) for v in r.values()] for r in numbers["released"]]),
        "## Preset `paper` under every sequence form",
        table(FORM_COLUMNS, [_form_cells(name, rows) for name, rows in numbers["forms"].items()]),
        f"## Agent: {_sum(numbers['agent_formula'])}",
        _sizes_table(numbers["agent"]),
        "The slow critic is an average of the critic and is not trained.",
    ]
    return "\n\n".join(pages) + "\n"


FORM_COLUMNS = ["form", "reads the features", "total", "trained", "frozen", "unreached"]


def _form_cells(name: str, rows: list[dict[str, Any]]) -> list[str]:
    reads = [row for row in rows if any(kind in row["part"] for kind in ("Mamba", "Transformer"))]
    last = rows[-1]
    counts = (sum(row["parameters"] for row in reads), *(last[k] for k in ("parameters", *FORM_COLUMNS[3:])))
    return [name, *map(cell, counts)]


def _sizes_table(rows: list[dict[str, Any]]) -> str:
    columns = ["part", "parameters", "trained", "frozen", "unreached", "buffers"]
    return table(columns, [[cell(row[column]) for column in columns] for row in rows])


def _sum(formula: dict[str, int]) -> str:
    return f"{formula['base']:,} + {formula['per_action']:,} A"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count, write, print."""
    publish(Args, "world_models.glam.parameters", argv, report, markdown)


if __name__ == "__main__":
    main()
