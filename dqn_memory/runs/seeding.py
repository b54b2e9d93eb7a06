"""Independent random streams from one seed, so that no part of a run shifts another's draws."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

_global = threading.RLock()  # on torch's default generators, which runs in several threads share


@dataclass(frozen=True)
class Streams:
    """One 63-bit seed for each use of randomness in a run.

    A generator on a CPU reads the low 32 bits of its seed, one on a GPU all of them. Hashes of the whole seed of a run
    fill all bits, so that runs whose seeds differ in high bits alone draw different numbers.
    """

    worlds: int
    exploration: int
    replay: int
    evaluation: int
    network: int
    dropout: int
    imagination: int

    @classmethod
    def spawn(cls, seed: int) -> "Streams":
        """Derive all streams from a non-negative seed; a stream added at the end changes no other."""
        names = [field.name for field in fields(cls)]
        children = np.random.SeedSequence(seed).spawn(len(names))
        drawn = [int(child.generate_state(1, np.uint64)[0]) >> 1 for child in children]  # torch takes signed 64 bits
        return cls(**dict(zip(names, drawn, strict=True)))


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Give a generator on `device` that starts at `seed`."""
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let modules that are built inside draw their first values from `seed`, and leave the default generator alone."""
    with _global, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def seed_dropout(seed: int) -> None:
    """Begin the stream of dropout, which draws from the default generators; nothing else of a run does."""
    with _global:
        torch.manual_seed(seed)


def dropout_state(device: torch.device) -> dict[str, Any]:
    """Read what all of the process shares: the number of threads, and dropout's default generators."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"threads": torch.get_num_threads(), "dropout": torch.get_rng_state(), "dropout_cuda": cuda}


def restore_dropout(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the process back where `dropout_state` was taken; a GPU's generator stays where there was none then."""
    torch.set_num_threads(state["threads"])
    torch.set_rng_state(state["dropout"])
    if state["dropout_cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["dropout_cuda"], device)
