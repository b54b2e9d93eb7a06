"""RWKV-7: a delta rule whose decay, removal and writing have a number for each feature of a key."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import Device, Memory, State, Tail, carried, fresh, wide, wide_dtype
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.kernels.custom_operator import without_autocast

CHUNK = 32  # positions whose removals are solved for at once; a decay over all of them is at least 3e-9
FASTEST = math.exp(-0.5)  # largest decay a position
SLOW, FAST = -6.0, -1.0  # initial biases of the decay: half-lives of 460 to 4 positions
SMALLEST = 1e-6  # added to a removal key's squared length, which can be 0
EPSILON = 1e-5  # added to the variance in LN, for each feature of a head


class RWKV7(Memory):
    """The time mixing of RWKV-7 (Peng et al. 2025), H heads of d = D / H, rank R.

        x^m = x_t + mu_m * (x_{t-1} - x_t) for each map m of r, k, v, w, a and g (token shift)
        r, k, v = W_r x^r, W_k x^k, W_v x^v        a = sigmoid(b_a + U_a V_a x^a)        g = U_g sigmoid(V_g x^g)
        w = exp(-e^-0.5 sigmoid(b_w + U_w tanh(V_w x^w)))        c = xi * k divided by its length
        S_t = S_{t-1} (diag(w_t) - c_t (a_t * c_t)^T) + v_t k~_t^T,        k~ = k * (1 + alpha * (a - 1))
        y_t = W_o (g * (LN(S_t r_t) + (r_t . (rho * k~_t)) v_t))

    LN normalises each head, with 1e-5 d added to the variance; its weight and bias have D numbers. Left out are the
    channel mixing, a layer of its own, and the first layer's share in v, as the memory is one layer. Initial values and
    R are choices, because the paper's follow the depth of a stack: mu 1/2, xi and alpha 1, rho and b_a 0, b_w evenly
    from -6 to -1 over a head, matrices as in torch's Linear, R = `rank` an eighth of D for w, a and g alike. There are
    two heads by default, because LN leaves little but signs of a few features. 4 D^2 + 6 D R + 13 D parameters; 4 D^2 +
    6 D R + 5 D d + 12 D multiply-adds a position, state O(D d): S, and x_{t-1}. The matrix after S_{t-1} has
    eigenvalues between -1 and 1. For a constant a it also shortens each row of S in a fixed norm, so that S is bounded
    over any length; for an a that varies there is no such proof.
    """

    degree = 6  # LN squares r . (k v)
    initialises_itself = True

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 2, rank: int | None = None
    ) -> None:
        super().__init__()
        self.width, self.heads, self.head = width, heads, chunks.head_width(width, heads)
        rank = math.ceil(width / 8) if rank is None else rank
        if rank < 1:
            raise ValueError(f"rank is {rank}; rwkv7 needs at least 1")
        self.shift = nn.Parameter(torch.full((6, width), 0.5))  # mu of r, k, v, w, a, g
        self.maps = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))  # W_r, W_k, W_v
        self.narrow = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(3))  # V_w, V_a, V_g
        self.broad = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(3))  # U_w, U_a, U_g
        self.decay_bias = nn.Parameter(torch.linspace(SLOW, FAST, self.head).repeat(heads))  # b_w
        self.rate_bias = nn.Parameter(torch.zeros(width))  # b_a
        self.removal = nn.Parameter(torch.ones(width))  # xi
        self.replacement = nn.Parameter(torch.ones(width))  # alpha
        self.bonus = nn.Parameter(torch.zeros(width))  # rho
        self.scale, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))  # of LN
        self.project_out = nn.Linear(width, width, bias=False)  # W_o
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros in float32 or wider: x_{t-1} (B, D), and S^T (B, H, d, d)."""
        shapes = (self.width,), (self.heads, self.head, self.head)
        return tuple(torch.zeros(batch, *shape, device=device, dtype=wide_dtype(dtype)) for shape in shapes)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        before, memory = carried(state, x)
        shifted = torch.cat((before[:, None].to(x.dtype), x[:, :-1]), 1)
        packed, gate = self._maps(x, shifted if reset is None else shifted.masked_fill(reset[..., None], 0))
        with without_autocast(x):
            inputs, own = self._heads(split_heads(packed, 5 * self.heads))
            y, after = chunks.in_chunks(_part, CHUNK, inputs, (memory,), reset)
            y = self._leave(join_heads(self._normalise(y)), join_heads(own), gate)
        return self.tail(self.project_out(y)), (*carried((x[:, -1].clone(),), x), *after)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        before, memory = fresh(carried(state, x), reset)
        packed, gate = self._maps(x, before.to(x.dtype))
        with without_autocast(x):
            inputs, own = self._heads(packed.unflatten(-1, (5 * self.heads, -1)))
            query, key, value, decay, remove, rate = inputs
            removed = chunks.read_one(remove, memory)
            memory = chunks.write_one(rate, -removed, memory * decay.exp()[..., None])
            memory = chunks.write_one(key, value, memory)
            y = self._normalise(chunks.read_one(query, memory))
            y = self._leave(y.flatten(1), own.flatten(1), gate)
        return self.tail(self.project_out(y)), (*carried((x.clone(),), x), memory)

    def _maps(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Compute r, k, v and the maps in the sigmoids of w and a (..., 5 D), and g (..., D)."""
        change = before - x
        r, k, v, w, a, g = (x + mu * change for mu in self.shift)
        plain = [read(part) for read, part in zip(self.maps, (r, k, v), strict=True)]
        low = [read(part) for read, part in zip(self.narrow, (w, a, g), strict=True)]
        decay, rate, gate = (
            read(part) for read, part in zip(self.broad, (low[0].tanh(), low[1], low[2].sigmoid()), strict=True)
        )
        return torch.cat((*plain, decay + self.decay_bias, rate + self.rate_bias), -1), gate

    def _heads(self, packed: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Compute r, k~, v, log w, c and a * c, and the read of v with the bonus rho, all (B, H, ..., d)."""
        (packed,) = wide(packed)
        query, key, value, decay, rate = packed.chunk(5, 1)
        like = (self.heads, *[1] * (packed.dim() - 3), self.head)
        removal, replacement, bonus = (part.view(like) for part in wide(self.removal, self.replacement, self.bonus))
        rate, remove = rate.sigmoid(), key * removal
        remove = remove * torch.rsqrt(remove.square().sum(-1, keepdim=True) + SMALLEST)
        key = key * (1 + replacement * (rate - 1))
        own = (query * bonus * key).sum(-1, keepdim=True) * value
        return (query, key, value, -FASTEST * decay.sigmoid(), remove, rate * remove), own

    def _normalise(self, y: Tensor) -> Tensor:
        """Apply LN to the reads y (..., d), without its weight and bias."""
        return F.layer_norm(y, (self.head,), eps=EPSILON * self.head)

    def _leave(self, y: Tensor, own: Tensor, gate: Tensor) -> Tensor:
        """Scale the normalised reads y (..., D), add the read with the bonus, and apply g."""
        return gate * (y * self.scale + self.bias + own).to(gate.dtype)


def _part(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, remove: Tensor, rate: Tensor, state: State,
    reset: Tensor | None,
) -> tuple[Tensor, State]:  # fmt: skip
    """Read and write one chunk (B, H, C, d); `decay` is log w, `remove` c and `rate` a * c.

    Position i removes what its c reads of the memory before it: removed_i = S_{i-1} c_i, which earlier writes and
    removals of the chunk have changed. This is a triangular system, as in a DeltaNet. With p_i the product of the
    decays up to i, what j writes has decayed by p_i / p_j when i reads it. So readers are multiplied by p and writers
    divided by it; p counts from the start of the chunk or of the episode, and stays above 1e-9.
    """
    (memory,), (same, first) = state, chunks.same_episode(query.shape[2], reset, query.device)
    upto, past = same.to(query.dtype), same.tril(-1).to(query.dtype)  # (B, 1, C, C) or (C, C)
    total = upto @ decay  # log p, (B, H, C, d)
    reads, removes = query * total.exp(), remove * (total - decay).exp()
    writes, rates = key * (-total).exp(), rate * (-total).exp()
    share = None if first is None else first.to(query.dtype)
    known = removes @ writes.mT * past @ value + chunks.weighted(removes @ memory, share)
    system = removes @ rates.mT * past  # the solver takes its diagonal as 1
    removed = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    y = reads @ writes.mT * upto @ value - reads @ rates.mT * upto @ removed
    y = y + chunks.weighted(reads @ memory, share)
    last = total[..., -1:, :]
    left = (last - total).exp() * upto[..., -1, :, None]  # (B, H, C, d)
    kept = chunks.weighted(last.exp().mT, None if share is None else share[..., -1:, :])  # (B, H, d, 1)
    return y, (memory * kept + (key * left).mT @ value - (rate * left).mT @ removed,)
