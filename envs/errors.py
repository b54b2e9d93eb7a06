"""The one error that a user can cause, and what to say of a name that does not exist."""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from envs.terminal import CONTROL, one_line, print_traceback, printable_warnings, say

P = ParamSpec("P")
R = TypeVar("R")

# How torch (on a CPU, on a GPU, in sizes beyond 64 bits) and numpy say that there is no memory for a tensor.
SHORT_OF_MEMORY = re.compile("out of memory|can't allocate memory|unable to allocate|storage size calculation", re.I)
SIZE = re.compile(r"to allocate (\d[\d.]* ?\w+)")
LONG_WORD = re.compile(r"\S{400,}")  # a path or a value that nobody would read to its end
PIPE_CLOSED = 141  # the exit code of a program that a closed pipe ended
MAX_LISTED = 40  # of more known names only the nearest are said
REGISTERED = ("architecture", "environment")  # what users' own modules bring


class UserError(ValueError):
    """A mistake that the user can mend: one sentence saying what, where and what would be right."""

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
    """Give a name that is a known `what`; a UserError, which begins with `where`, says which are near it."""
    if name not in known:
        raise UserError(where + near_names(what, name, known))
    return name


def near_names(what: str, name: str, known: Iterable[str]) -> str:
    """Write the sentence for an unknown name, with the known names near it."""
    hint = suggestion(name, known)
    if not hint.startswith("none of"):
        return f"unknown {what} '{name}'; {hint}"
    own = "; one of your own must be registered, in most scripts by --plugin MODULE" if what in REGISTERED else ""
    return f"unknown {what} '{name}': {hint}{own}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Name the known names that a wrong one resembles, case and namespace ("Gridverse/") aside."""
    names, name = sorted(known), str(name)
    plain = {full.lower().rpartition("/")[2]: full for full in names} | {full.lower(): full for full in names}
    close = list(dict.fromkeys(plain[key] for key in get_close_matches(name.lower(), plain, n=6, cutoff=0.6)))
    if len(names) > MAX_LISTED:
        if not close:
            return f"none of the {len(names)} known names is near it"
        return f"did you mean {' or '.join(repr(near) for near in close[:3])}?"
    asked = f"did you mean '{close[0]}'? " if close else ""
    return f"{asked}known: {', '.join(names) or 'none'}"


def one_line_errors(main: Callable[P, R]) -> Callable[P, R]:
    """Make a script's main end on `error: ...` and exit code 2 where the user made a mistake.

    Where what reads its output has read enough, as `head` does, it ends without a word, as other programs do. Other
    errors keep their traceback, and Python's warnings are said, without characters that steer the terminal.
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
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the interpreter's last flush goes
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
    """Refuse arguments that steer a terminal, as what reads the flags repeats those that it does not know."""
    for argument in arguments:
        require(
            not CONTROL.search(str(argument)),
            f"the argument '{argument}' holds control characters, here shown as \\u and their number; leave them out",
        )


def _sentence(error: Exception) -> str | None:
    """Write the sentence for a file or memory that the system refuses; None for other errors."""
    if getattr(error, "__notes__", None):  # which say that somebody else's code raised it
        return None
    if "embedded null byte" in str(error):
        return "a path holds a null byte, which no path can"
    if isinstance(error, OSError):
        return None if error.filename is None else f"cannot use {error.filename}: {error.strerror}"
    if not (isinstance(error, MemoryError) or SHORT_OF_MEMORY.search(str(error))):
        return None
    size = SIZE.search(str(error))
    asked = f" for a tensor of {size[1]}" if size else ""
    return (
        f"not enough memory{asked}: sizes such as --capacity, --num-envs, --batch-size or --width ask for more than "
        "this machine has; make them smaller"
    )
