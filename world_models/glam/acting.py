"""From frames to actions: the acting agent, of a training run or read back from a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels.select import Choice
from dqn_memory.evaluation import EvaluationOptions, Score
from dqn_memory.runs import backend as backends
from dqn_memory.runs.checkpoint import check_actions
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.seeding import seeded
from envs.vector import VectorEnvironment
from world_models.evaluation import EvalEnvironments, EvaluatedAgent
from world_models.glam.agent import ActorCritic
from world_models.glam.config import GlamConfig
from world_models.glam.encoder import uniforms
from world_models.glam.imagination import Memory, Policy, make_memory, sample_action
from world_models.glam.model import GlamModel
from world_models.settings import place


class Player:
    """A policy that acts in N environments. It sees [z_t, h_{t-1}]; h_{t-1} is 0 in an episode's first step.

    z_t is a sample of the posterior of the newest frame. If it acts before observing, as in the released code, z_t is
    a sample of the prior: the frame is taken in only after the action has been chosen. Where nothing has been seen
    yet, that action is uniformly random. A model that does not reset at episode starts remembers earlier episodes.
    """

    def __init__(
        self, model: GlamModel, policy: Policy, memory: Memory, rows: int, act_before_observing: bool = False
    ) -> None:
        self.model, self.policy, self.memory, self.rows = model, policy, memory, rows
        self.act_before_observing = act_before_observing
        self.reset()

    def reset(self) -> None:
        """Forget everything in all environments, also with a model that does not reset at episode starts."""
        like = next(self.model.parameters())
        self.h = like.new_zeros(self.rows, self.model.config.width)  # (N, D)
        self.new = torch.ones(self.rows, dtype=torch.bool, device=like.device)  # (N,), has seen nothing at all
        self.state = self.memory.start(self.rows)
        self.logits = like.new_zeros(self.rows, self.model.actions)  # (N, A), of the newest actions

    @torch.no_grad()
    def act(self, frame: Tensor, first: Tensor, generator: torch.Generator, greedy: bool = False) -> Tensor:
        """Choose actions (N,) for frames (N, 3, S, S) uint8; `first` (N,) marks the first frames of episodes.

        Draws a latent of the frame, a guess of it and an action. `greedy` takes the most probable action in place of a
        drawn one. Sets the model's evaluation mode.
        """
        self.model.eval()
        latent, guess = (self.model.noise((self.rows,), generator) for _ in range(2))  # (N, G, C)
        choice = uniforms((self.rows, self.model.actions), generator)
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
        """Return what an exact continuation needs: tensors, and those of the memory's state by its fields."""
        return {"h": self.h, "new": self.new, "memory": vars(self.state).copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_actions(state["memory"], self.model.actions - 1)
        saved = mapped(lambda x: x.to(self.h.device), dict(state))
        self.h, self.new, self.state = saved["h"], saved["new"], type(self.state)(**saved["memory"])


def make_player(model: GlamModel, agent: ActorCritic, rows: int, act_before_observing: bool) -> Player:
    """Let an agent act in N environments, with the kind of memory that its model imagines with."""
    memory = make_memory(model, model.config.imagination_memory, model.config.acting_context)
    return Player(model, agent.policy, memory, rows, act_before_observing)


class DrawnPolicy:
    """Draw the actions of N episodes from the policy, as in training, or take the most probable ones.

    With `forgets` nothing is remembered from one step to the next.
    """

    def __init__(self, player: Player, random: torch.Generator, greedy: bool = False, forgets: bool = False) -> None:
        self.player, self.random, self.greedy, self.forgets = player, random, greedy, forgets

    def act(self, observation: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Choose actions (N,) for frames (N, 3, S, S) uint8, and give the probabilities of all (N, A)."""
        if self.forgets:
            self.player.reset()
        action = self.player.act(observation, reset, self.random, self.greedy)
        return action, self.player.logits.softmax(-1)


# ---- evaluation ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PolicyScore(Score):
    """The score of a run's policy, and that of the most probable actions where both were played."""

    greedy: Score | None = None

    def scalars(self, kind: str = "eval") -> dict[str, float]:
        """Give the metrics of the score; those of the greedy policy are called eval/greedy_..."""
        greedy = {} if self.greedy is None else self.greedy.scalars(kind)
        return super().scalars(kind) | {name.replace("/", "/greedy_"): value for name, value in greedy.items()}


# ---- networks, new and from a checkpoint -----------------------------------------------------------------------------
def build_glam(config: GlamConfig, actions: int, seed: int, device: torch.device) -> tuple[GlamModel, ActorCritic]:
    """Make a model and an agent for A actions, initialised from `seed`."""
    with seeded(seed):
        model = GlamModel(config.model, actions)
        agent = ActorCritic(config.agent, config.model.latent + config.model.width, actions)
    return place(model, device), agent.to(device)


def check_frames(vector: VectorEnvironment, env: str, screen: int) -> None:
    """Refuse an environment that does not show square frames of three colours, as large as the model's screen."""
    space, shape = vector.observation_space, (3, screen, screen)
    if isinstance(space, gymnasium.spaces.Box) and space == gymnasium.spaces.Box(0, 255, shape, np.uint8):
        return
    raise UserError(
        f"--env {env} shows {space}, but GLAM needs frames Box(0, 255, {shape}, uint8), as of "
        "Pixel/BlinkingCatch-v0 or ALE/Pong-v5"
    )


@dataclass(frozen=True)
class GlamAgent(EvaluatedAgent[GlamConfig]):
    """Draw actions from the policy, as in training, or take the most probable ones."""

    modes = ("sampled", "greedy")
    model: GlamModel
    actor_critic: ActorCritic
    config: GlamConfig
    step: int
    backend: Choice | None = None
    """The backend of its Mamba, where it has one."""

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
        self, num_envs: int, random: torch.Generator, forgets: bool = False, mode: str = "sampled"
    ) -> DrawnPolicy:
        """Make the policy of N episodes."""
        return DrawnPolicy(self.player(num_envs), random, mode == "greedy", forgets)

    def player(self, num_envs: int) -> Player:
        """Let the agent act in N environments."""
        return make_player(self.model, self.actor_critic, num_envs, self.config.collection.act_before_observing)

    def check(self, environments: EvalEnvironments) -> None:
        """Raise UserError for environments with other frames, or with another number of actions."""
        vector = environments.vector(1, 0)
        check_frames(vector, environments.env, self.config.model.screen)
        if vector.num_actions != self.model.actions:
            raise UserError(
                f"--env {environments.env} has {vector.num_actions} actions, but the agent was trained with "
                f"{self.model.actions}"
            )

    def description(self) -> tuple[str, dict[str, Any]]:
        """Name the sequence module, and the backend of its Mamba."""
        sequence = self.config.model.sequence
        return sequence, {"sequence": sequence, **backends.facts(self.backend)}

    def chosen(self, options: EvaluationOptions) -> tuple[Self, tuple[str, ...]]:
        """Apply `--policy`."""
        return self, evaluation_modes(options.policy or "both")


def evaluation_modes(policy: str) -> tuple[str, ...]:
    """List the modes that `--policy` names."""
    return GlamAgent.modes if policy == "both" else (policy,)
