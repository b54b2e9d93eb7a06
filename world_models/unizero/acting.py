"""Acting: plan in N environments at once, evaluate a model, load one from a run folder."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dqn_memory.evaluation import Evaluation, EvaluationOptions, LoadedPolicy, Score, play
from dqn_memory.network import observation_spec
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.seeding import Streams, generator, seeded
from world_models.settings import EvalSetup, place
from world_models.unizero.config import ComputeConfig, SearchConfig, TrainConfig
from world_models.unizero.networks import Window, WorldModel, build
from world_models.unizero.search import Functions, SearchNumbers, SearchResult, draw, make_functions, search


class Planner:
    """A world model with a history window for each environment.

    The window keeps latents as they were encoded at their step: an update between two steps changes later latents
    alone, as in the reference. For `reset_history` see CollectionConfig; `functions` execute the model (None: eagerly).
    """

    def __init__(
        self, model: WorldModel, num_envs: int, config: SearchConfig,
        reset_history: Literal["episode", "released"] = "episode", functions: Functions | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.reset_history = model, config, reset_history
        self.functions = make_functions("eager", model) if functions is None else functions
        self.window = model.window(num_envs)
        self.ended = torch.zeros_like(self.window.count, dtype=torch.bool)  # in this round; for `released` only

    @torch.no_grad()
    def encode(self, observation: Tensor) -> Tensor:
        """Encode observations (N, ...) as latents (N, D); sets the model's evaluation mode."""
        self.model.eval()
        return self.functions.encode(observation)

    @torch.no_grad()
    def plan(self, observation: Tensor, numbers: SearchNumbers) -> tuple[SearchResult, Tensor]:
        """Search from observations (N, ...) with one row of numbers each; gives also the latents (N, D) to remember."""
        latent = self.encode(observation)
        return search(self.functions, self.window, latent, numbers, self.config), latent

    def remember(self, latent: Tensor, action: Tensor, done: Tensor) -> None:
        """Append latents (N, D) and actions (N,) to the histories; empty those whose episode ended, done (N,)."""
        pushed = self.window.push(latent, action)
        self.window = Window(pushed.latent, pushed.action, torch.where(self._resets(done), 0, pushed.count))

    def _resets(self, done: Tensor) -> Tensor:
        if self.reset_history == "episode":
            return done
        ended = self.ended | done
        self.ended = ended & ~ended.all()  # the last end closes the round
        return done | ended.any()

    def state_dict(self) -> dict[str, Tensor]:
        return {**vars(self.window), "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        device = self.ended.device
        self.window = Window(**{name: state[name].to(device) for name in ("latent", "action", "count")})
        self.ended = state["ended"].to(device)


class SearchPolicy:
    """Act as evaluations do: the most visited action of a search without noise, in N episodes."""

    def __init__(
        self, model: WorldModel, num_envs: int, config: SearchConfig, random: torch.Generator,
        functions: Functions | None = None, forgets: bool = False,
    ) -> None:  # fmt: skip
        self.planner, self.random = Planner(model, num_envs, config, functions=functions), random
        self.forgets = forgets
        self.last: tuple[Tensor, Tensor] | None = None  # latents (N, D) and actions (N,) to be remembered

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for observations (N, ...), and give the shares of visits (N, A)."""
        if self.last is not None:
            self.planner.remember(*self.last, reset | self.forgets)
        model, planner = self.planner.model, self.planner
        numbers = draw(planner.config, len(observation), model.num_actions, self.random, evaluation=True)
        found, latent = planner.plan(observation, numbers)
        self.last = latent, found.action
        return found.action, found.policy


def evaluate(
    model: WorldModel, setup: EvalSetup, config: SearchConfig, num_envs: int, episodes_per_env: int, seed: int,
    functions: Functions | None = None,
) -> Score:  # fmt: skip
    """Play the first `episodes_per_env` episodes of each environment, always with the most visited action.

    `functions` execute the model (None: eagerly).
    """
    training, streams = model.training, Streams.spawn(seed)
    random = generator(streams.exploration, setup.device)
    policy = SearchPolicy(model, num_envs, config, random, functions, setup.reset_memory)
    with closing(setup.fleet(num_envs, streams.worlds)) as fleet:
        tally = play(fleet, policy, episodes_per_env)
    model.train(training)
    return tally.score(reported=fleet.reports_success)


def load_model(run: Path | str, device: torch.device | str = "cpu") -> tuple[WorldModel, TrainConfig, int]:
    """Load the model of the latest checkpoint in evaluation mode, the run's config, and the checkpoint's step."""
    checkpoint, config = read_run(Path(run), TrainConfig)
    fleet = EvalSetup.of(config, torch.device("cpu")).fleet(1, 0)
    with seeded(0):  # the first weights are overwritten at once
        model = build(config.model, observation_spec(fleet.observation_space), fleet.num_actions)
    checkpoint.fill(model, "model")
    return place(model, device).eval(), config, checkpoint.step


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play without noise, always the most visited action, with the model of a run's latest checkpoint."""
    device = ComputeConfig(options.device, options.threads).start()
    model, config, step = load_model(run, device)
    setup, config = make_setup(options, config, model, device), with_simulations(config, options.simulations)
    num_envs, episodes = options.num_eval_envs or 20, options.episodes_per_env or 5
    score = evaluate(model, setup, config.search, num_envs, episodes, options.seed)
    form, prior, simulations = config.model.dynamics, config.model.prior.kind, config.search.simulations
    agent = f"{form} dynamics, {prior} prior, {simulations} simulations"
    facts = {"dynamics": form, "prior": prior, "simulations": simulations}
    return Evaluation(step, agent, setup.env, setup.env_kwargs, {"": score}, facts)


def load_policy(run: Path, device: torch.device, seed: int) -> LoadedPolicy:
    """Read the policy of a run's latest checkpoint; `seed` is of what its searches draw."""
    model, config, step = load_model(run, device)

    def start(num_envs: int) -> SearchPolicy:
        return SearchPolicy(model, num_envs, config.search, generator(Streams.spawn(seed).exploration, device))

    return LoadedPolicy(config, config.env_kwargs(training=False), step, device, start)


def with_simulations(config: TrainConfig, simulations: int | None) -> TrainConfig:
    """Change the number of simulations of a search (None: keep it)."""
    return config if simulations is None else replace(config, search=replace(config.search, simulations=simulations))


def make_setup(options: EvaluationOptions, config: TrainConfig, model: WorldModel, device: torch.device) -> EvalSetup:
    """Decide where to evaluate; raise UserError where the model cannot act in the environment asked for."""
    setup = EvalSetup.of(config, device, options.reset_memory, options.env)
    if options.env is None:
        return setup
    other = setup.fleet(1, 0)
    spec, actions = observation_spec(other.observation_space), other.num_actions
    if (spec, actions) != (model.spec, model.num_actions):
        raise UserError(
            f"--env {options.env} has {spec.kind} observations of shape {spec.shape} and {actions} actions, but the "
            f"model was trained in {config.environment.env} with {model.spec.kind} ones of {model.spec.shape} and "
            f"{model.num_actions}"
        )
    return setup
