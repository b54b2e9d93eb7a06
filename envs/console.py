"""Print texts of files, environments and users without the characters that control a terminal."""

import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

# C0 (except the line feed), DEL and C1 control a terminal; marks of direction reorder a line.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
HALF = re.compile("[\ud800-\udfff]")  # a lone surrogate, which UTF-8 cannot encode
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: str) -> str:
    r"""Show control characters as \u and their number, as JSON does; a tab becomes a blank, a line feed stays."""
    return HALF.sub(_number, CONTROL.sub(_number, text.replace("\t", " ")))


def _number(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def one_line(text: str) -> str:
    """Join the lines of a text by blanks, and show its control characters."""
    return printable(" ".join(text.splitlines()))


def without_colours(text: str) -> str:
    """Remove a terminal text's colours, and show its other control characters."""
    return printable(COLOUR.sub("", text))


def say(*values: object, end: str = "\n", file: TextIO | None = None) -> None:
    """Print values as `print` does, flushed, with control characters shown. All printing goes through here."""
    print(printable(" ".join(map(str, values))), end=end, file=file, flush=True)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Print Python's warnings as `say` prints, because they may quote a file."""
    write = warnings.formatwarning

    def formatted(*args: object, **kwargs: object) -> str:
        return without_colours(write(*args, **kwargs))  # type: ignore[arg-type]

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = write


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that ends the process, as `sys.excepthook` does."""
    say("".join(traceback.format_exception(kind, error, trace)), end="", file=sys.stderr)
