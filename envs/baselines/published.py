"""The published scores of Table 1 of "Bi-directional Recurrence Improves Transformer in POMDPs".

They are means over a whole training of the greedy policy's success. Some rows have lost a value in the text; the three
that are left are taken for the last three columns, which nobody has confirmed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "published.csv"
Scores = Mapping[str, float | None]  # by architecture; None where the text has no value


@cache
def published() -> Mapping[str, Scores]:
    """Scores by id."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row.pop("id"): {name: float(value) if value else None for name, value in row.items()} for row in rows}
