"""Rollouts and what is learned from them: returns by hand, carried states, bootstraps, and runs that must learn."""

from dataclasses import fields, replace

import pytest
import torch
from trained import CAR, MEMORY

from dqn_memory.network import NetworkConfig, observation_spec
from dqn_memory.ppo import ActorCritic, PPOLearnerConfig, PPOTrainer, ppo_loss
from dqn_memory.pqn import PQNLearnerConfig, PQNTrainer, q_lambda, td_loss
from dqn_memory.rollouts import Collector, Rollout, lambda_returns
from dqn_memory.runs.metrics import read_metrics
from envs.fleet import make_fleet

GAMMA, DECAY = 0.5, 0.25


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def rollout(reward, terminated, truncated, **more):
    """One environment's rollout that holds what returns depend on."""
    ended = rows(terminated, dtype=torch.bool)
    known = {"reward": rows(reward), "terminated": ended, "done": ended | rows(truncated, dtype=torch.bool)} | more
    return Rollout(**{each.name: known.get(each.name) for each in fields(Rollout)})


def test_returns_through_ends_of_every_kind_by_hand():
    """Five steps: the second terminates, the fourth is cut off, the fifth goes on after the rollout."""
    steps = rollout([1, 2, 3, 4, 5], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0])
    value, following = rows([10, 20, 30, 40, 50]), rows([0, 0, 0, 44, 55])
    last = 5 + GAMMA * 55
    cut_off = 4 + GAMMA * 44
    third = 3 + GAMMA * (0.75 * 40 + 0.25 * cut_off)
    second = 2.0
    first = 1 + GAMMA * (0.75 * 20 + 0.25 * second)
    found = lambda_returns(steps, value, following, GAMMA, DECAY)
    assert found.tolist() == [pytest.approx([first, second, third, cut_off, last])]
    advantage = found - value  # as GAE: a sum of temporal differences, discounted by gamma lambda
    differences = [1 + GAMMA * 20 - 10, 2 - 20, 3 + GAMMA * 40 - 30, 4 + GAMMA * 44 - 40, 5 + GAMMA * 55 - 50]
    assert advantage[0, 0] == pytest.approx(differences[0] + GAMMA * DECAY * differences[1])
    assert advantage[0, 2] == pytest.approx(differences[2] + GAMMA * DECAY * differences[3])


def test_targets_of_pqn_stop_at_actions_that_were_not_greedy():
    """Q of two actions; the third step's action is not the greedy one, so Watkins's return of the second ends there."""
    outputs = rows([[1, 0], [0, 2], [3, 0], [0, 4]])
    steps = rollout(
        [1, 1, 1, 1], [0] * 4, [0] * 4,
        outputs=outputs, action=rows([0, 1, 1, 1], dtype=torch.int64), following=torch.full((1, 4, 2), 6.0).double(),
    )  # fmt: skip
    fourth = 1 + GAMMA * 6
    third = 1 + GAMMA * (0.75 * 4 + 0.25 * fourth)
    whole, cut = 1 + GAMMA * (0.75 * 3 + 0.25 * third), 1 + GAMMA * 3
    for kind, second in (("none", whole), ("watkins", cut)):
        first = 1 + GAMMA * (0.75 * 2 + 0.25 * second)
        found = q_lambda(steps, PQNLearnerConfig(gamma=GAMMA, trace_decay=DECAY, cut=kind))
        assert found.tolist() == [pytest.approx([first, second, third, fourth])]


def collector(length, env=MEMORY, critic=False, scale=None):
    """Four environments whose episodes are cut off after 5 steps, and a network in float64."""
    torch.manual_seed(0)
    fleet = make_fleet(env, 4, 7, env_kwargs={"time_limit": 5})
    config = NetworkConfig("gru", width=16, action_embedding=4, initialisation="torch")
    network = config.build(observation_spec(fleet.observation_space), fleet.num_actions)
    return Collector(fleet, (ActorCritic(network) if critic else network).double(), length, GAMMA, scale)


def act(outputs, reset, t):
    return (outputs[:, 0].abs() * 1e4).long() % 3  # as good as random, and the same again


def collected(each, times=1):
    parts = [each.collect(act, lambda step: None) for _ in range(times)]
    return {name: torch.cat([getattr(part, name) for part in parts], 1) for name in (
        "observation", "previous_action", "reset", "action", "reward", "terminated", "done", "outputs"
    )}  # fmt: skip


def test_a_rollout_in_one_piece_equals_two_with_the_carried_state():
    whole, halves = collected(collector(16)), collected(collector(8), 2)
    assert whole["done"].any() and not whole["terminated"].all()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_rewards_are_scaled_by_the_spread_of_discounted_returns_so_far():
    plain, scaled = collected(collector(12, scale=1.0)), collected(collector(12))
    returns, seen = torch.zeros(4, dtype=torch.float64), []
    for t in range(12):
        returns = GAMMA * returns + plain["reward"][:, t]
        seen.append(returns)
        spread = torch.stack(seen).std(correction=0)
        spread = spread if spread > 1e-8 else torch.ones(())  # as long as all returns are the same
        torch.testing.assert_close(scaled["reward"][:, t], (plain["reward"][:, t] / spread).float(), rtol=1e-4, atol=0)
        returns = torch.where(plain["done"][:, t], 0.0, returns)


@pytest.mark.parametrize("critic", [False, True])
def test_updates_compute_what_acting_computed(critic):
    """From the state before the second rollout, through resets inside it."""
    each = collector(8, critic=critic)
    each.collect(act, lambda step: None)
    steps = each.collect(act, lambda step: None)
    found, _ = each.network.sequence(steps.observation, steps.previous_action, steps.state, steps.reset)
    torch.testing.assert_close(found, steps.outputs, rtol=0, atol=1e-12)
    assert steps.reset[:, 1:].any() and torch.equal(steps.reset[:, 1:], steps.done[:, :-1])
    actions = torch.where(steps.done[:, :-1], each.fleet.num_actions, steps.action[:, :-1])  # none where one begins
    assert torch.equal(steps.previous_action[:, 1:], actions)


def test_what_is_cut_off_is_valued_by_its_final_observation_in_its_own_episode():
    each, seen = collector(8, CAR), []
    steps = each.collect(act, seen.append)
    cut = torch.stack([step.truncated for step in seen], 1)
    expected = torch.zeros_like(steps.outputs)
    for row in range(4):
        for t in range(8):
            ends = cut[row, t] or (t == 7 and not steps.terminated[row, t])
            if ends:
                start = int(steps.reset[row, : t + 1].nonzero().max())
                last = seen[t].final_observation[row, None, None]
                observation = torch.cat((steps.observation[row, None, start : t + 1], last), 1)
                action = steps.action[row, None, t : t + 1]
                previous = torch.cat((steps.previous_action[row, None, start : t + 1], action), 1)
                expected[row, t] = each.network.sequence(observation, previous)[0][0, -1]
    assert cut.any() and not cut.all()
    torch.testing.assert_close(steps.following, expected, rtol=0, atol=1e-12)


def test_losses_are_known_at_the_values_that_acted():
    """PQN's error of its own Q is 0, and PPO's ratio is 1."""
    each = collector(8)
    steps = each.collect(act, lambda step: None)
    chosen = steps.outputs.gather(2, steps.action.unsqueeze(2)).squeeze(2)
    assert td_loss(each.network, steps, chosen)[0] < 1e-20
    assert float(td_loss(each.network, steps, chosen + 1)[0].detach()) == pytest.approx(0.5)
    each = collector(8, critic=True)
    steps = each.collect(act, lambda step: None)
    advantage, config = torch.randn(4, 8, dtype=torch.float64), PPOLearnerConfig(value_weight=1, entropy_weight=0)
    loss, metrics = ppo_loss(each.network, steps, steps.outputs[..., -1] + 2, advantage, config)
    assert float(loss.detach()) == pytest.approx(4) and float(metrics["losses/policy"]) == pytest.approx(0, abs=1e-12)


def test_ppo_earns_nothing_beyond_its_clip():
    """Where the probability of an action has moved far in the direction of its advantage, there is no gradient."""
    each = collector(8, critic=True)
    steps = each.collect(act, lambda step: None)
    changed = torch.randn(steps.outputs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    moved = replace(steps, outputs=steps.outputs + 0.5 * changed)
    advantage, config = torch.randn(4, 8, dtype=torch.float64), PPOLearnerConfig(value_weight=0, entropy_weight=0)
    taken = steps.action.unsqueeze(2)
    new, old = (part.outputs[..., :-1].softmax(2).gather(2, taken).squeeze(2) for part in (steps, moved))
    ratio, scaled = new / old, (advantage - advantage.mean()) / advantage.std()
    gains = [min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio.flatten(), scaled.flatten(), strict=True)]
    loss, _ = ppo_loss(each.network, moved, advantage, advantage, config)
    assert ((ratio < 0.8) | (ratio > 1.2)).any() and float(loss.detach()) == pytest.approx(-float(sum(gains)) / 32)


@pytest.mark.long
@pytest.mark.parametrize(("trainer", "flags"), [
    (PQNTrainer, "--config pqn/memory-5x5"),
    (PPOTrainer, "--total-steps 700000 --threads 1"),
])  # fmt: skip
def test_memory_5x5_is_learned_within_a_minute(tmp_path, trainer, flags):
    run = tmp_path / "run"
    trainer.main([*flags.split(), "--env", MEMORY, "--seed", "61", "--run", str(run)])
    assert read_metrics(run / "metrics.jsonl")[-1]["final/success_rate"] >= 0.95
