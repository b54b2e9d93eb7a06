"""Transition functions of gridverse YAML files that move things by chance, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from envs.gridverse.objects import BOX, CODES, FLOOR, OBSTACLE, TELEPOD, Rule, Scene, kinds, pack
from envs.gridverse.picks import pick
from envs.gridverse.rules import ACTUATE, ActuateDoor, Front, Motion, PickAndDrop, at, put
from envs.gridverse.yaml_ground import Ground


class MoveObstacles:
    """Every moving obstacle goes to a uniformly chosen floor cell next to it, if there is one.

    They go one after the other, in the row-major order of where they all stood before, each in the grid that the
    ones before it have left. The agent is no obstacle to them: the floor it stands on is floor.
    """

    def __init__(self, height: int, width: int, count: int, device: torch.device) -> None:
        self.draws = count
        self.size, self.inside = height * width, width + 1
        self.cell = torch.arange(self.size, device=device)
        self.steps = torch.tensor([-width, width, -1, 1], device=device)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        """The scene after all obstacles have moved by uniforms u (N, count)."""
        if not self.draws:
            return scene
        cells, places = scene.cells, self._places(scene.cells)
        for place, draw in zip(places.unbind(1), u.unbind(1), strict=True):
            cells = self._move(cells, place, draw)
        return scene._replace(cells=cells)

    def _places(self, cells: Tensor) -> Tensor:
        """Flat positions (N, count) of the obstacles in row-major order; H*W where a row has fewer."""
        places = torch.where(kinds(cells) == OBSTACLE, self.cell, self.size)  # (N, H*W)
        return places.topk(self.draws, 1, largest=False, sorted=True).values

    def _move(self, cells: Tensor, place: Tensor, u: Tensor) -> Tensor:
        """Cells after the obstacle at each place (N,) has moved."""
        start = torch.where(place < self.size, place, self.inside)
        around = start[:, None] + self.steps  # (N, 4)
        free = cells.gather(1, around) == pack(FLOOR)
        moves = free.any(1) & (place < self.size)
        target = torch.where(moves, around.gather(1, pick(free, u)[:, None])[:, 0], start)
        left = put(cells, start, torch.where(moves, pack(FLOOR), at(cells, start)))
        return put(left, target, torch.where(moves, pack(OBSTACLE), at(left, target)))


class Teleport:
    """An agent that stands on a telepod goes to a uniformly chosen other telepod of its colour, if there is one."""

    draws = 1

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        self.cell = torch.arange(height * width, device=device)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        """The scene after the jump by uniforms u (N, 1)."""
        code = at(scene.cells, scene.position)
        others = (scene.cells == code[:, None]) & (self.cell != scene.position[:, None])  # (N, H*W)
        jumps = (kinds(code) == TELEPOD) & others.any(1)
        return scene._replace(position=torch.where(jumps, pick(others, u[:, 0]), scene.position))


class ActuateBox:
    """The action ACTUATE opens the box in front: its content takes its place.

    A box is packed as its kind and the index of its content in `contents`. No reset function of a file makes
    boxes, so grids from files never hold one.
    """

    draws = 0

    def __init__(self, width: int, contents: tuple[int, ...], device: torch.device) -> None:
        self.front = Front(width, device)
        self.opened = torch.arange(CODES)
        self.opened[pack(BOX) : pack(BOX) + len(contents)] = torch.tensor(contents, dtype=torch.int64)
        self.opened = self.opened.to(device)  # (CODES,)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        """The scene with the box in front opened where the action says so."""
        place = self.front(scene)
        code = at(scene.cells, place)
        code = torch.where(action == ACTUATE, self.opened[code], code)
        return scene._replace(cells=put(scene.cells, place, code))


class Chain:
    """Several rules in listed order."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.draws = sum(rule.draws for rule in rules)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        """The scene after all rules, each with its share of the uniforms u (N, draws)."""
        shares = u.split([rule.draws for rule in self.rules], 1)
        for rule, share in zip(self.rules, shares, strict=True):
            scene = rule(scene, action, share)
        return scene


def move_agent(ground: Ground) -> Rule:
    """Step ahead, back, left or right, unless something blocks the way."""
    return Motion(ground.width, ground.device, moves=True, turns=False)


def turn_agent(ground: Ground) -> Rule:
    """Turn left or right."""
    return Motion(ground.width, ground.device, moves=False, turns=True)


def actuate_door(ground: Ground) -> Rule:
    """Open the door in front, a locked one with a key of its colour in hand."""
    return ActuateDoor(ground.width, ground.device)


def actuate_box(ground: Ground) -> Rule:
    """Open the box in front."""
    return ActuateBox(ground.width, (), ground.device)


def pickndrop(ground: Ground) -> Rule:
    """Swap what is in hand and what is in front, where both can be."""
    return PickAndDrop(ground.width, ground.device)


def move_obstacles(ground: Ground) -> Rule:
    """Every moving obstacle takes a random step."""
    return MoveObstacles(ground.height, ground.width, ground.counts.get(OBSTACLE, 0), ground.device)


def teleport(ground: Ground) -> Rule:
    """A telepod sends the agent to another one of its colour."""
    return Teleport(ground.height, ground.width, ground.device)


def chain(ground: Ground, transition_functions: tuple[Rule, ...]) -> Rule:
    """Several transition functions as one."""
    return Chain(transition_functions)


RULES: dict[str, Callable[..., Rule]] = {
    builder.__name__: builder
    for builder in (actuate_box, actuate_door, chain, move_agent, move_obstacles, pickndrop, teleport, turn_agent)
}
