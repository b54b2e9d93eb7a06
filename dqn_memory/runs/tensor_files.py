"""Tensors as bytes and back: safetensors for weights and replay, torch's own format for trainer state."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dqn_memory.runs.errors import UserError

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
        tensors, header = load(data), _header(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{path} is no safetensors file: {' '.join(str(error).split())}") from None
    found = header.pop(FORMAT_KEY, None)
    if found != wanted:
        raise UserError(f"{path} is foreign: its header says '{found}', not '{wanted}'")
    return tensors, header


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read one weights file and its header, wherever it lies."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the weights file {path}: {error.strerror}") from None
    return unpack_tensors(data, "weights", path)


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


def _header(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    return metadata
