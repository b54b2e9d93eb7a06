"""Claims of the thesis "Exploring Attention Mechanisms ..." against its Tables 1 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dqn_memory.study.papers.claim import Claim, Figure, compare, count, verdict
from dqn_memory.study.papers.tables import FOCUS, FOLDER, THESIS, Table, load, number
from dqn_memory.study.papers.welch_cells import Cell, p_value
from dqn_memory.study.statistics import HUMAN

TABLE1_SEEDS, TABLE3_SEEDS = 7, 5  # Figure 3, which draws Table 1's runs, says 7; Table 3's caption says 5
ALPHA = 0.05
PRINTED_P = (
    ("Pong", "Gaussian", "0.0093"),
    ("Pong", "Local", "0.0008"),
    ("BankHeist", "Local", "0.0439"),
    ("MsPacman", "Gaussian", "0.0487"),
)
NO_GAIN = (("Boxing", "Local"), ("Boxing", "Gaussian"), ("BankHeist", "Gaussian"), ("MsPacman", "Local"))
TUNED = (
    ("Pong", "Local", "Local (w=2)"),
    ("Pong", "Gaussian", "Gaussian (mu=2, sigma=1)"),
    ("Boxing", "Local", "Local (w=6)"),
    ("Boxing", "Gaussian", "Gaussian (mu=6, sigma=1)"),
    ("MsPacman", "Local", "Local (w=10)"),
    ("MsPacman", "Gaussian", "Gaussian (mu=10, sigma=2)"),
)


def claims(folder: Path = FOLDER) -> list[Claim]:
    """All claims of the thesis that its tables can test."""
    benchmark, ablation = load("thesis_table1", folder), load("thesis_table3", folder)
    return [
        _improvement(benchmark),
        *(_printed_p(benchmark, *entry) for entry in PRINTED_P),
        *(_significant(benchmark, game, model, True) for game, model, _ in PRINTED_P),
        *(_significant(benchmark, game, model, False) for game, model in NO_GAIN),
        _boxing(ablation),
        *(_worse(ablation, game) for game in ("Pong", "Boxing")),
        _wider_in_pacman(ablation),
        *(_best(ablation, *entry) for entry in TUNED),
        _same_seeds(benchmark, ablation),
        _one_value(ablation),
        _more_games(load("focus_table1", folder)),
    ]


def _cells(table: Table, game: str, model: str, seeds: int) -> tuple[Cell, Cell]:
    """The model's cell and the baseline's."""
    return Cell.of(table.row(game=game, model=model), seeds), Cell.of(table.row(game=game, model="UniZero"), seeds)


def _improvement(table: Table) -> Claim:
    ours, base = _cells(table, "Pong", "Gaussian", TABLE1_SEEDS)
    figure = Figure.of_cells(lambda new, old: (new - old) / abs(old), ours.mean, base.mean)
    pong = HUMAN["pong"]
    share = (number(ours.mean) - number(base.mean)) / (pong.one - pong.zero)
    note = (
        "A share of a negative score, which another zero would change: "
        f"of the {pong.one - pong.zero:.1f} points from random play to a human it is {100 * share:.0f} %"
    )
    statement = "improvement of the best Gaussian over UniZero in Pong"
    return compare(THESIS, "abstract", statement, "53%", figure, note)


def _printed_p(table: Table, game: str, model: str, published: str) -> Claim:
    seven = p_value(*_cells(table, game, model, TABLE1_SEEDS))
    five = p_value(*_cells(table, game, model, TABLE3_SEEDS))
    one = p_value(*_cells(table, game, model, TABLE1_SEEDS), one_sided=True)
    note = f"With {TABLE3_SEEDS} seeds {five.text(4)}; one-sided with {TABLE1_SEEDS} {one.text(4)}"
    statement = f"{game}, {model} against UniZero: Welch's p (two-sided, {TABLE1_SEEDS} seeds)"
    agrees = seven.agrees(published)
    return Claim(THESIS, "Section 6.2", statement, published, seven.text(4), verdict(agrees), note)


def _significant(table: Table, game: str, model: str, claimed: bool) -> Claim:
    p = p_value(*_cells(table, game, model, TABLE1_SEEDS))
    five = p_value(*_cells(table, game, model, TABLE3_SEEDS))
    words = {True: "significant", False: "not significant"}
    note = f"With {TABLE3_SEEDS} seeds: p {five.text(4)}, {words[five.value < ALPHA]}"
    return Claim(
        THESIS,
        "Section 6.2",
        f"{game}, {model} against UniZero at {ALPHA}",
        words[claimed],
        f"p {p.text(4)}: {words[p.value < ALPHA]}",
        verdict((p.value < ALPHA) == claimed),
        note,
    )


def _boxing(table: Table) -> Claim:
    base = Cell.of(table.row(model="Vanilla UniZero", game="Boxing"), TABLE3_SEEDS)
    rows = [row for row in table.rows if row["game"] == "Boxing" and row["model"] != "Vanilla UniZero"]
    tested = [p_value(Cell.of(row, TABLE3_SEEDS), base) for row in rows]
    gained = [p.value < ALPHA and number(row["mean"]) > number(base.mean) for row, p in zip(rows, tested, strict=True)]
    smallest = min(tested, key=lambda p: p.value)
    return count(
        THESIS,
        "Table 3",
        "configurations that improve significantly on UniZero in Boxing",
        f"0 of {len(rows)}",
        gained,
        f"Smallest p {smallest.text(3)}",
    )


def _worse(table: Table, game: str) -> Claim:
    narrow = table.row(row="12", game=game)
    wide = table.row(row="14", game=game)
    p = p_value(Cell.of(narrow, TABLE3_SEEDS), Cell.of(wide, TABLE3_SEEDS))
    return Claim(
        THESIS,
        "Section 6.4",
        f"{game}: sigma from 1 to 4 at mu 2 worsens the score significantly",
        "significant",
        f"{narrow['mean']} to {wide['mean']}, p {p.text(3)}",
        verdict(p.value < ALPHA),
        f"Welch's test, two-sided, {TABLE3_SEEDS} seeds",
    )


def _wider_in_pacman(table: Table) -> Claim:
    narrow, wide = (table.row(row=row, game="MsPacman")["mean"] for row in ("16", "17"))
    figure = Figure.of_cells(lambda new, old: 1 - new / old, wide, narrow)
    upwards = Figure.of_cells(lambda new, old: old / new - 1, wide, narrow)
    return Claim(
        THESIS,
        "Section 6.4",
        "MsPacman: sigma from 2 to 4 at mu 10 costs",
        "over 26 %",
        figure.text(1, percent=True),
        verdict(figure.high > 0.26),
        f"The other way round, sigma 2 is {upwards.text(1, percent=True)} above sigma 4",
    )


def _best(table: Table, game: str, model: str, chosen: str) -> Claim:
    """Whether Table 1's setting is the best of its kind that Table 3 has."""
    rows = [row for row in table.rows if row["game"] == game and row["model"].startswith(model)]
    best = max(rows, key=lambda row: number(row["mean"]))
    mine = max(number(row["mean"]) for row in rows if row["model"] == chosen)
    return Claim(
        THESIS,
        "Section 6.2",
        f"{game}: Table 1's {chosen} is the best {model.lower()} setting of Table 3",
        chosen,
        f"{best['model']}: {best['mean']} (Table 1's: {mine:g})",
        verdict(mine >= number(best["mean"])),
    )


def _same_seeds(benchmark: Table, ablation: Table) -> Claim:
    """Cells of both tables: 7 seeds and 5 seeds cannot give the same means."""
    pairs = []
    for row in benchmark.rows:
        found = [other for other in ablation.rows if _named_alike(row, other)]
        pairs += [(row, found[0])] if found else []
    same = [ours["mean"] == theirs["mean"] for ours, theirs in pairs]
    return Claim(
        THESIS,
        "Figure 3, Table 3",
        f"Table 1 is over {TABLE1_SEEDS} seeds, Table 3 over {TABLE3_SEEDS}",
        "different runs",
        f"{sum(same)} of {len(same)} shared cells have the same mean",
        verdict(not all(same)),
        "One of the two numbers of seeds is wrong, or both tables show the same runs",
    )


def _named_alike(row: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a row of Table 1 and one of Table 3 are the same game and setting."""
    settings = {(game, model): chosen for game, model, chosen in TUNED}
    wanted = "Vanilla UniZero" if row["model"] == "UniZero" else settings.get((row["game"], row["model"]))
    return (other["game"], other["model"]) == (row["game"], wanted)


def _one_value(table: Table) -> Claim:
    rows = [row for row in table.rows if row["model"] == "Gaussian (mu=2, sigma=1)" and row["game"] == "Boxing"]
    shown = " and ".join(f"{row['mean']} ± {row['error']}" for row in rows)
    same = len({(row["mean"], row["error"]) for row in rows}) == 1
    return Claim(
        THESIS,
        "Table 3",
        "Boxing, Gaussian mu 2, sigma 1, which the table has twice",
        "one value",
        shown,
        verdict(same),
    )


def _more_games(reproduced: Table) -> Claim:
    found = reproduced.scores("UniZero") > reproduced.scores("MuZero")
    return Claim(
        THESIS,
        "Section 5.1",
        "games in which UniZero beats MuZero (from UniZero's own paper, whose table is not among these)",
        "15 of 26",
        f"{int(found.sum())} of {len(found)}",
        "cannot be checked",
        f'Recomputed from the reproduced UniZero in Table 1 of "{FOCUS}"',
    )
