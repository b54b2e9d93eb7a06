"""From a study's definition to its runs: names that never change, and the complete config of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import to_toml
from dqn_memory.study.definition import AXES, Definition, Label, Value, slug
from dqn_memory.study.trainers import Path_, path_of, settle

LONGEST = 180  # characters of a name, which a file system must take with a suffix
NAMELESS = ("world", "architecture")  # axes whose values say in a name what they are
PLACE = ("output", "run")


@dataclass(frozen=True)
class Planned:
    """A run to be carried out: `config` is the trainer's own dataclass, complete."""

    name: str
    axes: dict[str, Label]
    config: Any

    @property
    def toml(self) -> str:
        """The config as the trainer reads it."""
        return to_toml(self.config)


def expand(definition: Definition) -> list[Planned]:
    """All runs, in the order of the file with the last axis fastest; a UserError for the first that cannot work.

    A run has as many CPU threads as the study's resources say, unless a setting says otherwise.
    """
    planned: list[Planned] = []
    names: set[str] = set()
    base = {_path(definition, key): value for key, value in definition.settings.items()}
    for values in product(*definition.axes.values()):
        chosen = dict(zip(definition.axes, values, strict=True))
        labels = {axis: value.label for axis, value in chosen.items()}
        if definition.skips(labels):
            continue
        name = run_name(chosen, definition.source)
        if name.lower() in names:
            raise UserError(f"{definition.source}: two combinations would be called {name}; give a bundle another name")
        names.add(name.lower())
        presets = [*definition.presets, *(preset for value in values for preset in value.presets)]
        settings = base | dict(_settings(definition, chosen))
        on_cpu = definition.resources.gpus == 0
        config = settle(definition.kind, presets, settings, f"{definition.source}: run {name}", on_cpu)
        if config.compute.threads is None:
            config = replace(config, compute=replace(config.compute, threads=definition.resources.cpus))
        planned.append(Planned(name, labels, config))
    if not planned:
        raise UserError(f"{definition.source}: skip leaves no run of the study; leave out less")
    return planned


def run_name(chosen: dict[str, Value], source: str) -> str:
    """World, architecture, then every other axis as axis-value, the seed last."""
    others = [axis for axis in chosen if axis not in AXES]
    parts = [slug(chosen[axis].label) for axis in NAMELESS]
    parts += [f"{slug(axis)}-{slug(chosen[axis].label)}" for axis in (*others, "seed")]
    name = "__".join(parts)
    if len(name) > LONGEST:
        raise UserError(f"{source}: the run name {name[:60]}... is too long; give its bundles a short name")
    return name


def _settings(definition: Definition, chosen: dict[str, Value]) -> Iterator[tuple[Path_, Any]]:
    """Settings of one combination by their places; two axes must not set the same."""
    set_by: dict[Path_, str] = {}
    for axis, value in chosen.items():
        for key, item in value.settings.items():
            path = _path(definition, key)
            if path in set_by:
                raise UserError(f"{definition.source}: the axes {set_by[path]} and {axis} both set {'.'.join(path)}")
            set_by[path] = axis
            yield path, item


def _path(definition: Definition, key: str) -> Path_:
    try:
        path = path_of(definition.kind, key)
    except UserError as error:
        raise UserError(f"{definition.source}: {error}") from None
    if path == PLACE:
        raise UserError(f"{definition.source}: the study itself chooses its run folders; take '{key}' out")
    return path
