"""Learning rates of optimisers, and their states read back from checkpoints."""

from typing import Any

import torch
from torch import Tensor

from dqn_memory.runs.checkpoint import check_form

HUGE = 1e300  # far above any setting of an optimiser


def set_learning_rate(optimizer: torch.optim.Optimizer, final_fraction: float, progress: float) -> None:
    """Set learning rates after the fraction `progress` of a run.

    They fall linearly from each parameter group's `first_lr` to `final_fraction` of it.
    """
    for group in optimizer.param_groups:
        value = group["first_lr"] * (1 + (final_fraction - 1) * min(progress, 1.0))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict` that was read onto a CPU and perhaps written on another device.

    Whether a CUDA graph can capture its steps, and whether its learning rates are tensors, stay as they are.
    """
    groups = []
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for name in ("lr", "first_lr"):
            if name in own and not isinstance(saved.get(name), float | Tensor):
                raise TypeError(f"the optimizer's {name} is no number")
        others = {name: value for name, value in own.items() if name not in ("lr", "first_lr", "params", "capturable")}
        saved = others | saved  # another version of torch may have had fewer
        for name, value in others.items():
            number = isinstance(value, int | float)
            if number and not (isinstance(saved[name], int | float) and abs(saved[name]) < HUGE):
                raise TypeError(f"the optimizer's {name} is no number")
            check_form(saved[name], None if number else value, f"the optimizer's {name}.")
        lr = torch.tensor(float(saved["lr"])) if isinstance(own["lr"], Tensor) else float(saved["lr"])
        groups.append(saved | {"lr": lr} | {name: own[name] for name in ("capturable",) if name in own})
    optimizer.load_state_dict(state | {"param_groups": groups})
    names = {name for held in optimizer.state.values() for name in held}
    for parameter, held in optimizer.state.items():
        for name in names:
            value = held.get(name)
            if not isinstance(value, Tensor) or value.shape != (() if name == "step" else parameter.shape):
                raise TypeError(f"the optimizer's {name} does not fit its parameter")
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].to(group["params"][0].device)
