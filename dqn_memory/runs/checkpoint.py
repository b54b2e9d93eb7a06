"""Checkpoints that a kill, a full disk or a flipped bit cannot make wrong.

A folder of files that are written once under fresh names, and `manifest.json`, renamed last: it alone
says which files are valid, with their sizes and hashes. What an earlier one names is swept away, and what a save that
was cut off had begun: a list of its files lies beside them until the manifest is there. Other files are left alone.
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
_BEGUN = re.compile(r"\.saving\.[0-9a-f]{8}\.tmp")  # the list of files that a save has begun to write
_WRITTEN = re.compile(rf"step_\d+(_\d+)?\.(pt|safetensors)|{REPLAY}/chunk_\d+_\d+(_\d+)?\.safetensors")


@dataclass(frozen=True)
class Columns:
    """Saved columns `start`, start + 1, ...: each tensor (columns, ...); no tensor if none was written."""

    start: int
    data: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """One moment of a run, on the CPU; `replay` is None where it was not saved."""

    step: int
    weights: dict[str, Tensor]
    trainer: dict[str, Any]
    replay: Columns | None
    header: dict[str, str]
    source: Path = Path("checkpoint")
    """File of the weights."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Select the weights of one network, such as "target", by their names in it; empty where it was not saved."""
        named = {full.partition("."): value for full, value in self.weights.items()}
        return {rest: value for (part, _, rest), value in named.items() if part == name}

    def fill(self, network: nn.Module, part: str, misfit: str | None = None) -> None:
        """Load the weights of one part; a UserError that begins with `misfit` names the first of another form.

        One that is not finite is a UserError too, unless it is not in a new network either, as in the buffer of a mask.
        """
        weights, own = self.part(part), network.state_dict()
        for name in (*own, *weights):
            here, there = (list(held[name].shape) if name in held else None for held in (own, weights))
            if here != there:
                begin = misfit or f"the checkpoint's weights do not fit the {part} that its config says"
                raise UserError(f"{begin}: {name} {_shaped(there)} in the checkpoint and {_shaped(here)} here")
        for name, weight in weights.items():
            finite = weight.isfinite()
            if not finite.all() and not (finite | ~own[name].isfinite().to(finite.device)).all():
                raise UserError(f"{self.source} is damaged: its weights {part}.{name} are not all finite numbers")
        network.load_state_dict(weights)


@contextmanager
def foreign_state(run: Path) -> Iterator[None]:
    """Turn what a state of another form makes fail into one sentence."""
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


def check_form(found: Any, own: Any, path: str = "") -> None:
    """Raise a TypeError where a saved state lacks what `own`, a state made here, has, or holds another form of it.

    A dimension that is 0 here, and a list of another length, may be any: they grow while a run goes on. So may the
    length of bytes, as the state of a random generator is another on another device.
    """
    if isinstance(own, dict):
        for key in own:
            if not isinstance(found, dict) or key not in found:
                raise TypeError(f"{path}{key} is missing")
            check_form(found[key], own[key], f"{path}{key}.")
    elif isinstance(own, list | tuple):
        if not isinstance(found, list | tuple):
            raise TypeError(f"{path[:-1]} is no list")
        for index, (there, here) in enumerate(zip(found, own, strict=False)):
            check_form(there, here, f"{path}{index}.")
    elif isinstance(own, Tensor):
        fits = isinstance(found, Tensor) and found.dtype == own.dtype and found.dim() == own.dim()
        free = own.dtype == torch.uint8 and own.dim() == 1
        if not fits or any(not free and here not in (0, n) for here, n in zip(own.shape, found.shape, strict=True)):
            raise TypeError(f"{path[:-1]} has another type or shape")
    elif own is not None and type(found) is not type(own):
        raise TypeError(f"{path[:-1]} is {type(found).__name__} instead of {type(own).__name__}")


def check_actions(state: Any, number: int) -> None:
    """Raise a ValueError where saved actions are none of 0 to `number`, which stands for none yet."""
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
        # Chunks may be continued only by who wrote or read them: another replay buffer's columns differ.
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
        """Write a checkpoint and make it the valid one; raises UserError and changes nothing on failure."""
        with disk_errors(self.folder):
            (self.folder / REPLAY).mkdir(parents=True, exist_ok=True)
        before = self._manifest() if self.exists else None
        taken = set(_named(before))
        try:
            stem = f"step_{step:09d}"
            manifest: Record = {"step": step, "metrics_bytes": len(metrics), "metrics_sha256": sha256(metrics)}
            names = [_fresh(stem, suffix, taken) for suffix in (".safetensors", ".pt")]
            kept, span = ([], None) if replay is None else self._next_span(replay, taken)
            if span is not None:
                names.append(_fresh("{}/chunk_{}_{}".format(REPLAY, *span), ".safetensors", taken))
            self._begin(names)
            manifest["weights"] = self._write(names[0], pack_tensors(weights, WEIGHTS, header))
            manifest["trainer"] = self._write(names[1], pack_trainer(trainer))
            manifest["replay"] = "none"
            if replay is not None:
                manifest["replay"] = self._save_replay(replay, kept, span, names[-1])
            write_atomic(self.folder / MANIFEST, _seal(manifest))
        except BaseException:  # an interrupt may come after the rename too, so ask the disk what is valid
            self._sweep(self._manifest() if self.exists else None, before)
            raise
        self._chunks = [] if replay is None else manifest["replay"]["chunks"]
        self._sweep(manifest, before)

    def load(self, with_replay: bool = True) -> tuple[Checkpoint, Record]:
        """Read the valid checkpoint, and its manifest, which says how long metrics.jsonl was then.

        Raises UserError naming the file that is missing, cut short, altered or foreign.
        """
        manifest = self._manifest()
        while True:
            try:
                return self._load(manifest, with_replay), manifest
            except UserError:
                newer = self._manifest()
                if newer == manifest:
                    raise
                manifest = newer  # a running trainer saved meanwhile and swept the files away

    def drop_replay(self) -> None:
        """Forget the replay, which a finished run no longer needs: a resume is then no longer exact."""
        before = self._manifest()
        manifest = {**before, "replay": "none"}
        write_atomic(self.folder / MANIFEST, _seal(manifest))
        self._chunks = []
        self._sweep(manifest, before)

    def tidy(self, manifest: Record | None) -> None:
        """Delete what a save that was cut off has left beside the valid checkpoint."""
        self._sweep(manifest, None)

    def _load(self, manifest: Record, with_replay: bool) -> Checkpoint:
        path, data = self._read(manifest["weights"])
        weights, header = unpack_tensors(data, WEIGHTS, path)
        source, (path, data) = path, self._read(manifest["trainer"])
        trainer = unpack_trainer(data, path)
        saved: Any = manifest["replay"] if with_replay else "none"
        with foreign_state(self.folder.parent):
            replay = None if saved == "none" else self._load_replay(saved)
        return Checkpoint(manifest["step"], weights, trainer, replay, header, source)

    def _next_span(self, replay: Ring, taken: set[str]) -> tuple[list[Record], tuple[int, int] | None]:
        """Give `next_span`, from the chunks that the valid manifest still names: a save without replay drops them."""
        chunks = self._chunks if all(chunk["file"] in taken for chunk in self._chunks) else []
        return next_span(chunks, replay.oldest, replay.written)

    def _save_replay(self, replay: Ring, kept: list[Record], span: tuple[int, int] | None, name: str) -> Record:
        if span is not None:
            start, stop = span
            data = pack_tensors(replay.columns(start, stop), REPLAY, {"start": str(start), "stop": str(stop)})
            kept = [*kept, {**self._write(name, data), "start": start, "stop": stop}]
        # a ring that grew since the first chunk has columns before it that no chunk ever held
        begin = max(replay.oldest, kept[0]["start"]) if kept else replay.oldest
        return {"start": begin, "stop": replay.written, "chunks": kept}

    def _begin(self, names: list[str]) -> None:
        """List the files that a save will write, so that they are swept away where it never ends."""
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
            raise UserError(f"{path} is damaged: its content is not what was saved")
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
            raise UserError(f"{path} is damaged: its content is not what was saved")
        with foreign_state(self.folder.parent):
            _check_manifest(content)
        return content

    def _sweep(self, manifest: Record | None, before: Record | None) -> None:
        """Delete what is of an earlier checkpoint, or of a save that was cut off, and not of the valid one.

        A file that will not go is no reason to stop.
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
    """Raise a TypeError or a KeyError where a manifest has another form, or names files that are not its own."""
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
    """Manifest with its own hash, since nothing else vouches for it."""
    digest = sha256(json.dumps(content).encode())
    return json.dumps({"format": FORMAT, "sha256": digest, "content": content}, indent=1).encode()


def _fresh(stem: str, suffix: str, taken: set[str]) -> str:
    """Name that the valid checkpoint does not use, since overwriting it could destroy it."""
    name, copy = f"{stem}{suffix}", 1
    while name in taken:
        name, copy = f"{stem}_{copy}{suffix}", copy + 1
    return name


FORMAT_KEY, TENSORS = "format", "dqn-memory {} 1"


def pack_tensors(tensors: dict[str, Tensor], kind: str, header: dict[str, str]) -> bytes:
    """Write named tensors and a header of strings as safetensors; `kind` says what they are."""
    # own storage for each, as safetensors refuses tied tensors and views
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return save(own, metadata={**header, FORMAT_KEY: TENSORS.format(kind)})


def unpack_tensors(data: bytes, kind: str, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `pack_tensors` wrote; raises UserError naming `path` for anything else."""
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
    """Read trainer state on the CPU without running any code in it."""
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each way of being broken
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is no trainer state that can be read safely: {reason}") from None
    if not isinstance(state, dict):
        raise UserError(f"{path} is foreign: it holds a {type(state).__name__}, not a trainer's state")
    return state


def next_span(
    chunks: list[dict[str, Any]], begin: int, written: int
) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
    """Chunks that still reach into begin..written, and the span that none of them holds yet."""
    saved = chunks[-1]["stop"] if chunks else 0
    if saved > written:  # another, younger ring: nothing of the old one is part of it
        chunks, saved = [], 0
    kept = [chunk for chunk in chunks if chunk["stop"] > begin]
    start = max(saved, begin)
    return kept, (start, written) if start < written else None


def columns_from(parts: list[tuple[int, dict[str, Tensor]]], begin: int) -> Columns:
    """Join chunks (number of the first column, tensors), without the columns older than `begin`."""
    if not parts:
        return Columns(begin, {})
    dead = begin - parts[0][0]
    joined = {name: torch.cat([part[name] for _, part in parts])[dead:] for name in parts[0][1]}
    return Columns(begin, joined)
