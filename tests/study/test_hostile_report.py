"""A report shows what it is given as text: its page runs, loads and leads to nothing."""

import re
from pathlib import Path

import pytest
from hostile_text import STEERING, Active, hostile_study, shown, strings

from dqn_memory.study.page import PAGE, Section, write_report
from dqn_memory.study.report import main
from envs.markup import Markup
from envs.tables import Table, tables_page

MADE = Markup("Made by `python -m dqn_memory.study.report`")


def reported(folder: Path, given: list[str]) -> Path:
    """The report of a study with these strings everywhere."""
    hostile_study(folder, given)
    main([str(folder), "--no-attention"])
    return folder / "report"


def test_a_page_of_hostile_strings_is_inert_and_shows_them_as_they_are(tmp_path: Path) -> None:
    given = [*strings(), *STEERING]
    folder = reported(tmp_path / "<img src=x onerror=alert(1)>", given)
    found = Active.of(folder / PAGE)
    assert len(given) >= 80 and not found.found
    assert [each for each in given if shown(each).strip() not in found.text] == []
    text = (folder / PAGE).read_text()
    assert not re.search(
        r"<[a-zA-Z/!?]|(?<!\\)\]\((?!pictures/[a-z0-9-]+\.png\)$)|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text, re.M
    )


@pytest.mark.parametrize("text", [*strings(), *STEERING])
def test_each_place_of_a_page_shows_a_string_as_it_is(tmp_path: Path, text: str) -> None:
    table = Table((text, "b"), [(text, "1"), ("x", text)])
    write_report(
        tmp_path, text, [MADE, text], [Section(Markup("Heading"), (text, table, Markup("Of {}.").format(text)))]
    )
    found = Active.of(tmp_path / PAGE)
    assert not found.found
    assert found.text.count(shown(text).strip()) >= 7


def test_a_page_of_tables_holds_no_tags_of_its_data(tmp_path: Path) -> None:
    for text in strings():
        written = tables_page(text, {"cpu": text}, [Table((text,), [(text,)], title=text, note=text)])
        assert not re.search(r"<[a-zA-Z/!?]", written), text
