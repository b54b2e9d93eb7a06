"""A report replaces an earlier report and nothing else, and every picture has a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from reported import make_study

from dqn_memory.runs.errors import UserError
from dqn_memory.study.report import main
from dqn_memory.study.report_folder import CLAIMS, HTML, MARKDOWN, check_folder
from dqn_memory.study.report_page import Picture, Section, Words, write_report

LEAD = [Words("Made by `python -m dqn_memory.study.run`.")]


def write(folder: Path, *names: str) -> str:
    """A report with pictures of these names; returns its report.md."""
    pictures = tuple(Picture(name, Figure(figsize=(1 + place, 1)), name) for place, name in enumerate(names))
    write_report(folder, "Title", LEAD, [Section("Pictures", pictures)])
    return (folder / MARKDOWN).read_text()


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_earlier_reports_pictures_go(tmp_path: Path) -> None:
    write(tmp_path, "one", "two")
    (tmp_path / "pictures" / "mine.png").write_bytes(b"a photograph")
    (tmp_path / "pictures" / "mine.svg").write_bytes(b"a drawing")
    write(tmp_path, "two", "three")
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"two.png", "two.svg", "three.png", "three.svg", "mine.png", "mine.svg"}


@pytest.mark.parametrize("name", [MARKDOWN, HTML, "pictures/one.png", "pictures/one.svg"])
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
    (place / CLAIMS).write_text("my claims")
    before = held(tmp_path)
    flags = [str(tmp_path / "study"), "--no-attention", "--published", "--folder", str(place)]
    with pytest.raises(SystemExit):
        main([*flags, "--record", str(tmp_path / "record")])
    assert f"{place / CLAIMS} is not what study.report writes" in capsys.readouterr().err
    assert held(tmp_path) == before
    (place / CLAIMS).unlink()
    main(flags)
    main(flags)  # what it wrote it replaces
    check_folder(place, claims=True)


def test_pictures_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    told = write(tmp_path, "rooms", "rooms-2", "rooms", "rooms")
    places = [line.rpartition("(")[2][:-1] for line in told.splitlines() if line.startswith("![")]
    assert places == [f"pictures/{name}.png" for name in ("rooms", "rooms-2", "rooms-3", "rooms-4")]
    files = [(tmp_path / place).with_suffix(form).read_bytes() for place in places for form in (".png", ".svg")]
    assert len(set(files)) == 8
    page = (tmp_path / HTML).read_text()
    assert len({part.partition('"')[0] for part in page.split('src="')[1:]}) == 4


def test_two_worlds_of_one_slug_have_both_curves(tmp_path: Path) -> None:
    same = ('{ name = "Rooms", env = "POMDP/Hallway-v0" }', '{ name = "Rooms+", env = "POMDP/HeavenHell-v0" }')
    make_study(tmp_path / "study", f"[{', '.join(same)}]", '["dtqn4"]', [1, 2])
    main([str(tmp_path / "study"), "--no-attention"])
    told = (tmp_path / "study" / "report" / MARKDOWN).read_text()
    assert "(pictures/curves-rooms.png)" in told and "(pictures/curves-rooms-2.png)" in told
