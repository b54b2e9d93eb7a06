"""A study goes on in its own folder under its own name, and in no other's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from reported import make_study

from dqn_memory.runs.errors import UserError
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.find import find_study
from dqn_memory.study.import_runs import take_over
from dqn_memory.study.report import archive, lead
from dqn_memory.study.report import main as report_main
from dqn_memory.study.run import Args, main
from dqn_memory.study.runner import open_runs
from dqn_memory.study.store import Study, prepare

SMOKE = Path(__file__).resolve().parents[2] / "results/studies/smoke"
WORLD = "POMDP/Hallway-v0"


@pytest.fixture
def whole(tmp_path: Path) -> Study:
    """A finished study in a folder that is not called as it is."""
    definition = read_definition("smoke")
    planned = expand(definition)
    study = prepare(tmp_path / "elsewhere", definition, planned)
    take_over(study, planned, [SMOKE], print)
    assert not open_runs(study, keep_replay=False)
    return study


def held(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(flags))
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
    return said


def test_the_command_that_a_report_prints_continues_the_study(
    whole: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = collect(open_source(whole.folder))
    command = re.search(r"`python -m dqn_memory\.study\.run ([^`]*)`", lead(data)[-1])
    going_on = re.search(r"`(--folder NEW[^`]*)`", lead(data)[-1])
    assert command is not None and going_on is not None
    main(command[1].replace("FOLDER", str(whole.folder)).split())
    assert "8 runs: 8 finished" in capsys.readouterr().out
    assert Study.open(whole.folder).name == "smoke"
    definition, _, rest = command[1].partition(" --folder FOLDER")
    flags = f"{definition} {going_on[1]}{rest}".replace("NEW", "new").replace("FOLDER", str(SMOKE))
    main(flags.split())
    assert "8 runs: 8 finished" in capsys.readouterr().out
    study = Study.open(tmp_path / "new")
    assert study.name == "smoke"  # so that it can be archived in the archive's place
    shutil.copytree(SMOKE, tmp_path / "kept")
    archive(collect(open_source(study.folder)), tmp_path / "kept")
    assert not (tmp_path / "runs").exists()


def test_a_kept_definition_goes_by_the_name_of_its_study(whole: Study, tmp_path: Path) -> None:
    for folder in (whole.folder, SMOKE):
        assert Args(str(folder / "study.toml")).definition().name == "smoke"
        assert Args(str(folder / "study.toml"), smoke=True).definition().name == "smoke-smoke"
    alone = shutil.copy(SMOKE / "study.toml", tmp_path / "study.toml")
    assert Args(str(alone)).definition().name == "study"
    small = tmp_path / "small"
    prepare(small, definition := read_definition("priors", smoke=True), expand(definition))
    assert Args(str(small / "study.toml"), smoke=True).definition().name == "priors-smoke"


def test_another_study_is_left_alone(whole: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = held(whole.folder)
    told = refused(capsys, "priors", "--smoke", "--folder", str(whole.folder))
    assert f"{whole.folder} holds the study '{whole.title}', not '" in told
    other = tmp_path / "other.toml"
    text = (whole.folder / "study.toml").read_text()
    other.write_text(re.sub(r"(?m)^seed = .*$", "seed = [71]", text))
    told = refused(capsys, str(other), "--folder", str(whole.folder), "--dry-run")
    assert "has none of these runs but others, such as Gridverse-Memory-5x5-v0__" in told
    assert held(whole.folder) == before


def test_a_record_is_no_studys_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = shutil.copytree(SMOKE, tmp_path / "kept")
    before = held(kept)
    assert f"and --take-from {kept}" in refused(capsys, "smoke", "--folder", str(kept))
    assert held(kept) == before


def test_a_refused_folder_keeps_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"a cat")
    assert "(cat.jpg is in it)" in refused(capsys, "smoke", "--folder", str(photos))
    assert [path.name for path in photos.iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "file").write_text("x")
    folder = tmp_path / place
    assert f"{folder}" in refused(capsys, "smoke", "--folder", str(folder))
    assert (tmp_path / "file").read_text() == "x"


def test_invented_studies_of_one_title_and_other_runs_are_told_apart(tmp_path: Path) -> None:
    make_study(tmp_path / "one", [WORLD], '["dtqn4"]', [1])
    definition = read_definition(str(tmp_path / "one.toml"))
    prepare(tmp_path / "one", definition, expand(definition))  # its own runs, and now their configs
    (tmp_path / "one.toml").write_text(definition.text.replace("dtqn4", "dgfqn"))
    other = read_definition(str(tmp_path / "one.toml"))
    with pytest.raises(UserError, match="has none of these runs"):
        prepare(tmp_path / "one", other, expand(other))
    (tmp_path / "one.toml").write_text(definition.text.replace('["dtqn4"]', '["dtqn4", "dgfqn"]'))
    more = read_definition(str(tmp_path / "one.toml"))
    assert len(prepare(tmp_path / "one", more, expand(more)).runs()) == 2


@pytest.mark.parametrize(("script", "flag"), [(report_main, "--no-attention"), (main, "--status")])
def test_reports_take_what_study_run_takes(
    whole: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: Callable[[list[str]], None],
    flag: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.toml"
    mine.write_bytes((whole.folder / "study.toml").read_bytes())
    for name in ("mine.toml", str(mine), "smoke"):
        with pytest.raises(SystemExit):
            script([name, flag])
        told = capsys.readouterr().err
        assert told.startswith(f"error: the study {name} was not run yet: there is no folder runs/studies/")
        assert f"`python -m dqn_memory.study.run {name}` runs it" in told and told.count("\n") == 1
    for name in ("mine", "smoke"):
        shutil.copytree(whole.folder, tmp_path / "runs/studies" / name)
    for name in ("mine.toml", str(mine), "mine", "smoke", str(whole.folder / "study.toml")):
        script([name, flag])
        assert whole.title in capsys.readouterr().out
    made = {path.parent.name for path in tmp_path.rglob("report.md")}
    assert made == ({"report"} if script is report_main else set())
    assert not (whole.folder / "report").exists()  # its study.toml is of the study smoke, which lies in runs/studies


def test_a_definition_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('title = "Mine"')
    with pytest.raises(UserError, match=r"mine\.toml: the key 'kind' is missing"):
        find_study(tmp_path / "mine.toml")
    with pytest.raises(UserError, match="no such study file"):
        find_study(tmp_path / "nothing.toml")
    assert find_study(tmp_path / "folder") == tmp_path / "folder"  # whoever opens it says that it is none
