"""Independent random streams from one seed, so that no part of a run shifts another's draws."""

from dataclasses import dataclass, fields

import numpy as np
import torch


@dataclass(frozen=True)
class Streams:
    """One 63-bit seed for each use of randomness in a run."""

    worlds: int
    exploration: int
    replay: int
    evaluation: int
    network: int
    dropout: int
    dreams: int

    @classmethod
    def spawn(cls, seed: int) -> "Streams":
        """Derive all streams from a non-negative seed; a stream added at the end changes no other."""
        names = [field.name for field in fields(cls)]
        children = np.random.SeedSequence(seed).spawn(len(names))
        return cls(**{name: _seed(child) for name, child in zip(names, children, strict=True)})


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Give a generator on `device` that starts at `seed`."""
    return torch.Generator(device).manual_seed(seed)


def _seed(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))  # torch takes signed 64 bits
