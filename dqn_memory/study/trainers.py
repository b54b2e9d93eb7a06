"""The trainers that a study can run. All are scripts with the same command line: --config, --run, --resume.

A trainer's config class is a frozen dataclass with `check()`; where what it chose brings other defaults with it,
`base()` gives them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import ale_py
import gymnasium
import tomli_w

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.migration import KINDS, new_setting
from dqn_memory.runs.settings import flag_names, from_toml, load_plugins, read_config
from dqn_memory.runs.toml import defaults
from envs.registry import WORLDS

# Names only: the wing of world models is imported where a study asks for it, never by this package.
TRAINERS = {
    "dqn_memory.train": "dqn_memory.config:TrainConfig",
    "world_models.unizero.train": "world_models.unizero.config:TrainConfig",
    "world_models.glam.train": "world_models.glam.train_config:TrainConfig",
}
# What reads the attention of a trainer's runs, (folder, seed) -> report_attention.Maps or None.
ATTENTION = {
    "dqn_memory.train": "dqn_memory.study.report_attention:of_q_network",
    "world_models.unizero.train": "world_models.unizero.analysis:report_maps",
}
Path_ = tuple[str, ...]


def attention_reader(kind: str) -> Any:
    """The function that reads attention from a run of this trainer; None where there is none."""
    module, _, name = ATTENTION.get(kind, "").partition(":")
    return getattr(importlib.import_module(module), name) if module else None


@cache
def config_class(kind: str) -> type[Any]:
    """The dataclass that a trainer reads; a UserError names an unknown trainer or one that is not installed."""
    if kind not in TRAINERS:
        raise UserError(near_names("kind of study", kind, TRAINERS))
    module, _, name = TRAINERS[kind].partition(":")
    try:
        found: type[Any] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"the trainer {kind} is not installed here: there is no module {error.name}") from None
    return found


@cache
def _paths(kind: str) -> dict[str, Path_]:
    """Where each setting of a trainer stands, by its flag: {"mu": ("network", "prior", "mu"), ...}."""
    return {flag: tuple(path.split(".")) for path, flag in flag_names(defaults(config_class(kind))).items()}


@cache
def path_of(kind: str, key: str) -> Path_:
    """Place of a setting named by its flag, its full path or an unambiguous end of that (prior-mu, prior.mu)."""
    word = key.replace("-", "_").replace(".", "_")
    flags = _paths(kind)
    if word in flags:
        return flags[word]
    named = {path for path in flags.values() for n in range(len(path)) if "_".join(path[n:]) == word}
    if not named and (path := new_setting(KINDS.get(kind, kind), key)) != key:  # a study of schema 1
        return tuple(path.split("."))
    if len(named) > 1:
        raise UserError(f"the setting '{key}' may be {' or '.join(sorted('.'.join(path) for path in named))}")
    if not named:
        raise UserError(near_names("setting", key, [flag.replace("_", "-") for flag in flags]))
    return named.pop()


def settle(kind: str, presets: Iterable[str], settings: Mapping[Path_, Any], source: str, on_cpu: bool = True) -> Any:
    """One run's config: the trainer's defaults, presets in their order, then settings by their places.

    Raises UserError, which `source` begins, for whatever the trainer itself would refuse; what only the machine that
    a run will get can say (has it a GPU?) is left to the trainer there, unless all runs are `on_cpu`.
    """
    settings = dict(settings)
    chosen = _layers(config_class(kind), presets, settings, source, None)
    if hasattr(chosen, "base"):
        chosen = _layers(config_class(kind), presets, settings, source, chosen.base())
    try:
        load_plugins(chosen.plugin)
        compute = replace(chosen.compute, device="cpu") if on_cpu else type(chosen.compute)()
        replace(chosen, compute=compute).check()
        check_world(chosen.environment.env)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return chosen


def _layers(config_class: type[Any], presets: Iterable[str], settings: dict[Path_, Any], source: str, base: Any) -> Any:
    config = defaults(config_class) if base is None else base
    for name in presets:
        config = read_config(config_class, name, base=config)
    return from_toml(config_class, tomli_w.dumps(_nested(settings)), source, config)


def _nested(settings: dict[Path_, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for path, value in settings.items():
        inner = table
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return table


def check_world(env: str) -> None:
    """A UserError with the near names where no world has this id; `module:Id` is left to Gymnasium."""
    name = env.removeprefix("envs:")
    if ":" in name or name in WORLDS:
        return
    gymnasium.register_envs(ale_py)
    if name not in gymnasium.registry:
        raise UserError(near_names("world", name, {*WORLDS, *gymnasium.registry}))
