"""Tables of results as Markdown, CSV and text, and pages whose sections are replaced one by one."""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import error_of

from envs.errors import UserError
from envs.tables import (
    Table,
    format_value,
    origin,
    publish,
    read_page,
    read_tables,
    remake_page,
    tables_page,
    write_page,
)

ROWS = [{"env": "Car|Flag", "steps": 12345, "ms": 0.12345}, {"env": "Hallway", "holds": True, "bar": None}]
TABLE = Table.from_records(ROWS, "Speed", "A note.")


@pytest.mark.parametrize("value, shown", [
    (None, ""), ("text", "text"), (True, "yes"), (False, "no"), (12345, "12,345"), (-7, "-7"), (0.012345, "0.0123"),
    (99.94, "99.9"), (1234.5, "1,234"), (math.nan, "-"),
])  # fmt: skip
def test_a_cell(value: object, shown: str) -> None:
    assert format_value(value) == shown  # type: ignore[arg-type]


def test_markdown_marks_columns_of_numbers_and_escapes_bars() -> None:
    assert TABLE.markdown() == (
        "| env | steps | ms | holds | bar |\n| --- | ---: | ---: | --- | ---: |\n"
        "| Car\\|Flag | 12,345 | 0.123 |  |  |\n| Hallway |  |  | yes |  |"
    )


def test_csv_keeps_every_digit_under_its_origin() -> None:
    text = TABLE.csv(["command: x"])
    assert text.startswith("# command: x\nenv,steps,ms,holds,bar\n")
    rows = list(csv.DictReader(io.StringIO(text.partition("\n")[2])))
    assert [row["ms"] for row in rows] == ["0.12345", ""]


def test_text_is_aligned_and_leaves_empty_columns_out() -> None:
    assert TABLE.text() == (
        "Speed\n\nenv        steps     ms  holds\nCar|Flag  12,345  0.123\nHallway                  yes"
    )
    assert Table(("env", "reached", "reached"), [("a", 1, 2)]).markdown().endswith("| a | 1 | 2 |")


def test_rows_are_replaced_by_their_key_and_sorted() -> None:
    table = Table.from_records([{"env": "b", "ms": 1.0}, {"env": "c", "ms": 2.0}], "T", "N", {"ms": ".3f"})
    records = [{"env": "c", "ms": 3.0, "more": "x"}, {"env": "a", "ms": 4.0}]
    changed = table.replace_rows("env", records)
    assert [record["env"] for record in changed.records()] == ["a", "b", "c"]
    assert changed.columns == ["env", "ms", "more"] and (changed.title, changed.note) == ("T", "N")
    assert changed.markdown().endswith("| c | 3.000 | x |")


def test_tables_are_read_back_by_their_titles(tmp_path: Path) -> None:
    table = Table.from_records([{"env": "a", "ms": 4.25}], "Speed", "A note.", {"ms": ".3f"})
    write_page(tmp_path, "speed", "Title", {}, [table])
    (read,) = read_tables(tmp_path / "speed.json").values()
    assert (read.title, read.note, read.records(), read.formats) == ("Speed", "A note.", table.records(), table.formats)
    text = (tmp_path / "speed.md").read_text()
    assert text.startswith("# Title\n\n## Speed\n\nA note.\n\n| env | ms |")
    assert remake_page(tmp_path / "speed.json") == text and remake_page(tmp_path / "absent.json") is None
    assert read_tables(tmp_path / "absent.json") == {}


def test_a_page_says_how_it_was_made() -> None:
    text = tables_page("Title", origin("envs.benchmark", ["--only", "a b"], seed=3, dirty=None), [TABLE])
    head = "# Title\n\n- command: python -m envs.benchmark --only 'a b'\n- seed: 3\n\n## Speed\n\nA note.\n\n| env |"
    assert text.startswith(head)


def test_a_section_is_replaced_alone(tmp_path: Path) -> None:
    for key, speed in (("cuda", 1.0), ("cpu", 2.0), ("cuda", 3.0)):
        write_page(tmp_path, "speed", "Speed", {"cpu": key}, [Table(("ms",), [(speed,)], "Acting")], key)
    sections = read_page(tmp_path / "speed.json")["sections"]
    assert [(key, entry["tables"][0]["rows"]) for key, entry in sections.items()] == [
        ("cpu", [{"ms": 2.0}]), ("cuda", [{"ms": 3.0}]),
    ]  # fmt: skip
    text = (tmp_path / "speed.md").read_text()
    assert text.index("# Speed: cpu\n\n- cpu: cpu") < text.index("# Speed: cuda\n\n- cpu: cuda")
    assert remake_page(tmp_path / "speed.json") == text


@pytest.mark.parametrize("content", ["nothing", "[]", "{}", '{"sections": 3}', '{"sections": {"a": 1}, "title": "T"}'])
def test_another_file_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "speed.json"
    path.write_text(content)
    said = error_of(write_page, tmp_path, "speed", "Speed", {}, [TABLE], "cpu")
    assert "speed.json does not hold a page of tables" in said
    assert path.read_text() == content
    if "title" not in content:
        assert remake_page(path) is None
        return
    assert "does not hold a page of tables" in error_of(remake_page, path)


def test_a_table_that_grows_takes_its_own_place_and_one_that_fails_loses_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured() -> Iterator[Table]:
        yield Table(["row"], [[1]], "First")
        yield Table(["row"], [[1]], "Second", "A note.")
        yield Table(["row"], [[1], [2]], "Second", "A note.")
        raise UserError("no more time")

    for folder in (None, tmp_path):
        assert "no more time" in error_of(publish, measured(), folder, "speed", "Speed", {}, "cpu")
        assert " ".join(capsys.readouterr().out.split()) == "First row 1 Second row 1 A note. Second row 1 2"
    tables = read_page(tmp_path / "speed.json")["sections"]["cpu"]["tables"]
    assert [(table["title"], len(table["rows"])) for table in tables] == [("First", 1), ("Second", 2)]
    publish([], None, "speed", "Speed", {})
    assert not capsys.readouterr().out
