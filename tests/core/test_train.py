"""Training through the command line: it runs everywhere, refuses what cannot work, and survives being killed."""

import json
from pathlib import Path

import gymnasium
import pytest
import torch
from run_folders import assert_equal, error_of, metrics, refused
from test_agent import Three
from trained import CARDS
from trained import training_flags as flags

from dqn_memory.agent import Agent
from dqn_memory.analysis.episodes import beginning
from dqn_memory.config import LearnerConfig, ReplayConfig, TrainConfig
from dqn_memory.evaluate import load_network
from dqn_memory.exploration import ExplorationConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.network_trainer import RECALL_EPISODES
from dqn_memory.ppo import PPOConfig, PPOLearnerConfig, PPOTrainer
from dqn_memory.runs.base_config import EnvironmentConfig
from dqn_memory.runs.folder import Run
from dqn_memory.runs.settings import parse
from dqn_memory.train import QTrainer, main
from envs import baselines
from envs.packages import make_env
from envs.registry import WORLDS

PUBLISHED = "--config paper --prepopulate 200 --learning-starts 200"


@pytest.mark.parametrize(("env", "more"), [
    ("Gridverse/Memory-5x5-v0", "--architecture dgfqn"),
    ("POMDP/CarFlag-v0", "--architecture dbgfqn --n-step 3"),
    (CARDS, "--architecture dtqn4 --prior gaussian_adaptive --span 5 --mu 3 --memory-ablation"),
    ("POMDP/CarFlag-v0", "--architecture adrqn --acting-state episode --action-embedding 4"),
    ("CartPole-v1", "--architecture dlfqn --dropout 0.1"),
    ("FrozenLake-v1", "--architecture dqn --layers 0"),
    ("Gridverse/Memory-7x7-v0", PUBLISHED),
])  # fmt: skip
def test_every_kind_of_world_trains(tmp_path, env, more, capsys):
    run = tmp_path / "run"
    main(flags(run, "--env", env, more, steps=420))
    logged = metrics(run)
    losses = [line["losses/td_loss"] for line in logged if "losses/td_loss" in line]
    assert losses and all(loss > 0 for loss in losses)
    assert any("eval/success_rate" in line for line in logged)
    assert logged[-1]["step"] == 420 and "final/success_rate" in logged[-1]
    said = capsys.readouterr().out
    assert str(run) in said and ("best known" in said) == (baselines.reference_of(env) is not None)
    assert ("final/recall_distance" in logged[-1]) == ("--memory-ablation" in more)
    if "gaussian_adaptive" in more:
        assert {"memory/0.0.mu", "memory/0.1.sigma", "memory/0.1.span"} <= set().union(*logged)


@pytest.mark.parametrize(("package", "env", "more"), [
    pytest.param("minigrid", "MiniGrid-MemoryS7-v0", "--env-workers 2", marks=pytest.mark.long),
    ("popgym", "popgym:popgym-RepeatPreviousEasy-v0", "--time-limit 20"),
    ("popgym", "popgym-BattleshipEasy-v0", ""),  # actions are pairs
])  # fmt: skip
def test_worlds_of_other_packages_train(tmp_path, package, env, more, capsys):
    pytest.importorskip(package)
    run = tmp_path / "run"
    main(flags(run, "--env", env, more, "--memory-ablation", steps=200))
    assert ("the agent sees its entry 'image'" in capsys.readouterr().err) == (package == "minigrid")
    agent, played = Agent.load(run), make_env(env)
    assert agent.config.environment.observation_key == ("image" if package == "minigrid" else None)
    assert played.action_space.contains(agent.act(played.reset(seed=0)[0], True))
    assert metrics(run)[-1]["final/episodes"] == 8
    assert any("losses/td_loss" in line for line in metrics(run))
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["time/elapsed"] > 0 and last["time/processor"] > 0 and 1 < last["time/acting_us"] < 1e6
    assert last["memory_ablation/episodes"] == 8
    assert ("final/recall_distance" in last) == (package != "minigrid")  # which shows pictures


def test_the_last_iteration_that_can_learn_is_enough(tmp_path):
    late = ("--env", CARDS, "--prepopulate", "50", "--learning-starts")
    for starts, each, updates in ("96", "1", 2), ("96", "2", 4), ("97", "1", 1), ("0", "1", 13):
        run = tmp_path / f"{starts}-{each}"
        arguments = flags(run, *late, starts, "--updates-per-iteration", each, steps=99)  # 25 iterations
        main(arguments)
        assert Run.open(run).load().trainer["updates"] == parse(TrainConfig, arguments).updates == updates
    assert "would never update" in error_of(parse(TrainConfig, flags(run, *late, "101", steps=99)).check)


def test_evaluations_have_the_limit_of_training_where_an_environment_has_none():
    gymnasium.register("Endless-v0", Three)
    for env, kept in ("Endless-v0", {"max_episode_steps": 5}), ("CartPole-v1", {}), (CARDS, {}):
        assert EnvironmentConfig(env, time_limit=5).kwargs(training=False) == kept


def test_compiling_without_a_compiler_is_one_sentence_and_leaves_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = refused(capsys, flags(tmp_path / "run", "--engine", "compile", "--device", "cpu"), main)
    assert "no no-such-compiler here" in said and not (tmp_path / "run").exists()


def test_a_run_of_another_engine_can_be_resumed_here(tmp_path, capsys):
    run = tmp_path / "run"
    main(flags(run, "--env", CARDS, steps=200))
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('engine = "auto"', 'engine = "cudagraph"'))
    longer = ["--resume", str(run), "--total-steps", "240", "--device", "cpu"]
    assert "--engine cudagraph needs --device cuda" in refused(capsys, longer, main)
    main([*longer, "--engine", "eager"])
    assert Run.open(run).load().step == 240


@pytest.mark.long
def test_an_agent_is_loaded_from_the_average(tmp_path):
    run = tmp_path / "run"
    main(flags(run, "--ema-decay", "0.9"))
    checkpoint = Run.open(run).load()
    average, online = checkpoint.part("average"), checkpoint.part("network")
    assert average.keys() == online.keys() and len(average) > 4
    assert any(not torch.equal(average[name], online[name]) for name in average)
    network, _, _ = load_network(run)
    assert_equal(dict(network.state_dict()), average)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path, capsys):
    run = tmp_path / "run"
    with pytest.raises(SystemExit):
        main(flags(run, "--learning-rate", "1e30", "--max-grad-norm", "1e30", "--checkpoint-every", "40"))
    assert "not finite at step" in capsys.readouterr().err
    saved = Run.open(run).load()
    assert all(torch.isfinite(value).all() for value in saved.weights.values())


def test_a_run_in_a_world_of_a_file_can_be_read_from_any_folder(tmp_path, monkeypatch):
    tiger = Path(__file__).parents[1] / "data" / "envs" / "pomdp" / "tiger_episodic.pomdp"
    (tmp_path / "mine.pomdp").write_text(tiger.read_text())
    monkeypatch.chdir(tmp_path)
    main(flags(tmp_path / "run", "--env", "POMDP/File-v0", "--path", "mine.pomdp", steps=100))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _, config, _ = load_network(tmp_path / "run")
    assert config.environment.path == str(tmp_path / "mine.pomdp")


def test_match_sets_the_sizes_of_the_run(tmp_path):
    run = tmp_path / "run"
    given = flags(run, "--match", "30k", "--architecture", "dtqn4", steps=100)
    main(given[given.index("--heads") :])  # without a width, which --match chooses
    weights = Run.open(run).load().weights
    size = sum(v.numel() for name, v in weights.items() if name.startswith("network."))
    assert 29_400 <= size <= 30_000


def test_the_smallest_replay_that_is_taken_can_wrap_around(tmp_path):
    main(flags(tmp_path / "run", "--env", CARDS, "--capacity", "32", "--learning-starts", "8", steps=200))
    assert metrics(tmp_path / "run")[-1]["step"] == 200


def test_a_run_that_an_evaluation_ended_is_judged_by_other_episodes(monkeypatch):
    """And so is its judgement without a memory, which stands beside it."""
    seeds, forgets = [], []

    def noted(network, setup, episodes, seed):
        seeds.append(seed)
        forgets.append(setup.reset_memory)

    monkeypatch.setattr("dqn_memory.evaluate.evaluate", noted)
    training = QTrainer(parse(TrainConfig, flags("run", "--env POMDP/CarFlag-v0")))
    for training.solved in (False, True):
        for final, forget in ((False, False), (True, False), (True, True)):
            training.evaluate(final, forget)
    usual, other = seeds[0], seeds[-1]
    draws = [torch.rand(3, generator=torch.Generator().manual_seed(seed)) for seed in (usual, other)]
    assert not torch.equal(*draws)
    assert seeds == [usual, usual, usual, usual, other, other] and other != usual
    assert forgets == [False, False, True] * 2


def test_the_target_network_has_no_dropout():
    training = QTrainer(parse(TrainConfig, flags("run", "--dropout 0.5")))
    assert training.network.training and not training.target.training


@pytest.mark.parametrize(("layers", "moved"), [(1, {"0"}), (2, {"0", "1"})])
def test_the_last_backward_recurrence_keeps_its_first_values_at_newest_positions(tmp_path, layers, moved):
    run = tmp_path / "run"
    main(flags(run, f"--env {CARDS} --architecture dbgfqn --layers {layers} --loss-positions last", steps=200))
    last = metrics(run)[-1]
    assert {name.split(".")[0] for name in last if name.startswith("moved/")} == {f"moved/{layer}" for layer in moved}
    assert last[f"moved/{layers - 1}.behind"] == 0 < last[f"moved/{layers - 1}.ahead"]
    assert layers == 1 or last["moved/0.behind"] > 0


def test_what_is_stored_is_what_happened_also_at_the_ends_of_episodes(monkeypatch):
    """An episode that a time limit cuts off is done but not terminated, and none lends the next one an action."""
    training = QTrainer(parse(TrainConfig, flags("run", "--env FrozenLake-v1 --time-limit 6 --learning-starts 600")))
    take, choose, before, begun, seen = training.vector.step, training.explorer.choose, None, [], []

    def step(action):
        seen.append((training.observation, action, take(action)))
        return seen[-1][2]

    monkeypatch.setattr(training.explorer, "choose", lambda own, *more: begun.append(more[1]) or choose(own, *more))
    monkeypatch.setattr(training.vector, "step", step)
    for _ in range(40):
        training.iterate()
        assert torch.equal(training.actor.lengths, (training.time + 1).clamp(max=8))  # of its windows, K = 8
    cells, time = training.replay.columns(0, 40), torch.zeros(4, dtype=torch.int32)
    for t, (observation, action, after) in enumerate(seen):
        first = torch.ones(4, dtype=torch.bool) if before is None else before[1].done
        assert torch.equal(begun[t], first)
        time = torch.where(first, 0, time + 1).int()
        led = torch.where(first, training.actions.count, action if before is None else before[0])
        told = observation, after.final_observation, led, action, after.reward, after.terminated, after.done, time
        assert_equal(
            [cells[name][t] for name in cells],
            [each.to(cells[name].dtype) for name, each in zip(cells, told, strict=True)],
        )
        before = action, after
    ends = {name: cells[name].any() for name in ("done", "terminated")}
    assert ends["terminated"] and (cells["done"] & ~cells["terminated"]).any(), ends


def test_the_target_is_copied_after_every_so_many_updates():
    training, same = QTrainer(parse(TrainConfig, flags("run", f"--env {CARDS} --target-update-every 4"))), []
    while training.updates < 7:
        training.iterate()
        ours, theirs = ([*network.parameters()] for network in (training.network, training.target))
        same.append(all(map(torch.equal, ours, theirs)))
    assert same[-7:] == [False, False, False, True, False, False, False] and all(same[:-7])


def test_evaluations_play_the_average_without_dropout_and_training_goes_on_with_it():
    training = QTrainer(parse(TrainConfig, flags("run", f"--env {CARDS} --dropout 0.5 --ema-decay 0.9")))
    modes, network = [], training.evaluated
    network.head.register_forward_pre_hook(lambda head, _: modes.append(head.training))
    training.evaluate()
    assert modes and not any(modes) and network is not training.network
    assert all(part.training for each in (network, training.network) for part in each.modules())


def test_the_ablation_at_a_runs_end_forgets(tmp_path, monkeypatch):
    asked, evaluate = [], QTrainer.evaluate
    monkeypatch.setattr(QTrainer, "evaluate", lambda self, **how: asked.append(how) or evaluate(self, **how))
    main(flags(tmp_path / "run", "--env", CARDS, "--memory-ablation", "--evaluate-every", "0", steps=100))
    assert asked == [{"final": True}, {"final": True, "reset_memory": True}]


def test_an_update_takes_from_schedules_what_is_due_at_its_step(monkeypatch):
    more = "--terminal-weight 16 --terminal-weight-updates 4 --learning-rate 1 --final-lr-fraction 0 --ema-decay 0.9"
    training, seen, decays = QTrainer(parse(TrainConfig, flags("run", f"--env {CARDS} {more}"))), [], []
    rate = training.optimizer.param_groups[0]

    def update(batch):
        seen.append((rate["lr"], float(batch.terminal_weight)))
        return {"losses/td_loss": torch.zeros(()), "grad/norm": torch.zeros(())}

    monkeypatch.setattr(training, "update", update)
    monkeypatch.setattr("dqn_memory.train.average_parameters", lambda *given: decays.append(given[2]))
    for _ in range(20):
        training.iterate()
    expected = [(1 - (64 + 4 * n) / 600, 16 ** (1 - n / 4)) for n in range(5)]  # it learns from step 64 on
    assert seen == [pytest.approx(pair) for pair in expected]
    assert decays == [(1 + n) / (10 + n) for n in range(1, 6)]


def test_a_resume_without_a_replay_begins_episodes_and_fills_it_first(tmp_path):
    main(flags(tmp_path, "--env", CARDS, "--checkpoint-replay", "none", steps=100))
    training, run = QTrainer.start({"resume": tmp_path, "total_steps": 300})
    with run:
        assert run.load().trainer["time"].any() and not training.time.any() and (training.actor.lengths == 1).all()
    before = training.updates
    for _ in range(16):  # of four environments, and 64 steps come before the first update
        training.iterate()
    assert training.updates == before + 1


def test_recall_is_measured_in_episodes_of_their_own(monkeypatch):
    training, seeds = QTrainer(parse(TrainConfig, flags("run", f"--env {CARDS}"))), []
    monkeypatch.setattr(
        "dqn_memory.network_trainer.beginning", lambda *given: seeds.append(given[2]) or beginning(*given)
    )
    training.recall(training.config.eval_setup(training.device))
    assert len(set(seeds)) == len(seeds) == RECALL_EPISODES


def test_nothing_is_evaluated_before_the_first_update(tmp_path):
    late = ("--env", CARDS, "--learning-starts", "96", "--evaluate-every", "40", "--episodes", "2")
    main(flags(tmp_path / "run", *late, steps=120))
    assert [line["step"] for line in metrics(tmp_path / "run") if "eval/episodes" in line] == [120]


FILES = {"Gridverse/Yaml-v0": "dynamic_obstacles.5x5", "POMDP/File-v0": "tests/data/envs/pomdp/tiger.pomdp"}


def of_real_actions(environment):
    learner = PPOLearnerConfig(rollout_steps=8, minibatches=2)
    return PPOConfig(environment.in_parts(), NetworkConfig("gru", width=16), learner)


@pytest.mark.parametrize("id", sorted(WORLDS))
def test_every_world_of_ours_trains_on_its_state(id, request):
    path = FILES.get(id)
    path = str(request.config.rootpath / path) if path and path.startswith("tests") else path
    environment = EnvironmentConfig(env=id, observe="state", num_envs=2, path=path)
    config = TrainConfig(
        environment=environment,
        network=NetworkConfig(width=16, heads=2, layers=1, context=4),
        replay=ReplayConfig(learning_starts=4, capacity=64),
        learner=LearnerConfig(batch_size=2),
        exploration=ExplorationConfig(prepopulate=0),
    )
    training = QTrainer(config) if environment.in_parts() == environment else PPOTrainer(of_real_actions(environment))
    training.begin()
    for _ in range(4):
        training.iterate()
    assert training.updates > 0 and training.vector.observation_space == training.vector.world.state_space
    assert all(parameter.isfinite().all() for parameter in training.network.parameters())
