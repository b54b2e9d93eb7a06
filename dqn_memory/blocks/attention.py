"""Multi-head self-attention whose scores are shaped by a temporal prior."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Block, Device, Memory, State, Tail, select, wide
from dqn_memory.blocks.chunks import head_width
from dqn_memory.blocks.finite import add_flags, are_finite, bad_flags, contained_at, contained_window, finite
from dqn_memory.blocks.kernels.custom_operator import NUMBA, without_autocast
from dqn_memory.blocks.positions import rotary_table, rotate
from dqn_memory.blocks.priors import Prior, PriorConfig

KeysValues = tuple[Tensor, Tensor]  # keys and values, each (B, H, T, hd)
SMALLEST_CHUNK = 32  # min positions of a chunk of `StreamedAttention`; a longer context is its size
DEGREE = 2  # linear maps of inputs that a score multiplies


def toeplitz(table: Tensor, future: float) -> Tensor:
    """Place a table by distance, (H, T), into a matrix: [h, i, j] is table[h, i-j], or `future` where j > i.

    Sliding windows over the reversed table need no index, and their gradient is a plain sum (deterministic).
    """
    heads, length = table.shape
    ahead = table.new_full((heads, length - 1), future)
    line = torch.cat((table.flip(-1), ahead), dim=-1)  # (H, 2T-1)
    return line.unfold(-1, length, 1).flip(-2)  # (H, T, T)


def logits(
    query: Tensor,
    key: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None = None,
    future_logit_zero: bool = False,
) -> Tensor:
    """Compute the scores scale * S + bias, S = q k^T / sqrt(hd): q, k (B, H, T, hd) -> (B, H, T, T).

    Future keys are -inf, or exactly 0 with `future_logit_zero` (then keys at or after `lengths` are -inf).
    Without it no key mask is needed: left-aligned padding lies in the future of every real query.
    """
    length = query.shape[-2]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, H, T, T)
    if scale is not None:
        scores = scores * toeplitz(scale.to(scores.dtype), 0.0)
    if bias is None:
        bias = scores.new_zeros(1, length)
    scores = scores + toeplitz(bias.to(scores.dtype), 0.0 if future_logit_zero else -math.inf)
    if future_logit_zero and lengths is not None:
        # A row with no real key would be all -inf, hence NaN; an empty sequence keeps one key.
        hidden = torch.arange(length, device=lengths.device) >= lengths.clamp(min=1)[:, None]  # (B, T)
        scores = scores.masked_fill(hidden[:, None, None, :], -math.inf)
    return scores


def logits_at(
    index: Tensor,
    query: Tensor,
    key: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None = None,
    future_logit_zero: bool = False,
) -> Tensor:
    """Compute row `index` (B,) of `logits` alone: q (B, H, hd), k (B, H, T, hd) -> (B, H, T)."""
    time = torch.arange(key.shape[-2], device=key.device)
    distance = index[:, None] - time  # (B, T)
    future, past = distance[:, None] < 0, distance.clamp(min=0)
    scores = (key @ query[..., None]).squeeze(-1) / math.sqrt(query.shape[-1])
    if scale is not None:
        scores = scores * scale.to(scores.dtype)[:, past].transpose(0, 1).masked_fill(future, 0.0)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)[:, past].transpose(0, 1).masked_fill(future, 0.0)
    if not future_logit_zero:
        return scores.masked_fill(future, -math.inf)
    hidden = time >= (len(time) if lengths is None else lengths.clamp(min=1)[:, None])
    return scores.masked_fill(hidden.expand_as(distance)[:, None], -math.inf)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    future_logit_zero: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Mix values by softmax(scale * S + bias): q, k, v (B, H, T, hd), tables (H, T) -> (B, H, T, hd).

    A prior's tables are used in float32, or in the inputs' precision if wider, also under autocast: a bias of
    some hundreds has no correct digit after the point in bfloat16.
    """
    if scale is None and bias is None and not future_logit_zero:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
    with without_autocast(query):
        dtype = value.dtype
        query, key, value = wide(query, key, value)
        if scale is None and bias is not None and not future_logit_zero:
            mask = toeplitz(bias.to(query.dtype), -math.inf)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        else:
            weights = logits(query, key, scale, bias, lengths, future_logit_zero).softmax(-1)
            mixed = F.dropout(weights, dropout) @ value
        return mixed.to(dtype)


class Attention(Block):
    """Multi-head self-attention under a prior: 4 D^2 + 4 D parameters and the prior's own.

    Scores are softmax inputs of Vaswani et al. (2017), shaped by `prior`; `dropout` acts on the weights.
    `rotary` turns queries and keys by their positions (Su et al. 2021), without parameters.
    Raises ValueError when `heads` does not divide `width`, or leaves rotary heads an odd width.
    """

    def __init__(self, width: int, heads: int, prior: Prior, dropout: float = 0.0, rotary: bool = False) -> None:
        super().__init__()
        head = head_width(width, heads)
        if rotary and head % 2:
            raise ValueError(f"heads of width {head} cannot be rotary; the width of a rotary head must be even")
        self.heads = heads
        self.rotary = rotary
        self.dropout = dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.prior = prior
        self.causal = prior.causal

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Mix the positions of x (B, T, D)."""
        return contained_window(self._mix, x, lengths, self.causal, DEGREE)

    def _mix(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        packed = self.project_in(x)  # (B, T, 3D)
        tables = self.prior.tables(x.shape[1])
        zero, dropout = self.prior.future_logit_zero, self.dropout if self.training else 0.0
        plain = tables[0] is None and tables[1] is None and not (zero or self.rotary or dropout)
        if plain and packed.device.type == "cpu" and NUMBA and not torch.compiler.is_exporting():
            from dqn_memory.blocks.kernels import cpu_attention  # at first use: it loads numba

            if cpu_attention.attention_is_faster(packed, x.shape[2], self.heads, x.shape[1]):
                return self.project_out(cpu_attention.cpu_attention(packed, self.heads))
        mixed = attend(*self._heads(packed), *tables, lengths, future_logit_zero=zero, dropout=dropout)
        return self.project_out(mixed.transpose(1, 2).flatten(2))  # (B, T, D)

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Attend with one query a row: keys and values of x (B, T, D), the query of position `index` (B,) -> (B, D)."""
        return contained_at(self._mix_at, x, lengths, index, self.causal, DEGREE)

    def _mix_at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        width, weight, bias = x.shape[-1], self.project_in.weight, self.project_in.bias
        packed = F.linear(x, weight[width:], bias[width:])
        key, value = packed.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, H, T, hd)
        query = F.linear(select(x, index), weight[:width], bias[:width]).unflatten(-1, (self.heads, -1))  # (B, H, hd)
        if self.rotary:
            key, query = rotate(key), rotate(query[:, :, None], index[:, None, None])[:, :, 0]
        with without_autocast(query):
            exact, key, value = wide(query, key, value)
            scores = logits_at(index, exact, key, *self.prior.tables(x.shape[1]), lengths, self.prior.future_logit_zero)
            weights = F.dropout(scores.softmax(-1), self.dropout, self.training)  # (B, H, T)
            mixed = (weights[:, :, None] @ value).flatten(1).to(query.dtype)
        return self.project_out(mixed)

    @torch.no_grad()
    def weights(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute attention maps (B, H, T, T) for drawing: rows are queries, and rows of padding are zero."""
        query, key, _ = self._heads(self.project_in(x))
        tables = self.prior.tables(x.shape[1])
        maps = logits(query, key, *tables, lengths, self.prior.future_logit_zero).softmax(-1)
        if lengths is None:
            return maps
        real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (B, T)
        return maps * real[:, None, :, None]

    def _heads(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = packed.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        return query, key, value  # each (B, H, T, hd)


class StreamedAttention(Memory):
    """Causal self-attention over the last K inputs of the episode, which the state holds: parameters as `Attention`.

    Equal to `Attention` over a window of the last K inputs that is encoded again at each position. Positions are
    relative ones: rotary, a prior's, or none. L such layers together reach about L K back. 4 D^2 + 4 D parameters and
    the prior's. With K of at least 32, a sequence takes 6 D^2 + 4 K D multiply-adds a token; a step, which computes the
    keys and values of all K inputs, takes 2 (K + 1) D^2 + 2 K D. Kernels of a CPU take half of the 4 K D, and 4 D^2 +
    2 K D for a step that follows another one. A state of O(K D); stable at any length.
    """

    degree = DEGREE
    contains = True

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4, context: int = 64,
        prior: PriorConfig | None = None, rotary: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if context < 1:
            raise ValueError(f"context is {context}; attention needs at least the newest input, 1")
        self.width, self.context = width, context
        self.attention = Attention(width, heads, (prior or PriorConfig()).build(heads, context), dropout, rotary)
        if not self.attention.causal:
            raise ValueError("this prior gives weight to future inputs, so its attention cannot be streamed")
        self.tail = Tail(width, projection, 0.0)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros for the inputs (B, K - 1, D), oldest first, and 0 for the number of real ones among them (B,)."""
        inputs = torch.zeros(batch, self.context - 1, self.width, device=device, dtype=dtype)
        return inputs, torch.zeros(batch, dtype=torch.int64, device=device)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Compute `step`; keys and values of steps that follow one another are computed once.

        They are kept beside the state that the last step returned, and serve if the next step is given that very state
        and the weights are the same.
        """
        plain = not (torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch.compiler.is_compiling())
        if not (plain and self.context > 1 and type(x) is Tensor and state[0].dtype == x.dtype and self._is_fast(x)):
            return super().advance(x, state, reset)
        from dqn_memory.blocks.kernels.cpu_attention_step import KeyValueCache

        (past, count), cache, attention = state, self._take_cache(), self.attention
        if cache is None or not cache.serves(state, attention.project_in):
            cache = KeyValueCache(past, attention.project_in, attention.heads, attention.rotary)
        seen = count.clamp(0, self.context - 1) + 1  # (B,); the kernel checks nothing
        seen = seen if reset is None else torch.where(reset, 1, seen)
        mixed, last = cache.step(attention.project_in(x), seen), torch.empty_like(past)
        last[:, :-1] = past[:, 1:]
        if reset is not None:
            last[reset.nonzero()[:, 0]] = 0
        last[:, -1] = x
        after = last, seen.clamp(max=self.context - 1)
        cache.follow(after)
        self._cache = cache
        return self.tail(attention.project_out(mixed)), after

    def _take_cache(self) -> Any:
        """Remove what the last step kept: no other thread may append to it."""
        return self.__dict__.pop("_cache", None)

    def _save_to_state_dict(self, *given: Any) -> None:
        """Let the next step compute keys anew, as it does in a run that is resumed from what is saved here."""
        self._take_cache()
        super()._save_to_state_dict(*given)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what the last step kept: a copy computes it again."""
        return {name: part for name, part in self.__dict__.items() if name != "_cache"}

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        past, count = state
        before, time = self.context - 1, x.shape[1]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._take_cache()  # the first step after an update computes all keys, as it does in a resumed run
        places = torch.arange(before + time, device=x.device)
        index = places[before:]  # of the positions of x
        first = (before - count)[:, None].expand(-1, time)  # (B, T), where the episode of each position begins
        if reset is not None:
            begun = torch.where(reset, index, 0)
            first = torch.maximum(first, begun if time == 1 else begun.cummax(1).values)  # ONNX has no cummax
        after = (before + time - first[:, -1]).clamp(max=before)
        past = past.to(x.dtype)
        last = torch.cat((past[:, time:], x[:, max(0, time - before) :]), 1)
        last = last.masked_fill((places[time:] < first[:, -1:])[..., None], 0)
        if time == 1 and not torch.is_grad_enabled():  # rows are independent: no input can spoil another episode
            past = past.masked_fill((places[:before] < first)[..., None], 0)
            return self._mix(past, x, first), (last, after)
        return self._guarded(past, x, first, places), (last, after)

    def _guarded(self, past: Tensor, x: Tensor, first: Tensor, places: Tensor) -> Tensor:
        """Attend; an input that is not finite spoils only the outputs that read it."""
        if torch.compiler.is_exporting() or are_finite(x, self.degree, (past,)):
            return self._mix(past, x, first)
        before = self.context - 1
        flags = torch.cat((bad_flags(past, 2, self.degree), bad_flags(x, 2, self.degree)), 1)
        newest = torch.where(flags == 0, -1, places).cummax(1).values[:, before:]  # (B, T)
        read = newest >= torch.maximum(first, places[before:] - before)
        y = self._mix(finite(past, self.degree), finite(x, self.degree), first)
        return add_flags(y, x.new_zeros(()).masked_fill(read, math.nan))

    def _mix(self, past: Tensor, x: Tensor, first: Tensor) -> Tensor:
        """Mix past inputs (B, K - 1, D) and x (B, T, D) for each position of x, from `first` (B, T) on -> (B, T, D)."""
        if not self._is_fast(x):
            return self.tail(self._in_chunks(torch.cat((past, x), 1), first))
        from dqn_memory.blocks.kernels import cpu_attention

        attention, width = self.attention, self.width
        weight, bias = attention.project_in.weight[width:], attention.project_in.bias[width:]
        packed, earlier = attention.project_in(x), F.linear(past, weight, bias)  # (B, T, 3D), (B, K - 1, 2D)
        table = rotary_table(past.shape[1] + x.shape[1], width // attention.heads) if attention.rotary else None
        mixed = cpu_attention.streamed_attention(packed, earlier, first, table, attention.heads)
        return self.tail(attention.project_out(mixed))

    def _is_fast(self, x: Tensor) -> bool:
        """Tell whether a kernel serves for inputs like x (B, ..., D)."""
        attention = self.attention
        if x.device.type != "cpu" or not NUMBA or torch.compiler.is_exporting() or torch.is_autocast_enabled("cpu"):
            return False
        if attention.prior.tables(self.context) != (None, None) or (attention.dropout and self.training):
            return False
        from dqn_memory.blocks.kernels import cpu_attention  # at first use: it loads numba

        return cpu_attention.attention_is_faster(x, self.width, attention.heads, self.context, attention.rotary)

    def _in_chunks(self, inputs: Tensor, first: Tensor) -> Tensor:
        before, time, size = self.context - 1, first.shape[1], max(self.context, SMALLEST_CHUNK)
        outputs = [
            self._attend(inputs[:, start : start + before + size], first[:, start : start + size] - start)
            for start in range(0, time, size)
        ]
        return torch.cat(outputs, 1)

    def _attend(self, inputs: Tensor, first: Tensor) -> Tensor:
        """Mix inputs (B, K - 1 + C, D) for each of the last C of them, from `first` (B, C) on -> (B, C, D)."""
        attention, before, width = self.attention, self.context - 1, self.width
        weight, bias = attention.project_in.weight, attention.project_in.bias
        query = F.linear(inputs[:, before:], weight[:width], bias[:width]).unflatten(-1, (attention.heads, -1))
        packed = F.linear(inputs, weight[width:], bias[width:]).unflatten(-1, (2, attention.heads, -1))
        query, (key, value) = query.transpose(1, 2), packed.permute(2, 0, 3, 1, 4)  # (B, H, C | K - 1 + C, hd)
        time = torch.arange(inputs.shape[1], device=inputs.device)
        if attention.rotary:
            query, key = rotate(query, time[before:]), rotate(key)
        distance = time[before:, None] - time  # (C, K - 1 + C)
        seen = (distance >= 0) & (distance <= before) & (time >= first[..., None])  # (B, C, K - 1 + C)
        with without_autocast(inputs):
            query, key, value = wide(query, key, value)
            mask = query.new_zeros(()).masked_fill(~seen, -math.inf)[:, None]  # (B, 1, C, K - 1 + C)
            scale, preferred = attention.prior.tables(self.context)
            if preferred is not None:
                mask = mask + preferred.to(query.dtype)[:, distance.clamp(0, before)]
            dropout = attention.dropout if self.training else 0.0
            if scale is None:
                mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
            else:
                scores = query @ key.mT / math.sqrt(query.shape[-1])
                scores = scores * scale.to(query.dtype)[:, distance.clamp(0, before)]
                mixed = F.dropout((scores + mask).softmax(-1), dropout) @ value
        return attention.project_out(mixed.to(inputs.dtype).transpose(1, 2).flatten(2))
