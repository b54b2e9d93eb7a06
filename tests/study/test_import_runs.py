"""Runs that a study takes over from an archive: whole, sound ones alone, as good for a report as those made here."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dqn_memory.runs.errors import UserError
from dqn_memory.study.archive import open_source, rounded
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.import_runs import take_over, takeable
from dqn_memory.study.report import archive
from dqn_memory.study.report import main as report
from dqn_memory.study.run import main as run_study
from dqn_memory.study.runner import open_runs
from dqn_memory.study.store import Study, prepare, write_checksums

SMOKE = Path(__file__).resolve().parents[2] / "results/studies/smoke"
NAMES = [run.name for run in open_source(SMOKE).runs]


def taken_over(folder: Path, source: Path) -> tuple[Study, list[str], list[str]]:
    """The smoke study with what a source gives it: the study, what was said, and the runs that are left to do."""
    definition, said = read_definition("smoke"), list[str]()
    planned = expand(definition)
    study = prepare(folder, definition, planned)
    take_over(study, planned, [source], said.append)
    return study, said, [run.name for run in open_runs(study, keep_replay=False)]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """An archive that a test may change."""
    return Path(shutil.copytree(SMOKE, tmp_path / "kept"))


def spoil(kept: Path, *names: str) -> None:
    """Change one number of each run in an archive."""
    rows = (kept / "runs.csv").read_text().splitlines()
    numbers = [row.partition(",")[0] for name in names for row in rows if f",{name}," in row]
    lines = (kept / "metrics.csv").read_text().splitlines()
    for number in numbers:
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{number},"))
        lines[place] = lines[place].replace(",", ",1", 1)
    (kept / "metrics.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.long
def test_a_study_goes_on_from_its_archive_and_gives_the_same_archive(kept: Path, tmp_path: Path) -> None:
    study, said, left = taken_over(tmp_path / "study", kept)
    assert not left
    assert len(said) == len(study.runs()) == 8
    assert all(run.state == "finished" and run.attempts == 0 and run.seconds for run in study.runs())
    assert str(study.runs()[0].folder) in (study.runs()[0].folder / "config.toml").read_text()
    report([str(study.folder), "--archive", str(tmp_path / "again")])
    before, after = (open_source(folder).recorded or {} for folder in (kept, tmp_path / "again"))
    assert list(before) == list(after)
    for name, record in before.items():
        assert after[name] == replace(record, metrics=[rounded(row) for row in record.metrics])
    for folder in (study.folder, kept):
        report([str(folder)])
    pages = [(folder / "report/report.md").read_text() for folder in (study.folder, kept)]
    # Behind them stands how often runs were started here.
    told = [page.partition("## Time and cost")[0] for page in pages]
    assert told[0] == told[1]


def test_what_is_damaged_is_named_and_left_to_do(kept: Path, tmp_path: Path) -> None:
    first, second = NAMES[:2]
    spoil(kept, first, second)
    _, said, left = taken_over(tmp_path / "study", kept)
    refused = [line for line in said if line.startswith("not taken")]
    assert len(refused) == 2 and all("was changed" in line for line in refused)
    assert sorted(left) == sorted([first, second])
    assert not (tmp_path / "study/runs" / first).exists()


def test_a_config_that_cannot_be_read_stops_no_other_run(kept: Path, tmp_path: Path) -> None:
    source, _, _ = taken_over(tmp_path / "source", kept)
    first, second, third = sorted((source.folder / "configs").iterdir())[:3]
    first.write_text("seed = = 1\n")
    second.unlink()
    third.write_text("unheard_of = 1\n")
    study, said, left = taken_over(tmp_path / "study", source.folder)
    refused = sorted(line for line in said if line.startswith("not taken"))
    assert [line.split()[2] for line in refused] == [f"{path.stem}:" for path in (first, second, third)]
    assert all(str(path) in line for path, line in zip((first, second, third), refused, strict=True))
    assert left == [run.name for run in study.runs() if run.state != "finished"] and len(left) == 3
    assert len(takeable(tmp_path / "other", study.kind, expand(read_definition("smoke")), [source.folder])) == 5


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
    archive(collect(open_source(study.folder)), tmp_path / "kept again")
    after, before = (open_source(folder).recorded or {} for folder in (tmp_path / "kept again", kept))
    for run in again.runs():
        environment = json.loads((run.folder / "environment.json").read_text())
        for place in (environment["place"], after[run.name].environment["place"]):
            assert place == "in runs/studies/smoke, there"
        assert after[run.name].config == before[run.name].config


def test_a_finished_run_stays_finished_without_its_checkpoint_but_not_without_its_numbers(
    kept: Path, tmp_path: Path
) -> None:
    study, _, _ = taken_over(tmp_path / "study", kept)
    first = study.runs()[0]
    (first.folder / "metrics.jsonl").write_text("")
    assert [run.name for run in open_runs(study, keep_replay=False)] == [first.name]
    (first.folder / "metrics.jsonl").unlink()
    assert "cannot read" in [open_runs(study, keep_replay=False), study.runs()[0].error][1]


def test_a_study_is_no_source_of_itself_and_a_folder_is_none(kept: Path, tmp_path: Path) -> None:
    study, _, _ = taken_over(tmp_path / "study", kept)
    with pytest.raises(UserError, match="is the study itself"):
        take_over(study, [], [study.folder], print)
    with pytest.raises(UserError, match="is no study"):
        take_over(study, [], [tmp_path], print)


def test_a_dry_run_says_what_would_be_taken_and_writes_nothing(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = NAMES
    spoil(kept, first)
    run_study(["smoke", "--folder", str(tmp_path / "study"), "--take-from", str(kept), "--dry-run"])
    said = capsys.readouterr().out
    assert all(f"take     {name} from {kept}" in said for name in others)
    assert f"waiting  {first}" in said
    assert "8 runs: 7 finished, 1 waiting" in said
    assert not (tmp_path / "study").exists()
