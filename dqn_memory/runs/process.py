"""Save the state that all code of a process shares, and restore it for a caller from Python."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import torch


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
