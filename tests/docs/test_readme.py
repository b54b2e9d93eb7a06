"""The README stays short, and the numbers of its table are those of the study that it names."""

import re

import pytest
from pages import ROOT

README = (ROOT / "README.md").read_text().splitlines()
REPORT = (ROOT / "results" / "studies" / "first_evidence" / "report.md").read_text()
COLUMNS = {"drqn": 3, "dtqn4": 4, "dgfqn": 5, "dbgfqn": 6}  # of the README's table


def cells(lines):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def plain(environment):
    """ "Memory 5x5" and "Gridverse/Memory-5x5-v0" alike."""
    return re.sub(r"^.*/|-v0$|memory|[- ]", "", environment.lower())


TABLE = {plain(row[1]): row for row in cells(README) if len(row) == 7}
SCORES = [row for row in cells(REPORT.split("## Scores by environment")[1].splitlines()) if row[1:2][0] in COLUMNS]
FINAL = 8  # column of the report's table of scores, which is the first to name these series


def test_it_is_short():
    assert len(README) <= 180


@pytest.mark.parametrize("row", SCORES[: 7 * len(COLUMNS)], ids=lambda row: f"{plain(row[0])}-{row[1]}")
def test_its_table_is_the_report(row):
    written = TABLE[plain(row[0])]
    for place, said in ((2, row[4]), (COLUMNS[row[1]], row[FINAL].split()[0])):
        assert abs(float(written[place]) - float(said)) <= 0.00501
