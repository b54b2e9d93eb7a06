"""One episode step by step: what the world did, what the model had foreseen, what it would do before and after search.

Every prediction is the one that acting makes: from the same window of history, before the step is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from dqn_memory.runs.folder import Streams, generator
from envs.errors import UserError
from envs.fleet import Fleet
from world_models.distributions import group_kl
from world_models.unizero.acting import Planner
from world_models.unizero.config import GROUP
from world_models.unizero.evaluation import Arena
from world_models.unizero.networks import WorldModel
from world_models.unizero.search import SearchNumbers, draw
from world_models.unizero.train_config import CollectionConfig

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Trajectory:
    """T steps of one episode, on the CPU; numbers are float64."""

    latent: Tensor  # (T, D) of what was acted on
    action: Array  # (T,)
    reward: Array  # (T,) as training learns it, so perhaps its sign only
    ended: Array  # (T,) bool: for good, as training counts it
    done: bool  # whether the last step ended the episode, for good or by a time limit
    episode_return: float  # of the world's own rewards
    predicted_reward: Array  # (T,)
    value: Array  # (T,) the network's, before the search
    prior: Array  # (T, A) probabilities before the search
    searched: Array  # (T, A) and after it
    latent_error: Array  # (T,) group KL in nats, of the predicted next latent from that of what was seen next
    latent_change: Array  # (T,) the same if the prediction were that the latent stays as it is
    frames: tuple[Array, ...]  # T RGB pictures of what was acted on; () if not drawn

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Errors:
    """How far predictions were off over a trajectory; a scale to read each one against stands beside it.

    Values are compared with the discounted rewards up to the episode's end, so steps that no end follows count not.
    """

    steps: int
    reward_mean_absolute: float
    reward_root_mean_square: float
    reward_largest: float
    reward_spread: float  # standard deviation of the true rewards: the error of their mean, always predicted
    latent_divergence: float  # mean group KL in nats
    latent_divergence_unchanged: float  # that of predicting that nothing changes
    value_steps: int
    value_mean_absolute: float | None
    value_spread: float | None
    search_divergence: float  # mean KL of the search's policy from the prior, in nats
    search_agreement: float  # share of steps at which both prefer the same action


def play(
    model: WorldModel, arena: Arena, collection: CollectionConfig, seed: int, longest: int, pictures: bool = True
) -> Trajectory:
    """The first episode of one world without noise, or its first `longest` steps; sets the model's evaluation mode.

    With the seed of an evaluation in one world it is that evaluation's first episode. Raises UserError where a picture
    is wanted of a world that draws none.
    """
    streams = Streams.spawn(seed)
    fleet = arena.fleet(1, streams.worlds)
    planner, numbers = Planner(model, 1, arena.device, arena.search), generator(streams.exploration, arena.device)
    observation, moments, frames = fleet.reset(), list[dict[str, Tensor]](), list[Array]()
    while len(moments) < longest and not (moments and bool(moments[-1]["done"])):
        frames += [_frame(fleet, arena)] if pictures else []
        drawn = draw(arena.search, 1, fleet.num_actions, numbers, evaluation=True)
        moment, observation = _moment(planner, fleet, collection, observation, drawn)
        moments.append(moment)
    return _trajectory(moments, frames)


def _frame(fleet: Fleet, arena: Arena) -> Array:
    try:
        return fleet.frame(0)
    except (UserError, gymnasium.error.Error) as error:  # Gymnasium's own says which package drawing needs
        reason = str(error).rstrip(".")
    except NotImplementedError:  # Gymnasium's base class, without a word
        reason = "it has no render method"
    raise UserError(f"{arena.env} cannot be drawn ({reason}); --no-frames does without its pictures")


@torch.no_grad()
def _moment(
    planner: Planner, fleet: Fleet, collection: CollectionConfig, observation: Tensor, numbers: SearchNumbers
) -> tuple[dict[str, Tensor], Tensor]:
    """One step in the world: what is to be kept of it, a row each, and the next observation (1, ...)."""
    model, history = planner.model, planner.window
    plan = planner.plan(observation, numbers)
    action = plan.found.action
    logits, value = model.root(history, plan.latent)
    expected = model.expand(history, plan.latent, action)
    step = fleet.step(action)
    seen = model.encode(step.final_observation).double()
    planner.remember(plan.latent, action, step.done)
    reward, ended = collection.training_signal(step)
    return {
        "latent": plan.latent, "action": action, "reward": reward, "ended": ended, "done": step.done,
        "episode_return": step.episode_return, "predicted_reward": expected.reward, "value": value,
        "prior": logits.double().softmax(-1), "searched": plan.found.policy,
        "latent_error": group_kl(expected.latent.double(), seen, GROUP),
        "latent_change": group_kl(plan.latent.double(), seen, GROUP),
    }, step.observation  # fmt: skip


def _trajectory(moments: list[dict[str, Tensor]], frames: list[Array]) -> Trajectory:
    joined = {name: torch.cat([moment[name] for moment in moments]).cpu() for name in moments[0]}
    latent, done, returns = joined.pop("latent"), joined.pop("done"), joined.pop("episode_return")
    arrays = {name: (x.double() if x.is_floating_point() else x).numpy() for name, x in joined.items()}
    return Trajectory(
        latent=latent, done=bool(done[-1]), episode_return=float(returns[-1]), frames=tuple(frames), **arrays
    )


def returns_to_go(reward: Array, ended: Array, gamma: float) -> Array:
    """Discounted rewards (T,) from each step to the next end; NaN where no end follows."""
    result, following = np.empty(len(reward)), np.nan
    for t in reversed(range(len(reward))):
        following = reward[t] + (0.0 if ended[t] else gamma * following)
        result[t] = following
    return result


def errors(trajectory: Trajectory, gamma: float) -> Errors:
    """The prediction errors of a whole trajectory."""
    off = trajectory.predicted_reward - trajectory.reward
    returns = returns_to_go(trajectory.reward, trajectory.ended, gamma)
    known = ~np.isnan(returns)
    value_off = np.abs(trajectory.value - returns)[known]
    p, q = trajectory.searched, trajectory.prior
    divergence = np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / q), 0.0).sum(1)  # (T,)
    return Errors(
        steps=len(trajectory),
        reward_mean_absolute=float(np.abs(off).mean()),
        reward_root_mean_square=float(np.sqrt(np.square(off).mean())),
        reward_largest=float(np.abs(off).max()),
        reward_spread=float(trajectory.reward.std()),
        latent_divergence=float(trajectory.latent_error.mean()),
        latent_divergence_unchanged=float(trajectory.latent_change.mean()),
        value_steps=int(known.sum()),
        value_mean_absolute=float(value_off.mean()) if known.any() else None,
        value_spread=float(returns[known].std()) if known.any() else None,
        search_divergence=float(divergence.mean()),
        search_agreement=float((p.argmax(1) == q.argmax(1)).mean()),
    )
