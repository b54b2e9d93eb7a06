"""Archives: the tables lose no number, make the same report again, and show what was changed in them."""

import json
import math
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from reported import HALLWAY, HEADINGS, MACHINE, MEMORY, make_study, noisy, read, report, text_of
from run_folders import Capture, error_of, refused
from trained import contents

from dqn_memory.runs.metrics import RAW
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import Data, kept_record
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.report import archive_runs, main, unsound
from dqn_memory.study.run_record import TRAINING_LINES, RunRecord, compact, read_run, rounded, unpack, write_checksums
from dqn_memory.study.sections.runs import left_out_rows
from dqn_memory.study.store import Study
from dqn_memory.study.take_from import matching_runs, settings_key

RUN = "POMDP-Hallway-v0__dtqn4__seed-2"


@pytest.fixture
def kept(finished: Path, tmp_path: Path) -> Path:
    """An archive of the finished study."""
    archive_runs(read(finished), tmp_path / "kept")
    return tmp_path / "kept"


def test_an_archive_gives_back_every_number(finished: Path, tmp_path: Path) -> None:
    """Values as JSON has them: whole and real numbers, null for what is not finite, text that looks like a number."""
    run = finished / "runs" / RUN
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[0] |= {"memory/a": None, "memory/b": 1e-300, "memory/c": 3, "time/d": 0.1 + 0.2, "memory/e": -0.0}
    rows[-1] |= {"final/exact": math.pi * 1e17}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = MACHINE | {"revision": "1234567", "command": f'train --run "{run.resolve()}"', "scan": None}
    (run / "environment.json").write_text(json.dumps(facts))
    config = (run / "config.toml").read_text().replace("plugin = []", 'plugin = ["a,b", "1", ""]')
    (run / "config.toml").write_text(config)
    data = read(finished)
    archive_runs(data, tmp_path / "kept")
    source = open_source(tmp_path / "kept")
    assert not source.damage and len(source.runs) == 8
    for entry in data.entries:
        unpack(source.record(entry.run), tmp_path / "unpacked")
        before, after = read_run(entry.run.folder), read_run(tmp_path / "unpacked")
        rows = ([sorted(row.items()) for row in lines] for lines in (after.metrics, compact(before).metrics))
        assert repr(next(rows)) == repr(next(rows))
        assert after.config == before.config
        assert after.summary == kept_record(entry, None).summary
        place = str(finished.resolve())
        command = before.environment["command"].replace(place, "runs/studies/small")
        assert after.environment == before.environment | {"command": command}
    assert not [path for path in (tmp_path / "kept").iterdir() if place.encode() in path.read_bytes()]


def test_runs_that_were_copied_name_no_folder_where_they_were_made(finished: Path, tmp_path: Path) -> None:
    made = "/nowhere/else/runs/" + RUN
    run = finished / "runs" / RUN
    config = tomllib.loads((run / "config.toml").read_text())
    (run / "config.toml").write_text(tomli_w.dumps(config | {"output": config["output"] | {"run": made}}))
    (run / "environment.json").write_text(
        json.dumps(MACHINE | {"revision": "1234567", "command": f"train --run {made}"})
    )
    archive_runs(read(finished), tmp_path / "kept")
    kept = (open_source(tmp_path / "kept").recorded or {})[RUN]
    assert kept.config["output"]["run"] == f"runs/studies/small/runs/{RUN}"
    assert kept.environment["command"] == f"train --run runs/studies/small/runs/{RUN}"


def test_what_a_line_says_of_the_training_is_rounded_more() -> None:
    evaluation = {"step": 10, "eval/success_rate": 1 / 3, "time/elapsed": 1 / 7}
    assert rounded(evaluation) == {"step": 10, "eval/success_rate": 0.3333333, "time/elapsed": 0.1428571}
    whole = {"step": 20, "charts/updates": 33836.0, "n": 3, "x": None}
    training = whole | {"losses/td_loss": 0.13601534707205637, "memory/0.0.span": 9.123456789}
    short = whole | {"losses/td_loss": 0.136, "memory/0.0.span": 9.123457}
    assert rounded(training) == rounded(short) == short


def test_few_training_lines_are_kept_and_all_that_a_report_reads() -> None:
    read_in_full = ("eval/success_rate", "final/success_rate", "losses/reconstruction")
    metrics: list[dict[str, float]] = [
        {"step": step, "losses/td_loss": step / 7} | ({"memory/0.0.span": step / 7} if step % 2 == 0 else {})
        for step in range(1, 2001)
    ]
    for place, name in zip((100, 101, 700), read_in_full, strict=True):
        metrics[place] = {"step": place + 1, name: 1 / 3}
    metrics[100] |= {"eval/success_low": 0.1, "eval/greedy_success_high": 0.9}
    metrics[101] |= {"final/success_low": 0.1}
    metrics[700] |= {"losses/variation": 0.1, "losses/kl": 0.1, "charts/SPS": 1.0, "time/elapsed": 1.0}
    once = compact(RunRecord({}, {}, list(metrics)))
    training = [row["step"] for row in once.metrics if "memory/0.0.span" in row]
    assert len(training) == TRAINING_LINES and training[-1] == 2000 and set(np.diff(training)) <= {198, 200, 202}
    kept = {name for row in once.metrics for name in row}
    assert kept == {"step", "memory/0.0.span", *read_in_full, "final/success_low", "losses/variation"}
    assert compact(once) == once


def test_runs_that_no_report_shows_are_kept_as_shortly(kept: Path, tmp_path: Path) -> None:
    source = open_source(kept)
    longer = {"step": 1, "eval/success_rate": 1 / 3, "eval/success_low": 0.1}
    recorded = {name: replace(record, metrics=[longer]) for name, record in (source.recorded or {}).items()}
    archive_runs(Data(replace(source, recorded=recorded), (), ()), tmp_path / "again")
    again = open_source(tmp_path / "again").recorded or {}
    assert len(again) == 8
    assert all(record.metrics == [{"step": 1, "eval/success_rate": 0.3333333}] for record in again.values())


def test_what_all_runs_share_stands_once(kept: Path) -> None:
    columns = (kept / "runs.csv").read_text().partition("\n")[0].split(",")
    differing = {name.removeprefix("config.") for name in columns if name.startswith("config.")}
    assert {name.rpartition(".")[2] for name in differing} == {"seed", "env", "architecture"}
    shared = tomllib.loads((kept / "config.toml").read_text())
    assert shared["network"]["width"] == 16 and "architecture" not in shared["network"]
    assert json.loads((kept / "machines.json").read_text())["1"]["cpu"] == MACHINE["cpu"]
    assert not any(line.endswith(",") for line in (kept / "metrics.csv").read_text().splitlines())


@pytest.mark.long
def test_a_lost_report_is_made_again_from_the_tables(finished: Path, tmp_path: Path) -> None:
    place = tmp_path / "results/studies/kept"
    report(finished, "--archive", str(place))
    before = contents(place)
    assert 2 <= len(list((place / "pictures").iterdir())) <= 6
    (place / "report.md").unlink()
    shutil.rmtree(place / "pictures")
    for _ in range(2):  # the second time over the report that is there
        main(["--all", str(tmp_path / "results")])
        assert contents(place) == before


def test_an_archive_is_replaced_by_its_own_study_only(finished: Path, kept: Path, tmp_path: Path) -> None:
    before = contents(kept)
    archive_runs(read(finished), kept)
    assert contents(kept) == before
    make_study(tmp_path / "other", [HALLWAY], '["dgfqn"]', [1])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    shutil.rmtree(finished / "runs" / RUN)
    for folder, where, words in (
        (tmp_path / "other", kept, "holds the archive of the study small, not of other"),
        (finished, kept, f"holds 1 runs that this study lacks, such as {RUN}"),
        (finished, tmp_path / "full", "is not empty and no archive"),
    ):
        assert words in error_of(archive_runs, read(folder), where)
    assert contents(kept) == before


def test_runs_keep_their_numbers_when_others_are_added(tmp_path: Path) -> None:
    """So that a new seed adds lines to metrics.csv and changes none."""
    texts = []
    for seeds in ([1, 3], [1, 2, 3]):
        folder = tmp_path / str(len(seeds))
        folder.mkdir()
        make_study(folder / "small", [MEMORY], '["dtqn4"]', seeds, noisy({}))
        archive_runs(read(folder / "small"), tmp_path / "kept")
        texts.append((tmp_path / "kept/metrics.csv").read_text())
    assert texts[1].startswith(texts[0]) and len(texts[1]) > len(texts[0])
    rows = (tmp_path / "kept/runs.csv").read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["1", "3", "2"]


def harm(file: Path, old: str, new: str) -> None:
    """Change the fourth line of a file."""
    lines = file.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace(old, new, 1)
    file.write_text("".join(lines))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("file", [*RAW, None])
def test_damage_of_a_run_is_noticed_and_named(finished: Path, file: str | None, known: bool) -> None:
    """A file that is lost, or (None) metrics that were changed where their checksum is known, and garbled elsewhere."""
    folder = finished / "runs" / RUN
    if known:
        write_checksums(folder)  # as when it is finished
    assert not read(finished).left_out
    if file is None:
        harm(folder / "metrics.jsonl", *(("0.", "0.9") if known else ("{", "}{")))
    else:
        (folder / file).unlink()
    data = read(finished)
    ((where, why),) = data.left_out
    assert where == RUN and unsound(data) == [RUN] and len(data.entries) == 7
    assert (f"{file} is missing" if file else "metrics.jsonl was changed" if known else "line 4") in why


@pytest.mark.parametrize("harm", ["change", "lose"])
def test_a_row_of_an_archive_that_was_changed_or_lost_is_named(kept: Path, harm: str) -> None:
    lines = (kept / "metrics.csv").read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("3,300,"))
    lines[place : place + 1] = [lines[place] + "1"] if harm == "change" else []
    (kept / "metrics.csv").write_text("\n".join(lines) + "\n")
    data = read(kept)
    names = [run.name for run in data.source.runs]
    assert unsound(data) == [names[2]] and "another SHA-256" in data.left_out[0][1]


def test_other_files_of_an_archive_that_were_changed_are_named(kept: Path) -> None:
    text = (kept / "config.toml").read_text()
    (kept / "config.toml").write_text(text.replace("gamma = 0.99", "gamma = 0.9"))
    (kept / "study.toml").unlink()
    data = read(kept)
    assert {"the study", *(run.name for run in data.source.runs)} == set(unsound(data))
    told = " ".join(why for where, why in data.left_out if where == "the study")
    assert "config.toml was changed" in told and "study.toml is missing" in told and "| the study |" in text_of(data)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("archive.json", "{}", "archive.json is damaged"),
        ("runs.csv", None, "runs.csv is missing"),
        ("archive.json", '{"format": "other", "files": {}, "report": {}, "study": FACTS}', "is damaged: it is not a"),
        ("runs.csv", "name\nx\n", "runs.csv is damaged"),
    ],
)
def test_an_archive_that_cannot_be_read_is_one_sentence(kept: Path, file: str, text: str | None, words: str) -> None:
    facts = json.dumps(json.loads((kept / "archive.json").read_text())["study"])
    (kept / file).unlink() if text is None else (kept / file).write_text(text.replace("FACTS", facts))
    assert words in error_of(read, kept)


def test_damage_stands_at_the_top_and_in_the_exit_code(finished: Path, capsys: Capture) -> None:
    harm(finished / "runs" / RUN / "metrics.jsonl", "{", "}{")
    with pytest.raises(SystemExit, match="1 of the study's runs"):
        report(finished)
    assert RUN in (said := capsys.readouterr().err) and "line 4" in said
    assert "line 4" in (finished / "report/report.md").read_text().partition("## Over all environments")[0]


def test_unfinished_runs_are_named_and_do_not_hinder(finished: Path) -> None:
    study = Study.open(finished)
    study.mark("POMDP-Hallway-v0__dgfqn__seed-1", "failed", error="Traceback\nout of memory")
    study.mark("POMDP-Hallway-v0__dgfqn__seed-2", "running")
    study.mark("POMDP-Hallway-v0__dtqn4__seed-1", "waiting")
    data = read(finished)
    told = {"dgfqn__seed-1": "failed: out of memory", "dgfqn__seed-2": "stopped", "dtqn4__seed-1": "waiting"}
    for run, state in told.items():
        assert f"| POMDP-Hallway-v0__{run} | {state} |" in text_of(data)  # stopped: nobody is at work
    assert len(data.entries) == 5 and not unsound(data)


def test_a_study_without_a_finished_run_has_a_report(finished: Path) -> None:
    for run in Study.open(finished).runs():
        Study.open(finished).mark(run.name, "waiting")
    text = (report(finished) / "report.md").read_text()
    headings = [heading for heading in HEADINGS if heading != "Every run"]
    assert all(f"## {heading}\n" in text for heading in headings)
    assert "No run is finished yet." in text


def test_no_study_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    assert "is no study" in refused(capsys, [str(tmp_path)], main)
    for flags in ([], ["small", "--all", str(tmp_path)]):
        assert "give a study, or --all FOLDER" in refused(capsys, flags, main)


def test_left_out_runs_that_differ_in_their_seed_alone_are_one_row() -> None:
    waiting, failed = "waiting", "failed: see its log"
    found = left_out_rows([("w__a__seed-4", waiting), ("w__b__seed-4", waiting), ("w__a__seed-5", waiting),
                           ("w__a__seed-6", failed), ("the study", "no file")])  # fmt: skip
    names = ("w__a__seed-4, 5", "w__b__seed-4", "w__a__seed-6", "the study")
    assert found == tuple(zip(names, (waiting, waiting, failed, "no file"), strict=True))


def test_what_is_damaged_is_not_archived_again(kept: Path, tmp_path: Path, capsys: Capture) -> None:
    table, other = kept / "metrics.csv", tmp_path / "other"
    table.write_text(table.read_text().replace("1", "2"))
    assert "have another SHA-256" in refused(capsys, [str(kept), "--archive", str(other), "--no-attention"], main)
    assert not other.exists()


def test_runs_are_taken_whose_settings_the_trainer_completed(finished: Path, tmp_path: Path) -> None:
    definition = read_definition(str(finished / "study.toml"))
    planned, source = expand(definition), Path(shutil.copytree(finished, tmp_path / "source"))
    folder = source / "runs" / planned[0].name
    config = tomllib.loads((folder / "config.toml").read_text())
    config["environment"]["observation_key"] = "image"  # chosen in the run, as the only one
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    write_checksums(folder)
    assert planned[0].name in matching_runs(open_source(source), definition.kind, planned, print)
    given: Any = planned[0].config
    here, there = (
        settings_key(replace(given, environment=replace(given.environment, path=path)))
        for path in ("a.pomdp", str(Path("a.pomdp").resolve()))
    )
    assert here == there
