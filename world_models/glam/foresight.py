"""Compare imagined steps of an episode with the real ones (the paper's Figure 7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dqn_memory.play import one_episode, play_steps
from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.seeding import Streams, generator
from envs.spaces import Array
from envs.tables import Table
from world_models.distributions import kl, upcast
from world_models.evaluation import EvalEnvironments
from world_models.glam.acting import GlamAgent
from world_models.glam.config import MemoryKind
from world_models.glam.imagination import Context, make_memory
from world_models.glam.model import GlamModel
from world_models.settings import training_signal


@dataclass(frozen=True)
class LivedEpisode:
    """T steps of one episode on the CPU."""

    frames: Tensor  # (T + 1, 3, S, S) uint8, the last one after the last action
    action: Tensor  # (T,) int64
    reward: Tensor  # (T,), as in training
    terminated: Tensor  # (T,) bool, by that step, as in training
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
    vector, numbers = setup.vector(1, streams.worlds), generator(streams.exploration, device)
    policy, first = agent.policy(1, numbers, mode="greedy" if greedy else "sampled"), vector.reset()
    played = list(one_episode(play_steps(vector, policy, first), max_steps))
    signals = [training_signal(each.step, agent.config.collection) for each in played]
    reward, terminated = (torch.cat(each).cpu() for each in zip(*signals, strict=True))
    return LivedEpisode(
        frames=torch.cat([first, *(each.step.final_observation for each in played)]).cpu(),
        action=torch.cat([each.action for each in played]).cpu(),
        reward=reward,
        terminated=terminated,
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
    model = agent.model.eval()
    numbers = generator(seed, next(model.parameters()).device)
    frames, context = context_before(model, episode, [start], numbers)
    action = slices(episode.action, [start], horizon).to(numbers.device)
    noise = model.noise((horizon, 1), numbers)
    sample, h = (each[:, 0] for each in unroll(model, context, action, noise, model.config.imagination_memory))
    return EpisodeRollout(
        start=start,
        seen=_pictures(frames[0].float() / 255),
        real=_pictures(episode.frames[start + 1 : start + horizon + 1].float() / 255),
        imagined=_pictures(model.decoder(sample).float().clamp(0, 1)),
        reward=episode.reward[start : start + horizon].double().numpy(),
        imagined_reward=model.reward(h).double().cpu().numpy(),
        end=model.termination(h).double().sigmoid().cpu().numpy(),
    )


def _pictures(frames: Tensor) -> Array:
    """Permute (N, 3, S, S) to (N, S, S, 3)."""
    return frames.permute(0, 2, 3, 1).cpu().numpy()


def context_before(
    model: GlamModel, episode: LivedEpisode, starts: Sequence[int], numbers: torch.Generator
) -> tuple[Tensor, Context]:
    """Encode the model's context before B steps, which all need the same number of frames before them.

    Returns also these frames (B, K + 1, 3, S, S) uint8, the newest last.
    """
    length = min(starts[0], model.config.context)
    index = torch.tensor(starts).unsqueeze(1) + torch.arange(-length, 1)  # (B, K + 1)
    frames = episode.frames[index].to(numbers.device)
    sample = model.sample(model.encode(frames), model.noise(tuple(index.shape), numbers))
    action, first = episode.action[index[:, :-1]].to(numbers.device), (index == 0).to(numbers.device)
    return frames, Context(sample[:, :-1], action, first[:, :-1], sample[:, -1], first[:, -1])


def unroll(
    model: GlamModel, context: Context, action: Tensor, noise: Tensor, kind: MemoryKind, real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Imagine H steps under given actions (B, H), with uniforms `noise` (H, B, G, C).

    With `real` samples (B, H, Z) each step continues from the real latent, else from the imagined one. Returns the
    samples (H, B, Z) and the memory (H, B, D) after each step.
    """
    memory = make_memory(model, kind, model.config.context)
    before = context.sample, context.action, context.first
    state = memory.prefill(*before)[1] if context.action.shape[1] else memory.start(len(action))
    sample, opens = context.newest, context.opens
    assert sample is not None and opens is not None
    samples, memories = [], []
    for step in range(action.shape[1]):
        h, state = memory.push(sample, action[:, step], opens, state)
        sample = model.sample(model.prior_head(h), noise[step]) if real is None else real[:, step]
        opens = torch.zeros_like(opens)
        samples.append(sample)
        memories.append(h)
    return torch.stack(samples), torch.stack(memories)


def slices(values: Tensor, starts: Sequence[int], horizon: int) -> Tensor:
    """Slice (B, H, ...) from an episode's values (T, ...): H from each start on."""
    return values[torch.tensor(starts).unsqueeze(1) + torch.arange(horizon)]


# ---- comparison of both forms of imagination -------------------------------------------------------------------------
KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
MEASURES = {
    "reward": "squared error of the reward",
    "end": "squared error of the probability that the step ends the episode",
    "latent": "KL of the predicted latent from that of the real frame, in nats",
    "feature": "distance of the features from the same memory's features on the real frames, divided by their norm",
}
ABOUT = MEASURES | {"apart": "distance of the window's features from the carried ones, divided by their norm"}


def foresight_table(forms: dict[str, Any]) -> str:
    """Write the result of `compare_memories` as a table of 1, 2, 4, ... steps ahead, and the last."""
    columns = {f"{measure} {kind}": forms[kind][measure] for measure in MEASURES for kind in KINDS}
    columns["apart"], horizon = forms["apart"], len(forms["apart"])
    shown = sorted({2**power - 1 for power in range(horizon.bit_length())} | {horizon - 1})
    rows = [{"ahead": step + 1, **{name: each[step] for name, each in columns.items()}} for step in shown]
    title = f"both forms of imagination, {forms['rollouts']} rollouts under real actions"
    return "\n".join([Table.from_records(rows, title).text(), *(f"{name}: {about}" for name, about in ABOUT.items())])


@torch.no_grad()
def compare_memories(agent: GlamAgent, episodes: Sequence[LivedEpisode], horizon: int, seed: int) -> dict[str, Any]:
    """Imagine every part of `horizon` steps of the episodes with both memories and the same random numbers.

    The first part of an episode begins after the model's context; in a shorter episode, as late as possible. Returns
    entries of inspect.json by steps ahead: each measure of both memories, and the distance of their features.
    """
    model, numbers = agent.model.eval(), generator(seed, next(agent.model.parameters()).device)
    parts = [(episode, starts(episode, model.config.context, horizon)) for episode in episodes]
    errors = [_errors(model, episode, begins, horizon, numbers) for episode, begins in parts if begins]
    counts = [len(begins) for _, begins in parts if begins]
    require(errors, f"no episode has --imagined {horizon} steps, which the comparison of both forms needs")
    means = {name: np.average([each[name] for each in errors], axis=0, weights=counts).tolist() for name in errors[0]}
    by_kind: Any = {kind: {name: means[f"{kind}/{name}"] for name in MEASURES} for kind in KINDS}
    return {"rollouts": sum(counts), "measures": ABOUT, **by_kind, "apart": means["apart"]}


def starts(episode: LivedEpisode, context: int, horizon: int) -> range:
    """Return the first imagined steps of an episode's rollouts, which do not overlap."""
    first = min(context, len(episode) - horizon)
    return range(first, len(episode) - horizon + 1, horizon) if first >= 0 else range(0)


def _errors(
    model: GlamModel, episode: LivedEpisode, begins: range, horizon: int, numbers: torch.Generator
) -> dict[str, Array]:
    """Compute all measures of both memories and the distance of their features: means (H,) over B rollouts."""
    context = context_before(model, episode, begins, numbers)[1]
    frames, action, reward, end = (
        slices(each, begins, horizon).to(numbers.device)
        for each in (episode.frames[1:], episode.action, episode.reward, episode.terminated)
    )  # (B, H, ...)
    posterior = model.encode(frames)  # of the frame after each step
    real = model.sample(posterior, model.noise(tuple(action.shape), numbers))
    noise = model.noise((horizon, len(begins)), numbers)
    measured: dict[str, Tensor] = {}  # (H, B)
    features = {kind: unroll(model, context, action, noise, kind)[1] for kind in KINDS}
    for kind, h in features.items():
        measured |= {
            f"{kind}/reward": (model.reward(h) - reward.mT).square(),
            f"{kind}/end": (upcast(model.termination(h)).sigmoid() - end.mT.to(h.dtype)).square(),
            f"{kind}/latent": kl(posterior.transpose(0, 1), model.prior_head(h)),
            f"{kind}/feature": _distance(h, unroll(model, context, action, noise, kind, real)[1]),
        }
    measured["apart"] = _distance(features["window"], features["carried"])
    return {name: values.double().mean(1).cpu().numpy() for name, values in measured.items()}


def _distance(features: Tensor, reference: Tensor) -> Tensor:
    """Divide the norm of the difference by that of `reference`: (H, B, D) -> (H, B)."""
    return upcast(features - reference).norm(dim=-1) / upcast(reference).norm(dim=-1).clamp(min=1e-12)
