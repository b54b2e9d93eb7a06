"""Errors that a user can cause: one sentence, no traceback."""

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class UserError(ValueError):
    """A mistake that the user can mend: one sentence saying what, where and what would be right."""


def near_names(what: str, name: str, known: Iterable[str]) -> str:
    """Say that `name` is no known `what`, which known name it resembles, and which ones exist."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    hint = f"; did you mean '{lowered[close[0]]}'?" if close else ";"
    return f"unknown {what} '{name}'{hint} known: {', '.join(names) or 'none'}"


def _user_errors() -> tuple[type[ValueError], ...]:
    # `envs` has its own UserError; where it was never imported it cannot have been raised.
    modules = [sys.modules.get(name) for name in ("envs.errors", "envs.core")]
    found = (getattr(module, "UserError", None) for module in modules)
    return (UserError, *(error for error in found if error is not None))


def one_line_errors(main: Callable[P, R]) -> Callable[P, R]:
    """Make a script's main end on `error: ...` and exit code 2 where the user made a mistake."""

    @wraps(main)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return main(*args, **kwargs)
        except ValueError as error:
            if not isinstance(error, _user_errors()):
                raise
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None

    return wrapper
