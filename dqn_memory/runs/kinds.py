"""Kinds of runs: the trainers that what is installed names as its entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqn_memory.runs.errors import UserError, check_known

if TYPE_CHECKING:
    from dqn_memory.runs.checkpoint import Checkpoint
    from dqn_memory.runs.trainer import Trainer

TRAINERS = "dqn_memory.trainers"  # the group of entry points that a distribution names its trainers in


def trainer_class(kind: str) -> type[Trainer[Any]]:
    """Find the trainer of this kind through the entry points of what is installed.

    Raises:
        UserError: there is none, or its package cannot be imported here.
    """
    try:
        trainer: type[Trainer[Any]] = _entry_point(kind).load()
    except ModuleNotFoundError as error:
        raise UserError(f"the trainer {kind} is not installed here: there is no module {error.name}") from None
    return trainer


def script_of(kind: str) -> str:
    """Name the module that trains runs of this kind, such as dqn_memory.train; nothing of it is imported."""
    return _entry_point(kind).module


@cache
def installed_trainers() -> EntryPoints:
    """Find the entry points of all trainers, once, as this reads files of everything that is installed."""
    return entry_points(group=TRAINERS)


def _entry_point(kind: str) -> EntryPoint:
    found = installed_trainers()
    return found[check_known("kind of run", kind, found.names)]


def kind_of(checkpoint: Checkpoint) -> str:
    """Read the kind of run in a checkpoint's header; empty where it says none."""
    kind: str = checkpoint.header.get("kind", "")
    return kind


def check_kind(run: Path, checkpoint: Checkpoint, kind: str, instead: str = "") -> None:
    """Check that a run's checkpoint is of this kind.

    Raises:
        UserError: it is of another; the message says what to do `instead`, or names that kind's scripts.
    """
    found = kind_of(checkpoint)
    if found == kind:
        return
    right = instead and f"; {instead}"
    if not instead and found in installed_trainers().names:
        script = script_of(found)
        right = f"; use python -m {script} or {script.rpartition('.')[0]}.inspect"
    raise UserError(f"the checkpoint of {run} is foreign: its kind is '{found}', not '{kind}'{right}")
