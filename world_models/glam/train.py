"""Train GLAM: `python -m world_models.glam.train --config glam/catch`.

The algorithm is `Training.iterate`: act in N worlds, store, learn the world model, dream, learn the agent. Everything
around it is bookkeeping of one run folder, which `--resume RUN` continues.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dqn_memory.learner import restore_optimizer, set_rate
from dqn_memory.runs import backend
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import Checkpoint, Run, Streams, generator
from dqn_memory.runs.score import Score
from dqn_memory.runs.seeding import dropout_state, episodes_seed, restore_dropout
from dqn_memory.runs.settings import to_toml
from dqn_memory.runs.trainer import resume, resumes, run_training
from envs.fleet import make_fleet
from envs.seeding import restore_generator
from world_models.glam import starting
from world_models.glam.acting import ActingNoise
from world_models.glam.engine import Lesson, Seeds, make_execution, make_optimizers
from world_models.glam.evaluation import Arena, PolicyScore, evaluate, make_player
from world_models.glam.imagination import Imagined, Noise, uniforms
from world_models.glam.loading import KIND, build, check_frames
from world_models.glam.meter import ModelMeter
from world_models.glam.replay import Replay
from world_models.glam.train_config import TrainConfig


class Training:
    """All state of a run: worlds, model, agent, optimisers, replay, the player's memory, streams, counters."""

    kind: ClassVar[str] = KIND
    shown: ClassVar[Mapping[str, str]] = {
        "return": "charts/episodic_return", "model": "losses/total", "entropy": "agent/entropy",
    }  # fmt: skip

    def __init__(self, config: TrainConfig) -> None:
        config.check()
        self.config, self.device = config, config.compute.start()
        streams, rows = Streams.spawn(config.seed), config.environment.num_envs
        self.fleet = make_fleet(
            config.environment.env, rows, streams.worlds, self.device,
            observation_key=config.environment.observation_key, env_kwargs=config.env_kwargs(),
        )  # fmt: skip
        check_frames(self.fleet, config)
        self.model, self.agent = build(config, self.fleet.num_actions, streams.network, self.device)
        self.backend = backend.settle([self.model], config.compute.backend, self.device)
        engine, begin = config.compute.engine, config.imagination.begin
        self.optimizers = make_optimizers(engine, self.model, self.agent, config.learner)
        self.execution = make_execution(engine, self.model, self.agent, self.optimizers, config.learner, begin)
        self.dream_frames = config.imagination.frames(config.model.context)
        self.longest = max(config.model.batch_length, self.dream_frames)
        self.replay = Replay(config.replay, config.model.screen, rows, self.device, self.longest)
        self.acting = generator(streams.exploration, self.device)
        self.drawing = generator(streams.replay)
        self.dreaming = generator(streams.dreams, self.device)  # latents of both updates, and what is imagined
        self.evaluation_seed = streams.evaluation
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does
        self.iterations = self.updates = 0
        self.solved = False
        self.meter = ModelMeter(self.device)
        self._begin()

    def _begin(self) -> None:
        rows = self.config.environment.num_envs
        self.observation = self.fleet.reset()  # (N, 3, S, S)
        self.first = torch.ones(rows, dtype=torch.bool, device=self.device)  # opens an episode
        self.player = make_player(self.model, self.agent, rows, self.config.collection.blind)

    @property
    def steps(self) -> int:
        """Environment steps taken."""
        return self.iterations * self.config.environment.num_envs

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
        self.meter.count_episodes(step)

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
        batch = self.replay.windows(self.replay.draw(config.learner.batch, length, self.drawing), length)
        noise = self._latent_noise(config.learner.batch, length)
        set_rate(self.optimizers.model, config.learner, self.steps / config.total_steps)
        metrics = self.execution.learn_model(Lesson(**vars(batch), noise=noise))
        self.updates += 1
        self.meter.count_update(metrics, self.steps)

    def _learn_agent(self) -> None:
        set_rate(self.optimizers.agent, self.config.agent, self.steps / self.config.total_steps)
        metrics = self.execution.learn_agent(self.dream())
        self.meter.agent.count_update(metrics, self.steps)

    def dream(self) -> Imagined:
        """Trajectories from windows of the replay, as far ahead as the schedule says."""
        config, rows, length = self.config, self.config.imagination.rows, self.dream_frames
        seen = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        encoding, horizon = self._latent_noise(rows, length), config.horizon.at(self.steps)
        noise = Noise.draw(self.model, rows, horizon, self.fleet.num_actions, self.dreaming)
        return self.execution.dream(Seeds(seen.frames, seen.action, seen.first, encoding, noise.latent, noise.action))

    def _latent_noise(self, rows: int, length: int) -> Tensor:
        model = self.config.model
        return uniforms((rows, length, model.categoricals, model.classes), self.dreaming)

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared."""
        counts = {"charts/updates": float(self.updates), "charts/horizon": float(self.config.horizon.at(self.steps))}
        return self.meter.scalars() | counts

    def evaluate(self, final: bool = False, forget: bool = False) -> PolicyScore:
        """Episodes with the evaluation stream's own seed for this step, more of them at the end of a run."""
        told, arena = self.config.evaluation, replace(Arena.of(self.config, self.device), forget=forget)
        quota = told.final_quota if final else told.quota
        seed = episodes_seed(self.evaluation_seed, self.steps, final and self.solved)
        return evaluate(self.model, self.agent, arena, self.config, told.evaluation_rows, quota, seed)

    def judge(self, score: Score) -> None:
        """Note whether an evaluation reached `--stop-at-return`."""
        goal = self.config.evaluation.stop_at_return
        self.solved = goal is not None and float(score.returns.mean()) >= goal

    def weights(self) -> dict[str, Tensor]:
        """Model and agent, buffers included, by name."""
        networks = {"model": self.model, "agent": self.agent}.items()
        return {f"{part}.{name}": value for part, net in networks for name, value in net.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything else that the future of the run depends on, but the replay."""
        return {
            "optimizers": [each.state_dict() for each in self.optimizers],
            "fleet": self.fleet.state_dict(), "actions": self.fleet.num_actions,
            "player": self.player.state_dict(), "meter": self.meter.state_dict(),
            "acting": self.acting.get_state(), "drawing": self.drawing.get_state(),
            "dreaming": self.dreaming.get_state(), **dropout_state(self.device),
            "observation": self.observation, "first": self.first,
            "solved": self.solved, "iterations": self.iterations, "updates": self.updates,
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made; a UserError where its networks are of another form."""
        checkpoint.fill(self.model, "model")
        checkpoint.fill(self.agent, "agent")
        state = checkpoint.trainer
        for name in ("fleet", "player", "meter"):
            getattr(self, name).load_state_dict(state[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            restore_optimizer(optimizer, saved)
        for name in ("acting", "drawing", "dreaming"):
            restore_generator(getattr(self, name), state[name])
        restore_dropout(state, self.device)
        for name in ("observation", "first"):
            setattr(self, name, state[name].to(self.device))
        for name in ("solved", "iterations", "updates"):
            setattr(self, name, state[name])
        if checkpoint.replay is None:
            self._begin()  # an episode whose beginning is lost cannot be a window, so all start anew
        else:
            self.replay.restore(checkpoint.replay.start, checkpoint.replay.data)


def start(argv: Sequence[str]) -> tuple[Training, Run]:
    """A fresh run from flags and presets, or a stopped one at its last checkpoint."""
    if resumes(argv):
        config, run = starting.stopped(argv)
        training = resume(Training, config, run)
        backend.announce(training.backend, training.device, run.environment.get(backend.FACT))
        return training, run
    config, folder = starting.fresh(argv)
    training = Training(config)
    backend.announce(training.backend, training.device)
    facts = backend.facts(training.backend)
    return training, Run.create(folder, to_toml(config), training.device, facts=facts)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Start or resume a run and train it to its end."""
    training, run = start(sys.argv[1:] if argv is None else argv)
    with run:
        score = run_training(training, run)
    print(
        f"{run.path}: return {score.returns.mean():.2f}, {score.word} {score.success.mean():.3f}, "
        f"length {score.lengths.mean():.1f} on {score.episodes} episodes"
    )


if __name__ == "__main__":
    main()
