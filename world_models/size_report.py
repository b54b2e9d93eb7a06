"""What the parameter reports of both world models share: their flags, their table cells, and where they write."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import disk_errors, write_atomic
from dqn_memory.runs.machine import describe_environment
from dqn_memory.runs.settings import parse

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Counting:
    """Flags of a report."""

    actions: int
    format: Literal["md", "json"] = "md"
    """What is printed; messages go to standard error."""
    write: bool = True
    """Write parameters.md and parameters.json."""
    results: str = "results"
    """Folder of the two files."""

    def check(self) -> None:
        """One sentence for what cannot be counted."""
        if self.actions < 1:
            raise UserError(f"--actions {self.actions} must be at least 1")


A = TypeVar("A", bound=Counting)


def publish(
    kind: type[A], module: str, argv: Sequence[str] | None, report: Callable[[A], Numbers],
    markdown: Callable[[Numbers, Sequence[str]], str],
) -> None:  # fmt: skip
    """Count, write, print: a report's whole course."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(kind, argv, prog=f"python -m {module}")
    args.check()
    numbers = report(args)
    pages = {"md": markdown(numbers, origin(module, argv)), "json": json.dumps(numbers, indent=1)}
    if args.write:
        folder = Path(args.results)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for suffix, page in pages.items():
            write_atomic(folder / f"parameters.{suffix}", page.encode())
        print(f"wrote {folder}/parameters.md and {folder}/parameters.json", file=sys.stderr)
    print(pages[args.format].rstrip())


def origin(module: str, argv: Sequence[str]) -> list[str]:
    """Where the numbers come from."""
    facts = describe_environment()
    changed = " (with uncommitted changes)" if facts["revision"] and facts["dirty"] else ""
    return [
        f"command: {shlex.join(['python', '-m', module, *argv])}",
        f"revision: {facts['revision'] or 'unknown'}{changed}",
    ]


def cell(value: object) -> str:
    """A number with its thousands apart, a truth value as a word, anything else as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))
