"""Write and read checkpoints that a kill, a full disk or a flipped bit cannot corrupt unnoticed.

Every file of a checkpoint is written once, under a fresh name. `manifest.json` is renamed last: it alone lists the
valid files, with their sizes and hashes. A save then deletes the files of the earlier manifest. It also deletes the
files of a save that was cut off: such a save has left a list of its files. Other files in the folder stay.
"""

import io
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dqn_memory.runs.errors import SHORT_OF_MEMORY, UserError, train_anew
from dqn_memory.runs.ring import Ring
from envs.files import (
    MAX_TEXT_BYTES,
    check_inside,
    disk_errors,
    leftovers,
    open_file,
    parse_json,
    read_bytes,
    sha256,
    write_atomic,
)
from envs.machine import device_memory

MANIFEST = "manifest.json"
FORMAT = "dqn-memory checkpoint 1"
WEIGHTS, REPLAY = "weights", "replay"
Record = dict[str, Any]
_OWN = re.compile(rf"(?:{REPLAY}/)?\w[\w.]*")  # a file's name, relative to the folder, or a hash
_BEGUN = re.compile(r"\.saving\.[0-9a-f]{8}\.tmp")  # the list of a save's files, deleted at its end
_WRITTEN = re.compile(rf"step_\d+(_\d+)?\.(pt|safetensors)|{REPLAY}/chunk_\d+_\d+(_\d+)?\.safetensors")


@dataclass(frozen=True)
class Columns:
    """Saved columns `start`, start + 1, ... as tensors (columns, ...); no tensor if none was written."""

    start: int
    data: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """One moment of a run, on the CPU; `replay` is None if it was not saved."""

    step: int
    weights: dict[str, Tensor]
    trainer: dict[str, Any]
    replay: Columns | None
    header: dict[str, str]
    source: Path = Path("checkpoint")
    """File of the weights."""
    digest: str = ""
    """SHA-256 of that file."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Select the weights of one network, such as "target", by their names in it; empty if it was not saved."""
        split = {full.partition("."): value for full, value in self.weights.items()}
        return {rest: value for (part, _, rest), value in split.items() if part == name}

    def fill(self, network: nn.Module, part: str, misfit: str | None = None) -> None:
        """Load the weights of one part; a UserError that begins with `misfit` names the first one of another form.

        A weight that is not finite is a UserError too, unless it is not finite in a new network either (a mask).
        """
        weights, own = self.part(part), network.state_dict()
        for name in (*own, *weights):
            here, there = (list(side[name].shape) if name in side else None for side in (own, weights))
            if here != there:
                begin = misfit or f"the checkpoint's weights do not fit the {part} of its config"
                raise UserError(f"{begin}: {name} {_shaped(there)} in the checkpoint and {_shaped(here)} here")
        for name, weight in weights.items():
            finite = weight.isfinite()
            if not finite.all() and not (finite | ~own[name].isfinite().to(finite.device)).all():
                raise UserError(f"{self.source} is damaged: its weights {part}.{name} are not all finite numbers")
        network.load_state_dict(weights)

    def take(self, network: nn.Module, part: str) -> set[str]:
        """Load the weights of a part that fit the network by name and shape; give the network's names that got none.

        Raises:
            UserError: a weight is not finite.
        """
        weights, own = self.part(part), network.state_dict()
        fits = {name: each for name, each in weights.items() if name in own and each.shape == own[name].shape}
        for name, weight in fits.items():
            if not weight.isfinite().all():
                raise UserError(f"{self.source} is damaged: its weights {part}.{name} are not all finite numbers")
        network.load_state_dict(own | fits)
        return {name for name in own if name not in fits}


@contextmanager
def foreign_state(run: Path) -> Iterator[None]:
    """Turn exceptions that a state of another form raises into one sentence."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        if SHORT_OF_MEMORY.search(str(error)):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
        raise UserError(
            f"the checkpoint of {run} is foreign: its state does not fit here ({reason}); {train_anew(run)}"
        ) from None


def check_form(saved: Any, own: Any, path: str = "") -> None:
    """Raise a TypeError if a saved state lacks an entry of `own`, a new state, or has another form of it.

    Lists may have another length, and a dimension that is 0 in `own` may have any size: both grow during a run. Bytes
    may have another length, because the state of a random generator differs between devices.
    """
    if isinstance(own, dict):
        for key in own:
            if not isinstance(saved, dict) or key not in saved:
                raise TypeError(f"{path}{key} is missing")
            check_form(saved[key], own[key], f"{path}{key}.")
    elif isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple):
            raise TypeError(f"{path[:-1]} is no list")
        for index, (there, here) in enumerate(zip(saved, own, strict=False)):
            check_form(there, here, f"{path}{index}.")
    elif isinstance(own, Tensor):
        fits = isinstance(saved, Tensor) and saved.dtype == own.dtype and saved.dim() == own.dim()
        free = own.dtype == torch.uint8 and own.dim() == 1
        if not fits or any(not free and here not in (0, n) for here, n in zip(own.shape, saved.shape, strict=True)):
            raise TypeError(f"{path[:-1]} has another type or shape")
    elif own is not None and type(saved) is not type(own):
        raise TypeError(f"{path[:-1]} is {type(saved).__name__} instead of {type(own).__name__}")


def check_actions(state: Any, number: int) -> None:
    """Raise a ValueError if a saved action is not from 0 to `number`; `number` itself stands for no action yet."""
    for key, value in state.items() if isinstance(state, dict) else ():
        if isinstance(value, Tensor) and "action" in key and value.dtype == torch.int64 and value.numel():
            least, largest = value.aminmax()
            if least < 0 or largest > number:
                raise ValueError(f"{key} holds {int(least)} to {int(largest)}, but there are {number} actions")
        check_actions(value, number)


def _shaped(shape: list[int] | None) -> str:
    return "is missing" if shape is None else f"has the shape {shape}"


class CheckpointFolder:
    """Writes and reads the one latest checkpoint of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        check_inside(folder.parent, folder.name, f"{folder.name}/{REPLAY}")
        # Only the object that wrote or read chunks may continue them: another replay buffer's columns differ.
        self._chunks: list[Record] = []

    @property
    def exists(self) -> bool:
        """Whether there is a checkpoint at all."""
        return os.path.lexists(self.folder / MANIFEST)

    def save(
        self,
        step: int,
        weights: dict[str, Tensor],
        trainer: dict[str, Any],
        replay: Ring | None,
        header: dict[str, str],
        metrics: bytes,
    ) -> None:
        """Write a checkpoint and make it the valid one; a failure raises a UserError and changes nothing."""
        with disk_errors(self.folder):
            (self.folder / REPLAY).mkdir(parents=True, exist_ok=True)
        before = self._manifest() if self.exists else None
        taken = set(_named(before))
        try:
            stem = f"step_{step:09d}"
            manifest: Record = {"step": step, "metrics_bytes": len(metrics), "metrics_sha256": sha256(metrics)}
            names = [_fresh(stem, suffix, taken) for suffix in (".safetensors", ".pt")]
            # the chunks that the valid manifest still names: a save without replay drops them
            chunks = self._chunks if all(chunk["file"] in taken for chunk in self._chunks) else []
            kept, span = ([], None) if replay is None else next_span(chunks, replay.oldest, replay.written)
            if span is not None:
                names.append(_fresh("{}/chunk_{}_{}".format(REPLAY, *span), ".safetensors", taken))
            self._begin(names)
            manifest["weights"] = self._write(names[0], pack_tensors(weights, WEIGHTS, header))
            manifest["trainer"] = self._write(names[1], pack_trainer(trainer))
            manifest["replay"] = "none"
            if replay is not None:
                manifest["replay"] = self._save_replay(replay, kept, span, names[-1])
            write_atomic(self.folder / MANIFEST, _seal(manifest))
        except BaseException:  # an interrupt may come after the rename too, so the disk says which one is valid
            self._sweep(self._manifest() if self.exists else None, before)
            raise
        self._chunks = [] if replay is None else manifest["replay"]["chunks"]
        self._sweep(manifest, before)

    def load(self, with_replay: bool = True) -> tuple[Checkpoint, Record]:
        """Read the valid checkpoint and its manifest, which holds the length of metrics.jsonl at that time.

        Raises:
            UserError: a file is missing, cut short, altered or foreign; the error names it.
        """
        manifest = self._manifest()
        while True:
            try:
                return self._load(manifest, with_replay), manifest
            except UserError:
                newer = self._manifest()
                if newer == manifest:
                    raise
                manifest = newer  # a running trainer has saved meanwhile and deleted the files

    def drop_replay(self) -> None:
        """Delete the replay, which a finished run no longer needs; a resume is then not exact."""
        before = self._manifest()
        manifest = {**before, "replay": "none"}
        write_atomic(self.folder / MANIFEST, _seal(manifest))
        self._chunks = []
        self._sweep(manifest, before)

    def tidy(self, manifest: Record | None) -> None:
        """Delete the files that a save that was cut off has left beside the valid checkpoint."""
        self._sweep(manifest, None)

    def _load(self, manifest: Record, with_replay: bool) -> Checkpoint:
        path, data = self._read(manifest["weights"])
        weights, header = unpack_tensors(data, WEIGHTS, path)
        source, (path, data) = path, self._read(manifest["trainer"])
        trainer = unpack_trainer(data, path)
        saved: Any = manifest["replay"] if with_replay else "none"
        with foreign_state(self.folder.parent):
            replay = None if saved == "none" else self._load_replay(saved)
        return Checkpoint(manifest["step"], weights, trainer, replay, header, source, manifest["weights"]["sha256"])

    def _save_replay(self, replay: Ring, kept: list[Record], span: tuple[int, int] | None, name: str) -> Record:
        if span is not None:
            start, stop = span
            data = pack_tensors(replay.columns(start, stop), REPLAY, {"start": str(start), "stop": str(stop)})
            kept = [*kept, {**self._write(name, data), "start": start, "stop": stop}]
        # a ring that grew since the first chunk has earlier columns that are in no chunk
        begin = max(replay.oldest, kept[0]["start"]) if kept else replay.oldest
        return {"start": begin, "stop": replay.written, "chunks": kept}

    def _begin(self, names: list[str]) -> None:
        """List the files that a save will write, so that a later save or resume deletes them if this one ends early."""
        with disk_errors(self.folder), open_file(self.folder / f".saving.{secrets.token_hex(4)}.tmp", "xb") as file:
            file.write("\n".join(names).encode())

    def _load_replay(self, record: Record) -> Columns:
        parts = []
        for chunk in record["chunks"]:
            path, data = self._read(chunk)
            parts.append((chunk["start"], unpack_tensors(data, REPLAY, path)[0]))
        self._chunks = record["chunks"]
        return columns_from(parts, record["start"])

    def _write(self, name: str, data: bytes) -> Record:
        write_atomic(self.folder / name, data)
        return {"file": name, "size": len(data), "sha256": sha256(data)}

    def _read(self, record: Record) -> tuple[Path, bytes]:
        path = self.folder / record["file"]
        try:
            size = path.lstat().st_size
            room = device_memory()
            if room is not None and size > room[0]:
                raise UserError(f"{path} has {size:,} bytes, more than the {room[0]:,} bytes of memory that are free")
            data = read_bytes(path, record["size"]) if size == record["size"] else None
        except OSError as error:
            raise UserError(f"cannot read the checkpoint file {path}: {error.strerror}") from None
        if data is None:
            raise UserError(f"{path} is damaged: it has {size} bytes, not {record['size']}")
        if sha256(data) != record["sha256"]:
            raise UserError(f"{path} is damaged: its content has changed since the save")
        return path, data

    def _manifest(self) -> Record:
        path = self.folder / MANIFEST
        try:
            manifest = parse_json(read_bytes(path, MAX_TEXT_BYTES))
        except FileNotFoundError:
            raise UserError(f"{self.folder.parent} holds no checkpoint yet (no {path})") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise UserError(f"{path} is foreign: it is not a '{FORMAT}'")
        content: Record = manifest.get("content", {})
        if manifest.get("sha256") != sha256(json.dumps(content).encode()):
            raise UserError(f"{path} is damaged: its content has changed since the save")
        with foreign_state(self.folder.parent):
            _check_manifest(content)
        return content

    def _sweep(self, manifest: Record | None, before: Record | None) -> None:
        """Delete the files of an earlier checkpoint, or of a save that was cut off, except those of the valid one.

        Files that cannot be deleted stay without an error.
        """
        with suppress(OSError):
            left = leftovers(self.folder)
            lists = [path for path in left if _BEGUN.fullmatch(path.name)]
            begun = [
                name for path in lists for name in read_bytes(path, MAX_TEXT_BYTES).decode(errors="replace").split()
            ]
            gone = {*_named(before), *filter(_WRITTEN.fullmatch, begun)}.difference(_named(manifest), (MANIFEST,))
            halves = [*(path for path in left if path not in lists), *leftovers(self.folder / REPLAY)]
            for path in (*(self.folder / name for name in sorted(gone)), *halves, *lists):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _named(manifest: Record | None) -> Iterator[str]:
    if manifest is None:
        return
    yield manifest["weights"]["file"]
    yield manifest["trainer"]["file"]
    if manifest["replay"] != "none":
        yield from (chunk["file"] for chunk in manifest["replay"]["chunks"])


def _check_manifest(content: Record) -> None:
    """Raise a TypeError or a KeyError if a manifest has another form, or names a file outside of the folder."""
    numbers = [content["step"], content["metrics_bytes"]]
    files = [content["weights"], content["trainer"]]
    if content["replay"] != "none":
        numbers.append(content["replay"]["start"])
        files += content["replay"]["chunks"]
        numbers += [chunk[end] for chunk in content["replay"]["chunks"] for end in ("start", "stop")]
    numbers += [record["size"] for record in files]
    names = [record[key] for record in files for key in ("file", "sha256")]
    if not all(type(number) is int and number >= 0 for number in numbers) or not all(map(_OWN.fullmatch, names)):
        raise TypeError("its manifest has another form")


def _seal(content: Record) -> bytes:
    """Encode a manifest together with its hash, because no other file holds that."""
    digest = sha256(json.dumps(content).encode())
    return json.dumps({"format": FORMAT, "sha256": digest, "content": content}, indent=1).encode()


def _fresh(stem: str, suffix: str, taken: set[str]) -> str:
    """Choose a name that the valid checkpoint does not use; overwriting a file of it could destroy it."""
    name, copy = f"{stem}{suffix}", 1
    while name in taken:
        name, copy = f"{stem}_{copy}{suffix}", copy + 1
    return name


FORMAT_KEY, TENSORS = "format", "dqn-memory {} 1"


def pack_tensors(tensors: dict[str, Tensor], kind: str, header: dict[str, str]) -> bytes:
    """Write named tensors and a header of strings as safetensors; `kind` is their kind in the header."""
    # each has its own storage, because safetensors refuses tied tensors and views
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return save(own, metadata={**header, FORMAT_KEY: TENSORS.format(kind)})


def unpack_tensors(data: bytes, kind: str, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the result of `pack_tensors`; for other data a UserError names `path`."""
    wanted = TENSORS.format(kind)
    try:
        size = int.from_bytes(data[:8], "little")
        tensors, header = load(data), parse_json(data[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{path} is no safetensors file: {' '.join(str(error).split())}") from None
    found = header.pop(FORMAT_KEY, None)
    if found != wanted:
        raise UserError(f"{path} is foreign: its header says '{found}', not '{wanted}'")
    return tensors, header


def pack_trainer(state: dict[str, Any]) -> bytes:
    """Write nested plain Python values and tensors as torch does."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack_trainer(data: bytes, path: Path) -> dict[str, Any]:
    """Read a trainer's state onto the CPU without running code in it."""
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each kind of damage
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is no trainer state that can be read safely: {reason}") from None
    if not isinstance(state, dict):
        raise UserError(f"{path} is foreign: it holds a {type(state).__name__}, not a trainer's state")
    return state


def next_span(
    chunks: list[dict[str, Any]], begin: int, written: int
) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
    """Give the chunks that overlap columns begin..written, and the span that is in none of them."""
    saved = chunks[-1]["stop"] if chunks else 0
    if saved > written:  # another, younger ring, which shares no column with the old one
        chunks, saved = [], 0
    kept = [chunk for chunk in chunks if chunk["stop"] > begin]
    start = max(saved, begin)
    return kept, (start, written) if start < written else None


def columns_from(parts: list[tuple[int, dict[str, Tensor]]], begin: int) -> Columns:
    """Join chunks (number of the first column, tensors), without columns older than `begin`."""
    if not parts:
        return Columns(begin, {})
    expired = begin - parts[0][0]
    joined = {name: torch.cat([part[name] for _, part in parts])[expired:] for name in parts[0][1]}
    return Columns(begin, joined)
