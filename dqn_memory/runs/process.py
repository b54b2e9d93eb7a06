"""Save the state that all code of a process shares, and restore it for a caller from Python."""

import os
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

_lock = threading.Lock()
_running, _saved = 0, ExitStack()  # number of open calls, and the state that the last of them restores


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore random states, threads, precisions and the like at the end, also after an exception.

    Inside, gradients are on, and numpy's errors and torch's default dtype, device and autocast are the libraries' own.
    Calls that overlap in several threads count as one, which restores the state before the first of them.
    """
    global _running, _saved
    with _lock:
        if not _running:
            _saved = _save()
        _running += 1
    try:
        with (
            torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False), np.errstate(all="warn", under="ignore"), _cpu_by_default(),
        ):  # fmt: skip
            yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _saved.close()


def _cpu_by_default() -> AbstractContextManager[object]:
    """Make the CPU the default device of tensors, also if the caller has another one."""
    usual = torch.get_default_device().type == "cpu"  # then no context slows each call of torch
    return nullcontext() if usual else torch.device("cpu")


def _save() -> ExitStack:
    """Save the state that the process shares; closing the stack restores it."""
    saved = ExitStack()
    saved.callback(random.setstate, random.getstate())
    saved.callback(np.random.set_state, np.random.get_state())
    if torch.cuda.is_initialized():
        saved.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    elif torch.backends.cuda.is_built():  # reading its state would start CUDA; seeding waits for a start
        saved.callback(torch.cuda.manual_seed_all, torch.initial_seed())
    saved.callback(torch.set_rng_state, torch.get_rng_state())
    saved.callback(_set_threads, torch.get_num_threads())
    saved.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    backends: Any = torch.backends  # its stubs lack some parts
    for part in (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        saved.callback(setattr, part, "fp32_precision", part.fp32_precision)
    with suppress(RuntimeError):  # torch raises if the parts above differ
        saved.callback(setattr, backends.cudnn, "allow_tf32", backends.cudnn.allow_tf32)
    with suppress(RuntimeError):
        saved.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    saved.callback(_set_variables, dict(os.environ))
    with suppress(OSError):  # the folder may be gone
        saved.callback(os.chdir, os.getcwd())
    saved.enter_context(warnings.catch_warnings())
    return saved


def _set_threads(number: int) -> None:
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _set_variables(before: dict[str, str]) -> None:
    """Restore environment variables; those that did not change are not touched."""
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
