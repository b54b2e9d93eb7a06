"""Table 3 of "Learning to Focus" beside what can be counted, and the size and cost of every form of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dqn_memory.blocks import PRIORS
from dqn_memory.network import ObservationSpec
from world_models.unizero.config import ModelConfig
from world_models.unizero.flops import FORMS, Counter, count
from world_models.unizero.layers import AttentionStack
from world_models.unizero.networks import WorldModel, build

ATARI = ObservationSpec("image", (3, 64, 64), 0, torch.uint8)


@dataclass(frozen=True)
class Printed:
    """One row of the table: parameters in millions, MFLOP of one transformer pass."""

    row: str
    prior: str  # what the row's name stands for: the beginning of a prior's name
    total: float
    transformer: float
    mflop: float


PRINTED = (
    Printed("Baseline", "causal", 20.77, 14.18, 454.611),
    Printed("Adaptive", "adaptive", 20.77, 14.18, 454.615),
    Printed("Gaussian", "gaussian", 20.77, 14.18, 454.619),
    Printed("Gaussian Adaptive", "gaussian_adaptive", 20.77, 14.18, 454.619),
)


@dataclass(frozen=True)
class Spelling:
    """One way of writing a row's prior down, counted."""

    row: str
    printed: float
    prior: str
    source: str
    formula: str
    flop: int  # by the published rule
    matches: bool  # to the printed three decimals
    all_flop: int  # every operation of the same pass


@dataclass(frozen=True)
class Size:
    """Parameters of one model, and the MFLOP (all operations) of each thing it is asked for, batch 1."""

    dynamics: str
    prior: str
    total: int
    encoder: int
    actions: int  # embedding
    positions: int
    stack: int  # of the dynamics, with the prior's
    learned_prior: int
    heads: int
    encode: float  # one observation
    root: float  # a full window
    expand: float  # an action and the latent after it
    train: float  # forward pass of one training sequence, without its observations


def spellings(num_actions: int) -> list[Spelling]:
    """Every spelling of every row, in the order of the table."""
    with torch.device("meta"):
        stack = build(ModelConfig(), ATARI, num_actions).dynamics.stack
    assert isinstance(stack, AttentionStack)
    counted = [(form, count(stack, form)) for form in FORMS]
    return [
        Spelling(
            row.row, row.mflop, form.prior, form.source, form.formula, counter.published,
            round(counter.published / 1e6, 3) == row.mflop, counter.total,
        )
        for row in PRINTED
        for form, counter in counted
        if _family(form.prior) == row.prior
    ]  # fmt: skip


def verdict(row: Printed, tried: list[Spelling]) -> str:
    """What can be said of a printed MFLOP."""
    mine = [spelling for spelling in tried if spelling.row == row.row]
    released = [spelling for spelling in mine if spelling.source == "released"]
    matching = [spelling for spelling in mine if spelling.matches]
    if not matching:
        return "refuted: no spelling gives it"
    if not released or released[0].matches:
        return "reproduced" + (" by the released form" if released else "")
    others = " or ".join(f"`{spelling.formula}`" for spelling in matching)
    return f"refuted for the released form ({released[0].flop / 1e6:.3f}); only {others} gives it"


def sizes(num_actions: int) -> list[Size]:
    """One row for each prior of the transformer, and one for each other form of the dynamics."""
    published = ModelConfig()
    configs = [published.with_prior(kind) for kind in PRIORS]
    configs += [ModelConfig(dynamics="recurrent"), ModelConfig(dynamics="gru")]
    return [size(build(config, ATARI, num_actions).eval()) for config in configs]


def size(model: WorldModel) -> Size:
    """Count one model."""
    config, dynamics = model.config, model.dynamics
    parts = {name: parameters(part) for name, part in dynamics.named_children()}
    embedding, positions = parts["embedding"], parts.get("positions", 0)
    latent = torch.zeros(1, config.horizon, config.width)
    action = torch.zeros(1, config.horizon, dtype=torch.int64)
    window = model.window(1)
    frame = torch.zeros(1, *model.spec.shape, dtype=model.spec.dtype)
    return Size(
        dynamics=config.dynamics,
        prior=config.prior.kind if config.dynamics == "transformer" else "",
        total=parameters(model),
        encoder=parameters(model.encoder),
        actions=embedding,
        positions=positions,
        stack=parameters(dynamics) - embedding - positions,
        learned_prior=sum(parameters(attention.prior) for attention in model.attentions()),
        heads=parameters(model.heads),
        encode=mflop(lambda: model.encode(frame)),
        root=mflop(lambda: model.root(window, latent[:, 0])),
        expand=mflop(lambda: model.expand(window, latent[:, 0], action[:, 0])),
        train=mflop(lambda: model(latent, action)),
    )


def parameters(module: nn.Module) -> int:
    """Elements of all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


@torch.no_grad()
def mflop(work: Callable[[], object]) -> float:
    """Millions of operations that `work` performs, elementwise ones included."""
    with sdpa_kernel(SDPBackend.MATH), Counter() as counter:
        work()
    return round(counter.total / 1e6, 3)


def _family(prior: str) -> str:
    """The row a prior belongs to: the longest name it begins with."""
    return max((row.prior for row in PRINTED if prior.startswith(row.prior)), key=len)
