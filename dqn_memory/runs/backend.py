"""The Mamba backend of a process: chosen once, said once, written down, and the same after a run's resume."""

from collections.abc import Iterable
from typing import Any, Literal, TextIO

import torch
from torch import nn

from dqn_memory.blocks.kernels.select import Choice, Unavailable, choose, mixers, set_scan
from dqn_memory.runs.errors import UserError
from envs.terminal import say

__all__ = ["FACT", "Backend", "Choice", "facts", "log_backend", "refused", "resolve_backend"]

Backend = Literal["auto", "torch", "simd", "triton", "mamba_ssm"]
FACT = "mamba_backend"  # its name in environment.json, which says null where there was no Mamba


def resolve_backend(networks: Iterable[nn.Module], asked: str, device: torch.device) -> Choice | None:
    """Give every Mamba of `networks` the backend that was asked for; None where they hold no Mamba.

    Raises UserError where it cannot run on the device.
    """
    found = [network for network in networks if mixers(network)]
    if not found:
        return None
    try:
        choice = choose(asked, device)
    except Unavailable as error:
        raise UserError(f"--backend {asked} of mamba cannot be used: {error}; use --backend torch or auto") from error
    for network in found:
        set_scan(network, choice.scan)
    return choice


def refused(name: str, device: torch.device) -> str | None:
    """Why a backend cannot be used on a device; None where it can."""
    try:
        choose(name, device)
    except Unavailable as error:
        return str(error)
    return None


def log_backend(
    choice: Choice | None, device: torch.device, began: str | None = None, to: TextIO | None = None
) -> None:
    """Say which backend runs, where one does, and that a resumed run `began` on another (`to`: standard output)."""
    if choice is None:
        return
    why = "as the run began" if began == choice.name else choice.why
    say(f"mamba runs on its {choice.name} backend on {device} ({why})", file=to)
    if began not in (None, choice.name):
        say(f"the run began on the {began} backend of mamba: the continued run is not exact", file=to)


def facts(choice: Choice | None) -> dict[str, Any]:
    """Give what environment.json, and what a script writes of a run, keep of it."""
    return {FACT: None if choice is None else choice.name}
