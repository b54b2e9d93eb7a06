"""Evaluate agents of world models, during a run and from a checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from dqn_memory.blocks.kernels.select import Choice
from dqn_memory.evaluate import Evaluation, EvaluationOptions, LoadedPolicy
from dqn_memory.network import ObservationSpec, observation_spec
from dqn_memory.play import Policy, Score, play
from dqn_memory.runs.seeding import Streams, generator
from dqn_memory.runs.trainer import Trainer
from envs.actions import PLAIN, InterfaceConfig
from envs.checked import MAX_STEPS
from envs.vector import VectorEnvironment, make_vector
from world_models.settings import WorldModelComputeConfig

C = TypeVar("C", bound=Any)


@dataclass(frozen=True)
class EvalEnvironments:
    """Environments and device of an evaluation."""

    env: str
    env_kwargs: dict[str, Any]
    device: torch.device
    interface: InterfaceConfig = PLAIN
    reset_memory: bool = False  # before each step
    workers: int | None = None  # processes that step the environments

    @classmethod
    def of(cls, config: Any, device: torch.device, reset_memory: bool = False, env: str | None = None) -> Self:
        """Use a run's own environment, or another one, with the time limit of evaluations."""
        if env is not None:
            config = replace(config, environment=config.environment.other(env))
        environment, kwargs = config.environment, config.env_kwargs(training=False)
        return cls(environment.id, kwargs, device, environment.interface, reset_memory, environment.env_workers)

    def forms(self) -> tuple[ObservationSpec, int]:
        """Give the form of the environment's observations and the number of its actions."""
        with closing(make_vector(self.env, 1, 0, "cpu", self.env_kwargs, self.interface)) as vector:
            return observation_spec(vector.observation_space), vector.num_actions

    def vector(self, num_envs: int, seed: int) -> VectorEnvironment:
        """Make N environments."""
        return make_vector(
            self.env, num_envs, seed, self.device, self.env_kwargs, self.interface, self.workers, MAX_STEPS
        )


class EvaluatedAgent(ABC, Generic[C]):
    """An agent of a world model, from a training run or from a checkpoint, that acts without learning."""

    modes: ClassVar[tuple[str, ...]] = ("",)
    """Names of the modes of choosing actions; a single mode has the name ""."""
    config: C
    step: int
    backend: Choice | None = None

    @classmethod
    @abstractmethod
    def load(cls, run: Path, device: torch.device) -> Self:
        """Load the agent of a run's latest checkpoint; nothing is written."""

    @abstractmethod
    def policy(self, num_envs: int, random: torch.Generator, reset_memory: bool = False, mode: str = "") -> Policy:
        """Make a policy for N environments; `reset_memory` empties its memory before each step."""

    @abstractmethod
    def check(self, environments: EvalEnvironments) -> None:
        """Raise UserError if the agent cannot act in these environments."""

    @abstractmethod
    def description(self) -> tuple[str, dict[str, Any]]:
        """Describe the agent for people, and by facts for programs."""

    def with_options(self, options: EvaluationOptions) -> tuple[Self, tuple[str, ...]]:
        """Apply the options of `evaluate` that only some agents have; return also the modes to play."""
        return self, self.modes

    def scores(
        self, environments: EvalEnvironments, modes: tuple[str, ...], num_envs: int, episodes: int, seed: int
    ) -> dict[str, Score]:
        """Play the first episodes of each of N environments, the same in every mode."""
        found: dict[str, Score] = {}
        for mode in modes:
            streams = Streams.spawn(seed)
            random = generator(streams.exploration, environments.device)
            policy = self.policy(num_envs, random, environments.reset_memory, mode)
            with closing(environments.vector(num_envs, streams.worlds)) as vector:
                found[mode] = play(vector, policy, episodes).score(reported=vector.reports_success)
        return found


class WorldModelTrainer(Trainer[C]):
    """Base class of runs of a world model, with evaluation by `agent_class`."""

    agent_class: ClassVar[type[EvaluatedAgent[Any]]]

    @abstractmethod
    def evaluated_agent(self) -> EvaluatedAgent[C]:
        """Return the agent with the current weights."""

    def evaluation_scores(self, modes: tuple[str, ...], final: bool, reset_memory: bool) -> dict[str, Score]:
        """Play evaluation episodes with this step's seed; the last evaluation has `final_episodes_per_env`."""
        config, environments = self.config.evaluation, EvalEnvironments.of(self.config, self.device, reset_memory)
        episodes = config.final_episodes_per_env if final else config.episodes_per_env
        return self.evaluated_agent().scores(
            environments, modes, config.num_eval_envs, episodes, self.evaluation_seed(final)
        )

    @classmethod
    def evaluate_run(cls, run: Path, options: EvaluationOptions) -> Evaluation:
        """Evaluate the agent of a run's latest checkpoint."""
        device = WorldModelComputeConfig(options.device, options.threads).start()
        agent, modes = cls.agent_class.load(run, device).with_options(options)
        environments = EvalEnvironments.of(agent.config, device, options.reset_memory, options.env)
        if options.env is not None:
            agent.check(environments)
        num_envs, episodes = options.num_eval_envs or 20, options.episodes_per_env or 5
        scores = agent.scores(environments, modes, num_envs, episodes, options.seed)
        words, facts = agent.description()
        return Evaluation(agent.step, words, {environments.env: environments.env_kwargs}, scores, facts, agent.backend)

    @classmethod
    def load_policy(cls, run: Path, device: torch.device, seed: int) -> LoadedPolicy:
        """Load the policy of a run's latest checkpoint; `seed` is that of its random numbers."""
        agent = cls.agent_class.load(run, device)

        def start(num_envs: int, mode: str = cls.agent_class.modes[0]) -> Policy:
            return agent.policy(num_envs, generator(Streams.spawn(seed).exploration, device), mode=mode)

        modes: Mapping[str, Callable[[int], Policy]] = {mode: partial(start, mode=mode) for mode in agent.modes if mode}
        return LoadedPolicy(agent.config, agent.config.env_kwargs(training=False), agent.step, device, start, modes)
