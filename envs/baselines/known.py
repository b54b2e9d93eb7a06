"""The two lines that a score is read against: a uniformly random policy, and the best that is known.

The numbers were computed by `python -m envs.baselines` and are shipped in `lines.toml`; reading them computes nothing.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

SHIPPED = Path(__file__).parent / "lines.toml"
LEVELS = ("random", "lower", "upper")
ORIGIN = ("command", "machine", "seconds")  # how the numbers came about; not shipped
DOUBT = 2.0  # standard errors within which two numbers are not told apart


@dataclass(frozen=True)
class Measure:
    """A mean and its standard error, which is 0 where nothing was sampled."""

    mean: float
    error: float = 0.0


@dataclass(frozen=True)
class Level:
    """How well one kind of player does. `kind` says what sort of number it is."""

    success: Measure
    returns: Measure  # undiscounted
    kind: str


UNKNOWN = Level(Measure(math.nan), Measure(math.nan), "")  # a bound that nobody knows; files leave it out
BOUNDLESS = {"lower": UNKNOWN, "upper": UNKNOWN}


@dataclass(frozen=True)
class Lines:
    """What is known of an environment: `lower` and `upper` bound the best expected success and return.

    The best success and the best return need not be one player's. Both bounds are UNKNOWN where nobody has a player.
    """

    id: str
    time_limit: int
    random: Level
    lower: Level
    upper: Level
    episodes: int  # of every sampled number but those of a scripted player
    scripted_episodes: int  # 0 where there is none
    seed: int
    revision: str
    discounted: Mapping[str, float] | None = None  # discount, and bounds lower and upper on the discounted value
    command: str = ""
    machine: str = ""
    seconds: float = 0.0

    @property
    def bounded(self) -> bool:
        """Tell whether anything is known but random actions."""
        return self.lower.kind != UNKNOWN.kind

    @property
    def words(self) -> str:
        """Put the success in words: "random 0.45, best known 1.00", or "... 0.35 to 0.99" where it is only bounded."""
        if not self.bounded:
            return f"random {self.random.success.mean:.2f}"
        lower, upper = (f"{level.success.mean:.2f}" for level in (self.lower, self.upper))
        best = upper if lower == upper else f"{lower} to {upper}"
        return f"random {self.random.success.mean:.2f}, best known {best}"


def lines(id: str) -> Lines | None:
    """Return the shipped lines of an environment with its default options; None where there are none."""
    return shipped().get(id.removeprefix("envs:"))


@cache
def shipped() -> Mapping[str, Lines]:
    """Return all shipped lines by id."""
    return parse(SHIPPED.read_text(encoding="utf-8"))


def relative(score: float, lines: Lines) -> str:
    """Put the two lines in words, with a remark where a success rate does not rise above the lower one."""
    return lines.words if above(score, lines) else f"{lines.words}: not above random"


def above(score: float, lines: Lines) -> bool:
    """Tell whether a success rate is above that of random actions by more than the latter's error."""
    return score > lines.random.success.mean + DOUBT * lines.random.success.error


def baseline_summary(score: float, id: str, options: Mapping[str, Any] | None = None) -> str:
    """Return " (random 0.45, best known 1.00)" for a score; empty where no lines are known for such options."""
    known = None if options else lines(id)
    return "" if known is None else f" ({relative(score, known)})"


def as_toml(all_lines: Mapping[str, Lines]) -> str:
    """Write the text of `lines.toml`."""
    entries = {id: plain(lines) for id, lines in all_lines.items()}
    return tomli_w.dumps({id: {k: v for k, v in entry.items() if k not in ORIGIN} for id, entry in entries.items()})


def parse(text: str) -> dict[str, Lines]:
    """Read the text of `lines.toml`."""
    return {id: from_plain(id, entry) for id, entry in tomllib.loads(text).items()}


def from_plain(id: str, entry: Mapping[str, Any]) -> Lines:
    """Make lines from plain dicts and numbers, as `plain` gives them."""
    fields: dict[str, Any] = {name: _level(value) if name in LEVELS else value for name, value in entry.items()}
    return Lines(id=id, **(fields if {"lower", "upper"} & set(fields) else fields | BOUNDLESS))


def plain(lines: Lines) -> dict[str, Any]:
    """Turn lines into plain dicts and numbers, without the id."""
    entry = dataclasses.asdict(lines)
    empty = {"id"} if lines.bounded else {"id", *BOUNDLESS}
    return {name: value for name, value in entry.items() if name not in empty and value is not None}


def _level(entry: Mapping[str, Any]) -> Level:
    return Level(Measure(**entry["success"]), Measure(**entry["returns"]), entry["kind"])
