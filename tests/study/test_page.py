"""A report replaces an earlier report and nothing else, and every picture has a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from reported import make_study

from dqn_memory.runs.errors import UserError
from dqn_memory.study.page import HTML, PAGE, Picture, Section, as_html, write_report
from dqn_memory.study.report import main

LEAD = ["Made by `python -m dqn_memory.study.run`."]


def write(folder: Path, *names: str) -> str:
    """A report with pictures of these names; returns its report.md."""
    pictures = tuple(Picture(name, Figure(figsize=(1 + place, 1)), name) for place, name in enumerate(names))
    write_report(folder, "Title", LEAD, [Section("Pictures", pictures)])
    return (folder / PAGE).read_text()


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_earlier_reports_pictures_go(tmp_path: Path) -> None:
    write(tmp_path, "one", "two")
    (tmp_path / "pictures" / "mine.png").write_bytes(b"a photograph")
    write(tmp_path, "two", "three")
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"two.png", "three.png", "mine.png"}


@pytest.mark.parametrize("name", [PAGE, HTML, "pictures/one.png"])
def test_what_is_of_no_report_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / name).write_bytes(b"# My own report\n\n![Me](pictures/one.png)\n")
    before = held(tmp_path)
    with pytest.raises(UserError, match=rf"{name} is .* would be replaced: give another --folder"):
        write(tmp_path, "one")
    assert held(tmp_path) == before


def test_the_command_refuses_a_foreign_page_before_it_writes_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path / "study", ["Gridverse/Memory-5x5-v0"], '["dtqn4"]', [1])
    place = tmp_path / "thesis"
    place.mkdir()
    (place / PAGE).write_text("my thesis")
    before = held(tmp_path)
    flags = [str(tmp_path / "study"), "--no-attention", "--published", "--folder", str(place)]
    with pytest.raises(SystemExit):
        main(flags)
    assert f"{place / PAGE} is not what study.report writes" in capsys.readouterr().err
    assert held(tmp_path) == before
    (place / PAGE).unlink()
    main(flags)
    main(flags)  # what it wrote it replaces


def test_pictures_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    told = write(tmp_path, "rooms", "rooms-2", "rooms", "rooms")
    places = [line.rpartition("(")[2][:-1] for line in told.splitlines() if line.startswith("![")]
    assert places == [f"pictures/{name}.png" for name in ("rooms", "rooms-2", "rooms-3", "rooms-4")]
    assert len({(tmp_path / place).read_bytes() for place in places}) == 4
    page = (tmp_path / HTML).read_text()
    assert len({part.partition('"')[0] for part in page.split('src="')[1:]}) == 4


def test_two_worlds_of_one_slug_have_both_curves(tmp_path: Path) -> None:
    same = ('{ name = "Rooms", env = "POMDP/Hallway-v0" }', '{ name = "Rooms+", env = "POMDP/HeavenHell-v0" }')
    make_study(tmp_path / "study", f"[{', '.join(same)}]", '["dtqn4"]', [1, 2])
    main([str(tmp_path / "study"), "--no-attention"])
    told = (tmp_path / "study" / "report" / PAGE).read_text()
    assert "(pictures/curves-rooms.png)" in told and "(pictures/curves-rooms-2.png)" in told


def test_few_pictures_are_the_first_of_each_section(tmp_path: Path) -> None:
    def section(*names: str) -> Section:
        return Section(names[0], tuple(Picture(name, Figure(figsize=(1, 1)), f"About {name}.") for name in names))

    parts = [section("a1", "a2"), section("b1", "b2"), section("c1")]
    write_report(tmp_path, "Title", LEAD, parts, few=4)
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {"a1", "b1", "c1", "a2"}
    told = (tmp_path / PAGE).read_text()
    assert "`b2.png`, not kept here: About b2." in told and "(pictures/b2.png)" not in told
    assert not (tmp_path / HTML).exists()


def test_names_and_signs_are_the_same_on_the_page(tmp_path: Path) -> None:
    text = "# T\n\n`a*b`\n\n## One & two\n\n| run | p |\n| --- | --- |\n| W__dgfqn__seed-1 | < 0.001 |\n"
    page = as_html("T & more", text, tmp_path)
    assert "<td>W__dgfqn__seed-1</td>" in page and "<td>&lt; 0.001</td>" in page and "<code>a*b</code>" in page
    assert '<a href="#one-two">One &amp; two</a>' in page and '<h2 id="one-two">One &amp; two</h2>' in page
    assert "<title>T &amp; more</title>" in page
