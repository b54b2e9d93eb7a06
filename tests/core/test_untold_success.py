"""Where an environment defines no success, what is printed is its return."""

import json
import re

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import printed
from trained import CAR, CARDS, trained

from dqn_memory.analysis.episodes import play_in
from dqn_memory.evaluate import load_network, main
from dqn_memory.play import Score, lines
from envs.baselines.__main__ import main as baselines
from envs.baselines.reference import read_references
from envs.checker import check_registered
from envs.memoryless import main as memoryless
from envs.vector import make_vector

POLE, FILE = "CartPole-v1", "POMDP/File-v0"
RANGE = r"-?\d+\.\d{2} \[-?\d+\.\d{2}, -?\d+\.\d{2}\]"
SHARE = r"\d\.\d{3} +\[\d\.\d{3}, \d\.\d{3}\]"


def test_runs_name_what_they_counted(tmp_path, capsys):
    run = trained(tmp_path / "run", env=POLE)
    out, progress = capsys.readouterr()
    assert re.search(rf"run: return {RANGE} on 4 episodes, length \d", out) and "success" not in out
    assert re.search(r" return \d", progress) and "success" not in progress
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert final["final/success_rate"] == 1.0  # records keep their keys
    text = printed(capsys, main, run, "--episodes", 5)
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["return", "length"] and "success" not in text
    facts = json.loads(printed(capsys, main, run, "--episodes", 5, "--format", "json"))
    assert facts["success"] == 1.0 and facts["success_told"] is False
    network, config, _ = load_network(run)
    episode = play_in(config.eval_setup(torch.device("cpu")), network, seed=0)[0]
    assert (episode.outcome, episode.env_reports_success) == (f"return {episode.episode_return:.2f}", False)


def test_a_told_success_is_called_so(tmp_path, capsys):
    trained(tmp_path / "cards", env=CARDS)
    out, progress = capsys.readouterr()
    assert re.search(rf"cards: success {SHARE} on 4 episodes", out)
    assert " success " in progress
    score = Score(np.array([True, False]), np.zeros(2), np.ones(2, np.int64), True)
    assert lines(score)[0] == "success     0.500"
    assert str(score) == "success on 1 of 2 initial states, return 0.00, length 1.0"


LISTEN = """discount: 0.95
values: {values}
states: left right
actions: wait stop
observations: 1
T: wait identity
T: stop {stop}
O: * : * : * 1.0
R: * : left : * : * {reward}
"""


@pytest.mark.parametrize(
    ("stop", "values", "reward", "defined"),
    [("identity", "reward", 1, False), (": * reset", "reward", 1, True), (": * reset", "cost", 1, False)],
)
def test_a_model_without_ends_or_gains_defines_no_success(tmp_path, stop, values, reward, defined):
    (tmp_path / "listen.pomdp").write_text(LISTEN.format(stop=stop, values=values, reward=reward))
    options = {"path": str(tmp_path / "listen.pomdp"), "time_limit": 3}
    assert make_vector(FILE, 1, 0, env_kwargs=options).reports_success is defined
    env = gymnasium.make(FILE, **options)
    env.reset(seed=0)
    assert [("success" in env.step(0)[4]) for _ in range(3)] == [False, False, defined]
    check_registered(FILE, **options)


def test_baselines_of_such_a_model_are_returns(tmp_path, capsys):
    (tmp_path / "listen.pomdp").write_text(LISTEN.format(stop="identity", values="reward", reward=1))
    model = ["--env", FILE, "--options", "path", str(tmp_path / "listen.pomdp"), "time_limit", "3"]
    baselines([*model, "--episodes", "20", "--write", str(tmp_path)])
    memoryless([*model, "--episodes", "20", "--restarts", "1", "--fresh", "10", "--updates", "2"])
    text = capsys.readouterr().out
    assert re.search(r"random return \d.* best return \d", text) and "success" not in text
    assert (
        read_references(tmp_path / "baselines.json")[f"{FILE} (path={tmp_path / 'listen.pomdp'}, time_limit=3)"].summary
        in text
    )


def test_atari_tells_no_success():
    pytest.importorskip("ale_py")
    assert not make_vector("ALE/Freeway-v5", 1, 0).reports_success
    assert make_vector(CAR, 1, 0).reports_success
