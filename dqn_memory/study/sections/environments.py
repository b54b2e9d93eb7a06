"""Compare properties of environments with gains: research questions 3 to 5 of the DBGFQN paper."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dqn_memory.evaluation import KINDS_OF_NETWORKS
from dqn_memory.study import statistics
from dqn_memory.study.collect import Data
from dqn_memory.study.page import WORDS, Picture, Section, section
from dqn_memory.study.plots import gains_figure
from dqn_memory.study.statistics import FEWEST, Estimate, Moments, difference, interval
from dqn_memory.study.world_properties import EPISODES, SCENES, control_twin, properties
from envs.registry import WORLDS
from envs.tables import Table

FEEDFORWARD = ("dtqn4", "dtqn")  # two names of one network
# One cell each in one direction and in both.
DIRECTIONS: Mapping[str, str] = {"drfqn": "dbrfqn", "dlfqn": "dblfqn", "dgfqn": "dbgfqn"}
BOTH, RECURRENCE = "both directions over one", "recurrence over feed-forward"
Gains = dict[str, Estimate | None]


def gains(data: Data, world: str) -> Gains:
    """Compute the gains in success in an environment, None where the study lacks the runs for them."""
    scores = {name: list(data.scores(world, name).values()) for name in (*DIRECTIONS, *DIRECTIONS.values())}
    rival = next((list(found.values()) for name in FEEDFORWARD if (found := data.scores(world, name))), [])
    both = [(scores[two], scores[one]) for one, two in DIRECTIONS.items() if scores[one] and scores[two]]
    plain = [(scores[one], rival) for one in DIRECTIONS if scores[one] and rival]
    return {BOTH: difference(both) if both else None, RECURRENCE: difference(plain) if plain else None}


def properties_section(data: Data) -> Section | None:
    """Tabulate properties of every environment and its gains, with rank correlations."""
    if data.source.kind != "q_network":
        return None
    ids = {world: id for world in data.worlds if (id := data.of(world)[0].env) in WORLDS}
    found = [gains(data, world) for world in ids]
    by_gain = {name: values for name in (BOTH, RECURRENCE) if any(values := [each[name] for each in found])}
    if not by_gain:
        cells = ", ".join(f"{one} and {two}" for one, two in DIRECTIONS.items())
        return section("properties", feedforward=FEEDFORWARD[0], cells=cells)
    known = [properties(id) for id in ids.values()]
    by_property = {name: [each[name] for each in known] for name in WORDS["definitions"]}
    rows = [
        {"": str(number), "environment": world}
        | {name: "" if value is None else f"{value:.3g}" for name, value in own.items()}
        | {name: "" if gain is None else str(gain) for name, gain in gain_of.items()}
        for number, (world, own, gain_of) in enumerate(zip(ids, known, found, strict=True), 1)
    ]
    correlations = [
        {"property": name} | {gain: _correlation(places, values) for gain, values in by_gain.items()}
        for name, places in by_property.items()
    ]
    words = WORDS["properties"]
    number = len(by_property) * len(by_gain)
    return section(
        "properties", rows, Table(("column", "meaning"), list(_meanings().items())),
        Picture("worlds", gains_figure(by_property, by_gain, list(ids)), words["caption"]),
        words["correlations"].format(fewest=FEWEST, number=number), correlations,
    )  # fmt: skip


def _meanings() -> dict[str, str]:
    cells = ", ".join(f"{two} less {one}" for one, two in DIRECTIONS.items())
    return {
        BOTH: f"mean over the cells that have runs of {cells}",
        RECURRENCE: f"mean over those that have runs of {', '.join(DIRECTIONS)}, less {FEEDFORWARD[0]}",
        **{name: text.format(scenes=SCENES, episodes=EPISODES) for name, text in WORDS["definitions"].items()},
    }


def _correlation(places: Sequence[float | None], values: Sequence[Estimate | None]) -> str:
    pairs = [(x, y.point) for x, y in zip(places, values, strict=True) if x is not None and y is not None]
    x, y = np.array(pairs, np.float64).reshape(-1, 2).T
    if len(pairs) < FEWEST or min(len(set(x)), len(set(y))) < 2:
        return f"- (of {len(pairs)})"
    return f"{statistics.rank_correlation(x, y)} (of {len(pairs)})"


def hallucination_section(data: Data) -> Section | None:
    """Compare environments with phantom structure with the same ones without it."""
    if data.source.kind not in KINDS_OF_NETWORKS:
        return None
    ids = {world: data.of(world)[0].env for world in data.worlds}
    pairs = [(world, other) for world in ids for other in ids if control_twin(ids[world]) == ids[other]]
    rows = [row for world, twin in pairs for name in data.series if (row := _effect(data, world, twin, name))]
    return section("phantoms", rows) if rows or data.source.kind == "q_network" else None


def _effect(data: Data, world: str, twin: str, series: str) -> dict[str, str]:
    ours, theirs = (list(data.scores(each, series).values()) for each in (world, twin))
    if not ours or not theirs:
        return {}
    p = statistics.welch(Moments.of(ours), Moments.of(theirs))
    columns = [np.array(side)[:, None] for side in (ours, theirs)]
    return {
        "environment": world, "without it": twin, "series": series,
        "seeds": " and ".join(map(str, dict.fromkeys((len(ours), len(theirs))))),
        "with": str(interval(ours)), "without": str(interval(theirs)),
        "effect": str(difference([(ours, theirs)])),
        "with beats without": str(statistics.estimate(statistics.probability_of_improvement, *columns)),
        "p": "" if math.isnan(p) else f"{p:.3f}",
    }  # fmt: skip
