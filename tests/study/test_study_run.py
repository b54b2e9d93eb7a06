"""Studies on plain processes and on Ray: killed anywhere they end as if undisturbed; a failure stops nothing else."""

import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from run_folders import Capture, error_of, metrics, printed, refused
from trained import trained

from dqn_memory import train
from dqn_memory.runs.checkpoint import CheckpointFolder
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import script_of
from dqn_memory.study import store
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.report import main as report
from dqn_memory.study.run import main
from dqn_memory.study.run_record import finished, last_step
from dqn_memory.study.runner import Processes, Scheduler, device_slots
from dqn_memory.study.store import RunState, Study

TESTS = Path(__file__).resolve().parent
TINY = """
title = "Tiny"
kind = "tiny_trainer"
[base]
pause = 0.02
[axes]
world = ["POMDP/Hallway-v0", "POMDP/HeavenHell-v0"]
architecture = ["a", "bb"]
seed = [1, 2]
"""
FAST = TINY.replace("0.02", "0.0")
RAY = pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed (pip install 'dqn-memory[cluster]')")


def environment() -> dict[str, str]:
    """The tiny trainer is a distribution of its own: the command and its workers find it through its entry point."""
    path = os.pathsep.join([str(TESTS / "tiny"), str(TESTS.parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def start(study: Path | str, folder: Path, *flags: str) -> subprocess.Popen[str]:
    """`study.run` in a process of its own, in the background; Ctrl-C reaches it even where these tests ignore it."""
    command = [sys.executable, "-m", "dqn_memory.study.run", str(study), "--folder", str(folder)]
    return subprocess.Popen(
        [*command, "--backend", "processes", *flags],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip


def study_run(study: Path | str, folder: Path, *flags: str, code: int = 0) -> str:
    """`study.run` to its end; returns what it said."""
    process = start(study, folder, *flags)
    said = process.communicate(timeout=100)[0]
    assert process.returncode == code, said
    return said


def results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Metrics of all runs, but for times."""
    return {path.parent.name: metrics(path.parent) for path in sorted(folder.glob("runs/*/metrics.jsonl"))}


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Until `condition()` is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def kill_trainers(folder: Path, names: Sequence[str]) -> None:
    """End the processes that train these runs of a study, whose command lines name their folders."""
    folders = {str(folder / "runs" / name).encode() for name in names}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if not folders.isdisjoint((process / "cmdline").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)


def at_work(folder: Path) -> list[str]:
    """Runs that are being trained."""
    locked = [path for path in sorted((folder / "locks").glob("*")) if path.name != "study.lock"]
    return [path.name for path in locked if store.lock_holder(path) is not None]


def wait_for_lines(folder: Path, more: int, process: subprocess.Popen[str]) -> None:
    """Until the runs have logged so many more lines, or the study has ended."""

    def logged() -> int:
        return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/metrics.jsonl"))

    goal = logged() + more
    wait_for(lambda: logged() >= goal or process.poll() is not None)


@pytest.fixture
def study(tmp_path):
    """A study of seconds, which may be killed."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def fast(study):
    """The same study in no time."""
    study.write_text(FAST)
    return study


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "tiny.toml").write_text(FAST)
    study_run(folder / "tiny.toml", folder / "study", "--workers", "4")
    return results(folder / "study")


@pytest.fixture(scope="module")
def cluster():
    """Two Ray nodes on this machine, each with room for two runs; a list of their daemons."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'dqn-memory[cluster]')")
    from ray.cluster_utils import Cluster

    before = os.environ.copy()
    os.environ.update(environment())  # what the nodes' workers start from
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(params=["processes", "ray"])
def backend(request):
    """Flags of four workers, on this machine or on two nodes."""
    if request.param == "processes":
        return "--workers", "4"
    return "--backend", "ray", "--address", request.getfixturevalue("cluster").address


@pytest.mark.long
def test_an_undisturbed_study_is_not_repeated_but_what_lies_damaged_or_missing_is_noticed(fast, tmp_path, undisturbed):
    folder = tmp_path / "study"
    said = study_run(fast, folder, "--workers", "3")
    assert "8 runs: 8 waiting = 2 world x 2 architecture x 2 seed" in said
    assert "processes of this machine, 3 at once" in said
    assert results(folder) == undisturbed and len(undisturbed) == 8
    first, second, *_ = runs = Study.open(folder).runs()
    assert all(run.state == "finished" and run.attempts == 1 and finished(run.folder) for run in runs)
    assert (first.world, first.architecture, first.seed) == ("POMDP/Hallway-v0", "a", 1)
    assert "threads 1 devices ''" in first.log.read_text()
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    assert "started" not in study_run(fast, folder)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    (first.folder / "metrics.jsonl").write_bytes(b"")
    shutil.rmtree(second.folder)
    said = study_run(fast, folder, code=1)
    assert "metrics.jsonl is damaged: it has 0 bytes" in said and f"started  {second.name}" in said
    assert results(folder)[second.name] == undisturbed[second.name]


@pytest.mark.long
def test_a_study_that_is_killed_at_random_moments_ends_as_if_it_never_was(study, tmp_path, undisturbed):
    chance, folder = random.Random(0), tmp_path / "study"
    for _ in range(3):
        process = start(study, folder, "--workers", "3")
        wait_for_lines(folder, chance.randrange(10, 100), process)  # some of which the next kill takes back
        process.kill()
        process.wait()
        process.stdout.close()
        wait_for(lambda: not at_work(folder))  # no trainer outlives it
        assert {"stopped", "finished"} & {run.state for run in Study.open(folder).runs()} - {"running"}
    study_run(study, folder, "--workers", "4")
    assert results(folder) == undisturbed
    assert any(run.attempts > 1 for run in Study.open(folder).runs())


@pytest.mark.long
def test_ctrl_c_stops_all_and_leaves_all_resumable(study, tmp_path, undisturbed, backend):
    folder = tmp_path / "study"
    process = start(study, folder, *backend)
    wait_for_lines(folder, 30, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and said.rstrip().endswith("stopped; the same command continues")
    assert "Traceback" not in said
    wait_for(lambda: not at_work(folder))
    assert {run.state for run in Study.open(folder).runs()} <= {"stopped", "waiting", "finished"}
    study_run(study, folder, *backend)
    assert results(folder) == undisturbed


@RAY
def test_workers_and_a_node_of_ray_are_killed_and_the_results_are_the_same(study, tmp_path, undisturbed, cluster):
    study.write_text(TINY.replace("0.02", "0.1"))
    folder, chance = tmp_path / "study", random.Random(1)
    process = start(study, folder, "--backend", "ray", "--address", cluster.address)
    for turn in range(5):
        wait_for_lines(folder, chance.randrange(15, 60), process)
        if turn == 2:
            cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)  # a machine is lost
            cluster.add_node(num_cpus=2)
        elif turn == 3:
            kill_trainers(folder, at_work(folder)[:2])
        else:  # who holds a run's lock is one of Ray's workers
            held = [store.lock_holder(folder / "locks" / name) for name in at_work(folder)]
            for who in [who for who in held if who][: chance.randrange(1, 3)]:
                os.kill(who["pid"], signal.SIGKILL)
    said = process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    assert "2 node(s), 4 runs at once" in said and "its worker was lost" in said and "ended by SIGKILL" in said
    runs = Study.open(folder).runs()
    assert results(folder) == undisturbed and [run.state for run in runs] == ["finished"] * 8
    assert any("--resume" in run.log.read_text() for run in runs)


def test_a_trainer_is_told_on_its_command_line_what_its_config_imports(fast, tmp_path):
    one = FAST.replace("pause", 'plugin = ["tiny_trainer"]\npause').replace(', "bb"', "").replace("[1, 2]", "[1]")
    fast.write_text(one.replace('"POMDP/Hallway-v0", "POMDP/HeavenHell-v0"', '"tiny_trainer:X-v0"'))
    study_run(fast, tmp_path / "study", "--workers", "1", "--plugin", "tiny_trainer")
    (command,) = [json.loads(file.read_text())["command"] for file in tmp_path.glob("study/runs/*/environment.json")]
    assert command.endswith("--plugin tiny_trainer --env tiny_trainer:X-v0")


@RAY
def test_ray_on_this_machine_needs_no_server(fast, tmp_path, undisturbed):
    said = study_run(fast, tmp_path / "study", "--workers", "2", "--backend", "ray")
    assert "backend ray: Ray on this machine, 1 node(s), 2 runs at once" in said
    assert results(tmp_path / "study") == undisturbed
    assert "threads 1 devices ''" in Study.open(tmp_path / "study").runs()[0].log.read_text()
    said = study_run(fast, tmp_path / "other", "--backend", "ray", "--gpus", "64", code=2)
    assert "no node of the cluster has the 1 CPUs and 64 GPUs" in said


@pytest.mark.long
def test_what_fails_and_what_always_dies_is_told_and_stops_nothing_else(study, tmp_path, capsys, backend):
    bad = '"bb", { name = "bad", fails_at = 25 }, { name = "dies", dies_at = 35 }'
    study.write_text(FAST.replace('"bb"', bad).replace("[1, 2]", "[1]"))
    folder = tmp_path / "study"
    said = study_run(study, folder, *backend, "--retries", "2", code=1)
    runs = Study.open(folder).runs()
    states = {"a": "finished", "bb": "finished", "bad": "failed", "dies": "failed"}
    assert {(run.architecture, run.state) for run in runs} == {*states.items()}
    assert "error: step 25 cannot be taken" in said
    # the first death is at a new checkpoint; after two more without a further one it is given up
    assert all(run.attempts == 3 and "SIGKILL" in run.error for run in runs if run.architecture == "dies")
    assert said.count("it continues from its last checkpoint") == 4
    assert "error: step 25 cannot be taken" in printed(capsys, main, folder, "--status")
    study.write_text(study.read_text().replace("fails_at = 25", "fails_at = 26"))
    assert "was made with other settings of" in study_run(study, folder, code=2)


@pytest.mark.long
def test_ctrl_c_lets_trainers_save_what_they_have_learned(tmp_path):
    study, folder = tmp_path / "mine.toml", tmp_path / "study"
    study.write_text(
        'schema = 2\ntitle = "Mine"\nkind = "ppo"\n[base]\nwidth = 16\nnum_envs = 4\ntotal_steps = 1_000_000\n'
        "log_every = 512\ncheckpoint_every = 0\nthreads = 1\n"
        '[axes]\nworld = ["POMDP/Hallway-v0"]\narchitecture = ["gru"]\nseed = [1]\n'
    )
    process = start(study, folder, "--workers", "1")
    wait_for(lambda: any(path.read_bytes().count(b"\n") > 2 for path in folder.glob("runs/*/metrics.jsonl")), 90)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    (run,) = Study.open(folder).runs()
    assert run.state == "stopped" and Run.open(run.folder).load().step > 512


@pytest.mark.long
def test_a_second_study_run_is_refused(study, tmp_path):
    folder = tmp_path / "study"
    process = start(study, folder, "--workers", "1")
    wait_for_lines(folder, 1, process)
    assert "is being run already, by process" in study_run(study, folder, code=2)
    assert Study.open(folder).is_running
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


@pytest.mark.long
def test_chosen_runs_come_first_and_the_others_later(fast, tmp_path, undisturbed):
    folder = tmp_path / "study"
    said = study_run(fast, folder, "--workers", "4", "--only", "*__bb__*", "--only", "*Hallway*seed-1")
    assert said.count("started") == 5 and "of which --only chose 5" in said
    states = {run.name: run.state for run in Study.open(folder).runs()}
    assert sorted(states.values()) == ["finished"] * 5 + ["waiting"] * 3
    assert all(state == "finished" for name, state in states.items() if "__bb__" in name)
    assert "--only *seed-7 matches no run" in study_run(fast, folder, "--only", "*seed-7", code=2)
    said = study_run(fast, folder, "--workers", "1")
    assert re.findall(r"started .*-(\d)$", said, re.MULTILINE) == ["1", "2", "2"]
    assert results(folder) == undisturbed
    fast.write_text(FAST.replace("seed = [1, 2]", "seed = [2, 3]"))  # more and fewer runs of the same study
    said = study_run(fast, folder, "--workers", "4")
    assert said.count("started") == 4 and "seed-1" not in said
    assert {run.seed for run in Study.open(folder).runs()} == {2, 3}


@pytest.mark.long
def test_a_run_killed_between_its_last_step_and_its_final_evaluation_ends(tmp_path, monkeypatch):
    trained(tmp_path / "whole", "--checkpoint-every", "120")
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(train.QTrainer, "evaluate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        trained(tmp_path / "cut", "--checkpoint-every", "120")
    assert Run.open(tmp_path / "cut").load().step == 240 and not finished(tmp_path / "cut")
    train.main(["--resume", str(tmp_path / "cut")])
    assert finished(tmp_path / "cut") and finished(tmp_path / "whole")
    assert metrics(tmp_path / "cut")[-1] == metrics(tmp_path / "whole")[-1]
    CheckpointFolder(tmp_path / "cut" / "checkpoints").drop_replay()
    assert finished(tmp_path / "cut") and Run.open(tmp_path / "cut").load().replay is None
    assert not list((tmp_path / "cut").rglob("chunk_*"))


def test_shares_of_accelerators(monkeypatch):
    assert sorted(device_slots(["0", "1"], 0.5)) == ["0", "0", "1", "1"]
    assert device_slots(["0", "1", "2"], 2) == ["0,1"] and device_slots(["0"], 2) == []
    assert device_slots(["0"], 0.6) == ["0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert Processes(None, 1, 0.5).slots() == min(os.cpu_count(), 4)
    assert "a run of this study needs 4 GPUs, and there are fewer here" in error_of(Processes, None, 1, 4.0)


def test_a_further_checkpoint_gives_a_killed_run_its_retries_back(tmp_path):
    drive, run = Scheduler(*[None] * 3, retries=1, configs={}), RunState("a", {}, "stopped", tmp_path, 9)
    (tmp_path / "checkpoints").mkdir()
    found = []
    for step in (1, 1, 2, 2):
        content = {"content": {"step": step, "metrics_bytes": 0}}
        (tmp_path / "checkpoints" / "manifest.json").write_text(json.dumps(content))
        found.append(drive._may_retry(run))
    assert found == [True, False, True, False]


@pytest.mark.long  # what is the same and how it is taken: short tests in test_study_folders.py
def test_runs_with_the_very_same_settings_are_taken_from_another_study(fast, tmp_path, undisturbed):
    first, second = tmp_path / "first", tmp_path / "second"
    assert "(4 of 8)" in study_run(fast, first, "--workers", "4", "--only", "*seed-1")  # finished ones, not chosen ones
    other = FAST.replace("[base]", '[base]\ntrack = ["csv", "tensorboard"]')  # which no number depends on
    fast.write_text(other.replace('"a", "bb"', '{ name = "named otherwise", architecture = "bb" }, "c"'))
    said = study_run(fast, second, "--workers", "4", "--take-from", str(first))
    taken = [line.split()[1] for line in said.splitlines() if line.startswith("took")]
    assert len(taken) == 2 and all("named-otherwise__seed-1" in name for name in taken) and said.count("started") == 6
    for run in Study.open(second).runs():
        assert run.state == "finished" and run.attempts == (0 if run.name in taken else 1)
        if "named" in run.name:  # as if it had been made here
            assert results(second)[run.name] == undisturbed[run.name.replace("named-otherwise", "bb")]
            assert str(first) not in (run.folder / "config.toml").read_text()
    assert "took" not in study_run(fast, second, "--take-from", str(first))  # nothing is taken twice


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the trainer to kill in /proc")
@pytest.mark.parametrize("name, moment", [("first_evidence", 160), ("thesis_table1", 120)])
def test_the_cut_of_a_shipped_study_with_a_kill_gives_what_its_trainer_gives_alone(name, moment, tmp_path):
    definition, whole = read_definition(name, smoke=True), tmp_path / "whole"
    train = importlib.import_module(script_of(definition.kind)).main
    for run in expand(definition):
        (tmp_path / "config.toml").write_text(run.toml)
        train(["--config", str(tmp_path / "config.toml"), "--run", str(whole / "runs" / run.name)])
    folder, process = tmp_path / "study", start(name, tmp_path / "study", "--smoke", "--workers", "2")
    wait_for(lambda: last_step(folder / "runs" / run.name) >= moment or process.poll() is not None, seconds=200)
    kill_trainers(folder, [run.name])
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    assert f"lost     {run.name}: its process was ended by SIGKILL; it continues from its last checkpoint" in said
    assert results(folder) == results(whole) and len(results(whole)) == 2
    assert {run.state for run in Study.open(folder).runs()} == {"finished"}


@pytest.mark.long
def test_a_world_models_study_shows_what_its_tokens_attend_to(tmp_path):
    folder, kept = tmp_path / "study", tmp_path / "kept"
    study_run("unizero_priors", folder, "--smoke", "--workers", "2")
    report([str(folder), "--archive", str(kept)])
    report([str(folder)])
    report([str(kept), "--write", str(kept / "report")])
    pages = [(place / "report" / "report.md").read_text() for place in (folder, kept)]
    assert pages[0] == pages[1]
    assert "causal in CartPole-v1, seed 1; the episode had" in pages[0]
    pictures = {path.stem for path in (kept / "report" / "pictures").glob("attention-*.png")}
    assert pictures == {"attention-cartpole-v1-causal-seed-1"}  # the recurrent form has no attention
    assert all(entry.parameters for entry in collect(open_source(folder)).entries)


def test_a_study_that_needs_gpus_leaves_nothing_where_there_is_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = refused(capsys, ["table1", "--backend", "processes", "--folder", "new"], main)
    assert "--gpus 0" in said and said.count("\n") == 1 and not (here / "new").exists()
    main(["table1", "--gpus", "0", "--dry-run"])  # which that way goes on
