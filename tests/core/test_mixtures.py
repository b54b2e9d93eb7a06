"""Training in several environments at once, and evaluation in those that were never trained in."""

import json
from dataclasses import fields

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import assert_same_run, error_of, metrics, printed
from trained import CAR

from dqn_memory.agent import Agent
from dqn_memory.api import evaluate, train
from dqn_memory.evaluate import evaluate as evaluate_network
from dqn_memory.evaluate import evaluate_each, load_network
from dqn_memory.evaluate import main as evaluate_main
from dqn_memory.inspect import main as inspect_main
from dqn_memory.play import MeanScore, Score
from dqn_memory.ppo import PPOTrainer
from dqn_memory.runs.base_config import EnvironmentConfig
from dqn_memory.watch import main as watch_main
from envs import Entry, register
from envs.actions import InterfaceConfig
from envs.core import Step
from envs.registry import WORLDS
from envs.vector import MixedVector, make_vector

SIZES = {size: f"Short/Memory-{size}x{size}-v0" for size in (5, 7, 9)}
MEMORY, LARGER, UNSEEN = SIZES.values()
GYMNASIUM = {"MiniGrid-MemoryS7-v0": 2, "MiniGrid-MemoryS9-v0": 3}
SMALL = {
    "total_steps": 256, "num_envs": 4, "log_every": 64, "evaluate_every": 0, "episodes": 4, "final_episodes": 4,
    "width": 16, "track": ("none",), "threads": 1, "memory_ablation": False, "final_lr_fraction": 1.0,
}  # fmt: skip
ROLLOUT = {"architecture": "gru", "rollout_steps": 16, "minibatches": 2}
TRAINERS = {
    "ppo": ROLLOUT,
    "pqn": ROLLOUT,
    "q_network": {"architecture": "gru", "context": 8, "learning_starts": 64, "batch_size": 8},
}


@pytest.fixture(scope="module", autouse=True)
def short_episodes():
    """Corridors whose episodes are short, only for this file."""
    worlds, known = dict(WORLDS), dict(gymnasium.registry)
    for size, id in SIZES.items():
        register(id, Entry("envs.gridverse.tasks:Memory", {"size": size, "time_limit": 8 * size}))
    gymnasium.register("Rows/FourWays-v0", FourWays)
    gymnasium.register("Rows/Three-v0", Rows)
    gymnasium.register("Rows/Two-v0", Rows, kwargs={"first": 2})
    gymnasium.register("Rows/Free-v0", Rows)
    gymnasium.register("Rows/Masked-v0", Rows, kwargs={"masks": True})
    yield
    for registry, before in ((WORLDS, worlds), (gymnasium.registry, known)):
        registry.clear()
        registry.update(before)


def parts(envs, seeds=(11, 12, 13)):
    pairs = zip(envs.items(), seeds, strict=False)
    return {
        id: make_vector(id, rows, seed, interface=InterfaceConfig("image" if id in GYMNASIUM else None))
        for (id, rows), seed in pairs
    }


def fields_of(step, rows=slice(None)):
    return [getattr(step, field.name)[rows] for field in fields(Step)]


@pytest.mark.parametrize("envs", [{MEMORY: 3, LARGER: 2, "Gridverse/Memory-NineRooms-13x13-v0": 1}, GYMNASIUM])
def test_rows_of_a_mixture_are_those_of_the_single_environments(envs):
    mixed, single = MixedVector(parts(envs)), list(parts(envs).values())
    assert torch.equal(mixed.reset(), torch.cat([each.reset() for each in single]))
    draws = torch.Generator().manual_seed(0)
    for number in range(60):
        if number == 30:  # a saved state goes on in another mixture
            saved, mixed = mixed.state_dict(), MixedVector(parts(envs, (1, 2, 3)))
            mixed.reset()
            mixed.load_state_dict(saved)
        action = torch.randint(mixed.num_actions, (mixed.num_envs,), generator=draws)
        step = mixed.step(action)
        alone = [each.step(chosen) for each, chosen in zip(single, action.split(mixed.sizes), strict=True)]
        for ours, theirs in zip(fields_of(step), zip(*map(fields_of, alone), strict=True), strict=True):
            assert torch.equal(ours, torch.cat(theirs))
    assert mixed.num_envs == sum(envs.values())


@pytest.mark.parametrize(("texts", "copies", "rows"), [
    (("A", "B"), 5, (3, 2)),
    (("A=0.5", "B", "C"), 8, (4, 2, 2)),
    (("A=0.7", "B=0.3"), 10, (7, 3)),
    (("A=0.05", "B=0.95"), 30, (2, 28)),  # the larger rest gets the row, the first of equal ones
    (("A",), 3, (3,)),
    (tuple("ABCDEFG"), 7, (1,) * 7),
])  # fmt: skip
def test_copies_are_shared_out(texts, copies, rows):
    config = EnvironmentConfig(texts, copies)
    config.check()
    assert [each.num_envs for each in config.each()] == list(rows)
    assert [each.env for each in config.each()] == [text[0] for text in texts]


@pytest.mark.parametrize(("envs", "words"), [
    ((MEMORY, CAR), ("cannot be mixed: observations of the first are", CAR)),
    (("CartPole-v1", "Rows/FourWays-v0"), ("cannot be mixed: actions of the first are 2 actions", "4 actions")),
    ((f"{MEMORY}=0.5", f"{LARGER}=0.6"), ("the shares must be above 0 and add up to 1",)),
    ((f"{MEMORY}=1", LARGER), ("leave a part for the other 1",)),
    ((f"{MEMORY}=-1", LARGER), ("above 0",)),
    ((f"{MEMORY}=much", LARGER), ("'much' is no share", f"{MEMORY}=0.5")),
    ((MEMORY, LARGER, MEMORY), ("names an environment twice",)),
    ((f"{MEMORY}=0.05", LARGER), ("--num-envs 4 leaves no copy for", MEMORY)),
    ((f"{MEMORY}=nan", LARGER), ("'nan' is no share",)),
    ((MEMORY, f"envs:{MEMORY}"), ("names an environment twice",)),
    ((), ("names no environment",)),
    (("Rows/Three-v0", "Rows/Two-v0"), ("observations of the first are entries a Box(-1.0, 1.0, (3,)",)),
    (("Rows/Free-v0", "Rows/Masked-v0"), ("cannot be mixed: only one of them masks actions",)),
    (("Rows/Masked-v0", "Rows/Free-v0"), ("cannot be mixed: only one of them masks actions",)),
    ((MEMORY, "MiniGrid-MemoryS7-v0"), ("all of the first's observation, the entry 'image' of the second's",)),
])  # fmt: skip
def test_what_cannot_be_mixed_is_one_sentence(envs, words, tmp_path):
    said = error_of(train, "ppo", env=envs, run=str(tmp_path / "run"), **SMALL, **ROLLOUT)
    assert all(word in said for word in words), said
    assert not (tmp_path / "run").exists()


class Rows(gymnasium.Env):
    """Two entries of five numbers in all, divided at `first`; with masks of three actions if it `masks`."""

    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, first=3, masks=False):
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict({"a": box(-1, 1, (first,)), "b": box(-1, 1, (5 - first,))})
        self.info = {"action_mask": np.ones(3, np.int8)} if masks else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {name: np.zeros(box.shape, np.float32) for name, box in self.observation_space.items()}, self.info

    def step(self, action):
        return self.reset()[0], 0.0, bool(action), False, self.info


class FourWays(gymnasium.Env):
    """Observations of CartPole, and four actions."""

    observation_space = gymnasium.make("CartPole-v1").observation_space
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, bool(action), False, {}


@pytest.mark.parametrize("kind", ["unizero", "glam"])
def test_world_models_take_one_environment(kind, tmp_path):
    said = error_of(train, kind, config=f"{kind}/smoke", env=[MEMORY, LARGER], run=str(tmp_path / "run"))
    assert f"{kind} learns one environment" in said


def test_an_environment_of_another_form_cannot_be_evaluated_in(tmp_path):
    said = error_of(train, "ppo", env=MEMORY, eval_env=[CAR], run=str(tmp_path / "run"), **SMALL, **ROLLOUT)
    assert said.startswith(f"--eval-env {CAR} has continuous observations") and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("envs", "other", "words"), [
    (MEMORY, f"{LARGER}=0.5", f"only environments of training have a share; name {LARGER}"),
    ("Rows/Free-v0", "Rows/Masked-v0", "only one of them masks actions"),
])  # fmt: skip
def test_another_environment_of_evaluations_that_cannot_be_one(envs, other, words, tmp_path):
    said = error_of(train, "ppo", env=envs, eval_env=other, run=str(tmp_path / "run"), **SMALL, **ROLLOUT)
    assert words in said and not (tmp_path / "run").exists()


def test_environments_of_evaluations_replace_those_of_a_preset():
    def others(*flags):
        return PPOTrainer.configure(["--config", "ppo/mazes", *flags]).evaluation.others

    assert others() == ("Gridverse/Memory-11x11-v0",)
    assert others("--eval-env", UNSEEN, "--eval-env", LARGER, "--eval-env", UNSEEN) == (UNSEEN, LARGER)
    assert others("--eval-env", "none") == ()


def test_every_environment_of_an_evaluation_has_draws_of_its_own(run):
    """With equal ones, the outcomes in mazes of two sizes would not be independent."""
    network, config, _ = load_network(run[0])
    setup = config.eval_setup(torch.device("cpu"))
    score = evaluate_each(network, {"first": setup, "second": setup}, ("first", "second"), 40, 0)
    first, second = (part.lengths for part in score.parts.values())
    assert np.array_equal(first, evaluate_network(network, setup, 40, 0).lengths)
    assert not np.array_equal(first, second)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture") / "run"
    envs = {"env": [f"{MEMORY}=0.75", LARGER], "eval_env": [UNSEEN]}
    return train("ppo", run=str(folder), **envs, **(SMALL | {"total_steps": 2048}), **ROLLOUT)


def test_metrics_have_the_mean_and_every_environment(run):
    path, score = run
    assert isinstance(score, MeanScore) and (list(score.parts), list(score.others)) == ([MEMORY, LARGER], [UNSEEN])
    lines = metrics(path)
    last = lines[-1]
    for name in ("success_rate", "episodic_return", "episodic_length"):
        each = [last[f"final/{name}/{id}"] for id in (MEMORY, LARGER)]
        assert last[f"final/{name}"] == pytest.approx(np.mean(each))
        assert f"final/{name}/{UNSEEN}" in last
    assert last["final/episodes"] == 8 and last[f"final/episodes/{UNSEEN}"] == 4
    lengths = {id: [line[name] for line in lines if (name := f"charts/episodic_length/{id}") in line]
               for id in (MEMORY, LARGER)}  # fmt: skip
    assert min(lengths[LARGER]) >= 4 and np.mean(lengths[MEMORY]) < np.mean(lengths[LARGER])
    assert not any(name.startswith("charts/") and UNSEEN in name for line in lines for name in line)


def score(success, exhaustive=False):
    numbers = np.array(success, bool)
    return Score(numbers, numbers.astype(float), np.full(len(numbers), 3), exhaustive)


def test_a_mean_over_environments_counts_each_alike():
    mean = MeanScore.of({"A": score([1] * 90 + [0] * 10), "B": score([0] * 20)}, {"C": score([1])})
    assert mean.success_rate == pytest.approx(0.45) and mean.episodes == 120
    low, high = mean.interval()
    # the spread of the mean is half the root of the sum of squared spreads, of which Wilson's are close for B
    assert low < 0.45 < high and 0.2 < high - low < 0.26
    assert mean.scalars()["eval/episodic_return"] == pytest.approx(0.45)
    exact = MeanScore.of({"A": score([1, 0], True), "B": score([1], True)}, {})
    assert exact.interval() == (0.75, 0.75) and exact.measures()["success"][1] is None


def test_a_goal_is_reached_in_every_environment(run):
    trainer = PPOTrainer(
        PPOTrainer.configure(
            {"env": [MEMORY, LARGER], "stop_at_success": 0.8, **SMALL, **ROLLOUT, "evaluate_every": 64}
        )
    )
    good, bad = score([1] * 10), score([1] * 7 + [0] * 3)
    assert trainer.reached_goal(MeanScore.of({MEMORY: good, LARGER: good}, {UNSEEN: bad}))
    assert not trainer.reached_goal(MeanScore.of({MEMORY: good, LARGER: bad}, {}))


def test_scripts_know_runs_of_several_environments(run, tmp_path, capsys):
    path, _ = run
    found = evaluate(path, episodes=6, policy="sampled")
    assert found.env == f"{MEMORY} + {LARGER}"
    assert [found.score.parts[id].episodes for id in (MEMORY, LARGER)] == [6, 6]
    text = printed(capsys, evaluate_main, path, "--episodes", 6)
    assert text.count(f"{UNSEEN} (not trained in): success") == 2
    facts = json.loads(printed(capsys, evaluate_main, path, "--episodes", 6, "--format", "json"))
    assert list(facts["sampled"]["environments"]) == [MEMORY, LARGER]
    assert facts["sampled"]["not_trained_in"][UNSEEN]["episodes"] == 6
    alone = evaluate(path, env=MEMORY, episodes=6, policy="sampled")
    assert np.array_equal(alone.score.returns, found.score.parts[MEMORY].returns)
    assert evaluate(path, env=LARGER, episodes=6).env == LARGER
    watch_main([str(path), "--env", LARGER, "--on", "terminal", "--delay", "0"])
    inspect_main([str(path), "--env", UNSEEN, "--episodes", "1", "--no-frames"])
    assert json.loads((path / "inspect" / "inspect.json").read_text())["env"] == UNSEEN
    played = Agent.load(path).play(gymnasium.make(f"envs:{LARGER}"), 3, seed=1)
    assert played.episodes == 3


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_resumed_mixture_equals_an_uninterrupted_one(kind, tmp_path):
    """Started from the weights of another run, too."""
    source, _ = train(kind, env=UNSEEN, run=str(tmp_path / "source"), **SMALL, **TRAINERS[kind])
    settings = SMALL | TRAINERS[kind] | {"env": [MEMORY, LARGER], "start_from": str(source), "checkpoint_every": 128}
    whole, _ = train(kind, run=str(tmp_path / "whole"), **settings)
    part, _ = train(kind, run=str(tmp_path / "part"), **(settings | {"total_steps": 128}))
    train(kind, resume=str(part), total_steps=256)
    assert_same_run(whole, part)


@pytest.mark.parametrize("order", [(MEMORY, LARGER), (LARGER, MEMORY)])
def test_the_first_environment_draws_what_it_would_draw_alone(order):
    flags = SMALL | ROLLOUT | {"num_envs": 2}
    alone = PPOTrainer(PPOTrainer.configure(flags | {"env": order[0]})).vector.reset()
    mixed = PPOTrainer(PPOTrainer.configure(flags | {"env": list(order), "num_envs": 4})).vector.reset()
    assert torch.equal(mixed[:2], alone)


@pytest.mark.long
def test_one_agent_learns_two_sizes():
    """In two minutes, on a core of its own."""
    trainer = PPOTrainer(PPOTrainer.configure({
        "env": ["Gridverse/Memory-5x5-v0", "Gridverse/Memory-7x7-v0"], "total_steps": 2_500_000, "threads": 1,
        "track": ("none",), "final_episodes": 200, "stop_at_success": 0.9, "seed": 51,
    }))  # fmt: skip
    trainer.begin()
    while trainer.steps < 2_500_000:
        for _ in range(10):
            trainer.iterate()
        if trainer.steps > 1_000_000 and trainer.reached_goal(trainer.evaluate(final=True)):
            return
    raise AssertionError("one of the two sizes was not learned")
