"""What published tables say, recomputed: `python -m dqn_memory.study.claims`.

Prints each claim of the four papers with its published and its recomputed figure, and whether they agree, and the
aggregates of Atari 100k from public raw scores; --write FOLDER keeps the pages as claims.md and atari100k.md.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.settings import parse
from dqn_memory.study.papers import verdicts
from dqn_memory.study.papers.atari100k import atari_page
from dqn_memory.study.papers.tables import FOLDER, Tables
from envs.cli import WriteArgs
from envs.files import write_text
from envs.terminal import say

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
    command = shlex.join([*COMMAND, *argv])
    pages = {
        "claims.md": verdicts.claims_page(command, args.tables),
        "atari100k.md": atari_page(command, Tables(args.tables)),
    }
    for name, text in pages.items():
        if args.write is None:
            say(text)
        else:
            write_text(args.write / name, text)
    given = [claim.verdict for several in verdicts.claims(args.tables).values() for claim in several]
    where = "" if args.write is None else f": {args.write / 'claims.md'}, and atari100k.md beside it"
    say(f"{given.count('disagrees')} of {len(given)} figures disagree with the tables{where}")


if __name__ == "__main__":
    main()
