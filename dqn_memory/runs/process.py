"""What all of a process shares, given back to a caller from Python as it was."""

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
_inside, _kept = 0, ExitStack()  # calls that are not over yet, and what the last of them gives back


@contextmanager
def process_restored() -> Iterator[None]:
    """Leave random states, threads, precisions and the like as they are before, also after an exception.

    Inside, gradients are on, and numpy's errors and torch's default dtype, device and autocast are the libraries' own.
    Calls that overlap in several threads count as one, which gives back what the first of them found.
    """
    global _inside, _kept
    with _lock:
        if not _inside:
            _kept = _found()
        _inside += 1
    try:
        with (
            torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False), np.errstate(all="warn", under="ignore"), _cpu_by_default(),
        ):  # fmt: skip
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _kept.close()


def _cpu_by_default() -> AbstractContextManager[object]:
    """Make tensors on the CPU unless told otherwise, also where the caller has another default device."""
    usual = torch.get_default_device().type == "cpu"  # then nothing is entered that would slow each call of torch
    return nullcontext() if usual else torch.device("cpu")


def _found() -> ExitStack:
    """Note what all of the process shares; closing the stack gives it back."""
    kept = ExitStack()
    kept.callback(random.setstate, random.getstate())
    kept.callback(np.random.set_state, np.random.get_state())
    if torch.cuda.is_initialized():
        kept.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    elif torch.backends.cuda.is_built():  # to read its state would start CUDA; seeding waits until somebody does
        kept.callback(torch.cuda.manual_seed_all, torch.initial_seed())
    kept.callback(torch.set_rng_state, torch.get_rng_state())
    kept.callback(_set_threads, torch.get_num_threads())
    kept.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    backends: Any = torch.backends  # its stubs lack some parts
    for part in (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        kept.callback(setattr, part, "fp32_precision", part.fp32_precision)
    with suppress(RuntimeError):  # torch does not say where the parts above were set apart
        kept.callback(setattr, backends.cudnn, "allow_tf32", backends.cudnn.allow_tf32)
    with suppress(RuntimeError):
        kept.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    kept.callback(_set_variables, dict(os.environ))
    with suppress(OSError):  # the folder may be gone
        kept.callback(os.chdir, os.getcwd())
    kept.enter_context(warnings.catch_warnings())
    return kept


def _set_threads(number: int) -> None:
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _set_variables(before: dict[str, str]) -> None:
    """Put environment variables back; those that did not change are not touched."""
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
