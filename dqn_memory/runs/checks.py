"""What every trainer asks of its whole config: numbers that are numbers, and refusals that name flags which exist.

A part of a config knows its fields' names but not their flags: where two parts share a name, the flag has the part's in
front (dqn_memory.runs.flags).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.flags import flag_names

FLAG = re.compile(r"--([a-z][a-z0-9-]*)|^(\w+)")  # a message of a world begins with the bare name of its keyword


def check_finite(config: Any) -> None:
    """A UserError for the first setting that is no number, or infinite."""
    for path, flag in flag_names(config).items():
        value = _value(config, path)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{_dashed(flag)} {number} must be a finite number")


def check_least(config: Any, least: Mapping[str, int]) -> None:
    """A UserError for the first setting, named by its path, that is below what it is at least; None is no setting."""
    for path, bound in least.items():
        value = _value(config, path)
        if value is not None and value < bound:
            raise UserError(
                f"{_named(config, path)} {value} must {f'be at least {bound}' if bound else 'not be negative'}"
            )


def check_positive(config: Any, paths: Iterable[str]) -> None:
    """A UserError for the first setting, named by its path, that is not above 0."""
    for path in paths:
        if _value(config, path) <= 0:
            raise UserError(f"{_named(config, path)} {_value(config, path)} must be above 0")


def check_parts(config: Any, *parts: str) -> None:
    """Let these parts check themselves."""
    for part in parts:
        with told_by_flags(config, part):
            getattr(config, part).check()


@contextmanager
def told_by_flags(config: Any, part: str, **others: str) -> Iterator[None]:
    """Let what is refused inside name the flags of that part of a config; `others` are flags of other names."""
    try:
        yield
    except UserError as error:
        known = _flags_of(config, part) | others
        raise UserError(FLAG.sub(lambda found: _real(found, known), str(error))) from None


def _flags_of(config: Any, part: str) -> dict[str, str]:
    """Flags of a part by the last word of their path; of two fields of one name, that which lies less deep."""
    flags = {path: flag for path, flag in flag_names(config).items() if path.startswith(f"{part}.")}
    deepest_first = sorted(flags, key=lambda path: -path.count("."))
    return {path.rpartition(".")[2]: flags[path] for path in deepest_first}


def _real(found: re.Match[str], known: dict[str, str]) -> str:
    name = (found[1] or found[2]).replace("-", "_")
    return _dashed(known[name]) if name in known else found[0]


def _value(config: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), config)


def _named(config: Any, path: str) -> str:
    return _dashed(flag_names(config)[path])


def _dashed(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"
