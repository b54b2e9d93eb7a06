"""Counting a network: its parameters by kind and by part, as published, and a forward pass's operations."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import dqn_memory.blocks.kernels.cpu_attention
import dqn_memory.blocks.kernels.gru  # registers operators that are counted below
import dqn_memory.blocks.kernels.scan  # noqa: F401
from dqn_memory.blocks import Attention
from dqn_memory.blocks.memory import BIDIRECTIONAL
from dqn_memory.blocks.positions import Positions
from dqn_memory.network import ARCHITECTURES, ImageEmbedding, NetworkConfig, ObservationSpec, QNetwork, observation_spec
from dqn_memory.runs.errors import UserError, near_names
from envs.registry import WORLDS, make_world

NOT_MULTIPLIED = (nn.Embedding, Positions)  # tables that are looked up or added
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Counts:
    """Elements of a module: parameters that learn, parameters that do not, and buffers (never parameters)."""

    trainable: int
    frozen: int
    buffers: int


def count(module: nn.Module) -> Counts:
    """Each tensor once, also where it is shared."""
    parameters = list(module.parameters())
    return Counts(
        trainable=_elements(p for p in parameters if p.requires_grad),
        frozen=_elements(p for p in parameters if not p.requires_grad),
        buffers=_elements(module.buffers()),
    )


def parts(network: QNetwork) -> dict[str, nn.ModuleList]:
    """Divide the network in the order of its forward pass; together these parts hold every parameter."""
    embedding = [network.observation_embedding, network.action_embedding]
    return {
        "embedding": nn.ModuleList(module for module in embedding if module is not None),
        "positions": nn.ModuleList([network.positions]),
        "encoder": network.layers,
        "norm": nn.ModuleList([network.norm]),
        "head": nn.ModuleList([network.head]),
    }


def part_counts(network: QNetwork) -> dict[str, int]:
    """Trainable parameters of each part."""
    return {name: count(part).trainable for name, part in parts(network).items()}


def published_count(network: QNetwork) -> int | None:
    """Count as the reference does; None where the paper and its reference have no such network.

    The reference keeps each attention layer's K x K causal mask as a frozen parameter and counts it (DBGFQN
    paper, Table 3); here a mask is not stored at all. A recurrent baseline has no mask.
    """
    if not _is_published_form(network):
        return None
    row, context = network.config.row(), network.config.context
    masks = row.layers * context**2 if row.attention else 0
    return count(network).trainable + masks


def forward_operations(network: QNetwork) -> int:
    """Floating-point operations of one forward pass over a full window of K observations, batch 1.

    Two for each multiply-add of the matrix products: every weight matrix meets each of the K positions once
    (linear maps, recurrences, gates), and attention forms K x K scores and mixes K values by them, 4 K^2 D in
    all, future keys included. Convolutions count at every output cell. Not counted: table look-ups, biases,
    activations, softmax, LayerNorm, priors.
    """
    context = network.config.context
    products = sum(2 * context * _matrix_elements(module) for module in network.modules())
    attention = sum(_attention_operations(module, context) for module in network.modules())
    return products + attention + context * _image_operations(network)


def _is_published_form(network: QNetwork) -> bool:
    config = network.config
    row = config.row()
    return (
        row.published
        and row == ARCHITECTURES[config.architecture]
        and config.form == "paper"
        and config.head_width in (None, config.width)
        and config.token_width == 8
        and (not row.attention or config.prior.kind == "causal")
    )


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _matrix_elements(module: nn.Module) -> int:
    if isinstance(module, (*NOT_MULTIPLIED, *CONVOLUTIONS)):
        return 0
    return _elements(p for p in module.parameters(recurse=False) if p.dim() == 2)


def _attention_operations(module: nn.Module, context: int) -> int:
    return 4 * context**2 * module.project_out.in_features if isinstance(module, Attention) else 0


def _image_operations(network: QNetwork) -> int:
    """Operations of the convolutions on one image."""
    embedding = network.observation_embedding
    if not isinstance(embedding, ImageEmbedding):
        return 0
    shape = network.spec.shape
    height, image_width, channels = shape if embedding.channels_last else (*shape[1:], shape[0])
    x = torch.empty(1, channels, height, image_width, device=next(embedding.parameters()).device)
    total = 0
    for layer in embedding.convolutions:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            total += 2 * layer.weight.numel() * x.shape[-2] * x.shape[-1]
    return total


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
    """Build the network as shapes without storage: counting one of any size costs milliseconds."""
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
    """Give the step between admissible widths, and the least of them."""
    row = config.row()
    if config.heads < 1:
        raise UserError(f"--heads {config.heads} must be at least 1")
    step = math.lcm(config.heads, 2) if row.memory in BIDIRECTIONAL else config.heads
    return step, step * (1 + row.action_embedding // step)  # wider than the previous action's share of it


def _largest(holds: Callable[[int], bool]) -> int:
    """Find the largest n >= 0 at which `holds`, which is true at 0 and never true again once false."""
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


@dataclass(frozen=True)
class EnvironmentSizes:
    """One environment's sizes. `vocabulary` V counts the padding token and is 0 for real-valued observations."""

    kind: Literal["discrete", "continuous"]
    components: int  # d
    vocabulary: int  # V
    num_actions: int  # A
    width: int  # D of the DBGFQN paper, Table 2

    def spec(self) -> ObservationSpec:
        """Give the same spec that the registered environment's observation space gives."""
        if self.kind == "continuous":
            return ObservationSpec("continuous", (self.components,))
        return ObservationSpec("discrete", (self.components,), self.vocabulary, torch.uint8)


GRIDVERSE_MEMORY = EnvironmentSizes("discrete", 6, 23, 6, 128)  # a 2 x 3 view, 21 sums of object type and colour
GRIDVERSE_KEYDOOR = EnvironmentSizes("discrete", 6, 15, 8, 128)  # its highest type is the key, so 13 sums

# The control twin comes last, as in the recorded table.
_MEMORY_IDS = sorted((id for id in WORLDS if id.startswith("Gridverse/Memory-")), key=lambda id: "Empty" in id)

ENVIRONMENTS: dict[str, EnvironmentSizes] = {
    "POMDP/Hallway-v0": EnvironmentSizes("discrete", 1, 23, 5, 64),  # 21 observations, the initial one, padding
    "POMDP/HeavenHell-v0": EnvironmentSizes("discrete", 1, 17, 4, 64),  # 15 observations, the initial one, padding
    **dict.fromkeys(_MEMORY_IDS, GRIDVERSE_MEMORY),
    **{name: GRIDVERSE_KEYDOOR for name in WORLDS if name.startswith("Gridverse/Keydoor-")},
    "POMDP/CarFlag-v0": EnvironmentSizes("continuous", 3, 0, 3, 64),
    "POMDP/MemoryCards-v0": EnvironmentSizes("discrete", 10, 9, 10, 128),
}

SIZED_BY_THEIR_FILE = ("Gridverse/Yaml-v0", "POMDP/File-v0")


def environment_sizes(world: str) -> EnvironmentSizes:
    """Look up an environment's sizes: the table's, or its own where a plugin registered it.

    A UserError offers near names, or says that a file decides the size.
    """
    name = world.removeprefix("envs:")
    if name in SIZED_BY_THEIR_FILE:
        raise UserError(f"--env {name} has no size of its own, its file decides; name another environment")
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if name not in WORLDS:
        raise UserError(near_names("environment", name, ENVIRONMENTS.keys() | WORLDS.keys()))
    return _sizes_of_registered(name)


def _sizes_of_registered(name: str) -> EnvironmentSizes:
    """Size an environment outside the table, which has no width of the paper's, with the smaller one."""
    world = make_world(name)
    spec = observation_spec(world.observation_space)
    if spec.kind == "image":
        raise UserError(f"--env {name} shows images, which have no sizes here; name another environment")
    return EnvironmentSizes(spec.kind, spec.shape[0], spec.vocabulary, world.num_actions, 64)


def gigaflop(work: Callable[[], object]) -> float:
    """Billions of operations of the matrix products in one call of `work`, two for each multiply-add.

    Attention is counted as its two products over all K x K scores, future keys included. Not counted: look-ups,
    biases, activations, softmax, LayerNorm, the optimiser.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the counter speaks of modules that it does not know
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=_OPERATORS) as counter:
            work()
    return counter.get_total_flops() / 1e9


def _attention(packed: torch.Size, heads: int, *others: Any, **keywords: Any) -> int:
    """Packed (B, T, 3D): every query meets every key, every weight every value."""
    batch, time, width = packed
    return 2 * 2 * batch * time * time * (width // 3)


def _attention_backward(grad: torch.Size, *others: Any, **keywords: Any) -> int:
    """Gradient (B, T, D): those of weights, values, queries and keys. Scores that are computed anew are not counted."""
    batch, time, width = grad
    return 2 * 4 * batch * time * time * width


def _scan(gates: torch.Size, *others: Any, **keywords: Any) -> int:
    """Gates (G, B, T, 3, H): at every position the state meets a matrix (H, 3H)."""
    directions, batch, time, parts, width = gates
    return 2 * directions * batch * time * parts * width * width


def _scan_backward(grad: torch.Size, *others: Any, **keywords: Any) -> int:
    """Hidden (T, G, B, H): the gradient meets the matrix (3H, H) on its way back, and the states once more."""
    time, directions, batch, width = grad
    return 2 * 2 * time * directions * batch * 3 * width * width


def _selective_scan(u: torch.Size, delta: torch.Size, decay: torch.Size, *others: Any, **keywords: Any) -> int:
    """Three multiply-adds for every state (B, T, E, N): decay, enter, leave."""
    batch, time, channels = u
    return 2 * 3 * batch * time * channels * decay[1]


def _selective_scan_backward(grad: torch.Size, last: torch.Size, *others: Any, **keywords: Any) -> int:
    """Eight multiply-adds for every state: two each for what decays, enters and leaves, two for the gradient."""
    batch, time, channels = grad
    return 2 * 8 * batch * time * channels * last[2]


_OPERATORS = {
    torch.ops.dqn_memory.cpu_attention: _attention,
    torch.ops.dqn_memory.cpu_attention_backward: _attention_backward,
    torch.ops.dqn_memory.gru_scan: _scan,
    torch.ops.dqn_memory.gru_scan_backward: _scan_backward,
    torch.ops.dqn_memory.selective_scan: _selective_scan,
    torch.ops.dqn_memory.selective_scan_backward: _selective_scan_backward,
}
