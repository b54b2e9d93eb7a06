"""Reference scores of environments: the score of random actions, and bounds on the best score.

`python -m envs.baselines` computes them and writes a page and a JSON file. The JSON file of the registered
environments is shipped as `reference.json`; scripts read it to print reference scores beside their own.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from envs.errors import UserError
from envs.files import parse_json, read_bytes
from envs.popgym.ladders import RUNGS
from envs.tables import Table

TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SHIPPED = Path(__file__).with_suffix(".json")
LEVELS = ("random", "lower", "upper")
LESS = {  # lines between random actions and a perfect memory: what their players know, in a sentence
    "observation": "newest observation alone",
    "clock": "observation and clock",
    "one step": "one remembered step",
}
DOUBT = 2.0  # a difference within this number of standard errors is not significant


@dataclass(frozen=True)
class Measure:
    """A mean and its standard error, which is 0 for exact numbers."""

    mean: float
    error: float = 0.0


@dataclass(frozen=True)
class Level:
    """Success and return of one player. `kind` names the method behind the numbers."""

    success: Measure
    returns: Measure  # undiscounted
    kind: str


UNKNOWN = Level(Measure(math.nan), Measure(math.nan), "")  # an unknown bound; files omit it
BOUNDLESS = {"lower": UNKNOWN, "upper": UNKNOWN}


@dataclass(frozen=True)
class ReferenceScores:
    """The reference scores of an environment: `lower` and `upper` bound the best expected success and return.

    The best success and the best return may be of different players. Both bounds are UNKNOWN without a player.
    """

    id: str
    time_limit: int
    random: Level
    lower: Level
    upper: Level
    episodes: int  # episodes of sampled numbers, except those of a scripted player
    scripted_episodes: int  # episodes of a scripted player; 0 without one
    seed: int
    revision: str
    discounted: Mapping[str, float] | None = None  # discount, and bounds lower and upper on the discounted value
    command: str = ""
    machine: str = ""
    seconds: float = 0.0
    defines_success: bool = True  # whether the environment tells success; if it does not, scores are returns
    lines: Mapping[str, Level] = field(default_factory=dict)  # by a name of LESS: the best with less than a memory

    @property
    def bounded(self) -> bool:
        """Tell whether bounds are known."""
        return self.lower.kind != UNKNOWN.kind

    def score(self, level: Level) -> Measure:
        """Return the success of a level, or its return if no episode can succeed."""
        return level.success if self.defines_success else level.returns

    @property
    def words(self) -> str:
        """Write the success: "random 0.45, best known 1.00", or "... 0.35 to 0.99" if the bounds differ.

        The lines stand between: "random 0.28, newest observation alone 0.50, ...". Without success all are returns.
        """
        random, lower, upper = (f"{self.score(getattr(self, name)).mean:.2f}" for name in LEVELS)
        if not self.bounded:
            return f"random {random}"
        between = "".join(f", {LESS[name]} {self.score(level).mean:.2f}" for name, level in self.lines.items())
        if self.lines and not self.defines_success:
            return f"random {random}{between}, perfect memory {lower}"
        return f"random {random}{between}, best known {upper if lower == upper else f'{lower} to {upper}'}"

    @property
    def summary(self) -> str:
        """Write the scores of random actions and the best player on one line: success, or returns without success."""
        random, lower, upper = (self.score(getattr(self, name)) for name in LEVELS)
        word = "" if self.defines_success else " return"
        between = "".join(f"{name} {format_measure(self.score(level))}  " for name, level in self.lines.items())
        return f"random{word} {format_measure(random):<16} {between}best{word} {_range(lower, upper)}"


def reference_of(id: str) -> ReferenceScores | None:
    """Return the shipped reference scores of an environment with its default options, or None."""
    return shipped_references().get(id.removeprefix("envs:"))


@cache
def shipped_references() -> Mapping[str, ReferenceScores]:
    """Return all shipped reference scores by id."""
    return read_references(SHIPPED)


def beside_reference(score: float, reference: ReferenceScores) -> str:
    """Write the reference scores, with a remark if a score is not above that of random actions.

    The score is a success rate, or a return if no episode can succeed.
    """
    return reference.words if above_random(score, reference) else f"{reference.words}: not above random"


def above_random(score: float, reference: ReferenceScores) -> bool:
    """Tell whether a score exceeds that of random actions by more than DOUBT standard errors of the latter."""
    random = reference.score(reference.random)
    return score > random.mean + DOUBT * random.error


def reference_summary(success: float, returns: float, id: str, options: Mapping[str, Any] | None = None) -> str:
    """Return " (random 0.45, best known 1.00)" for a score; an empty text if the options have no reference."""
    known = None if options else reference_of(id)
    if known is None:
        return ""
    return f" ({beside_reference(success if known.defines_success else returns, known)})"


def from_record(id: str, entry: Mapping[str, Any]) -> ReferenceScores:
    """Read the reference scores of an environment from JSON values."""
    fields: dict[str, Any] = dict(entry) if {"lower", "upper"} & set(entry) else {**BOUNDLESS, **entry}
    fields |= {name: _level(entry[name]) for name in LEVELS if entry.get(name)}
    fields["lines"] = {name: _level(level) for name, level in entry.get("lines", {}).items()}
    return ReferenceScores(id=id, **fields)


def _level(entry: Mapping[str, Any]) -> Level:
    return Level(Measure(**entry["success"]), Measure(**entry["returns"]), entry["kind"])


def to_record(reference: ReferenceScores) -> dict[str, Any]:
    """Write reference scores as JSON values, without the id."""
    entry = dataclasses.asdict(reference)
    empty = ({"id"} if reference.bounded else {"id", *BOUNDLESS}) | (
        {"defines_success"} if reference.defines_success else set()
    )
    empty |= set() if reference.lines else {"lines"}
    return {name: value for name, value in entry.items() if name not in empty and value is not None}


# The files


def read_references(path: Path) -> dict[str, ReferenceScores]:
    """Read the reference scores of a file by id; none if there is no file yet."""
    if not path.exists():
        return {}
    try:
        entries = parse_json(read_bytes(path, follow=True))
        return {id: from_record(id, entry) for id, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no table of reference scores; move it away or choose another folder") from None


def references_json(references: Mapping[str, ReferenceScores]) -> str:
    """Write reference scores as JSON, a line for each environment."""
    lines = (f" {json.dumps(id)}: {json.dumps(to_record(reference))}" for id, reference in references.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def references_page(by_id: Mapping[str, ReferenceScores]) -> str:
    """Write the page."""
    references = list(by_id.values())
    columns = ("environment", "random success", "best success", "random return", "best return", "kind", "time limit")
    succeeding = [reference for reference in references if reference.defines_success or not reference.lines]
    parts = [TEXTS["head"], Table(columns, [_level_row(reference) for reference in succeeding]).markdown()]
    discounted = [
        (reference.id, f"{found['discount']:g}", f"{found['lower']:.4f}", f"{found['upper']:.4f}")
        for reference in references
        if (found := reference.discounted)
    ]
    if discounted:
        parts += [TEXTS["discounted"], Table(("environment", "discount", "lower", "upper"), discounted).markdown()]
    names = ("environment", "random", *LESS, "perfect memory")
    lined = [_line_row(reference) for reference in references if reference.lines]
    rungs = [row for row in lined if row[0] in RUNGS]
    if others := [row for row in lined if row[0] not in RUNGS]:
        parts += [TEXTS["lines"], Table((*names, "kinds"), others).markdown()]
        if rows := _published_rows(by_id):
            parts += [TEXTS["published"], Table((*names, "GRU", "best of 13"), rows).markdown()]
    if rungs:
        parts += [TEXTS["rungs"], Table((*names, "kinds"), rungs).markdown()]
    return "\n".join([*parts, *_origin(references)]) + "\n"


def _line_row(reference: ReferenceScores) -> tuple[str, ...]:
    """Write the returns of all lines, and for each kind the lines that it holds for."""
    levels = [reference.lines.get(name, UNKNOWN) for name in LESS] + [reference.lower]
    names: dict[str, list[str]] = {}
    for name, level in zip((*LESS, "perfect"), levels, strict=True):
        names.setdefault(level.kind, []).append(name)
    kinds = "; ".join(f"{', '.join(held)}: {kind}" for kind, held in names.items() if kind)
    return (reference.id, *(format_measure(level.returns) for level in (reference.random, *levels)), kinds)


def published_scores(id: str) -> dict[str, float]:
    """Give POPGym's printed scores of a task, of its GRU and of the best of 13 memories; none if none was printed."""
    family, _, level = id.removeprefix("POPGym/").removesuffix("-v0").partition("-")
    place = {"Easy": 0, "Medium": 1, "Hard": 2}.get(level)
    printed = TEXTS["scores"].get(family)
    if printed is None or place is None:
        return {}
    return {"GRU": printed["gru"][place], "best of 13": printed["best"][place]}


def _published_rows(by_id: Mapping[str, ReferenceScores]) -> list[tuple[str, ...]]:
    """Write the lines of the tasks for which scores were published, and these."""
    rows = []
    for family in TEXTS["scores"]:
        for level in ("Easy", "Medium", "Hard"):
            if (reference := by_id.get(f"POPGym/{family}-{level}-v0")) and reference.lines:
                levels = (reference.random, *(reference.lines[name] for name in LESS), reference.lower)
                printed = published_scores(reference.id).values()
                numbers = [*(f"{each.returns.mean:.3f}" for each in levels), *(f"{each:.3f}" for each in printed)]
                rows.append((reference.id, *numbers))
    return rows


def _level_row(reference: ReferenceScores) -> tuple[str, ...]:
    kinds = "; ".join(dict.fromkeys((reference.lower.kind, reference.upper.kind)))
    success = (
        (format_measure(reference.random.success), best_success(reference)) if reference.defines_success else ("-", "-")
    )
    return (
        reference.id,
        *success,
        format_measure(reference.random.returns),
        _range(reference.lower.returns, reference.upper.returns),
        kinds,
        str(reference.time_limit),
    )


def _origin(references: Sequence[ReferenceScores]) -> list[str]:
    """Write the origin of the rows: commands, machine, and the seed and time of each row."""
    commands = list(dict.fromkeys(reference.command for reference in references))
    machines = "; ".join(sorted({reference.machine for reference in references}))
    columns = ("environment", "episodes", "of scripted players", "seed", "revision", "minutes", "command")
    rows = [
        (
            each.id,
            each.episodes,
            each.scripted_episodes or None,
            each.seed,
            each.revision,
            f"{each.seconds / 60:.1f}",
            commands.index(each.command) + 1,
        )
        for each in references
    ]
    text = ["", "## How the rows were made", "", *(f"{n}. `{command}`" for n, command in enumerate(commands, 1)), ""]
    text += [f"Machine: {machines}; other work ran on it. A + after a revision: with uncommitted changes.", ""]
    return [*text, Table(columns, rows).markdown()]


def format_measure(value: Measure) -> str:
    """Write three decimals, and the error if there is one; a dash for unknown values."""
    if math.isnan(value.mean):
        return "-"
    return f"{value.mean:.3f}" + (f" ± {value.error:.3f}" if value.error else "")


def best_success(reference: ReferenceScores) -> str:
    """Write the best success, or its bounds."""
    return _range(reference.lower.success, reference.upper.success)


def _range(lower: Measure, upper: Measure) -> str:
    same = f"{lower.mean:.3f}" == f"{upper.mean:.3f}"
    return format_measure(lower) if same else f"{format_measure(lower)} to {format_measure(upper)}"
