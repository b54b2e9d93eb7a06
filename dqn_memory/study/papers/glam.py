"""Claims of the GLAM paper against its Tables 1-3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dqn_memory.study.papers.claim import Claim, Figure, compare, count, finding, verdict
from dqn_memory.study.papers.tables import FOLDER, GLAM, Table, load, number
from dqn_memory.study.statistics import Floats, iqm

RIVALS = ("SimPLe", "TWM", "IRIS", "DreamerV3", "Hieros", "STORM")
AVERAGES: dict[str, Callable[[Floats], np.floating]] = {"Human Mean": np.mean, "Human Median": np.median}
EXCELS = ("Kung Fu Master", "Krull", "Road Runner", "Alien")
ABLATED = {"Pong": "Pong", "Boxing": "Boxing", "KungFuMaster": "Kung Fu Master", "BattleZone": "Battle Zone"}


def claims(folder: Path = FOLDER) -> list[Claim]:
    """All claims of the paper that its tables can test."""
    scores, ablation = load("glam_table1", folder), load("glam_table2", folder)
    return [
        *(_average(scores, row, column) for row in AVERAGES for column in (*RIVALS, "GLAM")),
        *(_surpasses(scores, row) for row in AVERAGES),
        _middle(scores),
        _wins(scores),
        _carried(scores),
        _excels(scores),
        _same(scores, ablation, "Ours", "GLAM"),
        _same(scores, ablation, "Ours w/o G&L", "STORM"),
        _alone(ablation),
        _alone_against_storm(scores, ablation),
        _real_time(),
        _horizon(load("glam_table3", folder)),
    ]


def _aggregate(table: Table, row: str, column: str) -> Figure:
    return Figure.monotone(lambda shift: float(AVERAGES[row](table.human_normalised(column, shift))))


def _average(table: Table, row: str, column: str) -> Claim:
    games = len(table.human_normalised(column))
    rounded = float(AVERAGES[row](table.human_normalised(column, own_scale=True)))
    note = f"{100 * rounded:.1f} % with the table's own, rounded, random and human scores"
    note += "" if games == len(table.games()) else f"; {games} games, the table lacks the others"
    statement = f"human-normalised {row.split()[1].lower()} of {column}"
    return compare(GLAM, "Table 1", statement, table.cell(row, column), _aggregate(table, row, column), note)


def _surpasses(table: Table, row: str) -> Claim:
    ours = _aggregate(table, row, "GLAM").value
    theirs = {name: _aggregate(table, row, name).value for name in RIVALS}
    best = max(theirs, key=lambda name: theirs[name])
    word = row.split()[1].lower()
    text = f"GLAM {100 * ours:.1f} %, next {best} {100 * theirs[best]:.1f} %"
    return Claim(
        GLAM, "Results", f"GLAM surpasses all baselines in the {word}", "first", text, verdict(ours > theirs[best])
    )


def _middle(table: Table) -> Claim:
    """The interquartile mean over the games' means, which one game cannot carry."""
    values = {name: float(iqm(table.human_normalised(name)[None])) for name in (*RIVALS, "GLAM")}
    order = sorted(values, key=lambda name: -values[name])
    text = ", ".join(f"{name} {values[name]:.3f}" for name in order)
    return finding(GLAM, "human-normalised interquartile mean over games", text, "Hieros: 25 games")


def _wins(table: Table) -> Claim:
    won = table.scores("GLAM") > table.scores("STORM")
    return finding(GLAM, "games in which GLAM beats STORM", f"{int(won.sum())} of {len(won)}")


def _carried(table: Table) -> Claim:
    """Whether the gain in the mean outlives the one game that gives most of it."""
    gains = (table.human_normalised("GLAM") - table.human_normalised("STORM")) / len(table.games())
    names = [row["game"] for row in table.games()]
    most, least = int(gains.argmax()), int(gains.argmin())
    text = f"{gains.sum():+.3f}, of which {names[most]} {gains[most]:+.3f}; without it {gains.sum() - gains[most]:+.3f}"
    note = f"{names[least]} takes away most: {gains[least]:+.3f}"
    return finding(GLAM, "gain over STORM in the human-normalised mean, and what one game gives of it", text, note)


def _excels(table: Table) -> Claim:
    best = [
        number(table.cell(game, "GLAM")) > max(number(table.cell(game, rival)) for rival in RIVALS) for game in EXCELS
    ]
    total = f"{len(EXCELS)} of {len(EXCELS)}"
    statement = f"GLAM excels in {', '.join(EXCELS)} (read as: best of its row)"
    return count(GLAM, "Results", statement, total, best)


def _same(scores: Table, ablation: Table, row: str, column: str) -> Claim:
    cells = {game: (ablation.cell(row, game), scores.cell(name, column)) for game, name in ABLATED.items()}
    different = [f"{game} {first} and {second}" for game, (first, second) in cells.items() if first != second]
    statement = f"Table 2's \"{row}\" is Table 1's {column}"
    found = [first == second for first, second in cells.values()]
    return count(GLAM, "Ablation Studies", statement, "4 of 4", found, "; ".join(different))


def _alone(ablation: Table) -> Claim:
    found = [number(ablation.cell("Ours w/o G", g)) > number(ablation.cell("Ours w/o G&L", g)) for g in ABLATED]
    statement = "LMamba alone outperforms the baseline (Table 2's row)"
    return count(GLAM, "Method", statement, "4 of 4", found)


def _alone_against_storm(scores: Table, ablation: Table) -> Claim:
    pairs = {g: (ablation.cell("Ours w/o G", g), scores.cell(name, "STORM")) for g, name in ABLATED.items()}
    found = [number(first) > number(second) for first, second in pairs.values()]
    shown = "; ".join(f"{g} {first} and {second}" for g, (first, second) in pairs.items())
    statement = "LMamba alone outperforms the baseline (Table 1's STORM, the state of the art it names)"
    return count(GLAM, "Method", statement, "4 of 4", found, shown)


def _real_time() -> Claim:
    figure = Figure.exact(100_000 * 4 / 60 / 3600)
    statement = "hours of play in 100,000 samples of 4 frames at 60 frames a second"
    return compare(GLAM, "Baselines", statement, "1.85", figure)


def _horizon(table: Table) -> Claim:
    """Equation 11 with Table 3's constants in the places the equation gives them."""
    n0, delta, n_i, most = (int(number(table.row(symbol=s)["value"])) for s in ("n_0", "Delta n", "n_i", "n_max"))
    step = n_i
    as_printed = min(n0 + step // delta * n_i, most)
    exchanged = min(n0 + step // n_i * delta, most)
    return Claim(
        GLAM,
        "Equation 11, Table 3",
        f"imagination horizon at step {step:,}, with Table 3's increase of {delta}",
        str(n0 + delta),
        str(as_printed),
        verdict(as_printed == n0 + delta),
        f"With Delta n and n_i exchanged the equation gives {exchanged}",
    )
