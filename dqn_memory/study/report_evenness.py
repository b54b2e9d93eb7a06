"""Runs that are averaged although they differ in more than their seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from dqn_memory.runs.settings import flag_names
from dqn_memory.study.report_data import Data, Entry
from dqn_memory.study.report_page import Grid, Section, Words

UNEVEN = "Runs that differ in more than their seed"
ALONE = ("seed", "output.", "compute.")  # settings that a run has to itself, or that change no number by contract


def uneven_section(data: Data) -> Section | None:
    """Settings that runs of one series and world do not share; None where all do.

    A record can be filled over a long time, and what a preset or a default says may have changed in between.
    """
    seeds: dict[tuple[str, str], set[int]] = {}
    places: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for world in data.worlds:
        for series in data.series:
            runs = data.of(world, series)
            for setting in differing([entry.config for entry in runs]):
                _count(runs, setting, seeds, places)
    if not seeds:
        return None
    rows = tuple(
        (setting, value, ", ".join(map(str, sorted(seeds[setting, value]))), str(len(places[setting, value])))
        for setting, value in seeds
    )
    words = "A mean over such runs is one over different settings, and their spread is not that of chance alone."
    return Section(UNEVEN, (Words(words), Grid(("setting", "value", "seeds", "series"), rows)))


def differing(configs: Sequence[Any]) -> list[str]:
    """Paths of the settings, of those that matter, in which configs of one kind are not all the same."""
    if len(configs) < 2:
        return []
    paths = [path for path in flag_names(configs[0]) if not path.startswith(ALONE)]
    return [path for path in paths if len({repr(_value(config, path)) for config in configs}) > 1]


def _count(
    runs: Sequence[Entry], setting: str, seeds: dict[tuple[str, str], set[int]],
    places: dict[tuple[str, str], set[tuple[str, str]]],
) -> None:  # fmt: skip
    for entry in runs:
        key = setting, str(_value(entry.config, setting))
        seeds.setdefault(key, set()).add(entry.run.seed)
        places.setdefault(key, set()).add((entry.run.world, entry.series))


def _value(config: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), config)
