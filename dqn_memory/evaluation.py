"""Greedy episodes of a Q-network."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from dqn_memory.acting import ActingMode, ActingState, Actor, Forgetful, make_actor
from dqn_memory.network import QNetwork
from dqn_memory.runs.score import Score, Tally, tells_success
from envs.fleet import TensorFleet, make_fleet
from envs.registry import WORLDS, make_world

MOST_ROWS = 250


@dataclass(frozen=True)
class Arena:
    """Where and how a network is evaluated."""

    env: str
    env_kwargs: dict[str, Any]
    observation_key: str | None
    device: torch.device
    acting: ActingMode = "prefix"
    acting_state: ActingState = "window"
    forget: bool = False  # everything before each step

    def fleet(self, episodes: int, seed: int) -> tuple[Any, int, bool]:
        """Worlds for at least `episodes` episodes, episodes a row, and whether they are all initial states."""
        name = self.env.removeprefix("envs:")
        if name in WORLDS:
            world = make_world(name, device=self.device, **self.env_kwargs)
            draws = world.initial_draws()
            if draws is not None:
                return TensorFleet(world, len(draws), seed, initial=draws), 1, True
        rows = min(episodes, MOST_ROWS)
        fleet = make_fleet(
            self.env,
            rows,
            seed,
            self.device,
            observation_key=self.observation_key,
            env_kwargs=self.env_kwargs,
        )
        return fleet, math.ceil(episodes / rows), False

    def actor(self, network: QNetwork, rows: int) -> Actor:
        """The network at play in N = `rows` episodes."""
        actor = make_actor(network, rows, self.device, self.acting, self.acting_state)
        return Forgetful(actor) if self.forget else actor


@torch.no_grad()
def evaluate(network: QNetwork, arena: Arena, episodes: int, seed: int) -> Score:
    """Greedy episodes of `network`; each row's first episodes count."""
    training = network.training
    network.eval()
    fleet, quota, exhaustive = arena.fleet(episodes, seed)
    with closing(fleet):
        tally = _play(fleet, arena.actor(network, fleet.num_envs), quota)
    network.train(training)
    return tally.score(None if exhaustive else episodes, exhaustive, tells_success(fleet))


def _play(fleet: Any, actor: Actor, quota: int) -> Tally:
    """Until every row has played `quota` episodes."""
    rows, tally = fleet.num_envs, Tally(quota, fleet.num_envs)
    action = torch.zeros(rows, dtype=torch.int64, device=fleet.device)
    observation, reset = fleet.reset(), torch.ones(rows, dtype=torch.bool, device=fleet.device)
    while tally.open:
        actor.observe(observation, action, reset)
        action = actor.q_values().argmax(1)
        step = fleet.step(action)
        observation, reset = step.observation, step.done
        tally.count(step)
    return tally
