"""From the sections of a .pomdp file to the tables of its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.errors import UserError
from envs.worlds.pomdp_grammar import NUMBER, PREAMBLE, Names, Section, sections
from envs.worlds.tables import MOST_ENTRIES, Floats, Tables, check_size, wrong_row

Index = tuple[int | slice, ...]

REFERENCES = {"T": 1, "O": 1, "R": 2}  # how many an entry has at least
WORDS = {  # what may stand for numbers, by the entry and the axes that its references leave
    ("T", 1): ("uniform", "reset"),
    ("T", 2): ("uniform", "identity"),
    ("O", 1): ("uniform",),
    ("O", 2): ("uniform",),
}


def parse(text: str, source: str = "text") -> Tables:
    """The model that a text in .pomdp format describes; `source` names it in messages.

    Raises:
        UserError: the text breaks the format.
    """
    preamble: dict[str, Section] = {}
    entries: list[Section] = []
    for section in sections(text, source):
        name, line = section.keyword.text, section.keyword.line
        if name in REFERENCES:
            entries.append(section)
        elif name in preamble:
            raise UserError(f"{source}:{line}: found {section.keyword} a second time, expected it once.")
        else:
            preamble[name] = section
    for name in PREAMBLE:
        if name not in preamble:
            word, all_of = entries[0].keyword if entries else section.stop, ", ".join(PREAMBLE)
            raise UserError(f"{source}:{word.line}: found {word} without {name!r}, expected all of {all_of}.")
    return Reader.of(preamble, source).read(entries, section.stop.line)


@dataclass
class Reader:
    """A model while its entries are being read."""

    source: str
    discount: float
    cost: bool
    states: Names
    actions: Names
    observations: Names
    start: Floats  # (S,)

    @classmethod
    def of(cls, preamble: dict[str, Section], source: str) -> Reader:
        """Read the preamble, in whatever order it stands."""
        for name in PREAMBLE:
            preamble[name].colon()
        discount = preamble["discount"].number("a discount from 0 to 1", 0.0, 1.0)
        preamble["discount"].end()
        values = preamble["values"].accept("reward", "cost") or preamble["values"].fail("'reward' or 'cost'")
        preamble["values"].end()
        states = Names("a state", preamble["states"].names("states"))
        actions = Names("an action", preamble["actions"].names("actions"))
        observations = Names("an observation", preamble["observations"].names("observations"))
        where = f"{source}:{preamble['states'].keyword.line}"
        check_size(len(states.names), len(actions.names), len(observations.names), where)
        start = start_of(preamble.get("start"), states)
        return cls(source, discount, values == "cost", states, actions, observations, start)

    def __post_init__(self) -> None:
        states, actions, observations = len(self.states.names), len(self.actions.names), len(self.observations.names)
        self.axes = {
            "T": (self.actions, self.states, self.states),
            "O": (self.actions, self.states, self.observations),
            "R": (self.actions, self.states, self.states, self.observations),
        }
        self.tables = {"T": np.zeros((actions, states, states)), "O": np.zeros((actions, states, observations))}
        self.reset = np.zeros((actions, states), bool)
        self.lines = {name: np.zeros((actions, states), int) for name in self.tables}  # of the last entry
        self.rewards: list[tuple[Index, Floats]] = []

    def read(self, entries: Sequence[Section], last_line: int) -> Tables:
        """The model, from its T, O and R entries in their order."""
        for section in entries:
            self.entry(section)
        for name in self.tables:
            self.check_rows(name, last_line)
        return Tables(
            **self.tables,
            R=self.all_rewards(last_line),
            start=self.start,
            reset=self.reset,
            state_names=self.states.names,
            action_names=self.actions.names,
            observation_names=self.observations.names,
            discount=self.discount,
        )

    def entry(self, section: Section) -> None:
        """Read one entry; it takes the place of what earlier ones said of the same thing."""
        name = section.keyword.text
        index = self.references(section)
        word, value = self.values(section, tuple(len(axis.names) for axis in self.axes[name][len(index) :]))
        if name == "R":
            self.rewards.append((index, value))
            return
        self.tables[name][index] = value
        self.lines[name][index[:2]] = section.keyword.line
        if name == "T":
            self.reset[index[:2]] = word == "reset"

    def references(self, section: Section) -> Index:
        """Read the references of an entry, each after a colon."""
        name, index = section.keyword.text, list[int | slice]()
        for axis in self.axes[name]:
            if section.accept(":") is None:
                if len(index) >= REFERENCES[name]:
                    break
                section.fail(f"':' and {axis.kind}")
            index.append(section.pattern(axis))
        return tuple(index)

    def values(self, section: Section, shape: tuple[int, ...]) -> tuple[str | None, Floats]:
        """Read the numbers of an entry, or the word that stands for them, for the axes that are left."""
        name, count = section.keyword.text, int(np.prod(shape, dtype=int))
        words = WORDS.get((name, len(shape)), ())
        word = section.accept(*words)
        if word is None:
            value = numbers_of(section, count, words).reshape(shape)
        else:
            value = {"identity": np.eye(shape[-1]), "reset": self.start}.get(word, np.full(shape, 1 / shape[-1]))
        section.end(f"nothing more after {word!r}" if word else f"no more than {count} number{'s'[: count > 1]}")
        return word, value

    def check_rows(self, name: str, last_line: int) -> None:
        """Make sure that all rows of T or O are distributions."""
        wrong = wrong_row(self.tables[name])
        if wrong is None:
            return
        line, total = self.lines[name][wrong], self.tables[name][wrong].sum()
        row = f"{name} for action {self.actions.names[wrong[0]]!r} and state {self.states.names[wrong[1]]!r}"
        found = f"probabilities of {row} that sum to {total:g}" if line else f"no entry of {row}"
        expected = "a sum of 1" if line else "probabilities that sum to 1"
        raise UserError(f"{self.source}:{line or last_line}: found {found}, expected {expected}.")

    def all_rewards(self, last_line: int) -> Floats:
        """R (A, S, S', Z), as a view without the axes that no entry tells apart."""
        full = [len(axis.names) for axis in self.axes["R"]]
        used = [*full[:2], *(n if self.tells_apart(axis) else 1 for axis, n in enumerate(full[2:], 2))]
        if np.prod(used) > MOST_ENTRIES:
            limit = f"at most {MOST_ENTRIES} different entries of R"
            raise UserError(f"{self.source}:{last_line}: found {np.prod(used)}, expected {limit}.")
        rewards = np.zeros(used)
        for index, value in self.rewards:
            rewards[index] = value
        return np.broadcast_to(0.0 - rewards if self.cost else rewards, full)

    def tells_apart(self, axis: int) -> bool:
        """Whether an entry gives different rewards along an axis."""
        return any(len(index) <= axis or isinstance(index[axis], int) for index, _ in self.rewards)


def numbers_of(section: Section, count: int, words: Sequence[str] = ()) -> Floats:
    """Read numbers (count,), probabilities unless of R; `words` might stand in their place."""
    kind, bounds, least, most = ("probability", " from 0 to 1", 0.0, 1.0)
    if section.keyword.text == "R":
        kind, bounds, least, most = ("number", "", -np.inf, np.inf)
    instead = "".join(f" or {each!r}" for each in words)
    read = []
    for i in range(count):
        which = f"{kind} {i + 1} of {count}{bounds}" if count > 1 else f"a {kind}{bounds}"
        read.append(section.number(which + ("" if i else instead), least, most))
    return np.array(read)


def start_of(section: Section | None, states: Names) -> Floats:
    """The distribution (S,) of first states."""
    count = len(states.names)
    if section is None:
        return np.full(count, 1 / count)
    listed = section.accept("include", "exclude")
    section.colon()
    if listed is not None:
        return listed_start(section, states, listed == "include")
    if section.accept("uniform"):
        start = np.full(count, 1 / count)
    elif section.left == 1 and not (count == 1 and NUMBER.fullmatch(section.next.text) and section.next.text != "0"):
        start = np.eye(count)[section.reference(states)]
    else:
        start = start_vector(section, count)
    section.end()
    return start


def start_vector(section: Section, count: int) -> Floats:
    """Read the probabilities (S,) of first states."""
    start = numbers_of(section, count)
    if wrong_row(start[None]) is not None:
        where, found = f"{section.source}:{section.keyword.line}", f"probabilities of start that sum to {start.sum():g}"
        raise UserError(f"{where}: found {found}, expected a sum of 1.")
    return start


def listed_start(section: Section, states: Names, include: bool) -> Floats:
    """Equal probabilities (S,) for the states that are listed, or for all others."""
    chosen: np.ndarray[Any, np.dtype[np.bool_]] = np.full(len(states.names), not include)
    chosen[section.reference(states)] = include
    while not section.over:
        chosen[section.reference(states)] = include
    if not chosen.any():
        section.fail("a state that is not excluded")
    return chosen / chosen.sum()
