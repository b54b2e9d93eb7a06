"""What several tests build: specs, networks, and a replay filled by hand."""

from typing import Any

import torch

from dqn_memory.blocks import Attention
from dqn_memory.network import NetworkConfig, ObservationSpec, QNetwork
from dqn_memory.replay import Replay

TOKENS = ObservationSpec("discrete", (2,), 40, torch.uint8)
NUM_ACTIONS = 3


def network(architecture: str = "dgfqn", seed: int = 0, context: int = 6, width: int = 8, **changes: Any) -> QNetwork:
    """A small float64 network, so that equalities can be tested to rounding."""
    torch.manual_seed(seed)
    config = NetworkConfig(architecture=architecture, width=width, heads=2, context=context, **changes)
    return config.build(TOKENS, NUM_ACTIONS).double()


def filled_replay(lengths: list[list[int]], capacity: int = 10_000, truncate: bool = False) -> Replay:
    """One world a list; each number is an episode's length. Observation t of episode e is the pair (e, t)."""
    replay = Replay(TOKENS, NUM_ACTIONS, len(lengths), capacity, torch.device("cpu"))
    worlds = [[(e, t, length) for e, length in enumerate(row) for t in range(length)] for row in lengths]
    for column in range(min(len(cells) for cells in worlds)):
        replay.add(**cells_of([cells[column] for cells in worlds], truncate))
    return replay


def action_of(episode: int, t: int) -> int:
    return (episode + 2 * t) % NUM_ACTIONS


def cells_of(cells: list[tuple[int, int, int]], truncate: bool) -> dict[str, torch.Tensor]:
    """A column of a ring: for every world its (episode, time, length of the episode)."""
    done = torch.tensor([t + 1 == length for _, t, length in cells])
    return {
        "observation": torch.tensor([[e, t] for e, t, _ in cells]),
        "next_observation": torch.tensor([[e, t + 1] for e, t, _ in cells]),
        "action": torch.tensor([action_of(e, t) for e, t, _ in cells]),
        "previous_action": torch.tensor([action_of(e, t - 1) if t else NUM_ACTIONS for e, t, _ in cells]),
        "reward": torch.tensor([float(e + 0.1 * t) for e, t, _ in cells]),
        "terminated": torch.zeros_like(done) if truncate else done,
        "done": done,
        "time": torch.tensor([t for _, t, _ in cells]),
    }


@torch.no_grad()
def attended(net: torch.nn.Module, *inputs: torch.Tensor) -> tuple[list[Attention], list[torch.Tensor]]:
    """The attention blocks of a network, and what each was given in a forward pass."""
    blocks, seen = [part for part in net.modules() if isinstance(part, Attention)], []
    hooks = [block.register_forward_pre_hook(lambda _, x: seen.append(x[0].clone())) for block in blocks]
    net(*inputs)
    for hook in hooks:
        hook.remove()
    return blocks, seen
