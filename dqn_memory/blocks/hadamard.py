"""Stable Hadamard Memory: a matrix in which every number is scaled by a factor of its own."""

import torch
from torch import Tensor, nn

from dqn_memory.blocks.block import Device, Memory, State, Tail, fresh, wide, wide_dtype
from dqn_memory.blocks.kernels.linear_scan import linear_scan, mask

PERIOD = 1024  # positions after which the drawn rows repeat


class StableHadamard(Memory):
    """Stable Hadamard Memory (Le et al. 2025): its calibration and update, without its normalisations.

        M_t = M_{t-1} * C_t + U_t               C_t = 1 + tanh(theta_t (x) v_c(x_t))
        U_t = eta(x_t) v(x_t) (x) k(x_t)        y_t = W M_t q(x_t) + c

    with * by elements, (x) the outer product, linear v_c, v, k, q, a sigmoid eta of a linear map, M (H, H), H = `size`.
    theta_t is a random row of a table of L = `rows` rows. The 1,024 draws are made once, from `seed`, and the position
    in the episode (a part of the state, 0 at a reset) selects one: so all forms of the block, and a resumed run, use
    the same rows. Linear maps keep torch's initial values, theta has Xavier's. 5 H D + 2 D + L H parameters;
    5 H D + D + 4 H^2 multiply-adds a token, a state of O(H^2). The paper bounds only the expected product of the C_t,
    for a v_c with mean 0 (hence no bias). Each C_t lies between 0 and 2: a number of M that doubles at every position
    overflows float32 after 128, so longer sequences are stable in expectation only. The authors' code has a LayerNorm
    before the linear maps, applies a ReLU to k and q and divides each by its sum; here both are left out.
    """

    initialises_itself = True
    degree = 3

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, size: int = 24, rows: int = 128,
        seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if min(size, rows) < 1:
            raise ValueError(f"size is {size} and rows {rows}; shm needs at least 1 of both")
        self.size = size
        self.into = nn.Linear(width, 4 * size + 1, bias=False)  # q, k, v, v_c, eta
        self.theta = nn.Embedding(rows, size)
        nn.init.xavier_uniform_(self.theta.weight)
        self.out = nn.Linear(size, width)
        self.tail = Tail(width, projection, dropout)
        draws = torch.randint(rows, (PERIOD,), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
        self.register_buffer("order", draws.to(self.theta.weight.device), persistent=False)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros: M (B, H, H) and the position among the draws (B,)."""
        matrix = torch.zeros(batch, self.size, self.size, device=device, dtype=wide_dtype(dtype))
        return matrix, torch.zeros(batch, device=device, dtype=torch.int64)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        position = self._positions(x.shape[1], state[1], reset)  # (B, T)
        decay, drive, query = self._matrices(x, position)
        before = state[0].to(drive.dtype).flatten(1)
        states = linear_scan(decay.flatten(2), drive.flatten(2), before, mask(reset, drive.dtype)).view_as(drive)
        return self._read(states, query), (states[:, -1], (position[:, -1] + 1) % PERIOD)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        before, position = fresh(state, reset)
        decay, drive, query = self._matrices(x, position)
        after = decay * before.to(drive.dtype) + drive
        return self._read(after, query), (after, (position + 1) % PERIOD)

    @staticmethod
    def _positions(time: int, first: Tensor, reset: Tensor | None) -> Tensor:
        """Compute the position of each input in its episode, (B, T); `first` (B,) is that of input 0."""
        index = torch.arange(time, device=first.device)
        going_on = first[:, None] + index
        if reset is None:
            return going_on
        begun = torch.where(reset, index, -1).cummax(1).values  # where the episode began, -1: before the sequence
        return torch.where(begun < 0, going_on, index - begun)

    def _matrices(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute C and U (..., H, H) and q (..., H), in float32 or wider."""
        (outputs,), size = wide(self.into(x)), self.size
        query, key, value, calibration, gate = outputs.split((size, size, size, size, 1), -1)
        assert isinstance(self.order, Tensor)
        theta = self.theta(self.order[position % PERIOD]).to(query.dtype)
        decay = 1 + torch.tanh(theta[..., :, None] * calibration[..., None, :])
        return decay, (gate.sigmoid() * value)[..., :, None] * key[..., None, :], query

    def _read(self, states: Tensor, query: Tensor) -> Tensor:
        return self.tail(self.out((states * query[..., None, :]).sum(-1).to(self.out.weight.dtype)))
