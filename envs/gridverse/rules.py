"""Rules for moves, turns and the agent's hand, for tensors and numpy arrays (see `envs.numpy_backend`)."""

from collections.abc import Iterable

import torch
from torch import Tensor

from envs.gridverse import objects
from envs.gridverse.objects import DIRECTIONS, SEEN, Rule, Scene, is_kind, pack, statuses, tabulate
from envs.numpy_backend import copied, integers, put_column, take, take_column, where

# The canonical actions; a task has some of them.
FORWARD, BACKWARD, LEFT, RIGHT, LEFT_TURN, RIGHT_TURN, ACTUATE, PICK_N_DROP = range(8)
ACTION_NAMES = ("forward", "backward", "left", "right", "turn left", "turn right", "actuate", "pick or drop")


def heading_axes(heading: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the unit vectors (y, x) ahead of and to the right of an agent with this heading."""
    return DIRECTIONS[heading], DIRECTIONS[objects.TURN_RIGHT[heading]]


def at(cells: Tensor, position: Tensor) -> Tensor:
    """Return codes (N,) int64 of the cells at flat positions (N,)."""
    return integers(take_column(cells, position))


def put_code(cells: Tensor, position: Tensor, code: Tensor) -> Tensor:
    """Return new grids (N, H*W) with codes (N,) at flat positions (N,)."""
    return put_column(copied(cells), position, code.to(torch.int16) if isinstance(code, Tensor) else code)


class Front:
    """Compute the flat position (N,) of the cell ahead, which is inside the grid because its border is wall."""

    runs_on_numpy = True

    def __init__(self, width: int, device: torch.device) -> None:
        self.ahead = torch.tensor([y * width + x for y, x in DIRECTIONS], device=device)  # (4,)

    def __call__(self, scene: Scene) -> Tensor:
        return scene.position + take(self.ahead, scene.heading)


class Motion:
    """Move and turn the agent by look-up tables over heading and action; other actions have offset 0."""

    draws = 0
    runs_on_numpy = True

    def __init__(self, width: int, device: torch.device, moves: bool = True, turns: bool = True) -> None:
        headings = range(len(DIRECTIONS))
        self.actions = len(ACTION_NAMES)
        self.offset = torch.tensor([_offsets(h, width) for h in headings], device=device).flatten() * moves  # (4*8,)
        turned = [[h, h, h, h, objects.TURN_LEFT[h], objects.TURN_RIGHT[h], h, h] for h in headings]
        same = [[h] * self.actions for h in headings]
        self.turned = torch.tensor(turned if turns else same, device=device).flatten()  # (4*8,)
        self.blocked = tabulate(objects.blocks_movement, device)  # (SEEN,)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        entry = scene.heading * self.actions + action  # (N,)
        target = scene.position + take(self.offset, entry)
        blocked = take(self.blocked, at(scene.cells, target))
        position = where(blocked, scene.position, target)
        return scene._replace(position=position, heading=take(self.turned, entry))


class ActuateDoor:
    """Open the door in front: a closed one without a key, a locked one with a key of its colour, which stays."""

    draws = 0
    runs_on_numpy = True

    def __init__(self, width: int, device: torch.device) -> None:
        self.front = Front(width, device)
        door, code = tabulate(is_kind(objects.DOOR), device), torch.arange(SEEN, device=device)
        self.opened = torch.where(door, pack(objects.DOOR, objects.OPEN) + (code & 7), code)  # (SEEN,)
        self.locked = door & (statuses(code) == objects.LOCKED)  # (SEEN,)
        self.key = pack(objects.KEY) + (code & 7)  # (SEEN,), the key that opens this door

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        position = self.front(scene)
        code = at(scene.cells, position)
        barred = take(self.locked, code) & (take(self.key, code) != scene.held)
        still = barred | (action != ACTUATE)
        return scene._replace(cells=put_code(scene.cells, position, where(still, code, take(self.opened, code))))


class PickAndDrop:
    """Exchange the object in the hand with the object in front, if that is floor or a key."""

    draws = 0
    runs_on_numpy = True

    def __init__(self, width: int, device: torch.device) -> None:
        self.front = Front(width, device)
        key, code = tabulate(is_kind(objects.KEY), device), torch.arange(SEEN, device=device)
        self.open = tabulate(is_kind(objects.FLOOR), device) | key  # (SEEN,)
        self.taken = torch.where(key, code, pack(objects.NONE))  # (SEEN,), the object that the hand gets
        self.left = torch.where(code == pack(objects.NONE), pack(objects.FLOOR), code)  # (SEEN,), for the cell

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        position = self.front(scene)
        code = at(scene.cells, position)
        acts = take(self.open, code) & (action == PICK_N_DROP)
        left = where(acts, take(self.left, scene.held), code)
        held = where(acts, take(self.taken, code), scene.held)
        return scene._replace(cells=put_code(scene.cells, position, left), held=held)


def apply_rules(rules: Iterable[Rule], scene: Scene, action: Tensor, u: Tensor) -> tuple[Scene, Tensor]:
    """Apply rules one after the other, each with its uniforms; returns the scene and the unused uniforms."""
    for rule in rules:
        scene = rule(scene, action, u[:, : rule.draws] if rule.draws else u)
        u = u[:, rule.draws :] if rule.draws else u
    return scene, u


def _offsets(heading: int, width: int) -> list[int]:
    """List the change of the flat position for each canonical action."""
    (ahead_y, ahead_x), (right_y, right_x) = heading_axes(heading)
    ahead, right = ahead_y * width + ahead_x, right_y * width + right_x
    return [ahead, -ahead, -right, right, 0, 0, 0, 0]
