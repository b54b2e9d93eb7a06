"""Make ../atari100k.md from the scores beside this script: `python results/published/atari100k.py`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from dqn_memory.study import statistics
from dqn_memory.study.statistics import HUMAN, Floats, game
from envs.errors import require
from envs.files import read_text, write_text
from envs.markup import Markup, code
from envs.tables import Table, Value, tables_page

FOLDER = Path(__file__).parent
SCORES = "atari100k_scores"
MEANS = {  # published table and column of the methods that print one mean a game
    "GLAM": ("glam_table1", "GLAM"),
    "UniZero": ("focus_table1", "UniZero"),
    "UniZero, Adaptive": ("focus_table1", "Adaptive"),
    "UniZero, Gaussian": ("focus_table1", "Gaussian"),
    "UniZero, Gaussian Adaptive": ("focus_table1", "Gaussian Adaptive"),
}
NOTE = """\
Scores are on the human scale of each game, (score - random) / (human - random): 0 is random play, 1 the human's score.
Square brackets hold {level:.0f} % intervals by stratified bootstrap: every resample draws the runs of each game anew,
with the games taken as given. Rows stand by their IQM of means. Scores are as published; whether all were evaluated in
the same way was not checked.

- **IQM** is the mean of the middle half of all runs in all games. **IQM of means** is that of one mean a game, which
  every row has. They are different quantities: compare two methods by the same one.
- **median** and **mean** are over games, of the means over runs. **optimality gap** is how far scores fall short of 1
  on average, those above 1 counted as 1; of means alone it comes out too small where runs lie on both sides of 1.
- **above human**: games in which the mean over runs is above 1.
- **over {best}**: probability of improvement on {best}, which is the best, by IQM, of the methods with several runs. It
  is the chance that a run of the row's method beats one of {best} in a game, ties half, averaged over games.
- **means only**: one published number a game. Such a row has no interval, no IQM over runs and no probability of
  improvement. GLAM's numbers are those of its Table 1, UniZero's and its three priors' of "Learning to Focus", Table 1.
- **printed mean, median** is what these two tables print below their games, and what GLAM's prints of other methods;
  `claims.md` compares it with their cells."""


def read_table(name: str) -> list[dict[str, str]]:
    """Read the rows of a published table."""
    return list(csv.DictReader(read_text(FOLDER / f"{name}.csv").splitlines()))


def normalised_scores() -> dict[str, Floats]:
    """Read the scores (R, M) of each method on the human scale: first those with raw scores, then those of MEANS."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in read_table(SCORES):
        found.setdefault(row["method"], {}).setdefault(game(row["game"]), []).append(float(row["score"]))
    for method, (table, column) in MEANS.items():
        cells = [(game(row["game"]), row[column]) for row in read_table(table)]
        found[method] = {name: [float(text.replace(",", ""))] for name, text in cells if name}
    for method, games in found.items():
        counts = {len(games.get(name, [])) for name in HUMAN}
        require(len(counts) == 1 and 0 not in counts, f"{FOLDER}: {method} does not have all runs of all games")
    scales = [(scale.zero, scale.one) for scale in HUMAN.values()]
    own = [(*found["random"][name], *found["human"][name]) for name in HUMAN]
    require(own == scales, f"{FOLDER / SCORES}.csv: 'random' and 'human' are not the scores of study/human.csv")
    return {
        method: np.array([[scale(score) for score in games[name]] for name, scale in HUMAN.items()]).T
        for method, games in found.items()
        if method not in ("random", "human")
    }


def printed(method: str) -> str:
    """Give the mean and the median that a paper prints of a method, or nothing."""
    table, column = MEANS.get(method, ("glam_table1", method))
    rows = [row for ending in ("mean", "median") for row in read_table(table) if row["game"].lower().endswith(ending)]
    return ", ".join(filter(None, (row.get(column, "") for row in rows)))


def aggregates_table() -> Table:
    """Tabulate the aggregates of every method, the highest IQM of means first."""
    scores = normalised_scores()
    found = {method: statistics.aggregates(each) for method, each in scores.items()}
    of_means = {method: float(statistics.iqm(each.mean(0, keepdims=True))) for method, each in scores.items()}
    several = [method for method, each in scores.items() if len(each) > 1]
    best = max(several, key=lambda method: found[method]["IQM"].point)
    rows = []
    for method in sorted(scores, key=lambda method: -of_means[method]):
        each, numbers, runs = scores[method], found[method], method in several
        row: dict[str, Value] = {"method": method, "runs": str(len(each)) if runs else "means only"}
        row |= {"IQM": str(numbers["IQM"]) if runs else "", "IQM of means": f"{of_means[method]:.3f}"}
        row |= {name: str(numbers[name]) for name in ("median", "mean", "optimality gap")}
        row["above human"] = str(statistics.games_won(each))
        beats = statistics.estimate(statistics.probability_of_improvement, each, scores[best])
        row[f"over {best}"] = str(beats) if runs and method != best else ""
        rows.append(row | {"printed mean, median": printed(method)})
    return Table.from_records(rows, "Human-normalised scores", NOTE.format(level=100 * statistics.LEVEL, best=best))


def main(target: Path) -> None:
    """Write the page of the table and of the scores that it rests on."""
    facts: dict[str, Value] = {
        "command": code("python results/published/atari100k.py"),
        "computed from": Markup(
            f"`published/{SCORES}.csv`, whose column `source` names the repository and the file of each score, and the "
            "means in `published/glam_table1.csv` and `focus_table1.csv`; nothing was trained for this page"
        ),
        "games": len(HUMAN),
        "missing cells": "none; a method that lacks a run of a game is refused",
        "bootstrap": f"{statistics.REPETITIONS:,} resamples of aggregates, {statistics.FEW:,} of probabilities of "
        "improvement, seed 0",
    }
    write_text(target, tables_page("Atari 100k, recomputed", facts, [aggregates_table()]))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER.parent / "atari100k.md")
