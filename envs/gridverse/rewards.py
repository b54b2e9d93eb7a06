"""Rewards and endings, for tensors and numpy arrays (see `envs.numpy_backend`)."""

from typing import Any

import torch
from torch import Tensor

from envs.gridverse.objects import DOOR, EXIT, OPEN, SEEN, Transition, colours, is_kind, statuses, tabulate
from envs.gridverse.rules import Front, at
from envs.numpy_backend import take


class ByCell:
    """A reward or an ending by the object under the agent, from a table (SEEN,)."""

    runs_on_numpy = True

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, step: Transition) -> Any:
        return take(self.table, step.under)


def living(reward: float, device: torch.device) -> ByCell:
    """Pay the same for every step."""
    return ByCell(torch.full((SEEN,), reward, dtype=torch.float64, device=device))


def standing(kind: int, on: float, off: float, device: torch.device) -> ByCell:
    """Pay `on` if the agent stands on an object of this type, else `off`."""
    outcomes = torch.tensor([off, on], dtype=torch.float64, device=device)
    return ByCell(outcomes[tabulate(is_kind(kind), device).long()])


def on_kind(kind: int, device: torch.device) -> ByCell:
    """End the episode if the agent stands on an object of this type."""
    return ByCell(tabulate(is_kind(kind), device))


class MemoryPay:
    """Pay `right` on the exit of the good colour, `wrong` on any other exit, else 0; and `living` in every step."""

    runs_on_numpy = True

    def __init__(self, right: float, wrong: float, living: float, device: torch.device) -> None:
        good, code = torch.arange(8)[:, None], torch.arange(SEEN)  # all pairs
        exits = torch.tensor([wrong, right], dtype=torch.float64)
        pay = exits[(colours(code) == good).long()]  # (8, SEEN)
        self.rewards = torch.where(is_kind(EXIT)(code), pay + living, 0.0 + living).flatten().to(device)

    def __call__(self, step: Transition) -> Any:
        return take(self.rewards, step.after.good * SEEN + step.under)


class PickDrop:
    """Pay `pick` when the hand gets an object of this type, `drop` when it loses it, else 0."""

    runs_on_numpy = True

    def __init__(self, kind: int, pick: float, drop: float, device: torch.device) -> None:
        self.holds = tabulate(is_kind(kind), device).long()  # (SEEN,)
        self.rewards = torch.tensor([drop, 0.0, pick], dtype=torch.float64, device=device)

    def __call__(self, step: Transition) -> Any:
        change = take(self.holds, step.after.held) - take(self.holds, step.before.held)
        return take(self.rewards, change + 1)


class OpenDoor:
    """Pay `opened` when the door in front of the agent opens, `closed` when it closes, else 0."""

    runs_on_numpy = True

    def __init__(self, opened: float, closed: float, width: int, device: torch.device) -> None:
        self.front = Front(width, device)
        door = tabulate(is_kind(DOOR), device)
        # A shut door is 1, an open one 2, and any other object 0: only 1 to 2 and 2 to 1 are changes.
        self.state = door.long() + (door & (tabulate(statuses, device) == OPEN))  # (SEEN,)
        rewards = torch.zeros(9, dtype=torch.float64)
        rewards[3 * 1 + 2], rewards[3 * 2 + 1] = opened, closed
        self.rewards = rewards.to(device)

    def __call__(self, step: Transition) -> Any:
        position = self.front(step.before)
        before, after = (take(self.state, at(each.cells, position)) for each in (step.before, step.after))
        return take(self.rewards, 3 * before + after)


class Closer:
    """Pay `closer` or `further` by the change of the Manhattan distance to a fixed position, ignoring walls."""

    runs_on_numpy = True

    def __init__(self, height: int, width: int, goal: int, closer: float, further: float, device: torch.device) -> None:
        y, x = torch.arange(height)[:, None], torch.arange(width)
        self.distance = ((y - goal // width).abs() + (x - goal % width).abs()).flatten().to(device)  # (H*W,)
        self.rewards = torch.tensor([closer, 0.0, further], dtype=torch.float64, device=device)

    def __call__(self, step: Transition) -> Any:
        before, after = (take(self.distance, each.position) for each in (step.before, step.after))
        return take(self.rewards, (after - before).clip(-1, 1) + 1)
