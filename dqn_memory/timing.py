"""How long one update of the learner takes, for the parameter report."""

from __future__ import annotations

import copy
import statistics
import time

import torch

from dqn_memory.learner import optimizer_for, sample, update
from dqn_memory.learner_config import LearnerConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.observations import ObservationSpec
from dqn_memory.replay import Replay

WORLDS = 4
WARM_UP = 2  # updates that allocate, and are not counted


def milliseconds_per_update(config: NetworkConfig, spec: ObservationSpec, num_actions: int, updates: int = 10) -> float:
    """Median time of one update with the learner's defaults on full windows of K steps.

    Sampling, three forwards, backward, clipping and Adam; eager, float32, on the CPU with torch's threads.
    """
    learner, draws = LearnerConfig(), torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = config.build(spec, num_actions)
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = optimizer_for(network, learner)
    replay = full_replay(spec, num_actions, config.context, draws)
    ends = learner.ends(network)
    seconds = []
    for _ in range(WARM_UP + updates):
        began = time.perf_counter()
        update(network, target, optimizer, sample(replay, learner, config.context, ends, draws), learner)
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds[WARM_UP:])


def full_replay(spec: ObservationSpec, num_actions: int, context: int, draws: torch.Generator) -> Replay:
    """A replay of random transitions that has wrapped around, so that every window is K steps long."""
    columns = 2 * context + 2
    replay = Replay(spec, num_actions, WORLDS, columns * WORLDS, torch.device("cpu"))
    for moment in range(columns + context):
        action = torch.randint(num_actions, (2, WORLDS), generator=draws)
        replay.add(
            observation=_observation(spec, draws), next_observation=_observation(spec, draws),
            previous_action=action[0], action=action[1], reward=torch.rand(WORLDS, generator=draws),
            terminated=torch.zeros(WORLDS, dtype=torch.bool), done=torch.zeros(WORLDS, dtype=torch.bool),
            time=torch.full((WORLDS,), moment),
        )  # fmt: skip
    return replay


def _observation(spec: ObservationSpec, draws: torch.Generator) -> torch.Tensor:
    if spec.kind == "discrete":
        return torch.randint(spec.vocabulary - 1, (WORLDS, *spec.shape), generator=draws)
    return torch.rand(WORLDS, *spec.shape, generator=draws)
