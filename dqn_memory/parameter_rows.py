"""The rows of the parameter report: one network's counts in one world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from torch import nn

from dqn_memory.analysis.size import count, forward_operations, match, on_meta, part_counts, published_count, world_row
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.observations import ObservationSpec


@dataclass(frozen=True)
class Row:
    """One cell of world x architecture. The first six names are stable for programs that read the report."""

    world: str
    architecture: str
    published: int | None  # with the causal masks that the reference counts; None without a paper form
    trainable: int
    frozen: int
    buffers: int
    flops: int  # of one forward pass over a full window, batch 1
    width: int  # D
    head_width: int | None  # hidden units of the Q head; None where it is one linear map
    embedding: int  # trainable parameters of each part, from here on
    positions: int
    encoder: int
    norm: int
    head: int
    ms_per_update: float | None = None


def make_row(world: str, config: NetworkConfig, budget: int | None = None, timed: bool = False) -> Row:
    """Count `config` at the paper's width for this world, or matched to `budget` trainable parameters."""
    sizes = world_row(world)
    name = world.removeprefix("envs:")
    config = replace(config, width=sizes.width)
    counts = _counted(config, sizes.spec(), sizes.num_actions, budget, timed)
    return replace(counts, world=name)


@cache  # most worlds have the same sizes
def _counted(config: NetworkConfig, spec: ObservationSpec, num_actions: int, budget: int | None, timed: bool) -> Row:
    if budget is not None:
        config = match(budget, config, spec, num_actions)
    network = on_meta(config, spec, num_actions)
    counts = count(network)
    return Row(
        world="", architecture=config.architecture, published=published_count(network),
        trainable=counts.trainable, frozen=counts.frozen, buffers=counts.buffers,
        flops=forward_operations(network), width=config.width, head_width=_hidden_units(network),
        **part_counts(network), ms_per_update=_timed(config, spec, num_actions) if timed else None,
    )  # fmt: skip


def _hidden_units(network: QNetwork) -> int | None:
    head = network.head
    first = head[0] if isinstance(head, nn.Sequential) else None
    return first.out_features if isinstance(first, nn.Linear) else None


def _timed(config: NetworkConfig, spec: ObservationSpec, num_actions: int) -> float:
    from dqn_memory.timing import milliseconds_per_update  # only here is the learner needed

    return round(milliseconds_per_update(config, spec, num_actions), 2)
