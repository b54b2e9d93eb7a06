"""Judge the claims of `questions.toml`: each says that one series leads another in a study."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.toml import from_toml
from dqn_memory.study.collect import PREFERRED
from dqn_memory.study.page import counted
from dqn_memory.study.statistics import Contrast, Estimate, contrast, holm
from envs.files import read_text
from envs.tables import Table

FEW_WORLDS = 2  # max environments of a question whose names a table shows
Samples = Callable[[str, str, str, str], list[float]]  # (archive, environment, series, number) -> a value of each seed


@dataclass(frozen=True)
class Question:
    """Claims that are tested together: the first series of a claim leads the second.

    `least` is the smallest lead that would matter. The table shows the first `shown` claims (None: all).
    """

    asks: str = ""
    archive: str = ""
    worlds: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    number: str = PREFERRED
    least: float = 0.05
    shown: int | None = None


@dataclass(frozen=True)
class QuestionFile:
    """The content of `questions.toml`."""

    question: tuple[Question, ...] = ()


def verdicts(path: Path, samples: Samples) -> Table:
    """Tabulate each claim's lead, averaged over the environments of its question, and its verdict."""
    listed = from_toml(QuestionFile, read_text(path, "the questions in "), str(path)).question
    return Table.from_records(row for question in listed for row in _rows(question, samples)[: question.shown])


def lead_of(samples: Samples, archive: str, worlds: Sequence[str], claim: tuple[str, str], number: str) -> Contrast:
    """Compare the two series of a claim in several environments, or in one if it has a "series@environment"."""
    if len(worlds) > 1 and any("@" in series for series in claim):
        raise UserError(f"{' above '.join(claim)}: a series of another environment needs a question of one environment")
    return contrast([[samples(archive, world, series, number) for series in claim] for world in worlds])


def _rows(question: Question, samples: Samples) -> list[dict[str, str]]:
    leads = [lead_of(samples, question.archive, question.worlds, each, question.number) for each in question.claims]
    corrected, count = holm([lead.p for lead in leads]), len(leads)
    worlds = question.worlds
    place = ", ".join(worlds) if len(worlds) <= FEW_WORLDS else counted(len(worlds), "environment")
    rows: list[dict[str, str]] = []
    for (first, second), lead, p in zip(question.claims, leads, corrected, strict=True):
        detectable = lead.detectable(count)
        rows.append({
            "question": "" if rows else question.asks, "claim": f"{first} above {second}", "by": question.number,
            "in": place, "lead": show_lead(lead), "p": "< 0.001" if p < 0.0005 else f"{p:.2g}",
            "detectable": f"{detectable:.2f}" if detectable else "-",
            "verdict": lead.verdict(p, question.least, count),
        })  # fmt: skip
    return rows


def show_lead(lead: Contrast) -> str:
    """Show a lead with its 95 % interval, if it has one."""
    margin = lead.margin() if math.isfinite(lead.margin()) else math.nan
    return f"{Estimate(lead.effect, lead.effect - margin, lead.effect + margin):+.2f}"
