"""The suite from Python: it does what the command line does, and its agents play in any loop."""

import random
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run_folders import error_of, metrics
from trained import CARDS, MEMORY, trained

from dqn_memory.agent import Agent
from dqn_memory.api import evaluate, load_run, train
from dqn_memory.runs.errors import UserError

SMALL = {
    "width": 16, "heads": 2, "layers": 1, "context": 8, "num_envs": 4, "batch_size": 8, "learning_starts": 64,
    "log_every": 100, "target_update_every": 20, "threads": 1, "epsilon_steps": 300, "evaluate_every": 0,
    "episodes": 4, "final_episodes": 4, "total_steps": 240, "learning_rate": 0.003, "env": CARDS,
    "memory_ablation": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Train, once each, an agent of every kind, and give its folder."""
    folder, pixel = tmp_path_factory.mktemp("runs"), "Pixel/BlinkingCatch-v0"
    short = {"time_limit": 12, "total_steps": 100, "max_episode_steps": 12}
    settings = {
        "q_network": SMALL | {"env": MEMORY},
        "unizero": {"config": "unizero/smoke", "env": MEMORY, "simulations": 12, **short},
        "glam": {"config": "glam/smoke", "env": pixel, "stop_at_return": None},
    }
    return cache(lambda kind: train(kind, **settings[kind], run=folder / kind)[0])


def test_settings_by_name_are_the_command_line(tmp_path):
    path, score = train(**SMALL, run=tmp_path / "api")
    assert metrics(path) == metrics(trained(tmp_path / "main"))
    assert score.episodes == 4 and score.success.mean() == metrics(path)[-1]["final/success_rate"]
    longer, _ = train(resume=path, total_steps=260)
    assert longer == path and metrics(path)[-1]["step"] == 260


def test_presets_lie_under_settings_and_none_is_a_value(tmp_path):
    short = SMALL | {"config": ["memory-7x7", "prior-local"], "prepopulate": 0, "local_window": 4, "time_limit": None}
    config = load_run(train(**short, run=tmp_path / "run")[0]).config
    assert config["network"]["prior"]["kind"] == "local" and config["learner"]["n_step"] == 3
    assert config["environment"]["env"] == CARDS


@pytest.mark.parametrize(("settings", "words"), [
    ({"total_step": 5}, "unknown setting 'total_step'; did you mean 'total_steps'"),
    ({"total_steps": "many"}, "total_steps must be an integer"),
    ({"num_envs": np.int64(0)}, "--num-envs 0 must be at least 1"),
    ({"total_steps": {1: 2}}, "total_steps must be an integer, not a table"),
    ({"config": "dmo"}, "did you mean 'demo'"),
    ({"kind": "q"}, "unknown kind of run 'q'"),
    ({"resume": "nowhere"}, "nowhere is no run folder"),
])  # fmt: skip
def test_what_cannot_be_trained_is_one_sentence(settings, words):
    assert words in error_of(train, **settings)


def test_metrics_are_arrays(made, monkeypatch):
    data = load_run(made("q_network"))
    step, loss = data.metrics["losses/td_loss"]
    assert step.dtype == np.int64 and step.tolist() == [100, 200] and np.isfinite(loss).all()
    assert data.config["environment"]["env"] == MEMORY and "torch" in str(data.environment)
    pandas = pytest.importorskip("pandas")
    frame = data.frame()
    assert isinstance(frame, pandas.DataFrame) and frame.index.name == "step"
    assert frame["losses/td_loss"].dropna().tolist() == loss.tolist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install pandas" in error_of(data.frame)


@pytest.mark.parametrize(("file", "text"), [("config.toml", "]"), ("metrics.jsonl", '{"step": 9, "a": "b"}\n')])
def test_a_damaged_file_of_a_run_is_named(made, tmp_path, file, text):
    run = shutil.copytree(made("q_network"), tmp_path / "run")
    with (run / file).open("a") as opened:
        opened.write(text)
    assert str(run / file) in error_of(load_run, run)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("sync", [False, True])
def test_every_autoreset_mode_plays_the_same_episodes(made, mode, sync):
    agent = Agent.load(made("q_network"))
    singles = [agent.play(gymnasium.make(MEMORY, time_limit=20), 3, seed=seed) for seed in range(4)]
    if sync:
        envs = SyncVectorEnv([lambda: gymnasium.make(MEMORY, time_limit=20)] * 4, autoreset_mode=mode)
    else:
        envs = gymnasium.make_vec(MEMORY, num_envs=4, autoreset_mode=mode, time_limit=20)
    score = agent.play(envs, 12, seed=0)
    for name in ("success", "returns", "lengths"):
        wanted = np.stack([getattr(single, name) for single in singles], 1)  # (rounds, N)
        np.testing.assert_allclose(getattr(score, name).reshape(3, 4), wanted)
    assert score.env_reports_success
    assert gymnasium.make_vec(MEMORY, num_envs=4).metadata["autoreset_mode"] is AutoresetMode.SAME_STEP  # unless told


def test_where_no_success_is_told_the_score_says_so(tmp_path):
    agent = Agent.load(trained(tmp_path / "run", env="CartPole-v1"))
    for env in (gymnasium.make("CartPole-v1"), gymnasium.make_vec("CartPole-v1", num_envs=2)):
        score = agent.play(env, 4, seed=1)
        assert not score.env_reports_success and (score.returns == score.lengths).all()
    for wrong, words in (((0,), "episodes is 0"), ((2.5,), "episodes is 2.5"), ((1, -1), "seed is -1; it must be 0")):
        assert words in error_of(agent.play, gymnasium.make("CartPole-v1"), *wrong)
    assert "give one, such as gymnasium.make('CartPole-v1')" in error_of(agent.play, "CartPole-v1")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["unizero", "glam"])
def test_world_models_act_alike(made, kind):
    run = made(kind)
    env = gymnasium.make(load_run(run).config["environment"]["env"], time_limit=12)
    first, second = (Agent.load(run, seed=3) for _ in range(2))
    other = Agent.load(run, seed=3)
    observation, differs = env.reset(seed=0)[0], False
    for step in range(12):
        action = first.act(observation, step == 0)
        assert action == second.act(observation, step == 0) and env.action_space.contains(action)
        np.testing.assert_array_equal(first.q, second.q)
        np.testing.assert_allclose(first.q.sum(), 1, rtol=1e-5)
        other.act(observation, True)
        differs |= not np.array_equal(first.q, other.q)  # the one remembers, the other is told to forget
        observation = env.step(action)[0]
    assert differs
    score = first.play(env, 3, seed=0)
    assert score.episodes == 3 and (score.lengths <= 12).all()
    assert evaluate(run, num_eval_envs=2, episodes_per_env=1).score.episodes == 2


def test_a_metric_that_was_not_recorded_is_one_sentence(made):
    data = load_run(made("q_network"))
    with pytest.raises(UserError, match="unknown metric 'eval/succes'; did you mean"):
        data.metrics["eval/succes"]
    assert data.metrics.get("eval/succes") is None


def test_options_of_an_evaluation_are_those_of_the_script(made):
    run = made("q_network")
    assert evaluate(run).score.exhaustive and evaluate(run, reset_memory=True).score.episodes == 24
    wrong = [
        ({"episode": 3}, "unknown option 'episode'"), ({"simulations": 3}, "--simulations is not"),
        ({"policy": "Sampled"}, "did you mean 'sampled'"), ({"episodes": 5.5}, "episodes must be an integer"),
    ]  # fmt: skip
    for options, words in wrong:
        assert words in error_of(evaluate, run, **options)


@pytest.mark.parametrize(("option", "values"), [
    ("seed", (-1, 1.5, "1", None, True, float("nan"))), ("rows", (0, -1, 1.5, "2", True, 10**20, [2])),
])  # fmt: skip
def test_numbers_that_an_agent_is_loaded_with_are_whole(made, option, values):
    run = made("q_network")
    for value in values:
        assert f"{option} is {value!r}" in error_of(Agent.load, run, **{option: value})
    for value in (1, 2.0, np.int64(1), torch.tensor(2)):
        Agent.load(run, **{option: value})


def test_numbers_that_an_agent_plays_by_are_whole(made):
    agent, env = Agent.load(made("q_network")), gymnasium.make(MEMORY, time_limit=5)
    for episodes, seed, name in (("3", 0, "episodes"), (None, 0, "episodes"), (1, 0.5, "seed"), (1, "x", "seed")):
        assert f"{name} is " in error_of(agent.play, env, episodes, seed)
    score = agent.play(env, 2.0, np.int64(3))
    assert score.episodes == 2 and score.lengths.tolist() == agent.play(env, 2, 3).lengths.tolist()


def test_observations_may_be_tensors_of_any_kind_but_must_fit_into_float32(tmp_path):
    run, _ = train(**SMALL | {"env": "CartPole-v1", "total_steps": 80, "learning_starts": 40}, run=tmp_path / "run")
    agent, plain = Agent.load(run), np.array([0.5, -1.0, 0.25, 2.0], np.float32)
    tensor = torch.from_numpy(plain)
    agent.act(plain, True)
    expected = agent.q
    for given in (tensor.bfloat16(), tensor.double(), tensor.clone().requires_grad_(), tensor.to_sparse(), list(plain)):
        agent.act(given, True)
        np.testing.assert_array_equal(agent.q, expected)
    assert "finite" in error_of(agent.act, [1e300] * 4, True)
    assert "no array" in error_of(agent.act, [tensor.clone().requires_grad_()] * 2, True)


@pytest.mark.parametrize(("settings", "word"), [
    ({"kind": None}, "None"), ({"kind": 5}, "5"), ({"config": 5}, "config is a int"), ({"run": ""}, "--run ''"),
    ({"run": "a\0b"}, "--run"),
    ({"random_start_steps": 10**20}, "--random-start-steps"),
])  # fmt: skip
def test_a_setting_of_another_type_or_size_is_one_sentence(settings, word):
    assert word in error_of(train, **SMALL | settings)


def test_another_number_of_environments_begins_where_all_are_reset(made):
    agent, observation = Agent.load(made("q_network")), gymnasium.make(MEMORY).reset(seed=0)[0]
    agent.act(observation, True)
    assert "remembers 1 environments" in error_of(agent.act, np.stack([observation] * 3), np.array([True, True, False]))
    assert agent.act(np.stack([observation] * 3), np.ones(3, bool)).shape == (3,)


def shared():
    """What a caller has in common with the calls that it makes, and must find as it was."""
    return {
        "random": (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()),
        "threads": torch.get_num_threads(),
        "precision": (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
    }  # fmt: skip


class Shaking(gymnasium.Wrapper):
    """An environment that changes what it can reach."""

    def reset(self, **kwargs):
        torch.rand(1), np.random.rand(), random.random()
        return super().reset(**kwargs)


@contextmanager
def unusual():
    """A caller with settings of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1), torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_num_threads(threads), torch.set_float32_matmul_precision("highest")


def test_a_caller_keeps_its_settings_and_they_change_no_number(tmp_path, monkeypatch):
    """After training, evaluating and loading, and after a training that fails on its way."""
    shaking = gymnasium.envs.registration.EnvSpec("Shaking-v0", lambda: Shaking(gymnasium.make("CartPole-v1")))
    monkeypatch.setitem(gymnasium.registry, "Shaking-v0", shaking)
    settings = SMALL | {"env": "Shaking-v0", "time_limit": 20}
    first, _ = train(**settings, run=tmp_path / "first")
    with unusual():
        before = shared()
        second, _ = train(**settings, run=tmp_path / "second")
        assert shared() == before
        found = evaluate(second, episodes=2, threads=1)
        assert shared() == before
        assert Agent.load(second).act(np.zeros((2, 4), np.float32), True).shape == (2,)
        assert shared() == before
        assert "not finite" in error_of(train, **settings | {"learning_rate": 1e30}, run=tmp_path / "third")
        assert shared() == before
    assert metrics(first) == metrics(second)
    assert found.score.returns.tolist() == evaluate(first, episodes=2).score.returns.tolist()


def test_calls_in_several_threads_train_as_alone(tmp_path):
    settings = SMALL | {"total_steps": 80, "learning_starts": 40, "learning_rate": 0.001}
    alone = [metrics(train(**settings, seed=seed, run=tmp_path / f"alone-{seed}")[0]) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(train, **settings, seed=seed, run=tmp_path / f"{seed}") for seed in range(3)]
    assert [metrics(run.result()[0]) for run in runs] == alone
