"""Analyse a run's checkpoint: attention over a window of tokens, learned priors, and an episode with all predictions.

Predictions are those of acting: before each step, from the same window of history.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.analysis.attention import Maps
from dqn_memory.play import PlayedStep, one_episode, play_steps
from dqn_memory.runs.seeding import Streams, generator
from envs.spaces import Array
from world_models.distributions import group_kl
from world_models.settings import training_signal
from world_models.trainer import EvalEnvironments
from world_models.unizero.acting import SearchPolicy, UniZeroAgent
from world_models.unizero.config import GROUP, UniZeroCollectionConfig, UniZeroConfig, UniZeroModelConfig
from world_models.unizero.dynamics import TokenDynamics
from world_models.unizero.layers import AttentionStack
from world_models.unizero.networks import UniZeroModel

MAX_STEPS = 200  # default maximum length of an episode


# ---- attention and its priors ----------------------------------------------------------------------------------------
@torch.no_grad()
def window_attention(model: UniZeroModel, latent: Tensor, action: Tensor) -> Array:
    """Compute maps (L, H, 2T, 2T) of a window of T <= horizon latents (T, D) and actions (T,); rows are queries.

    Tokens are z_0 a_0 z_1 a_1 ..., as in a training sequence. L is 0 if the dynamics have no attention.
    """
    dynamics = model.dynamics
    if not isinstance(dynamics, TokenDynamics) or not isinstance(dynamics.stack, AttentionStack):
        return np.zeros((0, 0, 2 * len(action), 2 * len(action)))
    device = dynamics.embedding.weight.device
    x, maps = dynamics.embed(dynamics.tokens(latent[None].to(device), action[None].to(device))), []
    for layer in dynamics.stack.attention_layers():
        maps.append(layer.attention.weights(layer.norms[0](x))[0])
        x = layer(x)
    return torch.stack(maps).double().cpu().numpy()


def learned_prior_values(model: UniZeroModel) -> dict[str, Array]:
    """Return the learned values of the priors by name (mu, sigma, span): (L, H) each, in tokens."""
    layers = [attention.prior.learned() for attention in model.attentions()]
    names = layers[0] if layers else {}
    return {name: torch.stack([layer[name] for layer in layers]).detach().double().cpu().numpy() for name in names}


def initial_prior_values(config: UniZeroModelConfig) -> dict[str, float]:
    """Return the first values of the same parameters, equal in every head."""
    if config.dynamics != "transformer":
        return {}
    fresh = config.prior.build(config.heads, 2 * config.horizon)
    return {name: float(values.detach()[0]) for name, values in fresh.learned().items()}


# ---- an episode ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Trajectory:
    """T steps of one episode, on the CPU; numbers are float64."""

    latent: Tensor  # (T, D), of the observations before each action
    action: Array  # (T,)
    reward: Array  # (T,) as in training, perhaps clipped to its sign
    ended: Array  # (T,) bool: terminated, as in training
    done: Array  # (T,) bool: terminated or truncated
    episode_return: Array  # (T,) so far, of the environment's own rewards
    predicted_reward: Array  # (T,)
    value: Array  # (T,) of the network, before the search
    prior: Array  # (T, A) probabilities before the search
    searched: Array  # (T, A) probabilities after the search
    latent_error: Array  # (T,) group KL in nats of the predicted next latent from the observed one
    latent_change: Array  # (T,) group KL in nats of the current latent from the next observed one

    def __len__(self) -> int:
        return len(self.action)


def play_trajectory(
    model: UniZeroModel, setup: EvalEnvironments, config: UniZeroConfig, seed: int, max_steps: int
) -> Trajectory:
    """Play one episode without noise, or its first `max_steps` steps; set the model's evaluation mode.

    `config` has the settings of the search, and those of rewards and ends. The seed of an evaluation in one environment
    gives the first episode of that evaluation.
    """
    streams = Streams.spawn(seed)
    policy = SearchPolicy(model, 1, config, generator(streams.exploration, setup.device))
    with closing(setup.vector(1, streams.worlds)) as vector:
        steps = one_episode(play_steps(vector, policy, vector.reset()), max_steps)
        moments = [_moment(policy, played, config.collection) for played in steps]
    joined = {name: torch.cat([moment[name] for moment in moments]).cpu() for name in moments[0]}
    latent = joined.pop("latent")
    arrays = {name: (x.double() if x.is_floating_point() else x).numpy() for name, x in joined.items()}
    return Trajectory(latent=latent, **arrays)


@torch.no_grad()
def _moment(policy: SearchPolicy, played: PlayedStep, collection: UniZeroCollectionConfig) -> dict[str, Tensor]:
    """Return a trajectory's entries (1, ...) of the newest step."""
    assert policy.last is not None  # the policy's history does not have this step yet
    model, history = policy.planner.model, policy.planner.history
    (latent, action), step = policy.last, played.step
    logits, value = model.root(history, latent)
    expected = model.expand(history, latent, action)
    seen = model.encode(step.final_observation).double()
    reward, ended = training_signal(step, collection)
    return {
        "latent": latent, "action": action, "reward": reward, "ended": ended, "done": step.done,
        "episode_return": step.episode_return, "predicted_reward": expected.reward, "value": value,
        "prior": logits.double().softmax(-1), "searched": played.outputs,
        "latent_error": group_kl(expected.latent.double(), seen, GROUP),
        "latent_change": group_kl(latent.double(), seen, GROUP),
    }  # fmt: skip


def returns_to_go(reward: Array, ended: Array, gamma: float) -> Array:
    """Sum the discounted rewards from each step to the episode's end, (T,); NaN if the end was not observed."""
    result, later = np.empty(len(reward)), np.nan
    for t in reversed(range(len(reward))):
        later = reward[t] + (0.0 if ended[t] else gamma * later)
        result[t] = later
    return result


def errors(trajectory: Trajectory, gamma: float) -> dict[str, Any]:
    """Measure the prediction errors over all steps of a trajectory, each with a scale for comparison.

    Values are compared with the discounted rewards up to the episode's end; steps without an observed end do not count.
    """
    off = trajectory.predicted_reward - trajectory.reward
    returns = returns_to_go(trajectory.reward, trajectory.ended, gamma)
    known = ~np.isnan(returns)
    value_off = np.abs(trajectory.value - returns)[known]
    p, q = trajectory.searched, trajectory.prior
    divergence = np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / q), 0.0).sum(1)  # (T,)
    return {
        "steps": len(trajectory),
        "reward_mean_absolute": float(np.abs(off).mean()),
        "reward_root_mean_square": float(np.sqrt(np.square(off).mean())),
        "reward_largest": float(np.abs(off).max()),
        "reward_spread": float(trajectory.reward.std()),  # the error of predicting their mean
        "latent_divergence": float(trajectory.latent_error.mean()),  # group KL in nats
        "latent_divergence_unchanged": float(trajectory.latent_change.mean()),
        "value_steps": int(known.sum()),
        "value_mean_absolute": float(value_off.mean()) if known.any() else None,
        "value_spread": float(returns[known].std()) if known.any() else None,
        "search_divergence": float(divergence.mean()),  # KL in nats of the search's policy from the prior
        "search_agreement": float((p.argmax(1) == q.argmax(1)).mean()),  # share of steps with the same best action
    }


def chosen_window(seen: Trajectory, size: int) -> slice:
    """Choose at most `size` steps, up to the last nonzero reward; without one, up to the episode's last step."""
    rewarded = np.flatnonzero(seen.reward)
    last = int(rewarded[-1]) if len(rewarded) else len(seen) - 1
    return slice(max(0, last + 1 - size), last + 1)


def report_maps(run: Path, seed: int) -> Maps | None:
    """Compute the attention maps of a run for a study's report; None if its dynamics have no attention."""
    device = torch.device("cpu")
    agent = UniZeroAgent.load(run, device)
    model, config = agent.model, agent.config
    seen = play_trajectory(model, EvalEnvironments.of(config, device), config, seed, MAX_STEPS)
    window = chosen_window(seen, config.model.horizon)
    maps = window_attention(model, seen.latent[window], torch.from_numpy(seen.action[window]))
    if not len(maps):
        return None
    return Maps(dict(enumerate(maps)), len(seen), total=float(seen.episode_return[-1]), first=window.start)
