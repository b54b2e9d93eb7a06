"""The cuts of two shipped studies, carried out by the real trainers, one of which is killed on the way."""

import importlib
from pathlib import Path

import pytest
from studies import carry_out, kill_trainer, results, start, wait_for

from dqn_memory.runs.kinds import script_of
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.report import main as report
from dqn_memory.study.store import Study, last_step


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
    killed = folder / "runs" / run.name
    wait_for(lambda: last_step(killed) >= moment or process.poll() is not None, seconds=200)
    kill_trainer(killed)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    assert f"lost     {run.name}: its process was ended by SIGKILL; it continues from its last checkpoint" in said
    assert results(folder) == results(whole) and len(results(whole)) == 2
    assert {run.state for run in Study.open(folder).runs()} == {"finished"}


@pytest.mark.long
def test_a_world_models_study_shows_what_its_tokens_attend_to(tmp_path):
    folder, kept = tmp_path / "study", tmp_path / "kept"
    carry_out("unizero_priors", folder, "--smoke", "--workers", "2")
    report([str(folder), "--archive", str(kept)])
    report([str(folder)])
    report([str(kept)])
    pages = [(place / "report" / "report.md").read_text() for place in (folder, kept)]
    assert pages[0] == pages[1]
    assert "What the tokens of one window" in pages[0] and "causal in CartPole-v1, seed 1; the episode had" in pages[0]
    pictures = {path.stem for path in (kept / "report" / "pictures").glob("attention-*.png")}
    assert pictures == {"attention-cartpole-v1-causal-seed-1"}  # the recurrent form has no attention
