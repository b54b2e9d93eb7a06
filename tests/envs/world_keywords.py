"""All ids, what those need that are made from a file, and the uniforms that environments draw by."""

from pathlib import Path

import torch

from envs import WORLDS
from envs.registry import make_world

IDS = sorted(WORLDS)
DATA = Path(__file__).parents[1] / "data" / "envs"
FILES = {
    "Gridverse/Yaml-v0": {"path": "dynamic_obstacles.5x5"},
    "POMDP/File-v0": {"path": str(DATA / "pomdp" / "tiger.pomdp")},
}


def keywords(id, **kwargs):
    """The keywords without which a world cannot be made, and others."""
    return {**FILES.get(id, {}), **kwargs}


def build(id, *args, **kwargs):
    return make_world(id, *args, **keywords(id, **kwargs))


def uniforms(*shape, seed=0, generator=None):
    generator = generator or torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)
