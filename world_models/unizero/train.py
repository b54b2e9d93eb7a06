"""Train UniZero: `python -m world_models.unizero.train --config unizero/memory-5x5 --prior gaussian`.

The algorithm is `UniZeroTrainer.iterate`: plan and act in N environments, store, learn. What every training script
shares (state, resume, logging) is in `dqn_memory.runs.trainer`. `--resume RUN` continues a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from dqn_memory.analysis.attention import Maps
from dqn_memory.network import observation_spec
from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.score import Evaluation, EvaluationOptions, Score
from dqn_memory.runs.seeding import generator
from dqn_memory.runs.trainer import Trainer
from world_models.settings import EvalSetup
from world_models.unizero.acting import Planner, evaluate, evaluate_run, search_again
from world_models.unizero.config import TrainConfig
from world_models.unizero.learner import make_learn, make_optimizer, make_target, move_target
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.phases import ACTING, BETWEEN, EVALUATION, LEARNING, SEARCH, Stopwatch
from world_models.unizero.replay import Replay, Sequences
from world_models.unizero.search import draw, make_functions, play


class UniZeroTrainer(Trainer[TrainConfig]):
    """UniZero: environments, model, target, optimiser, replay, search histories, streams, counters."""

    kind = "unizero"
    config_class = TrainConfig
    shown: ClassVar[Mapping[str, str]] = {"return": "charts/episodic_return", "loss": "losses/total"}
    evaluation_flags = ("num_eval_envs", "episodes_per_env", "simulations")
    stateful = ("planner",)
    generators = ("numbers", "drawing")
    tensors = ("observation", "time")

    @staticmethod
    def attention_report(run: Path, seed: int) -> Maps | None:
        """Read what a study's report shows of a run's attention."""
        from world_models.unizero.analysis import report_maps  # it plays and draws, which training does not need

        return report_maps(run, seed)

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.stats, self.stopwatch = RunStats(self.device, "losses/total"), Stopwatch(self.device)
        streams, rows = self.streams, config.environment.num_envs
        self.spec, self.num_actions = observation_spec(self.fleet.observation_space), self.fleet.num_actions
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.network)
            self.model = build(config.model, self.spec, self.num_actions).to(self.device)
        self.target = make_target(self.model)
        engine = config.compute.engine
        self.optimizer = make_optimizer(self.model, config.learner, capturable=engine == "cudagraph")
        self.optimizers = [self.optimizer]
        self.functions = make_functions(engine, self.model)
        self.learn = make_learn(engine, self.model, self.target, self.optimizer, config.learner)
        self.replay = Replay(
            config.replay, self.spec, self.num_actions, rows, self.device,
            horizon=config.model.horizon, lookahead=config.learner.n_step, history=config.model.pairs,
        )  # fmt: skip
        self.numbers = generator(streams.exploration, self.device)  # Dirichlet noise, ties and actions of the searches
        self.drawing = generator(streams.replay)  # sequences, and the numbers of reanalysis
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does
        self.begin()

    def begin(self) -> None:
        """Start episodes in all environments, with empty search histories."""
        config, num_envs = self.config, self.fleet.num_envs
        self.observation = self.fleet.reset()  # (N, ...)
        self.time = torch.zeros(num_envs, dtype=torch.int64, device=self.device)  # step within the episode
        reset_history = config.collection.reset_history
        self.planner = Planner(self.model, num_envs, self.device, config.search, reset_history, self.functions)

    def iterate(self) -> None:
        """Take one step in every environment, then this iteration's updates."""
        # plan and act
        self.stopwatch.begin(SEARCH)
        action, policy, latent = self._random() if self.steps < self.config.collection.prepopulate else self.plan()
        self.stopwatch.begin(ACTING)
        step = self.fleet.step(action)

        # store
        reward, terminated = self.config.collection.training_signal(step)
        done = terminated | step.truncated
        final = {"next_observation": step.final_observation} if self.config.replay.final_observations else {}
        self.replay.add(
            observation=self.observation, action=action, reward=reward, terminated=terminated,
            done=done, time=self.time, policy=policy, **final,
        )  # fmt: skip
        self.planner.remember(latent, action, done)
        self.observation = step.observation
        self.time = torch.where(done, 0, self.time + 1)
        self.iterations += 1
        self.stats.count_episodes(step)

        # learn
        self.stopwatch.begin(LEARNING)
        if self.replay.drawable:
            for _ in range(self.config.collection.updates_due(self.iterations, self.config.environment.num_envs)):
                self._learn()
        self.stopwatch.begin(BETWEEN)

    def plan(self) -> tuple[Tensor, Tensor, Tensor]:
        """Search for actions (N,); returns them with the search's policy (N, A) and the latents (N, D)."""
        search, rows = self.config.search, self.config.environment.num_envs
        numbers = draw(search, rows, self.num_actions, self.numbers)
        plan = self.planner.plan(self.observation, numbers)
        action = play(plan.found, numbers, search, self.config.collection.temperature)
        return action, plan.found.policy, plan.latent

    def _random(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw actions uniformly, without a search; returns the same as `plan`."""
        rows = self.config.environment.num_envs
        action = torch.randint(self.num_actions, (rows,), generator=self.numbers, device=self.device)
        policy = torch.full((rows, self.num_actions), 1 / self.num_actions, device=self.device)
        return action, policy, self.planner.encode(self.observation)

    def _learn(self) -> None:
        metrics = self.learn(self.sequences(self.config.collection.reanalyses(self.updates)))
        self.updates += 1
        copy_every = self.config.learner.target_update_every
        if copy_every and self.updates % copy_every == 0:
            move_target(self.model, self.target, 1.0)
        self.stats.count_update(metrics, self.steps)

    def sequences(self, reanalyse: bool) -> Sequences:
        """Sample what an update learns from, with policy targets from the replay or from new searches."""
        drawn = self.replay.draw(self.config.learner.batch_size, self.drawing)
        sequences = self.replay.sequences(drawn)
        if not reanalyse:
            return sequences
        contexts, search = self.replay.contexts(drawn), self.config.search
        numbers = draw(search, contexts.count.numel(), self.num_actions, self.drawing).to(self.device)
        policy = search_again(self.model, contexts, numbers, search, self.functions)  # (B, T, A)
        return replace(sequences, policy=policy.to(sequences.policy.dtype))

    def scalars(self) -> dict[str, float]:
        """Give what a log line says and clear its sums; `phases.Stopwatch` says what the times mean."""
        return super().scalars() | self.model.memory_scalars() | self.stopwatch.scalars()

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> Score:
        """Play episodes without noise, with the evaluation stream's own seed for this step."""
        config, setup = self.config.evaluation, EvalSetup.of(self.config, self.device, reset_memory)
        quota = config.final_episodes_per_env if final else config.episodes_per_env
        self.stopwatch.begin(EVALUATION)
        search, rows, seed = self.config.search, config.num_eval_envs, self.evaluation_seed(final)
        score = evaluate(self.model, setup, search, rows, quota, seed, self.functions)
        self.stopwatch.begin(BETWEEN)
        return score

    def networks(self) -> dict[str, WorldModel]:
        """List the model and its target."""
        return {"model": self.model, "target": self.target}

    @classmethod
    def variant(cls, config: TrainConfig) -> str:
        """Name the run's folder between environment and seed."""
        return f"unizero-{config.model.dynamics}-{config.model.prior.kind}"

    @classmethod
    def evaluate_run(cls, run: Path, options: EvaluationOptions) -> Evaluation:
        """How well the agent of a run's latest checkpoint does."""
        return evaluate_run(run, options)


def main(argv: Sequence[str] | None = None) -> None:
    """Start or resume a run and train it to its end."""
    UniZeroTrainer.main(argv)


if __name__ == "__main__":
    main()
