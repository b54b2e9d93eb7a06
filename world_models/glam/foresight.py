"""What the world model predicts for a part of an episode, and what really happened (the paper's Figure 7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.seeding import Streams, generator
from world_models.distributions import upcast
from world_models.glam.acting import ActingNoise, Trained, make_player
from world_models.glam.imagination import Context, uniforms
from world_models.glam.learner import kl
from world_models.glam.memory import MemoryKind, make_memory
from world_models.glam.model import WorldModel
from world_models.settings import EvalSetup

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Episode:
    """T steps of one episode on the CPU."""

    frames: Tensor  # (T + 1, 3, S, S) uint8, the last one after the last action
    action: Tensor  # (T,) int64
    reward: Tensor  # (T,), as it is learned
    terminated: Tensor  # (T,) bool, by that step, as it is learned: at a lost life too, if the run asks for it
    episode_return: float
    done: bool  # whether the last step ended the episode

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class EpisodeRollout:
    """H imagined steps under the actions really taken, and what was real; frames (H, S, S, 3) in [0, 1]."""

    start: int  # the last step that was seen; the first imagined frame is that of start + 1
    seen: Array  # (K, S, S, 3) the newest real frames before the rollout
    real: Array
    imagined: Array
    reward: Array  # (H,) real
    imagined_reward: Array  # (H,)
    end: Array  # (H,) predicted probability that the step ends the episode

    def __len__(self) -> int:
        return len(self.reward)

    def errors(self) -> dict[str, float]:
        """Compute mean squared errors of frames and rewards, and those of an unchanged frame and a reward of 0."""
        still = self.seen[-1:]
        return {
            "frame": float(np.square(self.imagined - self.real).mean()),
            "frame_unchanged": float(np.square(still - self.real).mean()),
            "reward": float(np.square(self.imagined_reward - self.reward).mean()),
            "reward_zero": float(np.square(self.reward).mean()),
        }


@dataclass(frozen=True)
class Before:
    """What was seen before B steps."""

    frames: Tensor  # (B, K + 1, 3, S, S) uint8, the newest one last
    context: Context


@dataclass(frozen=True)
class Unrolled:
    """H steps of B rows under given actions."""

    sample: Tensor  # (H, B, Z), after each step
    h: Tensor  # (H, B, D), the memory after each step


def play_episode(found: Trained, seed: int, max_steps: int, greedy: bool) -> Episode:
    """Play the first episode of one environment, or its first `max_steps` steps."""
    device = next(found.model.parameters()).device
    streams, setup = Streams.spawn(seed), EvalSetup.of(found.config, device)
    fleet, numbers = setup.fleet(1, streams.worlds), generator(streams.exploration, device)
    player = make_player(found.model, found.agent, 1, found.config.collection.act_before_observing)
    frame, first = fleet.reset(), torch.ones(1, dtype=torch.bool, device=device)
    frames, actions, signals = [frame], [], []
    for _ in range(max_steps):
        noise = ActingNoise.draw(found.model, 1, fleet.num_actions, numbers)
        action = player.act(frame, first, noise, greedy)
        step = fleet.step(action)
        frame, first = step.final_observation, step.done
        frames.append(frame)
        actions.append(action)
        signals.append(found.config.collection.training_signal(step))
        if bool(first):
            break
    columns = (frames, actions, *zip(*signals, strict=True))
    shown, taken, rewards, ends = (torch.cat(tuple(each)).cpu() for each in columns)
    return Episode(shown, taken, rewards, ends, float(step.episode_return), bool(first))


@torch.no_grad()
def imagine_episode(found: Trained, episode: Episode, start: int, horizon: int, seed: int) -> EpisodeRollout:
    """Imagine the `horizon` steps after step `start`, from the model's context of frames up to it.

    The actions are the real ones.

    Raises:
        UserError: the episode is too short.
    """
    if not start >= 0 or start + horizon > len(episode):
        last = f"the last start is {len(episode) - horizon}" if horizon <= len(episode) else "imagine fewer"
        raise UserError(
            f"--start {start} with --imagined {horizon} does not fit into an episode of {len(episode)} steps; {last}"
        )
    model, device = found.model.eval(), next(found.model.parameters()).device
    numbers = generator(seed, device)
    before = context_before(model, episode, [start], numbers)
    noise = latent_noise(model, (horizon, 1), numbers)
    action = slices(episode.action, [start], horizon).to(device)
    rollout = unroll(model, before.context, action, noise, model.config.imagination_memory)
    h = rollout.h[:, 0]  # (H, D)
    return EpisodeRollout(
        start=start,
        seen=_pictures(before.frames[0].float() / 255),
        real=_pictures(episode.frames[start + 1 : start + horizon + 1].float() / 255),
        imagined=_pictures(model.decode(rollout.sample[:, 0]).float().clamp(0, 1)),
        reward=episode.reward[start : start + horizon].double().numpy(),
        imagined_reward=model.reward_value(model.reward(h)).double().cpu().numpy(),
        end=model.termination(h).double().sigmoid().cpu().numpy(),
    )


def context_before(model: WorldModel, episode: Episode, starts: Sequence[int], numbers: torch.Generator) -> Before:
    """Encode the model's context of frames before B steps, all of which must have as many frames before them."""
    length = min(starts[0], model.config.context)
    index = torch.tensor(starts).unsqueeze(1) + torch.arange(-length, 1)  # (B, K + 1)
    frames = episode.frames[index].to(numbers.device)
    sample = model.sample(model.encode(frames), latent_noise(model, tuple(index.shape), numbers))
    action, first = episode.action[index[:, :-1]].to(numbers.device), (index == 0).to(numbers.device)
    return Before(frames, Context(sample[:, :-1], action, first[:, :-1], sample[:, -1], first[:, -1]))


def unroll(
    model: WorldModel, context: Context, action: Tensor, noise: Tensor, kind: MemoryKind, real: Tensor | None = None
) -> Unrolled:
    """Imagine H steps under given actions (B, H), with uniforms `noise` (H, B, G, C).

    With `real` samples (B, H, Z) every step goes on from the real latent, without them from the imagined one.
    """
    memory = make_memory(model, kind, model.config.context)
    state = memory.prefill(context.sample, context.action, context.first)[1] if context.action.shape[1] else None
    state = memory.start(len(action)) if state is None else state
    sample, opens = context.newest, context.opens
    assert sample is not None and opens is not None
    samples, memories = [], []
    for step in range(action.shape[1]):
        h, state = memory.push(sample, action[:, step], opens, state)
        sample = model.sample(model.prior(h), noise[step]) if real is None else real[:, step]
        opens = torch.zeros_like(opens)
        samples.append(sample)
        memories.append(h)
    return Unrolled(torch.stack(samples), torch.stack(memories))


def slices(values: Tensor, starts: Sequence[int], horizon: int) -> Tensor:
    """Cut (B, H, ...) out of an episode's values (T, ...), H from each start on."""
    return values[torch.tensor(starts).unsqueeze(1) + torch.arange(horizon)]


def latent_noise(model: WorldModel, shape: tuple[int, ...], numbers: torch.Generator) -> Tensor:
    """Draw uniforms (*shape, G, C) for samples."""
    return uniforms((*shape, model.config.categoricals, model.config.classes), numbers)


def _pictures(frames: Tensor) -> Array:
    """Turn (N, 3, S, S) into (N, S, S, 3)."""
    return frames.permute(0, 2, 3, 1).cpu().numpy()


KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
MEASURES = {
    "reward": "squared error of the reward",
    "end": "squared error of the probability that the step ends the episode",
    "latent": "KL of the predicted latent from that of the real frame, in nats",
    "feature": "distance of the features from those that the same memory has on the real frames, over their norm",
}
APART = "distance of the window's features from the carried ones, over their norm"


@dataclass(frozen=True)
class MemoryComparison:
    """Means over all rollouts, each an array over the steps ahead (H,)."""

    rollouts: int
    errors: dict[MemoryKind, dict[str, Array]]  # by kind, then by MEASURES
    apart: Array  # see APART

    def numbers(self) -> dict[str, Any]:
        """Return the entries of inspect.json."""
        kinds: dict[str, Any] = {
            kind: {name: values.tolist() for name, values in measures.items()} for kind, measures in self.errors.items()
        }
        return {
            "rollouts": self.rollouts,
            "measures": MEASURES | {"apart": APART},
            **kinds,
            "apart": self.apart.tolist(),
        }

    def table(self) -> str:
        """Return a few lines for people: 1, 2, 4, ... steps ahead, and the last."""
        names = [f"{measure} {kind}" for measure in MEASURES for kind in KINDS]
        columns = [self.errors[kind][measure] for measure in MEASURES for kind in KINDS]
        header = " ".join(("ahead", *(f"{name:>15}" for name in names), f"{'apart':>8}"))
        lines = [
            " ".join((f"{step + 1:>5}", *(f"{c[step]:>15.3g}" for c in columns), f"{self.apart[step]:>8.3g}"))
            for step in _shown(len(self.apart))
        ]
        notes = [f"{name}: {about}" for name, about in (MEASURES | {"apart": APART}).items()]
        return "\n".join(
            [f"both forms of imagination, {self.rollouts} rollouts under real actions", header, *lines, *notes]
        )


def _shown(horizon: int) -> list[int]:
    return sorted({2**power - 1 for power in range(horizon.bit_length())} | {horizon - 1})


@torch.no_grad()
def compare_memories(found: Trained, episodes: Sequence[Episode], horizon: int, seed: int) -> MemoryComparison:
    """Imagine `horizon` steps from every such part of the episodes, in both kinds with the same chance.

    A part begins where the model's context is full, or, in an episode too short for that, as late as it can.
    """
    model, numbers = found.model.eval(), generator(seed, next(found.model.parameters()).device)
    rows = [row for episode in episodes for row in _rollout_errors(model, episode, horizon, numbers)]
    if not rows:
        raise UserError(f"no episode has the --imagined {horizon} steps in which both forms are compared")
    counts = np.array([count for count, _ in rows], float)
    means = {name: _mean([measures[name] for _, measures in rows], counts) for name in rows[0][1]}
    errors = {kind: {name: means[f"{kind}/{name}"] for name in MEASURES} for kind in KINDS}
    return MemoryComparison(int(counts.sum()), errors, means["apart"])


def _mean(values: Sequence[Array], counts: Array) -> Array:
    mean: Array = np.average(np.stack(values), axis=0, weights=counts)
    return mean


def starts(episode: Episode, context: int, horizon: int) -> range:
    """Return the first imagined steps of an episode's rollouts, none of which overlap."""
    first = min(context, len(episode) - horizon)
    return range(first, len(episode) - horizon + 1, horizon) if first >= 0 else range(0)


@dataclass(frozen=True)
class Truth:
    """What B rollouts of one episode start from, and what was real."""

    context: Context
    action: Tensor  # (B, H)
    reward: Tensor  # (H, B)
    end: Tensor  # (H, B)
    posterior: Tensor  # (H, B, G, C) of the frame after each step
    sample: Tensor  # (B, H, Z), drawn from it


def _rollout_errors(
    model: WorldModel, episode: Episode, horizon: int, numbers: torch.Generator
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield the number of an episode's rollouts, and their mean errors (H,)."""
    begins = starts(episode, model.config.context, horizon)
    if begins:
        truth = _truth(model, episode, begins, horizon, numbers)
        noise = latent_noise(model, (horizon, len(begins)), numbers)
        yield len(begins), {name: _mean_over_rollouts(value) for name, value in _errors(model, truth, noise).items()}


def _truth(model: WorldModel, episode: Episode, begins: range, horizon: int, numbers: torch.Generator) -> Truth:
    context = context_before(model, episode, begins, numbers).context
    frames = slices(episode.frames[1:], begins, horizon).to(numbers.device)  # (B, H, 3, S, S)
    posterior = model.encode(frames)
    sample = model.sample(posterior, latent_noise(model, tuple(frames.shape[:2]), numbers))
    action, reward, end = (
        slices(each, begins, horizon).to(numbers.device)
        for each in (episode.action, episode.reward, episode.terminated)
    )
    return Truth(context, action, reward.mT, end.mT, posterior.transpose(0, 1), sample)


def _errors(model: WorldModel, truth: Truth, noise: Tensor) -> dict[str, Tensor]:
    """Compute every measure (H, B) of both memories, and how far apart these are."""
    rollouts = {kind: unroll(model, truth.context, truth.action, noise, kind).h for kind in KINDS}
    measured: dict[str, Tensor] = {}
    for kind, h in rollouts.items():
        real = unroll(model, truth.context, truth.action, noise, kind, truth.sample).h
        measured |= {f"{kind}/{name}": value for name, value in _measured(model, truth, h, real).items()}
    return measured | {"apart": _distance(rollouts["window"], rollouts["carried"])}


def _measured(model: WorldModel, truth: Truth, h: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Compute the measures of features h (H, B, D); `real` are those on the real frames."""
    return {
        "reward": (model.reward_value(model.reward(h)) - truth.reward).square(),
        "end": (upcast(model.termination(h)).sigmoid() - truth.end.to(h.dtype)).square(),
        "latent": kl(truth.posterior, model.prior(h)),
        "feature": _distance(h, real),
    }


def _distance(found: Tensor, reference: Tensor) -> Tensor:
    """Divide the norm of the difference by that of `reference`: (H, B, D) -> (H, B)."""
    return upcast(found - reference).norm(dim=-1) / upcast(reference).norm(dim=-1).clamp(min=1e-12)


def _mean_over_rollouts(values: Tensor) -> Array:
    mean: Array = values.double().mean(1).cpu().numpy()
    return mean
