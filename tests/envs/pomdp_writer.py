"""Write a model in .pomdp format: the inverse of the reader, for its tests."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from envs.errors import require
from envs.worlds.pomdp import KEYWORDS, NAME
from envs.worlds.tabular import KINDS, Floats, Tables, number_names


def numbered(tables: Tables) -> Tables:
    """Return the same model with numbers for names."""
    names = {f"{kind}_names": number_names(len(getattr(tables, f"{kind}_names"))) for kind in KINDS}
    return replace(tables, **names)


def write(tables: Tables) -> str:
    """Write a model as a text in .pomdp format, from which `parse` makes the same tables bit for bit.

    Raises:
        UserError: the format has no place for a name.
    """
    pairs = list(np.ndindex(tables.reset.shape))
    lines = [f"discount: {float(tables.discount)!r}", "values: reward"]
    lines += [f"{kind}s: {_names(kind, getattr(tables, f'{kind}_names'))}" for kind in KINDS]
    lines.append(f"start: {_row(tables.start)}")
    lines += [f"T: {a} : {s} " + ("reset" if tables.reset[a, s] else _row(tables.T[a, s])) for a, s in pairs]
    lines += [f"O: {a} : {s} {_row(tables.O[a, s])}" for a, s in pairs]
    return "\n".join([*lines, *_rewards(tables), ""])


def _names(kind: str, names: tuple[str, ...]) -> str:
    """Write a list of names, or their number where they are numbers."""
    if names == number_names(len(names)):
        return str(len(names))
    wanted = "a letter and then anything but spaces, ':' and '#', and no keyword"
    for name in names:
        sentence = f"A .pomdp file has no place for the {kind} {name!r}, only for {wanted}; use numbered."
        require(NAME.fullmatch(name) and name not in KEYWORDS, sentence)
    return " ".join(names)


def _rewards(tables: Tables) -> Iterator[str]:
    """Write an entry for every row of rewards that is not all 0, or one for all next states where they are alike."""
    for a, s in np.ndindex(tables.reset.shape):
        rows = np.ascontiguousarray(tables.R[a, s])  # (S', Z)
        for to, row in [("*", rows[0])] if _same(rows) else enumerate(rows):
            if row.view(np.int64).any():  # -0.0 is no 0
                yield f"R: {a} : {s} : {to} " + (f": * {float(row[0])!r}" if _same(row) else _row(row))


def _same(values: Floats) -> bool:
    """Tell whether all are equal along the first axis, to the bit."""
    bits = values.view(np.int64)
    return bool((bits == bits[:1]).all())


def _row(values: Floats) -> str:
    return " ".join(map(repr, values.tolist()))
