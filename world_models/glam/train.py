"""Train GLAM: `python -m world_models.glam.train --config glam/catch`.

The algorithm is `GlamTrainer.iterate`: act in N environments, store, update the world model, imagine, update the agent.
What all training scripts share (state, logging, resume) is in `dqn_memory.runs.trainer`; `--resume RUN` continues one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.optimizers import set_learning_rate
from dqn_memory.runs.seeding import generator, seed_dropout
from world_models.evaluation import WorldModelTrainer
from world_models.glam import agent as actor_critic
from world_models.glam import learner
from world_models.glam.acting import GlamAgent, PolicyScore, build_glam, check_frames, chosen_ways, make_player
from world_models.glam.agent import ActorCritic
from world_models.glam.config import Engine, GlamConfig, GlamLearnerConfig
from world_models.glam.imagination import Noise, Rollouts, StartFrom, encode_context, imagine
from world_models.glam.learner import Metrics, adam
from world_models.glam.model import GlamModel
from world_models.glam.replay import FrameBatch, FrameReplay
from world_models.settings import training_signal


class Execution(NamedTuple):
    """The three things that a training run does between two steps of its environments."""

    learn_model: Callable[[FrameBatch, Tensor], Metrics]  # with uniforms (B, T, G, C)
    imagine: Callable[
        [FrameBatch, Tensor, Noise], Rollouts
    ]  # from windows of the replay, with uniforms for their latents
    learn_agent: Callable[[Rollouts], Metrics]


def make_execution(
    engine: Engine,
    model: GlamModel,
    agent: ActorCritic,
    adams: Sequence[Optimizer],
    config: GlamLearnerConfig,
    start: StartFrom,
) -> Execution:
    """Prepare updates and imagination for an engine; `cudagraph` needs CUDA and capturable optimisers.

    Eager execution is the tested reference; captured graphs compute the same, as all that is random comes in as
    tensors. Of imagination and the agent's updates only the graphs of the newest horizon are kept: each holds memory of
    its own, and a schedule never comes back to a horizon.
    """

    def imagine_rollouts(seen: FrameBatch, encoding: Tensor, noise: Noise) -> Rollouts:
        with config.autocast(encoding.device):
            context = encode_context(model, seen.frames, seen.action, seen.first, encoding, start)
            return imagine(model, agent.policy, context, noise, model.config.imagination_memory)

    learn_model = partial(learner.update, model, adams[0], config)
    learn_agent = partial(actor_critic.update, agent, adams[1])
    if engine == "eager":
        return Execution(learn_model, imagine_rollouts, learn_agent)
    return Execution(
        Captured(learn_model, (model,), adams[:1]),
        Captured(imagine_rollouts, kept=1),
        Captured(learn_agent, (agent,), adams[1:], kept=1),
    )


class ModelStats(RunStats):
    """Statistics of the world model's updates and of episodes; `agent` has those of actor and critic."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, "losses/total", rate="--learner-learning-rate")
        self.agent = RunStats(device, "losses/agent", "grad/agent_norm", "--agent-learning-rate")

    def scalars(self) -> dict[str, float]:
        return super().scalars() | self.agent.scalars()

    def check_finite(self) -> None:
        super().check_finite()
        self.agent.check_finite()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"agent": self.agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.agent.load_state_dict(state["agent"])


class GlamTrainer(WorldModelTrainer[GlamConfig]):
    """One run of GLAM: environments, world model, agent, optimisers, replay and the acting agent's memory."""

    kind = "glam"
    config_class = GlamConfig
    agent_class = GlamAgent
    shown: ClassVar[Mapping[str, str]] = {
        "return": "charts/episodic_return", "model": "losses/total", "entropy": "agent/entropy",
    }  # fmt: skip
    evaluation_flags = ("num_eval_envs", "episodes_per_env", "policy")
    state_names = ("player", "acting", "drawing", "dreaming", "observation", "first")
    stats: ModelStats

    def __init__(self, config: GlamConfig) -> None:
        super().__init__(config)
        self.stats = ModelStats(self.device)
        streams, num_envs = self.streams, config.environment.num_envs
        check_frames(self.fleet, config.environment.env, config.model.screen)
        self.model, self.agent = build_glam(config, self.fleet.num_actions, streams.network, self.device)
        self.backend = resolve_backend([self.model], config.compute.backend, self.device)
        engine, start = config.compute.engine, config.imagination.start_from
        capturable = engine == "cudagraph"
        self.optimizers = [adam(self.model, config.learner, capturable), adam(self.agent, config.agent, capturable)]
        self.execution = make_execution(engine, self.model, self.agent, self.optimizers, config.learner, start)
        self.context_length = config.imagination.frames(config.model.context)
        self.longest = max(config.model.batch_length, self.context_length)  # window drawn from the replay
        self.replay = FrameReplay(config.replay, config.model.screen, num_envs, self.device, self.longest)
        self.acting = generator(streams.exploration, self.device)
        self.drawing = generator(streams.replay)
        self.dreaming = generator(streams.imagination, self.device)  # latents of both updates, and imagination
        seed_dropout(streams.dropout)
        self.begin()

    def begin(self) -> None:
        num_envs = self.fleet.num_envs
        self.observation = self.fleet.reset()  # (N, 3, S, S)
        self.first = torch.ones(num_envs, dtype=torch.bool, device=self.device)  # (N,), first frame of an episode
        self.player = make_player(self.model, self.agent, num_envs, self.config.collection.act_before_observing)

    def iterate(self) -> None:
        collection, num_envs = self.config.collection, self.fleet.num_envs
        # act
        if self.steps < collection.learning_starts:
            action = torch.randint(self.fleet.num_actions, (num_envs,), generator=self.acting, device=self.device)
        else:
            action = self.act()
        step = self.fleet.step(action)

        # store
        reward, terminated = training_signal(step, collection)
        self.replay.add(
            frames=self.observation, action=action, reward=reward, terminated=terminated, first=self.first
        )  # fmt: skip
        self.observation, self.first = step.observation, step.done
        self.iterations += 1
        self.stats.count_episodes(step)

        # learn
        if self.replay.drawable(self.config.model.batch_length):
            for _ in range(collection.updates("model", self.iterations, self.iterations, num_envs)):
                self.learn_model()
        if self.replay.drawable(self.longest):
            for _ in range(collection.updates("agent", self.iterations, self.iterations, num_envs)):
                self.learn_agent(self.imagine())

    def act(self) -> Tensor:
        """Choose actions (N,) by the policy."""
        return self.player.act(self.observation, self.first, self.acting)

    def learn_model(self) -> None:
        """Draw a batch and update the world model."""
        config, length = self.config.learner, self.config.model.batch_length
        batch = self.replay.windows(self.replay.draw(config.batch_size, length, self.drawing), length)
        noise = self.model.noise((config.batch_size, length), self.dreaming)
        set_learning_rate(self.optimizers[0], config.final_lr_fraction, self.steps / self.config.total_steps)
        metrics = self.execution.learn_model(batch, noise)
        self.updates += 1
        self.stats.count_update(metrics, self.steps)

    def imagine(self) -> Rollouts:
        """Imagine rollouts from windows of the replay, as far ahead as the schedule says."""
        rows, length = self.config.imagination.num_rollouts, self.context_length
        seen = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        encoding = self.model.noise((rows, length), self.dreaming)
        noise = Noise.draw(self.model, rows, self.config.horizon.at(self.steps), self.dreaming)
        return self.execution.imagine(seen, encoding, noise)

    def learn_agent(self, rollouts: Rollouts) -> None:
        """Update actor and critic by imagined rollouts."""
        fraction = self.config.agent.final_lr_fraction
        set_learning_rate(self.optimizers[1], fraction, self.steps / self.config.total_steps)
        self.stats.agent.count_update(self.execution.learn_agent(rollouts), self.steps)

    @property
    def preparing(self) -> dict[str, int]:
        """Name what comes before updates of both model and agent."""
        starts = self.config.collection.starts
        return {"prefill": starts("model"), "world model": starts("agent")}

    def scalars(self) -> dict[str, float]:
        return super().scalars() | {"charts/horizon": float(self.config.horizon.at(self.steps))}

    def evaluated_agent(self) -> GlamAgent:
        return GlamAgent(self.model, self.agent, self.config, self.steps, self.backend)

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> PolicyScore:
        """Play episodes in the ways that the config names."""
        ways = chosen_ways(self.config.evaluation.policy)
        first, *other = self.evaluation_scores(ways, final, reset_memory).values()
        return PolicyScore(**vars(first), greedy=other[0] if other else None)

    def networks(self) -> dict[str, nn.Module]:
        return {"model": self.model, "agent": self.agent}

    def state_dict(self) -> dict[str, Any]:
        """Return `Trainer`'s state and the number of actions, for which a loaded agent is built."""
        return super().state_dict() | {"actions": self.fleet.num_actions}

    @classmethod
    def variant(cls, config: GlamConfig) -> str:
        return f"glam-{config.model.sequence}"


main = GlamTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
