"""Put scores beside what players with less and less of a memory get, in environments whose lines are known."""

from collections.abc import Sequence

import numpy as np

from dqn_memory.study.collect import Data, FinishedRun
from dqn_memory.study.page import Section, section
from envs.baselines.reference import ReferenceScores, published_scores, reference_of
from envs.markup import Markup


def lines_section(data: Data) -> Section | None:
    """Tabulate the scores of each series beside the lines of its environment; None if no lines of returns are known."""
    rows = []
    for _, series, runs in data.groups():
        reference = reference_of(runs[0].env)
        if reference is not None and reference.lines and not reference.defines_success:
            rows.append(_line_cells(reference, series, runs))
    return section("lines", rows)


def _line_cells(reference: ReferenceScores, series: str, runs: Sequence[FinishedRun]) -> dict[str, str]:
    final, printed = float(np.mean([run.score for run in runs])), published_scores(reference.id)
    highest = float(np.mean([run.curve.success.max() for run in runs]))
    levels = {"random": reference.random, **reference.lines, "perfect": reference.lower}
    clock = reference.lines["clock"].returns.mean
    row = {"environment": reference.id.split("/")[-1].removesuffix("-v0"), "series": series, "seeds": str(len(runs))}
    row |= {name: f"{level.returns.mean:.3f}" for name, level in levels.items()}
    row["final"] = Markup(f"**{final:.3f}**") if final < clock else f"{final:.3f}"
    row["MMER"] = Markup(f"**{highest:.3f}**") if highest < clock else f"{highest:.3f}"
    row |= {f"published {name}": f"{score:.3f}" for name, score in printed.items()}
    return row | {"0 random, 1 perfect": f"{_normalised(reference, final):.2f}"}


def _normalised(reference: ReferenceScores, score: float) -> float:
    start, perfect = reference.random.returns.mean, reference.lower.returns.mean
    return (score - start) / (perfect - start)
