"""The evaluation script: what it prints, what it films, what it refuses."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from run_folders import printed, refused
from scipy.stats import binomtest
from trained import CAR, CARDS, MEMORY, contents, trained

from dqn_memory.actors import NetworkPolicy
from dqn_memory.analysis.episodes import _last_drawn, _state_before, play_in, single_vector
from dqn_memory.analysis.video import MARGIN
from dqn_memory.config import TrainConfig
from dqn_memory.evaluate import EvalSetup, evaluate, load_network, main
from dqn_memory.intervals import mean_interval, wilson
from dqn_memory.network import NetworkConfig, observation_spec
from dqn_memory.play import play
from dqn_memory.runs.settings import parse
from envs import gymnasium as adapter
from envs.actions import Actions
from envs.core import Step
from envs.registry import make_world
from envs.vector import TensorVector, make_vector


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "cards", "--time-limit", "20")


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "memory", "--time-limit", "50", env=MEMORY)


@pytest.mark.parametrize("trials", [1, 24, 1000])
def test_the_interval_of_a_rate_holds_the_rate(trials):
    for successes in (0, trials // 3, trials):
        low, high = wilson(successes, trials)
        assert 0 <= low <= successes / trials <= high <= 1 and low < high
        expected = binomtest(successes, trials).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_a_world_with_finitely_many_starts_is_tried_from_each(memory, capsys):
    before = contents(memory)
    text = printed(capsys, main, memory)
    assert "exhaustive: each of the 24 initial states" in text and "[" not in text
    assert re.search(r"of 24 initial states \(random 0\.4\d, newest observation alone 1\.00, .*best known 1\.00", text)
    facts = json.loads(printed(capsys, main, "--run", memory, "--format", "json", "--episodes", 7))
    network, config, step = load_network(memory)
    score = evaluate(network, config.eval_setup(torch.device("cpu")), 7, 0)
    assert facts["episodes"] == score.episodes == 24 and facts["exhaustive"] is True and facts["step"] == step
    assert facts["success"] == score.success.mean() and facts["success_low"] is None
    assert facts["return"] == pytest.approx(score.returns.mean()) and facts["length"] == score.lengths.mean()
    other = json.loads(printed(capsys, main, memory, "--env", "Gridverse/Memory-7x7-v0", "--format", "json"))
    assert other["env"] == "Gridverse/Memory-7x7-v0" and other["episodes"] == 24  # another world of the same form
    assert contents(memory) == before


@pytest.mark.long
def test_without_its_memory_an_agent_reads_the_newest_observation_alone(memory, capsys, monkeypatch):
    network, config, _ = load_network(memory)
    remembers = config.eval_setup(torch.device("cpu"))
    read, at = [], network.at

    def noted(observation, previous_action, lengths, *more):
        read.append((lengths, previous_action[:, 0]))
        return at(observation, previous_action, lengths, *more)

    monkeypatch.setattr(network, "at", noted)
    score = evaluate(network, replace(remembers, reset_memory=True), 7, 0)
    assert all((lengths == 1).all() and (action == network.num_actions).all() for lengths, action in read)
    read.clear()
    evaluate(network, remembers, 7, 0)
    assert max(int(lengths.max()) for lengths, _ in read) == network.config.context
    facts = json.loads(printed(capsys, main, memory, "--reset-memory", "--format", "json"))
    assert facts["reset_memory"] is True and facts["return"] == pytest.approx(score.returns.mean())
    assert "forgetting everything before each step" in printed(capsys, main, memory, "--reset-memory").splitlines()[0]


def test_any_other_world_is_sampled_with_intervals(tmp_path, capsys):
    car = trained(tmp_path / "car", env=CAR)
    text = printed(capsys, main, car, "--episodes", 10, "--seed", 5)
    assert "10 episodes with seed 5, 95 % intervals" in text and text.count("[") == 3
    flags = ("--episodes", 10, "--format", "json")
    first, again, other = (json.loads(printed(capsys, main, car, *flags, "--seed", seed)) for seed in (5, 5, 6))
    assert first == again and first["length"] != other["length"]
    assert first["episodes"] == 10 and first["exhaustive"] is False
    for name in ("success", "return", "length"):
        assert first[f"{name}_low"] <= first[name] <= first[f"{name}_high"]


def test_drawn_actions_are_as_frequent_as_their_logits_say():
    rows, shares, taken = 6_000, torch.tensor([0.1, 0.2, 0.7]), []

    def step(action):
        taken.append(action)
        ended = torch.ones(rows, dtype=torch.bool)
        return Step(torch.zeros(rows, 1), torch.zeros(rows, 1), *(ended,) * 4, torch.zeros(rows), torch.ones(rows))

    vector = SimpleNamespace(num_envs=rows, device="cpu", reset=lambda: torch.zeros(rows, 1), step=step)
    actor = SimpleNamespace(
        observe=lambda *seen: None, outputs=lambda: shares.log().expand(rows, 3) + 5, device="cpu",
        network=SimpleNamespace(actions=Actions(3)),
    )  # fmt: skip
    for draws in (torch.Generator().manual_seed(0), None):
        play(vector, NetworkPolicy(actor, rows, draws), 1)
    drawn, greedy = taken
    torch.testing.assert_close(drawn.bincount(minlength=3) / rows, shares, atol=0.02, rtol=0)
    assert (greedy == 2).all()


def test_the_interval_of_a_mean():
    mean, low, high = mean_interval(np.array([1.0, 2.0, 3.0, 6.0]), exhaustive=False)
    half = 1.959964 * np.sqrt(14 / 3) / 2  # variance with n - 1
    assert (mean, low, high) == pytest.approx((3.0, 3.0 - half, 3.0 + half))
    assert mean_interval(np.array([4.0]), exhaustive=False) == (4.0, None, None)


def test_a_long_evaluation_says_how_far_it_is_and_closes_its_environments(monkeypatch, capsys):
    monkeypatch.setattr("dqn_memory.play.SILENCE", 0.0)
    opened, closed, make = [], [], adapter.make_env

    def counted(*args, **kwargs):
        env = make(*args, **kwargs)
        opened.append(env)
        monkeypatch.setattr(env, "close", lambda: closed.append(env))
        return env

    monkeypatch.setattr(adapter, "make_env", counted)
    config = parse(TrainConfig, ["--env", "CartPole-v1", "--width", "16", "--heads", "2", "--context", "8"])
    setup = config.eval_setup(torch.device("cpu"))
    network = config.network.build(observation_spec(setup.vector(1, 0)[0].observation_space), 2)
    opened.clear()
    evaluate(network, setup, episodes=3, seed=1)
    assert len(opened) == 3 and closed == opened
    assert capsys.readouterr().err.startswith("evaluation 0/3 episodes, step 1\nevaluation 0/3 episodes, step 2\n")


@pytest.mark.parametrize(("suffix", "kind"), [(".gif", "GIF"), (".png", "PNG")])
def test_a_video_shows_every_step_and_the_end(cards, capsys, tmp_path, suffix, kind):
    path = tmp_path / "new" / f"episodes{suffix}"
    printed(capsys, main, cards, "--episodes", 2, "--video", path, "--video-episodes", 2)
    network, config, _ = load_network(cards)
    setup = config.eval_setup(torch.device("cpu"))
    first, second = play_in(setup, network, seed=0, episodes=2, draw=True)
    with Image.open(path) as video:
        # a GIF merges pages that look alike, and an episode's steps all differ in their number
        assert video.format == kind and video.n_frames == len(first) + len(second) + 2
        video.seek(3)
        page = np.asarray(video.convert("RGB")).astype(int)
    frame = first.frames[3].astype(int)
    shown = page[MARGIN : MARGIN + frame.shape[0], MARGIN : MARGIN + frame.shape[1]]
    assert np.abs(shown - frame).mean() < 4  # but for a GIF's palette


def test_a_video_never_replaces_a_file_unasked(cards, capsys, tmp_path):
    path = tmp_path / "precious.gif"
    path.write_bytes(b"precious")
    assert "--overwrite" in refused(capsys, [str(cards), "--episodes", "2", "--video", str(path)], main)
    assert path.read_bytes() == b"precious"
    printed(capsys, main, cards, "--episodes", 2, "--video", path, "--overwrite")
    assert path.read_bytes().startswith(b"GIF8")


def test_other_gymnasium_worlds_are_filmed_where_they_draw():
    setup = EvalSetup("FrozenLake-v1", {}, torch.device("cpu"))
    vector = single_vector(setup, seed=0, draw=True)
    assert vector.rows.envs[0].render_mode == "rgb_array"
    assert single_vector(setup, seed=0).rows.envs[0].render_mode is None


@pytest.mark.parametrize("env", [MEMORY, CAR, CARDS])
def test_the_last_picture_is_the_world_after_the_last_action(env):
    vector = TensorVector(make_world(env), 1, seed=4)
    vector.reset()
    for number in range(30):
        before, action = _state_before(vector), torch.tensor([number % vector.num_actions])
        step = vector.step(action)
        if not bool(step.done):  # then the vector still shows that world, and must agree
            frame, text = _last_drawn(vector, before, action, None)
            np.testing.assert_array_equal(frame, vector.frame(0))
            assert text == vector.world.text(vector.state, 0)


WRONG = {
    "no folder": ([], "run folder"),
    "two folders": (["RUN", "--run", "RUN"], "one run folder"),
    "not a run": (["NOWHERE"], "no run folder"),
    "seed": (["RUN", "--seed", "-1"], "--seed -1"),
    "video suffix": (["RUN", "--video", "film.mp4"], ".gif"),
    "no video to replace": (["RUN", "--overwrite"], "--video"),
    "unknown world": (["RUN", "--env", "POMDP/CarFlog-v0"], "CarFlag"),
    "other form": (["RUN", "--env", CAR], "continuous observations of shape"),
    "device": (["RUN", "--device", "abacus"], "abacus"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line_and_changes_nothing(cards, capsys, here, name):
    argv, message = WRONG[name]
    before = contents(cards)
    argv = [{"RUN": str(cards), "NOWHERE": str(here / "nowhere")}.get(word, word) for word in argv]
    assert message in refused(capsys, argv, main)
    assert contents(cards) == before and not list(here.iterdir())


def test_a_policy_is_told_where_episodes_begin_also_after_a_time_limit():
    told, still = [], torch.zeros(3, dtype=torch.int64)
    policy = SimpleNamespace(act=lambda observation, reset: told.append(reset.tolist()) or (still, None))
    play(make_vector(CAR, 3, 0, env_kwargs={"time_limit": 5}), policy, 2)
    assert told == [[t % 5 == 0] * 3 for t in range(10)]


def test_as_many_episodes_are_scored_as_were_asked_for(monkeypatch):
    monkeypatch.setattr("dqn_memory.evaluate.MAX_EVAL_ENVS", 4)
    setup = EvalSetup(CAR, {"time_limit": 5}, torch.device("cpu"))
    vector = setup.vector(6, 0)[0]
    network = NetworkConfig(width=16, heads=2, context=4).build(
        observation_spec(vector.observation_space), vector.num_actions
    )
    assert vector.num_envs == 4 and evaluate(network, setup, 6, 0).episodes == 6
