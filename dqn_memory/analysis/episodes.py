"""Whole greedy episodes of one world, kept step by step: what a video, a picture or a measurement looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.acting import ActingMode, ActingState, Actor, EvalSetup
from dqn_memory.network import QNetwork
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.score import success_word, tells_success
from envs.core import Step
from envs.fleet import Fleet, TensorFleet, make_fleet
from envs.registry import WORLDS, make_world

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Episode:
    """One episode of T steps, on the CPU."""

    observation: Tensor  # (T, ...) what was acted on
    previous_action: Tensor  # (T,) the action that led to it, A at the first
    action: Array  # (T,)
    q: Array  # (T, A)
    reward: Array  # (T,)
    frames: tuple[Array, ...]  # T + 1 RGB pictures, the last one after the last action; () if not drawn
    success: bool
    told: bool = True  # whether the world said so; else a return above 0 is the success

    def __len__(self) -> int:
        return len(self.action)

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the rewards."""
        return float(self.reward.sum())

    @property
    def outcome(self) -> str:
        """What came of it, in words."""
        return f"{'' if self.success else 'no '}{success_word(self.told)}"


@dataclass(frozen=True)
class _Moment:
    observation: Tensor
    previous_action: Tensor
    action: Tensor
    q: Tensor
    step: Step


def play_in(
    setup: EvalSetup, network: QNetwork, seed: int, episodes: int = 1, initial: int | None = None, draw: bool = False
) -> list[Episode]:
    """Greedy episodes of a network in one fresh world; `initial` chooses among its finitely many initial states.

    Raises UserError where there is no such initial state, or no picture to draw.
    """
    fleet = single_fleet(setup, seed, initial, draw)
    return play(fleet, setup.actor(network, 1), episodes, draw)


def single_fleet(setup: EvalSetup, seed: int, initial: int | None = None, draw: bool = False) -> Fleet:
    """A fleet of one world that starts from initial state number `initial`, or from a drawn one."""
    ours = setup.env.removeprefix("envs:") in WORLDS
    if initial is not None:
        return _started_from(setup, seed, initial, ours)
    kwargs = setup.env_kwargs | ({"render_mode": "rgb_array"} if draw and not ours else {})
    return make_fleet(setup.env, 1, seed, setup.device, setup.observation_key, kwargs)


def action_names(setup: EvalSetup) -> tuple[str, ...]:
    """Words for the action numbers, where the world has them."""
    if setup.env.removeprefix("envs:") not in WORLDS:
        return ()
    return make_world(setup.env, **setup.env_kwargs).action_names


def _started_from(setup: EvalSetup, seed: int, initial: int, ours: bool) -> Fleet:
    world = make_world(setup.env, setup.device, **setup.env_kwargs) if ours else None
    draws = None if world is None else world.initial_draws()
    if world is None or draws is None:
        raise UserError(f"--initial {initial}: {setup.env} has no finite list of initial states; use --seed")
    if not 0 <= initial < len(draws):
        raise UserError(f"--initial {initial} is not within 0 .. {len(draws) - 1}, the initial states of {setup.env}")
    return TensorFleet(world, 1, seed, initial=draws[initial : initial + 1])


@torch.no_grad()
def play(fleet: Fleet, actor: Actor, episodes: int = 1, draw: bool = False) -> list[Episode]:
    """Complete greedy episodes of a fleet of one world, one after the other; `draw` keeps pictures.

    Raises UserError where pictures are wanted of a world that draws none.
    """
    observation, played = fleet.reset(), []
    for _ in range(episodes):
        episode, observation = _play_one(fleet, actor, observation, draw)
        played.append(episode)
    return played


def _play_one(fleet: Fleet, actor: Actor, observation: Tensor, draw: bool) -> tuple[Episode, Tensor]:
    moments: list[_Moment] = []
    frames: list[Array] = []
    previous = torch.full((1,), fleet.num_actions, device=fleet.device)
    fresh = torch.ones(1, dtype=torch.bool, device=fleet.device)
    while not (moments and bool(moments[-1].step.done)):
        actor.observe(observation, previous, fresh)
        q = actor.q_values()  # (1, A)
        action = q.argmax(1)
        before = _moment_before(fleet) if draw else None
        if draw:
            frames.append(fleet.frame(0))
        step = fleet.step(action)
        moments.append(_Moment(observation, previous, action, q, step))
        observation, previous, fresh = step.observation, action, torch.zeros_like(fresh)
    if draw:
        frames.append(_last_frame(fleet, before, action, frames[-1]))
    return _episode(moments, tuple(frames), tells_success(fleet)), observation


def _episode(moments: list[_Moment], frames: tuple[Array, ...], told: bool) -> Episode:
    return Episode(
        observation=torch.cat([moment.observation for moment in moments]).cpu(),
        previous_action=torch.cat([moment.previous_action for moment in moments]).cpu(),
        action=torch.cat([moment.action for moment in moments]).cpu().numpy(),
        q=torch.cat([moment.q for moment in moments]).float().cpu().numpy(),
        reward=torch.cat([moment.step.reward for moment in moments]).cpu().numpy(),
        frames=frames,
        success=bool(moments[-1].step.success),
        told=told,
    )


def _moment_before(fleet: Fleet) -> tuple[Any, Tensor] | None:
    return (fleet.state, fleet.generator.get_state()) if isinstance(fleet, TensorFleet) else None


def _last_frame(fleet: Fleet, before: tuple[Any, Tensor] | None, action: Tensor, shown: Array) -> Array:
    """The world after the episode's last action, which the fleet has already started over.

    A world of ours takes that step once more, with the same draws; another environment cannot, so its last
    picture stays.
    """
    if before is None or not isinstance(fleet, TensorFleet):
        return shown
    state, stream = before
    generator = torch.Generator(fleet.device)
    generator.set_state(stream)
    count = fleet.world.step_draws + fleet.world.reset_draws  # in one call, as the fleet draws them
    u = torch.rand(1, count, dtype=torch.float64, device=fleet.device, generator=generator)
    after = fleet.world.step(state, action, u[:, : fleet.world.step_draws])[0]
    return fleet.world.frame(after, 0)


TOKENS = 2**15  # observations that go through a network at once


@dataclass(frozen=True)
class Windows:
    """B left-aligned windows of at most S steps; behind the real ones stands padding."""

    observation: Tensor  # (B, S, ...)
    previous_action: Tensor  # (B, S), A where there is none
    lengths: Tensor  # (B,) real steps
    place: Tensor  # (B,) the one of them whose Q is asked for; the last one where a decision is made

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, rows: slice) -> Windows:
        """Some of the windows."""
        return Windows(self.observation[rows], self.previous_action[rows], self.lengths[rows], self.place[rows])


def reach(network: QNetwork, length: int, state: ActingState) -> int:
    """How many observations acting remembers in an episode of that length: K, or all where a state is carried."""
    return length if state == "episode" else min(network.config.context, length)


def windows(
    network: QNetwork, observation: Tensor, previous_action: Tensor, ends: Tensor, size: int, acting: ActingMode
) -> Windows:
    """The last `size` steps up to each of the steps `ends` (B,) of one episode (T, ...), (T,).

    `padded` acting feeds K steps, whatever the window holds.
    """
    width = network.config.context if acting == "padded" else size
    first = (ends + 1 - size).clamp(min=0)  # (B,)
    index = first[:, None] + torch.arange(width, device=ends.device)  # (B, S)
    real, index = index <= ends[:, None], index.clamp(max=len(observation) - 1)
    wide = real.reshape(*real.shape, *[1] * (observation.dim() - 1))
    seen = torch.where(wide, observation[index], network.spec.padding).to(observation.dtype)
    previous = torch.where(real, previous_action[index], network.num_actions)
    return Windows(seen, previous, ends + 1 - first, ends - first)


def known_lengths(given: Windows, acting: ActingMode) -> Tensor | None:
    """What the network is told of the lengths."""
    return None if acting == "padded" else given.lengths


@torch.no_grad()
def q_values(network: QNetwork, given: Windows, acting: ActingMode) -> Tensor:
    """Q at each window's place, (B, A), as acting computes it."""
    return in_parts(
        given, lambda part: network.at(part.observation, part.previous_action, known_lengths(part, acting), part.place)
    )


def in_parts(given: Windows, function: Callable[[Windows], Tensor]) -> Tensor:
    """The rows of a function of many windows, computed from not too many at once."""
    rows = max(1, TOKENS // max(1, given.previous_action.shape[1]))
    return torch.cat([function(given.part(slice(begin, begin + rows))) for begin in range(0, len(given), rows)])
