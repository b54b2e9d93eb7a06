"""Recurrent blocks (RNN, GRU, LSTM): forward, bidirectional, and the attended LSTM of DARQN."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dqn_memory.blocks.block import Block, Device, Memory, State, Tail, fresh, last, select
from dqn_memory.blocks.finite import cast, clear_padding, contained_window
from dqn_memory.blocks.kernels import recurrent
from dqn_memory.blocks.kernels.custom_operator import NUMBA, call, transformed

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def run(cell: nn.RNNBase, x: Tensor) -> Tensor:
    """Run a recurrence of one layer over x (B, T, D) from zero; returns (B, T, H)."""
    state = tuple(x.new_zeros(x.shape[0], cell.hidden_size) for _ in range(1 + isinstance(cell, nn.LSTM)))
    return recurrent.scan(cell, x, state, None)[0]


class Recurrence(Memory):
    """One layer of nn.RNN, nn.GRU or nn.LSTM over time: Elman 1990, Cho et al. 2014, Hochreiter & Schmidhuber 1997.

        rnn     h_t = tanh(n)
        lstm    c_t = f c_{t-1} + i tanh(n)          h_t = o tanh(c_t)
        gru     h_t = (1 - z) n' + z h_{t-1}         n' = tanh(W x_t + a + r (U h_{t-1} + b))

    n, and each gate f, i, o, z, r before its sigmoid, is a W x_t + a + U h_{t-1} + b of its own. Two equations differ
    from the papers: the LSTM forgets (Gers et al. 2000), and r acts after U, not before it (Cho et al., equation 8), so
    that one product gives all maps of h. g (2 D^2 + 2 D) parameters and 2 g D^2 multiply-adds a token with g = 1, 3, 4
    for rnn, gru, lstm; a state of O(D). Stable at any length: |h| <= 1, and c grows by at most 1 a position.
    """

    time_first = True

    def __init__(self, kind: str, width: int, dropout: float = 0.0, projection: bool = False) -> None:
        super().__init__()
        self.width, self.parts = width, 2 if kind == "lstm" else 1
        self.cell = CELLS[kind](width, width, batch_first=True)
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros: (h,), or (h, c) for an LSTM, each (B, D)."""
        return tuple(torch.zeros(batch, self.width, device=device, dtype=dtype) for _ in range(self.parts))

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        hidden, after = recurrent.scan(self.cell, x, state, reset)
        return self.tail(hidden), after

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        after = recurrent.step(self.cell, x, fresh(state, reset))
        return self.tail(after[0]), after


def _fast(x: Tensor, *cells: nn.RNNBase) -> Any:
    """Import the kernel of several directions if these can run in it: the import loads numba."""
    seen = torch.compiler.is_compiling() or torch.compiler.is_exporting() or transformed()
    if seen or not NUMBA or torch._C._is_any_autocast_enabled():
        return None
    from dqn_memory.blocks.kernels import cpu_bidirectional

    return cpu_bidirectional if all(cpu_bidirectional.fits_both(x, cell) for cell in cells) else None


class Bidirectional(Block):
    """Two recurrences of D/2, over time and against it, concatenated (DBGFQN paper Eq. 11-19); not causal.

    The backward one is a forward recurrence over the sequence reversed inside `lengths`: its first input is
    the last real position and padding never reaches one. Parameters as in nn.GRU(D, D/2, bidirectional=True),
    g (3 D^2 / 2 + 2 D) of them, and 3 g D^2 / 2 multiply-adds a token, with g as in `Recurrence`.
    """

    causal = False  # the backward direction reads the future

    def __init__(self, kind: str, width: int, dropout: float = 0.0, projection: bool = False) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"the width is {width}; a bidirectional memory halves it, so it must be even")
        self.ahead = CELLS[kind](width, width // 2, batch_first=True)
        self.behind = CELLS[kind](width, width // 2, batch_first=True)
        self.tail = Tail(width, projection, dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run over x (B, T, D) in both directions."""
        return contained_window(self._both, x, lengths, self.causal)

    def _both(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if fast := _fast(x, self.ahead, self.behind):
            return self.tail(fast.gru(x, lengths, self.ahead, self.behind))
        past, future = run(self.ahead, x), run(self.behind, recurrent.reverse(x, lengths))
        return self.tail(torch.cat((past, recurrent.reverse(future, lengths)), dim=-1))  # (B, T, D)

    def newest(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """As `Block`: the backward direction begins at the last position, so it takes one step."""
        return contained_window(self._newest, x, lengths, self.causal)

    def _newest(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        index = last(x, lengths)
        past, read = select(self._past(x), index), select(x, index)
        return self.tail(torch.cat((past, run(self.behind, read[:, None])[:, 0]), dim=-1))  # (B, D)

    def _past(self, x: Tensor) -> Tensor:
        fast = _fast(x, self.ahead)
        return fast.gru(x, None, self.ahead) if fast else run(self.ahead, x)  # (B, T, D / 2)

    @property
    def supports_prefixes(self) -> bool:
        """True: at a sequence's end, where the backward direction begins, it has made one step."""
        return True

    def at_every_prefix(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """As `Block`: one pass of the forward direction serves all ends; the backward one takes one step at each."""
        x = clear_padding(x, lengths)
        past = self._past(x)
        newest = run(self.behind, x.flatten(0, 1).unsqueeze(1))  # (B T, 1, D / 2)
        return self.tail(torch.cat((past, newest.view_as(past)), dim=-1))  # (B, T, D)


class DarqnLSTM(Memory):
    """LSTM over attended features (Sorokin et al. 2015, Deep Attention Recurrent Q-Network, soft form).

    a_t = softmax(W2 tanh(W1 x_t + W h_{t-1})) over the D features. The LSTM reads a_t * x_t; with `replace`
    it reads a_t alone, as the published DTQN code does. 11 D^2 + 10 D parameters, 11 D^2 + D multiply-adds a token, a
    state of O(D); as stable as an LSTM.
    """

    def __init__(self, replace: bool, width: int, dropout: float = 0.0, projection: bool = False) -> None:
        super().__init__()
        self.width, self.replace = width, replace
        self.from_input = nn.Linear(width, width)  # W1
        self.from_hidden = nn.Linear(width, width, bias=False)  # W
        self.to_score = nn.Linear(width, width)  # W2
        self.cell = nn.LSTMCell(width, width)
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (h, c), each (B, D)."""
        return tuple(torch.zeros(batch, self.width, device=device, dtype=dtype) for _ in range(2))

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        keys, state = self.from_input(x).unbind(1), self._known(state)
        resets = [None] * x.shape[1] if reset is None else reset.unbind(1)
        hidden = []
        # The loop is inherent: the hidden state of step t-1 chooses the input of step t.
        for value, key, begins in zip(x.unbind(1), keys, resets, strict=True):
            state = self._advance(value, key, fresh(state, begins))
            hidden.append(state[0])
        return self.tail(torch.stack(hidden, dim=1)), state  # (B, T, D)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        state = self._advance(x, self.from_input(x), fresh(self._known(state), reset))
        return self.tail(state[0]), state

    def _known(self, state: State) -> State:
        return tuple(cast(part, self.from_input.weight.dtype) for part in state)

    def _advance(self, x: Tensor, key: Tensor, state: State) -> State:
        score = self.to_score(torch.tanh(key + self.from_hidden(state[0])))
        attention = score.softmax(-1)  # (B, D)
        read = attention if self.replace else attention * x
        if not transformed():
            hidden, cell = self.cell(read, (state[0], state[1]))
            return hidden, cell
        weights = self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih + self.cell.bias_hh
        hidden, cell, *_ = call(recurrent.lstm_scan, read[None], *weights, *state, None)
        return hidden[0], cell
