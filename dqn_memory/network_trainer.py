"""The base of `train`, `ppo` and `pqn`, whose agent is one network: how it is built, averaged and evaluated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.analysis.episodes import beginning
from dqn_memory.analysis.recall import Recall, RecallConfig, recall
from dqn_memory.blocks.embeddings import CLIP
from dqn_memory.evaluate import (
    KINDS_OF_NETWORKS,
    EvalSetup,
    acting_cost,
    check_fits,
    eval_setups,
    evaluate_each,
    evaluate_run,
    load_policy,
)  # fmt: skip
from dqn_memory.exploration import Explorer
from dqn_memory.network import QNetwork, observation_spec
from dqn_memory.play import MeanScore, Score, summary
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import kind_of
from dqn_memory.runs.seeding import seeded
from dqn_memory.runs.stateful import Stateful
from dqn_memory.runs.trainer import Trainer
from dqn_memory.size import match
from envs.baselines import reference_summary
from envs.console import say
from envs.core import Step
from envs.vector import make_vector

C = TypeVar("C", bound=Any)
MANY = 5  # names of weights in a sentence
RECALL_EPISODES, RECALL_STEPS = 4, 100  # from which the recall distance is measured
DIRECTION = re.compile(r"layers\.(\d+)\..*\.(ahead|behind)\.weight_hh_l0$")  # recurrent weights of bidirectional layers


class NetworkTrainer(Trainer[C]):
    """A run whose agent is one network."""

    evaluation_flags: ClassVar[tuple[str, ...]] = ("episodes", "video", "video_episodes", "overwrite")
    reads_rows = takes_several = True
    network: QNetwork
    evaluated: QNetwork
    explorer: Explorer
    discounted: DiscountedReturns | None = None

    def __init__(self, config: C) -> None:
        super().__init__(config)
        if config.learner.normalize_reward:
            self.discounted = DiscountedReturns(self.vector.num_envs, config.learner.gamma, self.device)
            self.state_names = (*self.state_names, "discounted")

    def build_networks(self, averaged: bool) -> None:
        """Build the online network and its average, which is evaluated and is the agent of a checkpoint."""
        self.spec, self.actions = observation_spec(self.vector.observation_space), self.vector.actions
        self.network = self.build_network()
        self.evaluated = self.build_network().requires_grad_(False) if averaged else self.network
        for id, setup in eval_setups(self.config, self.device).items():
            if id not in self.config.environment.ids:
                check_fits(setup, self.network, "--eval-env", self.config.environment.name)

    def build_network(self) -> QNetwork:
        """Build a network with the run's initial weights."""
        with seeded(self.streams.network):
            network: QNetwork = self.config.network.build(self.spec, self.actions)
            return network.to(self.device)

    def observe(self, observation: Tensor) -> None:
        """Add observations (N, ...) to the statistics by which the networks normalise them, if they do."""
        for network in dict.fromkeys((self.network, self.evaluated)):
            network.observe(observation)

    def take_weights(self) -> dict[str, Any]:
        """Take the weights of the agent, critic and predictor of `--start-from` that have our names and shapes.

        Raises:
            UserError: there is no such run, its checkpoint is damaged, or nothing of its network fits.
        """
        source = self.config.start_from
        if source is None:
            return {}
        checkpoint = Run.open(source).load(with_replay=False)
        if kind_of(checkpoint) not in KINDS_OF_NETWORKS:
            raise UserError(
                f"--start-from {source}: its agent is no network of train, pqn or ppo; name a run of theirs"
            )
        agent = "average" if checkpoint.part("average") else "network"
        left = {}
        for name, network in self.networks().items():
            own = isinstance(network, QNetwork)
            left[name] = checkpoint.take(network, agent if own else name)
            matrices = [key for key, value in network.state_dict().items() if value.dim() > 1]
            memory = [key for key in matrices if key.startswith("layers.")] or matrices
            if own and left[name].issuperset(memory):
                shape = f"--architecture {self.config.network.architecture} and --width {self.config.network.width}"
                raise UserError(
                    f"--start-from {source}: its memory has another form than {shape}; give those of that run"
                )
        names = [f"{part}.{name}" for part in ("network", "critic", "predictor") for name in sorted(left.get(part, ()))]
        more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
        taken = f"these weights stay new: {', '.join(names[:MANY])}{more}" if names else "all of the weights are taken"
        say(f"training starts from {source} at its step {checkpoint.step:,}; {taken}")
        step, digest = checkpoint.step, checkpoint.digest
        return {"start_from": source, "start_from_step": step, "start_from_sha256": digest}

    def networks(self) -> dict[str, Any]:
        """List the online network and, if the run averages its weights, their average."""
        networks = {"network": self.network}
        return networks if self.evaluated is self.network else networks | {"average": self.evaluated}

    def scalars(self) -> dict[str, float]:
        """Give the scalars of a log line, with epsilon, the learning rate and learned priors."""
        schedules = {
            "charts/epsilon": self.explorer.epsilon(self.steps),
            "charts/learning_rate": float(self.optimizers[0].param_groups[0]["lr"]),
        }
        return super().scalars() | schedules | self.network.memory_scalars()

    def recurrent_change(self) -> dict[str, float]:
        """Measure the change of the recurrent weights of bidirectional layers, relative to their initial values.

        The change is 0 in a backward recurrence that never takes more than one step.
        """
        now, first = (dict(network.named_parameters()) for network in (self.network, self.build_network()))
        recurrent = {(name, match[1], match[2]) for name in now if (match := DIRECTION.search(name))}
        return {
            f"moved/{layer}.{direction}": float((now[name] - first[name]).detach().norm() / first[name].detach().norm())
            for name, layer, direction in sorted(recurrent)
        }

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> Score:
        """Play episodes, seeded by the evaluation stream and this step."""
        config = self.config.evaluation
        episodes = config.final_episodes if final else config.episodes
        return self.evaluate_with(episodes, self.evaluation_seed(final), reset_memory=reset_memory)

    def evaluate_with(self, episodes: int, seed: int, **changed: Any) -> Score:
        """Play in every environment of training and of `--eval-env`, with changed fields of the setups."""
        found = eval_setups(self.config, self.device)
        setups = {id: replace(setup, **changed) for id, setup in found.items()}
        return evaluate_each(self.evaluated, setups, self.config.environment.ids, episodes, seed)

    def final_scalars(self) -> dict[str, float]:
        """Measure the cost of acting, the change of recurrent weights, and how far back the agent remembers."""
        setup, training = self.config.eval_setup(self.device), self.evaluated.training
        self.evaluated.eval()
        scalars = acting_cost(self.evaluated, setup) | self.recurrent_change()
        if self.config.evaluation.memory_ablation and not self.spec.has_images:  # they would take minutes
            setups = eval_setups(self.config, self.device)
            found = {id: float(self.recall(setups[id]).distance) for id in self.config.environment.ids}
            scalars["final/recall_distance"] = sum(found.values()) / len(found)
            if len(found) > 1:
                scalars |= {f"final/recall_distance/{id}": distance for id, distance in found.items()}
        self.evaluated.train(training)
        return scalars

    def recall(self, setup: EvalSetup) -> Recall:
        """Measure how far back the agent remembers, in the first steps of a few episodes."""
        config, network, seed = self.config, self.evaluated, self.evaluation_seed(final=True)
        episodes = [beginning(setup, network, seed + number, RECALL_STEPS) for number in range(RECALL_EPISODES)]
        return recall(network, episodes, RecallConfig(), config.seed, config.acting_state)

    def reached_goal(self, score: Score) -> bool:
        """Whether the success rate reaches `--stop-at-success`."""
        goal = self.config.evaluation.stop_at_success
        parts = score.parts.values() if isinstance(score, MeanScore) else [score]
        return goal is not None and all(part.success_rate >= goal for part in parts)

    def summary(self, score: Score) -> str:
        environment, options = self.config.environment.id, self.config.env_kwargs(training=False)
        return summary(score, reference_summary(score.success_rate, float(score.returns.mean()), environment, options))

    @classmethod
    def variant(cls, config: C) -> str:
        name: str = config.network.architecture
        return name

    @classmethod
    def resolve(cls, config: C) -> C:
        """Make `--path` absolute, and turn `--match` into widths."""
        environment = config.environment
        if environment.path is not None and Path(environment.path).is_file():  # else a name that the environment knows
            config = replace(config, environment=replace(environment, path=str(Path(environment.path).resolve())))
        if config.match is None:
            return config
        vector = make_vector(environment.id, 1, 0, "cpu", config.env_kwargs(), environment.interface)
        spec = observation_spec(vector.observation_space)
        return replace(config, network=match(config.match, config.network, spec, vector.actions))

    evaluate_run = staticmethod(evaluate_run)
    load_policy = staticmethod(load_policy)


# ---- rewards ---------------------------------------------------------------------------------------------------------
class DiscountedReturns(Stateful):
    """The discounted returns of N environments up to now, by whose spread rewards are divided."""

    state_names = ("returns", "moments")

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self.gamma, self.device = gamma, device
        self.moments = torch.zeros(3, dtype=torch.float64, device=device)  # returns: number, sum, sum of squares
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)

    def begin(self) -> None:
        """Start episodes in all environments."""
        self.returns = torch.zeros_like(self.returns)

    def add(self, step: Step) -> None:
        """Add the rewards of one step."""
        returns = self.gamma * self.returns + step.reward
        self.moments = self.moments + torch.stack((torch.ones_like(returns), returns, returns.square())).sum(1)
        self.returns = returns.masked_fill(step.done, 0.0)

    def scaled(self, reward: Tensor, terms: int = 1) -> Tensor:
        """Divide rewards (...), or sums of several, by the spread, and clip them to +-10 for each of their terms."""
        limit = CLIP * terms
        return (reward / spread(self.moments, 2)).clamp(-limit, limit).to(reward.dtype)


def spread(moments: Tensor, least: float) -> Tensor:
    """Compute the standard deviation, a scalar, from a number of values, their sum and the sum of their squares, (3,).

    It is 1 for less than `least` values, and for equal values, which differ by rounding only.
    """
    mean, square = moments[1:] / moments[0].clamp(min=1)
    found = (square - mean.square()).clamp(min=0).sqrt()
    differ = found > 1e-4 * square.sqrt()
    return torch.where((moments[0] >= least) & differ, found, 1.0)


# ---- copies and averages of networks ---------------------------------------------------------------------------------
def averaging(decay: float, updates: int) -> float:
    """Compute the average's decay at update number `updates`; it is lower at first, to forget the initial weights."""
    return min(decay, (1 + updates) / (10 + updates))


@torch.no_grad()
def update_target(source: nn.Module, target: nn.Module) -> None:
    """Copy all parameters and buffers in place, so that captured graphs keep their addresses."""
    ours, theirs = ([*module.parameters(), *module.buffers()] for module in (target, source))
    torch._foreach_copy_(ours, theirs)


@torch.no_grad()
def average_parameters(source: nn.Module, average: nn.Module, decay: float | Tensor) -> None:
    """Move `average` towards `source`; a decay that is a tensor () can change in a captured graph."""
    ours: list[Tensor] = list(average.parameters())
    theirs: list[Tensor] = list(source.parameters())
    if isinstance(decay, Tensor):
        for own, other in zip(ours, theirs, strict=True):
            own.lerp_(other, 1 - decay)
    else:
        torch._foreach_lerp_(ours, theirs, 1 - decay)
