"""Train a memory agent by deep Q-learning (DQN): `python -m dqn_memory.train --env Gridverse/Memory-5x5-v0`.

This file and `network.py` are DTQN (Esslinger et al. 2022) and its relatives. From top to bottom: the set-up of a run,
its loop (act, store, learn), sampling, the temporal-difference loss of double Q-learning (van Hasselt et al. 2016) on
windows of history, and the update. The config is in `config.py`. `dqn_memory.runs.trainer` is the
part that all training scripts share: state, resume, logging. `--resume RUN` continues a run.

Shapes: N environments, B windows of a batch, T positions of a window (T <= K, the context length), A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dqn_memory.actors import make_actor
from dqn_memory.config import LearnerConfig, TrainConfig
from dqn_memory.exploration import Explorer
from dqn_memory.network import QNetwork, trimmed_length
from dqn_memory.network_trainer import NetworkTrainer, average_parameters, averaging, update_target
from dqn_memory.replay import ContextBatch, Replay, WindowBatch
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.base_config import Engine
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.gradients import clip
from dqn_memory.runs.optimizers import set_learning_rate
from dqn_memory.runs.seeding import generator, seed_dropout
from envs.console import say

Batch = WindowBatch | ContextBatch
Metrics = dict[str, Tensor]


class QTrainer(NetworkTrainer[TrainConfig]):
    """Deep Q-learning with memory: environments, networks, optimiser, replay, random streams, counters."""

    kind = "q_network"
    config_class = TrainConfig
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "loss": "losses/td_loss"}
    state_names = ("actor", "explorer", "exploration", "drawing", "observation", "previous_action", "time")

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        streams, num_envs = self.streams, config.environment.num_envs
        # networks
        self.build_networks(config.learner.ema_decay > 0)
        self.target = self.build_network().requires_grad_(False).eval()  # values without dropout
        self.backend = resolve_backend(self.networks().values(), config.compute.backend, self.device)
        # learner
        config.learner.check(self.network)
        self.contexts_per_window = config.learner.contexts_per_window(self.network)
        self.optimizer = make_optimizer(self.network, config.learner, capturable=self.device.type == "cuda")
        self.optimizers = [self.optimizer]
        self.update = make_update(self.engine, self.network, self.target, self.optimizer, config.learner)
        # replay, actor, explorer
        self.replay = Replay(self.spec, self.vector.num_actions, num_envs, config.replay.capacity, self.device)
        self.actor = make_actor(self.network, num_envs, self.device, config.acting_state)
        self.exploration = generator(streams.exploration, self.device)
        self.explorer = Explorer(config.exploration, num_envs, self.actions, self.exploration)
        self.drawing = generator(streams.replay, torch.device("cpu"))
        seed_dropout(streams.dropout)
        self.begin()

    def announce(self) -> None:
        """Warn also of settings with which this network can hardly learn."""
        super().announce()
        for warning in self.config.warnings(self.network):
            say(warning)

    def begin(self) -> None:
        num_envs = self.config.environment.num_envs
        self.observation = self.vector.reset()  # (N, ...)
        self.previous_action = self.actions.none(num_envs, self.device)
        self.time = torch.zeros(num_envs, dtype=torch.int64, device=self.device)  # step within the episode
        if self.discounted is not None:
            self.discounted.begin()
        self.actor.observe(self.observation, self.previous_action, self.time == 0)

    # ---- the loop ----------------------------------------------------------------------------------------------------
    def iterate(self) -> None:
        # act
        all_random = self.explorer.epsilon(self.steps) == 1.0
        greedy = torch.zeros_like(self.previous_action) if all_random else self.actor.outputs().argmax(1)
        epsilon, legal = self.explorer.epsilon(self.steps), self.network.legal(self.observation)
        action, _ = self.explorer.choose(greedy, epsilon, self.time == 0, legal)  # (N,)
        step = self.vector.step(action)

        # store
        self.replay.add(
            observation=self.observation, next_observation=step.final_observation, action=action,
            previous_action=self.previous_action, reward=step.reward, terminated=step.terminated,
            done=step.done, time=self.time,
        )  # fmt: skip
        self.observe(self.observation)
        if self.discounted is not None:
            self.discounted.add(step)
        self.observation = step.observation
        self.previous_action = self.actions.without(action, step.done)
        self.time = torch.where(step.done, 0, self.time + 1)
        self.actor.observe(self.observation, self.previous_action, step.done)
        self.iterations += 1
        self.stats.count_episodes(step)

        # learn
        config = self.config
        collected = self.replay.written * config.environment.num_envs  # a resume without its replay starts at 0
        if collected >= config.replay.learning_starts and self.steps >= config.exploration.prepopulate:
            for _ in range(config.replay.updates_per_iteration):
                self.learn()

    def learn(self) -> None:
        """Update the network from one batch; update the target network and the average when due."""
        config, learner = self.config, self.config.learner
        context, contexts = config.network.context, self.contexts_per_window
        batch = sample(self.replay, learner, context, contexts, self.drawing, updates=self.updates)
        if self.discounted is not None:
            n_steps = learner.n_step if contexts is not None else 1  # the reward of a context is a sum of that many
            batch.reward = self.discounted.scaled(batch.reward, n_steps)
        set_learning_rate(self.optimizer, learner.final_lr_fraction, self.steps / config.total_steps)
        metrics = self.update(batch)
        self.updates += 1
        if self.updates % learner.target_update_every == 0:
            update_target(self.network, self.target)
        if self.evaluated is not self.network:
            average_parameters(self.network, self.evaluated, averaging(learner.ema_decay, self.updates))
        self.stats.count_update(metrics, self.steps)

    # ---- methods of the base class -----------------------------------------------------------------------------------
    def networks(self) -> dict[str, Any]:
        """List the online network, the target network and, if the run averages its weights, their average."""
        return {"network": self.network, "target": self.target} | super().networks()

    @property
    def preparing(self) -> dict[str, int]:
        """Give the step at which updates begin. A run resumed without its replay refills it first."""
        first = self.steps - self.replay.written * self.vector.num_envs
        return {"prefill": max(first + self.config.replay.learning_starts, self.config.exploration.prepopulate)}


# ---- sample ----------------------------------------------------------------------------------------------------------
def sample(
    replay: Replay,
    config: LearnerConfig,
    context: int,
    contexts_per_window: int | None,
    generator: torch.Generator,
    trim: bool = True,
    updates: int = 0,
) -> Batch:
    """Draw one batch uniformly over environment steps; `updates` is the number of updates before it.

    The batch holds windows of up to K = `context` steps. Their width is the smallest of WINDOW_LENGTHS that fits the
    longest window, or K without `trim`. If `contexts_per_window` is a number M, the batch holds M times as many single
    contexts instead.
    """
    if contexts_per_window is not None:
        count = config.batch_size * contexts_per_window
        drawn, longest = replay.draw(count, context, generator, terminal_fraction=config.terminal_fraction)
        width = trimmed_length(longest + config.n_step, context) if trim else context
        return replay.contexts(drawn, context, config.gamma, config.n_step, width)
    around = config.window_placement == "around"
    drawn, longest = replay.draw(config.batch_size, context, generator, around, config.terminal_fraction)
    if config.tail_fraction < 1:  # only the first windows get tail targets, and `draw` puts terminal windows first
        drawn = drawn[torch.randperm(config.batch_size, generator=generator)]
    # full width if padding is in the loss or is read, or if shifted targets read one more observation
    padded = not (config.mask_padding and config.lengths)
    full_width = padded or config.targets == "shifted" or not trim
    width = context if full_width else trimmed_length(longest + 1, context)
    windows = replay.windows(drawn, context, width, None if config.mask_padding else generator)
    windows.terminal_weight.fill_(config.terminal_weight_at(updates))
    return windows


# ---- loss: functions of tensors with static shapes, shared by eager, compiled and captured runs ----------------------
def td_loss(network: QNetwork, target: QNetwork, batch: Batch, config: LearnerConfig) -> tuple[Tensor, Metrics]:
    """Compute the temporal-difference loss of a batch, a scalar, and its metrics, which stay on the device."""
    if isinstance(batch, ContextBatch):
        return context_loss(network, target, batch, config)
    if config.targets == "shifted":
        return shifted_loss(network, target, batch, config)
    return window_loss(network, target, batch, config)


def window_loss(
    network: QNetwork, target: QNetwork, batch: WindowBatch, config: LearnerConfig
) -> tuple[Tensor, Metrics]:
    """Train all positions of each window: the target of step j is read at position j + n of the same window."""
    width = batch.action.shape[1]  # T
    observation, previous = batch.observation[:, :width], batch.previous_action[:, :width]
    lengths = (batch.lengths + 1).clamp(max=width) if config.lengths else None  # L transitions, L + 1 observations
    every_position = config.loss_positions == "all"
    online_q, target_q = (each if every_position else each.at_every_prefix for each in (network, target))
    q = online_q(observation, previous, lengths)  # (B, T, A)
    with torch.no_grad():
        value = _bootstrap_value(q, target_q(observation, previous, lengths), config.double)  # (B, T)
        step_weight = None
        if batch.observation.shape[1] > width:  # full width: one observation follows the last transition
            with_tail = max(1, round(config.tail_fraction * len(value)))
            tail = _tail_value(network, target, batch, with_tail, config)
            value = torch.cat([value, F.pad(tail, (0, 0, 0, len(value) - with_tail))], 1)  # (B, T + 1)
            step_weight = _tail_weight(batch, with_tail, config.n_step)
        td_target = n_step_target(batch, value, config)  # (B, T)
    return _weighted_loss(q, batch, td_target, config, network.spec.flags > 0, step_weight)


def _tail_value(network: QNetwork, target: QNetwork, batch: WindowBatch, count: int, config: LearnerConfig) -> Tensor:
    """Compute V of the observation after the last transition of the first `count` windows, (count, 1).

    V is read from the window one step later. It is used only for full windows.
    """
    observation, previous = batch.observation[:count, 1:], batch.previous_action[:count, 1:]
    lengths = batch.lengths[:count] if config.lengths else None
    online_values = network.at(observation, previous, lengths)  # (count, A)
    target_values = target.at(observation, previous, lengths)
    return _bootstrap_value(online_values, target_values, config.double).unsqueeze(1)


def _tail_weight(batch: WindowBatch, count: int, n_step: int) -> Tensor:
    """Compute the loss weight of each step, (B, T).

    A step whose target lies beyond a full window has weight B / count in the first `count` windows and 0 in the others.
    `sample` has shuffled the windows, so the expected gradient stays the same.
    """
    batch_size, context = batch.action.shape
    position = torch.arange(context, device=batch.action.device)
    full = (batch.lengths == context) & ~batch.terminated[:, -1]  # (B,)
    beyond = full.unsqueeze(1) & (position + n_step >= context)  # (B, T)
    known = torch.arange(batch_size, device=batch.action.device).unsqueeze(1) < count  # (B, 1)
    return torch.where(beyond, torch.where(known, batch_size / count, 0.0), 1.0)


def n_step_target(batch: WindowBatch, value: Tensor, config: LearnerConfig) -> Tensor:
    """Compute y_j = sum of gamma^i r_{j+i} + gamma^n V(o_0 .. o_{j+n}), (B, T); n shrinks at the window's end.

    `value` (B, T or T + 1) holds V of the context that ends at each observation.
    """
    position = torch.arange(batch.action.shape[1], device=value.device)  # (T,)
    distance = position.unsqueeze(0) - position.unsqueeze(1)  # (j, i): i - j
    within = (distance >= 0) & (distance < config.n_step)
    weight = torch.where(within, config.gamma ** distance.clamp(min=0).float(), 0.0)  # (j, i)
    reward = batch.reward.to(value.dtype) @ weight.to(value.dtype).T  # (B, T)
    final = batch.lengths.unsqueeze(1)  # (B, 1), L: index of the observation after the last transition
    bootstrap_at = (position + config.n_step).clamp(max=value.shape[1] - 1).minimum(final)  # (B, T)
    ended = batch.terminated.gather(1, final - 1) & (position + config.n_step >= final)
    ended = ended | (position >= final)  # padding (trained only with --no-mask-padding) has no bootstrap
    discount = torch.where(ended, 0.0, config.gamma ** (bootstrap_at - position).float())
    return reward + discount * value.gather(1, bootstrap_at)


def shifted_loss(
    network: QNetwork, target: QNetwork, batch: WindowBatch, config: LearnerConfig
) -> tuple[Tensor, Metrics]:
    """Train as published: the target of position j is read at position j of the window one step later."""
    width = batch.action.shape[1]  # T
    real = torch.arange(width, device=batch.lengths.device) < batch.lengths.unsqueeze(1)  # (B, T)
    mask = real.reshape(*real.shape, *[1] * len(network.spec.shape))  # (B, T, 1, ...)
    observation = torch.where(mask, batch.observation[:, :width], network.spec.padding)
    observation = observation.to(batch.observation.dtype)
    previous = torch.where(real, batch.previous_action[:, :width], network.num_actions)
    lengths = batch.lengths if config.lengths else None
    q = network(observation, previous, lengths)  # (B, T, A)
    with torch.no_grad():
        shifted = (batch.observation[:, 1:], batch.previous_action[:, 1:], lengths)
        online = network(*shifted) if config.double else None
        value = _bootstrap_value(online, target(*shifted), config.double)  # (B, T)
        td_target = batch.reward + config.gamma * torch.where(batch.terminated, 0.0, value)
    return _weighted_loss(q, batch, td_target, config, network.spec.flags > 0)


def context_loss(
    network: QNetwork, target: QNetwork, batch: ContextBatch, config: LearnerConfig
) -> tuple[Tensor, Metrics]:
    """Train the newest position of each context, with the input of acting, so that no later observation leaks."""
    q = network.at(batch.observation, batch.previous_action, batch.lengths)  # (B, A)
    with torch.no_grad():
        next_context = (batch.next_observation, batch.next_previous_action, batch.next_lengths)
        online = network.at(*next_context) if config.double else None
        value = _bootstrap_value(online, target.at(*next_context), config.double)  # (B,)
        td_target = batch.reward + batch.discount * value
    chosen = q.gather(1, batch.action.unsqueeze(1)).squeeze(1)
    loss = _elementwise_loss(chosen, td_target, config).mean()
    return loss, _metrics(loss, chosen, td_target)


def _bootstrap_value(online: Tensor | None, target: Tensor, double: bool) -> Tensor:
    """Compute V of each context, (..., A) -> (...): the target's Q of the online argmax (double), or its maximum."""
    if not double or online is None:
        return target.max(-1).values
    return target.gather(-1, online.argmax(-1, keepdim=True)).squeeze(-1)


def _elementwise_loss(chosen: Tensor, td_target: Tensor, config: LearnerConfig) -> Tensor:
    function = F.mse_loss if config.loss == "mse" else F.smooth_l1_loss
    return function(chosen, td_target, reduction="none")


def _weighted_loss(
    q: Tensor, batch: WindowBatch, td_target: Tensor, config: LearnerConfig, masked: bool,
    step_weight: Tensor | None = None,
) -> tuple[Tensor, Metrics]:  # fmt: skip
    """Average the error over real steps, weighted by `step_weight` (B, T) if given.

    `masked` says that illegal actions have a Q of -inf.
    """
    chosen = q.gather(2, batch.action.unsqueeze(2)).squeeze(2)  # (B, T)
    position = torch.arange(chosen.shape[1], device=chosen.device)
    real = position < batch.lengths.unsqueeze(1)  # (B, T)
    if masked:  # padding holds any action, which may be illegal there
        chosen = torch.where(real | chosen.isfinite(), chosen, td_target)
    error = _elementwise_loss(chosen, td_target, config)
    if not config.mask_padding:
        return error.mean(), _metrics(error.mean(), chosen, td_target)
    weight = torch.where(batch.terminated, batch.terminal_weight, 1.0) * real.float()  # (B, T)
    weight = weight if step_weight is None else weight * step_weight
    share = weight / weight.sum()
    loss = (error * share).sum()
    # `_metrics` takes plain means; this makes them means over the trained steps
    return loss, _metrics(loss, chosen * share * share.numel(), td_target * share * share.numel())


def _metrics(loss: Tensor, chosen: Tensor, td_target: Tensor) -> Metrics:
    return {
        "losses/td_loss": loss.detach(),
        "losses/q_values": chosen.detach().mean(),
        "losses/targets": td_target.mean(),
    }


# ---- update ----------------------------------------------------------------------------------------------------------
def make_optimizer(network: QNetwork, config: LearnerConfig, capturable: bool = False) -> torch.optim.Adam:
    """Make a fused Adam with default betas; attention priors are a parameter group with its own learning rate.

    With `capturable` (on CUDA) learning rates are tensors, so that `set_learning_rate` reaches a captured graph.
    """
    priors, rate = network.prior_parameters(), config.learning_rate
    prior_rate = rate if config.prior_learning_rate is None else config.prior_learning_rate
    others = [each for each in network.parameters() if all(each is not prior for prior in priors)]
    device = others[0].device

    def group(parameters: list[nn.Parameter], rate: float) -> dict[str, Any]:
        learning_rate = torch.tensor(rate, device=device) if capturable else rate
        return {"params": parameters, "lr": learning_rate, "first_lr": rate}

    groups = [group(others, rate)] + ([group(priors, prior_rate)] if priors else [])
    return torch.optim.Adam(groups, lr=groups[0]["lr"], fused=True, capturable=capturable)


def make_update(
    engine: Engine, network: QNetwork, target: QNetwork, optimizer: torch.optim.Optimizer, config: LearnerConfig
) -> Callable[[Batch], Metrics]:
    """Make the function that takes one gradient step: eager (the tested reference), compiled or captured."""
    loss_function = torch.compile(td_loss, dynamic=False) if engine == "compile" else td_loss
    parts = network.parts()

    def update(batch: Batch) -> Metrics:
        loss, metrics = loss_function(network, target, batch, config)
        penalty = network.regularisation()
        optimizer.zero_grad(set_to_none=True)
        (loss + penalty).backward()
        norms = clip(parts, config.max_grad_norm)
        optimizer.step()
        network.project()
        return metrics | {"losses/regularisation": penalty.detach()} | norms

    return Captured(update, (network,), (optimizer,)) if engine == "cudagraph" else update


main = QTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
