"""Studies and archives that strangers made: nothing outside them changes, nothing hangs, users' files stay."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import KINDS, make_outside, put, seen, within
from run_folders import Capture, error_of, refused

from dqn_memory.runs.errors import UserError
from dqn_memory.study.archive import checksum, open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.report import introduction
from dqn_memory.study.report import main as report
from dqn_memory.study.run import main
from dqn_memory.study.runner import Job, run_job, unfinished_runs
from dqn_memory.study.sections import runs as run_sections
from dqn_memory.study.sections import scores
from dqn_memory.study.store import Study
from dqn_memory.study.take_from import take_finished_runs
from envs.files import sha256

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes and sockets among its files")
SMOKE = Path(__file__).resolve().parents[2] / "results/studies/smoke"
NAME = open_source(SMOKE).runs[0].name
SECTIONS = (run_sections.left_out_section, run_sections.runs_section, run_sections.cost_section, scores.table_section)
LONG = 10.0  # seconds that nothing here comes near to
BIG = 10**400


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, whose runs come from an archive."""
    folder, planned = tmp_path_factory.mktemp("studies") / "whole", expand(read_definition("smoke"))
    study = Study.create(folder, read_definition("smoke"), planned)
    take_finished_runs(study, planned, [SMOKE], lambda said: None)
    assert unfinished_runs(study, keep_replay=False) == []
    return folder


def read(folder: Path) -> str:
    """What a report would say of the damage in a study or an archive."""
    return " ".join(why for _, why in collect(open_source(folder)).left_out)


def left(folder: Path) -> str:
    """What is wrong with the runs that are left to do."""
    study = Study.open(folder)
    unfinished_runs(study, keep_replay=False)
    return " ".join(run.error for run in study.runs())


def carried_out(folder: Path) -> str:
    try:
        main(["smoke", "--folder", str(folder)])
        return ""
    except SystemExit as stopped:
        assert stopped.code == 2
        return "refused"


def reported(folder: Path) -> str:
    try:
        report([str(folder), "--no-attention"])
        return ""
    except SystemExit as stopped:
        assert stopped.code == 2
        return "refused"


RUN = f"runs/{NAME}"
FOLDERS = ("configs", "runs", "locks", "logs", "checkpoints", "report", "pictures", NAME)
READ: dict[Callable[[Path], str], tuple[str, ...]] = {
    carried_out: (
        "configs", "runs", "locks", "logs", RUN, "study.json",
        "locks/study.lock", f"configs/{NAME}.toml",
    ),
    left: (f"{RUN}/checkpoints", f"{RUN}/checkpoints/manifest.json", f"{RUN}/metrics.jsonl"),
    read: tuple(
        f"{RUN}/{name}"
        for name in ("config.toml", "environment.json", "metrics.jsonl", "hashes.json", "summary.json")
    ),
    reported: ("report", "report/report.md", "report/pictures"),
}  # fmt: skip
ARCHIVE = ("archive.json", "runs.csv", "metrics.csv", "config.toml", "machines.json", "study.toml", "attention.json")
CASES = [(use, name) for use, names in READ.items() for name in names]


def right(name: str, kind: str) -> bool:
    """Whether a thing of this kind belongs there; an endless lock is a lock."""
    is_lock = name.endswith(".lock")
    return (kind == "folder" and name.rpartition("/")[2] in FOLDERS) or (kind == "endless file" and is_lock)


@pytest.mark.parametrize(("use", "name"), CASES, ids=[f"{use.__name__}-{name}" for use, name in CASES])
def test_what_is_no_regular_file_of_a_study_leads_nowhere(
    made: Path, tmp_path: Path, use: Callable[[Path], str], name: str, capsys: Capture
) -> None:
    taken = []
    for number, kind in enumerate(kind for kind in KINDS if not right(name, kind)):
        folder, outside = tmp_path / f"study-{number}", make_outside(tmp_path / f"outside-{number}")
        shutil.copytree(made, folder)
        put(folder / name, kind, outside)
        before = seen(outside)
        with within(LONG):
            try:
                said = use(folder)
            except UserError as error:
                said = str(error)
        said = capsys.readouterr().err if said == "refused" else said
        assert seen(outside) == before, kind
        if Path(name).name not in said or "Traceback" in said or said.count("\n") > 1:
            taken.append((kind, said))
    assert not taken


@pytest.mark.parametrize("name", ARCHIVE)
def test_what_is_no_regular_file_of_an_archive_leads_nowhere(tmp_path: Path, name: str) -> None:
    taken = []
    for number, kind in enumerate(KINDS):
        folder, outside = tmp_path / f"archive-{number}", make_outside(tmp_path / f"outside-{number}")
        shutil.copytree(SMOKE, folder)
        put(folder / name, kind, outside)
        before = seen(outside)
        with within(LONG):
            try:
                said = read(folder)
            except UserError as error:
                said = str(error)
        assert seen(outside) == before, kind
        if name not in said:
            taken.append((kind, said))
    assert not taken


def test_a_study_and_an_archive_may_themselves_lie_behind_a_link(made: Path, tmp_path: Path) -> None:
    for number, folder in enumerate((made, SMOKE)):
        (tmp_path / f"link-{number}").symlink_to(folder)
        assert read(tmp_path / f"link-{number}") == ""


def test_a_copy_of_a_run_leads_nowhere(made: Path, tmp_path: Path) -> None:
    """Neither through a link in the run, nor through one where the copy is made."""
    source, outside = Path(shutil.copytree(made, tmp_path / "source")), make_outside(tmp_path / "outside")
    (source / RUN / "more").mkdir()
    (source / RUN / "more" / "diary").symlink_to(outside / "diary.txt")
    (source / RUN / "more" / "zero").symlink_to("/dev/zero")
    planned = expand(read_definition("smoke"))
    study = Study.create(tmp_path / "study", read_definition("smoke"), planned)
    before = seen(outside)
    with within(LONG):
        take_finished_runs(study, planned[:1], [source], print)
    copy = study.folder / "runs" / planned[0].name
    assert copy.is_dir() and all((copy / "more" / name).is_symlink() for name in ("diary", "zero"))
    shutil.rmtree(copy)
    copy.with_name(f".{copy.name}.partial").symlink_to(outside / "album")
    assert ".partial is a link" in error_of(take_finished_runs, study, planned[:1], [source], print)
    assert seen(outside) == before


@pytest.mark.long
@pytest.mark.parametrize("config", [False, pytest.param(True, marks=pytest.mark.long)], ids=["photos", "and a config"])
def test_a_folder_of_a_user_where_a_run_belongs_is_never_removed(made: Path, tmp_path: Path, config: bool) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "study"))
    run = next(run for run in Study.open(folder).runs() if run.name == NAME)
    shutil.rmtree(run.folder)
    (run.folder / "album").mkdir(parents=True)
    (run.folder / "album" / "cat.jpg").write_bytes(b"a cat")
    (run.folder / "notes.txt").write_text("mine")
    if config:
        (run.folder / "config.toml").write_text("mine = 1\n")
    outcome = run_job(Job(run, "dqn_memory.train", tmp_path, 1))
    assert outcome.state == "failed" and NAME in outcome.error
    assert (run.folder / "album" / "cat.jpg").read_bytes() == b"a cat" and (run.folder / "notes.txt").exists()


# ---- values of another type, in archives whose checksums are right


def reseal(folder: Path) -> None:
    """Give an archive the checksums of what it holds now, as who changes it would."""
    index = json.loads((folder / "archive.json").read_text())
    names = [name for name in index["files"] if (folder / name).is_file()]
    index["files"] = {name: sha256((folder / name).read_bytes()) for name in names}
    (folder / "archive.json").write_text(json.dumps(index))
    try:
        found = open_source(folder)
    except UserError:
        return
    rows = list(csv.DictReader((folder / "runs.csv").open(newline="")))
    for row in rows:
        if row["name"] in (found.recorded or {}):
            row["sha256"] = checksum(found.recorded[row["name"]])
    write_rows(folder / "runs.csv", rows)
    index["files"]["runs.csv"] = sha256((folder / "runs.csv").read_bytes())
    (folder / "archive.json").write_text(json.dumps(index))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), restval="")
        writer.writeheader()
        writer.writerows(rows)


CELLS = (str(BIG), "null", "[1]", '{"a": 1}', "NaN", "x", "", "[" * 50_000, "../../x", "-1")
COLUMNS = (
    "run", "name", "axes.world", "axes.architecture", "axes.seed", "state", "steps", "attempts", "seconds", "sha256",
    "summary.measure", "summary.parameters", "revision", "command", "machine", "config.environment.env", "config.seed",
    "error", "config.new.a", "axes.new",
)  # fmt: skip


@pytest.mark.parametrize("column", COLUMNS)
def test_cells_of_another_type_are_taken_or_one_sentence(tmp_path: Path, column: str) -> None:
    folder = Path(shutil.copytree(SMOKE, tmp_path / "kept"))
    rows = list(csv.DictReader((folder / "runs.csv").open(newline="")))
    for cell in CELLS:
        write_rows(folder / "runs.csv", [{**rows[0], column: cell}, *({column: "", **row} for row in rows[1:])])
        reseal(folder)
        try:
            data = collect(open_source(folder))
            introduction(data)
            for section in SECTIONS:
                section(data)
        except UserError as error:
            assert "\n" not in str(error) and str(folder) in str(error)


@pytest.mark.parametrize("place", ["about", "title", "axes.architecture"])
def test_texts_that_a_report_could_not_show_in_time_are_refused(tmp_path: Path, place: str) -> None:
    folder = Path(shutil.copytree(SMOKE, tmp_path / "kept"))
    if place == "axes.architecture":
        rows = list(csv.DictReader((folder / "runs.csv").open(newline="")))
        write_rows(folder / "runs.csv", [rows[0] | {place: "<b>" * 20_000}, *rows[1:]])
        reseal(folder)
    else:
        index = json.loads((folder / "archive.json").read_text())
        index["study"][place] = "*" * 100_000
        (folder / "archive.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="characters"):
        open_source(folder)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("machines.json", ["null", "[]", "1", '{"1": null}', '{"1": [1]}', f'{{"1": {{"cpu": {BIG}}}}}', "[" * 90_000,
                           '{"1": {"cpu": NaN}}', '{"1": {"cpu": "a", "cpu": "b"}}', '{"1": {"command": 1}}']),
        ("attention.json", ["1", "[]", "[[]]", '{"NAME": 1}', '{"NAME": {"layers": 1, "length": 2}}',
                            '{"NAME": {"layers": {"0": [[["a"]]]}, "length": 2}}', '{"NAME": {"layers": {}}}',
                            f'{{"NAME": {{"layers": {{"0": [[[{BIG}]]]}}, "length": 1}}}}',
                            '{"NAME": {"layers": {"0": [[[1]]]}, "length": null}}',
                            '{"NAME": {"layers": {"0": [[[1, 2, 3]]]}, "length": 1}}']),
        ("archive.json", ["null", "[]", "1", '{"format": 1}', "{FILES: []}", '{FILES: {"../../etc/passwd": "0"}}',
                          '{FILES: {"runs.csv": 1}}', '{REPORT: {"returns": 1e999}}', '{REPORT: []}',
                          '{STUDY: {"title": [1]}}', '{STUDY: {"smoke": 3}}', '{STUDY: {"axes": [1]}}',
                          '{STUDY: {"axes": "world"}}', '{STUDY: {"kind": null}}']),
        ("study.toml", ["title = 1", "a", "[" * 50_000, "\0", "x" * 100]),
        ("config.toml", ["a", "[" * 50_000, "environment = 1", f"gamma = {BIG}", "\0"]),
        ("metrics.csv", ["", "run,step\n1,-1\n", f"run,step\n1,{BIG}\n", "run,step,a\n1,1,x\n", "run\n1\n",
                         "run,step,step\n1,1,2\n", "run,step\n1,1,2,3\n", "run,step,a\n1,1,true\n", '"' * 999,
                         "run,step\n[1],1\n", "run,step,a\n1,1,NaN\n", f"run,step,a\n1,1,{BIG}\n", "x" * 200_000]),
    ],
)  # fmt: skip
def test_other_files_of_another_type_are_one_sentence(tmp_path: Path, name: str, texts: list[str]) -> None:
    folder = Path(shutil.copytree(SMOKE, tmp_path / "kept"))
    whole = json.loads((folder / "archive.json").read_text())
    for text in texts:
        for key in ("files", "report", "study"):
            if f"{{{key.upper()}" in text:
                change = json.loads(text.replace(f"{{{key.upper()}", f'{{"{key}"'))[key]
                text = json.dumps(whole | {key: whole[key] | change if isinstance(change, dict) else change})
        (folder / name).write_text(text.replace("NAME", NAME), encoding="utf-8")
        if name != "archive.json":
            reseal(folder)
        try:
            said = read(folder)
        except UserError as error:
            said = str(error)
        assert str(folder) in said and "\n" not in said, text[:80]


FACTS = ("name", "title", "smoke", "axes", "kind")
RUN_FACTS = ("axes", "steps", "state", "attempts", "seconds", "new")
WRONG: tuple[Any, ...] = ("../../x", float("inf"), [1], {"a": None}, BIG)


def test_a_state_of_another_type_is_one_sentence(made: Path, tmp_path: Path, capsys: Capture) -> None:
    whole = json.loads((made / "study.json").read_text())
    study, runs = whole["study"], whole["runs"]
    first = next(iter(runs))
    harms = [
        *({"study": study | {key: value}} for key in FACTS for value in ([1], float("inf"), {})),
        *({"runs": runs | {first: runs[first] | {key: value}}} for key in RUN_FACTS for value in WRONG),
        *({"runs": {"../../x": runs[first]}, "study": value} for value in (study, None, [])),
        {"study": {key: value for key, value in study.items() if key != "axes"}},
    ]
    taken = []
    for number, harm in enumerate(harms):
        folder = tmp_path / f"study-{number}"
        folder.mkdir()
        shutil.copytree(made / "configs", folder / "configs")
        (folder / "study.json").write_text(json.dumps(whole | harm))
        with within(LONG):
            try:
                main([str(folder), "--status"])
            except SystemExit:
                capsys.readouterr()
                continue
        taken.append(harm)
    assert not taken


def test_a_report_where_a_folder_is_in_the_way_of_its_pictures_is_told(made: Path, tmp_path: Path, capsys: Any) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "study"))
    (folder / "report").mkdir()
    (folder / "report" / "pictures").write_text("mine")
    assert "pictures is no folder" in refused(capsys, [str(folder), "--no-attention"], report)
    assert (folder / "report" / "pictures").read_text() == "mine"


def test_a_new_study_does_not_begin_in_a_folder_whose_locks_are_a_link(tmp_path: Path, capsys: Capture) -> None:
    outside = make_outside(tmp_path / "outside")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "locks").symlink_to(outside / "album")
    before = seen(outside)
    assert "locks is a link" in refused(capsys, ["smoke", "--folder", str(tmp_path / "study")], main)
    assert seen(outside) == before
