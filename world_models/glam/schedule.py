"""How far ahead the agent imagines, by the environment steps taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dqn_memory.runs.errors import UserError


@dataclass(frozen=True)
class HorizonConfig:
    """The horizon's growth. The defaults are the paper's Table 3: 16, 24 and at last 32.

    The paper's equation 11 has the number of steps and the growth exchanged; this is what its text says.
    """

    kind: Literal["stepped", "smooth"] = "stepped"
    """`stepped` grows by `growth` at once every `growth_every` steps (the paper); `smooth` by 1, as often as that makes
    the same slope (the released code, whose `maximum` is 48)."""
    start: int = 16
    """Imagined steps at the beginning."""
    growth: int = 8
    """Steps more after every `growth_every` environment steps."""
    growth_every: int = 25_000
    """Environment steps."""
    maximum: int = 32
    """Imagined steps at most."""

    def check(self) -> None:
        """One sentence for every value that cannot work."""
        for name, least in (("start", 1), ("growth", 0), ("growth_every", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least {least}")
        if self.maximum < self.start:
            raise UserError(f"--maximum {self.maximum} must be at least --start {self.start}")

    def at(self, step: int) -> int:
        """The horizon H after `step` environment steps."""
        smooth, every = self.kind == "smooth", self.growth_every
        grown = step * self.growth // every if smooth else step // every * self.growth
        return min(self.start + grown, self.maximum)
