"""Claims of "Learning to Focus" against its Tables 1-3, and against the thesis it grew from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dqn_memory.study.papers.claim import Claim, Figure, compare, count, finding, verdict
from dqn_memory.study.papers.tables import FOCUS, FOLDER, Table, load, number
from dqn_memory.study.papers.welch_cells import Cell, p_value
from dqn_memory.study.statistics import Floats

SEEDS = 5
PRIORS = ("UniZero", "Adaptive", "Gaussian", "Gaussian Adaptive")
AVERAGES: dict[str, Callable[[Floats], np.floating]] = {"Normalized Mean": np.mean, "Normalized Median": np.median}


def claims(folder: Path = FOLDER) -> list[Claim]:
    """All claims of the paper that its tables can test."""
    scores, initial = load("focus_table1", folder), load("focus_table2", folder)
    return [
        *(_average(scores, row, column) for row in AVERAGES for column in ("MuZero", *PRIORS)),
        _gain(scores, "Normalized Mean", "77%", "abstract, Section 5.2"),
        _gain(scores, "Normalized Median", "100%", "Sections 5.2 and 6"),
        _wins(scores),
        _adaptive_matches(scores),
        *_repeated(scores, initial),
        *_narrow(initial),
        *_little_effect(initial),
        *(_overhead(load("focus_table3", folder), model) for model in PRIORS[1:]),
        _same_human(scores, load("glam_table1", folder)),
        *_thesis(initial, load("thesis_table3", folder)),
    ]


def _aggregate(table: Table, row: str, column: str) -> Figure:
    return Figure.monotone(lambda shift: float(AVERAGES[row](table.human_normalised(column, shift))))


def _average(table: Table, row: str, column: str) -> Claim:
    statement = f"human-normalised {row.split()[1].lower()} of {column}"
    return compare(FOCUS, "Table 1", statement, table.cell(row, column), _aggregate(table, row, column))


def _gain(table: Table, row: str, published: str, place: str) -> Claim:
    new, old = (_aggregate(table, row, column) for column in ("Gaussian", "UniZero"))
    figure = Figure(new.value / old.value - 1, new.low / old.high - 1, new.high / old.low - 1)
    printed = number(table.cell(row, "Gaussian")) / number(table.cell(row, "UniZero")) - 1
    statement = f"relative gain of Gaussian over UniZero in the human-normalised {row.split()[1].lower()}"
    note = f"{100 * printed:.1f} % from the two rounded values of the table"
    return compare(FOCUS, place, statement, f"+{published}", figure, note)


def _wins(table: Table) -> Claim:
    found = list(table.scores("Gaussian") > table.scores("UniZero"))
    best = table.scores("Gaussian") >= np.max([table.scores(column) for column in PRIORS], axis=0)
    note = f"It is the best of the four in {int(best.sum())}"
    return count(FOCUS, "Section 5.2", "games in which Gaussian beats UniZero", "19 of 26", found, note)


def _adaptive_matches(table: Table) -> Claim:
    adaptive, baseline = (_aggregate(table, "Normalized Median", name) for name in ("Adaptive", "UniZero"))
    text = f"{adaptive.text(3)} against {baseline.text(3)}"
    met = adaptive.high >= baseline.low
    return Claim(FOCUS, "Section 5.2", "Adaptive matches UniZero's median", "0.05, 0.05", text, verdict(met))


def _repeated(scores: Table, initial: Table) -> list[Claim]:
    """Settings that Tables 1 and 2 both report."""
    settings = {"Adaptive": ("span", "6"), "Gaussian": ("mu", "6")}
    return [
        _same(scores, initial, column, parameter, value, game)
        for column, (parameter, value) in settings.items()
        for game in ("Pong", "MsPacman", "Jamesbond", "Freeway")
    ]


def _same(scores: Table, initial: Table, column: str, parameter: str, value: str, game: str) -> Claim:
    first = scores.cell(game, column)
    second = initial.row(parameter=parameter, value=value, game=game)["mean"]
    statement = f"{game}, {column} from its usual initial value: Table 1's score is Table 2's ({parameter} {value})"
    near = abs(number(first) - number(second)) < 0.15  # one unit of the last digit may be rounding
    return Claim(FOCUS, "Tables 1 and 2", statement, first, second, verdict(near))


def _narrow(initial: Table) -> list[Claim]:
    """Narrow Gaussians against wide ones: higher in the mean, and beyond chance."""
    pairs = [
        (initial.row(parameter="sigma", value="1", game=game), initial.row(parameter="sigma", value="3", game=game))
        for game in dict.fromkeys(row["game"] for row in initial.rows)
    ]
    higher = [number(narrow["mean"]) > number(wide["mean"]) for narrow, wide in pairs]
    tested = [p_value(Cell.of(narrow, SEEDS), Cell.of(wide, SEEDS)) for narrow, wide in pairs]
    shown = ", ".join(f"{narrow['game']} {p.text(3)}" for (narrow, _), p in zip(pairs, tested, strict=True))
    statement = "sigma 1 is consistently better than sigma 3 (read as: has the higher mean)"
    return [
        count(FOCUS, "Section 5.3", statement, "4 of 4", higher),
        finding(
            FOCUS,
            "games in which sigma 1 and sigma 3 differ significantly at 0.05",
            f"{sum(p.value < 0.05 for p in tested)} of {len(tested)}",
            f"Welch's p, {SEEDS} seeds: {shown}",
        ),
    ]


def _little_effect(initial: Table) -> list[Claim]:
    return [_spread(initial, parameter) for parameter in ("span", "mu")]


def _spread(initial: Table, parameter: str) -> Claim:
    """The smallest Welch p between the best and the worst value of each game."""
    shown, small = [], []
    for game in dict.fromkeys(row["game"] for row in initial.rows):
        rows = sorted(
            (row for row in initial.rows if row["parameter"] == parameter and row["game"] == game),
            key=lambda row: number(row["mean"]),
        )
        p = p_value(Cell.of(rows[-1], SEEDS), Cell.of(rows[0], SEEDS))
        small.append(p.value >= 0.05)
        shown.append(f"{game} {rows[0]['mean']} to {rows[-1]['mean']} (p {p.text(3)})")
    statement = f"the initial {parameter} has little effect (read as: best and worst value not told apart at 0.05)"
    return count(FOCUS, "Table 2", statement, "4 of 4", small, "; ".join(shown) + "; the pair was chosen by its size")


def _overhead(table: Table, model: str) -> Claim:
    base, ours = (table.cell(name, "MFLOPs") for name in ("Baseline", model))
    figure = Figure.of_cells(lambda new, old: new / old - 1, ours, base)
    published = table.cell(model, "increase (%)") + "%"
    return compare(FOCUS, "Table 3", f"operations of {model} over the baseline's", published, figure)


def _same_human(scores: Table, other: Table) -> Claim:
    """Both Atari tables print a random and a human score of every game."""
    wrong = []
    for ours, theirs in zip(scores.games(), other.games(), strict=True):
        for column in ("Random", "Human"):
            if abs(number(ours[column]) - number(theirs[column])) > 0.5 + 1e-9:
                wrong.append(f"{ours['game']} {column.lower()} {ours[column]} and {theirs[column]}")
    total = 2 * len(scores.games())
    statement = "the random and human scores are those of GLAM's Table 1, within rounding"
    text = f"{total - len(wrong)} of {total}"
    return Claim(FOCUS, "Table 1", statement, f"{total} of {total}", text, verdict(not wrong), "; ".join(wrong) or "")


def _thesis(initial: Table, thesis: Table) -> list[Claim]:
    """Pong from two Gaussians that both works trained, on five seeds each."""
    return [_as_in_thesis(initial, thesis, value, row) for value, row in (("2", "6"), ("6", "7"))]


def _as_in_thesis(initial: Table, thesis: Table, value: str, row: str) -> Claim:
    here = initial.row(parameter="mu", value=value, game="Pong")
    there = thesis.row(row=row, game="Pong")
    same = Figure.of_cells(lambda mean: mean, there["mean"]).agrees(here["mean"])
    statement = f"Pong, Gaussian mu {value}, sigma 1: the same score as in the thesis' Table 3"
    shown = [f"{cell['mean']} ± {cell['error']}" for cell in (here, there)]
    return Claim(FOCUS, "Table 2", statement, shown[0], shown[1], verdict(same))
