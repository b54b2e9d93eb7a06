"""Observation functions of gridverse YAML files: a window round the agent, and which of its cells are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from envs.errors import UserError
from envs.gridverse.view import VISIBILITIES, Area, Cell, Raytracing, StochasticRaytracing, View, Visibility
from envs.gridverse.yaml_file import build
from envs.gridverse.yaml_ground import Ground
from envs.gridverse.yaml_values import Place


def _frame(area: Area) -> tuple[int, int, Cell]:
    """Rows and columns of a window, and the agent's (row, column) in it."""
    (top, bottom), (left, right) = area
    return bottom - top + 1, right - left + 1, (-top, -left)


def fully_transparent(area: Area, device: torch.device) -> Visibility:
    """Everything in the window is seen."""
    return VISIBILITIES["fully_transparent"]


def partially_occluded(area: Area, device: torch.device) -> Visibility:
    """What a flood from the agent, ahead and to the sides, reaches."""
    if area[0][1] != 0:
        raise UserError(f"partially_occluded needs the agent in the last row of its area, [[..., 0], ...], not {area}.")
    return VISIBILITIES["partially_occluded"]


def raytracing(area: Area, device: torch.device, absolute_counts: bool = True, threshold: float = 1.0) -> Visibility:
    """What enough rays from the agent reach."""
    return Raytracing(*_frame(area), absolute_counts, threshold, device)


def stochastic_raytracing(area: Area, device: torch.device) -> Visibility:
    """Every cell by chance, with the share of its rays that reach it."""
    return StochasticRaytracing(*_frame(area), device)


SIGHTS: dict[str, Callable[..., Visibility]] = {
    builder.__name__: builder for builder in (fully_transparent, partially_occluded, raytracing, stochastic_raytracing)
}


def _view(name: str) -> Callable[..., View]:
    """The observation function that has a window and one fixed way of seeing."""

    def plain(ground: Ground, area: Area) -> View:
        return View(ground.height, ground.width, area, SIGHTS[name](area, ground.device), device=ground.device)

    return plain


def _traced(ground: Ground, area: Area, absolute_counts: bool = True, threshold: float = 1.0) -> View:
    sight = raytracing(area, ground.device, absolute_counts, threshold)
    return View(ground.height, ground.width, area, sight, device=ground.device)


def _from_visibility(ground: Ground, area: Area, visibility_function: tuple[Any, Place]) -> View:
    sight = build(SIGHTS, *visibility_function, area, ground.device)
    return View(ground.height, ground.width, area, sight, device=ground.device)


OBSERVATIONS: dict[str, Callable[..., View]] = {
    "from_visibility": _from_visibility,
    "fully_transparent": _view("fully_transparent"),
    "partially_occluded": _view("partially_occluded"),
    "raytracing": _traced,
    "stochastic_raytracing": _view("stochastic_raytracing"),
}
