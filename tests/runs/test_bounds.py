"""What every trainer asks of its config: finite numbers, and refusals that name flags which exist."""

from dataclasses import dataclass, field, make_dataclass
from typing import Annotated

import pytest
from run_folders import told

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds, check_numbers, check_parts, flags_of


@dataclass(frozen=True)
class Part:
    size: float = 1.0
    most_steps: int = 3
    pair: tuple[float, ...] = (0.5, 0.5)

    def check(self):
        if self.size < 0:
            raise UserError(f"--size {self.size} must not be negative; see --most-steps and --other-thing")
        if self.most_steps < 1:
            raise UserError(f"most_steps {self.most_steps} must be at least 1.")


@dataclass(frozen=True)
class Whole:
    left: Part = field(default_factory=Part)
    right: Part = field(default_factory=Part)
    goal: float | None = None


def test_a_part_is_refused_by_the_flags_of_the_whole():
    said = told(check_parts, Whole(right=Part(size=-1.0)), "left", "right")
    assert said == "--right-size -1.0 must not be negative; see --right-most-steps and --other-thing"
    said = told(check_parts, Whole(left=Part(most_steps=0)), "left", "right")
    assert said == "--left-most-steps 0 must be at least 1."
    with pytest.raises(UserError, match="--height of it"), flags_of(Whole(), "left", tall="height"):
        raise UserError("tall of it")
    check_parts(Whole(), "left", "right")


def test_every_number_must_be_finite():
    check_numbers(Whole())
    assert told(check_numbers, Whole(goal=float("nan"))) == "--goal nan must be a finite number"
    assert told(check_numbers, Whole(left=Part(pair=(1.0, float("inf"))))).startswith("--left-pair inf")


@pytest.mark.parametrize(
    ("bounds", "wrong", "words"),
    [
        (Bounds(0), -1, "not be negative"),
        (Bounds(1), 0, "be at least 1"),
        (Bounds(0, 1), 1.5, "lie between 0 and 1"),
        (Bounds(above=0), 0.0, "be above 0"),
        (Bounds(0, below=1), 1.0, "be at least 0 and below 1"),
        (Bounds(above=0, most=1), 0.0, "be above 0 and at most 1"),
    ],
)
def test_numbers_lie_within_their_bounds(bounds, wrong, words):
    types = [("x", Annotated[float, bounds] | None, None), ("y", tuple[Annotated[float, bounds], ...], ())]
    made = make_dataclass("Made", types)
    check_numbers(made())
    assert told(check_numbers, made(x=wrong)) == f"--x {wrong} must {words}"
    assert told(check_numbers, made(y=(wrong,))) == f"--y {wrong} must {words}"
