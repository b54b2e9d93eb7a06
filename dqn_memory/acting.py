"""From Q-values to actions to episodes: what an agent remembers while it acts, how it explores, how it is evaluated.

N episodes run at once. An actor remembers each of them, as the window of its last K observations or as the carried
state of a recurrence, and values the actions; an explorer replaces some of the greedy ones.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dqn_memory.network import QNetwork, trimmed_length
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.score import Score, play
from dqn_memory.runs.seeding import Streams, generator
from dqn_memory.runs.settings import Bounds
from envs.checked import LONGEST
from envs.fleet import Fleet, TensorFleet, make_fleet
from envs.registry import WORLDS, make_world

ActingMode = Literal["prefix", "padded"]
ActingState = Literal["window", "episode"]
Memory = tuple[Tensor, ...]  # what an actor remembers, rows first


# ---- what an agent remembers -----------------------------------------------------------------------------------------
class Kept:
    """Something whose attributes `kept` go into checkpoints: tensors, or lists and tuples of them."""

    kept: ClassVar[tuple[str, ...]]
    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, tree_map(lambda part: part.to(self.device), value))


# In place of which types onnxruntime chooses between observations: it knows no choice between these.
SELECTED = {torch.bool: torch.uint8, **dict.fromkeys((torch.int8, torch.int16, torch.uint16), torch.int32)}
SELECTED |= {torch.uint32: torch.int64, torch.uint64: torch.int64}


class WindowActor(Kept):
    """Keep the last K observations of N episodes and the actions that led to them, and encode them at each step.

    `padded` feeds all K, padding last, and reads the last real position.
    """

    kept: ClassVar[tuple[str, ...]] = ("observation", "previous_action", "lengths")

    def __init__(self, network: QNetwork, num_envs: int, device: torch.device, padded: bool = False) -> None:
        self.network, self.device, self.padded, self.size = network, device, padded, network.config.context
        spec, shape = network.spec, (num_envs, network.config.context)
        self.observation = torch.full((*shape, *spec.shape), spec.padding, dtype=spec.dtype, device=device)
        self.previous_action = torch.full(shape, network.num_actions, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        """Append one observation to each window, dropping the oldest of a full one."""
        after = self._append(observation, previous_action, reset, self.memory)
        self.observation, self.previous_action, self.lengths = after

    def _append(self, observation: Tensor, previous_action: Tensor, reset: Tensor, memory: Memory) -> Memory:
        held, actions, lengths = memory
        mask = reset.reshape(-1, *[1] * (held.dim() - 1))  # (N, 1, ...)
        observations = torch.where(mask, self.network.spec.padding, held).to(held.dtype)
        actions = torch.where(reset.unsqueeze(1), self.network.num_actions, actions)
        lengths = torch.where(reset, 0, lengths)
        full = lengths == self.size
        observations = torch.where(full.reshape_as(mask), observations.roll(-1, 1), observations)
        actions = torch.where(full.unsqueeze(1), actions.roll(-1, 1), actions)
        index = torch.where(full, self.size - 1, lengths)
        newest = torch.arange(self.size, device=index.device) == index.unsqueeze(1)  # (N, K)
        observations = torch.where(
            newest.reshape(*newest.shape, *[1] * (observations.dim() - 2)),
            observation.to(observations.dtype).unsqueeze(1),
            observations,
        )
        action = torch.where(reset, self.network.num_actions, previous_action)
        return observations, torch.where(newest, action.unsqueeze(1), actions), index + 1

    @torch.no_grad()
    def q_values(self) -> Tensor:
        width = self.size
        # on an accelerator all K, as it would have to wait to read the longest length
        if not self.padded and self.device.type == "cpu":
            width = trimmed_length(int(self.lengths.max()), self.size)
        window = self.observation[:, :width], self.previous_action[:, :width]
        return self.network.at(*window, None if self.padded else self.lengths, self.lengths - 1)

    @property
    def memory(self) -> Memory:
        return self.observation, self.previous_action, self.lengths

    def step(
        self, observation: Tensor, previous_action: Tensor, reset: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Compute Q (N, A) and the memory after, from what is given alone."""
        held, dtype = memory[0], memory[0].dtype
        held = held.to(SELECTED.get(dtype, dtype))
        observations, actions, lengths = self._append(observation, previous_action, reset, (held, *memory[1:]))
        q = self.network.at(observations, actions, None if self.padded else lengths, lengths - 1)
        return q, (observations.to(dtype), actions, lengths)


class StateActor(Kept):
    """Carry the recurrent state through the whole episode, as published DRQN acts."""

    kept = ("state", "q")

    def __init__(self, network: QNetwork, num_envs: int, device: torch.device) -> None:
        if not network.stateful:
            raise UserError(
                f"--acting-state episode needs a memory that streams, such as gru or attention, not "
                f"{network.config.architecture}; use window"
            )
        self.network, self.device = network, device
        self.state = network.initial_state(num_envs, device)
        self.q = torch.zeros(num_envs, network.num_actions, device=device)

    @torch.no_grad()
    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        self.q, self.state = self.network.step(observation, previous_action, self.state, reset)

    def q_values(self) -> Tensor:
        return self.q

    @property
    def memory(self) -> Memory:
        return tuple(part for layer in self.state for part in layer)

    def step(
        self, observation: Tensor, previous_action: Tensor, reset: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Compute Q (N, A) and the memory after, from what is given alone."""
        parts = iter(memory)
        state = [tuple(islice(parts, len(layer))) for layer in self.state]
        q, after = self.network.step(observation, previous_action, state, reset)
        return q, tuple(part for layer in after for part in layer)


Actor = WindowActor | StateActor


class GreedyStep(nn.Module):
    """One step of an actor as a function: what it remembers goes in and comes out, as an exported file needs it."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor, self.network = actor, actor.network

    def forward(self, observation: Tensor, action: Tensor, reset: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Compute Q (N, A), the best action (N,) and the state after."""
        q, after = self.actor.step(observation, action, reset, state)
        return q, q.argmax(1), *after


def choose(outputs: Tensor, draws: torch.Generator | None) -> Tensor:
    """Choose actions (N,) by outputs (N, A): those of the largest, or with `draws` drawn ones, by them as logits."""
    if draws is None:
        return outputs.argmax(1)
    return outputs.softmax(1).multinomial(1, generator=draws).squeeze(1)


class NetworkPolicy:
    """Act by a network's outputs in N episodes.

    With `draws` they are logits of sampled actions; with `forgets` the newest observation alone counts.
    """

    def __init__(
        self, actor: Actor, num_envs: int, draws: torch.Generator | None = None, forgets: bool = False
    ) -> None:
        self.actor, self.draws, self.forgets = actor, draws, forgets
        self.previous_action = torch.full((num_envs,), actor.network.num_actions, device=actor.device)

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for observations (N, ...), and give the network's outputs (N, A)."""
        self.actor.observe(observation, self.previous_action, reset | self.forgets)
        outputs = self.actor.q_values()
        self.previous_action = choose(outputs, self.draws)
        return self.previous_action, outputs


def make_actor(network: QNetwork, num_envs: int, device: torch.device, acting: ActingMode, state: ActingState) -> Actor:
    """Make the actor that the flags `--acting` and `--acting-state` ask for."""
    if state == "episode":
        return StateActor(network, num_envs, device)
    return WindowActor(network, num_envs, device, acting == "padded")


# ---- exploration -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ExplorationConfig:
    """How often and for how long random actions are taken."""

    removed: ClassVar[dict[str, Any]] = {"random_start_share": 1.0}
    epsilon_start: float = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: float = 0.1
    """Probability of a random action at the end of the schedule."""
    epsilon_steps: Annotated[int, Bounds(1)] = 200_000
    """Environment steps from the first to the last value (exponential: its time constant)."""
    epsilon_schedule: Literal["linear", "exponential"] = "linear"
    """`exponential` is what the published code computes and calls linear: it nears the end, never reaches it."""
    epsilon_ladder: Annotated[float, Bounds(0)] = 0.0
    """Environment i of N explores with epsilon^(1 + epsilon_ladder * i / (N - 1)) (Ape-X, Horgan et al. 2018; 0: all
    alike)."""
    sticky_exponent: float = 0.0
    """Exponent of the zeta law from which a random action's duration is drawn (temporally extended epsilon-greedy,
    Dabney et al. 2021: 2); 0 holds every random action for one step. An action that is held where an episode ends is
    held on in the next one."""
    sticky_max_steps: Annotated[int, Bounds(1)] = 32
    """Longest time a random action is held, in steps."""
    random_start_steps: Annotated[int, Bounds(0)] = 0
    """Training episodes begin with 0 to this many random steps, drawn uniformly. They show states that a policy which
    ends its episodes early would never visit. What is logged of training episodes has them in it, an evaluation has
    not."""
    prepopulate: Annotated[int, Bounds(0)] = 0
    """Environment steps of uniform random actions before learning and the schedule begin (`train` alone)."""

    def check(self) -> None:
        """Raise a UserError for values that cannot work."""
        first, last, sticky = self.epsilon_start, self.epsilon_end, self.sticky_exponent
        if not 0 <= last <= first <= 1:
            raise UserError(f"--epsilon-end {last} and --epsilon-start {first} must satisfy 0 <= end <= start <= 1")
        if 0 != sticky <= 1:
            raise UserError(
                f"--sticky-exponent {sticky} must be above 1 (the zeta law's exponent), or 0 to hold nothing"
            )

    def epsilon(self, step: int) -> float:
        """Compute epsilon after `step` environment steps, prepopulation not counted."""
        if self.epsilon_schedule == "exponential":
            fraction = (1 - 1 / self.epsilon_steps) ** step
        else:
            fraction = max(0.0, 1 - step / self.epsilon_steps)
        return self.epsilon_end + (self.epsilon_start - self.epsilon_end) * fraction


class Explorer(Kept):
    """Decide in which of N environments to act at random, how, and for how many steps."""

    kept = ("sticky_action", "sticky_steps", "random_start_steps")

    def __init__(self, config: ExplorationConfig, num_envs: int, num_actions: int, generator: torch.Generator) -> None:
        self.config, self.num_actions, self.generator = config, num_actions, generator
        self.device = device = generator.device
        place_on_ladder = torch.arange(num_envs, device=device) / max(num_envs - 1, 1)  # 0 .. 1
        self.exponent = 1 + config.epsilon_ladder * place_on_ladder  # (N,)
        self.sticky_action, self.sticky_steps, self.random_start_steps = (
            torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in self.kept
        )  # the random action, steps that it is still held, steps that are still random at an episode's start; (N,)
        self.survival, self.mean_duration = _durations(config, device)

    def epsilon(self, step: int) -> float:
        """Give the schedule's value; 1 during prepopulation."""
        learning = step - self.config.prepopulate
        return 1.0 if learning < 0 else self.config.epsilon(learning)

    def choose(self, own: Tensor, epsilon: float | Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Replace some of the agent's own actions (N,) by random ones, and tell which, (N,).

        `first` (N,) says where an episode begins.
        """
        longest_start = self.config.random_start_steps
        u = torch.rand(3 + (longest_start > 0), len(own), generator=self.generator, device=own.device)
        epsilon = epsilon**self.exponent  # (N,)
        # begin so rarely that the fraction of random steps is epsilon, however long actions are held
        probability = epsilon / (epsilon + self.mean_duration * (1 - epsilon)).clamp(min=1e-9)
        duration = 1 + (u[2].unsqueeze(1) < self.survival).sum(1)  # (N,)
        if longest_start:
            drawn = (u[3] * (longest_start + 1)).long()
            self.random_start_steps = torch.where(first, drawn, self.random_start_steps)
            starting = self.random_start_steps > 0
            probability = torch.where(starting, 1.0, probability)
            duration = torch.where(starting, duration.minimum(self.random_start_steps), duration)
            self.random_start_steps = (self.random_start_steps - 1).clamp(min=0)
        begins = (self.sticky_steps == 0) & (u[0] < probability)
        self.sticky_action = torch.where(begins, (u[1] * self.num_actions).long(), self.sticky_action)
        self.sticky_steps = torch.where(begins, duration, self.sticky_steps)
        random = self.sticky_steps > 0
        self.sticky_steps = (self.sticky_steps - 1).clamp(min=0)
        return torch.where(random, self.sticky_action, own), random


def _durations(config: ExplorationConfig, device: torch.device) -> tuple[Tensor, float]:
    """Compute P(duration > d) for d = 1 .. longest - 1, and the mean duration."""
    if config.sticky_exponent == 0:
        return torch.zeros(1, device=device), 1.0
    duration = torch.arange(1, config.sticky_max_steps + 1, dtype=torch.float64)
    chance = duration**-config.sticky_exponent
    chance = chance / chance.sum()
    survival = 1 - chance.cumsum(0)[:-1]
    return survival.float().to(device), float((chance * duration).sum())


# ---- evaluation ------------------------------------------------------------------------------------------------------
MAX_EVAL_ENVS = 250


@dataclass(frozen=True)
class EvalSetup:
    """Where and how a network is evaluated."""

    env: str
    env_kwargs: dict[str, Any]
    observation_key: str | None
    device: torch.device
    acting: ActingMode = "prefix"
    acting_state: ActingState = "window"
    reset_memory: bool = False  # before each step
    sampled: bool = False  # actions are drawn by the network's outputs, which are logits; else the largest is taken
    workers: int | None = None  # processes that step the environments
    values: str = "Q-values"  # what the network's outputs are

    @classmethod
    def of(cls, config: Any, device: torch.device) -> EvalSetup:
        """Say where and how the network of a run with this config is evaluated."""
        environment = config.environment
        return cls(
            environment.env, config.env_kwargs(training=False), environment.observation_key, device,
            config.acting, config.acting_state, sampled=config.stochastic and config.evaluation.policy == "sampled",
            workers=environment.env_workers, values="Logits of the policy" if config.stochastic else "Q-values",
        )  # fmt: skip

    def fleet(self, episodes: int, seed: int) -> tuple[Fleet, int, bool]:
        """Make environments for at least `episodes` episodes.

        Returns:
            The fleet, the episodes that each of its environments plays, and whether they are all initial states, each
            of them once.
        """
        name = self.env.removeprefix("envs:")
        if name in WORLDS:
            world = make_world(name, device=self.device, **self.env_kwargs)
            draws = world.initial_draws()
            if draws is not None and not self.sampled:  # one try tells nothing of chance
                return TensorFleet(world, len(draws), seed, initial=draws), 1, True
        num_envs = min(episodes, MAX_EVAL_ENVS)
        fleet = make_fleet(
            self.env, num_envs, seed, self.device, self.observation_key, self.env_kwargs, self.workers, LONGEST
        )
        return fleet, math.ceil(episodes / num_envs), False

    def policy(self, network: QNetwork, num_envs: int, seed: int) -> NetworkPolicy:
        """Make the policy of a network that plays N episodes at once; `seed` is of the actions that it draws."""
        actor = make_actor(network, num_envs, self.device, self.acting, self.acting_state)
        stream = Streams.spawn(seed).exploration  # `seed` itself draws environments
        draws = generator(stream, self.device) if self.sampled else None
        return NetworkPolicy(actor, num_envs, draws, self.reset_memory)


@torch.no_grad()
def evaluate(network: QNetwork, setup: EvalSetup, episodes: int, seed: int) -> Score:
    """Play episodes without dropout; every environment plays as many of them."""
    training = network.training
    network.eval()
    fleet, quota, exhaustive = setup.fleet(episodes, seed)
    with closing(fleet):
        tally = play(fleet, setup.policy(network, fleet.num_envs, seed), quota)
    network.train(training)
    return tally.score(None if exhaustive else episodes, exhaustive, fleet.reports_success)


@torch.no_grad()
def acting_cost(network: QNetwork, setup: EvalSetup, steps: int = 20) -> dict[str, float]:
    """Measure what acting in one environment costs: microseconds of a step, the least of some, and bytes remembered."""
    actor = make_actor(network, 1, setup.device, setup.acting, setup.acting_state)
    observation = torch.zeros(1, *network.spec.shape, dtype=network.spec.dtype, device=setup.device)
    action, reset = (torch.zeros(1, dtype=dtype, device=setup.device) for dtype in (torch.int64, torch.bool))
    times = []
    for _ in range(network.config.context + steps):  # a window is full at the last ones
        began = time.perf_counter()
        actor.observe(observation, action, reset)
        int(actor.q_values().argmax())  # waits for the device
        times.append(time.perf_counter() - began)
    carried = sum(part.nbytes for part in actor.memory)
    return {"time/acting_us": 1e6 * min(times[-steps:]), "final/remembered_bytes": float(carried)}
