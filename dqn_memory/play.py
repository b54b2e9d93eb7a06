"""Play whole episodes without learning, and count what they score.

From top to bottom: the score of complete episodes and its words; the loop that plays episodes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dqn_memory.intervals import Measure, mean_interval, mean_of_measures, wilson
from dqn_memory.runs.errors import require
from envs.console import say
from envs.core import Step
from envs.vector import VectorEnvironment

SUCCESS = "success"
SUCCESS_TOLD = "final/success_told"  # 1 if the environment defines success, else 0
SILENCE = 5.0  # seconds between the progress messages of an evaluation


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

    @property
    def success_rate(self) -> float:
        return float(self.success.mean())

    def interval(self) -> tuple[float, float]:
        """Give the 95 % interval of the success rate; a single point if every initial state was played."""
        rate = self.success_rate
        return (rate, rate) if self.exhaustive else wilson(int(self.success.sum()), self.episodes)

    def measures(self) -> dict[str, Measure]:
        """Give success rate, return and length, each with its 95 % interval; None if every initial state was played."""
        low, high = self.interval()
        return {
            "success": (self.success_rate, None, None) if self.exhaustive else (self.success_rate, low, high),
            "return": mean_interval(self.returns, self.exhaustive),
            "length": mean_interval(self.lengths, self.exhaustive),
        }

    def scalars(self, kind: str = "eval") -> dict[str, float]:
        """Give the metrics of an evaluation of a kind: one during the run (eval), or the last one (final)."""
        (low, high), measures = self.interval(), self.measures()
        return {
            f"{kind}/success_rate": self.success_rate,
            f"{kind}/success_low": low,
            f"{kind}/success_high": high,
            f"{kind}/episodic_return": measures["return"][0],
            f"{kind}/episodic_length": measures["length"][0],
            f"{kind}/episodes": float(self.episodes),
        }


@dataclass(frozen=True, repr=False)
class MeanScore(Score):
    """Outcomes in several environments, of which each counts alike, however many episodes were played in it.

    The arrays have the episodes of all environments of training; `success_rate` is not their mean.

    Attributes:
        parts: score in each environment of training, by id.
        others: score in each environment that was not trained in, by id; these do not count.
    """

    parts: Mapping[str, Score] = field(default_factory=dict)
    others: Mapping[str, Score] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Mapping[str, Score], others: Mapping[str, Score]) -> MeanScore:
        """Join the scores in several environments."""
        scores = list(parts.values())
        success, returns, lengths = (
            np.concatenate([getattr(score, name) for score in scores]) for name in ("success", "returns", "lengths")
        )
        exhaustive = all(score.exhaustive for score in scores)
        reported = all(score.env_reports_success for score in scores)
        return cls(success, returns, lengths, exhaustive, reported, parts, others)

    @property
    def success_rate(self) -> float:
        return float(np.mean([score.success_rate for score in self.parts.values()]))

    def interval(self) -> tuple[float, float]:
        """Give Wilson's interval of as many episodes as would have the variance of the mean over environments."""
        drawn = [1 / score.episodes for score in self.parts.values() if not score.exhaustive]
        if not drawn:
            return self.success_rate, self.success_rate
        episodes = len(self.parts) ** 2 / sum(drawn)
        return wilson(self.success_rate * episodes, episodes)

    def measures(self) -> dict[str, Measure]:
        """Give success rate, return and length, each with its 95 % interval; None if every initial state was played."""
        low, high = self.interval()
        success = (self.success_rate, None, None) if self.exhaustive else (self.success_rate, low, high)
        each = [score.measures() for score in self.parts.values()]
        return {"success": success} | {
            name: mean_of_measures([measures[name] for measures in each]) for name in ("return", "length")
        }

    def scalars(self, kind: str = "eval") -> dict[str, float]:
        """Give the means over environments, and the metrics of each environment with its id at the end."""
        return super().scalars(kind) | {
            f"{name}/{id}": value
            for id, score in {**self.parts, **self.others}.items()
            for name, value in score.scalars(kind).items()
        }


def summary(score: Score, baselines: str = "") -> str:
    """Write one line: first the success rate, or the return if the environment defines no success.

    `baselines` is a text on reference scores.
    """
    if isinstance(score, MeanScore):
        return _summary_of_several(score, baselines)
    low, high = score.interval()
    mean, return_low, return_high = mean_interval(score.returns, score.exhaustive)
    number, length = f"{score.episodes:,}", f"length {score.lengths.mean():.1f}"
    if not score.env_reports_success:
        between = "" if return_low is None or return_high is None else f" [{return_low:.2f}, {return_high:.2f}]"
        kind = "all initial states, " if score.exhaustive else ""
        return f"return {mean:.2f}{between} on {kind}{number} episodes{baselines}, {length}"
    rate = f"success {score.success.mean():.3f} [{low:.3f}, {high:.3f}] on {number} episodes"
    if score.exhaustive:
        rate = f"success on {int(score.success.sum()):,} of {number} initial states"
    return f"{rate}{baselines}, return {mean:.2f}, {length}"


def _summary_of_several(score: MeanScore, baselines: str) -> str:
    """Write the means over environments, and then the result of each."""
    name = "success" if score.env_reports_success else "return"
    others = [f"{id} (not trained in) {each.measures()[name][0]:.3f}" for id, each in score.others.items()]
    first, *rest = score.parts.values()
    if not rest:
        return ", ".join([summary(first, baselines), *others])
    means = {measure: values[0] for measure, values in score.measures().items()}
    several = f"mean {name} {means[name]:.3f} in {len(score.parts)} environments"
    return ", ".join([several, *(f"{id} {each.measures()[name][0]:.3f}" for id, each in score.parts.items()), *others])


def fields(score: Score) -> dict[str, float | None]:
    """Give every measure and both ends of its interval, by name."""
    return {
        f"{name}{part}": value
        for name, values in score.measures().items()
        for part, value in zip(("", "_low", "_high"), values, strict=True)
    }


def lines(score: Score) -> list[str]:
    """Write a line for each measure; success comes first, if the environment defines one."""
    measures = score.measures()
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
        require(quota >= 1, f"{quota} episodes of each environment are too few; play at least 1")
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
