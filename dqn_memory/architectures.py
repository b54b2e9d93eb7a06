"""The named architectures: rows of data over one grammar. A new architecture is a new row, never a new class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Architecture:
    """How a Q-network is put together; every field is a word of the grammar in `blocks` and `networks`.

    `wrapped` False means the bare memory block, without gate and LayerNorm around it (the recurrent baselines).
    `published` says that the paper or its reference prints a parameter count for this form.
    """

    memory: str = "feedforward_x4"
    attention: bool = True
    layers: int = 2
    wrapped: bool = True
    gate: str = "residual"
    order: Literal["post", "identity"] = "post"
    activation: Literal["relu", "none"] = "relu"
    positions: str = "learned"
    final_norm: bool = True
    head: Literal["mlp", "linear"] = "mlp"
    action_embedding: int = 0
    published: bool = False


def _paper(memory: str) -> Architecture:
    return Architecture(memory=memory, published=True)


def _recurrent_baseline(memory: str, action_embedding: int = 0, published: bool = False) -> Architecture:
    return Architecture(
        memory=memory, attention=False, layers=1, wrapped=False, positions="none", final_norm=False,
        action_embedding=action_embedding, published=published,
    )  # fmt: skip


ARCHITECTURES: dict[str, Architecture] = {
    # DTQN (Esslinger et al. 2022) with a feed-forward sublayer of k D hidden units, and the paper's recurrent ones
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
    # the two controls that research question 1 asks for: one D-to-D layer, and attention alone
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
}
