"""Kinds of runs, as their checkpoints' headers say them, and the scripts that read each kind."""

from __future__ import annotations

from pathlib import Path

from dqn_memory.runs.checkpoint import Checkpoint
from dqn_memory.runs.errors import UserError

Q_NETWORK = "dqn-memory q-network"
# the package of train, evaluate and inspect
SCRIPTS = {Q_NETWORK: "dqn_memory", "unizero": "world_models.unizero", "glam": "world_models.glam"}


def check_kind(run: Path, checkpoint: Checkpoint, kind: str) -> None:
    """A UserError, which names the right scripts, where a run's checkpoint is not of this kind."""
    found = checkpoint.header.get("kind")
    if found == kind and "config" in checkpoint.header:
        return
    package = SCRIPTS.get(str(found))
    right = f"; use python -m {package}.train, {package}.evaluate or {package}.inspect" if package else ""
    raise UserError(f"the checkpoint of {run} is foreign: its kind is '{found}', not '{kind}'{right}")
