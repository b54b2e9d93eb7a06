"""A diagnosis of a task, and the sentences that answer its questions from the scores of finished runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dqn_memory.study.collect import ACTING, Data
from dqn_memory.study.sections import scores
from dqn_memory.study.statistics import COVERAGE, interval
from dqn_memory.study.verdict import CONTROLS, MARGIN, NEEDED, NOTHING, UNKNOWN, Judgement

MEMORIES = ("gru", "mingru", "attention")
SOONER = 1.5  # ratio of steps from which on one network learns sooner than another


@dataclass(frozen=True)
class Diagnosis:
    """What short runs say about the memory that a task needs.

    Attributes:
        verdict: one of `dqn_memory.study.verdict.VERDICTS`.
        answers: the answer to each question, in sentences.
        oddities: what is odd about the environment, a few sentences each.
        scores: final score of each run, by network.
        random: mean score of random play.
        measure: "success" or "return".
        memory: the memory that is advised; None if none is.
        command: trains an agent with it, or without a memory.
        folder: of the runs; the report is in its folder `report`.
    """

    env: str
    verdict: str
    answers: dict[str, str]
    oddities: list[str]
    scores: dict[str, list[float]]
    random: float
    measure: str
    memory: str | None
    command: str
    folder: str

    def __str__(self) -> str:
        """Write the answers, a paragraph each."""
        odd = self.oddities or ["Nothing was found."]
        parts = [f"{question}\n  {answer}" for question, answer in self.answers.items()]
        rest = ["What is odd here?", *(f"  {each}" for each in odd), "To train the agent:", f"  {self.command}"]
        return "\n".join([f"{self.env}: {self.verdict}", *parts, *rest])


@dataclass(frozen=True)
class Texts:
    """Write the answers."""

    minutes: float
    data: Data
    values: Mapping[str, Sequence[float]]
    random: float
    judged: Judgement
    measure: str

    def mean(self, name: str) -> str:
        """Write the mean of a network with its interval."""
        return format(interval(self.values[name]), ".3g")

    def rising(self) -> bool:
        """Tell whether the mean curve of the best network still rises over its last four evaluations."""
        curves = [run.curve.success for run in self.data.of(series=self.judged.best)]
        mean = np.mean([curve[-4:] for curve in curves], 0)
        reach = float(np.mean(self.values[self.judged.best])) - self.random
        return bool(len(mean) == 4 and mean[2:].mean() - mean[:2].mean() > MARGIN / 2 * abs(reach))

    def learned(self) -> str:
        """Compare the best network with random play."""
        judged, steps, seeds = self.judged, self.data.entries[0].config.total_steps, self.seeds
        best, random = f"{self.measure} {self.mean(judged.best)}", f"{self.random:.3g}"
        narrow = f"; only {100 * COVERAGE[seeds]:.0f} of 100 such hold the true mean" if seeds in COVERAGE else ""
        brackets = f" Brackets hold 95 % bootstrap intervals over {seeds} seeds{narrow}." if seeds > 1 else ""
        if judged.verdict == NOTHING:
            return (
                f"No: after {steps:,} steps no two runs are above random play ({random}) by more than chance. The best "
                f"network is {judged.best} with {best}. {self.more()}{brackets}"
            )
        rises = f"Its curve still rises. {self.more()}" if self.rising() else "Its curve no longer rises."
        return f"Yes: {judged.best} reaches {best} after {steps:,} steps, random play {random}. {rises}{brackets}"

    @property
    def seeds(self) -> int:
        """The number of runs of the best network."""
        return len(self.values[self.judged.best])

    def more(self) -> str:
        """Advise more time."""
        return f"Try --minutes {3 * self.minutes:g} with another --folder."

    def needed(self) -> str:
        """Give the verdict and its reason."""
        judged = self.judged
        lead = (
            f"The best network with a memory is {judged.memory} with {self.mean(judged.memory)}, the best without one "
            f"{judged.control} with {self.mean(judged.control)}. The lead is {judged.lead:.3g}"
            f"{'' if math.isnan(judged.lead.low) else ', with the interval of a Welch test'}."
        )
        if judged.verdict == NOTHING:
            return "Nothing can be said, as nothing was learned."
        if judged.verdict == NEEDED:
            return f"Yes: no run without a memory comes near. {lead}"
        if judged.verdict == UNKNOWN:
            more = (
                self.more() if self.seeds > 1 else "One seed shows no difference: try --seeds 3 with another --folder."
            )
            return f"It is too early to say. {lead} {judged.doubt} {more}"
        control = next(name for name, words in CONTROLS.items() if words == judged.verdict)
        reached = {
            "mlp": "No memory is needed for what is reached: the newest observation is enough",
            "clock": "A clock explains what is reached: the newest observation and the number of the step are enough",
            "frame_stack": "The last few observations are enough for what is reached: four of them",
        }[control]
        both = f"{control} reaches {self.mean(control)}, {judged.memory} {self.mean(judged.memory)}"
        steps = {name: self.steps_to_best(name) for name in (control, *MEMORIES)}
        first = min(MEMORIES, key=lambda name: steps[name])
        sooner = f" {first} gets there sooner: after {steps[first]:,} steps, {control} after {steps[control]:,}."
        return f"{reached}. {both}.{sooner if SOONER * steps[first] <= steps[control] < math.inf else ''}"

    def steps_to_best(self, name: str) -> float:
        """Give the steps after which a network's mean curve first comes near the best final mean; infinity if never."""
        best = float(np.mean(self.values[self.judged.best]))
        curves = [run.curve for run in self.data.of(series=name)]
        near = np.mean([curve.success for curve in curves], 0) >= best - MARGIN * abs(best - self.random)
        return int(curves[0].steps[near.argmax()]) if near.any() else math.inf

    def distance(self, memory: str | None) -> str:
        """Say how far back a memory looks, and what is lost without it."""
        if memory is None:
            known = dict(zip(CONTROLS.values(), ("It need not", "It need not", "Three steps"), strict=True))
            return f"{known.get(self.judged.verdict, 'Nothing can be said')}: {self.judged.verdict}."
        found = self.data.of(series=memory)
        pairs, distances = scores.without_memory(found), scores.recall_distances(found)
        if not pairs or not distances:
            return "That was not measured in these runs."
        before, after = (float(np.mean(side)) for side in zip(*pairs, strict=True))
        return (
            f"Half of the past's influence on {memory} comes from the last {np.mean(distances):.3g} steps. Erasing its "
            f"memory before each step takes its {self.measure} from {before:.3g} to {after:.3g}."
        )

    def cost(self, memory: str | None, network: str) -> str:
        """Name the advised memory, and what it costs."""
        found = self.data.of(series=network)
        acting, state = (float(np.median([run.last(metric) for run in found])) for metric in ACTING.values())
        price = (
            f"costs {1e6 * found[0].pace:,.0f} processor seconds to train for a million steps, {acting:,.0f} "
            f"microseconds to choose an action, and {state:,.0f} bytes of state."
        )
        if self.judged.verdict in (NOTHING, UNKNOWN):
            so_far = "the cheapest of the best memories" if memory else "the best network"
            return f"It is too early to choose. {network}, {so_far} so far, {price}"
        if memory is None:
            return f"None. {network} {price}"
        why = "the cheapest memory whose mean is within a tenth of the best one's and not significantly below it"
        return f"Try {network}, {why}. It {price}"
