"""Record whole episodes of one environment step by step, and gather the windows that the network saw in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dqn_memory.actors import ActingState
from dqn_memory.evaluate import EvalSetup
from dqn_memory.network import QNetwork
from dqn_memory.play import PlayedStep, one_episode, play_steps
from dqn_memory.runs.errors import UserError
from envs.checked import MAX_STEPS
from envs.console import one_line
from envs.registry import WORLDS, make_world
from envs.spaces import Array
from envs.vector import TensorVector, VectorEnvironment, make_vector


@dataclass(frozen=True)
class Episode:
    """One episode of T steps, on the CPU."""

    observation: Tensor  # (T, ...), before each action
    previous_action: Tensor  # (T,), before each observation; A at the first
    action: Array  # (T,)
    q: Array  # (T, A)
    reward: Array  # (T,)
    frames: tuple[Array, ...]  # T + 1 RGB pictures, the last one after the last action; () if not drawn
    success: bool
    env_reports_success: bool = True  # the environment defines success; otherwise it is a return above 0
    texts: tuple[str, ...] = ()  # T + 1 drawings in characters; () if the environment has none
    values: str = "Q-values"  # what `q` holds

    def __len__(self) -> int:
        return len(self.action)

    def chose(self, step: int, index: int) -> bool:
        """Whether a step took the numbered action of this index."""
        return self.action.ndim == 1 and bool(self.action[step] == index)

    def taken(self, step: int, names: Sequence[str]) -> str:
        """Name the action of a step; of a row give the numbers."""
        action = self.action[step]
        return names[action] if self.action.ndim == 1 else " ".join(f"{number:.2g}" for number in action)

    @property
    def episode_return(self) -> float:
        """Sum the rewards without discount."""
        return float(self.reward.sum())

    @property
    def outcome(self) -> str:
        """Name the outcome in words."""
        if not self.env_reports_success:
            return f"return {self.episode_return:.2f}"
        return "success" if self.success else "no success"


def play_in(
    setup: EvalSetup, network: QNetwork, seed: int, episodes: int = 1, initial: int | None = None, draw: bool = False
) -> list[Episode]:
    """Play episodes as `play_each` does, and list them."""
    return list(play_each(setup, network, seed, episodes, initial, draw))


def beginning(setup: EvalSetup, network: QNetwork, seed: int, steps: int) -> Episode:
    """Play the first steps of an episode, or all of a shorter one."""
    return next(play_each(setup, network, seed, max_steps=steps))


@torch.no_grad()
def play_each(
    setup: EvalSetup, network: QNetwork, seed: int, episodes: int = 1, initial: int | None = None, draw: bool = False,
    max_steps: float = math.inf,
) -> Iterator[Episode]:  # fmt: skip
    """Play episodes of a network in one fresh environment, one after the other; the generator plays them on demand.

    Each begins with an empty memory, also after --keep-memory: analyses compute an episode from its own steps.

    Args:
        setup: the environment, and how the network acts in it.
        network: the agent.
        seed: seed of the environment and of drawn actions.
        episodes: number of episodes.
        initial: number of the first episode's initial state, if there are finitely many (None: a drawn state).
        draw: record pictures.
        max_steps: maximum steps of an episode. Only the last episode may be cut.

    Raises:
        UserError: there is no such initial state, or the environment cannot be drawn.
    """
    with closing(single_vector(setup, seed, initial, draw)) as vector:
        policy = replace(setup, keep_memory=False).policy(network, 1, seed)
        steps = play_steps(vector, policy, vector.reset())
        for _ in range(episodes):
            yield _record(vector, one_episode(steps, max_steps), draw, setup.values)


def single_vector(setup: EvalSetup, seed: int, initial: int | None = None, draw: bool = False) -> VectorEnvironment:
    """Make a vector of one environment that starts from initial state number `initial`, or from a drawn one."""
    ours = setup.env.removeprefix("envs:") in WORLDS
    if initial is None:
        kwargs = setup.env_kwargs | ({"render_mode": "rgb_array"} if draw and not ours else {})
        return make_vector(setup.env, 1, seed, setup.device, kwargs, setup.interface, max_steps=MAX_STEPS)
    world = make_world(setup.env, setup.device, **setup.env_kwargs) if ours else None
    draws = None if world is None else world.initial_draws()
    if world is None or draws is None:
        raise UserError(f"--initial {initial}: {setup.env} has no finite list of initial states; use --seed")
    if not 0 <= initial < len(draws):
        raise UserError(f"--initial {initial} is not within 0 .. {len(draws) - 1}, the initial states of {setup.env}")
    return TensorVector(world, 1, seed, draws[initial : initial + 1], setup.interface.form)


def action_names(setup: EvalSetup) -> tuple[str, ...]:
    """Give names for the action numbers, if the environment has them."""
    if setup.interface.form != "numbered":
        return setup.forms()[1].output_names
    if setup.env.removeprefix("envs:") not in WORLDS:
        return ()
    return tuple(map(one_line, make_world(setup.env, **setup.env_kwargs).action_names))


def _record(vector: VectorEnvironment, steps: Iterator[PlayedStep], draw: bool, values: str) -> Episode:
    """Record an episode that a vector of one environment plays; `values` names the network's outputs."""
    played: list[PlayedStep] = []
    drawn = [_drawn(vector)] if draw else []
    before = _state_before(vector) if draw else None
    for taken in steps:
        played.append(taken)
        if draw and bool(taken.step.done):
            drawn.append(_last_drawn(vector, before, taken.action, drawn[-1]))
        elif draw:
            drawn.append(_drawn(vector))
            before = _state_before(vector)
    frames, texts = (tuple(each) for each in zip(*drawn, strict=True)) if draw else ((), ())
    action = torch.cat([each.action for each in played]).cpu()
    return Episode(
        observation=torch.cat([each.observation for each in played]).cpu(),
        previous_action=torch.cat([vector.actions.none(1), action[:-1]]),
        action=action.numpy(),
        q=torch.cat([each.outputs.float() for each in played]).cpu().numpy(),
        reward=torch.cat([each.step.reward for each in played]).cpu().numpy(),
        frames=frames,
        success=bool(played[-1].step.success),
        env_reports_success=vector.reports_success,
        texts=texts if all(texts) else (),
        values=values,
    )


def _drawn(vector: VectorEnvironment) -> tuple[Array, str]:
    """Draw the environment as a picture and in characters, which are "" if it has no text."""
    text = vector.world.text(vector.state, 0) if isinstance(vector, TensorVector) else ""
    return vector.frame(0), text


def _state_before(vector: VectorEnvironment) -> tuple[Any, Tensor] | None:
    return (vector.state, vector.generator.get_state()) if isinstance(vector, TensorVector) else None


def _last_drawn(
    vector: VectorEnvironment, before: tuple[Any, Tensor] | None, action: Tensor, shown: tuple[Array, str]
) -> tuple[Array, str]:
    """Draw the state after the episode's last action; the vector has begun a new episode since.

    An environment of this suite takes that step again with the same draws. Other environments cannot; their last
    picture is shown once more.
    """
    if before is None or not isinstance(vector, TensorVector):
        return shown
    state, stream = before
    generator = torch.Generator(vector.device)
    generator.set_state(stream)
    count = vector.world.step_draws + vector.world.reset_draws  # in one call, as the vector draws them
    u = torch.rand(1, count, dtype=torch.float64, device=vector.device, generator=generator)
    after = vector.world.step(state, action, u[:, : vector.world.step_draws])[0]
    return vector.world.frame(after, 0), vector.world.text(after, 0)


# ---- the windows of decisions ----------------------------------------------------------------------------------------
TOKENS = 2**15  # approximate number of observations that a network encodes at once


@dataclass(frozen=True)
class Windows:
    """B left-aligned windows of at most S steps; padding follows the real ones."""

    observation: Tensor  # (B, S, ...)
    previous_action: Tensor  # (B, S), A where there is none
    lengths: Tensor  # (B,) real steps
    position: Tensor  # (B,) at which Q is read: at a decision, the last real one

    def __len__(self) -> int:
        return len(self.lengths)

    def split(self) -> Iterator[Windows]:
        """Split the windows into parts that a network encodes at once."""
        rows = max(1, TOKENS // max(1, self.previous_action.shape[1]))
        parts = (each.split(rows) for each in (self.observation, self.previous_action, self.lengths, self.position))
        return (Windows(*part) for part in zip(*parts, strict=True))


def remembered_steps(network: QNetwork, length: int, state: ActingState) -> int:
    """Count the observations that acting remembers in an episode: K, or all if a state is carried."""
    return length if state == "episode" else min(network.config.context, length)


def windows(network: QNetwork, observation: Tensor, previous_action: Tensor, ends: Tensor, size: int) -> Windows:
    """Gather the last `size` steps up to each of the steps `ends` (B,) of one episode (T, ...), (T,)."""
    first = (ends + 1 - size).clamp(min=0)  # (B,)
    index = first[:, None] + torch.arange(size, device=ends.device)  # (B, S)
    real, index = index <= ends[:, None], index.clamp(max=len(observation) - 1)
    mask = real.reshape(*real.shape, *[1] * (observation.dim() - 1))  # (B, S, 1, ...)
    seen = torch.where(mask, observation[index], network.spec.padding).to(observation.dtype)
    previous = network.actions.without(previous_action[index], ~real)
    return Windows(seen, previous, ends + 1 - first, ends - first)


@torch.no_grad()
def q_values(network: QNetwork, given: Windows) -> Tensor:
    """Compute Q at each window's position, (B, A)."""
    return torch.cat([
        network.at(part.observation, part.previous_action, part.lengths, part.position)
        for part in given.split()
    ])  # fmt: skip
