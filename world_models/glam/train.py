"""Train GLAM: `python -m world_models.glam.train --config glam/catch`.

The algorithm is `GlamTrainer.iterate`: act in N environments, store, learn the world model, dream, learn the agent.
What every training script shares (state, resume, logging) is in `dqn_memory.runs.trainer`. `--resume RUN` continues
a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dqn_memory.learner import set_rate
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.score import Evaluation, EvaluationOptions, Score
from dqn_memory.runs.seeding import generator
from dqn_memory.runs.trainer import Trainer
from world_models.glam.acting import ActingNoise
from world_models.glam.config import TrainConfig
from world_models.glam.engine import Lesson, Seeds, make_execution, make_optimizers
from world_models.glam.evaluation import Arena, PolicyScore, evaluate, evaluate_run, make_player
from world_models.glam.imagination import Imagined, Noise, uniforms
from world_models.glam.loading import build, check_frames
from world_models.glam.meter import ModelStats
from world_models.glam.replay import Replay


class GlamTrainer(Trainer[TrainConfig]):
    """GLAM: environments, model, agent, optimisers, replay, the player's memory, streams, counters."""

    kind = "glam"
    config_class = TrainConfig
    shown: ClassVar[Mapping[str, str]] = {
        "return": "charts/episodic_return", "model": "losses/total", "entropy": "agent/entropy",
    }  # fmt: skip
    evaluation_flags = ("num_eval_envs", "episodes_per_env", "policy")
    stateful = ("player",)
    generators = ("acting", "drawing", "dreaming")
    tensors = ("observation", "first")
    stats: ModelStats

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.stats = ModelStats(self.device)
        streams, rows = self.streams, config.environment.num_envs
        check_frames(self.fleet, config)
        self.model, self.agent = build(config, self.fleet.num_actions, streams.network, self.device)
        self.backend = resolve_backend([self.model], config.compute.backend, self.device)
        engine, begin = config.compute.engine, config.imagination.start_from
        self.optimizers = make_optimizers(engine, self.model, self.agent, config.learner)
        self.execution = make_execution(engine, self.model, self.agent, self.optimizers, config.learner, begin)
        self.dream_frames = config.imagination.frames(config.model.context)
        self.longest = max(config.model.batch_length, self.dream_frames)
        self.replay = Replay(config.replay, config.model.screen, rows, self.device, self.longest)
        self.acting = generator(streams.exploration, self.device)
        self.drawing = generator(streams.replay)
        self.dreaming = generator(streams.dreams, self.device)  # latents of both updates, and what is imagined
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does
        self.begin()

    def begin(self) -> None:
        """Start episodes in all environments, with nothing remembered."""
        rows = self.config.environment.num_envs
        self.observation = self.fleet.reset()  # (N, 3, S, S)
        self.first = torch.ones(rows, dtype=torch.bool, device=self.device)  # opens an episode
        self.player = make_player(self.model, self.agent, rows, self.config.collection.act_before_observing)

    def iterate(self) -> None:
        """One step in every world, then this iteration's updates."""
        collection, rows = self.config.collection, self.config.environment.num_envs
        # act
        action = self._act()  # (N,)
        step = self.fleet.step(action)

        # store
        reward, terminated = collection.training_signal(step)
        self.replay.add(
            frames=self.observation, action=action, reward=reward, terminated=terminated, first=self.first
        )  # fmt: skip
        self.observation, self.first = step.observation, step.done
        self.iterations += 1
        self.stats.count_episodes(step)

        # learn
        if self.replay.drawable(self.config.model.batch_length):
            for _ in range(collection.model_updates(self.iterations, rows)):
                self._learn_model()
        if self.replay.drawable(self.longest):
            for _ in range(collection.agent_updates(self.iterations, rows)):
                self._learn_agent()

    def _act(self) -> Tensor:
        rows, actions = self.config.environment.num_envs, self.fleet.num_actions
        if self.steps < self.config.collection.learning_starts:
            return torch.randint(actions, (rows,), generator=self.acting, device=self.device)
        noise = ActingNoise.draw(self.model, rows, actions, self.acting)
        return self.player.act(self.observation, self.first, noise)

    def _learn_model(self) -> None:
        config, length = self.config, self.config.model.batch_length
        batch = self.replay.windows(self.replay.draw(config.learner.batch_size, length, self.drawing), length)
        noise = self._latent_noise(config.learner.batch_size, length)
        set_rate(self.optimizers.model, config.learner, self.steps / config.total_steps)
        metrics = self.execution.learn_model(Lesson(**vars(batch), noise=noise))
        self.updates += 1
        self.stats.count_update(metrics, self.steps)

    def _learn_agent(self) -> None:
        set_rate(self.optimizers.agent, self.config.agent, self.steps / self.config.total_steps)
        metrics = self.execution.learn_agent(self.dream())
        self.stats.agent.count_update(metrics, self.steps)

    def dream(self) -> Imagined:
        """Trajectories from windows of the replay, as far ahead as the schedule says."""
        config, rows, length = self.config, self.config.imagination.num_rollouts, self.dream_frames
        seen = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        encoding, horizon = self._latent_noise(rows, length), config.horizon.at(self.steps)
        noise = Noise.draw(self.model, rows, horizon, self.fleet.num_actions, self.dreaming)
        return self.execution.dream(Seeds(seen.frames, seen.action, seen.first, encoding, noise.latent, noise.action))

    def _latent_noise(self, rows: int, length: int) -> Tensor:
        model = self.config.model
        return uniforms((rows, length, model.categoricals, model.classes), self.dreaming)

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared."""
        return super().scalars() | {"charts/horizon": float(self.config.horizon.at(self.steps))}

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> PolicyScore:
        """Episodes with the evaluation stream's own seed for this step, more of them at the end of a run."""
        told, arena = self.config.evaluation, replace(Arena.of(self.config, self.device), forget=reset_memory)
        quota = told.final_episodes_per_env if final else told.episodes_per_env
        seed = self.evaluation_seed(final)
        return evaluate(self.model, self.agent, arena, self.config, told.num_eval_envs, quota, seed)

    def reached_goal(self, score: Score) -> bool:
        """Whether the mean return is as high as `--stop-at-return` asks."""
        goal = self.config.evaluation.stop_at_return
        return goal is not None and float(score.returns.mean()) >= goal

    def networks(self) -> dict[str, nn.Module]:
        """The world model, and actor and critic."""
        return {"model": self.model, "agent": self.agent}

    def state_dict(self) -> dict[str, Any]:
        """As `Trainer`, and the number of actions, which a loaded agent is built for."""
        return super().state_dict() | {"actions": self.fleet.num_actions}

    def summary(self, score: Score) -> str:
        """What the script prints of the last evaluation."""
        return (
            f"return {score.returns.mean():.2f}, {score.word} {score.success.mean():.3f}, "
            f"length {score.lengths.mean():.1f} on {score.episodes} episodes"
        )

    @classmethod
    def variant(cls, config: TrainConfig) -> str:
        """The name of the run's folder between environment and seed."""
        return f"glam-{config.model.sequence}"

    @classmethod
    def evaluate_run(cls, run: Path, options: EvaluationOptions) -> Evaluation:
        """How well the agent of a run's latest checkpoint does."""
        return evaluate_run(run, options)


def main(argv: Sequence[str] | None = None) -> None:
    """Start or resume a run and train it to its end."""
    GlamTrainer.main(argv)


if __name__ == "__main__":
    main()
