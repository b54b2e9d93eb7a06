"""How loops over lanes are compiled, and shared out among torch's threads."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import torch


def compiled(function: Any) -> Any:
    """Compiled at its first call, kept on disk, free of Python's lock."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)


def in_parts(kernel: Any, batch: int, room: int, *arguments: Any) -> None:
    """Run over all sequences, one part of them on each of torch's threads, each with `room` numbers of its own."""
    parts = min(torch.get_num_threads(), batch)
    rooms = torch.empty(parts, room)
    tasks = [(batch * part // parts, batch * (part + 1) // parts, rooms[part].data_ptr()) for part in range(parts)]
    waiting: list[Future[None]] = [_pool(parts).submit(kernel, *task, *arguments) for task in tasks[1:]]
    kernel(*tasks[0], *arguments)
    for other in waiting:
        other.result()


@cache
def _pool(parts: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(parts - 1)


if hasattr(os, "register_at_fork"):  # a forked child has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
