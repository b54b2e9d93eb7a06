"""Runs that a study takes over from a record: whole, sound ones alone, and as good for a report as those made here."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import METRICS
from dqn_memory.runs.metrics import shortened
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.import_runs import take_over, takeable
from dqn_memory.study.report import main as report
from dqn_memory.study.report_data import collect
from dqn_memory.study.report_record import record
from dqn_memory.study.report_source import open_source
from dqn_memory.study.run import main as run_study
from dqn_memory.study.runner import open_runs
from dqn_memory.study.store import Study, prepare, write_checksums

SMOKE = Path(__file__).resolve().parents[2] / "results/studies/smoke"


def taken_over(folder: Path, source: Path) -> tuple[Study, list[str], list[str]]:
    """The smoke study with what a source gives it: the study, what was said, and the runs that are left to do."""
    definition, said = read_definition("smoke"), list[str]()
    planned = expand(definition)
    study = prepare(folder, definition, planned)
    take_over(study, planned, [source], said.append)
    return study, said, [run.name for run in open_runs(study, keep_replay=False)]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A record that a test may change."""
    return Path(shutil.copytree(SMOKE, tmp_path / "kept"))


@pytest.mark.long
def test_a_study_goes_on_from_its_record_and_gives_the_same_record(kept: Path, tmp_path: Path) -> None:
    study, said, left = taken_over(tmp_path / "study", kept)
    assert not left
    assert len(said) == len(study.runs()) == 8
    assert all(run.state == "finished" and run.attempts == 0 and run.seconds for run in study.runs())
    assert str(study.runs()[0].folder) in (study.runs()[0].folder / "config.toml").read_text()
    report([str(study.folder), "--record", str(tmp_path / "again")])
    for path in (kept / "runs").rglob("*.*"):
        before = shortened(path.read_bytes()) if path.name == METRICS else path.read_bytes()
        assert (tmp_path / "again" / path.relative_to(kept)).read_bytes() == before, path
    report([str(kept)])
    pages = [(folder / "report/report.md").read_text() for folder in (study.folder, kept)]
    # Behind them stands how often runs were started here.
    told = [page.partition("## Time and cost")[0] for page in pages]
    assert told[0] == told[1]


def test_what_is_damaged_is_named_and_left_to_do(kept: Path, tmp_path: Path) -> None:
    first, second = sorted((kept / "runs").iterdir())[:2]
    lines = (first / "metrics.jsonl").read_text().splitlines()
    (first / "metrics.jsonl").write_text("\n".join([*lines[:-1], lines[-1].replace("1", "2")]) + "\n")
    (second / "environment.json").unlink()
    _, said, left = taken_over(tmp_path / "study", kept)
    refused = [line for line in said if line.startswith("not taken")]
    assert "was changed" in refused[0] + refused[1]
    assert "environment.json is missing" in refused[0] + refused[1]
    assert sorted(left) == [first.name, second.name]
    assert not (tmp_path / "study/runs" / first.name).exists()


def test_a_config_that_cannot_be_read_stops_no_other_run(kept: Path, tmp_path: Path) -> None:
    first, second, third = sorted((kept / "runs").iterdir())[:3]
    (first / "config.toml").write_text("seed = = 1\n")
    (second / "config.toml").unlink()
    (third / "config.toml").write_text("unheard_of = 1\n")
    study, said, left = taken_over(tmp_path / "study", kept)
    refused = sorted(line for line in said if line.startswith("not taken"))
    assert [line.split()[2] for line in refused] == [f"{run.name}:" for run in (first, second, third)]
    assert all(str(run / "config.toml") in line for run, line in zip((first, second, third), refused, strict=True))
    assert left == [run.name for run in study.runs() if run.state != "finished"] and len(left) == 3
    assert len(takeable(tmp_path / "other", study.kind, expand(read_definition("smoke")), [kept])) == 5


def test_a_study_is_a_source_whichever_of_its_runs_is_damaged(kept: Path, tmp_path: Path) -> None:
    study, _, _ = taken_over(tmp_path / "study", kept)
    first = study.runs()[0]
    (first.folder / "checkpoints").mkdir()
    (first.folder / "checkpoints" / "manifest.json").write_text("{}")
    _, said, left = taken_over(tmp_path / "other", study.folder)
    assert left == [first.name]
    assert next(line for line in said if line.startswith("not taken")).startswith(f"not taken {first.name}: ")


@pytest.mark.parametrize("name", ['"', "\\x", "we'ird \"q\\x", "größe"])
def test_any_folder_may_be_taken_to_and_from_and_stays_out_of_records(kept: Path, tmp_path: Path, name: str) -> None:
    study, _, left = taken_over(tmp_path / name / "study", kept)
    assert not left
    for run in study.runs():
        assert tomllib.loads((run.folder / "config.toml").read_text())["output"]["run"] == str(run.folder)
        path = run.folder / "environment.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"place": f"in {study.folder}, there"}))
        write_checksums(run.folder)
    again, _, left = taken_over(tmp_path / "again", study.folder)
    assert not left
    record(collect(open_source(study.folder)), tmp_path / "record", attention=False)
    for run in again.runs():
        kept_run = tmp_path / "record/runs" / run.name
        for folder in (run.folder, kept_run):
            assert json.loads((folder / "environment.json").read_text())["place"] == "in runs/studies/smoke, there"
        assert (kept_run / "config.toml").read_bytes() == (kept / "runs" / run.name / "config.toml").read_bytes()


def test_a_record_does_not_lose_runs_to_a_study_that_lacks_them(kept: Path, tmp_path: Path) -> None:
    study, _, _ = taken_over(tmp_path / "study", kept)
    gone = study.runs()[0]
    shutil.rmtree(gone.folder)
    before = (kept / "record.json").read_bytes()
    with pytest.raises(SystemExit) as error:
        report([str(study.folder), "--no-attention", "--record", str(kept)])
    assert error.value.code == 2
    assert (kept / "record.json").read_bytes() == before
    assert (kept / "runs" / gone.name / "metrics.jsonl").is_file()


def test_a_finished_run_stays_finished_without_its_checkpoint_but_not_without_its_numbers(
    kept: Path, tmp_path: Path
) -> None:
    study, _, _ = taken_over(tmp_path / "study", kept)
    first = study.runs()[0]
    (first.folder / "metrics.jsonl").write_text("")
    assert [run.name for run in open_runs(study, keep_replay=False)] == [first.name]
    (first.folder / "metrics.jsonl").unlink()
    assert "cannot read" in [open_runs(study, keep_replay=False), study.runs()[0].error][1]


def test_a_study_is_no_source_of_itself(kept: Path, tmp_path: Path) -> None:
    study, _, _ = taken_over(tmp_path / "study", kept)
    with pytest.raises(UserError, match="is the study itself"):
        take_over(study, [], [study.folder], print)


def test_a_dry_run_says_what_would_be_taken_and_writes_nothing(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = sorted((kept / "runs").iterdir())
    (first / "environment.json").unlink()
    run_study(["smoke", "--folder", str(tmp_path / "study"), "--take-from", str(kept), "--dry-run"])
    said = capsys.readouterr().out
    assert all(f"take     {run.name} from {run}" in said for run in others)
    assert f"waiting  {first.name}" in said
    assert "8 runs: 7 finished, 1 waiting" in said
    assert not (tmp_path / "study").exists()
