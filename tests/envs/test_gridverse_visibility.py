"""Sight along rays, against a walk of every ray through every window one at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.gridverse.view import Rays, Raytracing, StochasticRaytracing

WINDOWS = [(7, 7, (6, 3)), (2, 3, (1, 1)), (5, 5, (2, 2)), (4, 3, (2, 0)), (1, 1, (0, 0))]


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


def test_between_walls_the_agent_sees_its_own_cell_and_those_next_to_it():
    clear = torch.zeros(1, 7, 7, dtype=torch.bool)
    clear[0, 6, 3] = True
    lit = Raytracing(7, 7, (6, 3))(clear, (6, 3), torch.zeros(1, 0))[0]
    assert lit[6, 2:5].all() and lit[5, 3]
    assert not lit[:5].any() and not lit[:, :2].any() and not lit[:, 5:].any()


def test_a_wall_casts_a_shadow():
    clear = torch.ones(1, 7, 7, dtype=torch.bool)
    clear[0, 4, 3] = False
    lit = Raytracing(7, 7, (6, 3))(clear, (6, 3), torch.zeros(1, 0))[0]
    assert lit[4, 3] and not lit[:4, 3].any() and lit[:, 0].all() and lit[:, 6].all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=49, max_size=49), st.integers(1, 9))
def test_higher_thresholds_and_more_walls_light_less(cells, threshold):
    clear = torch.tensor(cells).view(1, 7, 7)
    nothing = torch.zeros(1, 0)
    low = Raytracing(7, 7, (6, 3), True, threshold)(clear, (6, 3), nothing)
    assert not (Raytracing(7, 7, (6, 3), True, threshold + 1)(clear, (6, 3), nothing) & ~low).any()
    clear[0, 3] = False
    assert not (Raytracing(7, 7, (6, 3), True, threshold)(clear, (6, 3), nothing) & ~low).any()
    full = Raytracing(7, 7, (6, 3), False, 1.0)(clear, (6, 3), nothing)
    shares = Rays(7, 7, (6, 3)).shares(clear.flatten(1)).view(1, 7, 7)
    assert torch.equal(full, shares == 1.0)


def test_chance_lights_a_cell_as_often_as_its_share_of_rays_says():
    clear = torch.ones(1, 7, 7, dtype=torch.bool)
    clear[0, 5, 3:5] = False
    sight = StochasticRaytracing(7, 7, (6, 3))
    draws = torch.rand(20_000, sight.draws, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    often = sight(clear.expand(20_000, -1, -1), (6, 3), draws).double().mean(0)
    share = sight.rays.shares(clear.flatten(1)).view(7, 7)
    error = (share * (1 - share) / 20_000).sqrt()
    assert ((often - share).abs() <= 4.5 * error).all()
    assert ((share > 0.2) & (share < 0.8)).any()
