"""GLAM's training loop through the command line, and its updates under both engines."""

from dataclasses import replace
from unittest.mock import MagicMock

import glam_models
import pytest
import torch
from glam_models import TINY, flags, trained
from run_folders import assert_equal, metrics

from dqn_memory.runs import cuda_graph
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.settings import parse, read_config
from dqn_memory.study.definition import read_definition
from world_models.glam.config import (
    FORMS,
    ActorCriticConfig,
    GlamCollectionConfig,
    GlamConfig,
    GlamLearnerConfig,
    GlamModelConfig,
)
from world_models.glam.train import GlamTrainer, adam, main, update_model


@pytest.mark.parametrize(("form", "memory"), list(zip(FORMS, ("window", "carried") * 3, strict=True)))
def test_every_sequence_module_trains(tmp_path, form, memory, capsys):
    forms = ("--sequence", form, "--imagination-memory", memory)
    run = trained(tmp_path / "run", *forms, "--final-episodes-per-env", "3", steps=40)
    logged = metrics(run)
    updates = [line for line in logged if "losses/total" in line]
    assert updates and all(line["losses/total"] > 0 and line["grad/norm"] > 0 for line in updates)
    assert all({"losses/actor", "agent/entropy", "grad/agent_norm"} <= line.keys() for line in updates)
    assert any("losses/variation" in line for line in updates) == (form == "glam")
    assert logged[-1]["step"] == 40 and logged[-1]["final/episodes"] == 3
    assert {"final/episodic_return", "final/greedy_episodic_return"} <= logged[-1].keys()
    assert str(run) in capsys.readouterr().out


def test_warm_up_is_random_and_learns_nothing(tmp_path):
    training = GlamTrainer(read_config(GlamConfig, "glam/catch"))
    before = training.weights()["model.prior_head.linear.weight"].clone()
    for _ in range(30):
        training.iterate()
    assert training.updates == 0
    assert_equal(training.weights()["model.prior_head.linear.weight"], before)
    played = training.replay.cells["action"][:30].flatten()
    assert (torch.bincount(played.long(), minlength=3) > 0.2 * len(played)).all()
    assert training.replay.cells["first"][:30].sum() == training.config.environment.num_envs


def test_what_is_stored_is_what_was_played():
    training = GlamTrainer(parse(GlamConfig, [*TINY.split(), "--num-envs", "3"]))
    for _ in range(14):
        training.iterate()
    cells = {name: values[:14] for name, values in training.replay.cells.items()}
    assert cells["first"][:, 0].nonzero().flatten().tolist() == [0, 6, 12]  # two balls of three steps
    assert cells["terminated"][:, 0].nonzero().flatten().tolist() == [5, 11]
    assert (cells["reward"] != 0).nonzero()[:, 0].unique().tolist() == [2, 5, 8, 11]
    assert_equal(training.observation, training.vector.state.observation)
    assert not torch.equal(cells["frames"][0], cells["frames"][1])


def test_a_time_limit_opens_an_episode_and_terminates_none():
    training = GlamTrainer(parse(GlamConfig, [*TINY.split(), "--num-envs", "3", "--time-limit", "4"]))
    for _ in range(10):
        training.iterate()
    cells = training.replay.cells
    assert cells["first"][:10].nonzero()[:, 0].unique().tolist() == [0, 4, 8] and not cells["terminated"].any()


def test_both_step_sizes_fall_on_a_straight_line():
    falling = "--total-steps 80 --learner-final-lr-fraction 0.5 --agent-final-lr-fraction 0"
    training = GlamTrainer(parse(GlamConfig, [*TINY.split(), *falling.split()]))
    for _ in range(20):
        training.iterate()
    model, agent = (optimizer.param_groups[0]["lr"] for optimizer in training.optimizers)
    assert model == pytest.approx(0.75 * 1e-4) and agent == pytest.approx(0.5 * 3e-5)


def test_both_ratios_hold_from_their_own_start_on():
    config = GlamCollectionConfig(learning_starts=80, agent_starts=120, model_replay_ratio=0.3, agent_replay_ratio=1.0)
    due = [config.updates("model", iteration, iteration, 4) for iteration in range(1, 101)]
    assert due[:19] == [0] * 19 and sum(due) == config.updates("model", 1, 100, 4) == int(400 * 0.3) - int(76 * 0.3)
    assert [config.updates("agent", iteration, iteration, 4) for iteration in (20, 29, 30, 31)] == [0, 0, 4, 4]
    early = replace(config, agent_starts=0)
    assert [early.updates("agent", iteration, iteration, 4) for iteration in (19, 20)] == [0, 4]


def test_every_keyword_of_a_game_is_said():
    config = read_config(GlamConfig, "glam/paper")
    wanted = {"frame_skip": 4, "sticky": 0.25, "noops": 0, "most_frames": 108_000, "size": 64, "grayscale": False}
    assert config.env_kwargs() == config.env_kwargs(training=False) == wanted
    short = replace(config, evaluation=replace(config.evaluation, max_episode_steps=50))
    assert short.env_kwargs(training=False)["most_frames"] == 200 and short.env_kwargs()["most_frames"] == 108_000


def test_the_presets_have_the_paper_s_numbers():
    for name in ("paper", "code", "fast"):
        config = read_config(GlamConfig, f"glam/{name}")
        config.check()
        sizes = config.learner.batch_size, config.imagination.num_rollouts, config.collection.learning_starts
        assert sizes == (32, 1024, 1024)
    code = read_config(GlamConfig, "glam/code")
    assert (code.horizon.kind, code.horizon.maximum, code.replay.recent_windows) == ("smooth", 48, 5)
    assert (code.imagination.start_from, code.agent.returns) == ("prior", "released")
    assert code.collection.act_before_observing is True


def test_table_2_has_every_form_at_its_depth():
    rows = read_definition("glam_table2").axes["architecture"]
    depths = {row.settings["sequence"]: row.settings.get("local_layers", 1) for row in rows}
    assert depths == dict.fromkeys(FORMS, 1) | {"lmamba": GlamModelConfig().attention_layers}


@pytest.mark.long
def test_the_agent_waits_for_windows_longer_than_the_model_s(tmp_path):
    logged = metrics(trained(tmp_path / "run", "--context", "20", "--learning-starts", "24", steps=64))
    began = {name: next(line["step"] for line in logged if name in line) for name in ("losses/total", "losses/agent")}
    assert began == {"losses/total": 32, "losses/agent": 48}  # 21 steps of each of two worlds
    alone = metrics(trained(tmp_path / "alone", "--agent-replay-ratio", "0"))
    assert any("losses/total" in line for line in alone) and not any("losses/agent" in line for line in alone)


def test_a_broken_loss_names_the_flag_of_its_step_size(tmp_path, capsys, monkeypatch):
    for part, config in (("learner", GlamLearnerConfig), ("agent", ActorCriticConfig)):
        monkeypatch.setattr(config, "max_grad_norm", 1e30)
        broken = flags(tmp_path / part, f"--{part}-learning-rate", "1e30")
        with pytest.raises(SystemExit):
            main(broken)
        assert f"try a smaller --{part}-learning-rate in" in capsys.readouterr().err


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


def test_an_update_moves_what_it_should_and_nothing_else():
    model, agent, _, execution = glam_models.parts()

    def moved(before, net):
        return not all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))

    first, actor = ([p.clone() for p in net.parameters()] for net in (model, agent))
    metrics = execution.learn_model(*glam_models.model_batch())
    assert float(metrics["grad/norm"]) > 0 and model.training and moved(first, model) and not moved(actor, agent)
    now = [p.clone() for p in model.parameters()]
    execution.learn_agent(execution.imagine(*glam_models.rollout_inputs()))
    assert not moved(now, model) and not model.training and moved(actor, agent)


def test_the_gradient_is_clipped_and_frozen_weights_stay(monkeypatch):
    model = glam_models.model("code").float()
    monkeypatch.setattr(GlamLearnerConfig, "max_grad_norm", 1e-9)
    monkeypatch.setattr(GlamLearnerConfig, "epsilon", 1.0)
    config = GlamLearnerConfig(learning_rate=1e-3)
    optimizer = adam(model, config)
    before = {name: p.clone() for name, p in model.named_parameters()}
    update_model(model, optimizer, config, *glam_models.model_batch())
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, before[name], atol=1e-10), name  # Adam's epsilon hides such small gradients
    assert not model.random_projection.weight.requires_grad


@pytest.mark.parametrize("form", ["window", "carried"])
def test_only_the_graphs_of_the_newest_horizon_are_kept(monkeypatch, form):
    monkeypatch.setattr(cuda_graph, "capture", lambda work, generators: (MagicMock(), work()))  # launches nothing
    execution = glam_models.parts("cudagraph", imagination_memory=form)[3]
    for horizon in (4, 5, 6):
        dreamt = execution.imagine(*glam_models.rollout_inputs(horizon))
        execution.learn_agent(dreamt)
        execution.learn_model(*glam_models.model_batch())
        assert dreamt.reward.shape[0] == horizon
        assert [len(work.graphs) for work in execution] == [1, 1, 1]


@CUDA
@pytest.mark.parametrize("form", ["window", "carried"])
def test_captured_execution_equals_eager(form):
    eager, graphed = (glam_models.parts(engine, "cuda", imagination_memory=form) for engine in ("eager", "cudagraph"))
    for round in range(4):
        told, dreamt = glam_models.model_batch(round, "cuda"), glam_models.rollout_inputs(4 + round // 2, round, "cuda")
        for execution in (eager[3], graphed[3]):
            execution.learn_model(*told)
            execution.learn_agent(execution.imagine(*dreamt))
    assert isinstance(graphed[3].imagine, Captured) and len(graphed[3].imagine.graphs) == 1
    for ours, theirs in zip(graphed[:2], eager[:2], strict=True):
        for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-5), name
