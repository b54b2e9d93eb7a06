"""Networks of equal size: the width and the hidden width of the Q head that meet a budget of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import torch

from dqn_memory.analysis.size import count
from dqn_memory.blocks.memory import BIDIRECTIONAL
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.observations import ObservationSpec
from dqn_memory.runs.errors import UserError

TOLERANCE = 0.02
SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


class Unmatched(UserError):
    """A budget that one architecture cannot meet, where another may."""


def parse_budget(text: str) -> int:
    """100k, 1.5M or 120000 as a whole number of parameters; a UserError shows the forms there are."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", text.strip().lower().replace("_", ""))
    budget = round(float(found[1]) * SUFFIXES[found[2]]) if found else 0
    if budget < 1:
        raise UserError(f"--match {text!r} is not a number of parameters; write it as 100k, 1.5M or 120000")
    return budget


def on_meta(config: NetworkConfig, spec: ObservationSpec, num_actions: int) -> QNetwork:
    """The network as shapes without storage: counting one of any size costs milliseconds."""
    with torch.device("meta"):
        return config.build(spec, num_actions)


def match(budget: int | str, config: NetworkConfig, spec: ObservationSpec, num_actions: int) -> NetworkConfig:
    """`config`, resized so that its trainable parameters are `budget` or at most 2 % fewer.

    The width D is the widest multiple of the head count (an even one for bidirectional memories) that is
    under the budget with a Q head of D hidden units; more hidden units fill the rest. `budget` is a number or
    a text such as 100k. Unmatched says why it cannot be done.
    """
    budget = parse_budget(budget) if isinstance(budget, str) else budget

    def size(width: int) -> int:
        return _trainable(replace(config, width=width, head_width=width), spec, num_actions)

    step, first = _widths(config)
    if size(first) > budget:
        raise Unmatched(
            f"--match {budget} is below the {size(first)} parameters of the smallest {config.architecture} "
            f"(width {first}); choose a larger budget"
        )
    steps = _largest(lambda n: size(first + n * step) <= budget)
    return _fill(budget, replace(config, width=first + steps * step), spec, num_actions)


def _widths(config: NetworkConfig) -> tuple[int, int]:
    """The step between admissible widths, and the least of them."""
    row = config.row()
    if config.heads < 1:
        raise UserError(f"--heads {config.heads} must be at least 1")
    step = math.lcm(config.heads, 2) if row.memory in BIDIRECTIONAL else config.heads
    return step, step * (1 + row.action_embedding // step)  # wider than the previous action's share of it


def _largest(holds: Callable[[int], bool]) -> int:
    """The largest n >= 0 at which `holds`, which is true at 0 and never true again once false."""
    above = 1
    while holds(above):
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below


def _fill(budget: int, config: NetworkConfig, spec: ObservationSpec, num_actions: int) -> NetworkConfig:
    """Spend what the width leaves over on hidden units of the Q head, each of which costs the same."""
    width = config.width
    size, more = (_trainable(replace(config, head_width=units), spec, num_actions) for units in (width, width + 1))
    unit = more - size  # 0 where the row's head has no hidden units
    config = replace(config, head_width=width + (budget - size) // unit if unit else None)
    size = _trainable(config, spec, num_actions)
    if size < (1 - TOLERANCE) * budget:
        why = "one more hidden unit would exceed it" if unit else "its linear Q head has no units to add"
        raise Unmatched(
            f"--match {budget} cannot be met within {TOLERANCE:.0%} by {config.architecture}: width {width} "
            f"gives {size} parameters and {why}; choose a budget just above {size}"
        )
    return config


def _trainable(config: NetworkConfig, spec: ObservationSpec, num_actions: int) -> int:
    return count(on_meta(config, spec, num_actions)).trainable
