"""A study's state answers at any time, from a copy that may not be written and after any death."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from run_folders import error_of

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.lock import held_lock, lock_holder
from dqn_memory.study import run, store
from dqn_memory.study.definition import Resources, expand, parse_definition
from dqn_memory.study.run import estimate, overview
from dqn_memory.study.run_record import final_metrics, finished, write_checksums
from dqn_memory.study.store import Study

TEXT = """
title = "One world"
kind = "q_network"
about = "nothing"
[base]
total_steps = 1_000
learning_starts = 64
prepopulate = 0
[axes]
world = ["POMDP/Hallway-v0"]
architecture = ["dtqn4", "dgfqn"]
seed = [1, 2]
"""
DEFINITION = parse_definition(TEXT, "one.toml", "one")
RUNS = expand(DEFINITION)
FIRST, SECOND, THIRD, FOURTH = (run.name for run in RUNS)


@pytest.fixture
def study(tmp_path):
    return Study.create(tmp_path / "study", DEFINITION, RUNS)


def states(study):
    return {run.name: run.state for run in Study.open(study.folder).runs()}


def test_what_was_noted_is_read_again(study, monkeypatch):
    study.mark(FIRST, "running", begun=True)
    study.mark(SECOND, "failed", "error: no\nreally")
    study.mark(THIRD, "finished", seconds=12.5)
    found = Study.open(study.folder)
    assert (found.name, found.title, found.about, found.kind) == ("one", "One world", "nothing", "q_network")
    assert (found.axes, found.smoke) == (("world", "architecture", "seed"), False)
    first, second, third, fourth = found.runs()
    assert (first.state, first.attempts) == ("stopped", 1)  # nobody is at work
    assert (second.state, second.error) == ("failed", "error: no\nreally")
    assert (third.state, third.seconds, third.architecture, third.seed) == ("finished", 12.5, "dgfqn", 1)
    assert fourth.state == "waiting" and fourth.folder == study.folder / "runs" / FOURTH
    shown = overview(found).splitlines()
    assert shown[2] == "4 runs: 1 finished, 1 waiting, 1 stopped, 1 failed; study.run is not running"
    assert shown[7].split() == ["POMDP/Hallway-v0", "dgfqn", "1", "finished", "0", "0:00:12", "0"]
    assert shown[-2:] == ["    error: no", "    really"]
    monkeypatch.setattr(run, "FEW", 3)
    assert "dgfqn" not in overview(found)
    assert (study.folder / "study.toml").read_text() == TEXT


def test_other_runs_may_be_listed_and_none_is_forgotten(study):
    study.mark(FIRST, "finished", seconds=1.0)
    Study.create(study.folder, DEFINITION, RUNS[2:])
    assert states(study) == {THIRD: "waiting", FOURTH: "waiting"}
    Study.create(study.folder, DEFINITION, RUNS)
    assert next(iter(states(study).items())) == (FIRST, "finished")


def test_running_means_that_somebody_is_at_work(study):
    study.mark(FIRST, "running", begun=True)
    lock = study.folder / store.LOCK
    code = (
        "import sys, time; from pathlib import Path; from dqn_memory.runs.lock import held_lock\n"
        "with held_lock(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    assert Study.open(study.folder).is_running and states(study)[FIRST] == "running"
    assert lock_holder(lock)["pid"] == process.pid
    busy = pytest.raises(UserError, match=f"it is busy, by process {process.pid} on ")
    with busy, held_lock(lock, "it is busy", patience=0.1):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not Study.open(study.folder).is_running and states(study)[FIRST] == "stopped"
    with held_lock(lock, "it is busy", patience=0.1):
        assert study.is_running


def test_a_lock_lives_on_in_a_child_that_inherits_it(tmp_path):
    with held_lock(tmp_path / "run", "") as lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    assert lock_holder(tmp_path / "run")["pid"] == os.getpid()
    child.kill()
    child.wait()
    assert lock_holder(tmp_path / "run") is None and lock_holder(tmp_path / "none") is None


def test_reading_writes_nothing(study):
    study.mark(FIRST, "finished", seconds=1.0)
    before = {path: path.stat().st_mtime_ns for path in study.folder.rglob("*")}
    assert states(study)[FIRST] == "finished"
    assert before == {path: path.stat().st_mtime_ns for path in study.folder.rglob("*")}


def test_a_damaged_or_foreign_state_is_named(tmp_path, study):
    assert "is no study: it has no study.json" in error_of(Study.open, tmp_path)
    path = study.folder / "study.json"
    path.write_text(path.read_text().replace(store.FORMAT, "other 2"))
    before = path.read_bytes()
    assert "study.json is foreign" in error_of(Study.open, study.folder)
    assert path.read_bytes() == before
    path.write_bytes(b"not a database" * 100)
    assert "study.json is damaged (Expecting value" in error_of(Study.open, study.folder)


def run_folder(path, step, final_step, cut=0):
    (path / "checkpoints").mkdir(parents=True)
    line = json.dumps({"step": final_step, "final/success_rate": 1.0}) + "\n"
    (path / "metrics.jsonl").write_text('{"step": 1}\n' + line)
    content = {"step": step, "metrics_bytes": 12 + len(line) - cut}
    (path / "checkpoints" / "manifest.json").write_text(json.dumps({"content": content}))
    return path


def test_finished_is_what_the_last_checkpoint_vouches_for(tmp_path):
    assert not finished(tmp_path / "none")
    assert finished(run_folder(tmp_path / "a", 100, 100))
    # the final line was written but its checkpoint was not: a resume does the evaluation again
    assert not finished(run_folder(tmp_path / "b", 50, 100, cut=len('{"step": 100, "final/success_rate": 1.0}\n')))
    assert not finished(run_folder(tmp_path / "c", 120, 100))
    damaged = run_folder(tmp_path / "d", 100, 100)
    (damaged / "metrics.jsonl").write_text("{" * 60)
    assert "its last line is not a JSON object" in error_of(finished, damaged)
    (damaged / "checkpoints" / "manifest.json").write_text("{")
    assert "manifest.json is damaged" in error_of(finished, damaged)


def test_a_run_of_an_archive_is_finished_though_scores_by_other_actions_follow(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 9, "final/success_rate": 1.0}\n{"step": 9, "sampled/success_rate": 0.5}\n'
    )
    assert not finished(tmp_path)
    write_checksums(tmp_path)
    assert final_metrics(tmp_path) == {"step": 9, "final/success_rate": 1.0}


def test_an_estimate_starts_from_the_file_and_goes_on_from_what_was_measured(study):
    resources = Resources(steps_per_second=10.0, megabytes=2.0)
    assert estimate(study.runs(), resources) == (400.0, 8.0) and estimate(study.runs(), Resources()) == (None, None)
    for name, seconds in ((FIRST, 300.0), (THIRD, 100.0)):
        study.mark(name, "finished", seconds=seconds)
        run_folder(study.folder / "runs" / name, 1_000, 1_000)
    seconds, megabytes = estimate(study.runs(), resources)
    assert seconds == pytest.approx(2 * 200.0) and 0 < megabytes < 0.01
    (half := study.folder / "runs" / SECOND).mkdir()
    (half / "metrics.jsonl").write_text('{"step": 500}\n')
    assert estimate(study.runs(), resources)[0] == pytest.approx(1.5 * 200.0)


def test_study_run_and_its_workers_load_no_torch_before_they_need_it():
    code = "import sys, dqn_memory.study.run, dqn_memory.study.cluster; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_run_stopped_before_its_first_line_of_metrics_is_unfinished(tmp_path):
    with Run.create(tmp_path / "run", "total_steps = 9\n") as run:
        run.save(4, {"network.w": torch.zeros(1)}, {})
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and final_metrics(tmp_path / "run") is None
