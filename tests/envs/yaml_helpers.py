"""Scenes from drawings, and counts against exact probabilities."""

from fractions import Fraction

import numpy as np
import torch

from envs.gridverse.objects import (
    BEACON,
    DOOR,
    EAST,
    EXIT,
    FLOOR,
    KEY,
    LOCKED,
    NORTH,
    OBSTACLE,
    OPEN,
    RED,
    TELEPOD,
    WALL,
    Scene,
    pack,
)
from envs.gridverse.yaml.world import Ground

CPU, LIMIT = torch.device("cpu"), 4.0  # a score beyond 4 has a chance of about 1 in 10,000


def uniforms(count, draws, seed=0):
    return torch.rand(count, draws, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def score(found, expected):
    """Chi-square of counts against exact probabilities, as a standard normal score; nothing else may occur."""
    assert sum(expected.values()) == 1
    assert set(found) <= set(expected)
    total = sum(found.values())
    means = np.array([float(chance) * total for chance in expected.values()])
    counts = np.array([found.get(outcome, 0) for outcome in expected])
    freedom = len(expected) - 1
    return (((counts - means) ** 2 / means).sum() - freedom) / np.sqrt(2 * freedom)


def uniform(outcomes):
    outcomes = list(outcomes)
    return {outcome: Fraction(1, len(outcomes)) for outcome in outcomes}


def grid(*lines):
    """One scene from a drawing; capitals are objects, '^' and '>' the agent on floor."""
    codes = {"#": WALL, "E": EXIT, "O": OBSTACLE, "K": KEY}
    special = {"D": pack(DOOR, LOCKED, RED), "d": pack(DOOR, OPEN, RED), "T": pack(TELEPOD, colour=RED)}
    drawn = "".join(lines)
    cells = [special.get(letter, pack(codes.get(letter, FLOOR))) for letter in drawn]
    position = max(drawn.find("^"), drawn.find(">"), 0)
    place = torch.tensor([position])
    heading = torch.tensor([EAST if ">" in drawn else NORTH])
    nothing = torch.zeros_like(place)
    return Scene(torch.tensor([cells], dtype=torch.int16), place, heading, nothing, nothing)


class Shape:
    """A layout of which only the size is asked."""

    def __init__(self, height, width):
        self.height, self.width = height, width


def ground(*lines, **counts):
    kind = {"exit": EXIT, "key": KEY, "obstacle": OBSTACLE, "beacon": BEACON}
    return Ground(Shape(len(lines), len(lines[0])), {kind[k]: v for k, v in counts.items()}, CPU)


def many(scene, count):
    return Scene(*(field.expand(count, *field.shape[1:]) for field in scene))
