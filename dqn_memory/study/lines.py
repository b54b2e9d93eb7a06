"""Scores of random and of best play that a study's author gives for worlds of which the suite itself knows none."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.toml import from_toml


@dataclass(frozen=True)
class Line:
    """Scores of a world that a report sets its runs' against: success where the world tells it, else return."""

    random: float | None = None
    """Of random actions."""
    best: float | None = None
    """Of the best player known."""

    def check(self, where: str) -> None:
        """One sentence for what is no scale."""
        if self.random is None or self.best is None:
            raise UserError(f"{where} needs both random = ... and best = ..., the scores that count as 0 and as 1")
        if not (math.isfinite(self.random) and math.isfinite(self.best) and self.random < self.best):
            raise UserError(f"{where}: best {self.best} must be above random {self.random}, and both finite")


@dataclass(frozen=True)
class Lines:
    """What of a definition a report reads."""

    lines: dict[str, Line] = field(default_factory=dict)


def read_lines(path: Path) -> dict[str, Line]:
    """The lines in the definition that a study or a record keeps; none where the file is lost, as reports then say.

    Nothing else of it is read: a report is made of runs, whatever today's definitions may say.
    """
    try:
        kept = tomllib.loads(path.read_text(encoding="utf-8")).get("lines", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    lines = from_toml(Lines, tomli_w.dumps({"lines": kept}), str(path)).lines
    for world, line in lines.items():
        line.check(f"{path}: lines.{world}")
    return lines
