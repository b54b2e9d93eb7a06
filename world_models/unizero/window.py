"""What a search node remembers: the last W pairs of latent and action before the current latent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """The history of B rows, left-aligned: entries at or after `count` are padding, whatever they hold."""

    latent: Tensor  # (B, W, D)
    action: Tensor  # (B, W) int64
    count: Tensor  # (B,) int64, 0 .. W

    @classmethod
    def empty(
        cls, batch: int, pairs: int, width: int, device: torch.device | str, dtype: torch.dtype = torch.float32
    ) -> Window:
        """Make a window without history, as at the start of an episode."""
        return cls(
            torch.zeros(batch, pairs, width, device=device, dtype=dtype),
            torch.zeros(batch, pairs, device=device, dtype=torch.int64),
            torch.zeros(batch, device=device, dtype=torch.int64),
        )

    def push(self, latent: Tensor, action: Tensor) -> Window:
        """Append the pair of latent (B, D) and action (B,); a full row drops its oldest pair."""
        pairs = self.action.shape[1]
        index = torch.arange(pairs, device=action.device)
        shifted = index + (self.count == pairs)[:, None]  # (B, W)
        source = torch.where(shifted == self.count[:, None], pairs, shifted)  # the new pair follows the old ones
        latents = torch.cat((self.latent, latent[:, None].to(self.latent.dtype)), 1)  # (B, W+1, D)
        actions = torch.cat((self.action, action[:, None]), 1)
        columns = source[:, :, None].expand(-1, -1, latents.shape[-1])
        return Window(latents.gather(1, columns), actions.gather(1, source), (self.count + 1).clamp(max=pairs))

    def clean(self) -> tuple[Tensor, Tensor]:
        """Give latents (B, W, D) and actions (B, W) with zeros in the padding, so that it cannot matter."""
        real = torch.arange(self.action.shape[1], device=self.count.device) < self.count[:, None]  # (B, W)
        return torch.where(real[..., None], self.latent, 0), torch.where(real, self.action, 0)
