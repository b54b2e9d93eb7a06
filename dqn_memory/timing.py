"""How long one update of the learner takes, for the parameter report."""

from __future__ import annotations

import copy
import statistics
import time

import torch

from dqn_memory.analysis.timing import full_replay
from dqn_memory.learner import optimizer_for, sample, update
from dqn_memory.learner_config import LearnerConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.observations import ObservationSpec

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
