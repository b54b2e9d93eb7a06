"""Counting a network: its parameters by kind and by part, as published, and a forward pass's operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dqn_memory.architectures import ARCHITECTURES
from dqn_memory.blocks import Attention
from dqn_memory.blocks.positions import Positions
from dqn_memory.embeddings import ImageEmbedding
from dqn_memory.network import QNetwork

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
    """The network in the order of its forward pass; together these parts hold every parameter."""
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
    """The count as the reference prints it, or None where the paper and its reference have no such network.

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
    height, wide, channels = shape if embedding.channels_last else (*shape[1:], shape[0])
    x = torch.empty(1, channels, height, wide, device=next(embedding.parameters()).device)
    total = 0
    for layer in embedding.convolutions:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            total += 2 * layer.weight.numel() * x.shape[-2] * x.shape[-1]
    return total
