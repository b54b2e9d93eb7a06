"""Counting GLAM's parameters, part by part, and finding those that no loss reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from world_models.glam.agent import AgentConfig
from world_models.glam.branches import Branch, Direct, GlobalMamba, LocalMamba, TransformerStack
from world_models.glam.config import ModelConfig
from world_models.glam.losses import losses
from world_models.glam.model import Batch, WorldModel

PROBE = 8  # frames of the sequence by which gradients are looked for

# Counted on the released classes; the stem has 256 more for each action.
RELEASED = {
    "encoder": 690_624,
    "posterior head": 4_195_328,
    "prior head": 263_168,
    "stem": 328_192,
    "GMamba": 438_272,
    "GMamba projection": 66_048,
    "LMamba": 438_272,
    "LMamba projection": 65_536,
    "reward head": 197_631,
    "termination head": 132_353,
    "decoder": 4_884_931,
    "variation head": 263_168,
    "variation projection": 4_195_328,
}
RELEASED_PER_ACTION = 256


@dataclass(frozen=True)
class Size:
    """Elements of one part."""

    part: str
    trained: int
    frozen: int  # parameters that ask for no gradient
    unreached: int  # parameters that ask for a gradient and never get one
    buffers: int  # running statistics of batch normalisation

    @property
    def parameters(self) -> int:
        """All of them; buffers are none."""
        return self.trained + self.frozen + self.unreached


def parts(model: WorldModel) -> dict[str, nn.Module]:
    """The model in the order of its forward pass; together these parts hold every parameter."""
    found: dict[str, nn.Module | None] = {
        "encoder": model.encoder,
        "posterior head": model.posterior_head,
        "stem": model.sequence_model.stem,
        **_branches(model),
        "prior head": model.prior_head,
        "reward head": model.reward_head,
        "termination head": model.termination_head,
        "variation head": model.variation_head,
        "variation projection": model.random_projection,
        "decoder": model.decoder,
    }
    return {name: part for name, part in found.items() if part is not None}


def _branches(model: WorldModel) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for place, branch in enumerate(cast(list[Branch], list(model.sequence_model.branches))):
        if isinstance(branch, Direct):
            kind = "Transformer" if isinstance(branch.stack, TransformerStack) else "Mamba"
            name = f"{kind} {place + 1}"
        else:
            name = "GMamba" if isinstance(branch, GlobalMamba) else "LMamba"
        layers = branch.layers if isinstance(branch, LocalMamba) else branch.stack
        found |= {name: layers, f"{name} projection": branch.project}
    return found


def build(config: ModelConfig, actions: int, seed: int = 0) -> WorldModel:
    """A model from a seed that touches nobody's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build(actions)


def probe(model: WorldModel, seed: int = 0) -> set[str]:
    """Names of the parameters that get no gradient from the loss of a random sequence.

    The sequence opens two episodes, and the floors of the KLs are off: a floor stops gradients for a while only.
    """
    config = model.config
    floorless = replace(config, loss=replace(config.loss, free_bits=0.0, variation_free_bits=0.0))
    batch, noise = _random_sequence(model, torch.Generator().manual_seed(seed))
    model.train().zero_grad()
    losses(model.predictions(batch, noise), batch, floorless)[0].backward()
    return {name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}


def _random_sequence(model: WorldModel, source: torch.Generator) -> tuple[Batch, torch.Tensor]:
    config = model.config
    place = torch.arange(PROBE)[None]
    batch = Batch(
        frames=torch.randint(256, (1, PROBE, 3, config.screen, config.screen), generator=source, dtype=torch.uint8),
        action=torch.randint(model.actions, (1, PROBE), generator=source),
        reward=torch.randn(1, PROBE, generator=source),
        terminated=place == 1,
        first=(place == 0) | (place == 2),
    )
    return batch, torch.rand(1, PROBE, config.categoricals, config.classes, generator=source)


def sizes(model: WorldModel) -> list[Size]:
    """One row a part that has parameters, and their sum."""
    unreached = probe(model)
    silent = {id(p) for name, p in model.named_parameters() if name in unreached}
    rows = [_size(name, part, silent) for name, part in parts(model).items()]
    return [*(row for row in rows if row.parameters), _size("total", model, silent)]


def _size(name: str, module: nn.Module, silent: set[int]) -> Size:
    learning = [p for p in module.parameters() if p.requires_grad]
    return Size(
        part=name,
        trained=sum(p.numel() for p in learning if id(p) not in silent),
        frozen=sum(p.numel() for p in module.parameters() if not p.requires_grad),
        unreached=sum(p.numel() for p in learning if id(p) in silent),
        buffers=sum(b.numel() for b in module.buffers() if b.is_floating_point()),
    )


def total(config: ModelConfig, actions: int) -> int:
    """Parameters of a model that is never filled with numbers."""
    with torch.device("meta"):
        return sum(p.numel() for p in config.build(actions).parameters())


def agent_sizes(actions: int, config: ModelConfig) -> list[Size]:
    """Actor, critic and slow critic at the published size."""
    with torch.device("meta"):
        agent = AgentConfig().build(config.latent + config.width, actions)
    named = {"actor": agent.actor, "critic": agent.critic, "slow critic": agent.slow_critic, "total": agent}
    return [_size(name, module, set()) for name, module in named.items()]
