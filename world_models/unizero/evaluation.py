"""Episodes without noise: N worlds, a fixed quota of episodes each."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from dqn_memory.runs.folder import Streams, generator
from dqn_memory.runs.score import Score, Tally, tells_success
from envs.fleet import Fleet, make_fleet
from world_models.unizero.acting import Planner
from world_models.unizero.engine import Planning
from world_models.unizero.networks import WorldModel
from world_models.unizero.search import SearchConfig, draw
from world_models.unizero.train_config import TrainConfig


@dataclass(frozen=True)
class Arena:
    """Where and how a model is evaluated."""

    env: str
    env_kwargs: dict[str, Any]
    observation_key: str | None
    device: torch.device
    search: SearchConfig
    forget: bool = False  # everything before each step: what the agent does without a memory

    @classmethod
    def of(cls, config: TrainConfig, device: torch.device) -> Arena:
        """The run's own world, with the time limit of evaluations."""
        world = config.world
        return cls(world.env, config.env_kwargs(training=False), world.observation_key, device, config.search)

    def fleet(self, rows: int, seed: int) -> Fleet:
        """N = `rows` worlds."""
        return make_fleet(
            self.env, rows, seed, self.device, observation_key=self.observation_key, env_kwargs=self.env_kwargs
        )

    def with_simulations(self, simulations: int | None) -> Arena:
        """The same with another effort (None: as it is)."""
        return self if simulations is None else replace(self, search=replace(self.search, simulations=simulations))


def evaluate(
    model: WorldModel, arena: Arena, rows: int, quota: int, seed: int, planning: Planning | None = None
) -> Score:
    """The first `quota` episodes of each of `rows` worlds, always with the most visited action.

    `planning` executes the model (None: eagerly).
    """
    training, streams = model.training, Streams.spawn(seed)
    fleet = arena.fleet(rows, streams.worlds)
    planner = Planner(model, rows, arena.device, arena.search, planning=planning)
    with closing(fleet):
        tally = _play(fleet, planner, quota, generator(streams.exploration, arena.device), arena.forget)
    model.train(training)
    return tally.score(told=tells_success(fleet))


def _play(fleet: Fleet, planner: Planner, quota: int, numbers: torch.Generator, forget: bool) -> Tally:
    """Until every world has played `quota` episodes; worlds that are through play on."""
    rows, tally = fleet.num_envs, Tally(quota, fleet.num_envs)
    observation = fleet.reset()
    while tally.open:
        drawn = draw(planner.config, rows, fleet.num_actions, numbers, evaluation=True)
        plan = planner.plan(observation, drawn)
        step = fleet.step(plan.found.action)
        planner.remember(plan.latent, plan.found.action, step.done | forget)
        observation = step.observation
        tally.count(step)
    return tally
