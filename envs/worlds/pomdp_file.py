"""Models in Cassandra's .pomdp format: a reader, a writer, and a world from a file.

The reader takes the whole format (pomdp.org, "POMDP file format") and one meaning that gym-pomdps adds to
`T: action : state reset`: the episode ends there, and a start state is drawn. The probabilities of a row must sum to
one within 1e-5; they are kept as they are written. `values: cost` negates the numbers of R, so that R is a reward in
either case. Without `start` all states are equally likely; without an entry a reward is 0. Of several entries for
the same thing the last one counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from envs.errors import UserError
from envs.worlds.pomdp_grammar import KEYWORDS, NAME
from envs.worlds.pomdp_reader import parse
from envs.worlds.tables import Floats, Tables, numbers
from envs.worlds.tabular import Tabular

__all__ = ["File", "parse", "read", "write"]


class File(Tabular):
    """The model of a .pomdp file, with the observations and episodes of `Tabular`.

    Success is a return above 0 at the end of an episode that a `reset` ends. So a model without `reset`, or one that
    only knows costs, has no success.

    Args:
        path: the file.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, time_limit: int = 250, device: str | torch.device = "cpu"
    ) -> None:
        if path is None:
            raise UserError("POMDP/File-v0 needs the keyword path, the name of a .pomdp file.")
        super().__init__(read(path), time_limit, device)


def read(path: str | os.PathLike[str]) -> Tables:
    """The model of a .pomdp file.

    Raises:
        UserError: the file cannot be read, is no text, or breaks the format; the message names file and line.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: found no readable file ({reason}), expected a .pomdp file.") from None
    return parse(_decoded(data, str(path)), str(path))


def write(tables: Tables) -> str:
    """A model as a text in .pomdp format, from which `parse` makes the same tables bit for bit.

    Raises:
        UserError: the format has no place for a name.
    """
    return "\n".join([*_preamble(tables), *_probabilities(tables), *_rewards(tables), ""])


def _decoded(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad, text = error.start, ""
    else:
        bad = data.find(b"\0")
    if bad >= 0:
        line = data[:bad].count(b"\n") + 1
        raise UserError(f"{source}:{line}: found bytes that are no text in UTF-8, expected a .pomdp file.")
    return text


def _preamble(tables: Tables) -> Iterator[str]:
    yield f"discount: {float(tables.discount)!r}"
    yield "values: reward"
    yield f"states: {_names('state', tables.state_names)}"
    yield f"actions: {_names('action', tables.action_names)}"
    yield f"observations: {_names('observation', tables.observation_names)}"
    yield f"start: {_row(tables.start)}"


def _names(kind: str, names: tuple[str, ...]) -> str:
    """A list of names, or their number where they are numbers."""
    if names == numbers(len(names)):
        return str(len(names))
    for name in names:
        if not NAME.fullmatch(name) or name in KEYWORDS:
            wanted = "a letter and then anything but spaces, ':' and '#', and no keyword"
            raise UserError(f"A .pomdp file has no place for the {kind} {name!r}, only for {wanted}; use numbered().")
    return " ".join(names)


def _probabilities(tables: Tables) -> Iterator[str]:
    for a, s in np.ndindex(tables.reset.shape):
        yield f"T: {a} : {s} " + ("reset" if tables.reset[a, s] else _row(tables.T[a, s]))
    for a, s in np.ndindex(tables.reset.shape):
        yield f"O: {a} : {s} {_row(tables.O[a, s])}"


def _rewards(tables: Tables) -> Iterator[str]:
    """An entry for every row of rewards, or one for all next states where they make no difference."""
    for a, s in np.ndindex(tables.reset.shape):
        rows = np.ascontiguousarray(tables.R[a, s])  # (S', Z)
        if _same(rows):
            yield from _reward(f"R: {a} : {s} : *", rows[0])
        else:
            for to, row in enumerate(rows):
                yield from _reward(f"R: {a} : {s} : {to}", row)


def _reward(entry: str, row: Floats) -> Iterator[str]:
    """One entry for a row (Z,), none where it holds what a reader takes for granted."""
    if not _same(row):
        yield f"{entry} {_row(row)}"
    elif row[0] != 0.0 or np.signbit(row[0]):
        yield f"{entry} : * {float(row[0])!r}"


def _same(values: Floats) -> bool:
    """Whether all are equal along the first axis, to the bit."""
    bits = values.view(np.int64)
    return bool((bits == bits[:1]).all())


def _row(values: Floats) -> str:
    return " ".join(map(repr, values.tolist()))
