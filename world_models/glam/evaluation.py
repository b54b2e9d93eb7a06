"""Episodes of a trained agent: N worlds, a fixed quota of episodes each, with drawn actions and with the best ones."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from dqn_memory.runs.backend import facts as facts_of
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.score import Evaluation, EvaluationOptions, Score, Tally, tells_success
from dqn_memory.runs.seeding import Streams, generator
from envs.fleet import Fleet, make_fleet
from world_models.glam.acting import ActingNoise, Player
from world_models.glam.agent import Agent
from world_models.glam.config import ComputeConfig, TrainConfig
from world_models.glam.loading import Trained, check_frames, load
from world_models.glam.memory import memory
from world_models.glam.model import WorldModel

Way = Literal["sampled", "greedy"]
WAYS: tuple[Way, ...] = ("sampled", "greedy")


@dataclass(frozen=True)
class PolicyScore(Score):
    """A score, and beside it that of the same worlds under the most probable actions, where both were played."""

    greedy: Score | None = None

    def scalars(self) -> dict[str, float]:
        """As `Score`; those of the other policy are called eval/greedy_..."""
        beside = {} if self.greedy is None else self.greedy.scalars()
        return super().scalars() | {name.replace("/", "/greedy_"): value for name, value in beside.items()}


@dataclass(frozen=True)
class Arena:
    """Where an agent is evaluated."""

    env: str
    env_kwargs: dict[str, Any]
    observation_key: str | None
    device: torch.device
    forget: bool = False  # everything before each step: what the agent does without a memory

    @classmethod
    def of(cls, config: TrainConfig, device: torch.device) -> Arena:
        """The run's own world, with the time limit of evaluations."""
        return cls(
            config.environment.env, config.env_kwargs(training=False), config.environment.observation_key, device
        )

    def fleet(self, rows: int, seed: int) -> Fleet:
        """N = `rows` worlds."""
        return make_fleet(
            self.env, rows, seed, self.device, observation_key=self.observation_key, env_kwargs=self.env_kwargs
        )


def make_player(model: WorldModel, agent: Agent, rows: int, blind: bool) -> Player:
    """The agent in N worlds, with the memory that its model imagines with."""
    config = model.config
    return Player(model, agent.policy, memory(model, config.imagination_memory, config.acting_context), rows, blind)


def evaluate(
    model: WorldModel, agent: Agent, arena: Arena, config: TrainConfig, rows: int, quota: int, seed: int
) -> PolicyScore:
    """The first `quota` episodes of each of `rows` worlds, under the policies that the config says.

    Both policies meet the same worlds. Leaves the model in evaluation mode.
    """
    chosen = config.evaluation.policy
    ways = WAYS if chosen == "both" else (chosen,)
    first, *other = (_score(model, agent, arena, config, rows, quota, seed, way) for way in ways)
    return PolicyScore(**vars(first), greedy=other[0] if other else None)


def _score(
    model: WorldModel, agent: Agent, arena: Arena, config: TrainConfig, rows: int, quota: int, seed: int, way: Way
) -> Score:
    streams = Streams.spawn(seed)
    fleet = arena.fleet(rows, streams.worlds)
    player = make_player(model, agent, rows, config.collection.act_before_observing)
    numbers = generator(streams.exploration, arena.device)
    with closing(fleet):
        tally = play(fleet, player, quota, numbers, way == "greedy", arena.forget)
    return tally.score(told=tells_success(fleet))


def play(
    fleet: Fleet, player: Player, quota: int, numbers: torch.Generator, greedy: bool, forget: bool = False
) -> Tally:
    """Until every world has played `quota` episodes; worlds that are through play on."""
    rows, tally = fleet.num_envs, Tally(quota, fleet.num_envs)
    observation, first = fleet.reset(), torch.ones(rows, dtype=torch.bool, device=fleet.device)
    while tally.open:
        if forget:
            player.forget()
        noise = ActingNoise.draw(player.model, rows, fleet.num_actions, numbers)
        step = fleet.step(player.act(observation, first, noise, greedy))
        observation, first = step.observation, step.done
        tally.count(step)
    return tally


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play the same environments with drawn actions, as in training, and with the most probable ones."""
    device = ComputeConfig(options.device, options.threads).start()
    found = load(run, device)
    policy = options.policy or "both"
    config = replace(found.config, evaluation=replace(found.config.evaluation, policy=policy))
    if options.env is not None:
        config = replace(config, environment=replace(config.environment, env=options.env, path=None))
        _check_environment(config, found, device)
    arena = replace(Arena.of(config, device), forget=options.reset_memory)
    rows, quota = options.num_eval_envs or 20, options.episodes_per_env or 5
    score = evaluate(found.model, found.agent, arena, config, rows, quota, options.seed)
    scores: dict[str, Score] = {policy: score} if score.greedy is None else {"sampled": score, "greedy": score.greedy}
    facts = {"sequence": config.model.sequence, **facts_of(found.backend)}
    return Evaluation(
        found.step, config.model.sequence, arena.env, arena.env_kwargs, scores, facts, backend=found.backend
    )


def _check_environment(config: TrainConfig, found: Trained, device: torch.device) -> None:
    """A UserError says why the agent cannot act there."""
    fleet = Arena.of(config, device).fleet(1, 0)
    check_frames(fleet, config)
    if fleet.num_actions != found.model.actions:
        raise UserError(
            f"--env {config.environment.env} has {fleet.num_actions} actions, but the agent was trained with "
            f"{found.model.actions}"
        )
