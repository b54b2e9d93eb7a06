"""What the four papers claim, against their own tables: `python -m dqn_memory.study.claims`.

Prints each claim with its published and its recomputed figure, and whether they agree; --write FOLDER keeps the page
as claims.md.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.settings import parse
from dqn_memory.study.papers import verdicts
from dqn_memory.study.papers.tables import FOLDER
from envs.cli import WriteArgs
from envs.files import write_text

COMMAND = ("python", "-m", "dqn_memory.study.claims")


@dataclass(frozen=True)
class Args(WriteArgs):
    """Recompute the published claims."""

    tables: Path = FOLDER
    """Folder of the published tables; parameters.csv is looked for in the folder above it."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Recompute, print or write, and say how many agree."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog=shlex.join(COMMAND))
    page = verdicts.claims_page(shlex.join([*COMMAND, *argv]), args.tables)
    given = [claim.verdict for several in verdicts.claims(args.tables).values() for claim in several]
    if args.write is None:
        print(page)
    else:
        write_text(args.write / "claims.md", page)
    where = "" if args.write is None else f": {args.write / 'claims.md'}"
    print(f"{given.count('disagrees')} of {len(given)} figures disagree with the tables{where}")


if __name__ == "__main__":
    main()
