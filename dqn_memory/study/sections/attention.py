"""Show what trained networks attend to: one episode of one run of each environment and series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import Maps
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import script_of, trainer_class
from dqn_memory.study.collect import Data, Entry
from dqn_memory.study.page import Part, Picture, Section, slug
from envs.tables import Table

STEPS = 24  # decisions of an episode that are shown
SEED = 0  # of the episode


def groups(data: Data) -> Iterator[Entry]:
    """Choose the runs whose episodes are shown: of each environment and series that with the first seed."""
    for world in data.worlds:
        for series in data.series:
            yield from data.of(world, series)[:1]


def attention_reader(kind: str) -> Callable[[Path, int], Maps | None] | None:
    """Give the function that reads attention from a run of this kind; None where there is none."""
    reader: Callable[[Path, int], Maps | None] | None = trainer_class(kind).attention_report
    return of_q_network if kind == "q_network" else reader


def maps_of(data: Data, entry: Entry) -> Maps | None:
    """Give the maps in an archive, or from a run's checkpoint; None where its network has no attention."""
    record = entry.record
    if record.summary is not None:  # its run has no checkpoint here
        return None if record.attention is None else Maps.parse(record.attention)
    return _played(data.source.kind, entry.run.folder)


@cache  # a report that is archived asks twice, and a searching agent's episode takes long
def _played(kind: str, folder: Path) -> Maps | None:
    read = attention_reader(kind)
    maps: Maps | None = None if read is None else read(folder, SEED)
    # Through text and back, so that a study and its archive draw the same.
    return None if maps is None else Maps.parse(maps.plain())


def of_q_network(run: Path, seed: int) -> Maps | None:
    """Play one greedy episode with a run's last checkpoint on the CPU; None where its network has no attention."""
    from dqn_memory.agent import load_network
    from dqn_memory.analysis.attention import episode_attention
    from dqn_memory.analysis.episodes import play_in

    network, config, _ = load_network(run)
    episode = play_in(config.eval_setup(next(network.parameters()).device), network, seed)[0]
    shown = slice(STEPS)
    maps = episode_attention(network, episode.observation[shown], episode.previous_action[shown], config.acting)
    layers = {layer: each.double().cpu().numpy() for layer, each in maps.items()}
    total = None if episode.env_reports_success else episode.episode_return
    return Maps(layers, len(episode), episode.success, total) if layers else None


def archived(data: Data) -> dict[str, Any]:
    """Give the maps that an archive keeps, by run; a run whose checkpoint is gone has none, and the report says why."""
    found = {}
    for entry in groups(data):
        with suppress(UserError):
            maps = maps_of(data, entry)
            found[entry.run.name] = None if maps is None else maps.plain()
    return found


def attention_section(data: Data, wanted: bool) -> Section:
    """Draw a picture a layer for each environment and series with attention."""
    title = "Attention maps"
    if not wanted:
        return Section(title, ("Left out, as asked.",))
    parts: list[Part] = []
    missing: list[tuple[str, str]] = []
    for entry in groups(data):
        try:
            maps = maps_of(data, entry)
            parts += [] if maps is None else _pictures(entry, maps)
        except UserError as error:
            missing.append((entry.run.name, str(error)))
    unread = (Table(("no maps of", "why"), tuple(missing)),) if missing else ()
    if not parts:
        return Section(title, unread or (_none(data),))
    what = (
        f"What each of the first {STEPS} decisions of one greedy episode attended to"
        if data.source.kind == "q_network"
        else "What the tokens of one window of an episode without noise attended to, up to its last reward"
    )
    words = (
        f"{what}, head by head, by the last checkpoint of the first seed. One episode shows what there is to see, not "
        f"how common it is; `python -m {_package(data)}.inspect RUN` shows more."
    )
    return Section(title, (words, *parts, *unread))


def _pictures(entry: Entry, maps: Maps) -> list[Part]:
    where = f"{entry.series} in {entry.run.world}, seed {entry.run.seed}"
    name, ending = (
        f"attention-{slug(entry.run.name)}",
        f"the episode had {maps.length} steps and ended with {maps.ended}.",
    )
    if maps.first is not None:
        layers = np.stack(list(maps.layers.values()))  # (L, H, T, T)
        figure = plots.token_maps(layers, f"Attention of {where}", maps.first)
        return [Picture(name, figure, f"Attention of {where}; {ending}")]
    parts: list[Part] = []
    for layer, weights in maps.layers.items():
        title = f"Layer {layer} of {where}"
        figure = plots.attention_maps(weights, title)
        parts.append(Picture(f"{name}-layer-{layer}", figure, f"{title}; {ending}"))
    return parts


def _none(data: Data) -> str:
    if attention_reader(data.source.kind) is None:
        inspect = f"`python -m {_package(data)}.inspect RUN` shows what one run has learned"
        return f"Attention is not drawn for this trainer, also where its sequence module has any; {inspect}."
    return "No finished run has attention."


def _package(data: Data) -> str:
    return script_of(data.source.kind).rpartition(".")[0]
