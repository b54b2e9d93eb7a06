"""Training that starts from the weights of another run."""

import json
import shutil

import pytest
import torch

from dqn_memory.api import load_run, train
from dqn_memory.evaluate import load_network
from dqn_memory.ppo import PPOTrainer
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run

SMALL = {
    "env": "Gridverse/Memory-5x5-v0", "total_steps": 256, "num_envs": 4, "log_every": 0, "evaluate_every": 0,
    "episodes": 4, "final_episodes": 4, "width": 16, "track": ("none",), "threads": 1, "memory_ablation": False,
}  # fmt: skip
ROLLOUT = {"architecture": "gru", "rollout_steps": 16, "minibatches": 2}
WINDOW = {"architecture": "gru", "context": 8, "learning_starts": 64, "batch_size": 8}
TRAINERS = {"ppo": ROLLOUT, "pqn": ROLLOUT, "q_network": WINDOW}


def weights(run, part):
    return Run.open(run).load(with_replay=False).part(part)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return train("ppo", run=str(tmp_path_factory.mktemp("source") / "run"), **SMALL, **ROLLOUT)[0]


def begun(kind, folder, **changes):
    """A run's first checkpoint, at step 0, and its folder."""
    from dqn_memory.runs.kinds import trainer_class

    settings = SMALL | TRAINERS[kind] | {"run": str(folder / "run")} | changes
    _, run = trainer_class(kind).start(settings)
    with run:
        return run.path


@pytest.mark.parametrize("kind", TRAINERS)
def test_an_agent_of_the_same_form_is_taken_whole(kind, source, tmp_path, capsys):
    run = begun(kind, tmp_path, start_from=str(source))
    agent = load_network(source)[0].state_dict()
    for part in ("network", "average", "target"):
        found = weights(run, part)
        assert all(torch.equal(found[name], agent[name]) for name in found)
    assert weights(run, "network").keys() == agent.keys()
    if kind == "ppo":
        for part in ("critic", "predictor"):
            ours, theirs = weights(run, part), weights(source, part)
            assert ours and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    facts, said = json.loads((run / "environment.json").read_text()), capsys.readouterr().out
    assert (
        facts["start_from"] == str(source) and facts["start_from_step"] == 256 and len(facts["start_from_sha256"]) == 64
    )
    assert f"starts from {source} at its step 256; all of the weights" in said


def test_what_does_not_fit_is_named_and_stays_new(source, tmp_path, capsys):
    """Memory 7x7 has the observations of 5x5; a wider head does not fit."""
    run = begun("ppo", tmp_path, env="Gridverse/Memory-7x7-v0", head_width=24, start_from=str(source))
    ours, theirs, new = weights(run, "network"), weights(source, "average"), PPOTrainer(
        PPOTrainer.configure(SMALL | ROLLOUT | {"head_width": 24})
    ).network.state_dict()  # fmt: skip
    for name, value in ours.items():
        assert torch.equal(value, theirs[name] if theirs[name].shape == value.shape else new[name])
    assert "these weights stay new: network.head." in capsys.readouterr().out


def test_a_started_run_resumes_without_its_source(source, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    whole = begun("ppo", tmp_path / "a", start_from=str(copy))
    again = begun("ppo", tmp_path / "b", start_from=str(copy))
    train("ppo", resume=str(whole))
    shutil.rmtree(copy)
    train("ppo", resume=str(again))
    ours, theirs = weights(whole, "network"), weights(again, "network")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert load_run(whole).metrics["final/success_rate"].step[-1] == 256


def damaged(source, tmp_path):
    copy = tmp_path / "damaged"
    shutil.copytree(source, copy)
    file = next((copy / "checkpoints").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return {"start_from": str(copy)}


@pytest.mark.parametrize(("changes", "words"), [
    (lambda source, _: {"start_from": str(source), "architecture": "lstm", "width": 24}, "its memory has another form"),
    (lambda source, tmp_path: {"start_from": str(tmp_path / "none")}, "none"),
    (damaged, "damaged"),
])  # fmt: skip
def test_sources_that_cannot_be_taken_are_refused_before_a_folder_is_made(changes, words, source, tmp_path):
    with pytest.raises(UserError, match=words):
        begun("ppo", tmp_path, **changes(source, tmp_path))
    assert not (tmp_path / "run").exists()
