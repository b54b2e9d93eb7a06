"""The memory sublayers by name.

To add one: a line here and, for a name on the command line, a row of ARCHITECTURES in dqn_memory/network.py; tests,
scripts and reports pick it up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dqn_memory.blocks.block import Block
from dqn_memory.blocks.feed_forward import FeedForward, LinearMap
from dqn_memory.blocks.mamba import Mamba
from dqn_memory.blocks.recurrence import Bidirectional, DarqnLSTM, Recurrence

# builder(width, dropout, projection): whether to end on Linear(D, D); blocks that are no recurrence ignore it.
Builder = Callable[[int, float, bool], Block]


def _feed_forward(multiple: int) -> Builder:
    return lambda width, dropout, projection: FeedForward(width, multiple, dropout)


BIDIRECTIONAL = ("birnn", "bilstm", "bigru")  # half of the width for each direction

MEMORY: dict[str, Builder] = {
    "feedforward_x1": _feed_forward(1),
    "feedforward_x2": _feed_forward(2),
    "feedforward_x3": _feed_forward(3),
    "feedforward_x4": _feed_forward(4),
    "linear": lambda width, dropout, projection: LinearMap(width, dropout),
    "rnn": partial(Recurrence, "rnn"),
    "lstm": partial(Recurrence, "lstm"),
    "gru": partial(Recurrence, "gru"),
    "birnn": partial(Bidirectional, "rnn"),
    "bilstm": partial(Bidirectional, "lstm"),
    "bigru": partial(Bidirectional, "gru"),
    "darqn": partial(DarqnLSTM, False),
    "darqn_released": partial(DarqnLSTM, True),
    "mamba": lambda width, dropout, projection: Mamba(width, dropout=dropout),
}
