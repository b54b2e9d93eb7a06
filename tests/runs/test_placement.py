"""Where a run computes, and by which engine, if its flags leave it open."""

import json

import pytest
from trained import CARDS, MEMORY, rollout_flags

from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.runs.base_config import place
from dqn_memory.runs.kinds import trainer_class

CUDA, GRAPH = "cuda by the engine cudagraph", "cudagraph"


@pytest.mark.parametrize(("device", "engine", "cuda", "fastest", "chosen"), [
    ("auto", "auto", True, GRAPH, ("cuda", GRAPH)),
    ("auto", "auto", True, None, ("cpu", "eager")),
    ("auto", "auto", True, "eager", ("cuda", "eager")),
    *(("auto", "auto", False, fastest, ("cpu", "eager")) for fastest in (GRAPH, "eager", None)),
    ("cuda:1", "auto", True, GRAPH, ("cuda:1", GRAPH)),
    ("cuda", "auto", True, None, ("cuda", "eager")),
    ("cpu", "auto", True, GRAPH, ("cpu", "eager")),
    ("auto", "eager", True, None, ("cuda", "eager")),
    ("auto", "compile", True, GRAPH, ("cuda", "compile")),
    ("auto", "compile", False, GRAPH, ("cpu", "compile")),
    ("cuda", "eager", True, GRAPH, ("cuda", "eager")),
])  # fmt: skip
def test_flags_win_and_else_the_fastest_is_taken(device, engine, cuda, fastest, chosen):
    placement = place(device, engine, cuda, fastest)
    assert placement[:2] == chosen and bool(placement.why) is (device == "auto")


@pytest.mark.parametrize(("kind", "env", "fastest"), [
    *((kind, MEMORY, GRAPH) for kind in ("q_network", "pqn", "ppo", "unizero", "glam")),
    *((kind, "CartPole-v1", None) for kind in ("pqn", "ppo")),
    ("ppo", "ALE/Pong-v5", "eager"), ("q_network", "CartPole-v1", GRAPH),
])  # fmt: skip
def test_what_is_fastest_on_cuda(kind, env, fastest):
    config_class = trainer_class(kind).config_class
    environment = type(config_class().environment)(env=env)
    assert config_class(environment=environment).fastest_on_cuda == fastest


@pytest.mark.parametrize("kind", [PQNTrainer, PPOTrainer])
def test_a_run_says_where_it_computes_and_goes_on_on_another_machine(tmp_path, capsys, kind):
    run, facts = tmp_path / "run", tmp_path / "run" / "environment.json"
    kind.main(rollout_flags(run, "--env", CARDS, steps=64))
    said = "the run computes on cpu by the engine eager (torch sees no CUDA device)"
    assert capsys.readouterr().err.count(said) == 1
    assert 'device = "auto"' in (run / "config.toml").read_text()
    began = json.loads(facts.read_text())
    assert began["computed_on"] == "cpu by the engine eager"
    kind.main(["--resume", str(run), "--total-steps", "128"])
    assert "not exact" not in capsys.readouterr().err
    facts.write_text(json.dumps(began | {"computed_on": CUDA}))
    kind.main(["--resume", str(run), "--total-steps", "192"])
    assert capsys.readouterr().err.count(f"the run began on {CUDA}: the continued run is not exact") == 1


def test_a_run_with_a_device_says_nothing_about_it(tmp_path, capsys):
    PQNTrainer.main(rollout_flags(tmp_path / "run", "--env", CARDS, "--device", "cpu", steps=64))
    assert "computes on" not in capsys.readouterr().err
