"""The one error that a user can cause, and what to say of a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST_LISTED = 40  # of more known names only the nearest are said


class UserError(ValueError):
    """A mistake that the user can mend: one sentence saying what, where and what would be right."""


def near_names(what: str, name: str, known: Iterable[str]) -> str:
    """Say that `name` is no known `what`, and what `suggestion` says of the known names."""
    hint = suggestion(name, known)
    return f"unknown {what} '{name}'{':' if hint.startswith('none of') else ';'} {hint}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Which known names a wrong one resembles, case and namespace ("Gridverse/") aside, and which ones exist."""
    names = sorted(known)
    plain = {full.lower().rpartition("/")[2]: full for full in names} | {full.lower(): full for full in names}
    close = list(dict.fromkeys(plain[key] for key in get_close_matches(name.lower(), plain, n=6, cutoff=0.6)))
    if len(names) > MOST_LISTED:
        if not close:
            return f"none of the {len(names)} known names is near it"
        return f"did you mean {' or '.join(repr(near) for near in close[:3])}?"
    asked = f"did you mean '{close[0]}'? " if close else ""
    return f"{asked}known: {', '.join(names) or 'none'}"
