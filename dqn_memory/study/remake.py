"""Make every table and picture in results/ again from the raw files beside it: `python -m dqn_memory.study.remake`.

Reports of studies, tables and curves of kept runs, pages of benchmarks, sizes, baselines and claims. Nothing is played,
trained or timed. What cannot be made from raw files is named with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.runs.errors import UserError, near_names, one_line_errors
from dqn_memory.runs.settings import Repeatable, parse
from dqn_memory.study.remaking import units, unmade


@dataclass(frozen=True)
class Args:
    """Make tables and pictures again from the raw files beside them."""

    results: str = "results"
    """Folder of the raw files."""
    folder: str = ""
    """Where what is made goes, under the same names (empty: where it was)."""
    only: Repeatable = ()
    """Steps to take, such as studies/smoke (none given: all)."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """One step after the other, each with the files it made."""
    args = parse(Args, argv, prog="python -m dqn_memory.study.remake")
    results, target = Path(args.results), Path(args.folder or args.results)
    steps = {unit.name: unit for unit in units(results)}
    for name in args.only:
        if name not in steps:
            raise UserError(near_names("step of --only", name, steps))
    left = unmade(results)
    for name in args.only or steps:
        steps[name].make(results, target)
        print(f"made again: {name} ({len(steps[name].files)} files before)", flush=True)
    for name, why in left.items():
        print(f"not made again: {name}: {why or 'no step makes it'}")


if __name__ == "__main__":
    main()
