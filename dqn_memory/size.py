"""How large a network is: its parameters by kind, the count as published; and operations.

`match` resizes a network to a number of parameters. `python -m dqn_memory.parameters` prints the report.
"""

import math
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dqn_memory.architectures import ARCHITECTURES
from dqn_memory.blocks import MEMORY
from dqn_memory.blocks.kernels import linear_scan, recurrent, selective_scan  # noqa: F401 - for their operators
from dqn_memory.blocks.kernels.custom_operator import NUMBA
from dqn_memory.blocks.registry import BIDIRECTIONAL
from dqn_memory.network import NetworkConfig, ObservationSpec, QNetwork, observation_spec
from dqn_memory.runs.errors import UserError, require
from envs.actions import Actions
from envs.packages import make_env
from envs.registry import FROM_FILES, WORLDS, make_world
from envs.spaces import discrete_actions


@dataclass(frozen=True)
class Counts:
    """Elements of a module: trainable parameters, frozen parameters, and buffers."""

    trainable: int
    frozen: int
    buffers: int

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.trainable + self.frozen


def count(module: nn.Module) -> Counts:
    """Count the elements of a module. A shared tensor counts once."""
    parameters = list(module.parameters())
    return Counts(
        trainable=_elements(p for p in parameters if p.requires_grad),
        frozen=_elements(p for p in parameters if not p.requires_grad),
        buffers=_elements(module.buffers()),
    )


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def published_count(network: QNetwork) -> int | None:
    """Count as the DBGFQN paper's reference implementation does; None if the paper has no such network.

    The reference keeps the K x K causal mask of each attention layer as a frozen parameter and counts it (Table 3).
    This suite stores no mask. A recurrent baseline has none.
    """
    config, row = network.config, network.config.row()
    as_published = (
        row.published
        and row == ARCHITECTURES[config.architecture]
        and config.form == "paper"
        and config.head_width in (None, config.width)
        and config.token_width == 8
        and (not row.attention or config.prior.kind == "causal")
    )
    masks = row.layers * config.context**2 if row.attention else 0
    return count(network).trainable + masks if as_published else None


# ---- another size ----------------------------------------------------------------------------------------------------
TOLERANCE = 0.02
SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


class Unmatched(UserError):
    """A budget that this architecture cannot meet."""


def parse_budget(text: str) -> int:
    """Read 100k, 1.5M or 120000 as a number of parameters; raise a UserError for other forms."""
    parsed = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", text.strip().lower().replace("_", ""))
    budget = round(float(parsed[1]) * SUFFIXES[parsed[2]]) if parsed else 0
    require(budget >= 1, f"--match {text!r} is not a number of parameters; write it as 100k, 1.5M or 120000")
    return budget


def on_meta(config: NetworkConfig, spec: ObservationSpec, actions: Actions | int) -> QNetwork:
    """Build the network without storage for its weights, so that one of any size is counted in milliseconds."""
    with torch.device("meta"):
        return config.build(spec, actions)


def match(budget: int | str, config: NetworkConfig, spec: ObservationSpec, actions: Actions | int) -> NetworkConfig:
    """Resize `config` so that its trainable parameters are `budget` or at most 2 % fewer.

    The width D is the largest multiple of the head count (an even one for bidirectional memories) that stays under the
    budget with a Q head of D hidden units. Further hidden units fill the rest, as each costs the same.
    `budget` is a number or a text such as 100k. Raise Unmatched if the budget cannot be met.
    """
    budget = parse_budget(budget) if isinstance(budget, str) else budget
    require(config.heads >= 1, f"--heads {config.heads} must be at least 1")
    row = config.row()
    step = math.lcm(config.heads, 2) if row.memory in BIDIRECTIONAL else config.heads
    step = 2 * config.heads if row.attention and row.streamed else step  # rotary heads have an even width
    own = signature(MEMORY[row.memory]).parameters.get("heads") if row.memory in MEMORY else None
    if own is not None and isinstance(own.default, int):  # else a plugin's memory chooses its heads later
        step = math.lcm(step, own.default)
    first = step * (1 + row.action_embedding // step)  # wider than the share of the previous action

    def size(width: int, head_width: int | None) -> int:
        head_width = None if config.form == "paper_equations" else head_width  # its head is one linear map
        return count(on_meta(replace(config, width=width, head_width=head_width), spec, actions)).trainable

    def fits(steps: int) -> bool:
        return size(first + steps * step, first + steps * step) <= budget

    if not fits(0):
        raise Unmatched(
            f"--match {budget} is below the {size(first, first)} parameters of the smallest {config.architecture} "
            f"(width {first}); choose a larger budget"
        )
    above = 1
    while fits(above):
        above *= 2
    width = first + step * (bisect_right(range(above), False, key=lambda steps: not fits(steps)) - 1)
    unit = size(width, width + 1) - size(width, width)  # 0 where the row's head has no hidden units
    head_width = width + (budget - size(width, width)) // unit if unit else None
    parameters = size(width, head_width)
    if parameters < (1 - TOLERANCE) * budget:
        why = "one more hidden unit would exceed it" if unit else "its linear Q head has no units to add"
        raise Unmatched(
            f"--match {budget} cannot be met within {TOLERANCE:.0%} by {config.architecture}: width {width} "
            f"gives {parameters} parameters and {why}; choose a budget just above {parameters}"
        )
    return replace(config, width=width, head_width=head_width)


# ---- the environments that networks are sized for --------------------------------------------------------------------
_GRIDS = [id for id in WORLDS if id.startswith("Gridverse/") and id not in FROM_FILES]
# Widths D of the DBGFQN paper, Table 2, in the order of the recorded table; the control twin comes last of its kind
WIDTHS = {
    "POMDP/Hallway-v0": 64,
    "POMDP/HeavenHell-v0": 64,
    **dict.fromkeys(sorted(_GRIDS, key=lambda id: ("Keydoor" in id, "Empty" in id)), 128),
    "POMDP/CarFlag-v0": 64,
    "POMDP/MemoryCards-v0": 128,
}


@dataclass(frozen=True)
class EnvironmentSizes:
    """Numbers of one environment that a network's size depends on."""

    spec: ObservationSpec
    num_actions: int  # A
    width: int  # D of the paper; 64 for an environment that the paper does not have


@cache
def environment_sizes(env: str) -> EnvironmentSizes:
    """Look up an environment's sizes; raise a UserError for an unknown environment, or one without sizes."""
    name = env.removeprefix("envs:")
    require(name not in FROM_FILES, f"--env {name} has no fixed size, its file decides; name another environment")
    images = f"--env {name} shows images, which have no sizes here; name another environment"
    require(not name.startswith("ALE/"), images)
    if name in WORLDS:
        world = make_world(name)
        space, (num_actions, _) = world.observation_space, discrete_actions(world.action_space)
    else:
        with make_env(env) as other:
            space, (num_actions, _) = other.observation_space, discrete_actions(other.action_space)
    spec = observation_spec(space)
    require(spec.kind != "image", images)
    return EnvironmentSizes(spec, num_actions, WIDTHS.get(name, 64))


# ---- operations of any computation -----------------------------------------------------------------------------------
_kernels = torch.ops.dqn_memory


def _recurrence(operations: int, first: int) -> Callable[..., int]:
    """Count `operations` for each number of both matrices at every position; x and they are inputs `first` and on."""

    def counted(*shapes: tuple[int, ...], **_: Any) -> int:
        x, weight_in, weight = shapes[first : first + 3]
        return operations * x[0] * x[1] * (math.prod(weight_in) + math.prod(weight))

    return counted


def _each(shape: tuple[int, ...], operations: int) -> int:
    """Count `operations` for each real number, four times as many for each complex number (a last axis of 2)."""
    return operations * math.prod(shape) * (2 if len(shape) == 4 else 1)


def _keys(x: tuple[int, ...], past: tuple[int, ...] | None) -> int:
    """Count the keys of a query: all of its window (B, T, ...), or those of the past (B, K - 1, ...) and its own."""
    return x[1] if past is None else past[1] + 1


# Operations of our own operators from the shapes of their inputs; a multiply-add is two.
_OPERATORS: dict[Any, Callable[..., int]] = {
    # x (T, B, D) meets (G H, D), the states meet (G H, H); on the way back both matrices and both inputs
    **dict.fromkeys((_kernels.rnn_scan, _kernels.gru_scan, _kernels.lstm_scan), _recurrence(2, 0)),
    _kernels.rnn_scan_backward: _recurrence(4, 2),
    _kernels.gru_scan_backward: _recurrence(4, 4),
    _kernels.lstm_scan_backward: _recurrence(4, 5),
    # three multiply-adds for every state (B, T, E, N): decay, enter, leave
    _kernels.selective_scan: lambda u, _, decay, *__, **___: 6 * math.prod(u) * decay[1],
    # eight: two each for decay, enter and leave, two for the gradient
    _kernels.selective_scan_backward: lambda grad, last, *_, **__: 16 * math.prod(grad) * last[2],
    # one multiply-add for every state (B, T, F), four where each (B, T, F, 2) is complex
    _kernels.linear_scan: lambda _, drive, *__, **___: _each(drive, 2),
    # two: the gradients of the state before and of the decay
    _kernels.linear_scan_backward: lambda grad, *_, **__: _each(grad, 4),
}
if NUMBA:
    from dqn_memory.blocks.kernels import cpu_attention, cpu_bidirectional, cpu_gate, cpu_matrix  # noqa: F401

    _OPERATORS |= {
        # packed (B, T, 3D): every query meets every key that it may read, every weight every value
        _kernels.cpu_attention: lambda x, past, *_, **__: 4 * x[0] * x[1] * _keys(x, past) * (x[2] // 3),
        # gradient (B, T, D): those of weights, values, queries and keys, but not scores that are computed anew
        _kernels.cpu_attention_backward: lambda x, _, past, *__, **___: 8 * math.prod(x) * _keys(x, past),
        # six products of x or y (M, D) with a matrix (D, D), and two gradients of each
        _kernels.cpu_gate: lambda x, *_, **__: 12 * x[0] * x[1] ** 2,
        _kernels.cpu_gate_backward: lambda grad, *_, **__: 24 * grad[0] * grad[1] ** 2,
        _kernels.cpu_bidirectional: _recurrence(2, 0),
        _kernels.cpu_bidirectional_backward: _recurrence(4, 4),
        # three multiply-adds for every number of a state (B, H, d, d): read by key, write, read by query
        _kernels.cpu_delta: lambda maps, scale, _, state, *__, **___: 6 * maps[1] * math.prod(state),
        # six: two gradients for each, but not for states that are computed anew
        _kernels.cpu_delta_backward: lambda grad, state, *_, **__: 12 * grad[1] * math.prod(state),
    }


def gigaflop(work: Callable[[], object]) -> float:
    """Count the billions of operations of matrix products in one call of `work`, two for each multiply-add.

    Attention is counted as its two products over all K x K scores, future keys included. Not counted: look-ups,
    biases, activations, softmax, LayerNorm, the optimiser.
    """
    operators = _OPERATORS | {  # with the other backends of Mamba's scan; each exists after its first use
        getattr(_kernels, form + end): _OPERATORS[getattr(_kernels, "selective_scan" + end)]
        for form in ("cpu_scan", "selective_scan_triton") for end in ("", "_backward") if hasattr(_kernels, form)
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the counter warns of modules that it does not know
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=operators) as counter:
            work()
    return counter.get_total_flops() / 1e9
