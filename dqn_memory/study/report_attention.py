"""What trained networks attend to: one episode of one run of each world and series, small enough to be kept as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory import drawing_memory
from dqn_memory.errors import UserError
from dqn_memory.study.report_data import Data, Entry
from dqn_memory.study.report_page import Grid, Part, Picture, Section, Words, slug
from dqn_memory.study.report_source import ATTENTION

STEPS = 24  # decisions of an episode that are shown
UNIT = 1_000  # weights are kept in thousandths
SEED = 0  # of the episode's world
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Maps:
    """Attention of the first T decisions of an episode of `length` steps, by layer, each (H, T, T)."""

    layers: dict[int, Array]
    length: int
    success: bool

    def plain(self) -> dict[str, Any]:
        """As JSON: thousandths, of each decision the steps up to itself."""
        kept = {
            str(layer): [
                [np.rint(row[: t + 1] * UNIT).astype(int).tolist() for t, row in enumerate(head)] for head in maps
            ]
            for layer, maps in self.layers.items()
        }
        return {"length": self.length, "success": self.success, "layers": kept}

    @classmethod
    def parse(cls, content: Any) -> Maps:
        """The maps from what `plain` gave."""
        layers = {int(layer): np.array([_square(head) for head in heads]) for layer, heads in content["layers"].items()}
        return cls(layers, int(content["length"]), bool(content["success"]))


def _square(rows: list[list[int]]) -> Array:
    """Rows of growing length as a matrix (T, T)."""
    return np.array([row + [0] * (len(rows) - len(row)) for row in rows], np.float64) / UNIT


def groups(data: Data) -> Iterator[Entry]:
    """The runs whose episodes are shown: of each world and series that with the first seed."""
    for world in data.worlds:
        for series in data.series:
            yield from data.of(world, series)[:1]


def maps_of(data: Data, entry: Entry) -> Maps | None:
    """The maps of a run's record, or of its checkpoint; None where its network has no attention."""
    if data.source.recorded:
        return _recorded(entry.run.folder / ATTENTION)
    return _played(entry) if data.source.kind == "dqn_memory.train" else None


def _recorded(path: Path) -> Maps | None:
    try:
        return Maps.parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _played(entry: Entry) -> Maps | None:
    """Play one greedy episode with the run's last checkpoint on the CPU."""
    from dqn_memory.agent import load_network
    from dqn_memory.introspection import episode_attention
    from dqn_memory.playing import play_in

    network, config, _ = load_network(entry.run.folder)
    episode = play_in(config.arena(next(network.parameters()).device), network, SEED)[0]
    shown = slice(STEPS)
    maps = episode_attention(network, episode.observation[shown], episode.previous_action[shown], config.acting)
    layers = {layer: each.double().cpu().numpy() for layer, each in maps.items()}
    # Through text and back, so that a study and its record draw the same.
    return Maps.parse(Maps(layers, len(episode), episode.success).plain()) if layers else None


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
    words = Words(
        f"What each of the first {STEPS} decisions of one greedy episode attended to, head by head, by the last "
        "checkpoint of the first seed. One episode shows what there is to see, not how common it is; "
        "`python -m dqn_memory.inspect RUN` shows more."
    )
    return Section(title, (words, *parts, *unread))


def _pictures(entry: Entry, maps: Maps) -> list[Part]:
    where = f"{entry.series} in {entry.run.world}, seed {entry.run.seed}"
    ended = "success" if maps.success else "no success"
    parts: list[Part] = []
    for layer, weights in maps.layers.items():
        figure = drawing_memory.episode_attention(weights, f"Layer {layer} of {where}")
        caption = f"Layer {layer} of {where}; the episode had {maps.length} steps and ended with {ended}."
        parts.append(Picture(f"attention-{slug(entry.run.name)}-layer-{layer}", figure, caption, small=True))
    return parts


def _none(data: Data) -> str:
    if data.source.kind != "dqn_memory.train":
        package = data.source.kind.rpartition(".")[0]
        return f"Not drawn here for this trainer; `python -m {package}.inspect RUN` does it for one run."
    return "No finished run has attention."
