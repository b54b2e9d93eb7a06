"""What complete episodes say: success with a Wilson interval, return, length, for people and for programs."""

import math
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dqn_memory.runs.backend import Choice
from dqn_memory.runs.settings import Bounds
from envs.core import Step
from envs.fleet import Fleet
from envs.terminal import say

Measure = tuple[float, float | None, float | None]  # mean, low, high
SUCCESS = "success"
SUCCESS_TOLD = "final/success_told"  # 1 where the environment said what a success is, else 0
SILENCE = 5.0  # seconds after which an evaluation says how far it is


@dataclass(frozen=True, repr=False)
class Score:
    """Outcomes of complete episodes, one entry each. `exhaustive`: every initial state exactly once.

    `env_reports_success`: the environment said what a success is; where it did not, `success` is a return above 0, and
    printed texts leave it out.
    """

    success: np.ndarray  # bool
    returns: np.ndarray  # float64, undiscounted
    lengths: np.ndarray  # int64
    exhaustive: bool
    env_reports_success: bool = True

    def __str__(self) -> str:
        """Say in one line how well it went."""
        return summary(self)

    def __repr__(self) -> str:
        return f"Score({self.episodes} episodes: {self})"

    @property
    def episodes(self) -> int:
        return len(self.success)

    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate; a single point where every initial state was tried."""
        rate = float(self.success.mean())
        return (rate, rate) if self.exhaustive else wilson(int(self.success.sum()), self.episodes)

    def scalars(self) -> dict[str, float]:
        low, high = self.interval()
        return {
            "eval/success_rate": float(self.success.mean()),
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/episodic_return": float(self.returns.mean()),
            "eval/episodic_length": float(self.lengths.mean()),
            "eval/episodes": float(self.episodes),
        }


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    rate, z = successes / trials, 1.959964
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # at both ends the interval holds the rate itself, which rounding would leave out
    return (max(0.0, centre - half) if successes else 0.0), (min(1.0, centre + half) if successes < trials else 1.0)


class Policy(Protocol):
    """Chooses the actions of N episodes and remembers what it saw and did."""

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Take in observations (N, ...), which begin an episode where `reset` (N,) says so.

        Returns the actions (N,) and what they were chosen by, (N, A): Q-values, or probabilities.
        """


class Tally:
    """Counts the first `quota` episodes of each of N rows, so that short ones are not favoured."""

    def __init__(self, quota: int, rows: int) -> None:
        self.quota = quota
        self.outcome = np.zeros((3, quota, rows))  # success, return, length
        self.finished = np.zeros(rows, np.int64)
        self.steps = 0  # of each row
        self._said = time.monotonic()

    @property
    def open(self) -> bool:
        """Whether a row has not played its quota."""
        return bool((self.finished < self.quota).any())

    def count(self, step: Step) -> None:
        """Take note of the episodes that end with this step; rows that are through count no more."""
        outcome = (step.success, step.episode_return, step.episode_length)
        self.add(step.done.cpu().numpy(), *(values.cpu().numpy() for values in outcome))

    def add(self, done: np.ndarray, success: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Take note of what the rows (N,) say whose episodes end now."""
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
        """Of the first `episodes` by round, then row (None: of all)."""
        success, returns, lengths = self.outcome.reshape(3, -1)[:, :episodes]
        return Score(success.astype(bool), returns, lengths.astype(np.int64), exhaustive, reported)


def play(fleet: Fleet, policy: Policy, quota: int) -> Tally:
    """Play until every environment has ended `quota` episodes; those that are through play on uncounted."""
    tally = Tally(quota, fleet.num_envs)
    observation, reset = fleet.reset(), torch.ones(fleet.num_envs, dtype=torch.bool, device=fleet.device)
    while tally.open:
        step = fleet.step(policy.act(observation, reset)[0])
        observation, reset = step.observation, step.done
        tally.count(step)
    return tally


def summary(score: Score, baselines: str = "") -> str:
    """Say in one line what counts most, first: success where the environment defines one, else the return.

    `baselines` says what others reach.
    """
    low, high = score.interval()
    mean, least, most = mean_interval(score.returns, score.exhaustive)
    number, length = f"{score.episodes:,}", f"length {score.lengths.mean():.1f}"
    if not score.env_reports_success:
        between = "" if least is None or most is None else f" [{least:.2f}, {most:.2f}]"
        kind = "all initial states, " if score.exhaustive else ""
        return f"return {mean:.2f}{between} on {kind}{number} episodes, {length}"
    rate = f"success {score.success.mean():.3f} [{low:.3f}, {high:.3f}] on {number} episodes"
    if score.exhaustive:
        rate = f"success on {int(score.success.sum()):,} of {number} initial states"
    return f"{rate}{baselines}, return {mean:.2f}, {length}"


def report(score: Score) -> dict[str, Measure]:
    """Success rate, return and length, each with its interval; None where there is none."""
    low, high = score.interval()
    rate = float(score.success.mean())
    return {
        "success": (rate, None, None) if score.exhaustive else (rate, low, high),
        "return": mean_interval(score.returns, score.exhaustive),
        "length": mean_interval(score.lengths, score.exhaustive),
    }


def mean_interval(values: np.ndarray[Any, np.dtype[Any]], exhaustive: bool) -> Measure:
    """Mean with the normal 95 % interval, which fewer than two values, or all there are, do not give."""
    mean = float(values.mean())
    if exhaustive or len(values) < 2:
        return mean, None, None
    half = 1.959964 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def fields(score: Score) -> dict[str, float | None]:
    """Every measure and both ends of its interval, by name."""
    return {
        f"{name}{part}": value
        for name, values in report(score).items()
        for part, value in zip(("", "_low", "_high"), values, strict=True)
    }


def lines(score: Score) -> list[str]:
    """Write a line a measure, aligned: success first, where the environment defines one."""
    measures = report(score)
    if not score.env_reports_success:
        del measures[SUCCESS]
    return [f"{name:<8} {_written(name, measure)}" for name, measure in measures.items()]


def _written(name: str, measure: Measure) -> str:
    mean, low, high = measure
    digits = 1 if name == "length" else 3
    between = "" if low is None or high is None else f"   [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{mean:8.{digits}f}{between}"


@dataclass(frozen=True)
class EvaluationOptions:
    """What `python -m dqn_memory.evaluate` asks of a run of any kind."""

    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the environments and of whatever the agent draws; of our environments on a CPU its low 32 bits."""
    env: str | None = None
    """Another environment with the same observations and actions (None: the one trained in)."""
    reset_memory: bool = False
    """Forget everything before each step: what the agent does without its memory."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""
    episodes: Annotated[int, Bounds(1, 10**9)] | None = None
    """Q-networks, PPO: episodes, unless every initial state is tried (None: 1,000)."""
    num_eval_envs: Annotated[int, Bounds(1)] | None = None
    """World models: environments played in at once (None: 20)."""
    episodes_per_env: Annotated[int, Bounds(1, 10**9)] | None = None
    """World models: episodes of each environment (None: 5)."""
    simulations: Annotated[int, Bounds(1)] | None = None
    """UniZero: expansions of each search (None: as in training)."""
    policy: Literal["both", "sampled", "greedy"] | None = None
    """PPO, GLAM: `sampled` draws actions as in training, `greedy` takes the most probable ones (None: both)."""
    video: str | None = None
    """Q-networks, PPO: also write a video of episodes: a path that ends in .gif, or in .png for an animated PNG."""
    video_episodes: Annotated[int, Bounds(1, 10**9)] = 1
    """Episodes in the video."""
    overwrite: bool = False
    """Let the video replace an existing file."""


@dataclass(frozen=True)
class Evaluation:
    """What it answers: how well the agent of a run's checkpoint does."""

    step: int
    agent: str
    """Which agent, in words."""
    env: str
    env_kwargs: dict[str, Any]
    scores: dict[str, Score]
    """One, or one for each way to choose actions; `score` is the first."""
    facts: dict[str, Any]
    """What the kind of agent adds to the output for programs."""
    backend: Choice | None = None

    @property
    def score(self) -> Score:
        """The score of actions chosen as in training, where there are several ways."""
        return next(iter(self.scores.values()))
