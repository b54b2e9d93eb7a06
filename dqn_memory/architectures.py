"""The named architectures of Q-networks: which memory, in which layers, with or without attention."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Architecture:
    """How a Q-network is put together. A new architecture is a new row of ARCHITECTURES, not a new class."""

    memory: str = "feedforward_x4"  # the memory sublayer, a name of `blocks.MEMORY`
    attention: bool = True  # whether an attention sublayer comes before it
    streamed: bool = False  # True: attention carries its last K inputs from step to step; False: it reads windows
    layers: int = 2
    wrapped: bool = True  # False: the bare memory block, without gate and LayerNorm (the recurrent baselines)
    gate: str = "residual"  # how a sublayer's output joins its input, a name of `blocks.GATES`
    order: Literal["post", "identity"] = "post"  # place of the LayerNorms
    activation: Literal["relu", "none"] = "relu"  # on each sublayer's output
    positions: str = "learned"  # the position encoding, a name of `blocks.POSITIONS`
    final_norm: bool = True  # a LayerNorm before the head
    head: Literal["mlp", "linear"] = "mlp"
    action_embedding: int = 0  # features of D that hold the previous action
    published: bool = False  # whether the paper or its code prints a parameter count for this form


def _paper(memory: str) -> Architecture:
    """Describe a form of the paper: attention and one memory in each of two layers."""
    return Architecture(memory=memory, published=True)


def _recurrent_baseline(memory: str, action_embedding: int = 0, published: bool = False) -> Architecture:
    """Describe one bare recurrence between embedding and head."""
    return Architecture(
        memory=memory, attention=False, layers=1, wrapped=False, positions="none", final_norm=False,
        action_embedding=action_embedding, published=published,
    )  # fmt: skip


def _memory(memory: str, attention: bool = False) -> Architecture:
    """Describe one memory in a gated residual layer after a LayerNorm: the form in which memories are compared."""
    return Architecture(
        memory=memory, attention=attention, streamed=attention, layers=1, gate="gru", order="identity",
        activation="none", positions="none",
    )  # fmt: skip


ARCHITECTURES: dict[str, Architecture] = {
    # DTQN (Esslinger et al. 2022) with k D hidden units in its feed-forward sublayer, then a recurrence in its place
    "dtqn1": _paper("feedforward_x1"),
    "dtqn2": _paper("feedforward_x2"),
    "dtqn3": _paper("feedforward_x3"),
    "dtqn4": _paper("feedforward_x4"),
    "drfqn": _paper("rnn"),
    "dlfqn": _paper("lstm"),
    "dgfqn": _paper("gru"),
    "dbrfqn": _paper("birnn"),
    "dblfqn": _paper("bilstm"),
    "dbgfqn": _paper("bigru"),
    # controls of research question 1: one D-to-D layer in its place, and attention alone
    "dtqn_linear": Architecture(memory="linear"),
    "dtqn_attention": Architecture(memory="none"),
    "dtqn_mamba": Architecture(memory="mamba"),
    # baselines
    "dqn": Architecture(memory="none", attention=False, layers=0, positions="none", final_norm=False),
    "drqn": _recurrent_baseline("lstm", published=True),
    "adrqn": _recurrent_baseline("lstm", action_embedding=16),
    "darqn": _recurrent_baseline("darqn"),
    "darqn_released": _recurrent_baseline("darqn_released"),
    "mamba": _recurrent_baseline("mamba"),
    "attn": Architecture(layers=1, positions="sinusoidal", final_norm=False, head="linear"),
    "gtrxl": Architecture(gate="gru", order="identity"),
    # memories that carry a state, each in the same layer (`mamba`, above, and *_bare have no such layer)
    "rnn": _memory("rnn"),
    "lstm": _memory("lstm"),
    "gru": _memory("gru"),
    "mamba_layer": _memory("mamba"),
    "mingru": _memory("mingru"),
    "minlstm": _memory("minlstm"),
    "lru": _memory("lru"),
    "s5": _memory("s5"),
    "ffm": _memory("ffm"),
    "shm": _memory("shm"),
    "slstm": _memory("slstm"),
    "attention": _memory("none", attention=True),
    "gtrxl_memory": Architecture(gate="gru", order="identity", positions="none", streamed=True),
    "linear_attention": _memory("linear_attention"),
    "deltanet": _memory("deltanet"),
    "gated_deltanet": _memory("gated_deltanet"),
    "deltaproduct": _memory("deltaproduct"),
    "rwkv7": _memory("rwkv7"),
    "mamba2": _memory("mamba2"),
    "ttt_linear": _memory("ttt_linear"),
    "mlstm": _memory("mlstm"),
    "frame_stack": _memory("frame_stack"),
    "mlp": _memory("mlp"),
    "rnn_bare": _recurrent_baseline("rnn"),
    "lstm_bare": _recurrent_baseline("lstm"),
    "gru_bare": _recurrent_baseline("gru"),
    "clock": _memory("clock"),
}

SHIPPED = dict(ARCHITECTURES)  # before any plugin
