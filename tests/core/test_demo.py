"""The demo trains, shows and names what it made; the decision that it shows is right on known networks."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from delayed import delayed, episode
from PIL import Image
from run_folders import refused
from trained import MEMORY, contents

from dqn_memory import demo
from dqn_memory.config import TrainConfig
from dqn_memory.demo import Decision, count_wins, fresh_folder, learning_curve, main, typical, window_at
from dqn_memory.play import Score
from dqn_memory.runs.settings import read_config

TINY = f"""
total_steps = 200
environment = {{ num_envs = 4, env = "{MEMORY}", time_limit = 20 }}  # until which who has learned nothing stands still
network = {{ width = 16, heads = 2, layers = 1, context = 6 }}
learner = {{ batch_size = 4 }}
replay = {{ learning_starts = 100 }}
output = {{ log_every = 50 }}
evaluation = {{ evaluate_every = 0, final_episodes = 3 }}
compute = {{ threads = 1 }}
"""


class Rememberer:
    """Chooses action 1 at step 3 where it has seen a beacon of colour 12, else 0."""

    config = SimpleNamespace(context=6)

    def __call__(self, observation, previous_action):
        q = torch.zeros(*observation.shape[:2], 2)
        q[:, :, 0] = 0.5
        if observation.shape[1] == 4:
            q[:, -1, 1] = (observation == 12).any(2).any(1).float()
        return q


@pytest.mark.parametrize(("seen", "gridverse", "decision"), [
    ([[0, 1], [0, 13], [0, 0], [5, 6], [0, 0]], True, Decision(3, (1,), True)),
    ([[0, 1], [0, 13], [0, 0], [5, 6], [0, 0]], False, Decision(4, (), False)),
    ([[0, 1], [0, 13], [0, 0], [12, 6], [0, 0]], True, Decision(4, (1, 3), False)),  # in view: no memory needed
    ([[0, 1], [0, 0], [0, 0], [5, 6]], True, Decision(3, (), False)),
])  # fmt: skip
def test_the_decision_is_the_first_action_that_the_beacons_colour_changes(seen, gridverse, decision):
    played = replace(episode(len(seen)), observation=torch.tensor(seen))
    assert demo.find_decision(Rememberer(), played, gridverse) == decision
    assert ("another beacon colour" in demo.explain(decision)) == decision.depends


def test_windows_are_what_acting_saw(monkeypatch):
    network, played = delayed(monkeypatch, 0), episode(9)
    observation, previous = window_at(network, played, 7)
    assert observation.equal(played.observation[2:8]) and previous.equal(played.previous_action[2:8])
    assert len(window_at(network, played, 2)[0]) == 3


def test_the_episode_shown_is_the_won_one_of_middle_length():
    lengths = np.array([3, 9, 50, 4, 7])
    score = Score(np.array([False, True, True, False, True]), np.zeros(5), lengths, True)
    assert typical(score) == 1
    assert typical(Score(np.zeros(5, bool), np.zeros(5), lengths, True)) == 4


def test_wins_stand_beside_what_others_reach():
    config = read_config(TrainConfig, "demo")
    score = Score(np.array([True, True, False]), np.zeros(3), np.ones(3, int), True)
    config.check()
    said = count_wins(config, score, 1_000)
    assert "wins 2 of 3 initial states" in said and said.endswith(", best known 1.00)")


def test_the_greedy_curve_ends_with_the_final_evaluation():
    lines = [
        {"step": 50, "charts/success_rate": 0.2},
        {"step": 100, "charts/success_rate": 0.4, "eval/success_rate": 0.5},
        {"step": 200, "eval/success_rate": 0.75},
        {"step": 200, "final/success_rate": 1.0},
    ]
    figure = learning_curve(SimpleNamespace(metrics=lambda: lines), "Curve")
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[0].lines}
    assert drawn == {"while exploring": ([50, 100], [0.2, 0.4]), "greedy": ([100, 200], [0.5, 1.0])}


def test_folders_are_never_used_twice(here):
    assert str(fresh_folder()) == "runs/demo-1"
    (here / "runs" / "demo-1").mkdir(parents=True)
    assert str(fresh_folder()) == "runs/demo-2"


def test_a_demo_that_is_stopped_waits_for_the_checkpoint(here, monkeypatch):
    process = Mock(wait=Mock(side_effect=[KeyboardInterrupt, KeyboardInterrupt, 130]))
    monkeypatch.setattr(demo.subprocess, "Popen", lambda command: process)
    with pytest.raises(SystemExit, match="130"):
        main([])
    assert process.wait.call_count == 3 and not process.kill.called


@pytest.mark.long
def test_the_whole_demo(here, capfd):
    (here / "tiny.toml").write_text(TINY)
    main(["--config", "tiny.toml", "--seed", "2"])
    text, folder = capfd.readouterr().out, Path("runs/demo-1")
    assert f"of 24 initial states of {MEMORY} after 200 steps" in text
    assert re.search(r"without its memory, from the newest observation alone, it wins \d", text)
    for name in ("learning_curve.png", "attention.png", "episode.gif"):
        assert str(folder / name) in text
        assert np.asarray(Image.open(folder / name).convert("L")).std() > 5
    assert "seed = 2" in (folder / "config.toml").read_text()
    before = contents(here)  # a second demo does not touch the first
    assert "not empty" in refused(capfd, ["--config", "tiny.toml", "--run", str(folder)], main)
    assert contents(here) == before


def test_wrong_input_is_one_line_and_leaves_no_folder(here, capfd):
    for argv, message in ((["--config", "dmeo"], "did you mean 'demo'"), (["--seed", "-1"], "--seed -1")):
        assert message in refused(capfd, argv, main)
    assert not list(here.iterdir())
