"""Files of numbers by world that scripts keep and add to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from envs.errors import UserError

Entry = TypeVar("Entry")


def read_entries(path: Path, entry: Callable[[str, dict[str, Any]], Entry], what: str) -> dict[str, Entry]:
    """What `entry` makes of each world's id and its plain values; none where there is no file yet.

    Raises:
        UserError: the file is no table of `what`.
    """
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {id: entry(id, values) for id, values in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no table of {what}; move it away or choose another --folder.") from None


def make_folder(folder: Path) -> None:
    """Make a folder, or find out before a long computation that its results could not be written there.

    Raises:
        UserError: the system refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}; choose another --folder.") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"Cannot write to {folder}: it is protected; choose another --folder.")


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
