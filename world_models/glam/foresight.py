"""What the world model expects of a stretch of an episode, beside what the world did (the paper's Figure 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.errors import UserError
from dqn_memory.experiment import Streams, generator
from world_models.glam.acting import ActingNoise
from world_models.glam.evaluation import Arena, make_player
from world_models.glam.imagination import uniforms
from world_models.glam.loading import Trained
from world_models.glam.memory import memory

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Lived:
    """T steps of one episode on the CPU."""

    frames: Tensor  # (T + 1, 3, S, S) uint8, the last one behind the last action
    action: Tensor  # (T,) int64
    reward: Tensor  # (T,)
    episode_return: float
    done: bool  # whether the last step ended the episode

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Foreseen:
    """H imagined steps under the actions really taken, and what was real; frames (H, S, S, 3) in [0, 1]."""

    start: int  # the last step that was seen; the first imagined frame is that of start + 1
    seen: Array  # (K, S, S, 3) the newest real frames before the dream
    real: Array
    imagined: Array
    reward: Array  # (H,) real
    imagined_reward: Array  # (H,)
    end: Array  # (H,) predicted probability that the step ends the episode

    def __len__(self) -> int:
        return len(self.reward)

    def errors(self) -> dict[str, float]:
        """Mean squared errors of frames and rewards, beside those of a frame that stays and a reward of 0."""
        still = self.seen[-1:]
        return {
            "frame": float(np.square(self.imagined - self.real).mean()),
            "frame_unchanged": float(np.square(still - self.real).mean()),
            "reward": float(np.square(self.imagined_reward - self.reward).mean()),
            "reward_zero": float(np.square(self.reward).mean()),
        }


def live(found: Trained, seed: int, longest: int, greedy: bool) -> Lived:
    """The first episode of one world, or its first `longest` steps."""
    device = next(found.model.parameters()).device
    streams, arena = Streams.spawn(seed), Arena.of(found.config, device)
    fleet, numbers = arena.fleet(1, streams.worlds), generator(streams.exploration, device)
    player = make_player(found.model, found.agent, 1, found.config.collection.blind)
    frame, first = fleet.reset(), torch.ones(1, dtype=torch.bool, device=device)
    frames, actions, rewards = [frame], [], []
    for _ in range(longest):
        noise = ActingNoise.draw(found.model, 1, fleet.num_actions, numbers)
        action = player.act(frame, first, noise, greedy)
        step = fleet.step(action)
        frame, first = step.final_observation, step.done
        frames.append(frame)
        actions.append(action)
        rewards.append(step.reward)
        if bool(first):
            break
    total = float(step.episode_return)
    return Lived(torch.cat(frames).cpu(), torch.cat(actions).cpu(), torch.cat(rewards).cpu(), total, bool(first))


@torch.no_grad()
def foresee(found: Trained, lived: Lived, start: int, horizon: int, seed: int) -> Foreseen:
    """Imagine the `horizon` steps behind step `start` from the model's context of frames up to it.

    The actions are the real ones. A UserError says where the episode is too short.
    """
    if not start >= 0 or start + horizon > len(lived):
        raise UserError(
            f"--start {start} with --imagined {horizon} does not fit into an episode of {len(lived)} steps; "
            f"the last start is {len(lived) - horizon}"
        )
    model, device = found.model.eval(), next(found.model.parameters()).device
    config = model.config
    begin = max(0, start - config.context)
    numbers, known = generator(seed, device), lived.frames[begin : start + 1].unsqueeze(0).to(device)
    shape = (1, known.shape[1], config.categoricals, config.classes)
    samples = model.sample(model.encode(known), uniforms(shape, numbers))  # (1, K + 1, Z)
    action = lived.action.unsqueeze(0).to(device)  # (1, T)
    first = (torch.arange(begin, start + 1, device=device) == 0).unsqueeze(0)
    remember = memory(model, config.imagination, config.context)
    if start > begin:
        state = remember.prefill(samples[:, :-1], action[:, begin:start], first[:, :-1])[1]
    else:
        state = remember.start(1)
    sample, opens, dreamt, memories = samples[:, -1], first[:, -1], [], []
    for step in range(start, start + horizon):
        h, state = remember.push(sample, action[:, step], opens, state)
        sample = model.sample(model.prior(h), uniforms((1, *shape[2:]), numbers))
        opens = torch.zeros_like(opens)
        dreamt.append(sample)
        memories.append(h)
    h = torch.cat(memories)  # (H, D)
    return Foreseen(
        start=start,
        seen=_pictures(known[0].float() / 255),
        real=_pictures(lived.frames[start + 1 : start + horizon + 1].float() / 255),
        imagined=_pictures(model.decode(torch.cat(dreamt)).float().clamp(0, 1)),
        reward=lived.reward[start : start + horizon].double().numpy(),
        imagined_reward=model.reward_value(model.reward(h)).double().cpu().numpy(),
        end=model.termination(h).double().sigmoid().cpu().numpy(),
    )


def _pictures(frames: Tensor) -> Array:
    """(N, 3, S, S) as (N, S, S, 3)."""
    return frames.permute(0, 2, 3, 1).cpu().numpy()
