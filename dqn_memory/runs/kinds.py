"""Find the trainer of each kind of run: those of the suite, and those of other distributions (entry points)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqn_memory.runs.errors import UserError, check_known
from envs.packages import without_working_directory

if TYPE_CHECKING:
    from dqn_memory.runs.checkpoint import Checkpoint
    from dqn_memory.runs.trainer import Trainer

TRAINERS = "dqn_memory.trainers"  # group of entry points
SHIPPED = {  # a checkout has no entry points, because these are metadata of an installation
    "q_network": "dqn_memory.train:QTrainer",
    "pqn": "dqn_memory.pqn:PQNTrainer",
    "ppo": "dqn_memory.ppo:PPOTrainer",
    "unizero": "world_models.unizero.train:UniZeroTrainer",
    "glam": "world_models.glam.train:GlamTrainer",
}


def trainer_class(kind: str) -> type[Trainer[Any]]:
    """Find the trainer of this kind in the suite or in an installed distribution.

    Raises:
        UserError: there is no such trainer, or its package cannot be imported.
    """
    found = _entry_point(kind)
    try:
        trainer: type[Trainer[Any]] = found.load()
    except ModuleNotFoundError as error:
        raise UserError(f"the trainer {kind} is not installed here: there is no module {error.name}") from None
    return trainer


def script_of(kind: str) -> str:
    """Name the module that trains runs of this kind, such as dqn_memory.train, without importing it."""
    return _entry_point(kind).module


@cache
def installed_trainers() -> EntryPoints:
    """List all trainers as entry points; a distribution in the working directory does not count.

    The list is cached because it reads files of every installed distribution.
    """
    with without_working_directory():
        others = [each for each in entry_points(group=TRAINERS) if each.name not in SHIPPED]
    return EntryPoints([*(EntryPoint(kind, place, TRAINERS) for kind, place in SHIPPED.items()), *others])


def _entry_point(kind: str) -> EntryPoint:
    found = installed_trainers()
    return found[check_known("kind of run", kind, found.names)]


def kind_of(checkpoint: Checkpoint) -> str:
    """Read the kind of run in a checkpoint's header; empty if it has none."""
    kind: str = checkpoint.header.get("kind", "")
    return kind


def check_kind(run: Path, checkpoint: Checkpoint, kind: str) -> None:
    """Check the kind of a run's checkpoint.

    Raises:
        UserError: the checkpoint has another kind; the error names the scripts of that kind.
    """
    found = kind_of(checkpoint)
    if found == kind:
        return
    hint = ""
    if found in installed_trainers().names:
        script = script_of(found)
        hint = f"; use python -m {script} or {script.rpartition('.')[0]}.inspect"
    raise UserError(f"the checkpoint of {run} is foreign: its kind is '{found}', not '{kind}'{hint}")
