"""Train a memory agent: `python -m dqn_memory.train --env Gridverse/Memory-5x5-v0 --architecture dgfqn`.

The algorithm is `QTrainer.iterate`: act in N environments, store, learn, copy the target. What every training script
shares (state, resume, logging) is in `dqn_memory.runs.trainer`. `--resume RUN` continues a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from dqn_memory.acting import Explorer, evaluate, make_actor
from dqn_memory.agent import evaluate_run
from dqn_memory.analysis.size import match
from dqn_memory.config import TrainConfig
from dqn_memory.learner import average_parameters, copy_parameters, make_update, optimizer_for, sample, set_rate
from dqn_memory.network import QNetwork, observation_spec
from dqn_memory.replay import Replay
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.score import Evaluation, EvaluationOptions, Score
from dqn_memory.runs.seeding import generator
from dqn_memory.runs.trainer import Trainer
from envs.baselines import baseline_summary
from envs.fleet import make_fleet


class QTrainer(Trainer[TrainConfig]):
    """Deep Q-learning with memory: environments, networks, optimiser, replay, streams, counters."""

    kind = "q_network"
    config_class = TrainConfig
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "loss": "losses/td_loss"}
    evaluation_flags = ("episodes", "video", "video_episodes", "overwrite")
    stateful = ("actor", "explorer")
    generators = ("exploration", "drawing")
    tensors = ("observation", "previous_action", "time")

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        streams = self.streams
        self.spec, self.num_actions = observation_spec(self.fleet.observation_space), self.fleet.num_actions
        self.network = self._build(streams.network)
        self.target = self._build(streams.network)
        self.target.requires_grad_(False).eval()  # values without dropout
        self.greedy = self.network  # what evaluations play and a checkpoint offers as the agent
        if config.learner.ema_decay > 0:
            self.greedy = self._build(streams.network).requires_grad_(False)
        self.backend = resolve_backend(self.networks().values(), config.compute.backend, self.device)
        config.learner.check(self.network)
        self.ends = config.learner.contexts_per_window(self.network)
        cuda = self.device.type == "cuda"
        self.optimizer = optimizer_for(self.network, config.learner, capturable=cuda)
        self.optimizers = [self.optimizer]
        self.update = make_update(config.compute.engine, self.network, self.target, self.optimizer, config.learner)
        rows = config.environment.num_envs
        self.replay = Replay(self.spec, self.num_actions, rows, config.replay.capacity, self.device)
        self.actor = make_actor(self.network, rows, self.device, config.acting, config.acting_state)
        self.exploration = generator(streams.exploration, self.device)
        self.explorer = Explorer(config.exploration, rows, self.num_actions, self.exploration)
        self.drawing = generator(streams.replay, torch.device("cpu"))
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does
        self.begin()

    def _build(self, seed: int) -> QNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.config.network.build(self.spec, self.num_actions).to(self.device)

    def begin(self) -> None:
        """Start episodes in all environments, with nothing remembered."""
        rows = self.config.environment.num_envs
        self.observation = self.fleet.reset()  # (N, ...)
        self.previous_action = torch.full((rows,), self.num_actions, device=self.device)
        self.time = torch.zeros(rows, dtype=torch.int64, device=self.device)  # index in the episode
        self.actor.observe(self.observation, self.previous_action, self.time == 0)

    def iterate(self) -> None:
        """One step in every world, then this iteration's updates."""
        # act
        random_only = self.explorer.epsilon(self.steps) == 1.0
        greedy = torch.zeros_like(self.previous_action) if random_only else self.actor.q_values().argmax(1)
        action = self.explorer.choose(greedy, self.steps, self.time == 0)  # (N,)
        step = self.fleet.step(action)
        done = step.done

        # store
        self.replay.add(
            observation=self.observation, next_observation=step.final_observation, action=action,
            previous_action=self.previous_action, reward=step.reward, terminated=step.terminated,
            done=done, time=self.time,
        )  # fmt: skip
        self.observation = step.observation
        self.previous_action = torch.where(done, self.num_actions, action)
        self.time = torch.where(done, 0, self.time + 1)
        self.actor.observe(self.observation, self.previous_action, done)
        self.iterations += 1
        self.stats.count_episodes(step)

        # learn
        config = self.config
        held = self.replay.written * config.environment.num_envs
        ready = held >= config.replay.learning_starts and self.steps >= config.exploration.prepopulate
        if ready and self.iterations % config.replay.update_every == 0:
            for _ in range(config.replay.updates_per_iteration):
                self._learn()

    def _learn(self) -> None:
        config = self.config
        context = config.network.context
        batch = sample(self.replay, config.learner, context, self.ends, self.drawing, updates=self.updates)
        set_rate(self.optimizer, config.learner, self.steps / config.total_steps)
        metrics = self.update(batch)
        self.updates += 1
        if self.updates % config.learner.target_update_every == 0:
            copy_parameters(self.network, self.target)
        if self.greedy is not self.network:
            average_parameters(self.network, self.greedy, config.learner.ema_decay, self.updates)
        self.stats.count_update(metrics, self.steps)

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared."""
        epsilon = {"charts/epsilon": self.explorer.epsilon(self.steps)}
        return super().scalars() | epsilon | self.network.memory_scalars()

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> Score:
        """Greedy episodes with the evaluation stream's own seed for this step."""
        config = self.config.evaluation
        episodes = config.final_episodes if final else config.episodes
        setup = replace(self.config.eval_setup(self.device), reset_memory=reset_memory)
        return evaluate(self.greedy, setup, episodes, self.evaluation_seed(final))

    def reached_goal(self, score: Score) -> bool:
        """Whether the success rate is as high as `--stop-at-success` asks."""
        goal = self.config.evaluation.stop_at_success
        return goal is not None and float(score.success.mean()) >= goal

    def networks(self) -> dict[str, QNetwork]:
        """The online, the target and, where the run averages its weights, the averaged network."""
        named = {"network": self.network, "target": self.target}
        return named if self.greedy is self.network else named | {"average": self.greedy}

    def summary(self, score: Score) -> str:
        """What the script prints of the last evaluation."""
        low, high = score.interval()
        kind = "all initial states" if score.exhaustive else f"{score.episodes} episodes"
        world = self.config.environment
        known = baseline_summary(float(score.success.mean()), world.env, world.kwargs(training=False))
        return (
            f"{score.word} {score.success.mean():.3f} [{low:.3f}, {high:.3f}] on {kind}{known}, "
            f"return {score.returns.mean():.2f}, length {score.lengths.mean():.1f}"
        )

    @classmethod
    def variant(cls, config: TrainConfig) -> str:
        """The name of the run's folder between environment and seed."""
        return config.network.architecture

    @classmethod
    def resolve(cls, config: TrainConfig) -> TrainConfig:
        """The config with the file of its world named from the root, and `--match` turned into widths."""
        world = config.environment
        if world.path is not None and Path(world.path).is_file():  # else the name of a file that the world knows
            config = replace(config, environment=replace(world, path=str(Path(world.path).resolve())))
        if config.match is None:
            return config
        fleet = make_fleet(
            world.env, 1, 0, torch.device("cpu"), observation_key=world.observation_key, env_kwargs=config.env_kwargs()
        )
        spec = observation_spec(fleet.observation_space)
        return replace(config, network=match(config.match, config.network, spec, fleet.num_actions))

    @classmethod
    def evaluate_run(cls, run: Path, options: EvaluationOptions) -> Evaluation:
        """How well the agent of a run's latest checkpoint does."""
        return evaluate_run(run, options)


def main(argv: Sequence[str] | None = None) -> None:
    """Start or resume a run and train it to its end."""
    QTrainer.main(argv)


if __name__ == "__main__":
    main()
