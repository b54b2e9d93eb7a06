"""Atari 100k from public raw scores, on the human scale, beside the papers of which only means are printed."""

import math
from collections.abc import Mapping
from itertools import product

import numpy as np

from dqn_memory.study import statistics
from dqn_memory.study.papers.tables import Tables, human_normalised, number
from dqn_memory.study.statistics import HUMAN, Estimate, Floats, game, iqm
from envs.errors import require
from envs.markup import Markup, code
from envs.tables import Table, Value, page

SCORES = "atari100k_scores"  # a row a method, game and run; `random` and `human` are methods of one run
COLUMNS = ("method", "game", "run", "score")
GLAM, FOCUS = "glam_table1", "focus_table1"
MEANS: Mapping[str, tuple[str, str]] = {  # table and column of the methods of which nothing else is printed
    "GLAM": (GLAM, "GLAM"),
    "UniZero": (FOCUS, "UniZero"),
    "UniZero, Adaptive": (FOCUS, "Adaptive"),
    "UniZero, Gaussian": (FOCUS, "Gaussian"),
    "UniZero, Gaussian Adaptive": (FOCUS, "Gaussian Adaptive"),
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


def raw_scores(tables: Tables) -> dict[str, Floats]:
    """Read the scores (R, M) of each method in the games of HUMAN; a UserError names what is missing or foreign."""
    path, found = tables.folder / f"{SCORES}.csv", dict[str, dict[tuple[str, str], float]]()
    for row in tables[SCORES]:
        require(row.keys() >= set(COLUMNS), f"{path}: its columns must be {', '.join(COLUMNS)}")
        method, name, run, score = (row[column] for column in COLUMNS)
        require(game(name), f"{path}: '{name}' is no game of Atari 100k")
        cells = found.setdefault(method, {})
        require((run, game(name)) not in cells, f"{path}: {method} has two scores of run {run} in {name}")
        cells[run, game(name)] = number(score)
    for method in ("random", "human"):
        require(method in found, f"{path}: there are no scores of '{method}', which set the scale")
    return {method: _matrix(f"{path}: {method}", cells) for method, cells in found.items()}


def _matrix(what: str, cells: Mapping[tuple[str, str], float]) -> Floats:
    """Lay out scores by run and game, none of which may be missing."""
    runs = list(dict.fromkeys(run for run, _ in cells))
    for run, name in product(runs, HUMAN):
        require(math.isfinite(cells.get((run, name), math.nan)), f"{what} has no score of run {run} in {name}")
    return np.array([[cells[run, name] for name in HUMAN] for run in runs])


def normalised(tables: Tables) -> dict[str, Floats]:
    """Give the scores (R, M) of each method on the human scale: those with runs, then those of means alone."""
    scores = raw_scores(tables)
    zero, one = (scores.pop(name).mean(0) for name in ("random", "human"))
    found = {method: (each - zero) / (one - zero) for method, each in scores.items()}
    found |= {method: human_normalised(tables[name], column)[:1] for method, (name, column) in MEANS.items()}
    for method, each in found.items():
        games = each.shape[1]
        require(games == len(HUMAN), f"{tables.folder}: {method} has scores in {games} of {len(HUMAN)} games")
    return found


def printed(tables: Tables, method: str) -> str:
    """Give the mean and the median that a paper prints of a method, or nothing."""
    name, column = MEANS.get(method, (GLAM, method))
    found = [tables.rows(name, f"*{statistic}")[0].get(column, "") for statistic in ("mean", "median")]
    return ", ".join(filter(None, found))


def atari_table(tables: Tables) -> Table:
    """Tabulate the aggregates of every method, the highest IQM of means first."""
    scores = normalised(tables)
    found = {method: statistics.aggregates(each) for method, each in scores.items()}
    several = [method for method, each in scores.items() if len(each) > 1]
    require(several, f"{tables.folder / SCORES}.csv: no method has several runs")
    best = max(several, key=lambda method: found[method]["IQM"].point)
    rows = []
    for method in sorted(scores, key=lambda method: -_iqm_of_means(scores[method])):
        row = _row(method, scores[method], found[method], method in several)
        row[f"over {best}"] = _improvement(scores[method], scores[best]) if method in several and method != best else ""
        rows.append(row | {"printed mean, median": printed(tables, method)})
    return Table.from_records(rows, "Human-normalised scores", NOTE.format(level=100 * statistics.LEVEL, best=best))


def _row(method: str, scores: Floats, found: Mapping[str, Estimate], several: bool) -> dict[str, Value]:
    return {
        "method": method,
        "runs": str(len(scores)) if several else "means only",
        "IQM": str(found["IQM"]) if several else "",
        "IQM of means": f"{_iqm_of_means(scores):.3f}",
        **{name: str(found[name]) for name in ("median", "mean", "optimality gap")},
        "above human": str(statistics.games_won(scores)),
    }


def _iqm_of_means(scores: Floats) -> float:
    return float(iqm(scores.mean(0, keepdims=True)))


def _improvement(scores: Floats, best: Floats) -> str:
    return str(statistics.estimate(statistics.probability_of_improvement, scores, best))


def atari_page(command: str, tables: Tables) -> str:
    """Write the Markdown page of the table and what it rests on."""
    facts: dict[str, Value] = {
        "command": code(command),
        "computed from": Markup(
            f"`published/{SCORES}.csv`, whose column `source` names the repository and the file of each score, and the "
            "means in `published/glam_table1.csv` and `focus_table1.csv`; nothing was trained for this page"
        ),
        "games": len(HUMAN),
        "missing cells": "none; a method that lacks a run of a game is refused",
        "bootstrap": f"{statistics.REPETITIONS:,} resamples of aggregates, {statistics.FEW:,} of probabilities of "
        "improvement, seed 0",
    }
    return page("Atari 100k, recomputed", facts, [atari_table(tables)])
