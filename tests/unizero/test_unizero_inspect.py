"""What the script says of a world model is what the model does: maps, errors, learned values; pictures hold them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import attended
from PIL import Image
from run_folders import refused
from trained import MEMORY, contents
from unizero_models import actions, flags, model, simplex

from dqn_memory.blocks import PRIORS
from dqn_memory.runs.folder import Run
from dqn_memory.runs.seeding import Streams
from world_models.trainer import EvalEnvironments
from world_models.unizero.acting import UniZeroAgent
from world_models.unizero.analysis import play_trajectory, returns_to_go, window_attention
from world_models.unizero.inspect import main
from world_models.unizero.train import UniZeroTrainer
from world_models.unizero.train import main as train_model

PICTURES = ["learned.png", "priors.png", "attention.png"]


def made(folder, *more, steps=160):
    """A tiny trained run."""
    train_model(flags(folder, "--evaluate-every", "0", *more, steps=steps))
    return folder


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """Two layers and heads under the prior that learns most; episodes of at most 12 steps."""
    folder = tmp_path_factory.mktemp("runs") / "memory"
    limits = ("--time-limit", "12", "--max-episode-steps", "12")
    return made(folder, "--env", MEMORY, "--layers", "2", "--prior", "gaussian_adaptive", *limits, steps=160)


@pytest.fixture(scope="module")
def cart(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "cart")


def inspected(run, *argv):
    main([str(run), *argv])
    files = (run / "inspect" / name for name in ("inspect.json", "trajectory.json"))
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.long
def test_the_script_writes_all_pictures_and_changes_nothing_else(memory, capsys):
    before = {name: file for name, file in contents(memory).items() if not name.startswith("inspect")}
    facts, steps = inspected(memory)
    said = capsys.readouterr().out
    assert facts["pictures"] == PICTURES and all(f"{name}\n" in said for name in PICTURES)
    for name in PICTURES:
        assert np.asarray(Image.open(memory / "inspect" / name).convert("L")).std() > 5
    after = contents(memory)
    assert {name: after[name] for name in before} == before
    assert inspected(memory)[1] == steps  # the same episode again
    assert facts["window"]["last_step"] - facts["window"]["first_step"] <= 4  # a training sequence has 5 steps
    assert f"{steps['errors']['reward_mean_absolute']:.3g}" in said


def test_predictions_are_those_of_the_direct_forward_pass(memory):
    """The world replayed and every window of tokens read as a sequence: no planner, search or expansion in it."""
    _, steps = inspected(memory, "--seed", "3")
    agent = UniZeroAgent.load(memory, torch.device("cpu"))
    net, config = agent.model, agent.config
    vector = EvalEnvironments.of(config, torch.device("cpu")).vector(1, Streams.spawn(3).worlds)
    seen, rewards = [vector.reset()], []
    for action in steps["action"]:
        step = vector.step(torch.tensor([action]))
        rewards.append(step.reward.item())
        seen.append(step.final_observation)
    assert rewards == pytest.approx(steps["reward"]) and bool(step.done)
    taken = torch.tensor(steps["action"])
    with torch.no_grad():
        latent = net.encode(torch.cat(seen))
        for t in range(len(taken)):
            acting = slice(max(0, t - net.config.pairs), t + 1)  # W steps and the latent now
            ahead = slice(max(0, t + 1 - net.config.pairs), t + 1)  # W steps, this one included
            now, then = (net(latent[None, s], taken[None, s]) for s in (acting, ahead))
            assert net.code.decode(then.reward[0, -1]).item() == pytest.approx(steps["predicted_reward"][t], abs=1e-5)
            assert net.code.decode(now.value[0, -1]).item() == pytest.approx(steps["value"][t], abs=1e-5)
            assert now.policy[0, -1].softmax(-1).tolist() == pytest.approx(steps["prior"][t], abs=1e-5)
            p, q = (x.double().numpy() + 1e-6 for x in (latent[t + 1], then.next_latent[0, -1]))
            divergence = (p * np.log(p / q)).sum() / (len(p) / 8)
            assert divergence == pytest.approx(steps["latent_error"][t], rel=1e-3, abs=1e-5)


def test_errors_are_those_of_the_steps(memory):
    facts, steps = inspected(memory, "--seed", "4")
    found = facts["errors"]
    off = np.subtract(steps["predicted_reward"], steps["reward"])
    assert found["steps"] == len(off) == facts["episode"]["steps"] and found == steps["errors"]
    searched, prior = np.array(steps["searched"]), np.array(steps["prior"])
    np.testing.assert_allclose([searched.sum(1), prior.sum(1)], 1, rtol=1e-9)
    held = searched > 0
    each = [(p[h] * np.log(p[h] / q[h])).sum() for p, q, h in zip(searched, prior, held, strict=True)]
    want = {
        "reward_mean_absolute": abs(off).mean(), "reward_root_mean_square": (off @ off / len(off)) ** 0.5,
        "reward_largest": max(off.max(), -off.min()), "latent_divergence": np.mean(steps["latent_error"]),
        "search_divergence": np.mean(each), "search_agreement": np.mean(searched.argmax(1) == prior.argmax(1)),
    }  # fmt: skip
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-9)
    assert sum(steps["reward"]) == pytest.approx(facts["episode"]["return"], abs=1e-5)


def test_values_are_judged_only_where_the_episode_ends_for_good(cart):
    reward, ended = np.array([1.0, 2.0, 4.0, 8.0]), np.array([False, True, False, False])
    np.testing.assert_allclose(returns_to_go(reward, ended, 0.5), [2, 2, np.nan, np.nan])
    np.testing.assert_allclose(returns_to_go(reward, np.arange(4) == 3, 0.5), [4, 6, 8, 8])
    facts, steps = inspected(cart)
    assert facts["episode"]["done"] and len(steps["reward"]) < 50  # the pole fell; the preset cuts at 50 steps
    reward = np.array(steps["reward"])
    returns = returns_to_go(reward, np.arange(len(reward)) == len(reward) - 1, 0.997)
    assert steps["return_to_go"] == pytest.approx(returns.tolist(), rel=1e-12) and steps["gamma"] == 0.997
    found = facts["errors"]["value_mean_absolute"]
    assert found == pytest.approx(np.mean(np.abs(np.subtract(steps["value"], returns))))
    assert inspected(cart, "--max-episode-steps", "3")[1]["return_to_go"] == [None] * 3


def test_the_episode_is_an_evaluations_own_and_a_clipped_reward_is_shown_clipped(memory):
    agent = UniZeroAgent.load(memory, torch.device("cpu"))
    net, config = agent.model, agent.config
    setup = EvalEnvironments.of(config, torch.device("cpu"))
    (score,) = agent.scores(setup, ("",), 1, 1, 7).values()
    plain = play_trajectory(net, setup, config, 7, 100)
    assert len(plain) == score.lengths[0] and plain.episode_return[-1] == pytest.approx(score.returns[0])
    signs = replace(config, collection=replace(config.collection, clip_rewards=True))
    clipped = play_trajectory(net, setup, signs, 7, 100)
    np.testing.assert_array_equal(clipped.reward, np.sign(plain.reward))
    assert (clipped.episode_return == plain.episode_return).all() and set(np.unique(plain.reward)) != {-1.0}


@pytest.mark.parametrize("prior", PRIORS)
def test_maps_are_those_of_the_forward_pass_and_rows_sum_to_one(prior):
    net, latent, action = model(prior), simplex(1, 5)[0], actions(1, 5)[0]
    blocks, inputs = attended(net, latent[None], action[None])
    maps = window_attention(net, latent, action)
    assert maps.shape == (2, 2, 10, 10)
    for block, x, drawn in zip(blocks, inputs, maps, strict=True):
        np.testing.assert_allclose(drawn, block.weights(x)[0].numpy(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-12)
    assert (np.triu(maps, 1) == 0).all() == net.causal


@pytest.mark.long
def test_learned_values_are_the_checkpoints_and_start_where_the_config_says(memory):
    facts, _ = inspected(memory)
    weights = Run.open(memory).load(with_replay=False).part("model")
    assert facts["start"] == pytest.approx({"mu": 4.0, "sigma": 1.0, "span": 4.0}, rel=1e-6)
    for layer in range(2):
        for name in ("mu", "sigma", "span"):
            raw = weights[f"dynamics.stack.layers.{layer}.attention.prior.raw.{name}"]
            assert facts["learned"][name][0][layer] == pytest.approx(raw.double().exp().log1p().tolist(), rel=1e-5)


@pytest.mark.long
def test_a_prior_starts_where_the_paper_starts_it_unless_told_otherwise(tmp_path):
    def span(*flags):
        prior = UniZeroTrainer.configure([*flags, "--env", "CartPole-v1"]).model.prior
        return prior.kind, prior.mu, prior.sigma, prior.span, prior.regulariser_weight

    assert span("--prior", "gaussian_adaptive") == ("gaussian_adaptive", 6.0, 1.0, 10.0, 0.025)
    assert span("--prior", "gaussian_adaptive_gate")[3] == 10 and span("--prior", "adaptive")[3] == 6
    assert span("--config", "unizero/memory-5x5", "--prior", "gaussian_adaptive")[3] == 10
    assert span("--prior", "gaussian_adaptive", "--span", "6")[3] == 6
    assert span("--config", "unizero/smoke", "--prior", "gaussian_adaptive")[3] == 4  # the preset says so
    (tmp_path / "mine.toml").write_text('[model.prior]\nkind = "gaussian_adaptive"\n')
    assert span("--config", str(tmp_path / "mine.toml"))[3] == 10


def test_wrong_input_is_one_sentence_and_writes_nothing(memory, capsys):
    before = contents(memory)
    refusals = dict.fromkeys(("--max-episode-steps 0", "--simulations 0"), "must be at least 1")
    refusals |= {
        "--threads 0": "between 1 and 1024",
        "--seed -1": "must be at least 0", f"--seed {2**63}": "and below",
        "--device abacus": "abacus",
    }  # fmt: skip
    for flag, words in refusals.items():
        assert words in refused(capsys, [str(memory), *flag.split()], main)
    assert contents(memory) == before
    assert "no run folder" in refused(capsys, [str(memory / "nothing")], main)
    assert "--run RUN" in refused(capsys, [], main)


@pytest.mark.long
def test_plain_causal_attention_has_learned_nothing(cart):
    assert inspected(cart)[0]["pictures"] == ["attention.png"]


@pytest.mark.parametrize("dynamics", ["recurrent", pytest.param("gru", marks=pytest.mark.long)])
def test_dynamics_without_attention_have_no_picture(tmp_path, dynamics):
    run = made(tmp_path / "run", "--dynamics", dynamics, steps=100)
    facts, _ = inspected(run, "--max-episode-steps", "4")
    assert facts["pictures"] == []
    assert facts["learned"] == facts["start"] == {}


@pytest.mark.long
def test_pong_is_drawn(tmp_path):
    more = ("--env", "ALE/Pong-v5", "--num-envs", "2", "--max-episode-steps", "6", "--prior", "local")
    run = made(tmp_path / "run", *more, "--learning-starts", "40", "--batch-size", "4", steps=48)
    facts, steps = inspected(run)
    assert facts["pictures"] == ["priors.png", "attention.png"]
    assert len(steps["prior"][0]) == 6 and facts["episode"]["steps"] == 6
