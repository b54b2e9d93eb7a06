"""One computed row with what made it, and the file that keeps all rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.baselines.known import Lines, from_plain, plain
from envs.files import read_entries


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
    return read_entries(path, _record, "baselines")


def as_json(records: Records) -> str:
    """The text that `read` reads."""
    entries = {}
    for id, record in records.items():
        made = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)[1:]}
        entries[id] = plain(record.lines) | made
    return json.dumps(entries, indent=1) + "\n"


def _record(id: str, entry: dict[str, Any]) -> Record:
    made = {name: entry.pop(name) for name in ("command", "machine", "seconds")}
    return Record(from_plain(id, entry), **made)
