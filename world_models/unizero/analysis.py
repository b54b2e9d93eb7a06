"""Looks at a finished run: attention over a window of tokens, learned priors, and an episode with all predictions.

Every prediction is the one that acting makes: from the same window of history, before the step is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from dqn_memory.analysis.attention import Maps, prior_tables
from dqn_memory.blocks import Prior
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.seeding import Streams, generator
from dqn_memory.runs.settings import Bounds, Repeatable
from envs.fleet import Fleet
from envs.registry import WORLDS, make_world
from world_models.distributions import group_kl
from world_models.unizero.acting import EvalSetup, Planner, load_model
from world_models.unizero.config import GROUP, CollectionConfig, ModelConfig, TrainConfig
from world_models.unizero.dynamics import TokenDynamics
from world_models.unizero.layers import AttentionStack
from world_models.unizero.networks import WorldModel
from world_models.unizero.search import SearchNumbers, draw

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Link:
    """One query token and one key token of a window z_0 a_0 z_1 a_1 ..., and how much weight one gives the other."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    lift: float  # weight times the number of visible keys: 1 if all keys had the same weight


@torch.no_grad()
def attention_maps(model: WorldModel, latent: Tensor, action: Tensor) -> Array:
    """Compute maps (L, H, 2T, 2T) of a window of T <= horizon latents (T, D) and actions (T,); rows are queries.

    Tokens are z_0 a_0 z_1 a_1 ..., as in a training sequence. L is 0 where the dynamics have no attention.
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


def strongest_link(maps: Array, causal: bool, layer: int | None = None, head: int | None = None) -> Link | None:
    """Find the link between two different steps with the largest lift, in all maps or those of a layer or head.

    Early queries see few keys and give each much weight, so the weight itself would always choose those.

    Returns:
        None where no head looks beyond its own step.
    """
    layers, heads, tokens, _ = maps.shape
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and count == 0:
            raise UserError(f"--{name} {number}: the model's dynamics have no attention")
        if number is not None and not 0 <= number < count:
            raise UserError(f"--{name} {number} is not within 0 .. {count - 1}, the {name}s of the model's attention")
    position = np.arange(tokens)
    visible = position + 1 if causal else np.full(tokens, tokens)
    lift = maps * visible[:, None] * (position[:, None] // 2 != position // 2)  # (L, H, S, S)
    wanted = np.zeros((layers, heads), bool)
    wanted[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    lift = lift * wanted[:, :, None, None]
    if not lift.size or lift.max() == 0:
        return None
    where = np.unravel_index(lift.argmax(), lift.shape)
    layer, head, query, key = (int(i) for i in where)
    return Link(layer, head, query, key, weight=float(maps[where]), lift=float(lift[where]))


def priors(model: WorldModel) -> list[Prior]:
    """List the prior of each attention layer."""
    return [attention.prior for attention in model.attentions()]


def learned_values(model: WorldModel) -> dict[str, Array]:
    """Give the learned mu, sigma and span of the priors, as far as they have them: (L, H) each, in tokens."""
    layers = [prior.learned() for prior in priors(model)]
    names = layers[0] if layers else {}
    return {name: torch.stack([layer[name] for layer in layers]).detach().double().cpu().numpy() for name in names}


def first_values(config: ModelConfig) -> dict[str, float]:
    """Give the starting values of the same quantities, equal in every head."""
    if config.dynamics != "transformer":
        return {}
    fresh = config.prior.build(config.heads, 2 * config.horizon)
    return {name: float(values.detach()[0]) for name, values in fresh.learned().items()}


@dataclass(frozen=True)
class Trajectory:
    """T steps of one episode, on the CPU; numbers are float64."""

    latent: Tensor  # (T, D) of the observations acted on
    action: Array  # (T,)
    reward: Array  # (T,) as in training, so perhaps its sign only
    ended: Array  # (T,) bool: terminated, as in training
    done: bool  # whether the last step ended the episode, terminated or truncated
    episode_return: float  # of the environment's own rewards
    predicted_reward: Array  # (T,)
    value: Array  # (T,) the network's, before the search
    prior: Array  # (T, A) probabilities before the search
    searched: Array  # (T, A) and after it
    latent_error: Array  # (T,) group KL in nats, of the predicted next latent from that of what was seen next
    latent_change: Array  # (T,) the same if the prediction were that the latent stays as it is
    frames: tuple[Array, ...]  # T RGB pictures of the observations acted on; () if not drawn

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Errors:
    """Prediction errors over a trajectory, each with a scale to compare it with.

    Values are compared with the discounted rewards up to the episode's end; steps without a known end are left out.
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
    model: WorldModel, setup: EvalSetup, collection: CollectionConfig, seed: int, max_steps: int, pictures: bool = True
) -> Trajectory:
    """Play one episode without noise, or its first `max_steps` steps; sets the model's evaluation mode.

    With the seed of an evaluation in one environment it is that evaluation's first episode.

    Raises:
        UserError: pictures are asked for and the environment draws none.
    """
    streams = Streams.spawn(seed)
    fleet = setup.fleet(1, streams.worlds)
    planner, numbers = Planner(model, 1, setup.device, setup.search), generator(streams.exploration, setup.device)
    observation, moments, frames = fleet.reset(), list[dict[str, Tensor]](), list[Array]()
    while len(moments) < max_steps and not (moments and bool(moments[-1]["done"])):
        frames += [_frame(fleet, setup)] if pictures else []
        drawn = draw(setup.search, 1, fleet.num_actions, numbers, evaluation=True)
        moment, observation = _moment(planner, fleet, collection, observation, drawn)
        moments.append(moment)
    return _trajectory(moments, frames)


def _frame(fleet: Fleet, setup: EvalSetup) -> Array:
    try:
        return fleet.frame(0)
    except (UserError, gymnasium.error.Error) as error:  # Gymnasium's own says which package drawing needs
        reason = str(error).rstrip(".")
    except NotImplementedError:  # Gymnasium's base class, without a word
        reason = "it has no render method"
    raise UserError(f"{setup.env} cannot be drawn ({reason}); --no-frames does without its pictures")


@torch.no_grad()
def _moment(
    planner: Planner, fleet: Fleet, collection: CollectionConfig, observation: Tensor, numbers: SearchNumbers
) -> tuple[dict[str, Tensor], Tensor]:
    """Take one step; returns what is kept of it, a row each, and the next observation (1, ...)."""
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
    """Sum the discounted rewards from each step to the next end, (T,); NaN where no end follows."""
    result, following = np.empty(len(reward)), np.nan
    for t in reversed(range(len(reward))):
        following = reward[t] + (0.0 if ended[t] else gamma * following)
        result[t] = following
    return result


def errors(trajectory: Trajectory, gamma: float) -> Errors:
    """Measure the prediction errors of a whole trajectory."""
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


@dataclass(frozen=True)
class Choice:
    """What to look at in a run."""

    also: Repeatable = ()
    """Further runs of the same model, such as other seeds: bars of learned values are then means over all of them."""
    seed: Annotated[int, Bounds(0)] = 0
    """Seed of the environment and of the search's ties."""
    most_steps: Annotated[int, Bounds(1)] = 200
    """Steps after which the episode is cut."""
    last_step: int | None = None
    """Step at which the drawn window ends (None: the last one whose reward is not 0, or else the last one)."""
    columns: Annotated[int, Bounds(1)] = 10
    """Steps in the picture of the trajectory; maps show as many as a training sequence has."""
    layer: int | None = None
    """Layer of the map that is linked to its frames, counted from 0 (None: where the strongest link is)."""
    head: int | None = None
    """Head of that map, counted from 0 (None: where the strongest link is)."""
    simulations: Annotated[int, Bounds(1)] | None = None
    """Expansions of each search (None: as in training)."""
    frames: bool = True
    """Show the environment's pictures; --no-frames is for environments that draw none."""


@dataclass(frozen=True)
class Findings:
    """Everything that is drawn and written about one checkpoint."""

    config: TrainConfig
    step: int  # the checkpoint's
    seen: Trajectory
    errors: Errors
    values: dict[str, Array]  # (R, L, H) learned, by name
    maps: Array  # (L, H, 2T, 2T) of the steps first .. last
    first: int
    last: int
    shown: int  # step at which the picture of the trajectory begins, which ends at `last`
    link: Link | None
    tables: tuple[dict[str, Array], str]
    names: tuple[str, ...]  # words for the actions

    @property
    def about(self) -> str:
        """One line for the title of a picture."""
        model = self.config.model
        form = f"{model.prior.kind} prior" if model.dynamics == "transformer" else f"{model.dynamics} dynamics"
        return f"{self.config.environment.env}, {form}, checkpoint of step {self.step:,}"

    def action_word(self, action: int) -> str:
        """Name an action."""
        return self.names[action] if action < len(self.names) else f"action {action}"


def investigate(run: Path, device: torch.device, choice: Choice) -> Findings:
    """Load, play and measure; nothing is written. Raises UserError for what cannot be done."""
    model, config, step = load_model(run, device)
    values = pooled(run, model, config, choice.also)
    setup = EvalSetup.of(config, device).with_simulations(choice.simulations)
    setup, names = visible(setup) if choice.frames else setup, action_names(setup)
    seen = play(model, setup, config.collection, choice.seed, choice.most_steps, choice.frames)
    last = chosen_step(seen, choice.last_step)
    first = max(0, last + 1 - config.model.horizon)
    window = slice(first, last + 1)
    maps = attention_maps(model, seen.latent[window], torch.from_numpy(seen.action[window]))
    return Findings(
        config=config, step=step, seen=seen, errors=errors(seen, config.learner.gamma), values=values, maps=maps,
        first=first, last=last, shown=max(0, last + 1 - choice.columns),
        link=strongest_link(maps, model.causal, choice.layer, choice.head), names=names,
        tables=prior_tables(dict(enumerate(priors(model))), 2 * config.model.horizon),
    )  # fmt: skip


def report_maps(run: Path, seed: int) -> Maps | None:
    """Read what a study's report shows of a run's attention; None where its dynamics has none."""
    found = investigate(run, torch.device("cpu"), Choice(seed=seed, frames=False))
    if not len(found.maps):
        return None
    return Maps(dict(enumerate(found.maps)), len(found.seen), total=found.seen.episode_return, first=found.first)


def pooled(run: Path, model: WorldModel, config: TrainConfig, also: Sequence[str]) -> dict[str, Array]:
    """Stack learned values (R, L, H) of a run and of further ones; raise UserError where one has another model."""
    found = [learned_values(model)]
    for other in also:
        their_model, theirs, _ = load_model(other)
        if theirs.model != config.model:
            raise UserError(f"--also {other} is a run of another model than {run}: its values cannot be averaged")
        found.append(learned_values(their_model))
    return {name: np.stack([each[name] for each in found]) for name in found[0]}


def visible(setup: EvalSetup) -> EvalSetup:
    """Let an environment draw pictures where that must be asked for."""
    if setup.env.startswith("ALE/") or setup.env.removeprefix("envs:") in WORLDS:
        return setup
    return replace(setup, env_kwargs=setup.env_kwargs | {"render_mode": "rgb_array"})


def action_names(setup: EvalSetup) -> tuple[str, ...]:
    """Name the actions, where the environment has names."""
    ours = setup.env.removeprefix("envs:") in WORLDS
    return make_world(setup.env, **setup.env_kwargs).action_names if ours else ()


def chosen_step(seen: Trajectory, wanted: int | None) -> int:
    """Choose the last step of the drawn window."""
    if wanted is None:
        paid = np.flatnonzero(seen.reward)
        return int(paid[-1]) if len(paid) else len(seen) - 1
    if not 0 <= wanted < len(seen):
        raise UserError(f"--last-step {wanted} is not within 0 .. {len(seen) - 1}, the steps that were played")
    return wanted
