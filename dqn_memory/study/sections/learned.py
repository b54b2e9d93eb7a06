"""Show learned values of networks: temporal priors, recurrent weights, and the attention of an episode."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import Maps, episode_attention
from dqn_memory.analysis.episodes import play_in
from dqn_memory.evaluate import KINDS_OF_NETWORKS, load_network
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import script_of, trainer_class
from dqn_memory.study.collect import Data, FinishedRun
from dqn_memory.study.page import WORDS, Picture, Section, picture_name, section
from dqn_memory.study.plots import drawn, looks, mean_and_deviation, over_time_figure, spans_figure
from dqn_memory.study.statistics import Floats, interval
from envs.markup import Markup
from envs.tables import Table

NAME = re.compile(r"^memory/(\d+)\.(\d+)\.(mu|sigma|span)$")
MOVED = "moved/"  # prefix of metrics: distance of recurrent weights from their first values
STILL = 1e-5  # max difference from the start that counts as rounding
STEPS = 24  # shown decisions of an episode
SEED = 0  # seed of the episode
Heads = dict[tuple[int, int], Floats]  # values (R, E) by layer and head


def moved_section(data: Data) -> Section | None:
    """Tabulate the distance of recurrent weights from their first values; None if no layer reads both ways."""
    rows = []
    for world, name, runs in data.groups():
        keys = sorted({key for run in runs for line in run.record.metrics for key in line if key.startswith(MOVED)})
        logged = [run for run in runs if all(run.last(key) is not None for key in keys)]  # older runs lack them
        found = {key.removeprefix(MOVED): str(interval([run.last(key) for run in logged])) for key in keys}
        if found:
            rows.append({"environment": world, "series": name, "seeds": str(len(logged)), **found})
    return section("moved", rows)


@dataclass(frozen=True)
class Group:
    """The learned values of one environment and series by name, and their start, which all heads share."""

    world: str
    series: str
    steps: Floats  # (E,)
    learned: dict[str, Heads]
    starts: dict[str, float]
    hard: bool  # whether the mask is 0 or 1; only a penalty can then move the span

    @property
    def where(self) -> str:
        return f"{self.series} in {self.world}"

    @property
    def moved(self) -> dict[str, Heads]:
        """The values that differ from their start at any time, in any head."""
        return {name: heads for name, heads in self.learned.items() if moves(heads, self.starts[name])}


def groups(data: Data) -> list[Group]:
    """Read the learned values of each environment and series, if it has any."""
    found = []
    for world, series, runs in data.groups():
        steps, learned = values_over_training(runs)
        if learned:
            starts, kind = starting_values(runs[0].config)
            known = {name: heads for name, heads in learned.items() if name in starts}
            found.append(Group(world, series, steps, known, starts, kind.endswith("_hard")))
    return found


def values_over_training(runs: Sequence[FinishedRun]) -> tuple[Floats, dict[str, Heads]]:
    """Give the steps (E,) that all runs logged, and the learned values (R, E) there; empty if a run has none.

    The last column holds each run's own last value; the last step is the latest of all runs.
    """
    # a step may have further lines without learned values
    logs = [{line["step"]: line for line in run.record.metrics if any(map(NAME.match, line))} for run in runs]
    if not all(logs):
        return np.array([]), {}
    ends = [max(log) for log in logs]
    steps = sorted(set.intersection(*map(set, logs)) - set(ends))
    lines = [[*(log[step] for step in steps), log[end]] for log, end in zip(logs, ends, strict=True)]
    learned: dict[str, Heads] = {}
    for name in sorted({name for log in logs for line in log.values() for name in line if NAME.match(name)}):
        ((layer, head, what),) = NAME.findall(name)
        values = np.array([[line.get(name, np.nan) for line in several] for several in lines], np.float64)
        learned.setdefault(what, {})[int(layer), int(head)] = values
    return np.array([*steps, max(ends)]), learned


def starting_values(config: Any) -> tuple[dict[str, float], str]:
    """Compute from a config the start of each learned value, which all heads share, and the kind of the prior."""
    if hasattr(config, "network"):
        prior, sizes = config.network.prior, (config.network.heads, config.network.context)
    else:
        prior, sizes = config.model.prior, (config.model.heads, 2 * config.model.horizon)
    learned = prior.build(*sizes).learned()
    return {name: float(values.detach()[0]) for name, values in learned.items()}, str(prior.kind)


def moves(heads: Heads, start: float) -> bool:
    """Tell whether the value of any head ever differs from its start."""
    return any(not np.allclose(values, start, rtol=0, atol=STILL) for values in heads.values())


def priors_section(data: Data) -> Section | None:
    """Draw and tabulate the learned mu, sigma and span of each environment and series."""
    found = groups(data)
    unit = "steps" if data.source.kind in KINDS_OF_NETWORKS else "tokens"  # a step of a world model is two tokens
    pictures = [picture for group in found if group.moved for picture in _pictures(group, unit)]
    rows = [
        {
            "environment": group.world, "series": group.series, "seeds": str(len(values)), "layer": str(layer),
            "head": str(head), "value": name, "start": f"{group.starts[name]:.3f}",
            "mean": f"{values[:, -1].mean():.3f}",
            "deviation": f"{values[:, -1].std(ddof=1):.3f}" if len(values) > 1 else "",
        }
        for group in found
        for name, heads in group.learned.items()
        for (layer, head), values in heads.items()
    ]  # fmt: skip
    return section("priors", _exceptions(found), pictures, rows, unit=unit)


def _exceptions(groups: Sequence[Group]) -> list[str]:
    """Name the values that did not move, and those that only a penalty moved."""
    still = [(group, name) for group in groups for name in group.learned if name not in group.moved]
    pressed = [(group, "span") for group in groups if group.hard and "span" in group.moved]
    sentences = []
    for words, values in (("still", still), ("pressed", pressed)):
        places = "; ".join(f"{name} of {group.where} (start {group.starts[name]:g})" for group, name in values)
        sentences += [WORDS["priors"][words].format(places=places)] if values else []
    if any(group.hard and name == "span" for group, name in (*still, *pressed)):
        sentences.append(WORDS["priors"]["hard"])
    return [Markup(" ".join(sentences))] if sentences else []


def _pictures(group: Group, unit: str) -> list[Picture]:
    ends = {name: _ends(heads) for name, heads in group.moved.items()}
    where, name, seeds = group.where, picture_name(group.where), len(next(iter(ends.values())))
    bars = plots.plot_learned_values(ends, group.starts, f"Learned at the end: {where}", unit)
    time = over_time_figure(group.steps, group.moved, group.starts, f"Learned over training: {where}")

    def numbers(first: int) -> Table:
        rows = [
            (name, *at, group.starts[name], group.steps[first:], *mean_and_deviation(values[:, first:]), len(values))
            for name, heads in group.moved.items()
            for at, values in heads.items()
        ]
        return drawn("value, layer, head, start, step, mean, deviation, seeds", rows)

    return [
        Picture(f"learned-{name}", bars, f"Learned values by head and layer: {where}, {seeds} seeds.", numbers(-1)),
        Picture(f"learning-{name}", time, f"Learned values over training: {where}.", numbers(0)),
    ]


def _ends(heads: Heads) -> Floats:
    """Give the values at the end by run, layer and head, (R, L, H)."""
    layers, numbers = (sorted({key[i] for key in heads}) for i in (0, 1))
    return np.array([[heads[layer, head][:, -1] for head in numbers] for layer in layers]).transpose(2, 0, 1)


def spans_section(data: Data) -> Section | None:
    """Draw a histogram of the spans of all heads, layers and runs for each environment; each series has a panel."""
    spanned = [group for group in groups(data) if "span" in group.learned]
    pictures, rows = [], []
    for world in dict.fromkeys(group.world for group in spanned):
        found = {}
        for group in (group for group in spanned if group.world == world):
            spans, start = np.concatenate([x[:, -1] for x in group.learned["span"].values()]), group.starts["span"]
            marks = [f"{mark:.3f}" for mark in (start, *np.percentile(spans, (0, 25, 50, 75, 100)))]
            rows.append([world, group.series, str(len(spans)), *marks])
            found[group.series] = spans, start
        figure = spans_figure(found, looks(data.series), f"Learned spans in {world}")
        name, caption = f"spans-{picture_name(world)}", WORDS["spans"]["caption"].format(world=world)
        numbers = drawn("series, start, span", [(series, start, spans) for series, (spans, start) in found.items()])
        pictures.append(Picture(name, figure, caption, numbers))
    header = ("environment", "series", "spans", "start", "least", "quartile", "median", "quartile", "most")
    return section("spans", pictures, [Table(header, rows)] if rows else [])


# Attention


def maps_of(data: Data, entry: FinishedRun) -> Maps | None:
    """Give a run's attention maps from its archive or its checkpoint; None if its network has no attention."""
    record = entry.record
    if record.summary is not None:  # a run of an archive, without a checkpoint
        return None if record.attention is None else Maps.parse(record.attention)
    return _played(data.source.kind, entry.run.folder)


@cache  # archiving calls it twice, and an episode with a search is slow
def _played(kind: str, folder: Path) -> Maps | None:
    read = of_q_network if kind == "q_network" else trainer_class(kind).attention_report
    maps: Maps | None = None if read is None else read(folder, SEED)
    # Converted to text and back, so that a study and its archive draw the same numbers.
    return None if maps is None else Maps.parse(maps.plain())


def of_q_network(run: Path, seed: int) -> Maps | None:
    """Play one episode with a run's last checkpoint on the CPU; None if its network has no attention."""
    network, config, _ = load_network(run)
    episode = play_in(config.eval_setup(next(network.parameters()).device), network, seed)[0]
    shown = slice(STEPS)
    steps = episode.observation[shown], episode.previous_action[shown]
    maps = episode_attention(network, *steps, config.acting_state)
    layers = {layer: each.double().cpu().numpy() for layer, each in maps.items()}
    total = None if episode.env_reports_success else episode.episode_return
    return Maps(layers, len(episode), episode.success, total) if layers else None


def _first_maps(data: Data) -> Iterator[tuple[FinishedRun, Maps | None, str]]:
    """Give the maps of the first seed of each environment and series, or the reason why they are unreadable."""
    for _, _, (entry, *_) in data.groups():
        try:
            yield entry, maps_of(data, entry), ""
        except UserError as error:
            yield entry, None, str(error)


def archived_maps(data: Data) -> dict[str, Any]:
    """Give the maps for an archive by run, without runs whose checkpoint is unreadable."""
    return {run.run.name: maps and maps.plain() for run, maps, why in _first_maps(data) if not why}


def attention_section(data: Data) -> Section | None:
    """Draw the attention maps of each layer for the first seed of each environment and series."""
    wanted = data.source.shown.get("attention", False)
    found = list(_first_maps(data)) if wanted else []
    pictures = [picture for entry, maps, _ in found if maps is not None for picture in _maps(entry, maps)]
    missing = [(entry.run.name, why) for entry, _, why in found if why]
    unread = [Table(("no maps of", "why"), missing)] if missing else []
    words, of_networks = WORDS["attention"], data.source.kind == "q_network"
    package = script_of(data.source.kind).rpartition(".")[0]
    if pictures:
        what = words["episode" if of_networks else "window"].format(steps=STEPS)
        return section("attention", pictures, unread, what=what, package=package)
    drawn = of_networks or trainer_class(data.source.kind).attention_report is not None
    why = words["unwanted" if not wanted else "none" if drawn else "undrawn"].format(package=package)
    return Section(words["title"], tuple(unread) or (why,))


def _maps(entry: FinishedRun, maps: Maps) -> list[Picture]:
    where = f"{entry.series} in {entry.run.world}, seed {entry.run.seed}"
    name = f"attention-{picture_name(entry.run.name)}"
    ending = f"the episode had {maps.length} steps and ended with {maps.ended}."
    if maps.first is not None:
        figure = plots.plot_token_maps(np.stack(list(maps.layers.values())), f"Attention of {where}", maps.first)
        return [Picture(name, figure, f"Attention of {where}; {ending}", _weights(maps.layers, "token"))]
    pictures = []
    for layer, weights in maps.layers.items():
        title, numbers = f"Layer {layer} of {where}", _weights({layer: weights}, "step")
        figure = plots.plot_attention_maps(weights, title)
        pictures.append(Picture(f"{name}-layer-{layer}", figure, f"{title}; {ending}", numbers))
    return pictures


def _weights(layers: Mapping[int, Floats], unit: str) -> Table:
    """Tabulate attention weights (H, T, T) of layers; steps or tokens are counted from the first one that is shown."""
    rows = [(layer, *np.indices(weights.shape), weights) for layer, weights in layers.items()]
    return drawn(f"layer, head, deciding {unit}, seen {unit}, weight", rows)
