"""UniZero's training loop through the command line: it runs everywhere, resumes bit for bit, refuses what is wrong."""

import json
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from run_folders import metrics, printed, refused
from trained import contents
from unizero_models import VECTOR, config, flags, model

from dqn_memory.evaluate import main as evaluate_main
from dqn_memory.runs.settings import read_config
from envs.atari import AtariStep
from world_models.glam import config as glam_config
from world_models.settings import training_signal
from world_models.trainer import EvalEnvironments
from world_models.unizero.acting import Planner, UniZeroAgent
from world_models.unizero.config import SearchConfig, UniZeroCollectionConfig, UniZeroConfig
from world_models.unizero.networks import build_unizero
from world_models.unizero.train import UniZeroTrainer, main

MEMORY, CAR = "Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0"
SHORT = ("--time-limit", "12", "--max-episode-steps", "12")


@pytest.mark.parametrize(("env", "more", "learned"), [
    (CAR, "--dynamics transformer --prior gaussian", {"mu", "sigma"}),
    ("CartPole-v1", "--prior adaptive --reanalyse-fraction 0.05 --reset-history released", {"span"}),
    (MEMORY, "--dynamics recurrent --root gumbel --no-final-observations", set()),
])  # fmt: skip
def test_every_form_and_every_kind_of_world_trains(tmp_path, env, more, learned, capsys):
    run = tmp_path / "run"
    main(flags(run, "--env", env, "--evaluate-every", "0", *SHORT, *more.split(), steps=160))
    logged = metrics(run)
    losses = [line["losses/total"] for line in logged if "losses/total" in line]
    assert losses and all(loss is not None and loss > 0 for loss in losses)
    assert logged[-1]["step"] == 160 and logged[-1]["final/episodes"] == 1
    assert str(run) in capsys.readouterr().out
    names = {name for line in logged for name in line if name.startswith("memory/")}
    assert {name.rpartition(".")[2] for name in names} == learned


def test_evaluations_begin_where_they_are_told_to(tmp_path):
    run = tmp_path / "run"
    main(flags(run, "--evaluate-every", "40", "--evaluate-from", "160", "--final-episodes-per-env", "2"))
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if "eval/episodic_return" in line] == [160, 200]
    assert (logged[-2].get("eval/episodes"), logged[-1]["final/episodes"]) == (1, 2)


@pytest.mark.parametrize(
    "collection", [UniZeroCollectionConfig(), glam_config.GlamCollectionConfig()], ids=["unizero", "glam"]
)
def test_a_lost_life_ends_an_episode_of_training_only_where_that_is_wanted(collection):
    flag = torch.tensor([False, True, False, False])
    step = AtariStep(*[torch.zeros(4)] * 8, life_lost=torch.tensor([True, False, False, True]))
    step.reward, step.terminated = torch.tensor([-4.0, 0.0, 2.0, 1.0]), flag
    step.truncated = torch.tensor([False, False, False, True])
    for wanted, rewards, ends in ((True, [-1, 0, 1, 1], [1, 1, 0, 0]), (False, [-4, 0, 2, 1], [0, 1, 0, 0])):
        asked = replace(collection, clip_rewards=wanted, terminal_on_life_loss=wanted)
        reward, terminated = training_signal(step, asked)
        assert reward.tolist() == rewards and terminated.tolist() == [bool(end) for end in ends]


@pytest.mark.parametrize(("env", "longest", "limit"), [
    ("CartPole-v1", 1000, {"max_episode_steps": 500}), ("CartPole-v1", 50, {"max_episode_steps": 50}),
    (CAR, 1000, {"time_limit": 200}), ("envs:" + CAR, 12, {"time_limit": 12}), (CAR, None, {}),
    ("CliffWalking-v1", None, {"max_episode_steps": 30}), ("CliffWalking-v1", 1000, {"max_episode_steps": 1000}),
])  # fmt: skip
def test_an_evaluation_may_cut_a_worlds_episodes_and_not_lengthen_them(env, longest, limit):
    start = read_config(UniZeroConfig, "unizero/smoke")
    environment = replace(start.environment, env=env, time_limit=30)
    config = replace(start, environment=environment, evaluation=replace(start.evaluation, max_episode_steps=longest))
    assert config.env_kwargs(training=False) == limit
    assert list(config.env_kwargs().values()) == [30]


def test_updates_keep_their_ratio_and_start_in_time():
    config = UniZeroCollectionConfig(learning_starts=80, replay_ratio=0.3)
    due = [config.updates(iteration, iteration, 4) for iteration in range(1, 101)]
    assert due[:19] == [0] * 19 and due[19]
    assert sum(due) == config.updates(1, 100, 4) == int(400 * 0.3) - int(76 * 0.3)


def test_evaluate_reads_a_run_and_writes_nothing(tmp_path, capsys):
    run = tmp_path / "run"
    main(flags(run, steps=120))
    files = contents(run)
    said = printed(capsys, evaluate_main, run, "--num-eval-envs", 2, "--episodes-per-env", 2, "--simulations", 2)
    assert all(words in said for words in ("step 120", "4 episodes", "2 simulations"))
    quick = ("--num-eval-envs", 1, "--episodes-per-env", 1, "--format", "json")
    said = printed(capsys, evaluate_main, "--run", run, *quick)
    assert json.loads(said)["episodes"] == 1
    assert "actions" in refused(capsys, [str(run), "--env", MEMORY], evaluate_main)
    assert files == contents(run)
    agent = UniZeroAgent.load(run, torch.device("cpu"))
    assert agent.step == 120 and not agent.model.training and agent.config.environment.env == "CartPole-v1"


def test_random_steps_come_first_and_searches_know_what_they_saw():
    smoke = read_config(UniZeroConfig, "unizero/smoke")
    collection = replace(smoke.collection, prepopulate=48, learning_starts=1000)
    training = UniZeroTrainer(replace(smoke, collection=collection, total_steps=2000))
    while training.steps < 48:
        training.iterate()
    stored = training.replay.columns(0, training.iterations)
    assert (stored["policy"] == 1 / training.num_actions).all()
    assert set(stored["action"].flatten().tolist()) == set(range(training.num_actions))
    held = training.planner.history
    assert torch.equal(held.count, training.time.clamp(max=training.config.model.pairs))
    last = training.planner.encode(stored["observation"][-1])
    assert torch.equal(held.latent[training.time > 0, held.count[training.time > 0] - 1], last[training.time > 0])
    training.iterate()
    searched = training.replay.columns(training.iterations - 1, training.iterations)["policy"]
    assert not (searched == 1 / training.num_actions).all()


def test_a_time_limit_ends_an_episode_and_terminates_none():
    smoke = read_config(UniZeroConfig, "unizero/smoke")
    collection = replace(smoke.collection, prepopulate=1000, learning_starts=1000)
    short = replace(smoke, collection=collection, environment=replace(smoke.environment, time_limit=6))
    training = UniZeroTrainer(replace(short, total_steps=2000))
    for _ in range(14):
        training.iterate()
    stored = training.replay.columns(0, 14)
    assert stored["time"][:, 0].tolist() == [*range(6), *range(6), 0, 1]
    assert stored["done"].nonzero()[:, 0].unique().tolist() == [5, 11] and not stored["terminated"].any()
    same = (stored["next_observation"][:-1] == stored["observation"][1:]).flatten(1).all(1)
    assert (~same).nonzero().flatten().tolist() == [5, 11]  # there it is the final one
    assert training.planner.history.count.tolist() == [2] * 4


def test_planning_and_reanalysis_set_the_evaluation_mode():
    training = UniZeroTrainer(read_config(UniZeroConfig, "unizero/smoke"))
    while not training.replay.drawable:
        training.iterate()
    for search in (training.plan, lambda: training.sequences(reanalyse=True)):
        training.model.train()
        search()
        assert not training.model.training


@pytest.mark.parametrize("name", ["smoke", "cartpole", "memory-5x5"])
def test_the_shipped_presets_can_be_built(name):
    training = UniZeroTrainer(read_config(UniZeroConfig, f"unizero/{name}"))
    training.iterate()
    assert training.steps == training.config.environment.num_envs and len(training.replay) == training.steps


DIFFERENCES = {  # what the paper says, which is the default, and what the released code does
    "learner.max_grad_norm": (5.0, 20.0), "collection.reset_history": ("episode", "released"),
    "atari.sticky": (0.25, 0.0), "atari.most_frames": (108_000, 432_000), "collection.reanalyse_fraction": (0.02, 0.0),
    "model.prior.mu_max": (None, 20.0), "model.encoder.activation": ("leaky_relu", "gelu"),
    "evaluation.evaluate_from": (20_000, 0), "total_steps": (100_000, 115_000),
}  # fmt: skip


@pytest.mark.parametrize(("name", "side"), [("paper", 0), ("released", 1), (None, 0)])
def test_the_presets_of_paper_and_code_say_where_they_differ_and_the_defaults_are_the_papers(name, side):
    preset = read_config(UniZeroConfig, f"unizero/{name}") if name else UniZeroConfig()
    preset.check()
    assert {path: attrgetter(path)(preset) for path in DIFFERENCES} == {p: v[side] for p, v in DIFFERENCES.items()}
    assert name != "paper" or (preset.model.prior.regulariser, preset.model.prior.regulariser_weight) == ("l1", 0.025)


def test_an_evaluation_elsewhere_keeps_the_runs_settings():
    config = read_config(UniZeroConfig, "unizero/smoke")
    config = replace(config, evaluation=replace(config.evaluation, max_episode_steps=7))
    same = EvalEnvironments.of(config, torch.device("cpu"), env="CartPole-v1")
    UniZeroTrainer(config).evaluated_agent().check(same)
    assert same == EvalEnvironments.of(config, torch.device("cpu")) and same.env_kwargs == {"max_episode_steps": 7}
    shared = replace(config, environment=replace(config.environment, env_workers=2))  # not every environment can be
    assert EvalEnvironments.of(shared, torch.device("cpu"), env="POMDP/CarFlag-v0").workers is None


# acting: histories apart, quotas of evaluations


@pytest.mark.parametrize(("reset", "counts"), [
    ("episode", [[1, 1], [0, 2], [1, 3], [0, 3], [1, 0], [2, 1]]),
    ("released", [[1, 1], [0, 0], [0, 0], [0, 0], [0, 0], [1, 1]]),  # until every environment has ended an episode
])  # fmt: skip
def test_an_environment_remembers_its_own_episode_only_or_is_wiped_as_released(reset, counts):
    planner = Planner(model(), 2, SearchConfig(simulations=1), 0.99, reset)
    latent, action, found = torch.rand(2, 16, dtype=torch.float64), torch.tensor([0, 1]), []
    for done in ([0, 0], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]):
        planner.remember(latent, action, torch.tensor(done, dtype=torch.bool))
        found.append(planner.history.count.tolist())
    assert found == counts
    assert planner.history.action[:, 0].tolist() == [0, 1] and torch.equal(planner.history.latent[:, 0], latent)


@pytest.fixture
def player():
    """An untrained player of CartPole."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_unizero(config(), VECTOR, 2)


CART = EvalEnvironments("CartPole-v1", {}, torch.device("cpu"))
SEARCH = UniZeroConfig(search=SearchConfig(simulations=3))


def evaluate(model, environments, num_envs, episodes, seed):
    (score,) = UniZeroAgent(model.eval(), SEARCH, 0).scores(environments, ("",), num_envs, episodes, seed).values()
    return score


def test_an_evaluation_plays_its_quota_in_each_world_and_repeats_itself(player):
    first, again, other = (evaluate(player, CART, 3, 2, seed=seed) for seed in (5, 5, 6))
    assert first.episodes == 6 and (first.lengths > 0).all()
    assert first.lengths.tolist() == again.lengths.tolist() != other.lengths.tolist()
    assert first.returns.tolist() == first.lengths.tolist()  # CartPole pays 1 a step


@pytest.mark.parametrize("reset_memory", [False, True])
def test_without_its_memory_a_planner_has_no_history(monkeypatch, player, reset_memory):
    counts, plan = [], Planner.plan

    def noted(planner, observation, numbers):
        counts.append(planner.history.count.tolist())
        return plan(planner, observation, numbers)

    monkeypatch.setattr(Planner, "plan", noted)
    setup = replace(CART, env_kwargs={"max_episode_steps": 3}, reset_memory=reset_memory)
    evaluate(player, setup, 2, 2, seed=5)
    assert counts == [[0 if reset_memory else step] * 2 for step in (0, 1, 2, 0, 1, 2)]
