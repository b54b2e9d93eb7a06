"""Whole greedy episodes of one world, kept step by step: what a video, a picture or a measurement looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.acting import Actor
from dqn_memory.evaluation import Arena
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
    arena: Arena, network: QNetwork, seed: int, episodes: int = 1, initial: int | None = None, draw: bool = False
) -> list[Episode]:
    """Greedy episodes of a network in one fresh world; `initial` chooses among its finitely many initial states.

    Raises UserError where there is no such initial state, or no picture to draw.
    """
    fleet = single_fleet(arena, seed, initial, draw)
    return play(fleet, arena.actor(network, 1), episodes, draw)


def single_fleet(arena: Arena, seed: int, initial: int | None = None, draw: bool = False) -> Fleet:
    """A fleet of one world that starts from initial state number `initial`, or from a drawn one."""
    ours = arena.env.removeprefix("envs:") in WORLDS
    if initial is not None:
        return _started_from(arena, seed, initial, ours)
    kwargs = arena.env_kwargs | ({"render_mode": "rgb_array"} if draw and not ours else {})
    return make_fleet(arena.env, 1, seed, arena.device, arena.observation_key, kwargs)


def action_names(arena: Arena) -> tuple[str, ...]:
    """Words for the action numbers, where the world has them."""
    if arena.env.removeprefix("envs:") not in WORLDS:
        return ()
    return make_world(arena.env, **arena.env_kwargs).action_names


def _started_from(arena: Arena, seed: int, initial: int, ours: bool) -> Fleet:
    world = make_world(arena.env, arena.device, **arena.env_kwargs) if ours else None
    draws = None if world is None else world.initial_draws()
    if world is None or draws is None:
        raise UserError(f"--initial {initial}: {arena.env} has no finite list of initial states; use --seed")
    if not 0 <= initial < len(draws):
        raise UserError(f"--initial {initial} is not within 0 .. {len(draws) - 1}, the initial states of {arena.env}")
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
