"""Many seeds in one process: each learns what it learns alone, and leaves an ordinary run."""

from dataclasses import replace

import pytest
import torch
from run_folders import refused
from trained import CARDS, MEMORY, in_place_of_a_graph, rollout_flags

from dqn_memory import seeds
from dqn_memory.evaluate import main as evaluate
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.runs.folder import Run
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.seeds import Together


def trainers(kind, architecture, tmp_path):
    """Two seeds in float64, whose episodes end within a rollout."""
    flags = f"--env {MEMORY} --time-limit 12 --architecture {architecture} --prediction-weight 1 --novelty-weight 0.1"
    found = []
    for seed in (3, 4):
        each = kind(kind.configure(rollout_flags(tmp_path, *flags.split(), f"--seed={seed}")))
        for network in (each.model, each.evaluated, each.predictor):
            network.double()
        each.begin()
        found.append(each)
    return found


@pytest.mark.parametrize("kind", [PQNTrainer, PPOTrainer])
@pytest.mark.parametrize("architecture", ["gru", "lstm", "mingru", "mlstm"])
def test_seeds_side_by_side_learn_what_each_learns_alone(kind, architecture, tmp_path):
    alone, stacked = (trainers(kind, architecture, tmp_path) for _ in range(2))
    together = Together(stacked)
    first = {name: value.clone() for name, value in alone[0].weights().items()}
    for _ in range(2):
        together.iterate()
        for each in alone:
            each.iterate()
    for each, other in zip(alone, stacked, strict=True):
        for name, value in each.weights().items():
            torch.testing.assert_close(other.weights()[name], value, rtol=0, atol=1e-10)
        expected, found = each.scalars(), other.scalars()
        assert found == {name: pytest.approx(value, abs=1e-10) for name, value in expected.items()}
    assert any(not torch.equal(value, first[name]) for name, value in alone[0].weights().items())
    first_seed, second_seed = (each.weights()["network.head.0.weight"] for each in alone)
    assert not torch.equal(first_seed, second_seed)


def test_seeds_side_by_side_as_one_graph_learn_the_same(tmp_path, monkeypatch):
    eager, captured = (trainers(PPOTrainer, "gru", tmp_path) for _ in range(2))
    graph = replace(captured[0].config, compute=replace(captured[0].config.compute, engine="cudagraph"))
    monkeypatch.setattr(captured[0], "config", graph)
    monkeypatch.setattr(seeds, "Captured", in_place_of_a_graph(*captured))
    for together in (Together(eager), Together(captured)):
        for _ in range(2):
            together.iterate()
    for each, other in zip(eager, captured, strict=True):
        torch.testing.assert_close(other.weights(), each.weights(), rtol=0, atol=0)
        torch.testing.assert_close(other.carried(), each.carried(), rtol=0, atol=0)


def test_each_seed_leaves_a_run_of_its_own(tmp_path, capsys):
    flags = rollout_flags(tmp_path / "many", *f"--env {CARDS} --seed 5 --seeds 2".split())
    PQNTrainer.main(flags)
    alone = rollout_flags(tmp_path / "alone", *f"--env {CARDS} --seed 6".split())
    PQNTrainer.main(alone)
    runs = [tmp_path / "many" / f"seed_{seed}" for seed in (5, 6)]
    assert [run.name for run in sorted((tmp_path / "many").iterdir())] == ["seed_5", "seed_6"]
    last, expected = (read_metrics(run / "metrics.jsonl")[-1] for run in (runs[1], tmp_path / "alone"))
    assert last["final/episodic_return"] == pytest.approx(expected["final/episodic_return"])
    ends = [read_metrics(run / "metrics.jsonl")[-1] for run in runs]
    assert sum(end["time/processor"] for end in ends) < 1.5 * last["time/elapsed"]  # each its share of one process
    evaluate([str(runs[0]), "--episodes", "5"])
    PQNTrainer.main(["--resume", str(runs[1]), "--total-steps", "1024"])
    assert Run.open(runs[1]).load().step == 1024
    (runs[0] / "config.toml").rename(tmp_path / "config.toml")
    more = [word if word != "5" else "4" for word in flags]
    assert "seed_5" in refused(capsys, more, PQNTrainer.main)
    assert not (tmp_path / "many" / "seed_4").exists()


def test_what_is_interrupted_goes_on_run_by_run(tmp_path, capsys, monkeypatch):
    iterate, calls = Together.iterate, []

    def stopped_later(self):
        calls.append(iterate(self))
        if len(calls) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Together, "iterate", stopped_later)
    flags = rollout_flags(tmp_path, *f"--env {CARDS} --seed 5 --seeds 2 --checkpoint-every 256".split())
    with pytest.raises(SystemExit) as stopped:
        PPOTrainer.main(flags)
    assert stopped.value.code == 130 and "stopped at step 320; every run goes on" in capsys.readouterr().err
    PPOTrainer.main(["--resume", str(tmp_path / "seed_6")])
    assert Run.open(tmp_path / "seed_6").load().step == 512


@pytest.mark.parametrize(("flags", "words"), [
    ("--seeds 2 --dropout 0.1", "--dropout 0"),
    ("--seeds 2 --stop-at-success 0.9", "--stop-at-success"),
    ("--seeds 0", "--seeds"),
    ("--seeds 2 --architecture darqn", "cannot compute darqn"),
])  # fmt: skip
def test_what_seeds_cannot_share_is_refused(flags, words, tmp_path, capsys):
    arguments = rollout_flags(tmp_path / "run", *f"--env {MEMORY} {flags}".split())
    assert words in refused(capsys, arguments, PQNTrainer.main)
    assert not (tmp_path / "run").exists()
