"""Keep a study's raw numbers: small files from which its report can be made again without its checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dqn_memory.analysis.attention import Maps
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import METRICS, RAW, disk_errors, sha256, write_atomic
from dqn_memory.runs.metrics import shortened
from dqn_memory.study.report_attention import groups, maps_of
from dqn_memory.study.report_data import Data, Entry, plain
from dqn_memory.study.report_source import ATTENTION, FACTS, FORMAT, READINGS, RECORD, placeless, plain_run


def record(data: Data, folder: Path, attention: bool = True) -> None:
    """Put what the report is made from into `folder`; an earlier record of the same study there is replaced.

    A UserError where the folder holds something else, or runs that the study lacks, or is itself the source.
    """
    _check(data, folder)
    shown = {each.run.name: _maps(data, each) for each in groups(data)} if attention else {}
    files = {"study.toml": (data.source.folder / "study.toml").read_bytes()}
    for entry in data.entries:
        kept = _files(data, entry, shown)
        files |= {f"runs/{entry.run.name}/{name}": text for name, text in kept.items()}
    content: dict[str, Any] = {
        "format": FORMAT,
        "study": {name: getattr(data.source, name) for name in FACTS},
        "runs": [plain_run(run) for run in data.source.runs],
        "files": {name: sha256(text) for name, text in files.items()},
    }
    with disk_errors(folder):
        shutil.rmtree(folder / "runs", ignore_errors=True)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(folder / name, text)
    write_atomic(folder / RECORD, json.dumps(content, indent=1).encode())


def _check(data: Data, folder: Path) -> None:
    if data.source.recorded:
        raise UserError(f"{data.source.folder} is a record already: give --record with the study's own folder")
    if not folder.exists():
        return
    path = folder / RECORD
    if not folder.is_dir() or (not path.is_file() and any(folder.iterdir())):
        raise UserError(f"{folder} holds something else than a record of a study: choose another folder")
    if path.is_file():
        _check_replaced(data, path)


def _check_replaced(data: Data, path: Path) -> None:
    """That an earlier record is of this study, and that none of its runs would be lost."""
    try:
        content = json.loads(path.read_bytes())
        name, kept = content["study"]["name"], {run["name"] for run in content["runs"] if run["state"] == "finished"}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged: delete it to record anew") from None
    folder = path.parent
    if name != data.source.name:
        raise UserError(f"{folder} holds the record of the study {name}, not of {data.source.name}: choose another")
    if lost := sorted(kept - {entry.run.name for entry in data.entries}):
        raise UserError(
            f"{folder} holds {len(lost)} finished runs that this study lacks, such as {lost[0]}: take them over first "
            f"with study.run --take-from {folder}, or choose another folder"
        )


def _maps(data: Data, entry: Entry) -> Maps | None:
    """The maps of a run, None where it has none or its checkpoint is gone; the report says why."""
    try:
        return maps_of(data, entry)
    except UserError:
        return None


def _files(data: Data, entry: Entry, shown: dict[str, Maps | None]) -> dict[str, bytes]:
    """A run's raw files by name, without this machine's paths."""
    source, present = data.source, [name for name in RAW if (entry.run.folder / name).is_file()]
    found = {name: placeless((entry.run.folder / name).read_bytes(), source.folder, source.name) for name in present}
    found[METRICS] = shortened(found[METRICS])
    found[READINGS] = json.dumps(plain(entry), indent=1).encode()
    maps = shown.get(entry.run.name)
    if maps is not None:
        found[ATTENTION] = json.dumps(maps.plain(), separators=(",", ":")).encode()
    return found
