"""Compare imagined steps of an episode with the real ones (the paper's Figure 7)."""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dqn_memory.play import one_episode, play_steps
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.seeding import Streams, generator
from envs.spaces import Array
from world_models.glam.acting import GlamAgent
from world_models.glam.imagination import make_memory
from world_models.settings import training_signal
from world_models.trainer import EvalEnvironments


@dataclass(frozen=True)
class LivedEpisode:
    """T steps of one episode on the CPU."""

    frames: Tensor  # (T + 1, 3, S, S) uint8, the last one after the last action
    action: Tensor  # (T,) int64
    reward: Tensor  # (T,), as in training
    episode_return: float
    done: bool  # True if the last step ended the episode

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class EpisodeRollout:
    """H imagined steps under the actions of an episode, and its real steps; frames are (H, S, S, 3) in [0, 1]."""

    start: int  # step of the last frame that the model read; the first imagined frame is that of start + 1
    seen: Array  # (K, S, S, 3), the newest real frames before the rollout
    real: Array
    imagined: Array
    reward: Array  # (H,), real
    imagined_reward: Array  # (H,)
    end: Array  # (H,) predicted probability that the step ends the episode

    def errors(self) -> dict[str, float]:
        """Compute mean squared errors of frames and rewards, and those of an unchanged frame and of reward 0."""
        differences = {
            "frame": self.imagined - self.real, "frame_unchanged": self.seen[-1:] - self.real,
            "reward": self.imagined_reward - self.reward, "reward_zero": self.reward,
        }  # fmt: skip
        return {name: float(np.square(each).mean()) for name, each in differences.items()}


def play_episode(agent: GlamAgent, seed: int, max_steps: int, greedy: bool) -> LivedEpisode:
    """Play the first episode of one environment, at most `max_steps` steps."""
    device = next(agent.model.parameters()).device
    streams, setup = Streams.spawn(seed), EvalEnvironments.of(agent.config, device)
    numbers = generator(streams.exploration, device)
    policy = agent.policy(1, numbers, mode="greedy" if greedy else "sampled")
    with closing(setup.vector(1, streams.worlds)) as vector:
        first = vector.reset()
        played = list(one_episode(play_steps(vector, policy, first), max_steps))
    return LivedEpisode(
        frames=torch.cat([first, *(each.step.final_observation for each in played)]).cpu(),
        action=torch.cat([each.action for each in played]).cpu(),
        reward=torch.cat([training_signal(each.step, agent.config.collection)[0] for each in played]).cpu(),
        episode_return=float(played[-1].step.episode_return),
        done=bool(played[-1].step.done),
    )


@torch.no_grad()
def imagine_episode(agent: GlamAgent, episode: LivedEpisode, start: int, horizon: int, seed: int) -> EpisodeRollout:
    """Imagine the `horizon` steps after step `start` under the real actions, from the model's context before it."""
    if start + horizon > len(episode):
        last = f"the last start is {len(episode) - horizon}" if horizon <= len(episode) else "imagine fewer"
        raise UserError(
            f"--start {start} with --imagined {horizon} does not fit into an episode of {len(episode)} steps; {last}"
        )
    model, config = agent.model.eval(), agent.config.model
    numbers = generator(seed, next(model.parameters()).device)
    steps = torch.arange(max(start - config.context, 0), start + horizon, device=numbers.device)
    known = start - int(steps[0])  # K steps before the newest frame
    frames = episode.frames[steps[0] : start + 1].to(numbers.device)
    latents = model.sample(model.encode(frames[None]), model.noise((1, known + 1), numbers))  # (1, K + 1, Z)
    noise = model.noise((horizon, 1), numbers)
    action, first = episode.action.to(numbers.device)[steps][None], (steps == 0)[None]  # (1, K + H)

    memory = make_memory(model, config.imagination_memory, config.context)
    state = memory.prefill(latents[:, :-1], action[:, :known], first[:, :known])[1] if known else memory.start(1)
    sample, samples, memories = latents[:, -1], [], []
    for step in range(horizon):
        h, state = memory.push(sample, action[:, known + step], first[:, known + step], state)
        sample = model.sample(model.prior_head(h), noise[step])
        samples.append(sample)
        memories.append(h)
    h = torch.cat(memories)  # (H, D)
    return EpisodeRollout(
        start=start,
        seen=_pictures(frames.float() / 255),
        real=_pictures(episode.frames[start + 1 : start + horizon + 1].float() / 255),
        imagined=_pictures(model.decoder(torch.cat(samples)).float().clamp(0, 1)),
        reward=episode.reward[start : start + horizon].double().numpy(),
        imagined_reward=model.reward(h).double().cpu().numpy(),
        end=model.termination(h).double().sigmoid().cpu().numpy(),
    )


def _pictures(frames: Tensor) -> Array:
    """Permute (N, 3, S, S) to (N, S, S, 3)."""
    return frames.permute(0, 2, 3, 1).cpu().numpy()
