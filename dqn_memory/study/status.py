"""How far a study is: `python -m dqn_memory.study.status smoke`, while it runs or after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from dqn_memory.runs.errors import one_line_errors
from dqn_memory.study.overview import overview
from dqn_memory.study.place import place_of
from dqn_memory.study.store import Study


@dataclass(frozen=True)
class Args:
    """Show how far a study is; nothing is changed."""

    study: tyro.conf.Positional[Path]
    """The study's folder, its name where it is in runs/studies, or the TOML file that study.run was given."""
    all: bool = False
    """Show every run, also of a large study."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read and show."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.status")
    Console().print(overview(Study.open(place_of(args.study)), args.all))


if __name__ == "__main__":
    main()
