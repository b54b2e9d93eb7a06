"""State spaces with a constant complex diagonal: LRU and S5. A complex number is stored as its two parts."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Tail, wide
from dqn_memory.blocks.finite import cast
from dqn_memory.blocks.kernels.linear_scan import multiply
from dqn_memory.blocks.minimal import LinearRecurrence

R_MIN, R_MAX, MAX_PHASE = 0.9, 0.999, 2 * math.pi  # of a ring of initial values


class StateSpace(LinearRecurrence):
    """h_t = a h_{t-1} + s (B x_t), y_t = n Re(C h_t) + D x_t, with N complex numbers in h, a and the scale s.

    `enter` (2 N, D) has the real and the imaginary row of each number of B in turn, `leave` (D, 2 N) the columns Re(C)
    and -Im(C), so that one real product gives Re(C h).
    """

    initialises_itself = True
    times = 1.0  # n: 2 if every number stands for a conjugate pair

    def __init__(self, width: int, states: int, dropout: float, projection: bool) -> None:
        super().__init__()
        self.shape = (states, 2)
        self.enter = nn.Parameter(torch.randn(2 * states, width) / math.sqrt(2 * width))
        self.leave = nn.Parameter(torch.randn(width, 2 * states) / math.sqrt(states))
        self.skip = nn.Parameter(torch.randn(width))
        self.tail = Tail(width, projection, dropout)

    @abstractmethod
    def diagonal(self) -> tuple[Tensor, Tensor]:
        """Compute a (N, 2) and the scale s, (N, 2), or (N, 1) if it is real."""

    def recurrence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        decay, scale = self.diagonal()
        enter = self.enter.view(*self.shape, -1).mT  # (N, D, 2)
        scaled = multiply(scale[:, None], enter) if scale.shape[-1] == 2 else scale[:, None] * enter
        (drive,) = wide(F.linear(x, cast(scaled.mT.flatten(0, 1), self.enter.dtype)))
        return decay, drive.unflatten(-1, self.shape)

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        recalled = F.linear(states.flatten(-2), self.times * cast(self.leave, states.dtype))
        return cast(recalled + self.skip * x, self.skip.dtype)


def ring(states: int, r_min: float, r_max: float, max_phase: float) -> tuple[Tensor, Tensor]:
    """Draw the squared sizes (N,) and the phases (N,) of numbers a uniformly from a ring, or from a sector of it."""
    if not (0 <= r_min < r_max <= 1 and max_phase > 0):
        raise ValueError(f"{r_min=}, {r_max=}, {max_phase=}; 0 <= r_min < r_max <= 1 and a phase above 0 are needed")
    squared = r_min**2 + (r_max**2 - r_min**2) * torch.rand(states)
    return squared.clamp(1e-12, 1 - 1e-6), max_phase * torch.rand(states).clamp(min=1e-6)


class LRU(StateSpace):
    """Linear Recurrent Unit (Orvieto et al. 2023, Resurrecting recurrent neural networks, section 3, appendix A).

        a = exp(-exp(nu) + i exp(theta))    h_t = a h_{t-1} + gamma B x_t    y_t = Re(C h_t) + D x_t

    with complex B (N, D) and C (D, N), real D (D,), and gamma = exp(g). Initial values: |a|^2 uniform from `r_min`^2 to
    `r_max`^2, the phase uniform up to `max_phase`, gamma = sqrt(1 - |a|^2) (normalisation), B of variance 1/D, C of
    2/N, D of 1. The paper tunes the ring; 0.9 to 0.999 are half-lives of 7 to 700 positions. The nonlinear layer that
    follows in the paper is not part of it. 4 N D + 3 N + D parameters with N = `states`, by default D; 4 N D + 4 N + D
    multiply-adds a token, a state of O(N). Stable at any length: |a| < 1.
    """

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, states: int | None = None,
        r_min: float = R_MIN, r_max: float = R_MAX, max_phase: float = MAX_PHASE,
    ) -> None:  # fmt: skip
        number = width if states is None else states
        if number < 1:
            raise ValueError(f"states is {number}; an lru needs at least 1")
        super().__init__(width, number, dropout, projection)
        squared, phase = ring(number, r_min, r_max, max_phase)
        self.nu = nn.Parameter(torch.log(-0.5 * torch.log(squared)))
        self.theta = nn.Parameter(torch.log(phase))
        self.gamma = nn.Parameter(0.5 * torch.log1p(-squared))

    def diagonal(self) -> tuple[Tensor, Tensor]:
        nu, theta, gamma = wide(self.nu, self.theta, self.gamma)
        size, phase = torch.exp(-torch.exp(nu)), torch.exp(theta)
        return torch.stack((size * phase.cos(), size * phase.sin()), -1), torch.exp(gamma)[:, None]


def hippo(states: int) -> tuple[Tensor, Tensor]:
    """Diagonalise the normal part of HiPPO-LegS (N, N): S = -1/2 I + K = V (-1/2 + i w) V*.

    K is antisymmetric with entries -sqrt((2 n + 1) (2 k + 1)) / 2 below the diagonal. Of each conjugate pair only the
    number with w > 0 is returned: w (N / 2,) and V* (N / 2, N).
    """
    root = torch.sqrt(2 * torch.arange(states, dtype=torch.float64, device="cpu") + 1)
    below = torch.tril(torch.outer(root, root) / 2, -1)
    frequencies, vectors = torch.linalg.eigh(-1j * (below.mT - below))
    half = states // 2
    return frequencies[half:], vectors.mH[half:].resolve_conj()


class S5(StateSpace):
    """S5 (Smith et al. 2023, Simplified state space layers, section 3, initial values of appendix B.1).

        a = exp(L dt)    h_t = a h_{t-1} + L^-1 (a - 1) B x_t    y_t = 2 Re(C h_t) + D x_t

    One state space serves all inputs. Its diagonal L is discretised by zero-order hold, with a step size dt for each
    number. Initial values: L the eigenvalues of HiPPO-N, B = V* B' and C = C' V in its eigenvectors, B' normal of
    variance 1/D and C' complex normal of 1/N, dt log-uniform from 0.001 to 0.1. With `r_min`, `r_max` or `max_phase`
    L is such that a begins as in the LRU. N = `states` counts both numbers of a conjugate pair; one is computed.
    Choices: Re(L) = -exp(.) stays negative, one block, no activation after. 2 N D + 3 N / 2 + D parameters; 2 N D +
    2 N + D multiply-adds a token, a state of O(N). Stable at any length: |a| < 1.
    """

    times = 2.0

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, states: int | None = None,
        r_min: float | None = None, r_max: float | None = None, max_phase: float | None = None,
    ) -> None:  # fmt: skip
        number = width + width % 2 if states is None else states
        if number < 2 or number % 2:
            raise ValueError(f"states is {number}; s5 keeps conjugate pairs, so it must be even and at least 2")
        pairs = number // 2
        super().__init__(width, pairs, dropout, projection)
        self.decay = nn.Parameter(torch.full((pairs,), math.log(0.5)))
        self.frequency = nn.Parameter(torch.zeros(pairs))
        low, high = math.log(1e-3), math.log(1e-1)
        self.step_size = nn.Parameter(torch.rand(pairs) * (high - low) + low)
        self._start(number)
        given = r_min, r_max, max_phase
        if given != (None, None, None):
            usual = R_MIN, R_MAX, MAX_PHASE
            bounds = (known if own is None else own for own, known in zip(given, usual, strict=True))
            squared, phase = ring(pairs, *bounds)
            step = torch.exp(self.step_size.detach())
            self.decay = nn.Parameter(torch.log(-0.5 * torch.log(squared) / step))
            self.frequency = nn.Parameter(phase / step)

    @torch.no_grad()
    def _start(self, states: int) -> None:
        frequencies, inverse = hippo(states)
        width, device, draws = len(self.skip), self.enter.device, torch.get_default_dtype()
        self.frequency.copy_(frequencies)
        kind = torch.promote_types(draws, torch.complex64)
        inverse = inverse.to(device, kind)  # V*
        enter = inverse @ (torch.randn(states, width) / math.sqrt(width)).to(kind)  # (N / 2, D)
        leave = (torch.randn(width, states, dtype=kind) / math.sqrt(states)) @ inverse.mH  # (D, N / 2)
        self.enter.copy_(torch.view_as_real(enter).mT.flatten(0, 1))
        self.leave.copy_(torch.view_as_real(leave.conj().resolve_conj()).flatten(1))

    def diagonal(self) -> tuple[Tensor, Tensor]:
        decay, step_size, frequency = wide(self.decay, self.step_size, self.frequency)
        rate, step = torch.exp(decay), torch.exp(step_size)
        size, phase = -rate * step, frequency * step
        kept = torch.exp(size)
        decay = torch.stack((kept * phase.cos(), kept * phase.sin()), -1)
        # a - 1 without the difference of numbers near 1
        real = torch.expm1(size) * phase.cos() - 2 * torch.sin(phase / 2).square()
        inverse = torch.stack((-rate, -frequency), -1) / (rate.square() + frequency.square())[:, None]
        return decay, multiply(torch.stack((real, decay[:, 1]), -1), inverse)
