"""A memory that outlives episodes: what acting and updates compute, exact resume, scores, and a task that needs it."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import assert_same_run, metrics
from test_rollouts import collect, collector
from trained import CARDS, MEMORY, rollout_flags

from dqn_memory.agent import Agent
from dqn_memory.evaluate import EvalSetup
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer

KINDS = pytest.mark.parametrize("kind", [PQNTrainer, PPOTrainer])


class Arms(gymnasium.Env):
    """Two arms and episodes of one pull; the good arm is shown in one of eight episodes, and then changes."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.played = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        shown = seed is not None or self.played % 8 == 0
        if shown:
            self.played, self.good = 0, int(self.np_random.integers(2))
        self.played += 1
        return np.array([2 * self.good - 1 if shown else 0], np.float32), {}

    def step(self, action):
        reward = float(action == self.good)
        return np.zeros(1, np.float32), reward, True, False, {"success": reward > 0}


gymnasium.register("Tests/Arms-v0", Arms)


def trained(kind, run, *more, steps=512):
    kind.main(rollout_flags(run, *more, steps=steps))
    return run


def test_a_kept_memory_crosses_ends_of_episodes_as_it_crosses_steps():
    """Acting is one sequence without resets, in which each observation follows the action before it."""
    each = collector(16, keep=True)
    start = each.state
    parts = [collect(each) for _ in range(2)]
    names = ("observation", "action", "done")
    observation, action, done = (torch.cat([getattr(part, name) for part in parts], 1) for name in names)
    assert done[:, :-1].any(1).all()
    none = torch.full((4, 1), each.vector.num_actions)
    q, _ = each.network.sequence(observation, torch.cat((none, action[:, :-1]), 1), start)
    torch.testing.assert_close(q, torch.cat([part.outputs.q for part in parts], 1), rtol=0, atol=1e-12)


def test_updates_compute_what_acting_with_a_kept_memory_computed():
    each = collector(8, keep=True)
    collect(each)
    steps = collect(each)
    x, _ = each.network.encode_sequence(*steps.inputs)
    torch.testing.assert_close(tuple(each.read(x, steps.observation)), tuple(steps.outputs), rtol=0, atol=1e-12)
    assert steps.done.any()


@KINDS
@pytest.mark.parametrize("more", [("--env", MEMORY, "--time-limit", "9"), (
    "--env", "CartPole-v1", "--checkpoint-every", "256", "--max-repeated-actions", "150", "--action-embedding", "4",
)])  # fmt: skip
def test_a_resume_of_a_run_with_a_kept_memory_is_exact(tmp_path, kind, more):
    """Also where a checkpoint begins new episodes, as a resume would repeat too many actions."""
    whole = trained(kind, tmp_path / "whole", "--keep-memory", *more, steps=1024)
    parts = trained(kind, tmp_path / "parts", "--keep-memory", *more)
    kind.main(["--resume", str(parts), "--total-steps", "1024"])
    ended = next(line for line in metrics(parts) if "final/episodes" in line)
    assert [line for line in metrics(parts) if line != ended] == metrics(whole)
    assert_same_run(whole, parts)


@pytest.mark.long
@KINDS
def test_a_task_over_several_episodes_is_learned_with_a_kept_memory(tmp_path, kind):
    """Without the memory no agent is right in more than 9 of 16 episodes."""
    more = "--env Tests/Arms-v0 --keep-memory --random-start-steps 0 --num-envs 16 --learning-rate 0.003"
    run = trained(kind, tmp_path, *more.split(), "--final-episodes", "400", "--memory-ablation", steps=12_000)
    last = metrics(run)[-1]
    assert last["final/success_rate"] > 0.9 and last["memory_ablation/success_rate"] < 0.65
    assert Agent.load(run).play(gymnasium.make("Tests/Arms-v0"), 64, seed=3).success.mean() > 0.9


@pytest.mark.parametrize("keep", [False, True])
def test_an_agent_keeps_its_memory_where_an_episode_begins_if_it_was_trained_so(tmp_path, keep):
    run = trained(PQNTrainer, tmp_path, "--env", CARDS, "--keep-memory" if keep else "--no-keep-memory", steps=64)
    env, outputs = gymnasium.make(f"envs:{CARDS}"), []
    seen = [env.reset(seed=seed)[0] for seed in (0, 1)]
    for reset in (True, False):
        agent = Agent.load(run)
        agent.act(seen[0], True)
        agent.act(seen[1], reset)
        outputs.append(agent.q)
    assert np.array_equal(*outputs) == keep


def test_scores_are_of_many_episodes_in_a_row_of_ten_environments():
    """Not of each initial state once, as where memories are reset."""
    setup = EvalSetup(MEMORY, {}, torch.device("cpu"), acting_state="episode")
    vector, *found = setup.vector(105, seed=1)
    assert (vector.num_envs, *found) == (24, 1, True)
    vector, *found = replace(setup, keep_memory=True).vector(105, seed=1)
    assert (vector.num_envs, *found) == (10, 11, False)
