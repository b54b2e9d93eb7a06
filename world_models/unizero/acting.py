"""Acting: search in N environments at once, with the model of a training run or of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from dqn_memory.evaluate import EvaluationOptions
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.seeding import seeded
from world_models.settings import to_device
from world_models.trainer import EvalEnvironments, EvaluatedAgent
from world_models.unizero.config import SearchConfig, UniZeroConfig
from world_models.unizero.dynamics import History
from world_models.unizero.mcts import (
    Functions,
    SearchNumbers,
    SearchResult,
    draw_numbers,
    make_functions,
    tree_search,
)
from world_models.unizero.networks import UniZeroModel, build_unizero


class Planner:
    """A world model with a history window for each environment.

    A latent in the window stays as it was encoded at its step, as in the reference: an update changes only later
    latents. `reset_history` is explained in UniZeroCollectionConfig. `functions` execute the model (None: eagerly).
    """

    def __init__(
        self, model: UniZeroModel, num_envs: int, config: SearchConfig, discount: float,
        reset_history: Literal["episode", "released"] = "episode", functions: Functions | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.discount, self.reset_history = model, config, discount, reset_history
        self.functions = make_functions("eager", model) if functions is None else functions
        self.history = model.empty_history(num_envs)
        self.ended = torch.zeros_like(self.history.count, dtype=torch.bool)  # (N,) in this round; `released` only

    @torch.no_grad()
    def encode(self, observation: Tensor) -> Tensor:
        """Encode observations (N, ...) as latents (N, D); sets the model's evaluation mode."""
        self.model.eval()
        return self.functions.encode(observation)

    @torch.no_grad()
    def plan(self, observation: Tensor, numbers: SearchNumbers) -> tuple[SearchResult, Tensor]:
        """Search from observations (N, ...), with one row of numbers each; return also the latents (N, D)."""
        latent = self.encode(observation)
        return tree_search(self.functions, self.history, latent, numbers, self.config, self.discount), latent

    def remember(self, latent: Tensor, action: Tensor, done: Tensor) -> None:
        """Append latents (N, D) and actions (N,) to the histories; `done` (N,) empties them by `reset_history`."""
        pushed = self.history.push(latent, action)
        self.history = History(pushed.latent, pushed.action, torch.where(self._resets(done), 0, pushed.count))

    def _resets(self, done: Tensor) -> Tensor:
        if self.reset_history == "episode":
            return done
        ended = self.ended | done
        self.ended = ended & ~ended.all()  # the last end closes the round
        return done | ended.any()

    def state_dict(self) -> dict[str, Tensor]:
        return {**vars(self.history), "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        device = self.ended.device
        self.history = History(**{name: state[name].to(device) for name in ("latent", "action", "count")})
        self.ended = state["ended"].to(device)


class SearchPolicy:
    """Take the best action of a search without noise, in N episodes."""

    def __init__(
        self, model: UniZeroModel, num_envs: int, config: UniZeroConfig, random: torch.Generator,
        functions: Functions | None = None, reset_memory: bool = False,
    ) -> None:  # fmt: skip
        self.planner = Planner(model, num_envs, config.search, config.learner.gamma, functions=functions)
        self.random, self.reset_memory = random, reset_memory
        self.last: tuple[Tensor, Tensor] | None = None  # latents (N, D), actions (N,) of the last step

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for observations (N, ...); return also the search's policy (N, A)."""
        if self.last is not None:
            self.planner.remember(*self.last, reset | self.reset_memory)
        model, planner = self.planner.model, self.planner
        numbers = draw_numbers(planner.config, len(observation), model.num_actions, self.random, evaluation=True)
        result, latent = planner.plan(observation, numbers)
        self.last = latent, result.action
        return result.action, result.policy


@dataclass(frozen=True)
class UniZeroAgent(EvaluatedAgent[UniZeroConfig]):
    """An agent that takes the most visited action of searches without noise."""

    model: UniZeroModel
    config: UniZeroConfig
    step: int
    functions: Functions | None = None
    """Functions that execute the model (None: eagerly)."""

    @classmethod
    def load(cls, run: Path, device: torch.device) -> Self:
        """Load the model of a run's latest checkpoint in evaluation mode."""
        checkpoint, config = read_run(run, UniZeroConfig)
        with seeded(0):  # the first weights are overwritten at once
            model = build_unizero(config.model, *EvalEnvironments.of(config, torch.device("cpu")).forms())
        checkpoint.fill(model, "model")
        return cls(to_device(model, device).eval(), config, checkpoint.step)

    def policy(
        self, num_envs: int, random: torch.Generator, reset_memory: bool = False, mode: str = ""
    ) -> SearchPolicy:
        """Make the policy of N episodes."""
        return SearchPolicy(self.model, num_envs, self.config, random, self.functions, reset_memory)

    def check(self, environments: EvalEnvironments) -> None:
        """Raise UserError if the environments have other observations or actions than the model."""
        (spec, actions), model = environments.forms(), self.model
        if (spec, actions) != (model.spec, model.num_actions):
            raise UserError(
                f"--env {environments.env} has {spec.kind} observations of shape {spec.shape} and {actions} actions, "
                f"but the model was trained in {self.config.environment.id}: {model.spec.kind} observations of shape "
                f"{model.spec.shape}, {model.num_actions} actions"
            )

    def description(self) -> tuple[str, dict[str, Any]]:
        """Describe dynamics, prior and simulations."""
        model, simulations = self.config.model, self.config.search.simulations
        words = f"{model.dynamics} dynamics, {model.prior.kind} prior, {simulations} simulations"
        return words, {"dynamics": model.dynamics, "prior": model.prior.kind, "simulations": simulations}

    def with_options(self, options: EvaluationOptions) -> tuple[Self, tuple[str, ...]]:
        """Apply `--simulations`."""
        return self.with_simulations(options.simulations), self.modes

    def with_simulations(self, simulations: int | None) -> Self:
        """Change the number of simulations of a search (None: no change)."""
        if simulations is None:
            return self
        search = replace(self.config.search, simulations=simulations)
        return replace(self, config=replace(self.config, search=search))
