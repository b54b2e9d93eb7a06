"""Random and best play of worlds of one's own: the study's definition gives them, an archive keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reported import MEMORY, TWO, make_study, noisy, read, report, table, text_of

from dqn_memory.runs.errors import UserError
from dqn_memory.study.definition import expand, parse_definition
from dqn_memory.study.plots import curves_figure, looks
from dqn_memory.study.report import archive
from dqn_memory.study.sections.scores import aggregate_section
from dqn_memory.study.statistics import Scale

POLE = """{ name = "My pole", env = "CartPole-v1", time_limit = 50 }"""
OWN = "Acrobot-v1"
LINES = f'''
[lines."{OWN}"]
random = -4
best = 1.0
'''
TEXT = (
    """
title = "Mine"
kind = "dqn_memory.train"
[axes]
world = ["{own}", {{ name = "deep, dark", env = "CartPole-v1" }}]
architecture = ["dtqn4"]
seed = [1]
[smoke.axes]
world = ["CartPole-v1"]
""".replace("{own}", OWN)
    .replace("{{", "{")
    .replace("}}", "}")
)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A finished study of a world that has no lines; its runs have a return of 0."""
    make_study(tmp_path / "study", [OWN], TWO, [1, 2], noisy({"dgfqn": 0.1}))
    return tmp_path / "study"


def give(study: Path, lines: str) -> None:
    """As when study.run is given the file again."""
    with (study / "study.toml").open("a") as file:
        file.write(lines)


def test_without_lines_the_report_says_how_to_give_them(own: Path) -> None:
    text = text_of(read(own))
    way = f'a table `[lines."{OWN}"]` with `random = ...` and `best = ...`'
    assert "nothing can be normalised. " in text and way in text and "gives `study.run` that file again" in text
    give(own, f'\n[lines."{OWN}"]\nrandom = -500\nbest = -60\n')
    assert "nothing can be normalised" not in text_of(read(own))


def test_lines_of_the_definition_normalise_its_worlds(own: Path) -> None:
    give(own, LINES)
    data = read(own)
    assert data.scale(OWN) == Scale(-4.0, 1.0)
    rows = {row["series"]: row for row in table(aggregate_section(data))}
    assert rows["dgfqn"]["mean"].startswith("0.800")  # a return of 0 is four fifths of the way from -4 to 1
    text = text_of(data)
    assert f"Random and best play as the study's definition says: {OWN}. " in text
    assert "| -4.000 | 1.000 |" in text
    runs = {name: data.of(OWN, name) for name in data.series}
    figure = curves_figure(runs, looks(data.series), OWN, data.scale(OWN))
    assert "best known" in {text.get_text() for text in figure.axes[0].texts}


def test_an_archive_keeps_the_lines_and_makes_the_same_report(own: Path, tmp_path: Path) -> None:
    give(own, LINES)
    archive(read(own), tmp_path / "kept")
    ours = (report(own) / "report.md").read_text()
    again = (report(tmp_path / "kept") / "report.md").read_text()
    assert ours.partition("## Over all environments")[2] == again.partition("## Over all environments")[2] != ""
    shutil.rmtree(own)
    assert read(tmp_path / "kept").scale(OWN) == Scale(-4.0, 1.0)


def test_lines_are_of_the_measure_that_is_read(tmp_path: Path) -> None:
    make_study(tmp_path / "study", [MEMORY], '["dtqn4"]', [1])
    give(tmp_path / "study", f'\n[lines."{MEMORY}"]\nrandom = -3.0\nbest = 0.5\n')
    with pytest.raises(UserError, match=r"study.toml: lines.*random -3.0 and best 0.5 must lie within 0 and 1"):
        read(tmp_path / "study").scale(MEMORY)


def test_lines_that_were_spoilt_later_are_named_as_damage(own: Path, tmp_path: Path) -> None:
    give(own, LINES)
    archive(read(own), tmp_path / "kept")
    for folder in (own, tmp_path / "kept"):
        text = (folder / "study.toml").read_text()
        (folder / "study.toml").write_text(text.replace("random = -4", "random = 4"))
        assert any("best 1.0 must be above random 4.0" in why for _, why in read(folder).left_out)
        (folder / "study.toml").write_text("[[")
        assert any("study.toml:1: not valid TOML" in why for _, why in read(folder).left_out)


def test_lines_change_no_run() -> None:
    plain, scaled = (parse_definition(text, "my.toml", "my") for text in (TEXT, TEXT + LINES))
    assert expand(plain) == expand(scaled)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('[lines."Acrobat-v1"]\nrandom = 0\nbest = 1', "lines: unknown world 'Acrobat-v1'; did you mean 'Acrobot-v1'"),
        (f'[lines."{OWN}"]\nrandom = 0', f"lines.{OWN}: best nan must be above random 0.0"),
        (f'[lines."{OWN}"]\nrandom = 1\nbest = 1', f"lines.{OWN}: best 1.0 must be above random 1.0"),
        (f'[lines."{OWN}"]\nrandom = nan\nbest = 1', "both finite"),
        (f'[lines."{OWN}"]\nrandom = "0"\nbest = 1', f"lines.{OWN}.random must be a number"),
        (f'[lines."{OWN}"]\nrandom = 0\nbst = 1', f"unknown key 'lines.{OWN}.bst'; did you mean 'lines.{OWN}.best'"),
        (f'[lines]\n"{OWN}" = 3', f"lines.{OWN} must be a table"),
    ],
)
def test_wrong_lines_are_one_sentence_before_anything_runs(lines: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_definition(f"{TEXT}{lines}\n", "my.toml", "my")
    assert str(caught.value).startswith("my.toml: ") and words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lines_go_by_the_labels_of_the_study_and_of_its_cut() -> None:
    both = '[lines."deep, dark"]\nrandom = 9\nbest = 50\n[lines.CartPole-v1]\nrandom = 9\nbest = 500\n'
    for smoke in (False, True):
        assert parse_definition(TEXT + both, "my.toml", "my", smoke).source == "my.toml"
