"""The observability gap: the same agent with the state in view, in the very same episodes.

An agent that sees the state has nothing to remember. What it wins more than one that sees the world's own observation
is the price of hiding the state from this architecture, trained this way: part of it no memory could win back, and the
rest is what this memory leaves lying.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from dqn_memory.config import TrainConfig
from dqn_memory.evaluation import MAX_EVAL_ENVS, Measure, Score, evaluate, mean_interval, report
from dqn_memory.network import QNetwork
from dqn_memory.runs.errors import UserError, require
from envs.baselines import Lines, lines

EPISODES = MAX_EVAL_ENVS  # one for each row of a fleet: only first episodes start alike in both
# what may differ unmentioned
APART = (
    "environment.observe", "environment.env_workers", "seed",
    "output", "compute", "evaluation", "total_steps", "plugin",
)  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """Scores of both agents in the same episodes, one entry each."""

    seen: Score  # of the agent that acts on the world's own observation
    state: Score  # of the one that acts on the state

    def difference(self) -> Measure:
        """Mean return of the state's agent less the other's, episode by episode, with its 95 % interval."""
        return mean_interval(self.state.returns - self.seen.returns, self.seen.exhaustive)

    def plain(self) -> dict[str, Any]:
        """Numbers for a JSON file: means with their intervals, null where there is none."""
        agents = {"observation": self.seen, "state": self.state}
        measured = {name: {key: list(value) for key, value in report(score).items()} for name, score in agents.items()}
        success = float(self.state.success.mean()) - float(self.seen.success.mean())
        facts = {"episodes": self.seen.episodes, "exhaustive": self.seen.exhaustive}
        return facts | measured | {"return_gap": list(self.difference()), "success_gap": success}


def check_pair(config: TrainConfig, state_config: TrainConfig, name: str) -> None:
    """Raise UserError where two runs cannot be compared; `name` is the run that observes the state."""
    if config.environment.observe != "observation":
        raise UserError("the run observes the state itself; give the one that does not, and this one as --state-run")
    if state_config.environment.observe != "state":
        raise UserError(f"--state-run {name} observes its world, not the state; train it with --observe state")
    if replace(state_config.environment, observe="observation").kwargs(False) != config.environment.kwargs(False) or (
        state_config.environment.env != config.environment.env
    ):
        raise UserError(f"--state-run {name} is of {_where(state_config)}, but the run is of {_where(config)}")
    ours, theirs = config.network.architecture, state_config.network.architecture
    require(ours == theirs, f"--state-run {name} is a {theirs}, but the run is a {ours}; compare one architecture")


def differences(config: Any, state_config: Any, prefix: str = "") -> list[str]:
    """List what else differs between two runs: "learner.batch_size 64 and 32"."""
    found: list[str] = []
    for field in fields(config):
        ours, theirs, name = getattr(config, field.name), getattr(state_config, field.name), prefix + field.name
        if is_dataclass(ours) and name not in APART:
            found += differences(ours, theirs, f"{name}.")
        elif ours != theirs and name not in APART:
            found.append(f"{name} {ours} and {theirs}")
    return found


def observability(
    network: QNetwork, config: TrainConfig, state_network: QNetwork, state_config: TrainConfig,
    device: torch.device, seed: int,
) -> Gap:  # fmt: skip
    """Play both agents in the same episodes: the same initial states, and the same draws in every step."""
    setups = config.eval_setup(device), state_config.eval_setup(device)
    sampled = all(setup.sampled for setup in setups)  # else both take their best actions
    ours, theirs = (replace(setup, sampled=sampled) for setup in setups)
    return Gap(evaluate(network, ours, EPISODES, seed), evaluate(state_network, theirs, EPISODES, seed))


def known(config: TrainConfig) -> Lines | None:
    """Give the scores of random and best known play where a run's environment has its default options."""
    return None if config.environment.kwargs(training=False) else lines(config.environment.env)


def _where(config: TrainConfig) -> str:
    options = {name: value for name, value in config.environment.kwargs(training=False).items() if name != "observe"}
    return f"{config.environment.env} {options}" if options else config.environment.env


def words(gap: Gap, apart: list[str]) -> str:
    """Put the comparison into a sentence or two."""
    seen, state = float(np.mean(gap.seen.returns)), float(np.mean(gap.state.returns))
    mean, low, high = gap.difference()
    between = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    kind = "initial states" if gap.seen.exhaustive else "episodes"
    more = f"; the runs also differ in {', '.join(apart)}" if apart else ""
    return (
        f"observability gap: return {state:.2f} with the state, {seen:.2f} without, {mean:+.2f}{between} "
        f"over the same {gap.seen.episodes} {kind}{more}"
    )
