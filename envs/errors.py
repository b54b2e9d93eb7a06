"""The error for mistakes of a user, and the sentence for an unknown name."""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from envs.console import CONTROL, one_line, print_traceback, printable_warnings, say

P = ParamSpec("P")
R = TypeVar("R")

# The words of torch (CPU, GPU, sizes beyond 64 bits) and of numpy when a tensor does not fit into memory.
SHORT_OF_MEMORY = re.compile("out of memory|can't allocate memory|unable to allocate|storage size calculation", re.I)
SIZE = re.compile(r"to allocate (\d[\d.]* ?\w+)")
LONG_WORD = re.compile(r"\S{400,}")  # a path or a value too long to print
PIPE_CLOSED = 141  # the exit code of a program that a closed pipe ended
MAX_LISTED = 40  # known names that a sentence lists; of more it names the nearest
REGISTERED = ("architecture", "environment")  # kinds of names that a user's own module may register


class UserError(ValueError):
    """A mistake that the user can correct: one sentence with the mistake, its place and the correct form."""

    def __init__(self, sentence: object = "") -> None:
        super().__init__(one_line(str(sentence)))


class DrawsNothing(UserError):
    """An environment that gives no pictures."""


class UnknownKeyword(UserError, TypeError):
    """A keyword that an environment does not take: a TypeError too, as callers of `gymnasium.make` expect it."""


def require(condition: Any, sentence: str) -> None:
    """Raise a UserError with this sentence unless the condition holds."""
    if not condition:
        raise UserError(sentence)


def check_known(what: str, name: str, known: Collection[str], where: str = "") -> str:
    """Return a known `name`; else raise a UserError that begins with `where` and lists the nearest known names."""
    if name not in known:
        raise UserError(where + near_names(what, name, known))
    return name


def near_names(what: str, name: str, known: Iterable[str]) -> str:
    """Write the sentence for an unknown name, with the known names near it."""
    hint = suggestion(name, known)
    if not hint.startswith("none of"):
        return f"unknown {what} '{name}'; {hint}"
    own = "; register your own, in most scripts by --plugin MODULE" if what in REGISTERED else ""
    return f"unknown {what} '{name}': {hint}{own}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """List the known names that resemble a wrong one, ignoring case and namespace ("Gridverse/")."""
    names, name = sorted(known), str(name)
    plain = {full.lower().rpartition("/")[2]: full for full in names} | {full.lower(): full for full in names}
    close = list(dict.fromkeys(plain[key] for key in get_close_matches(name.lower(), plain, n=6, cutoff=0.6)))
    if len(names) > MAX_LISTED:
        if not close:
            return f"none of the {len(names)} known names is near it"
        return f"did you mean {' or '.join(repr(near) for near in close[:3])}?"
    guess = f"did you mean '{close[0]}'? " if close else ""
    return f"{guess}known: {', '.join(names) or 'none'}"


def one_line_errors(main: Callable[P, R]) -> Callable[P, R]:
    """Make a script's main end with `error: ...` and exit code 2 if the user made a mistake.

    If the reader of a pipe closes it, as `head` does, the script ends silently. Other errors keep their traceback.
    Tracebacks and Python's warnings are printed without characters that control a terminal.
    """

    @wraps(main)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        sys.excepthook = print_traceback
        try:
            _check_arguments(next((each for each in args if isinstance(each, list | tuple)), sys.argv[1:]))
            with printable_warnings():
                result = main(*args, **kwargs)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
            raise SystemExit(PIPE_CLOSED) from None
        except (ValueError, RuntimeError, MemoryError, OSError) as error:
            sentence = str(error) if isinstance(error, UserError) else _sentence(error)
            if sentence is None:
                raise
            shortened = LONG_WORD.sub(lambda word: f"{word[0][:60]}...{word[0][-60:]}", sentence)
            say(f"error: {one_line(shortened)}", file=sys.stderr)
            raise SystemExit(2) from None

    return wrapper


def _check_arguments(arguments: Iterable[Any]) -> None:
    """Refuse arguments with control characters, because the flag parser prints unknown arguments."""
    for argument in arguments:
        require(
            not CONTROL.search(str(argument)),
            f"the argument '{argument}' holds control characters, here shown as \\u and their number; leave them out",
        )


def _sentence(error: Exception) -> str | None:
    """Write the sentence for an unusable file or too little memory; None for other errors."""
    if getattr(error, "__notes__", None):  # notes mark errors of other people's code
        return None
    if "embedded null byte" in str(error):
        return "a path holds a null byte; remove it"
    if isinstance(error, OSError):
        return None if error.filename is None else f"cannot use {error.filename}: {error.strerror}"
    if not (isinstance(error, MemoryError) or SHORT_OF_MEMORY.search(str(error))):
        return None
    size = SIZE.search(str(error))
    tensor = f" for a tensor of {size[1]}" if size else ""
    return (
        f"not enough memory{tensor}: sizes such as --capacity, --num-envs, --batch-size or --width ask for more than "
        "this machine has; make them smaller"
    )
