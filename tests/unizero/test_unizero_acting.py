"""UniZero's planner keeps each world's history apart, and an evaluation plays its quota."""

from dataclasses import replace

import torch
from unizero_models import ACTIONS, VECTOR, config, model

from world_models.unizero.acting import EvalSetup, Planner, evaluate
from world_models.unizero.config import SearchConfig
from world_models.unizero.networks import build
from world_models.unizero.search import draw


def test_a_world_remembers_its_own_episode_only():
    planner = Planner(model(), 3, torch.device("cpu"), SearchConfig(simulations=1))
    latent, action = torch.rand(3, 16, dtype=torch.float64), torch.tensor([0, 1, 2])
    for done in ([0, 0, 0], [0, 1, 0], [0, 0, 0]):
        planner.remember(latent, action, torch.tensor(done, dtype=torch.bool))
    assert planner.window.count.tolist() == [3, 1, 3]
    assert planner.window.action[1, 0] == 1 and torch.equal(planner.window.latent[1, 0], latent[1])


def test_the_released_wipe_lasts_until_every_world_has_ended_an_episode():
    planner = Planner(model(), 2, torch.device("cpu"), SearchConfig(simulations=1), "released")
    latent, action, counts = torch.rand(2, 16, dtype=torch.float64), torch.tensor([0, 1]), []
    for done in ([0, 0], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]):
        planner.remember(latent, action, torch.tensor(done, dtype=torch.bool))
        counts.append(planner.window.count.tolist())
    assert counts == [[1, 1], [0, 0], [0, 0], [0, 0], [0, 0], [1, 1]]


def test_a_plan_depends_on_what_was_seen_before():
    planner = Planner(model(), 1, torch.device("cpu"), SearchConfig(simulations=8))
    numbers = draw(planner.config, 1, ACTIONS, torch.Generator().manual_seed(0))
    seen = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = planner.plan(seen, numbers)
    planner.remember(planner.model.encode(-seen), torch.tensor([2]), torch.tensor([False]))
    assert not torch.equal(alone.found.predicted, planner.plan(seen, numbers).found.predicted)
    planner.remember(alone.latent, torch.tensor([2]), torch.tensor([True]))
    assert torch.equal(alone.found.predicted, planner.plan(seen, numbers).found.predicted)


def test_an_evaluation_plays_its_quota_in_each_world_and_repeats_itself():
    player = _two_actions()
    setup = EvalSetup("CartPole-v1", {}, None, torch.device("cpu"), search=SearchConfig(simulations=3))
    first, again = (evaluate(player, setup, 3, 2, seed=5) for _ in range(2))
    other = evaluate(player, setup, 3, 2, seed=6)
    assert first.episodes == 6 and (first.lengths > 0).all()
    assert first.lengths.tolist() == again.lengths.tolist() != other.lengths.tolist()
    assert first.returns.tolist() == first.lengths.tolist()  # CartPole pays 1 a step


def test_without_its_memory_a_planner_has_no_history(monkeypatch):
    counts, plan = [], Planner.plan

    def noted(planner, observation, numbers):
        counts.append(int(planner.window.count.max()))
        return plan(planner, observation, numbers)

    monkeypatch.setattr(Planner, "plan", noted)
    player = _two_actions()
    setup = EvalSetup("CartPole-v1", {}, None, torch.device("cpu"), search=SearchConfig(simulations=3))
    evaluate(player, setup, 2, 1, seed=5)
    assert max(counts) > 1
    counts.clear()
    evaluate(player, replace(setup, reset_memory=True), 2, 1, seed=5)
    assert counts and max(counts) == 0


def _two_actions():
    """An untrained player of CartPole."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(config(), VECTOR, 2)
