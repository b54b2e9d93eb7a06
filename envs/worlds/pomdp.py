"""Read models in Cassandra's .pomdp format, and make an environment from a file.

The reader supports the complete format (pomdp.org, "POMDP file format") and one extension by gym-pomdps:
`T: action : state reset` ends the episode and draws a start state. The probabilities of a row must sum to one within
1e-5; they are not normalised. `values: cost` negates the numbers of R, so that R is always a reward. Without `start`
all states are equally likely. Rewards without an entry are 0. A later entry replaces an earlier one. The text is
parsed, never evaluated.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from envs.errors import UserError, require, suggestion
from envs.files import read_bytes
from envs.worlds.tabular import MAX_ENTRIES, Floats, Tables, Tabular, check_table_size, number_names

PREAMBLE = ("discount", "values", "states", "actions", "observations")
SECTIONS = (*PREAMBLE, "start", "T", "O", "R")  # each of these words begins a section
KEYWORDS = {*SECTIONS, "include", "exclude", "uniform", "identity", "reset", "reward", "cost"}
WORD = re.compile(r":|[^\s:#]+")
NAME = re.compile(r"[^\W\d][^\s:#]*")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
COUNT = re.compile(r"[0-9]{1,9}")
MAX_NAMES = 2**16
LARGEST = float(np.finfo(np.float32).max)  # maximum of a reward, which trainers store as float32


@dataclass(frozen=True)
class Token:
    """A word of the file and its line, counted from 1. The empty word is the end of the file."""

    text: str
    line: int

    def __str__(self) -> str:
        """Write the word for an error message."""
        return repr(self.text) if self.text else "the end of the file"


Names = tuple[str, dict[str, int]]  # targets of a reference: their kind with its article, and the index of each name


class ModelSection:
    """A keyword and the words up to the next keyword, read from left to right.

    Args:
        source: name of the file in messages.
        keyword: the word that begins the section.
        words: the words after it, and the first word of the next section.
    """

    def __init__(self, source: str, keyword: Token, words: Sequence[Token]) -> None:
        self.source, self.keyword, self.words = source, keyword, deque(words)

    @property
    def next(self) -> str:
        """Return the next word; the empty word at the end of the section."""
        return self.words[0].text if len(self.words) > 1 else ""

    def fail(self, expected: str, advice: str = ".") -> NoReturn:
        """Report the next word; `advice` ends the sentence."""
        word = self.words[0]
        if word.text == "OO":
            advice = "; observations that depend on the state before (gym-pomdps' OO) are not read here."
        raise UserError(f"{self.source}:{word.line}: found {word}, expected {expected}{advice}")

    def take(self) -> str:
        """Read the next word."""
        return self.words.popleft().text

    def accept(self, *texts: str) -> str | None:
        """Read the next word if it is one of these."""
        return self.take() if self.next in texts else None

    def colon(self) -> None:
        """Read the colon after the keyword."""
        self.accept(":") or self.fail(f"':' after {self.keyword}")

    def end(self) -> None:
        """Check that no word is left."""
        if self.next:
            self.fail(f"the end of {self.keyword}")

    def number(self, expected: str, low: float = -math.inf, high: float = math.inf) -> float:
        """Read a finite number within bounds; its sign may be a separate word."""
        signed = self.next in ("+", "-") and len(self.words) > 2
        text = self.next + self.words[1].text if signed else self.next
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not (low <= value <= high and math.isfinite(value)):
            self.fail(expected)
        for _ in range(1 + signed):
            self.take()
        return value

    def names(self, kind: str) -> dict[str, int]:
        """Read a count, or a list of different names."""
        if COUNT.fullmatch(self.next) and 0 < int(self.next) <= MAX_NAMES:
            return {name: index for index, name in enumerate(number_names(int(self.take())))}
        names: dict[str, int] = {}
        while self.next or not names:
            if not NAME.fullmatch(self.next) or self.next in KEYWORDS or self.next in names:
                self.fail(f"a number of {kind} up to {MAX_NAMES}, or names that begin with a letter and differ")
            names[self.take()] = len(names)
        return names

    def reference(self, to: Names) -> int:
        """Read a name or a number, counted from 0."""
        (kind, names), text = to, self.next
        if text in names:
            return names[self.take()]
        if COUNT.fullmatch(text) and int(text) < len(names):
            return int(self.take())
        is_name = NAME.fullmatch(text) and text not in KEYWORDS
        known = f"{kind}: a name or a number from 0 to {len(names) - 1}"
        self.fail(known, f"; {suggestion(text, names)}" if is_name else ".")

    def table(self, count: int, *words: str) -> Floats:
        """Read numbers (count,), for R rewards, else probabilities; `words` would have been allowed instead."""
        kind, low, high = ("", -LARGEST, LARGEST) if self.keyword.text == "R" else (" from 0 to 1", 0.0, 1.0)
        wanted = f"{count} number{'s'[: count > 1]}{kind}{''.join(f' or {each!r}' for each in words)}"
        return np.array([self.number(wanted, low, high) for _ in range(count)])


def split_sections(text: str, source: str) -> list[ModelSection]:
    """Split a file into its sections."""
    lines = re.split(r"\r\n|\r|\n", text)
    words = [Token(word, at) for at, line in enumerate(lines, 1) for word in WORD.findall(line.partition("#")[0])]
    words.append(Token("", max(len(lines) - (not lines[-1]), 1)))
    begins = [index for index, word in enumerate(words) if word.text in SECTIONS]
    if not begins or begins[0] > 0:
        ModelSection(source, words[0], words).fail(f"one of {', '.join(PREAMBLE)}")
    ends = [*begins[1:], len(words) - 1]
    return [ModelSection(source, words[i], words[i + 1 : end + 1]) for i, end in zip(begins, ends, strict=True)]


Index = tuple[int | slice, ...]
REFERENCES = {"T": 1, "O": 1, "R": 2}  # minimum number of an entry's references


def parse_pomdp(text: str, source: str = "text") -> Tables:
    """Read the model of a text in .pomdp format; `source` is its name in messages."""
    preamble: dict[str, ModelSection] = {}
    entries: list[ModelSection] = []
    for section in split_sections(text, source):
        name, line = section.keyword.text, section.keyword.line
        if name in REFERENCES:
            entries.append(section)
            continue
        require(name not in preamble, f"{source}:{line}: found {section.keyword} a second time, expected it once.")
        preamble[name] = section
    word, all_of = entries[0].keyword if entries else section.words[-1], ", ".join(PREAMBLE)
    for name in PREAMBLE:
        require(name in preamble, f"{source}:{word.line}: found {word} without {name!r}, expected all of {all_of}.")
        preamble[name].colon()
    return Reader(preamble, source).read(entries)


class Reader:
    """Build a model from its entries.

    Args:
        preamble: its sections by keyword.
        source: name of the file in messages.
    """

    def __init__(self, preamble: dict[str, ModelSection], source: str) -> None:
        self.source, self.discount = source, preamble["discount"].number("a discount from 0 to 1", 0.0, 1.0)
        values = preamble["values"].accept("reward", "cost") or preamble["values"].fail("'reward' or 'cost'")
        self.cost = values == "cost"
        state = "a state", preamble["states"].names("states")
        action = "an action", preamble["actions"].names("actions")
        observation = "an observation", preamble["observations"].names("observations")
        for name in PREAMBLE:
            preamble[name].end()
        self.axes = {
            "T": (action, state, state),
            "O": (action, state, observation),
            "R": (action, state, state, observation),
        }
        self.sizes = {name: tuple(len(names) for _, names in axes) for name, axes in self.axes.items()}
        actions, states, observations = self.sizes["O"]
        check_table_size(states, actions, observations, f"{source}:{preamble['states'].keyword.line}")
        self.start = start_of(preamble.get("start"), state)
        self.tables = {name: np.zeros(self.sizes[name]) for name in ("T", "O")}
        self.reset = np.zeros((actions, states), bool)
        self.rewards: list[tuple[Index, Floats]] = []

    def read(self, entries: Sequence[ModelSection]) -> Tables:
        """Make the model from its T, O and R entries."""
        for section in entries:
            self.entry(section)
        (_, actions), (_, states), (_, observations) = self.axes["O"]
        names = tuple(states), tuple(actions), tuple(observations)
        T, O, R = self.tables["T"], self.tables["O"], self.all_rewards()  # noqa: E741
        try:
            return Tables(T, O, R, self.start, self.reset, *names, self.discount)
        except UserError as error:
            raise UserError(f"{self.source}: {error}") from None

    def entry(self, section: ModelSection) -> None:
        """Read one entry, which overwrites earlier ones of the same indices."""
        name = section.keyword.text
        index = self.references(section)
        word, value = self.values(section, self.sizes[name][len(index) :])
        if name == "R":
            self.rewards.append((index, value))
            return
        self.tables[name][index] = value
        if name == "T":
            self.reset[index[:2]] = word == "reset"

    def references(self, section: ModelSection) -> Index:
        """Read the references of an entry: names, numbers or * for all, each after a colon."""
        name, index = section.keyword.text, list[int | slice]()
        for axis in self.axes[name]:
            if section.accept(":") is None:
                if len(index) >= REFERENCES[name]:
                    break
                section.fail(f"':' and {axis[0]}")
            index.append(slice(None) if section.accept("*") else section.reference(axis))
        return tuple(index)

    def values(self, section: ModelSection, shape: tuple[int, ...]) -> tuple[str | None, Floats]:
        """Read the numbers of an entry for its remaining axes, or a word such as `uniform` in their place."""
        name, count = section.keyword.text, math.prod(shape)
        words: tuple[str, ...] = ()  # allowed in place of numbers
        if shape and name != "R":
            words = ("uniform",) if name == "O" else ("uniform", "identity" if len(shape) == 2 else "reset")
        word = section.accept(*words)
        if word is None:
            value = section.table(count, *words).reshape(shape)
        elif word == "uniform":
            value = np.full(shape, 1 / shape[-1])
        else:
            value = self.start if word == "reset" else np.eye(shape[-1])
        section.end()
        return word, value

    def all_rewards(self) -> Floats:
        """Return R (A, S, S', Z), as a broadcast view along axes that no entry depends on."""
        full, used = self.sizes["R"], list(self.sizes["R"])
        for axis in (2, 3):
            if not any(len(index) <= axis or isinstance(index[axis], int) for index, _ in self.rewards):
                used[axis] = 1
        size, limit = math.prod(used), f"at most {MAX_ENTRIES} different entries of R"
        require(size <= MAX_ENTRIES, f"{self.source}: found {size}, expected {limit}.")
        rewards = np.zeros(used)
        for index, value in self.rewards:
            rewards[index] = value
        return np.broadcast_to(0.0 - rewards if self.cost else rewards, full)


def start_of(section: ModelSection | None, state: Names) -> Floats:
    """Read the distribution (S,) of start states."""
    count = len(state[1])
    if section is None:
        return np.full(count, 1 / count)
    listed = section.accept("include", "exclude")
    section.colon()
    only = count == 1 and NUMBER.fullmatch(section.next) and section.next != "0"
    if listed:
        names = [section.reference(state)]
        while section.next:
            names.append(section.reference(state))
        chosen = np.isin(np.arange(count), names) == (listed == "include")
        if not chosen.any():
            section.fail("a state that is not excluded")
        start = chosen / chosen.sum()
    elif section.accept("uniform"):
        start = np.full(count, 1 / count)
    elif len(section.words) == 2 and not only:
        start = np.eye(count)[section.reference(state)]
    else:
        start = section.table(count)
    section.end()
    return start


class File(Tabular):
    """The model of a .pomdp file, with the observations and episodes of `Tabular`.

    Success is a return above 0 at the end of an episode that a `reset` ends. A model without `reset` or without
    positive rewards defines no success; its scores are returns.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str], time_limit: int = 250, device: str | torch.device = "cpu") -> None:
        super().__init__(read_pomdp(path), time_limit, device)


def read_pomdp(path: str | os.PathLike[str]) -> Tables:
    """Read the model of a .pomdp file.

    Raises:
        UserError: the file cannot be read, is no text, or breaks the format; the message has the file and the line.
    """
    try:
        data = read_bytes(Path(path), follow=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: found no readable file ({reason}), expected a .pomdp file.") from None
    try:
        text, bad = data.decode("utf-8-sig"), data.find(b"\0")
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    line = data[: max(bad, 0)].count(b"\n") + 1
    require(bad < 0, f"{path}:{line}: found bytes that are no text in UTF-8, expected a .pomdp file.")
    return parse_pomdp(text, str(path))
