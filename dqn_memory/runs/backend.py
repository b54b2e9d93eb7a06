"""Choose the backend of Mamba's scan once in a run, print it, and write it into environment.json for a resume."""

from collections.abc import Iterable
from typing import Any, Literal, TextIO

import torch
from torch import nn

from dqn_memory.blocks.kernels.select import Choice, Unavailable, choose, mixers, set_scan
from dqn_memory.runs.errors import UserError
from envs.console import say

__all__ = ["FACT", "Backend", "Choice", "facts", "log_backend", "resolve_backend"]

Backend = Literal["auto", "torch", "simd", "triton", "mamba_ssm"]
FACT = "mamba_backend"  # its key in environment.json; null: the networks have no Mamba


def resolve_backend(networks: Iterable[nn.Module], name: str, device: torch.device) -> Choice | None:
    """Set the backend of every Mamba in `networks` to `name`; None: they have no Mamba.

    Raises:
        UserError: the backend cannot run on the device.
    """
    with_mamba = [network for network in networks if mixers(network)]
    if not with_mamba:
        return None
    try:
        choice = choose(name, device)
    except Unavailable as error:
        raise UserError(f"--backend {name} of mamba cannot be used: {error}; use --backend torch or auto") from error
    for network in with_mamba:
        set_scan(network, choice.scan)
    return choice


def log_backend(
    choice: Choice | None, device: torch.device, began: str | None = None, to: TextIO | None = None
) -> None:
    """Print the backend to `to` (None: standard output), and a warning if a resumed run `began` on another."""
    if choice is None:
        return
    why = "as the run began" if began == choice.name else choice.why
    say(f"mamba runs on its {choice.name} backend on {device} ({why})", file=to)
    if began not in (None, choice.name):
        say(f"the run began on the {began} backend of mamba: the continued run is not exact", file=to)


def facts(choice: Choice | None) -> dict[str, Any]:
    """Give the backend as a fact of environment.json."""
    return {FACT: None if choice is None else choice.name}
