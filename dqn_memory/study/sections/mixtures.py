"""Show how agents that were trained in several environments score in each of them, and where they were not trained."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dqn_memory.runs.modules import other_envs
from dqn_memory.study.collect import Data, FinishedRun, scale_in
from dqn_memory.study.page import WORDS, Picture, Section, section
from dqn_memory.study.plots import bars_figure, drawn
from dqn_memory.study.run_summary import FINALS
from dqn_memory.study.sections.scores import SOLVED, measure, time_kept
from dqn_memory.study.statistics import Estimate, Scale, interval, short_name

ALONE = "each alone"  # the series of agents that were trained in one environment


@dataclass(frozen=True)
class Place:
    """The final scores of a series in one environment."""

    label: str
    """Name of the mixture of training."""
    series: str
    env: str
    trained: bool
    """Whether it is an environment of training."""
    runs: Sequence[FinishedRun]
    scores: Sequence[float]

    @property
    def scale(self) -> Scale | None:
        return scale_in(self.env.removeprefix("envs:"), self.runs[0])


def mixtures_section(data: Data) -> Section | None:
    """Tabulate and draw the scores in each environment; None if no run has several."""
    found = list(places(data))
    if not found:
        return None
    pictures = []
    for number, series in enumerate(data.series):
        bars = bars_of(data, [place for place in found if place.series == series])
        if bars:
            scales = {short_name(place.env): place.scale for place in found}
            name = "mixtures" if number == 0 else f"mixtures-{number + 1}"
            rows = [(agent, env, *score, yes) for agent, each in bars.items() for env, (score, yes) in each.items()]
            numbers = drawn("agent, environment, score, low, high, trained", rows)
            pictures.append(Picture(name, bars_figure(bars, scales, series), WORDS["mixtures"]["caption"], numbers))
    return section("mixtures", [_row(place) for place in found], pictures, level=SOLVED)


def places(data: Data) -> Iterator[Place]:
    """Give the scores of every series with several environments, in the order of its runs' configs."""
    for world, series, runs in data.groups():
        config = runs[0].config
        others = [env for env in other_envs(config) if env not in config.environment.ids]
        if len(config.environment.ids) + len(others) > 1:
            for env in (*config.environment.ids, *others):
                yield Place(world, series, env, env not in others, runs, [final_score(run, env) for run in runs])


def final_score(run: FinishedRun, env: str) -> float:
    """Give a run's final score in one of several environments."""
    found = (run.last(f"{kind}/{measure(run)}/{env}") for kind in FINALS)
    return float(next((score for score in found if score is not None), math.nan))


def bars_of(data: Data, found: Sequence[Place]) -> dict[str, dict[str, tuple[Estimate, bool]]]:
    """Give the score and whether it was trained there, by mixture and environment; also of training in one alone."""
    bars: dict[str, dict[str, tuple[Estimate, bool]]] = {}
    for place in found:
        bars.setdefault(place.label, {})[short_name(place.env)] = interval(place.scores), place.trained
    known = {place.env.removeprefix("envs:") for place in found}
    for world, series, runs in data.groups():
        env = short_name(runs[0].env)
        if found and series == found[0].series and runs[0].env in known and world not in bars:
            label = world if env in bars.get(ALONE, {}) else ALONE
            bars.setdefault(label, {})[env] = interval([run.score for run in runs]), True
    return bars


def _row(place: Place) -> dict[str, str]:
    scale, kept = place.scale, None
    if scale is not None and scale.one > 0:
        kept = time_kept(place.runs, SOLVED * scale.one, place.env)
    return {
        "agent": place.label, "series": place.series, "environment": place.env,
        "trained": "yes" if place.trained else "no", "seeds": str(len(place.runs)),
        "random": "" if scale is None else f"{scale.zero:.3f}", "best": "" if scale is None else f"{scale.one:.3f}",
        "final": str(interval(place.scores)), **({} if kept is None else kept.cells()),
    }  # fmt: skip
