"""What the other functions of a gridverse YAML file have to know about its reset function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from envs.errors import UserError
from envs.gridverse.objects import FLOOR, KEY, WALL, Layout
from envs.gridverse.yaml_values import COLOURS, KINDS, Place


@dataclass(frozen=True)
class Ground:
    """A layout, how many objects of each kind it makes besides floor and wall, and their colours.

    `carried` is set where the agent can lift things, so that the grid may be without a key.
    """

    layout: Layout
    counts: Mapping[int, int]
    device: torch.device
    colours: tuple[int, ...] = ()
    carried: bool = False

    @property
    def height(self) -> int:
        return self.layout.height

    @property
    def width(self) -> int:
        return self.layout.width

    def some(self, kind: int, wanted_by: str) -> None:
        """Ask for at least one object of a kind.

        Raises:
            UserError: the reset function makes none.
        """
        if not self.counts.get(kind):
            raise UserError(f"{wanted_by} needs a {_name(kind)} in the grid, and the reset function makes none.")

    def exactly_one(self, kind: int, wanted_by: str) -> None:
        """Ask for one object of a kind that is always in the grid.

        Raises:
            UserError: the reset function makes none or several, or the agent can take it out of the grid.
        """
        made = "many" if kind in (FLOOR, WALL) else self.counts.get(kind, 0)
        if made != 1:
            raise UserError(f"{wanted_by} needs exactly one {_name(kind)}, and the reset function makes {made}.")
        if kind == KEY and self.carried:
            raise UserError(f"{wanted_by} needs its Key in the grid, and pickndrop lets the agent lift it.")

    def fits(self, kinds: tuple[int, ...], colours: tuple[int, ...], place: Place) -> None:
        """Check that a space lists what the layout makes.

        Raises:
            UserError: an object or a colour is missing from the space.
        """
        for kind in (FLOOR, WALL, *self.counts):
            if kind not in kinds:
                raise place.at("objects").error(f"{_name(kind)} is missing, and the reset function makes it.")
        for name, colour in COLOURS.items():
            if colour in self.colours and colour not in colours:
                raise place.at("colors").error(f"{name} is missing, and the reset function uses it.")


def _name(kind: int) -> str:
    return next(name for name, code in KINDS.items() if code == kind)
