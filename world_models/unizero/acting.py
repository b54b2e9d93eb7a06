"""Planning in N worlds at once, each behind what it has seen in its own episode."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dqn_memory.network import observation_spec
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run, check_kind
from dqn_memory.runs.score import Evaluation, EvaluationOptions, Score, Tally, tells_success
from dqn_memory.runs.seeding import Streams, generator
from dqn_memory.runs.settings import from_record, load_plugins
from envs.fleet import Fleet, make_fleet
from world_models.unizero.config import ComputeConfig, SearchConfig, TrainConfig
from world_models.unizero.engine import Planning, make_planning
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.replay import Contexts, Sequences
from world_models.unizero.search import SearchNumbers, SearchResult, draw, search
from world_models.unizero.window import Window


class Plan(NamedTuple):
    """A search at N current observations, and what `Planner.remember` needs of it."""

    found: SearchResult
    latent: Tensor  # (N, D) of the current observations


class Planner:
    """A world model with a history window per world.

    The window keeps latents as they were encoded when they were seen: an update between two steps changes what is seen
    from then on, as in the reference. `reset_history` says when histories are emptied, see CollectionConfig.
    `planning` executes the model (None: eagerly).
    """

    def __init__(
        self, model: WorldModel, rows: int, device: torch.device, config: SearchConfig,
        reset_history: Literal["episode", "released"] = "episode", planning: Planning | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.reset_history = model, config, reset_history
        self.planning = make_planning("eager", model) if planning is None else planning
        self.window = model.window(rows, device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)  # in this round; for `released` only

    @torch.no_grad()
    def see(self, observation: Tensor) -> Tensor:
        """Latents (N, D) of observations (N, ...); sets the model's evaluation mode."""
        self.model.eval()
        return self.planning.encode(observation)

    @torch.no_grad()
    def plan(self, observation: Tensor, numbers: SearchNumbers) -> Plan:
        """Search from observations (N, ...) with one row of numbers each; sets the model's evaluation mode."""
        latent = self.see(observation)
        return Plan(search(self.planning.functions, self.window, latent, numbers, self.config), latent)

    def remember(self, latent: Tensor, action: Tensor, done: Tensor) -> None:
        """Append what was seen and done, latent (N, D) and action (N,); forget rows (N,) whose episode ended."""
        pushed = self.window.push(latent, action)
        self.window = Window(pushed.latent, pushed.action, torch.where(self._forgets(done), 0, pushed.count))

    def _forgets(self, done: Tensor) -> Tensor:
        if self.reset_history == "episode":
            return done
        ended = self.ended | done
        self.ended = ended & ~ended.all()  # the last end closes the round
        return done | ended.any()

    def state_dict(self) -> dict[str, Tensor]:
        """What an exact continuation needs."""
        return {**vars(self.window), "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        device = self.ended.device
        self.window = Window(**{name: state[name].to(device) for name in ("latent", "action", "count")})
        self.ended = state["ended"].to(device)


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
        world = config.environment
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


KIND = "unizero"  # what a checkpoint's header says


def load_model(run: Path | str, device: torch.device | str = "cpu") -> tuple[WorldModel, TrainConfig, int]:
    """The model of the latest checkpoint in evaluation mode, the run's config, and the step it was saved at.

    Nothing is written. Raises UserError for a folder without a run or checkpoint, a damaged or foreign one,
    or weights that do not fit the config.
    """
    path = Path(run)
    checkpoint = Run.open(path, tensorboard=False).load(with_replay=False)
    check_kind(path, checkpoint, KIND)
    config = from_record(TrainConfig, checkpoint.header["config"], f"the config in the checkpoint of {path}")
    load_plugins(config.plugin)
    world = config.environment
    fleet = make_fleet(
        world.env, 1, 0, observation_key=world.observation_key, env_kwargs=config.env_kwargs(training=False)
    )
    with torch.random.fork_rng(devices=[]):  # the first weights are overwritten at once
        model = build(config.model, observation_spec(fleet.observation_space), fleet.num_actions)
    checkpoint.fill(model, "model")
    return model.to(device).eval(), config, checkpoint.step


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play without noise, always the most visited action, with the model of a run's latest checkpoint."""
    device = ComputeConfig(options.device, options.threads).start()
    model, config, step = load_model(run, device)
    arena = make_arena(options, config, model, device)
    score = evaluate(model, arena, options.num_eval_envs or 20, options.episodes_per_env or 5, options.seed)
    form, prior, simulations = config.model.dynamics, config.model.prior.kind, arena.search.simulations
    agent = f"{form} dynamics, {prior} prior, {simulations} simulations"
    facts = {"dynamics": form, "prior": prior, "simulations": simulations}
    return Evaluation(step, agent, arena.env, arena.env_kwargs, {"": score}, facts)


def make_arena(options: EvaluationOptions, config: TrainConfig, model: WorldModel, device: torch.device) -> Arena:
    """Where to evaluate; a UserError says why the model cannot act in another environment."""
    arena = replace(Arena.of(config, device).with_simulations(options.simulations), forget=options.reset_memory)
    if options.env is None:
        return arena
    there = replace(config, environment=replace(config.environment, env=options.env, path=None))
    arena = replace(arena, env=options.env, env_kwargs=there.env_kwargs(training=False))
    other = arena.fleet(1, 0)
    spec, actions = observation_spec(other.observation_space), other.num_actions
    if (spec, actions) != (model.spec, model.num_actions):
        raise UserError(
            f"--env {options.env} has {spec.kind} observations of shape {spec.shape} and {actions} actions, but the "
            f"model was trained in {config.environment.env} with {model.spec.kind} ones of {model.spec.shape} and "
            f"{model.num_actions}"
        )
    return arena


def is_due(update: int, share: float) -> bool:
    """Whether the batch of update number `update` = 0, 1, ... is searched anew, all of it or nothing.

    The share of such updates is exact in the long run. One search of many roots takes an accelerator hardly longer than
    one of few, so that a whole batch now and then costs far less than the same number of sequences one by one.
    """
    return int((update + 1) * share) > int(update * share)


def windows(contexts: Contexts, latent: Tensor) -> tuple[Window, Tensor]:
    """Roots of a search at every step: latents (B, W + T, D) -> histories of B x T rows and their latents."""
    batch, steps = contexts.count.shape
    pairs = latent.shape[1] - steps
    count = contexts.count.flatten()  # (B T,)
    first = torch.arange(steps, device=count.device).repeat(batch) + pairs - count  # the oldest that counts
    # entries behind `count` are padding; the clamp only keeps them inside the tensor
    place = (first.unsqueeze(1) + torch.arange(pairs, device=count.device)).clamp(max=pairs + steps - 1)  # (B T, W)
    row = torch.arange(batch, device=count.device).repeat_interleave(steps)
    rows = row.unsqueeze(1)
    return Window(latent[rows, place], contexts.action[rows, place], count), latent[:, pairs:].flatten(0, 1)


@torch.no_grad()
def search_again(
    model: WorldModel, contexts: Contexts, numbers: SearchNumbers, config: SearchConfig,
    planning: Planning | None = None,
) -> Tensor:  # fmt: skip
    """Policies (B, T, A) from one search of B x T roots, for which `numbers` holds a row each; sets evaluation mode.

    `planning` executes the model (None: eagerly).
    """
    model.eval()
    planning = make_planning("eager", model) if planning is None else planning
    history, latent = windows(contexts, planning.encode(contexts.observation))
    return search(planning.functions, history, latent, numbers, config).policy.unflatten(0, contexts.count.shape)


def reanalysed(sequences: Sequences, policy: Tensor) -> Sequences:
    """The sequences with other policy targets (B, T, A)."""
    return replace(sequences, policy=policy.to(sequences.policy.dtype))
