"""Evaluate an agent: play whole episodes without learning, and give success, return and length with intervals.

From top to bottom: the score of complete episodes and its words; the loop that plays episodes; how a network is
evaluated; how a run's latest checkpoint is evaluated.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dqn_memory.actors import ActingState, NetworkPolicy, make_actor
from dqn_memory.intervals import Measure, mean_interval, wilson
from dqn_memory.network import ObservationSpec, QNetwork, observation_spec
from dqn_memory.runs.backend import Choice
from dqn_memory.runs.common import ComputeConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.seeding import Streams, generator, seeded
from dqn_memory.runs.settings import Bounds
from envs.checked import MAX_STEPS
from envs.core import Step
from envs.registry import WORLDS, make_world
from envs.terminal import say
from envs.vector import TensorVector, VectorEnvironment, make_vector

SUCCESS = "success"
SUCCESS_TOLD = "final/success_told"  # 1 if the environment defines success, else 0
SILENCE = 5.0  # seconds between the progress messages of an evaluation
MAX_EVAL_ENVS = 250  # maximum environments of an evaluation, stepped at once
TIMED_STEPS = 20  # last steps of acting, the fastest of which is its cost
KINDS_OF_NETWORKS = ("q_network", "pqn", "ppo")  # runs whose agent is one network


# ---- the score of complete episodes ----------------------------------------------------------------------------------
@dataclass(frozen=True, repr=False)
class Score:
    """Outcomes of complete episodes, one entry for each.

    Attributes:
        success: whether the return is above 0 if the environment defines no success; printed texts then omit it.
        returns: undiscounted.
        exhaustive: the episodes start from every initial state exactly once.
        env_reports_success: the environment defines a success.
    """

    success: np.ndarray  # bool
    returns: np.ndarray  # float64
    lengths: np.ndarray  # int64
    exhaustive: bool
    env_reports_success: bool = True

    def __str__(self) -> str:
        """Write one line."""
        return summary(self)

    def __repr__(self) -> str:
        return f"Score({self.episodes} episodes: {self})"

    @property
    def episodes(self) -> int:
        return len(self.success)

    def interval(self) -> tuple[float, float]:
        """Give the 95 % interval of the success rate; a single point if every initial state was played."""
        rate = float(self.success.mean())
        return (rate, rate) if self.exhaustive else wilson(int(self.success.sum()), self.episodes)

    def scalars(self, kind: str = "eval") -> dict[str, float]:
        """Give the metrics of an evaluation of a kind: one during the run (eval), or the last one (final)."""
        low, high = self.interval()
        return {
            f"{kind}/success_rate": float(self.success.mean()),
            f"{kind}/success_low": low,
            f"{kind}/success_high": high,
            f"{kind}/episodic_return": float(self.returns.mean()),
            f"{kind}/episodic_length": float(self.lengths.mean()),
            f"{kind}/episodes": float(self.episodes),
        }


def summary(score: Score, baselines: str = "") -> str:
    """Write one line: first the success rate, or the return if the environment defines no success.

    `baselines` is a text on reference scores.
    """
    low, high = score.interval()
    mean, return_low, return_high = mean_interval(score.returns, score.exhaustive)
    number, length = f"{score.episodes:,}", f"length {score.lengths.mean():.1f}"
    if not score.env_reports_success:
        between = "" if return_low is None or return_high is None else f" [{return_low:.2f}, {return_high:.2f}]"
        kind = "all initial states, " if score.exhaustive else ""
        return f"return {mean:.2f}{between} on {kind}{number} episodes, {length}"
    rate = f"success {score.success.mean():.3f} [{low:.3f}, {high:.3f}] on {number} episodes"
    if score.exhaustive:
        rate = f"success on {int(score.success.sum()):,} of {number} initial states"
    return f"{rate}{baselines}, return {mean:.2f}, {length}"


def report(score: Score) -> dict[str, Measure]:
    """Give success rate, return and length, each with its 95 % interval; None in place of an interval if exhaustive."""
    low, high = score.interval()
    rate = float(score.success.mean())
    return {
        "success": (rate, None, None) if score.exhaustive else (rate, low, high),
        "return": mean_interval(score.returns, score.exhaustive),
        "length": mean_interval(score.lengths, score.exhaustive),
    }


def fields(score: Score) -> dict[str, float | None]:
    """Give every measure and both ends of its interval, by name."""
    return {
        f"{name}{part}": value
        for name, values in report(score).items()
        for part, value in zip(("", "_low", "_high"), values, strict=True)
    }


def lines(score: Score) -> list[str]:
    """Write a line for each measure; success comes first, if the environment defines one."""
    measures = report(score)
    if not score.env_reports_success:
        del measures[SUCCESS]
    return [f"{name:<8} {_written(name, measure)}" for name, measure in measures.items()]


def _written(name: str, measure: Measure) -> str:
    mean, low, high = measure
    digits = 1 if name == "length" else 3
    between = "" if low is None or high is None else f"   [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{mean:8.{digits}f}{between}"


# ---- the loop that plays episodes ------------------------------------------------------------------------------------
class Policy(Protocol):
    """Chooses the actions of N episodes and carries its own state."""

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for observations (N, ...); `reset` (N,) marks the first observations of episodes.

        Returns the actions and the numbers (N, A) that they were chosen by: Q-values, logits or probabilities.
        """


class Tally:
    """Counts the first `quota` episodes of each of N environments, so that short episodes are not favoured."""

    def __init__(self, quota: int, rows: int) -> None:
        self.quota = quota
        self.outcome = np.zeros((3, quota, rows))  # success, return, length
        self.finished = np.zeros(rows, np.int64)
        self.steps = 0  # of each row
        self._said = time.monotonic()

    @property
    def open(self) -> bool:
        """Whether an environment has not played its quota."""
        return bool((self.finished < self.quota).any())

    def count(self, step: Step) -> None:
        """Count the episodes that end with this step, in environments that have not played their quota."""
        outcome = (step.success, step.episode_return, step.episode_length)
        self.add(step.done.cpu().numpy(), *(values.cpu().numpy() for values in outcome))

    def add(self, done: np.ndarray, success: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Count the episodes of the environments (N,) that are done."""
        ended = np.flatnonzero(done & (self.finished < self.quota))
        for entry, values in enumerate((success, returns, lengths)):
            self.outcome[entry, self.finished[ended], ended] = values[ended]
        self.finished[ended] += 1
        self.steps += 1
        if self.open and time.monotonic() - self._said >= SILENCE:
            played, episodes = int(self.finished.sum()), self.finished.size * self.quota
            say(f"evaluation {played:,}/{episodes:,} episodes, step {self.steps:,}", file=sys.stderr)
            self._said = time.monotonic()

    def score(self, episodes: int | None = None, exhaustive: bool = False, reported: bool = True) -> Score:
        """Give the score of the first `episodes`, ordered by round, then by environment (None: of all)."""
        success, returns, lengths = self.outcome.reshape(3, -1)[:, :episodes]
        return Score(success.astype(bool), returns, lengths.astype(np.int64), exhaustive, reported)


class PlayedStep(NamedTuple):
    """One step in N environments."""

    observation: Tensor  # (N, ...) the actions were chosen for
    action: Tensor  # (N,)
    outputs: Tensor  # (N, A) the actions were chosen by
    step: Step  # the environments' answer


def play_steps(vector: VectorEnvironment, policy: Policy, observation: Tensor) -> Iterator[PlayedStep]:
    """Play without end from the first observations (N, ...) of episodes; the generator takes each step on demand."""
    reset = torch.ones(vector.num_envs, dtype=torch.bool, device=vector.device)
    while True:
        action, outputs = policy.act(observation, reset)
        step = vector.step(action)
        yield PlayedStep(observation, action, outputs, step)
        observation, reset = step.observation, step.done


def one_episode(steps: Iterator[PlayedStep], max_steps: float = math.inf) -> Iterator[PlayedStep]:
    """Take the steps of a single environment until its episode ends, or `max_steps` of them."""
    for number, played in enumerate(steps, 1):
        yield played
        if number >= max_steps or bool(played.step.done):
            return


def play(vector: VectorEnvironment, policy: Policy, quota: int) -> Tally:
    """Play until every environment has ended `quota` episodes; environments that have play on uncounted."""
    tally, steps = Tally(quota, vector.num_envs), play_steps(vector, policy, vector.reset())
    while tally.open:
        tally.count(next(steps).step)
    return tally


# ---- how a network is evaluated --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class EvalSetup:
    """The environment of an evaluation, and how a network acts in it."""

    env: str
    env_kwargs: dict[str, Any]
    observation_key: str | None
    device: torch.device
    acting_state: ActingState = "window"
    reset_memory: bool = False  # before each step
    sampled: bool = False  # outputs are logits by which actions are drawn; else the largest output is taken
    workers: int | None = None  # processes that step the environments
    values: str = "Q-values"  # name of the network's outputs

    @classmethod
    def of(cls, config: Any, device: torch.device) -> EvalSetup:
        """Make the setup of a run's config."""
        environment = config.environment
        return cls(
            environment.env, config.env_kwargs(training=False), environment.observation_key, device,
            config.acting_state, sampled=config.stochastic and config.evaluation.policy == "sampled",
            workers=environment.env_workers, values="Logits of the policy" if config.stochastic else "Q-values",
        )  # fmt: skip

    def interface(self) -> tuple[ObservationSpec, int]:
        """Give the form of the environment's observations, and the number of its actions."""
        cpu = torch.device("cpu")
        with closing(make_vector(self.env, 1, 0, cpu, self.observation_key, self.env_kwargs)) as vector:
            return observation_spec(vector.observation_space), vector.num_actions

    def vector(self, episodes: int, seed: int) -> tuple[VectorEnvironment, int, bool]:
        """Make environments for at least `episodes` episodes.

        Returns:
            The environments, the episodes to play in each of them, and whether these start from every initial state
            exactly once.
        """
        name = self.env.removeprefix("envs:")
        if name in WORLDS:
            world = make_world(name, device=self.device, **self.env_kwargs)
            draws = world.initial_draws()
            if draws is not None and not self.sampled:  # drawn actions need more than one episode a state
                return TensorVector(world, len(draws), seed, initial=draws), 1, True
        num_envs = min(episodes, MAX_EVAL_ENVS)
        vector = make_vector(
            self.env, num_envs, seed, self.device, self.observation_key, self.env_kwargs, self.workers, MAX_STEPS
        )
        return vector, math.ceil(episodes / num_envs), False

    def policy(self, network: QNetwork, num_envs: int, seed: int) -> NetworkPolicy:
        """Let a network act in N episodes at once; `seed` seeds the actions that it draws."""
        actor = make_actor(network, num_envs, self.device, self.acting_state)
        stream = Streams.spawn(seed).exploration  # environments draw from `seed` itself
        draws = generator(stream, self.device) if self.sampled else None
        return NetworkPolicy(actor, num_envs, draws, self.reset_memory)


@torch.no_grad()
def evaluate(network: QNetwork, setup: EvalSetup, episodes: int, seed: int) -> Score:
    """Play episodes without dropout, the same number in every environment."""
    training = network.training
    network.eval()
    vector, quota, exhaustive = setup.vector(episodes, seed)
    with closing(vector):
        tally = play(vector, setup.policy(network, vector.num_envs, seed), quota)
    network.train(training)
    return tally.score(None if exhaustive else episodes, exhaustive, vector.reports_success)


@torch.no_grad()
def acting_cost(network: QNetwork, setup: EvalSetup) -> dict[str, float]:
    """Measure acting in one environment: microseconds of the fastest timed step, and bytes of the state."""
    actor = make_actor(network, 1, setup.device, setup.acting_state)
    observation = torch.zeros(1, *network.spec.shape, dtype=network.spec.dtype, device=setup.device)
    action, reset = (torch.zeros(1, dtype=dtype, device=setup.device) for dtype in (torch.int64, torch.bool))
    times = []
    for _ in range(network.config.context + TIMED_STEPS):  # the window is full in the timed steps
        began = time.perf_counter()
        actor.observe(observation, action, reset)
        int(actor.q_values().argmax())  # waits for the device
        times.append(time.perf_counter() - began)
    state = sum(tensor.nbytes for tensor in actor.state_tensors)
    return {"time/acting_us": 1e6 * min(times[-TIMED_STEPS:]), "final/remembered_bytes": float(state)}


# ---- how a run of any kind is evaluated ------------------------------------------------------------------------------
@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation, for runs of any kind."""

    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the environments and of the agent's draws (on a CPU our environments use its low 32 bits)."""
    env: str | None = None
    """Another environment with the same observations and actions (None: that of training)."""
    reset_memory: bool = False
    """Reset the memory before each step, to measure the agent without it."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""
    episodes: Annotated[int, Bounds(1, 10**9)] | None = None
    """Q-networks, PPO: episodes, unless every initial state is played once (None: 1,000)."""
    num_eval_envs: Annotated[int, Bounds(1)] | None = None
    """World models: environments stepped at once (None: 20)."""
    episodes_per_env: Annotated[int, Bounds(1, 10**9)] | None = None
    """World models: episodes of each environment (None: 5)."""
    simulations: Annotated[int, Bounds(1)] | None = None
    """UniZero: expansions of each search (None: as in training)."""
    policy: Literal["both", "sampled", "greedy"] | None = None
    """PPO, GLAM: sampled (draw actions as in training) or greedy (take the most probable ones); None: both."""
    video: str | None = None
    """Q-networks, PPO: also write a video of episodes: a path that ends in .gif, or in .png for an animated PNG."""
    video_episodes: Annotated[int, Bounds(1, 10**9)] = 1
    """Episodes in the video."""
    overwrite: bool = False
    """Let the video replace an existing file."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of the agent of a run's checkpoint."""

    step: int
    agent: str
    """The agent in words."""
    env: str
    env_kwargs: dict[str, Any]
    scores: dict[str, Score]
    """Scores by policy, "sampled" and "greedy", or "" if there is only one; that of training comes first."""
    facts: dict[str, Any]
    """Further entries of the JSON output, by the kind of agent."""
    backend: Choice | None = None

    @property
    def score(self) -> Score:
        """Give the score of actions chosen as in training."""
        return next(iter(self.scores.values()))


@dataclass(frozen=True)
class LoadedPolicy:
    """The agent of a checkpoint, in the environment it was trained in."""

    config: Any
    env_kwargs: dict[str, Any]
    step: int
    """Environment steps of its training."""
    device: torch.device
    start: Callable[[int], Policy]
    """Makes a policy for N episodes, with an empty memory."""
    policies: Mapping[str, Callable[[int], Policy]] = field(default_factory=dict)
    """The same by policy, "sampled" and "greedy"; empty if there is only one."""


# ---- runs whose agent is one network ---------------------------------------------------------------------------------
def usable_device(device: torch.device | str) -> torch.device:
    """Give the device; raise a UserError if it does not exist here."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, TypeError):  # torch would name all its kinds of device, or fail much later
        raise UserError(f"there is no device {str(device)!r} here; use 'cpu', or 'cuda' where torch sees one") from None
    return torch.device(device)


def load_network(run: Path | str, device: torch.device | str = "cpu") -> tuple[QNetwork, Any, int]:
    """Read the network of a run folder's latest checkpoint, averaged if the run averages, in evaluation mode.

    Returns the network, the run's config and the environment step of the checkpoint; nothing is written.

    Raises:
        UserError: there is no run or no checkpoint, it is damaged or foreign, its weights do not fit the config, or
            there is no such device.
    """
    device = usable_device(device)
    kind = kind_of(Run.open(run).load(with_replay=False))
    kind = kind if kind in KINDS_OF_NETWORKS else KINDS_OF_NETWORKS[0]  # whose reader refuses other kinds
    checkpoint, config = read_run(Path(run), trainer_class(kind).config_class)
    spec, num_actions = EvalSetup.of(config, torch.device("cpu")).interface()
    with seeded(0):  # the first weights are overwritten at once
        network: QNetwork = config.network.build(spec, num_actions)
    part = "average" if checkpoint.part("average") else "network"
    checkpoint.fill(network, part, f"the weights of {run} do not fit its config and environment")
    return network.to(device).eval(), config, checkpoint.step


def load_policy(run: Path, device: torch.device, seed: int) -> LoadedPolicy:
    """Read the policy of a run's latest checkpoint; `seed` seeds the actions it draws."""
    network, config, step = load_network(run, device)
    setup = EvalSetup.of(config, device)
    policies = {
        name: partial(replace(setup, sampled=name == "sampled").policy, network, seed=seed)
        for name in ("sampled", "greedy")
    }
    trained = policies["sampled" if setup.sampled else "greedy"]
    return LoadedPolicy(config, setup.env_kwargs, step, device, trained, policies if config.stochastic else {})


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play episodes with the network of a run's latest checkpoint.

    Raises:
        UserError: the checkpoint cannot be loaded, or its network cannot act in another environment.
    """
    device = ComputeConfig(options.device, options.threads).start()
    network, config, step = load_network(run, device)
    setups = evaluation_setups(options, config, network, device)
    episodes, setup = options.episodes or 1_000, next(iter(setups.values()))
    scores = {policy: evaluate(network, each, episodes, options.seed) for policy, each in setups.items()}
    architecture = config.network.architecture
    return Evaluation(step, architecture, setup.env, setup.env_kwargs, scores, {"architecture": architecture})


def evaluation_setups(
    options: EvaluationOptions, config: Any, network: QNetwork, device: torch.device
) -> dict[str, EvalSetup]:
    """Make the evaluation setup of each policy: "sampled" and "greedy", or "" for Q-networks.

    Raises:
        UserError: the network cannot act in the environment that the options name.
    """
    setup = replace(EvalSetup.of(config, device), reset_memory=options.reset_memory)
    if options.env is not None:
        environment = replace(config.environment, env=options.env, path=None, env_workers=None)
        setup = replace(setup, env=options.env, env_kwargs=environment.kwargs(training=False), workers=None)
        spec, num_actions = setup.interface()
        if (spec, num_actions) != (network.spec, network.num_actions):
            raise UserError(
                f"--env {options.env} has {_form(spec, num_actions)}, but the network was trained in "
                f"{config.environment.env} with {_form(network.spec, network.num_actions)}"
            )
    every = ("sampled", "greedy") if config.stochastic else ("",)
    policies = every if options.policy in (None, "both") else (options.policy,)
    return {policy: replace(setup, sampled=policy == "sampled") for policy in policies}


def _form(spec: ObservationSpec, num_actions: int) -> str:
    words = f", {spec.vocabulary} tokens" if spec.vocabulary else ""
    if spec.bounds is not None:
        words += f", values from {min(spec.bounds[0])} to {max(spec.bounds[1])}"
    return f"{spec.kind} observations of shape {spec.shape}{words}, and {num_actions} actions"
