"""One update of the world model, on sequences of the replay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dqn_memory.runs.errors import UserError
from world_models.glam.losses import Batch, Metrics
from world_models.glam.model import WorldModel


@dataclass(frozen=True)
class LearnerConfig:
    """How the world model learns. The defaults are the paper's Table 3 and, where it is silent, the code's."""

    batch_size: int = 32
    """Sequences of an update; their length belongs to the model."""
    learning_rate: float = 1e-4
    """Adam's step size."""
    final_lr_fraction: float = 1.0
    """Step size at the end of the run, as a share of the first; it moves there on a straight line."""
    epsilon: float = 1e-8
    """Adam's epsilon."""
    max_grad_norm: float = 1000.0
    """Largest global L2 norm of the gradient."""
    bfloat16: bool = False
    """Run the networks under bfloat16 autocast; scans, distributions and losses stay float32."""

    def check(self) -> None:
        """One sentence for every value that cannot work."""
        if self.batch_size < 1:
            raise UserError(f"--batch-size {self.batch_size} must be at least 1")
        for name in ("learning_rate", "epsilon", "max_grad_norm"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be above 0")
        if not 0 <= self.final_lr_fraction <= 1:
            raise UserError(f"--final-lr-fraction {self.final_lr_fraction} must lie between 0 and 1")

    def autocast(self, device: torch.device) -> torch.autocast:
        """The precision that the world model's networks run in."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)


def trained(model: WorldModel) -> list[nn.Parameter]:
    """Parameters that learn: all but the released code's random projection."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def optimizer_for(model: WorldModel, config: LearnerConfig, capturable: bool = False) -> torch.optim.Adam:
    """Adam on what learns."""
    return adam(trained(model), config.learning_rate, config.epsilon, capturable)


def update(
    model: WorldModel, optimizer: torch.optim.Optimizer, config: LearnerConfig, batch: Batch, noise: Tensor
) -> Metrics:
    """One gradient step; `noise` are uniforms (B, T, G, C). Metrics stay on the device. Sets the training mode."""
    model.train()
    with config.autocast(noise.device):
        total, metrics = model.loss(batch, noise)
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    norm = nn.utils.clip_grad_norm_(trained(model), config.max_grad_norm, foreach=True)
    optimizer.step()
    return metrics | {"grad/norm": norm.detach()}


def adam(parameters: list[nn.Parameter], rate: float, epsilon: float, capturable: bool) -> torch.optim.Adam:
    """Fused Adam, whose step size `dqn_memory.learner.set_rate` can change; a tensor where a graph captures it."""
    lr = torch.tensor(rate, device=parameters[0].device) if capturable else rate
    group = {"params": parameters, "lr": lr, "first_lr": rate}
    return torch.optim.Adam([group], lr=lr, eps=epsilon, fused=True, capturable=capturable)
