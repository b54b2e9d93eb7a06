"""Errors that a user can cause: one sentence, no traceback."""

import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from envs.errors import UserError, near_names

__all__ = ["UserError", "near_names", "one_line_errors"]

P = ParamSpec("P")
R = TypeVar("R")

# How torch (on a CPU, on a GPU, in sizes beyond 64 bits) and numpy say that there is no memory for a tensor.
SHORT_OF_MEMORY = re.compile("out of memory|can't allocate memory|unable to allocate|storage size calculation", re.I)
SIZE = re.compile(r"to allocate (\d[\d.]* ?\w+)")


def one_line_errors(main: Callable[P, R]) -> Callable[P, R]:
    """Make a script's main end on `error: ...` and exit code 2 where the user made a mistake."""

    @wraps(main)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return main(*args, **kwargs)
        except (ValueError, RuntimeError, MemoryError) as error:
            sentence = str(error) if isinstance(error, UserError) else _memory_sentence(error)
            if sentence is None:
                raise
            print(f"error: {sentence}", file=sys.stderr)
            raise SystemExit(2) from None

    return wrapper


def _memory_sentence(error: Exception) -> str | None:
    """What to say where memory did not suffice; None where the error is about something else."""
    if not (isinstance(error, MemoryError) or SHORT_OF_MEMORY.search(str(error))):
        return None
    size = SIZE.search(str(error))
    asked = f" for a tensor of {size[1]}" if size else ""
    return (
        f"not enough memory{asked}: sizes such as --capacity, --worlds, --batch or --width ask for more than this "
        "machine has; make them smaller"
    )
