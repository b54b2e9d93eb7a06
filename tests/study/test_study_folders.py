"""A study goes on in its own folder under its own name, and takes over what another, or an archive, has finished."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from run_folders import Capture, Script, error_of, printed, refused
from trained import contents

from dqn_memory.study.archive import find_study, open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.report import archive_runs, introduction
from dqn_memory.study.report import main as report
from dqn_memory.study.run import Args, main
from dqn_memory.study.run_record import write_checksums
from dqn_memory.study.runner import unfinished_runs
from dqn_memory.study.store import Study
from dqn_memory.study.take_from import matching_runs, take_finished_runs

SMOKE = Path(__file__).resolve().parents[2] / "results/studies/smoke"
NAMES = [run.name for run in open_source(SMOKE).runs]


def taken_over(folder: Path, source: Path) -> tuple[Study, list[str], list[str]]:
    """The smoke study with what a source gives it: the study, what was said, and the runs that are left to do."""
    planned, said = expand(read_definition("smoke")), list[str]()
    study = Study.create(folder, read_definition("smoke"), planned)
    take_finished_runs(study, planned, [source], said.append)
    return study, said, [run.name for run in unfinished_runs(study, keep_replay=False)]


@pytest.fixture
def whole(tmp_path: Path) -> Study:
    """A finished study in a folder that is not called as it is."""
    study, _, left = taken_over(tmp_path / "elsewhere", SMOKE)
    assert not left
    return study


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """An archive that a test may change."""
    return Path(shutil.copytree(SMOKE, tmp_path / "kept"))


def test_the_command_of_a_report_continues_the_study(whole: Study, kept: Path, here: Path, capsys: Capture) -> None:
    data = collect(open_source(whole.folder))
    command = re.search(r"`python -m dqn_memory\.study\.run ([^`]*)`", introduction(data)[-1])
    going_on = re.search(r"`(--folder NEW[^`]*)`", introduction(data)[-1])
    flags = command[1].replace("FOLDER", str(whole.folder)).split()
    assert "8 runs: 8 finished" in printed(capsys, main, *flags)
    assert Study.open(whole.folder).name == "smoke"
    definition, _, rest = command[1].partition(" --folder FOLDER")
    flags = f"{definition} {going_on[1]}{rest}".replace("NEW", "new").replace("FOLDER", str(SMOKE))
    assert "8 runs: 8 finished" in printed(capsys, main, *flags.split())
    study = Study.open(here / "new")
    assert study.name == "smoke"  # so that it can be archived in the archive's place
    archive_runs(collect(open_source(study.folder)), kept)
    assert not (here / "runs").exists()


def test_a_kept_definition_goes_by_the_name_of_its_study(whole: Study, tmp_path: Path) -> None:
    for folder in (whole.folder, SMOKE):
        assert Args(str(folder / "study.toml")).definition().name == "smoke"
        assert Args(str(folder / "study.toml"), smoke=True).definition().name == "smoke-smoke"
    alone = shutil.copy(SMOKE / "study.toml", tmp_path / "study.toml")
    assert Args(str(alone)).definition().name == "study"
    small = tmp_path / "small"
    Study.create(small, definition := read_definition("priors", smoke=True), expand(definition))
    assert Args(str(small / "study.toml"), smoke=True).definition().name == "priors-smoke"


@pytest.mark.parametrize(
    ("folder", "study", "words"),
    [
        ("elsewhere", "priors --smoke", "elsewhere holds the study 'Smoke: two memories in two small worlds', not '"),
        ("elsewhere", "other.toml", "has none of these runs but others, such as Gridverse-Memory-5x5-v0__"),
        ("elsewhere", "longer.toml", "of Gridverse-Memory-5x5-v0__dtqn4__seed-1 (now total_steps = 99000)"),
        ("foreign", "smoke", "foreign is of another trainer or version; give another --folder ("),
        ("new", "smoke --backend processes --address auto", "--address is for Ray"),
        ("kept", "smoke", "kept is the archive of a study: give another --folder, and --take-from "),
        ("photos", "smoke", "(cat.jpg is in it)"),
        ("file", "smoke", "file: Not a directory"),
    ],
)
def test_what_is_no_folder_for_a_study_is_left_alone(
    whole: Study, kept: Path, here: Path, capsys: Capture, folder: str, study: str, words: str
) -> None:
    (here / "foreign/configs").mkdir(parents=True)
    for config in (whole.folder / "configs").iterdir():
        (here / "foreign/configs" / config.name).write_text("[learner]\nclip = 0.2\n")
    shutil.copy(whole.folder / "study.json", here / "foreign")
    (here / "photos").mkdir()
    (here / "photos/cat.jpg").write_bytes(b"a cat")
    (here / "file").write_text("x")
    text = (SMOKE / "study.toml").read_text()
    (here / "other.toml").write_text(re.sub(r"(?m)^seed = .*$", "seed = [71]", text))
    (here / "longer.toml").write_text(re.sub(r"(?m)^total_steps = .*$", "total_steps = 99_000", text))
    before = contents(here)
    assert words in refused(capsys, [*study.split(), "--folder", str(here / folder)], main)
    assert {path: data for path, data in contents(here).items() if not path.endswith("study.lock")} == before


def test_a_lost_state_is_made_anew_from_the_runs(whole: Study, capsys: Capture) -> None:
    state = whole.folder / "study.json"
    for damage in (b"", b"no JSON" * 100):
        state.write_bytes(damage)
        said = refused(capsys, ["smoke", "--folder", str(whole.folder)], main)
        assert "study.json is damaged" in said and "delete it" in said and state.read_bytes() == damage
    state.unlink()
    way = r"study\.run with its definition and --folder .* makes it anew from the runs"
    assert re.search(way, error_of(Study.open, whole.folder))
    (whole.folder / "study.toml").unlink()  # the configs of the runs alone tell which study it is
    assert "8 runs: 8 finished" in printed(capsys, main, "smoke", "--folder", whole.folder)


@pytest.mark.parametrize(
    ("script", "flag"), [pytest.param(report, "--no-attention", marks=pytest.mark.long), (main, "--status")]
)
def test_reports_take_what_a_study_takes(whole: Study, here: Path, capsys: Capture, script: Script, flag: str) -> None:
    mine = here / "mine.toml"
    mine.write_bytes((whole.folder / "study.toml").read_bytes())
    for name in ("mine.toml", str(mine), "smoke"):
        said = refused(capsys, [name, flag], script)
        assert said.startswith(f"error: the study {name} was not run yet: there is no folder runs/studies/")
        assert f"`python -m dqn_memory.study.run {name}` runs it" in said
    for name in ("mine", "smoke"):
        shutil.copytree(whole.folder, here / "runs/studies" / name)
    for name in ("mine", str(mine), str(whole.folder / "study.toml")):
        assert whole.title in printed(capsys, script, name, flag)
    made = {path.parent.name for path in here.rglob("report.md")}
    assert made == ({"report"} if script is report else set())
    assert not (whole.folder / "report").exists()  # its study.toml is of the study smoke, which lies in runs/studies


@pytest.mark.usefixtures("here")
def test_what_names_no_study_is_told() -> None:
    Path("mine.toml").write_text('title = "Mine"')
    assert "mine.toml: the key 'kind' is missing" in error_of(find_study, Path("mine.toml"))
    assert "there is no file nothing.toml" in error_of(find_study, Path("nothing.toml"))
    assert find_study(Path("folder")) == Path("folder")  # whoever opens it says that it is none


@pytest.mark.usefixtures("here")
def test_nothing_is_made_where_a_source_is_no_study(capsys: Capture) -> None:
    assert "nowhere" in refused(capsys, ["smoke", "--folder", "mine", "--take-from", "nowhere"], main)
    assert not Path("mine").exists()


@pytest.mark.long
def test_a_study_goes_on_from_its_archive_and_gives_the_same_archive(kept: Path, tmp_path: Path) -> None:
    study, said, left = taken_over(tmp_path / "study", kept)
    assert not left
    assert len(said) == len(study.runs()) == 8
    assert all(run.state == "finished" and run.attempts == 0 and run.seconds for run in study.runs())
    assert str(study.runs()[0].folder) in (study.runs()[0].folder / "config.toml").read_text()
    report([str(study.folder), "--archive", str(tmp_path / "again")])
    before, after = (open_source(folder).recorded or {} for folder in (kept, tmp_path / "again"))
    assert before == after and list(before) == list(after)
    places = [tmp_path / "reports" / name for name in ("study", "kept")]
    for folder, place in zip((study.folder, kept), places, strict=True):
        report([str(folder), "--write", str(place)])
    pages = [(place / "report.md").read_text() for place in places]
    # Behind them stands how often runs were started here.
    parts = [page.partition("## Time and cost")[0] for page in pages]
    assert parts[0] == parts[1]


def test_that_nothing_is_taken_is_said(kept: Path, tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other.toml"
    other.write_text(re.sub(r"(?m)^seed = .*$", "seed = [71]", (SMOKE / "study.toml").read_text()))
    said = printed(capsys, main, other, "--folder", tmp_path / "study", "--take-from", kept, "--dry-run")
    assert "took nothing: --take-from has none of these runs" in said


def test_a_damaged_run_of_an_archive_is_left_to_do(kept: Path, tmp_path: Path, capsys: Capture) -> None:
    first, second, *others = NAMES
    for name in (first, second):
        rows, lines = (kept / "runs.csv").read_text(), (kept / "metrics.csv").read_text()
        number = next(row.partition(",")[0] for row in rows.splitlines() if f",{name}," in row)
        (kept / "metrics.csv").write_text(lines.replace(f"\n{number},", f"\n{number},1", 1))
    said = printed(capsys, main, "smoke", "--folder", tmp_path / "study", "--take-from", kept, "--dry-run")
    assert all(f"take     {name} from {kept}" in said for name in others)
    assert f"waiting  {first}" in said and "8 runs: 6 finished, 2 waiting" in said
    assert not (tmp_path / "study").exists()  # it writes nothing
    _, said, left = taken_over(tmp_path / "study", kept)
    damaged = [line for line in said if line.startswith("not taken")]
    assert len(damaged) == 2 and all("was changed" in line for line in damaged)
    assert sorted(left) == sorted([first, second])
    assert not (tmp_path / "study/runs" / first).exists()


def test_a_damaged_run_of_a_study_stops_no_other(whole: Study, tmp_path: Path) -> None:
    configs = sorted(whole.folder.glob("runs/*/config.toml"))[:3]
    configs[0].write_text("seed = = 1\n")
    configs[1].unlink()
    configs[2].write_text("unheard_of = 1\n")
    last = whole.runs()[-1]
    (last.folder / "checkpoints").mkdir()
    (last.folder / "checkpoints" / "manifest.json").write_text("{}")
    study, said, left = taken_over(tmp_path / "study", whole.folder)
    refused = {line.split()[2]: line for line in said if line.startswith("not taken")}
    assert set(refused) == {f"{path.parent.name}:" for path in configs} | {f"{last.name}:"}
    assert all(str(path) in refused[f"{path.parent.name}:"] for path in configs)
    assert left == [run.name for run in study.runs() if run.state != "finished"] and len(left) == 4


@pytest.mark.parametrize(("name", "kind"), [("memories_tuning", "ppo"), ("published_switches", "q_network")])
def test_runs_of_matched_widths_and_of_a_gpu_are_known_again(name: str, kind: str) -> None:
    source = SMOKE.with_name(name)
    found = matching_runs(open_source(source), kind, expand(read_definition(name)), print)
    assert set(found) == set(open_source(source).recorded or ())


@pytest.mark.parametrize("name", ['"', "we'ird \"q\\x", "größe"])
def test_any_folder_may_be_taken_to_and_from_and_stays_out_of_records(tmp_path: Path, name: str) -> None:
    study, _, left = taken_over(tmp_path / name / "study", SMOKE)
    assert not left
    for run in study.runs():
        assert tomllib.loads((run.folder / "config.toml").read_text())["output"]["run"] == str(run.folder)
        path = run.folder / "environment.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"place": f"in {study.folder}, there"}))
        write_checksums(run.folder)
    again, _, left = taken_over(tmp_path / "again", study.folder)
    assert not left
    archive_runs(collect(open_source(study.folder)), tmp_path / "kept again")
    after, before = (open_source(folder).recorded or {} for folder in (tmp_path / "kept again", SMOKE))
    for run in again.runs():
        environment = json.loads((run.folder / "environment.json").read_text())
        for place in (environment["place"], after[run.name].environment["place"]):
            assert place == "in runs/studies/smoke, there"
        assert after[run.name].config == before[run.name].config


def test_a_finished_run_stays_finished_without_its_checkpoint_but_not_without_its_numbers(whole: Study) -> None:
    first = whole.runs()[0]
    (first.folder / "metrics.jsonl").write_text("")
    assert [run.name for run in unfinished_runs(whole, keep_replay=False)] == [first.name]
    (first.folder / "metrics.jsonl").unlink()
    assert "is missing" in [unfinished_runs(whole, keep_replay=False), whole.runs()[0].error][1]


def test_a_study_is_no_source_of_itself_and_a_folder_is_none(whole: Study, tmp_path: Path) -> None:
    for source, words in ((whole.folder, "is the study itself"), (tmp_path, "is no study")):
        assert words in error_of(take_finished_runs, whole, [], [source], print)
