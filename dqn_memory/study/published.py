"""Atari 100k, recomputed from public raw scores: `python -m dqn_memory.study.published`.

Prints a table of aggregates on the human scale, with intervals where there are runs; --write FOLDER keeps the page as
atari100k.md.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.settings import parse
from dqn_memory.study.papers.atari100k import atari_page
from dqn_memory.study.papers.tables import FOLDER, Tables
from envs.cli import WriteArgs
from envs.files import write_text

COMMAND = ("python", "-m", "dqn_memory.study.published")


@dataclass(frozen=True)
class Args(WriteArgs):
    """Recompute Atari 100k from public raw scores."""

    tables: Path = FOLDER
    """Folder of the published tables and raw scores."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Recompute, print or write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog=shlex.join(COMMAND))
    page = atari_page(shlex.join([*COMMAND, *argv]), Tables(args.tables))
    if args.write is None:
        print(page)
    else:
        write_text(args.write / "atari100k.md", page)
        print(f"wrote {args.write / 'atari100k.md'}")


if __name__ == "__main__":
    main()
