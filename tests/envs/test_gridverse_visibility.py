"""Sight along rays, against a walk of every ray through every window one at a time."""

import math

import numpy as np
import pytest
import torch
from world_keywords import uniforms

from envs.gridverse.view import Rays, Raytracing, StochasticRaytracing

VIEW = (7, 7, (6, 3))
WINDOWS = [VIEW, (2, 3, (1, 1)), (5, 5, (2, 2)), (4, 3, (2, 0)), (1, 1, (0, 0))]


def walk(rows, columns, agent, corner):
    """Cells of a ray as they come, with a step of 0.01."""
    angle = math.atan2(corner[0] - agent[0], corner[1] - agent[1])
    y, x, seen = float(agent[0]), float(agent[1]), []
    while True:
        cell = (round(y), round(x))
        if not (0 <= cell[0] < rows and 0 <= cell[1] < columns):
            return seen
        if cell not in seen:
            seen.append(cell)
        y += 0.01 * math.sin(angle)
        x += 0.01 * math.cos(angle)


def count(clear, agent):
    """Rays that reach each cell, and rays in all."""
    rows, columns = clear.shape
    reach, total = np.zeros(clear.shape), np.zeros(clear.shape)
    for i in range(rows + 1):
        for j in range(columns + 1):
            light = True
            for cell in walk(rows, columns, agent, (i - 0.5, j - 0.5)):
                total[cell] += 1
                reach[cell] += light
                light &= bool(clear[cell])
    return reach, total


@pytest.mark.parametrize(("rows", "columns", "agent"), WINDOWS)
def test_counts_are_those_of_a_walk_along_each_ray(rows, columns, agent):
    clear = torch.from_numpy(np.random.default_rng(0).random((6, rows, columns)) < 0.7)
    rays = Rays(rows, columns, agent)
    ours, shares = rays.counts(clear.flatten(1)), rays.shares(clear.flatten(1))
    for row in range(len(clear)):
        reach, total = count(clear[row].numpy(), agent)
        assert np.array_equal(ours[row].view(rows, columns).numpy(), reach)
        expected = np.divide(reach, total, out=np.zeros_like(reach), where=total > 0)
        assert np.array_equal(shares[row].view(rows, columns).numpy(), expected)
    nothing = torch.zeros(6, 0)
    assert torch.equal(Raytracing(rows, columns, agent, threshold=2)(clear, nothing), ours.view_as(clear) >= 2)
    full = Raytracing(rows, columns, agent, absolute_counts=False)(clear, nothing)
    assert torch.equal(full, shares.view_as(clear) == 1)


def test_chance_lights_a_cell_as_often_as_its_share_of_rays_says():
    clear = torch.ones(1, 7, 7, dtype=torch.bool)
    clear[0, 5, 3:5] = False
    sight = StochasticRaytracing(*VIEW)
    often = sight(clear.expand(20_000, -1, -1), uniforms(20_000, sight.draws, seed=1)).double().mean(0)
    share = sight.shares(clear.flatten(1)).view(7, 7)
    error = (share * (1 - share) / 20_000).sqrt()
    assert ((often - share).abs() <= 4.5 * error).all()
    assert ((share > 0.2) & (share < 0.8)).any()
