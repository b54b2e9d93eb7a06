"""One computed row with what made it, and the file that keeps all rows."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.baselines.known import Lines, from_plain, plain
from envs.errors import UserError


@dataclass(frozen=True)
class Record:
    """Lines, and how they came about."""

    lines: Lines
    command: str
    machine: str
    seconds: float


Records = Mapping[str, Record]


def read(path: Path) -> dict[str, Record]:
    """Records by id; none where there is no file yet.

    Raises:
        UserError: the file is something else.
    """
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {id: _record(id, entry) for id, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no table of baselines; move it away or choose another --folder.") from None


def as_json(records: Records) -> str:
    """The text that `read` reads."""
    entries = {}
    for id, record in records.items():
        made = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)[1:]}
        entries[id] = plain(record.lines) | made
    return json.dumps(entries, indent=1) + "\n"


def put(path: Path, text: str) -> None:
    """Write a file so that a reader, and a crash, sees the old one or the new one.

    Raises:
        UserError: the system refuses.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.") from error


def revision() -> str:
    """The git revision of this code, with a + where files differ from it; "unknown" outside a checkout."""
    folder = Path(__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "../core.py") is None:
        return "unknown"
    head, changes = _git(folder, "rev-parse", "--short=10", "HEAD"), _git(folder, "status", "--porcelain")
    return f"{head}{'+' if changes else ''}"


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _record(id: str, entry: dict[str, Any]) -> Record:
    made = {name: entry.pop(name) for name in ("command", "machine", "seconds")}
    return Record(from_plain(id, entry), **made)


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
