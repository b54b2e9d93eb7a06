"""The words of Cassandra's .pomdp format, and what may stand where. Text is taken apart, never evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from envs.errors import UserError
from envs.registry import near_names

PREAMBLE = ("discount", "values", "states", "actions", "observations")
SECTIONS = (*PREAMBLE, "start", "T", "O", "R")  # words that begin something new wherever they stand
KEYWORDS = {*SECTIONS, "include", "exclude", "uniform", "identity", "reset", "reward", "cost"}

WORD = re.compile(r":|[^\s:#]+")
NAME = re.compile(r"[^\W\d][^\s:#]*")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
COUNT = re.compile(r"[0-9]{1,9}")
MOST_NAMES = 2**16


@dataclass(frozen=True)
class Token:
    """A word of the file, and its line, counted from 1. The end of the file is the empty word."""

    text: str
    line: int

    def __str__(self) -> str:
        """As an error message calls it."""
        return repr(self.text) if self.text else "the end of the file"


@dataclass(frozen=True)
class Names:
    """What a reference may point to: `kind` with its article, for messages, and the names in order."""

    kind: str
    names: tuple[str, ...]


class Section:
    """One keyword with the words that follow it up to the next, read from left to right.

    Args:
        source: what the file is called in messages.
        keyword: the word that begins the section.
        words: the words after it, and as the last one that which follows the section.
    """

    def __init__(self, source: str, keyword: Token, words: Sequence[Token]) -> None:
        self.source, self.keyword, self._words, self._place = source, keyword, words, 0

    @property
    def next(self) -> Token:
        """The word to be read."""
        return self._words[self._place]

    @property
    def stop(self) -> Token:
        """The word that follows the section."""
        return self._words[-1]

    @property
    def over(self) -> bool:
        """Whether all words of the section have been read."""
        return self.left == 0

    @property
    def left(self) -> int:
        """How many words of the section are still to be read."""
        return len(self._words) - 1 - self._place

    def fail(self, expected: str, advice: str = "") -> NoReturn:
        """Report the word to be read; `advice` is added to what was expected."""
        said = f"found {self.next}, expected {expected}"
        raise UserError(f"{self.source}:{self.next.line}: {said}{advice and '; '}{advice or '.'}")

    def take(self) -> Token:
        """Read a word of the section."""
        self._place += 1
        return self._words[self._place - 1]

    def accept(self, *texts: str) -> str | None:
        """Read the next word if it is one of these."""
        return self.take().text if not self.over and self.next.text in texts else None

    def colon(self) -> None:
        """Read the colon after the keyword."""
        if self.accept(":") is None:
            self.fail(f"':' after {self.keyword}")

    def end(self, expected: str = "") -> None:
        """Make sure that nothing is left."""
        if not self.over:
            self.fail(expected or f"the end of {self.keyword}")

    def number(self, expected: str, least: float = -math.inf, most: float = math.inf) -> float:
        """Read a finite number within bounds; its sign may stand apart."""
        size = self._words[self._place + 1].text if self.left > 1 and self.next.text in ("+", "-") else ""
        text = "" if self.over else self.next.text + size
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not (least <= value <= most and math.isfinite(value)):
            self.fail(expected)
        self._place += 2 if size else 1
        return value

    def names(self, kind: str) -> tuple[str, ...]:
        """Read a count, or a list of names that differ."""
        if not self.over and COUNT.fullmatch(self.next.text):
            if not 0 < int(self.next.text) <= MOST_NAMES:
                self.fail(f"a number of {kind} from 1 to {MOST_NAMES}")
            count = int(self.take().text)
            self.end(f"nothing more after the number of {kind}")
            return tuple(map(str, range(count)))
        names: dict[str, None] = {}
        while not self.over or not names:
            if self.over or self.next.text in KEYWORDS or not NAME.fullmatch(self.next.text):
                self.fail(f"the number of {kind} or their names, each beginning with a letter")
            if self.next.text in names:
                self.fail(f"names of {kind} that differ from one another")
            names[self.take().text] = None
        return tuple(names)

    def reference(self, to: Names) -> int:
        """Read a name or a number, counted from 0."""
        text = "" if self.over else self.next.text
        if text in to.names:
            return to.names.index(self.take().text)
        if COUNT.fullmatch(text) and int(text) < len(to.names):
            return int(self.take().text)
        known = f"{to.kind}: a name or a number from 0 to {len(to.names) - 1}"
        named = NAME.fullmatch(text) and text not in KEYWORDS
        self.fail(known, near_names(text, to.names) if named else "")

    def pattern(self, to: Names) -> int | slice:
        """Read a reference, or * for everything."""
        return slice(None) if self.accept("*") else self.reference(to)


def sections(text: str, source: str) -> Iterator[Section]:
    """Cut a file into its sections.

    Raises:
        UserError: the file does not begin with a section.
    """
    words = tokens(text)
    begins = [place for place, word in enumerate(words) if word.text in SECTIONS]
    if not begins or begins[0] > 0:
        Section(source, words[0], words).fail(f"one of {', '.join(PREAMBLE)}")
    for begin, end in zip(begins, [*begins[1:], len(words) - 1], strict=True):
        yield Section(source, words[begin], words[begin + 1 : end + 1])


def tokens(text: str) -> list[Token]:
    """All words outside comments, and the end of the file."""
    lines = re.split(r"\r\n|\r|\n", text)
    words = [Token(word, at) for at, line in enumerate(lines, 1) for word in WORD.findall(line.partition("#")[0])]
    return [*words, Token("", max(len(lines) - (not lines[-1]), 1))]
