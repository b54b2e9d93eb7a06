"""How a sublayer's output joins the stream: a plain sum, or the gate of GTrXL. One instance per sublayer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dqn_memory.blocks.kernels.custom_operator import NUMBA, transformed


class Residual(nn.Module):
    """The plain sum x + y."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Join the stream x and the sublayer output y, both (..., D)."""
        return x + y


class GruGate(nn.Module):
    """GRU-type gating of GTrXL (Parisotto et al. 2020, section 3.2): 6 D^2 + D parameters.

    r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b), h = tanh(W_g y + U_g (r * x)),
    output (1 - z) * x + z * h. With b = 2 the gate starts near the identity, which the paper found decisive.
    """

    def __init__(self, width: int, bias: float = 2.0) -> None:
        super().__init__()
        self.from_output = nn.Linear(width, 3 * width, bias=False)  # W_r, W_z, W_g
        self.from_stream = nn.Linear(width, 2 * width, bias=False)  # U_r, U_z
        self.from_reset = nn.Linear(width, width, bias=False)  # U_g
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Join the stream x and the sublayer output y, both (..., D)."""
        if _fused(x, y, self.bias):
            return self._joined(x, y)
        update, candidate = self.parts(x, y)
        return torch.lerp(x, candidate.to(x.dtype), update.to(x.dtype))

    def _joined(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute `forward` with few passes over all numbers."""
        from dqn_memory.blocks.kernels.cpu_gate import cpu_gate  # loads numba

        weights = (each.weight for each in (self.from_output, self.from_stream, self.from_reset))
        joined, *_ = cpu_gate(x.flatten(0, -2), y.flatten(0, -2), *weights, self.bias)
        return joined.view(x.shape)

    def parts(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the update gate z and the candidate h, both (..., D)."""
        output_r, output_z, output_g = self.from_output(y).chunk(3, dim=-1)
        stream_r, stream_z = self.from_stream(x).chunk(2, dim=-1)
        reset = torch.sigmoid(output_r + stream_r)
        update = torch.sigmoid(output_z + stream_z - self.bias)
        candidate = torch.tanh(output_g + self.from_reset(reset * x))
        return update, candidate


def _fused(x: Tensor, y: Tensor, bias: Tensor) -> bool:
    """Tell whether the gate's own kernel can join x and y, and is faster."""
    seen = torch.compiler.is_compiling() or transformed() or torch._C._is_any_autocast_enabled()
    if seen or not NUMBA or x.device.type != "cpu":
        return False
    from dqn_memory.blocks.kernels.cpu_gate import gate_is_faster  # loads numba

    return gate_is_faster(x, y, bias)


GATES: dict[str, Callable[[int], nn.Module]] = {"residual": Residual, "gru": GruGate}
