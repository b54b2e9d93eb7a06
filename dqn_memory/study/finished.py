"""Whether a run is finished, told from its folder alone and without torch, which a worker need not load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import RAW, sha256, write_atomic

HASHES = "hashes.json"  # SHA-256 of the raw files when their run was finished


def finished(folder: Path) -> bool:
    """Whether the last checkpoint is the final one: the metrics that it vouches for end on a final evaluation.

    Where the checkpoint is gone, or was never here because a record holds none, the hashes tell: only a finished run
    has them. Raises UserError where the manifest or the metrics are damaged.
    """
    saved = checkpoint(folder)
    if saved is None and not (folder / HASHES).is_file():
        return False
    line = final_metrics(folder)
    return any(name.startswith("final/") for name in line) and (saved is None or line.get("step") == saved["step"])


def checkpoint(folder: Path) -> dict[str, Any] | None:
    """What the manifest of a run's checkpoint says (None: there is none yet); a UserError names a damaged one."""
    path = folder / "checkpoints" / "manifest.json"
    try:
        content = json.loads(path.read_bytes())["content"]
        return {"step": content["step"], "metrics_bytes": content["metrics_bytes"]}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def vouch(folder: Path) -> None:
    """Write down what a finished run's raw files are, so that later damage is noticed."""
    found = {name: sha256((folder / name).read_bytes()) for name in RAW if (folder / name).is_file()}
    write_atomic(folder / HASHES, json.dumps(found, indent=1).encode())


def vouched(folder: Path) -> dict[str, str]:
    """The SHA-256 of each raw file as `vouch` saw it, nothing where it did not; a UserError names a damaged list."""
    path = folder / HASHES
    try:
        return {str(name): str(digest) for name, digest in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def final_metrics(folder: Path) -> dict[str, Any]:
    """The line of a finished run's final evaluation: the last that its checkpoint vouches for, if it has one."""
    saved = checkpoint(folder)
    return _last_line(folder / "metrics.jsonl", None if saved is None else saved["metrics_bytes"])


def last_step(folder: Path) -> int:
    """Environment steps of the last line that a run has logged so far, 0 where it has none."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError, TypeError):  # a run that is being written, or not yet begun
        return 0


def _last_line(path: Path, length: int | None) -> dict[str, Any]:
    """The last line of the first `length` bytes (None: of all); a UserError names a file with less or other content."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if length is not None and len(data) < length:
        raise UserError(f"{path} is damaged: it has {len(data)} bytes, fewer than the saved {length}")
    try:
        return dict(json.loads((data[:length].splitlines() or [b"{}"])[-1]))
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged: its last line is not a JSON object") from None
