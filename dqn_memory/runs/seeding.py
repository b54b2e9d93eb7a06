"""Derive independent random streams from one seed: no part of a run shifts another's draws."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

_global = threading.RLock()  # guards torch's default generators, which all threads share


@dataclass(frozen=True)
class Streams:
    """One 63-bit seed for each use of randomness in a run.

    The seeds are hashes of the run's seed. CPU generators use only the low 32 bits of a seed, so unhashed seeds that
    differ only in their high bits would draw the same numbers.
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
    """Seed the initialisation of modules that are built inside; the default generator is restored at the end."""
    with _global, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def seed_dropout(seed: int) -> None:
    """Seed dropout, the only user of the default generators."""
    with _global:
        torch.manual_seed(seed)


def dropout_state(device: torch.device) -> dict[str, Any]:
    """Read the number of threads and the default generators, which dropout uses."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"threads": torch.get_num_threads(), "dropout": torch.get_rng_state(), "dropout_cuda": cuda}


def restore_dropout(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore `dropout_state`; the generator of a GPU stays as it is if none was saved."""
    torch.set_num_threads(state["threads"])
    torch.set_rng_state(state["dropout"])
    if state["dropout_cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["dropout_cuda"], device)
