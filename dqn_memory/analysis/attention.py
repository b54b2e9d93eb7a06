"""Measure attention maps, learned priors, carried states, and the sensitivity of a decision to each step before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from dqn_memory.actors import ActingState
from dqn_memory.analysis.episodes import TOKENS, windows
from dqn_memory.blocks import EncoderLayer, Prior, Sublayer
from dqn_memory.blocks.attention import StreamedAttention
from dqn_memory.network import QNetwork
from envs.spaces import Array

UNIT = 1_000  # attention is stored in thousandths


def window_attention(network: QNetwork, observation: Tensor, previous_action: Tensor) -> dict[int, Tensor]:
    """Compute the attention of one window (T, ...) by layer, each (H, T, T)."""
    return {index: maps[0] for index, maps in _maps(network, observation[None], previous_action[None], None).items()}


def episode_attention(
    network: QNetwork, observation: Tensor, previous_action: Tensor, state: ActingState = "window"
) -> dict[int, Tensor]:
    """Compute the attention of every decision of an episode (T, ...), by layer number, each (H, T, T).

    Row t holds the newest query's weights in the window that the network saw at step t. Keys outside that window have
    0. If the agent carries a state, each layer has a window of its own inputs, and steps before it have an influence.
    """
    if state == "episode":
        return _carried_attention(network, observation, previous_action)
    length, size = len(observation), min(network.config.context, len(observation))
    found: dict[int, list[Tensor]] = {}
    for ends in torch.arange(length, device=observation.device).split(max(1, TOKENS // network.config.context)):
        part = windows(network, observation, previous_action, ends, size)
        index, rows = torch.arange(size, device=ends.device), torch.arange(len(ends), device=ends.device)
        real = index < part.lengths[:, None]  # (B, S)
        step = ((ends + 1 - part.lengths)[:, None] + index).clamp(max=length - 1)  # (B, S)
        maps = _maps(network, part.observation, part.previous_action, part.lengths)
        for layer, weights in maps.items():
            newest = weights[rows, :, part.position, :size] * real[:, None]  # (B, H, S)
            found.setdefault(layer, []).append(_by_step(newest, step, length))
    return {layer: torch.cat(parts).transpose(0, 1) for layer, parts in found.items()}


@torch.no_grad()
def _carried_attention(network: QNetwork, observation: Tensor, previous_action: Tensor) -> dict[int, Tensor]:
    """Compute `episode_attention` from the inputs that each layer's state holds."""
    x, found = network.embed(observation[None], previous_action[None]), {}  # (1, T, D)
    for number, layer in enumerate(network.layers):
        if isinstance(layer, EncoderLayer) and layer.attention is not None:
            first = cast(Sublayer, layer.sublayers[0])
            length, inputs = len(observation), first.block_input(x)[0]  # (T, D)
            size = min(cast(StreamedAttention, first.block).context, length)
            parts = []
            for ends in torch.arange(length, device=x.device).split(max(1, TOKENS // size)):
                lengths = (ends + 1).clamp(max=size)  # (B,)
                step = (ends + 1 - lengths)[:, None] + torch.arange(size, device=x.device)  # (B, S)
                weights = layer.attention.weights(inputs[step], lengths)  # (B, H, S, S)
                rows = torch.arange(len(ends), device=x.device)
                parts.append(_by_step(weights[rows, :, lengths - 1], step, length))
            found[number] = torch.cat(parts).transpose(0, 1)
        x, _ = layer.sequence(x)  # type: ignore[operator]
    return found


def _by_step(newest: Tensor, step: Tensor, length: int) -> Tensor:
    """Spread the weights of windows (B, H, S) over the steps `step` (B, S) of an episode -> (B, H, T)."""
    empty = newest.new_zeros(*newest.shape[:2], length)
    return empty.scatter_add(2, step[:, None].expand_as(newest), newest)


@torch.no_grad()
def carried_states(network: QNetwork, observation: Tensor, previous_action: Tensor) -> dict[int, Array]:
    """Compute the state of a stateful network after each of T steps, by layer, (T, numbers)."""
    state = network.initial_state(1, observation.device)
    reset = torch.ones(1, dtype=torch.bool, device=observation.device)
    states: dict[int, list[Tensor]] = {layer: [] for layer in range(len(network.layers))}
    for step in range(len(observation)):
        _, state = network.step(observation[step : step + 1], previous_action[step : step + 1], state, reset)
        reset = torch.zeros_like(reset)
        for layer, parts in enumerate(state):
            numbers = [part.flatten().double() for part in parts if part.is_floating_point()]
            states[layer].append(torch.cat(numbers) if numbers else observation.new_zeros(0).double())
    return {layer: torch.stack(each).cpu().numpy() for layer, each in states.items()}


@torch.no_grad()
def _maps(network: QNetwork, observation: Tensor, previous_action: Tensor, lengths: Tensor | None) -> dict[int, Tensor]:
    """Compute the maps (B, H, T, T) of B windows by layer number."""
    x = network.positions(network.embed(observation, previous_action))  # (B, T, D)
    maps = {}
    for index, layer in enumerate(network.layers):
        if isinstance(layer, EncoderLayer) and layer.attention is not None:
            first = cast(Sublayer, layer.sublayers[0])
            maps[index] = layer.attention.weights(first.block_input(x), lengths)  # in identity order it reads LN(x)
        x = layer(x, lengths)
    return maps


def sensitivity(network: QNetwork, observation: Tensor, previous_action: Tensor) -> Tensor:
    """Compute the share of each step of a window (T, ...) in its last decision, (T,), summing to 1.

    The share is the norm of the gradient of Q(best) - Q(second best) at the last step with respect to each step's
    embedding. Unlike attention it includes the paths through recurrence.
    """
    last = torch.tensor([len(observation) - 1], device=observation.device)
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrences lack them in evaluation
        inputs = network.embed(observation[None], previous_action[None]).detach().requires_grad_()
        q = network.read(network.encode_embedded(inputs, None, last), observation[-1:])[0]  # (A,)
        q = q[q.isfinite()]  # of the legal actions
        best = q.topk(min(2, len(q))).values  # (2,)
        (gradient,) = torch.autograd.grad(best[0] - best[1:].sum(), inputs)
    norm = gradient[0].norm(dim=-1)  # (T,)
    return norm / norm.sum().clamp(min=1e-12)


@torch.no_grad()
def prior_tables(priors: Mapping[int, Prior], context: int) -> tuple[dict[str, Array], str]:
    """Tabulate each layer's prior by distance, (H, K), and name the numbers: weights exp(bias), or factors.

    Plain causal attention has no table and is left out.
    """
    tables, meaning = {}, "prior weight"
    for layer, prior in priors.items():
        scale, bias = prior.tables(context)
        if bias is not None:
            tables[f"layer {layer}"] = bias.exp().double().cpu().numpy()
        elif scale is not None:
            tables[f"layer {layer}"], meaning = scale.double().cpu().numpy(), "factor on the scores"
    return tables, meaning


def attention_priors(network: QNetwork) -> dict[int, Prior]:
    """List the prior of each layer that has attention."""
    return {
        index: layer.attention.prior
        for index, layer in enumerate(network.layers)
        if isinstance(layer, EncoderLayer) and layer.attention is not None
    }


@dataclass(frozen=True)
class Maps:
    """Attention in an episode of `length` steps, by layer, each (H, T, T).

    T counts the episode's first decisions. If `first` is given, T counts the tokens of a window that starts at that
    step, two tokens a step.
    """

    layers: dict[int, Array]
    length: int
    success: bool | None = None
    """Whether the episode was a success; None if its environment defines none."""
    total: float | None = None
    """Return of the episode; if given, it is shown instead of success."""
    first: int | None = None

    @property
    def ended(self) -> str:
        """The episode's outcome in words."""
        if self.total is not None:
            return f"a return of {self.total:.2f}"
        return "success" if self.success else "no success"

    def plain(self) -> dict[str, Any]:
        """Give JSON: thousandths, without the zeros at the end of each row."""
        facts = {"success": self.success, "total": self.total, "first": self.first}
        given = {name: value for name, value in facts.items() if value is not None}
        layers = {str(layer): np.rint(maps * UNIT).astype(int) for layer, maps in self.layers.items()}
        trimmed = {
            layer: [[np.trim_zeros(row, "b").tolist() for row in head] for head in maps]
            for layer, maps in layers.items()
        }
        return {"length": self.length, **given, "layers": trimmed}

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read the maps from the JSON of `plain`."""
        layers = {
            int(layer): np.array([[row + [0] * (len(head) - len(row)) for row in head] for head in heads]) / UNIT
            for layer, heads in content["layers"].items()
        }
        return cls(layers, int(content["length"]), *(content.get(name) for name in ("success", "total", "first")))
