"""Evaluation of a GLAM run: quotas, both policies in the same worlds, clear refusals, nothing written."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from glam_runs import TINY, trained
from run_folders import refused
from trained import contents

from dqn_memory.evaluate import main
from dqn_memory.runs.settings import parse
from world_models.glam.acting import Player, PolicyScore, build, evaluate, load
from world_models.glam.config import TrainConfig
from world_models.settings import EvalSetup

SHORT = ("--num-eval-envs", "2", "--episodes-per-env", "2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("glam") / "run", steps=40)


def played(config, rows=3, quota=2, seed=5):
    device = torch.device("cpu")
    model, agent = build(config, 3, 0, device)
    return evaluate(model, agent, EvalSetup.of(config, device), config, rows, quota, seed)


def tiny(**changes):
    config = parse(TrainConfig, TINY.split())
    return replace(config, evaluation=replace(config.evaluation, **changes))


def test_every_world_plays_its_quota():
    score = played(tiny(max_episode_steps=None), rows=3, quota=2)
    assert isinstance(score, PolicyScore) and score.episodes == score.greedy.episodes == 6
    assert (score.lengths == 6).all() and set(score.returns) <= {-2.0, 0.0, 2.0}
    assert (score.success == (score.returns == 2)).all()


def test_the_numbers_are_the_seed_s_and_sampling_is_not_greedy():
    first, again, other = played(tiny()), played(tiny()), played(tiny(), seed=6)
    assert first.scalars() == again.scalars()
    assert not np.array_equal(first.returns, other.returns) or not np.array_equal(
        first.greedy.returns, other.greedy.returns
    )
    assert first.scalars()["eval/greedy_episodic_return"] == first.greedy.returns.mean()
    alone = played(tiny(policy="greedy"))
    assert alone.greedy is None and np.array_equal(alone.returns, first.greedy.returns)


def test_without_its_memory_every_step_opens_an_episode(run, capsys, monkeypatch):
    fresh, act = [], Player.act

    def noted(player, *more):
        fresh.append(player.new.clone())
        return act(player, *more)

    monkeypatch.setattr(Player, "act", noted)
    main([str(run), *SHORT])
    assert not torch.stack(fresh).all()
    fresh.clear()
    capsys.readouterr()
    main([str(run), *SHORT, "--reset-memory"])
    assert torch.stack(fresh).all()
    assert "forgetting everything before each step" in capsys.readouterr().out


def test_the_script_says_both_policies_and_writes_nothing(run, capsys):
    before, found = contents(run), load(run, torch.device("cpu"))
    assert found.step == 40 and not found.model.training and found.model.actions == 3
    main([str(run), *SHORT])
    said = capsys.readouterr().out
    assert said.count("mamba runs on its simd backend on cpu") == 1
    assert "step 40" in said and "sampled actions, 4 episodes" in said and "greedy actions, 4 episodes" in said
    main(["--run", str(run), "--num-eval-envs", "1", "--episodes-per-env", "3", "--format", "json", "--policy=greedy"])
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err.count("mamba runs on its simd backend on cpu") == 1 and told["mamba_backend"] == "simd"
    assert told["greedy"]["episodes"] == 3 and "sampled" not in told and told["step"] == 40
    assert contents(run) == before


def test_what_is_wrong_is_one_sentence(run, tmp_path, capsys):
    assert "needs frames" in refused(capsys, [str(run), "--env", "CartPole-v1"], main)
    assert "18 actions" in refused(capsys, [str(run), "--env", "ALE/Boxing-v5"], main)
    assert "--num-eval-envs 0" in refused(capsys, [str(run), "--num-eval-envs", "0"], main)
    assert "no run folder" in refused(capsys, [str(tmp_path)], main)
