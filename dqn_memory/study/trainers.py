"""The trainers that a study can run. All are scripts with the same command line: --config, --run, --resume.

A trainer's config class is a frozen dataclass with `check()`; where what it chose brings other defaults with it,
`base()` gives them.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

from dqn_memory.runs.errors import UserError, near_names


class Names(NamedTuple):
    """Where a trainer's parts are; names only: world models are imported where a study asks for them."""

    script: str
    config: str
    attention: str = ""  # reads the attention of a run, (folder, seed) -> Maps or None


TRAINERS = {
    "q_network": Names(
        "dqn_memory.train", "dqn_memory.config:TrainConfig", "dqn_memory.study.report_attention:of_q_network"
    ),
    "unizero": Names(
        "world_models.unizero.train",
        "world_models.unizero.config:TrainConfig",
        "world_models.unizero.analysis:report_maps",
    ),
    "glam": Names("world_models.glam.train", "world_models.glam.train_config:TrainConfig"),
}


def script_of(kind: str) -> str:
    """Name the module that trains, such as dqn_memory.train."""
    return _names(kind).script


def attention_reader(kind: str) -> Any:
    """Give the function that reads attention from a run of this trainer; None where there is none."""
    return _load(kind, _names(kind).attention) if _names(kind).attention else None


@cache
def config_class(kind: str) -> type[Any]:
    """Give the dataclass that a trainer reads; a UserError names an unknown trainer or one that is not installed."""
    found: type[Any] = _load(kind, _names(kind).config)
    return found


def _names(kind: str) -> Names:
    if kind not in TRAINERS:
        raise UserError(near_names("kind of study", kind, TRAINERS))
    return TRAINERS[kind]


def _load(kind: str, place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"the trainer {kind} is not installed here: there is no module {error.name}") from None
