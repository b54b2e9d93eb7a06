"""Carry the state while acting: the window of the last K observations, or the state of a recurrence.

N episodes run at once. An actor takes one observation of each and gives the network's outputs. A policy chooses actions
from the outputs.
"""

from __future__ import annotations

from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from dqn_memory import action_distributions
from dqn_memory.network import QNetwork, trimmed_length
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.stateful import Stateful
from envs.actions import Actions

ActingState = Literal["window", "episode"]
StateTensors = tuple[Tensor, ...]  # state of an actor; the first axis of each tensor is N

# onnxruntime cannot select between tensors of the types on the left; an exported step casts to the type on the right.
SELECTED = {torch.bool: torch.uint8, **dict.fromkeys((torch.int8, torch.int16, torch.uint16), torch.int32)}
SELECTED |= {torch.uint32: torch.int64, torch.uint64: torch.int64}


class WindowActor(Stateful):
    """Keep the last K observations of N episodes, and the action before each, and encode the window at each step."""

    state_names = ("observation", "previous_action", "lengths")

    def __init__(self, network: QNetwork, num_envs: int, device: torch.device) -> None:
        self.network, self.device, self.size = network, device, network.config.context
        spec, shape = network.spec, (num_envs, network.config.context)
        self.observation = torch.full((*shape, *spec.shape), spec.padding, dtype=spec.dtype, device=device)
        self.previous_action = torch.full(shape, network.num_actions, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        """Append one observation to each window; a full window drops its oldest one."""
        after = self._append(observation, previous_action, reset, self.state_tensors)
        self.observation, self.previous_action, self.lengths = after

    def _append(self, observation: Tensor, previous_action: Tensor, reset: Tensor, state: StateTensors) -> StateTensors:
        """Give the windows (observations, actions, lengths) with one more observation."""
        before, actions, lengths = state
        mask = reset.reshape(-1, *[1] * (before.dim() - 1))  # (N, 1, ...)
        observations = torch.where(mask, self.network.spec.padding, before).to(before.dtype)
        actions = torch.where(reset.unsqueeze(1), self.network.num_actions, actions)
        lengths = torch.where(reset, 0, lengths)
        full = lengths == self.size
        observations = torch.where(full.reshape_as(mask), observations.roll(-1, 1), observations)
        actions = torch.where(full.unsqueeze(1), actions.roll(-1, 1), actions)
        index = torch.where(full, self.size - 1, lengths)
        newest = torch.arange(self.size, device=index.device) == index.unsqueeze(1)  # (N, K)
        observations = torch.where(
            newest.reshape(*newest.shape, *[1] * (observations.dim() - 2)),
            observation.to(observations.dtype).unsqueeze(1),
            observations,
        )
        action = torch.where(reset, self.network.num_actions, previous_action)
        return observations, torch.where(newest, action.unsqueeze(1), actions), index + 1

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Compute the network's outputs (N, A) for the newest observations."""
        width = self.size
        # an accelerator computes all K positions, because reading the largest length would wait for it
        if self.device.type == "cpu":
            width = trimmed_length(int(self.lengths.max()), self.size)
        window = self.observation[:, :width], self.previous_action[:, :width]
        return self.network.at(*window, self.lengths)

    @property
    def state_tensors(self) -> StateTensors:
        """List the tensors that are carried to the next step."""
        return self.observation, self.previous_action, self.lengths

    def step(
        self, observation: Tensor, previous_action: Tensor, reset: Tensor, state: StateTensors
    ) -> tuple[Tensor, StateTensors]:
        """Compute Q (N, A) and the next state as a function of the arguments; the actor stays as it is."""
        dtype = state[0].dtype
        before = state[0].to(SELECTED.get(dtype, dtype))
        observations, actions, lengths = self._append(observation, previous_action, reset, (before, *state[1:]))
        q = self.network.at(observations, actions, lengths)
        return q, (observations.to(dtype), actions, lengths)


class StateActor(Stateful):
    """Carry the recurrent state through the whole episode, as published DRQN acts."""

    state_names = ("state", "q")

    def __init__(self, network: QNetwork, num_envs: int, device: torch.device) -> None:
        if not network.stateful:
            raise UserError(
                f"--acting-state episode needs a memory that streams, such as gru or attention, not "
                f"{network.config.architecture}; use window"
            )
        self.network, self.device = network, device
        self.state = network.initial_state(num_envs, device)
        self.q = torch.zeros(num_envs, network.actions.outputs, device=device)

    @torch.no_grad()
    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        """Take one step of the recurrence in each episode."""
        self.q, self.state = self.network.step(observation, previous_action, self.state, reset)

    def outputs(self) -> Tensor:
        """Give the network's outputs (N, A) for the newest observations."""
        return self.q

    @property
    def state_tensors(self) -> StateTensors:
        """List the tensors that are carried to the next step."""
        return tuple(part for layer in self.state for part in layer)

    def step(
        self, observation: Tensor, previous_action: Tensor, reset: Tensor, state: StateTensors
    ) -> tuple[Tensor, StateTensors]:
        """Compute Q (N, A) and the next state as a function of the arguments; the actor stays as it is."""
        parts = iter(state)
        by_layer = [tuple(islice(parts, len(layer))) for layer in self.state]
        q, after = self.network.step(observation, previous_action, by_layer, reset)
        return q, tuple(part for layer in after for part in layer)


Actor = WindowActor | StateActor


def choose(actions: Actions, outputs: Tensor, draws: torch.Generator | None) -> Tensor:
    """Choose actions (N, ...) by outputs (N, O): the best ones, or with `draws` drawn by the policy they describe."""
    if draws is None:
        return action_distributions.best(actions, outputs)
    if actions.count:
        return outputs.softmax(1).multinomial(1, generator=draws).squeeze(1)
    return action_distributions.draw(actions, outputs, draws)


class NetworkPolicy:
    """Act by a network's outputs in N episodes.

    With `draws` the outputs are logits by which actions are drawn. With `keeps` the state goes on where an episode
    begins. With `reset_memory` the network sees only the newest observation.
    """

    def __init__(
        self, actor: Actor, num_envs: int, draws: torch.Generator | None = None, reset_memory: bool = False,
        keeps: bool = False,
    ) -> None:  # fmt: skip
        self.actor, self.draws, self.reset_memory, self.keeps = actor, draws, reset_memory, keeps
        self.previous_action = actor.network.actions.none(num_envs, actor.device)

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for observations (N, ...), and give the network's outputs (N, A)."""
        reset = torch.zeros_like(reset) if self.keeps else reset
        self.actor.observe(observation, self.previous_action, reset | self.reset_memory)
        outputs = self.actor.outputs()
        self.previous_action = choose(self.actor.network.actions, outputs, self.draws)
        return self.previous_action, outputs


def make_actor(network: QNetwork, num_envs: int, device: torch.device, state: ActingState) -> Actor:
    """Make the actor for a value of `--acting-state`."""
    if state == "episode":
        return StateActor(network, num_envs, device)
    return WindowActor(network, num_envs, device)
