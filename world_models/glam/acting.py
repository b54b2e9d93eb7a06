"""Acting: choose actions from frames, with the agent of a training run or of a checkpoint."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels.select import Choice
from dqn_memory.evaluate import EvaluationOptions
from dqn_memory.play import Score
from dqn_memory.runs import backend as backends
from dqn_memory.runs.checkpoint import check_actions
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.seeding import seeded
from envs.vector import VectorEnvironment
from world_models.glam.agent import ActorCritic
from world_models.glam.config import GlamConfig
from world_models.glam.encoder import uniforms
from world_models.glam.imagination import Memory, Policy, make_memory, sample_action
from world_models.glam.model import GlamModel
from world_models.settings import to_device
from world_models.trainer import EvalEnvironments, EvaluatedAgent


class Player:
    """A policy that acts in N environments. Its input is [z_t, h_{t-1}]; h_{t-1} is 0 in an episode's first step.

    z_t is a sample of the posterior of the newest frame. With `act_before_observing`, as in the released code, z_t is a
    sample of the prior: the model reads the frame after the action is chosen. The action before the first frame is then
    uniformly random. A model that does not reset at episode starts remembers earlier episodes.
    """

    def __init__(
        self, model: GlamModel, policy: Policy, memory: Memory, rows: int, act_before_observing: bool = False
    ) -> None:
        self.model, self.policy, self.memory, self.rows = model, policy, memory, rows
        self.act_before_observing = act_before_observing
        self.reset()

    def reset(self) -> None:
        """Reset the memory in all environments, whatever the model does at episode starts."""
        like = next(self.model.parameters())
        self.h = like.new_zeros(self.rows, self.model.config.width)  # (N, D)
        self.new = torch.ones(self.rows, dtype=torch.bool, device=like.device)  # (N,), no frame since the reset
        self.state = self.memory.start(self.rows)
        self.logits = like.new_zeros(self.rows, self.model.num_actions)  # (N, A), of the newest actions

    @torch.no_grad()
    def act(self, frame: Tensor, first: Tensor, generator: torch.Generator, greedy: bool = False) -> Tensor:
        """Choose actions (N,) for frames (N, 3, S, S) uint8; `first` (N,) marks the first frames of episodes.

        Samples a latent from the posterior, one from the prior, and an action. `greedy` takes the most probable action
        instead. Sets the model's evaluation mode.
        """
        self.model.eval()
        latent, guess = (self.model.noise((self.rows,), generator) for _ in range(2))  # (N, G, C)
        choice = uniforms((self.rows, self.model.num_actions), generator)
        sample = self.model.sample(self.model.encode(frame.unsqueeze(1)).squeeze(1), latent)  # (N, Z)
        opens = self.new | (first & self.model.config.reset_at_episode_start)  # (N,)
        h = torch.where(opens.unsqueeze(1), 0, self.h)  # (N, D)
        if self.act_before_observing:
            guessed = self.model.sample(self.model.prior_head(h), guess)
            logits = torch.where(opens.unsqueeze(1), 0, self.policy(torch.cat((guessed, h), -1)))  # (N, A)
        else:
            logits = self.policy(torch.cat((sample, h), -1))
        action, self.logits = sample_action(logits, choice), logits
        if greedy:
            action = torch.where(opens & self.act_before_observing, action, logits.argmax(-1))
        self.h, self.state = self.memory.push(sample, action, opens, self.state)
        self.new = torch.zeros_like(self.new)
        return action

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors that an exact continuation needs."""
        return {"h": self.h, "new": self.new, "memory": vars(self.state).copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_actions(state["memory"], self.model.num_actions - 1)
        saved = mapped(lambda x: x.to(self.h.device), dict(state))
        self.h, self.new, self.state = saved["h"], saved["new"], type(self.state)(**saved["memory"])


class DrawnPolicy:
    """Sample the actions of N environments, as in training, or take the most probable ones.

    `reset_memory` resets the memory before each step.
    """

    def __init__(
        self, player: Player, random: torch.Generator, greedy: bool = False, reset_memory: bool = False
    ) -> None:
        self.player, self.random, self.greedy, self.reset_memory = player, random, greedy, reset_memory

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for frames (N, 3, S, S) uint8; return also the probabilities of all actions (N, A)."""
        if self.reset_memory:
            self.player.reset()
        action = self.player.act(observation, reset, self.random, self.greedy)
        return action, self.player.logits.softmax(-1)


# ---- evaluation ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PolicyScore(Score):
    """The score of a run's policy, and that of the most probable actions if both were played."""

    greedy: Score | None = None

    def scalars(self, kind: str = "eval") -> dict[str, float]:
        """Return the metrics of the score; those of the greedy policy have names eval/greedy_..."""
        greedy = {} if self.greedy is None else self.greedy.scalars(kind)
        return super().scalars(kind) | {name.replace("/", "/greedy_"): value for name, value in greedy.items()}


# ---- networks, new and from a checkpoint -----------------------------------------------------------------------------
def build_glam(config: GlamConfig, actions: int, seed: int, device: torch.device) -> tuple[GlamModel, ActorCritic]:
    """Make a model and an agent for A actions, initialised from `seed`."""
    with seeded(seed):
        model = GlamModel(config.model, actions)
        agent = ActorCritic(config.agent, config.model.latent + config.model.width, actions)
    return to_device(model, device), agent.to(device)


def check_frames(vector: VectorEnvironment, env: str, screen: int) -> None:
    """Raise UserError unless observations are square frames of three colours with the model's screen size."""
    space, shape = vector.observation_space, (3, screen, screen)
    if isinstance(space, gymnasium.spaces.Box) and space == gymnasium.spaces.Box(0, 255, shape, np.uint8):
        return
    raise UserError(
        f"--env {env} has observations {space}, but GLAM needs frames Box(0, 255, {shape}, uint8), such as those of "
        "Pixel/BlinkingCatch-v0 or ALE/Pong-v5"
    )


@dataclass(frozen=True)
class GlamAgent(EvaluatedAgent[GlamConfig]):
    """An agent that samples actions from the policy, as in training, or takes the most probable ones."""

    modes = ("sampled", "greedy")
    model: GlamModel
    actor_critic: ActorCritic
    config: GlamConfig
    step: int
    backend: Choice | None = None
    """Backend of Mamba's scan (None: the model has no Mamba)."""

    @classmethod
    def load(cls, run: Path, device: torch.device) -> Self:
        """Load model and actor-critic of a run's latest checkpoint, in evaluation mode."""
        checkpoint, config = read_run(run, GlamConfig)
        model, actor_critic = build_glam(config, checkpoint.trainer["actions"], 0, device)
        backend = backends.resolve_backend([model], "auto", device)
        checkpoint.fill(model, "model")
        checkpoint.fill(actor_critic, "agent")
        return cls(model.eval(), actor_critic.eval(), config, checkpoint.step, backend)

    def policy(
        self, num_envs: int, random: torch.Generator, reset_memory: bool = False, mode: str = "sampled"
    ) -> DrawnPolicy:
        """Make a policy for N environments."""
        return DrawnPolicy(self.player(num_envs), random, mode == "greedy", reset_memory)

    def player(self, num_envs: int) -> Player:
        """Make a player for N environments; its memory is of the kind that imagination uses."""
        config = self.config.model
        memory = make_memory(self.model, config.imagination_memory, config.acting_context)
        before = self.config.collection.act_before_observing
        return Player(self.model, self.actor_critic.policy, memory, num_envs, before)

    def check(self, environments: EvalEnvironments) -> None:
        """Raise UserError if the environments have other frames or another number of actions than the agent."""
        with closing(environments.vector(1, 0)) as vector:
            check_frames(vector, environments.env, self.config.model.screen)
            if vector.num_actions != self.model.num_actions:
                raise UserError(
                    f"--env {environments.env} has {vector.num_actions} actions, but the agent was trained with "
                    f"{self.model.num_actions}"
                )

    def description(self) -> tuple[str, dict[str, Any]]:
        """Describe the sequence module, and the backend of Mamba's scan."""
        sequence = self.config.model.sequence
        return sequence, {"sequence": sequence, **backends.facts(self.backend)}

    def with_options(self, options: EvaluationOptions) -> tuple[Self, tuple[str, ...]]:
        """Apply `--policy`."""
        return self, evaluation_modes(options.policy or "both")


def evaluation_modes(policy: str) -> tuple[str, ...]:
    """List the modes of `--policy`."""
    return GlamAgent.modes if policy == "both" else (policy,)
