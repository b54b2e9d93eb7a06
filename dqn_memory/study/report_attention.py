"""What trained networks attend to: one episode of one run of each world and series, small enough to be kept as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dqn_memory.analysis import plots, prior_plots
from dqn_memory.analysis.attention import Maps
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import script_of, trainer_class
from dqn_memory.study.report_data import Data, Entry
from dqn_memory.study.report_page import Grid, Part, Picture, Section, Words, slug
from dqn_memory.study.report_source import ATTENTION, only_numbers

STEPS = 24  # decisions of an episode that are shown


HALF = 6.5  # inches of a picture up to which two stand side by side


SEED = 0  # of the episode's world


Array = np.ndarray[Any, np.dtype[Any]]


def groups(data: Data) -> Iterator[Entry]:
    """The runs whose episodes are shown: of each world and series that with the first seed."""
    for world in data.worlds:
        for series in data.series:
            yield from data.of(world, series)[:1]


def maps_of(data: Data, entry: Entry) -> Maps | None:
    """The maps of a run's record, or of its checkpoint; None where its network has no attention."""
    if only_numbers(data.source, entry.run):
        return _recorded(entry.run.folder / ATTENTION)
    return _played(data.source.kind, entry.run.folder)


@cache  # a report that is recorded asks twice, and a searching agent's episode takes long
def _played(kind: str, folder: Path) -> Maps | None:
    read = attention_reader(kind)
    maps: Maps | None = None if read is None else read(folder, SEED)
    # Through text and back, so that a study and its record draw the same.
    return None if maps is None else Maps.parse(maps.plain())


def attention_reader(kind: str) -> Callable[[Path, int], Maps | None] | None:
    """Give the function that reads attention from a run of this kind; None where there is none."""
    reader: Callable[[Path, int], Maps | None] | None = trainer_class(kind).attention_report
    return of_q_network if kind == "q_network" else reader


def _recorded(path: Path) -> Maps | None:
    try:
        return Maps.parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def of_q_network(run: Path, seed: int) -> Maps | None:
    """Of one greedy episode with a run's last checkpoint on the CPU; None where its network has no attention."""
    from dqn_memory.agent import load_network
    from dqn_memory.analysis.attention import episode_attention
    from dqn_memory.analysis.episodes import play_in

    network, config, _ = load_network(run)
    episode = play_in(config.eval_setup(next(network.parameters()).device), network, seed)[0]
    shown = slice(STEPS)
    maps = episode_attention(network, episode.observation[shown], episode.previous_action[shown], config.acting)
    layers = {layer: each.double().cpu().numpy() for layer, each in maps.items()}
    total = None if episode.told else episode.episode_return
    return Maps(layers, len(episode), episode.success, total) if layers else None


def attention_section(data: Data, wanted: bool) -> Section:
    """A picture a layer for each world and series with attention."""
    title = "Attention maps"
    if not wanted:
        return Section(title, (Words("Left out, as asked."),))
    parts: list[Part] = []
    missing: list[tuple[str, str]] = []
    for entry in groups(data):
        try:
            maps = maps_of(data, entry)
            parts += [] if maps is None else _pictures(entry, maps)
        except UserError as error:
            missing.append((entry.run.name, str(error)))
    unread = (Grid(("no maps of", "why"), tuple(missing)),) if missing else ()
    if not parts:
        return Section(title, unread or (Words(_none(data)),))
    what = (
        f"What each of the first {STEPS} decisions of one greedy episode attended to"
        if data.source.kind == "q_network"
        else "What the tokens of one window of an episode without noise attended to, up to its last reward"
    )
    words = Words(
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
        figure = prior_plots.token_maps(layers, f"Attention of {where}", maps.first)
        return [_picture(name, figure, f"Attention of {where}; {ending}")]
    parts: list[Part] = []
    for layer, weights in maps.layers.items():
        title = f"Layer {layer} of {where}"
        figure = plots.episode_attention(weights, title)
        parts.append(_picture(f"{name}-layer-{layer}", figure, f"{title}; {ending}"))
    return parts


def _picture(name: str, figure: Figure, caption: str) -> Picture:
    """Beside another only where its words stay readable at half the page's width."""
    return Picture(name, figure, caption, small=figure.get_figwidth() <= HALF)


def _none(data: Data) -> str:
    if attention_reader(data.source.kind) is None:
        inspect = f"`python -m {_package(data)}.inspect RUN` shows what one run has learned"
        return f"Attention is not drawn for this trainer, also where its sequence module has any; {inspect}."
    return "No finished run has attention."


def _package(data: Data) -> str:
    return script_of(data.source.kind).rpartition(".")[0]
