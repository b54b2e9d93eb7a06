"""Where a world tells no success, what is printed says that a return above 0 was counted in its place."""

import json
import re

import numpy as np
import pytest
import torch
from trained import CAR, CARDS, trained

from dqn_memory.agent import load_network
from dqn_memory.analysis.episodes import play_in
from dqn_memory.evaluate import main
from dqn_memory.runs.score import Score, env_reports_success, lines
from envs.fleet import make_fleet

POLE = "CartPole-v1"
SHARE = r"\d\.\d{3} +\[\d\.\d{3}, \d\.\d{3}\]"


def said(capsys, *argv):
    capsys.readouterr()
    main([str(word) for word in argv])
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def pole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("pole") / "run", env=POLE)


def test_training_names_what_it_counted(tmp_path, capsys):
    run = trained(tmp_path / "run", env=POLE)
    out, progress = capsys.readouterr()
    assert re.search(rf"run: positive return {SHARE} on 4 episodes, return \d", out) and "success" not in out
    assert re.search(r" positive return 1 ", progress) and "success" not in progress
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert final["final/success_rate"] == 1.0  # records keep their keys
    trained(tmp_path / "cards", env=CARDS)
    out, progress = capsys.readouterr()
    assert re.search(rf"cards: success {SHARE} on 4 episodes", out)
    assert " success " in progress and "positive" not in out + progress


def test_evaluation_names_what_it_counted(pole, capsys):
    text = said(capsys, pole, "--episodes", 5)
    assert re.search(rf"(?m)^positive return +{SHARE}   5 of 5$", text) and "success" not in text
    names = [line.split("   ")[0].rstrip() for line in text.splitlines()[2:]]
    assert names[1:] == ["return", "length"]
    facts = json.loads(said(capsys, pole, "--episodes", 5, "--format", "json"))
    assert facts["success"] == 1.0 and facts["success_told"] is False


def test_a_told_success_is_called_so():
    score = Score(np.array([True, False]), np.zeros(2), np.ones(2, np.int64), True)
    assert lines(score)[0] == "success     0.500"


def test_an_episode_names_what_it_counted(pole):
    network, config, _ = load_network(pole)
    episode = play_in(config.eval_setup(torch.device("cpu")), network, seed=0)[0]
    assert (episode.outcome, episode.env_reports_success) == ("positive return", False)


def test_atari_tells_no_success():
    pytest.importorskip("ale_py")
    assert not env_reports_success(make_fleet("ALE/Freeway-v5", 1, 0))
    assert env_reports_success(make_fleet(CAR, 1, 0))
