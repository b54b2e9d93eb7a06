"""Save the state that all code of a process shares, restore it for a caller from Python, and set up a command's own."""

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of glibc's malloc.h


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore random states, the number of threads and precisions at the end, also after an exception."""
    cudnn, cuda = torch.backends.cudnn, torch.cuda
    with ExitStack() as saved:
        saved.callback(random.setstate, random.getstate())
        saved.callback(np.random.set_state, np.random.get_state())
        saved.callback(torch.set_rng_state, torch.get_rng_state())
        if cuda.is_initialized():
            saved.callback(cuda.set_rng_state_all, cuda.get_rng_state_all())
        saved.callback(torch.set_num_threads, torch.get_num_threads())
        with suppress(RuntimeError):  # torch raises if its newer settings of precision are in use
            saved.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            saved.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
        yield


def keep_freed_memory() -> None:
    """Let the C library of Linux reuse freed memory instead of handing it back; call it in a command's process alone.

    It hands back large arrays at once, and each update then waits for the kernel to clear thousands of fresh pages.
    """
    allocate = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if allocate is not None:  # only glibc has it
        for parameter, size in ((TRIM_THRESHOLD, 2**30), (MMAP_THRESHOLD, 2**25)):
            allocate(parameter, size)
