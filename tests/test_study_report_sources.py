"""Reports of studies that are damaged, unfinished or records; what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from reported import HALLWAY, HEADINGS, MACHINE, hashes, make_study, read, report, text_of

from dqn_memory.runs.errors import UserError
from dqn_memory.study.report import main, unsound
from dqn_memory.study.report_record import record
from dqn_memory.study.report_sections import left_out_rows
from dqn_memory.study.store import Study, write_checksums


def test_unfinished_runs_are_named_and_do_not_hinder(finished: Path) -> None:
    study = Study.open(finished)
    study.mark("POMDP-Hallway-v0__dgfqn__seed-1", "failed", error="Traceback\nout of memory")
    study.mark("POMDP-Hallway-v0__dgfqn__seed-2", "running")
    study.mark("POMDP-Hallway-v0__dtqn4__seed-1", "waiting")
    data = read(finished)
    text = text_of(data)
    assert "| POMDP-Hallway-v0__dgfqn__seed-1 | failed: out of memory |" in text
    assert "| POMDP-Hallway-v0__dgfqn__seed-2 | stopped |" in text  # nobody is at work
    assert "| POMDP-Hallway-v0__dtqn4__seed-1 | waiting |" in text
    assert len(data.entries) == 5
    assert not unsound(data)


def test_a_study_without_a_finished_run_has_a_report(finished: Path) -> None:
    for run in Study.open(finished).runs():
        Study.open(finished).mark(run.name, "waiting")
    text = (report(finished, "--published") / "report.md").read_text()
    assert all(f"## {heading}\n" in text for heading in (*HEADINGS, "Beside the published scores"))
    assert "No run is finished yet." in text


def lose(file: Path) -> None:
    file.unlink()


def change_a_digit(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace("0.", "0.9", 1)
    file.write_text("".join(lines))


def garble(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = b"}" + lines[3]
    file.write_bytes(b"".join(lines))


DAMAGE = [(lose, "metrics.jsonl is missing"), (change_a_digit, "metrics.jsonl was changed"), (garble, "line 4")]


@pytest.mark.parametrize(("harm", "words"), DAMAGE)
@pytest.mark.parametrize("kept", [False, True])
def test_damage_is_noticed_and_named(
    finished: Path, tmp_path: Path, kept: bool, harm: Callable[[Path], None], words: str
) -> None:
    folder, name = tmp_path / "kept" if kept else finished, "POMDP-Hallway-v0__dtqn4__seed-2"
    for run in Study.open(finished).runs():
        write_checksums(run.folder)  # as when they are finished
    record(read(finished), tmp_path / "kept", attention=False)
    assert not read(folder).left_out
    harm(folder / "runs" / name / "metrics.jsonl")
    data = read(folder)
    ((where, why),) = data.left_out
    assert where == name
    assert words in why
    assert unsound(data) == [name]
    assert len(data.entries) == 7


@pytest.mark.parametrize("file", ["config.toml", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("known", [False, True])
def test_each_lost_file_of_a_study_is_named(finished: Path, file: str, known: bool) -> None:
    folder = finished / "runs/POMDP-Hallway-v0__dtqn4__seed-2"
    if known:
        write_checksums(folder)
    lose(folder / file)
    ((_, why),) = read(finished).left_out
    assert f"{file} is missing" in why


def test_a_lost_definition_of_a_study_is_named(finished: Path) -> None:
    lose(finished / "study.toml")
    data = read(finished)
    assert [name for name, _ in data.left_out] == unsound(data) == ["the study"]
    assert "| the study |" in text_of(data)


def test_damage_stands_at_the_top_and_in_the_exit_code(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garble(finished / "runs/POMDP-Hallway-v0__dtqn4__seed-2/metrics.jsonl")
    with pytest.raises(SystemExit, match="1 of the study's runs"):
        report(finished)
    said = capsys.readouterr().err
    assert "POMDP-Hallway-v0__dtqn4__seed-2" in said
    assert "line 4" in said
    assert "line 4" in (finished / "report/report.md").read_text().partition("## Over all worlds")[0]


def test_a_lost_readings_file_and_definition_are_named(finished: Path, tmp_path: Path) -> None:
    record(read(finished), tmp_path / "kept", attention=False)
    (tmp_path / "kept/study.toml").unlink()
    (tmp_path / "kept/runs/POMDP-Hallway-v0__dtqn4__seed-2/readings.json").unlink()
    left_out = dict(read(tmp_path / "kept").left_out)
    assert "study.toml is missing" in left_out["the study"]
    assert "readings.json is missing" in left_out["POMDP-Hallway-v0__dtqn4__seed-2"]


@pytest.mark.long
def test_a_record_gives_the_same_report(finished: Path, tmp_path: Path) -> None:
    Study.open(finished).mark("POMDP-Hallway-v0__dgfqn__seed-1", "failed", error="Traceback\nout of memory")
    environment = finished / "runs/POMDP-Hallway-v0__dtqn4__seed-2/environment.json"
    environment.write_text(json.dumps(MACHINE | {"command": f"train --run {finished.resolve()}/runs/x"}))
    first = hashes(report(finished, "--record", str(tmp_path / "kept"), "--published"))
    assert hashes(report(tmp_path / "kept", "--published")) == first
    kept = [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and "report" not in path.parts]
    assert not [path for path in kept if str(finished).encode() in path.read_bytes()]
    raw = json.loads((tmp_path / "kept/runs/POMDP-Hallway-v0__dtqn4__seed-2/readings.json").read_text())
    entry = next(entry for entry in read(finished).of(HALLWAY, "dtqn4") if entry.run.seed == 2)
    assert raw["last_average"] == entry.summary.last_average
    assert (raw["seed"], raw["steps_to"][1], raw["budget"]) == (2, entry.summary.steps_to[1].steps, 600)


def test_a_record_is_replaced_by_its_own_study_only(finished: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    record(read(finished), kept, attention=False)
    record(read(finished), kept, attention=False)
    make_study(tmp_path / "other", [HALLWAY], '["dgfqn"]', [1])
    for folder, where, words in (
        (tmp_path / "other", kept, "holds the record of the study small"),
        (kept, tmp_path / "third", "is a record already"),
        (finished, tmp_path / "other", "something else than a record"),
    ):
        with pytest.raises(UserError, match=words):
            record(read(folder), where, attention=False)


def test_no_study_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "is no study" in capsys.readouterr().err


def test_a_damaged_record_is_one_sentence(finished: Path, tmp_path: Path) -> None:
    record(read(finished), tmp_path / "kept", attention=False)
    (tmp_path / "kept/record.json").write_text("{}")
    with pytest.raises(UserError, match=r"record\.json is damaged"):
        read(tmp_path / "kept")


def test_left_out_runs_that_differ_in_their_seed_alone_are_one_row() -> None:
    waiting, failed = "waiting", "failed: see its log"
    found = left_out_rows([("w__a__seed-4", waiting), ("w__b__seed-4", waiting), ("w__a__seed-5", waiting),
                           ("w__a__seed-6", failed), ("the study", "no file")])  # fmt: skip
    assert found == (
        ("w__a__seed-4, 5", waiting), ("w__b__seed-4", waiting), ("w__a__seed-6", failed), ("the study", "no file")
    )  # fmt: skip
