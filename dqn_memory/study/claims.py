"""What the four papers claim, against their own tables: `python -m dqn_memory.study.claims`.

Writes results/claims.md: each claim with its published and its recomputed figure, and whether they agree.
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
from envs.files import write_text

COMMAND = ("python", "-m", "dqn_memory.study.claims")


@dataclass(frozen=True)
class Args:
    """Recompute the published claims and write them as a page; an earlier page is replaced."""

    published: str = str(FOLDER)
    """Folder of the published tables; results/parameters.csv is looked for in the folder above it."""
    results: str = "results"
    """Folder of the page, claims.md."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Recompute, write, and say how many agree."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog=shlex.join(COMMAND))
    found, page = verdicts.claims(Path(args.published)).values(), Path(args.results) / "claims.md"
    write_text(page, verdicts.claims_page(shlex.join([*COMMAND, *argv]), Path(args.published)))
    given = [claim.verdict for several in found for claim in several]
    print(f"{given.count('disagrees')} of {len(given)} figures disagree with the tables: {page}")


if __name__ == "__main__":
    main()
