"""The memories by name.

To add one: a line here and, for a name on the command line, a row of ARCHITECTURES in dqn_memory/architectures.py.
Tests, scripts and reports pick it up.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from dqn_memory.blocks.attention import StreamedAttention
from dqn_memory.blocks.block import Block, Memory, lookup, refuse_replaced
from dqn_memory.blocks.contract import check_memory
from dqn_memory.blocks.delta import DeltaNet, GatedDeltaNet
from dqn_memory.blocks.feed_forward import FeedForward, FrameStack, LinearMap, StepClock
from dqn_memory.blocks.ffm import FFM
from dqn_memory.blocks.hadamard import StableHadamard
from dqn_memory.blocks.householder import DeltaProduct
from dqn_memory.blocks.linear_attention import LinearAttention
from dqn_memory.blocks.mamba import Mamba
from dqn_memory.blocks.mamba2 import Mamba2
from dqn_memory.blocks.minimal import MinGRU, MinLSTM
from dqn_memory.blocks.recurrence import Bidirectional, DarqnLSTM, Recurrence
from dqn_memory.blocks.rwkv import RWKV7
from dqn_memory.blocks.state_space import LRU, S5
from dqn_memory.blocks.ttt import TTTLinear
from dqn_memory.blocks.xlstm import MLSTM, SLSTM

# builder(width, dropout, projection, **options): `projection` adds a last Linear(D, D).
Builder = Callable[..., Block]


def _feed_forward(multiple: int, width: int, dropout: float = 0.0, projection: bool = False) -> Block:
    return FeedForward(width, multiple, dropout)


BIDIRECTIONAL = ("birnn", "bilstm", "bigru")  # half of the width for each direction

MEMORY: dict[str, Builder] = {
    "feedforward_x1": partial(_feed_forward, 1),
    "feedforward_x2": partial(_feed_forward, 2),
    "feedforward_x3": partial(_feed_forward, 3),
    "feedforward_x4": partial(_feed_forward, 4),
    "linear": LinearMap,
    "rnn": partial(Recurrence, "rnn"),
    "lstm": partial(Recurrence, "lstm"),
    "gru": partial(Recurrence, "gru"),
    "birnn": partial(Bidirectional, "rnn"),
    "bilstm": partial(Bidirectional, "lstm"),
    "bigru": partial(Bidirectional, "gru"),
    "darqn": partial(DarqnLSTM, False),
    "darqn_released": partial(DarqnLSTM, True),
    "mamba": Mamba,
    "mingru": MinGRU,
    "minlstm": MinLSTM,
    "lru": LRU,
    "s5": S5,
    "ffm": FFM,
    "shm": StableHadamard,
    "slstm": SLSTM,
    "attention": StreamedAttention,
    # the state is a matrix for each head, computed in chunks
    "linear_attention": LinearAttention,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
    "deltaproduct": DeltaProduct,
    "rwkv7": RWKV7,
    "mamba2": Mamba2,
    "ttt_linear": TTTLinear,
    "mlstm": MLSTM,
    # controls
    "frame_stack": FrameStack,
    "clock": StepClock,
    "mlp": partial(_feed_forward, 4),
}


SHIPPED = dict(MEMORY)  # before any plugin


def names() -> tuple[str, ...]:
    """List the memories that `build` knows."""
    return tuple(MEMORY)


def build(name: str, width: int, dropout: float = 0.0, projection: bool = False, **options: Any) -> Block:
    """Build the memory called `name` for inputs and outputs of `width`, with options of its own as keywords.

    gru = build("gru", width=64)
    y, state = gru.sequence(x, state, reset)      # x, y (B, T, D), reset (B, T); state None: the initial one
    y, state = gru.step(x, state, reset)          # x, y (B, D), reset (B,)

    Raises:
        ValueError: the name or an option is unknown, an option is invalid, or a plugin's block breaks its contract.
    """
    builder = lookup(MEMORY, name, "memory")
    if width < 1:
        raise ValueError(f"width is {width}; a memory needs at least 1")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; it must be 0 or more and below 1")
    refuse_replaced(MEMORY, SHIPPED, name, "memory")
    if name not in SHIPPED:
        check_memory(name, builder, width, projection)
    known = list(inspect.signature(builder).parameters)[3:]
    for option in options:
        if option not in known:
            raise ValueError(f"memory {name!r} has no option {option!r}; it takes {', '.join(known) or 'none'}")
    block = builder(width, dropout, projection, **options)
    if isinstance(block, Memory):
        block.features = width
    return block
