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
from dqn_memory.runs.score import Score, lines
from envs.fleet import make_fleet

POLE = "CartPole-v1"
SHARE = r"\d\.\d{3} +\[\d\.\d{3}, \d\.\d{3}\]"


def test_runs_name_what_they_counted(tmp_path, capsys):
    run = trained(tmp_path / "run", env=POLE)
    out, progress = capsys.readouterr()
    assert re.search(rf"run: positive return {SHARE} on 4 episodes, return \d", out) and "success" not in out
    assert re.search(r" positive return 1 ", progress) and "success" not in progress
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert final["final/success_rate"] == 1.0  # records keep their keys
    main([str(run), "--episodes", "5"])
    text = capsys.readouterr().out
    assert re.search(rf"(?m)^positive return +{SHARE}   5 of 5$", text) and "success" not in text
    assert [line.split("   ")[0].rstrip() for line in text.splitlines()[3:]] == ["return", "length"]
    main([str(run), "--episodes", "5", "--format", "json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["success"] == 1.0 and facts["success_told"] is False
    network, config, _ = load_network(run)
    episode = play_in(config.eval_setup(torch.device("cpu")), network, seed=0)[0]
    assert (episode.outcome, episode.env_reports_success) == ("positive return", False)


def test_a_told_success_is_called_so(tmp_path, capsys):
    trained(tmp_path / "cards", env=CARDS)
    out, progress = capsys.readouterr()
    assert re.search(rf"cards: success {SHARE} on 4 episodes", out)
    assert " success " in progress and "positive" not in out + progress
    score = Score(np.array([True, False]), np.zeros(2), np.ones(2, np.int64), True)
    assert lines(score)[0] == "success     0.500"


def test_atari_tells_no_success():
    pytest.importorskip("ale_py")
    assert not make_fleet("ALE/Freeway-v5", 1, 0).reports_success
    assert make_fleet(CAR, 1, 0).reports_success
