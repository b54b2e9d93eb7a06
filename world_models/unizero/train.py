"""Train UniZero: `python -m world_models.unizero.train --config unizero/memory-5x5 --prior gaussian`.

The algorithm is `Training.iterate`: plan and act in N worlds, store, learn. Everything around it is bookkeeping of one
run folder, which `--resume RUN` continues.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dqn_memory.learner import restore_optimizer
from dqn_memory.observations import observation_spec
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import Checkpoint, Run, Streams, generator
from dqn_memory.runs.meter import Meter
from dqn_memory.runs.resume import reopened
from dqn_memory.runs.score import Score
from dqn_memory.runs.seeding import dropout_state, episodes_seed, restore_dropout
from dqn_memory.runs.settings import load_plugins, parse, to_toml
from dqn_memory.runs.trainer import resume, resumes, run_training
from envs.fleet import make_fleet
from envs.seeding import restore_generator
from world_models.unizero.acting import KIND, Arena, Planner, evaluate, is_due, reanalysed, search_again
from world_models.unizero.config import TrainConfig
from world_models.unizero.engine import make_learn, make_planning
from world_models.unizero.learner import make_optimizer, make_target, move_target
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.phases import ACTING, EVALUATION, LEARNING, SEARCH, Stopwatch
from world_models.unizero.replay import Replay, Sequences
from world_models.unizero.search import draw, play


class ModelMeter(Meter):
    """Counts a world model's updates."""

    loss = "losses/total"


class Training:
    """All state of a run: worlds, model, target, optimiser, replay, search histories, streams, counters."""

    kind: ClassVar[str] = KIND
    shown: ClassVar[Mapping[str, str]] = {"return": "charts/episodic_return", "loss": "losses/total"}

    def __init__(self, config: TrainConfig) -> None:
        config.check()
        self.config, self.device = config, config.compute.start()
        streams, rows = Streams.spawn(config.seed), config.environment.num_envs
        self.fleet = make_fleet(
            config.environment.env, rows, streams.worlds, self.device,
            observation_key=config.environment.observation_key, env_kwargs=config.env_kwargs(),
        )  # fmt: skip
        self.spec, self.num_actions = observation_spec(self.fleet.observation_space), self.fleet.num_actions
        self.model = self._build(streams.network)
        self.target = make_target(self.model)
        engine = config.compute.engine
        self.optimizer = make_optimizer(self.model, config.learner, capturable=engine == "cudagraph")
        self.planning = make_planning(engine, self.model)
        self.learn = make_learn(engine, self.model, self.target, self.optimizer, config.learner)
        self.replay = Replay(
            config.replay, self.spec, self.num_actions, rows, self.device,
            horizon=config.model.horizon, lookahead=config.learner.n_step, history=config.model.pairs,
        )  # fmt: skip
        self.planner = self._planner()
        self.numbers = generator(streams.exploration, self.device)  # Dirichlet noise, ties and actions of the searches
        self.drawing = generator(streams.replay)  # sequences, and the numbers of reanalysis
        self.evaluation_seed = streams.evaluation
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does
        self.iterations = self.updates = 0
        self.solved = False
        self.meter, self.stopwatch = ModelMeter(self.device), Stopwatch(self.device)
        self._begin()

    def _build(self, seed: int) -> WorldModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(self.config.model, self.spec, self.num_actions).to(self.device)

    def _planner(self) -> Planner:
        config = self.config
        rows, reset_history = config.environment.num_envs, config.collection.reset_history
        return Planner(self.model, rows, self.device, config.search, reset_history, self.planning)

    def _begin(self) -> None:
        self.observation = self.fleet.reset()  # (N, ...)
        self.time = torch.zeros(
            self.config.environment.num_envs, dtype=torch.int64, device=self.device
        )  # index in the episode
        self.planner = self._planner()

    @property
    def steps(self) -> int:
        """Environment steps taken."""
        return self.iterations * self.config.environment.num_envs

    def iterate(self) -> None:
        """One step in every world, then this iteration's updates."""
        # plan and act
        self.stopwatch.begin(SEARCH)
        action, policy, latent = self._random() if self.steps < self.config.collection.prepopulate else self._plan()
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
        self.meter.count_episodes(step)

        # learn
        self.stopwatch.begin(LEARNING)
        if self.replay.drawable:
            for _ in range(self.config.collection.updates_due(self.iterations, self.config.environment.num_envs)):
                self._learn()
        self.stopwatch.stop()

    def _plan(self) -> tuple[Tensor, Tensor, Tensor]:
        """Searched actions (N,), the policy (N, A) that the search found, and latents (N, D)."""
        search, rows = self.config.search, self.config.environment.num_envs
        numbers = draw(search, rows, self.num_actions, self.numbers)
        plan = self.planner.plan(self.observation, numbers)
        action = play(plan.found, numbers, search, self.config.collection.temperature)
        return action, plan.found.policy, plan.latent

    def _random(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same of a uniform policy, without a search."""
        rows = self.config.environment.num_envs
        action = torch.randint(self.num_actions, (rows,), generator=self.numbers, device=self.device)
        policy = torch.full((rows, self.num_actions), 1 / self.num_actions, device=self.device)
        return action, policy, self.planner.see(self.observation)

    def _learn(self) -> None:
        metrics = self.learn(self._sequences())
        self.updates += 1
        if self.config.learner.copies_after(self.updates):
            move_target(self.model, self.target, 1.0)
        self.meter.count_update(metrics, self.steps)

    def _sequences(self) -> Sequences:
        """What the next update learns from; in some updates with policies that are searched anew."""
        drawn = self.replay.draw(self.config.learner.batch_size, self.drawing)
        sequences = self.replay.sequences(drawn)
        if not is_due(self.updates, self.config.collection.reanalyse_fraction):
            return sequences
        contexts, search = self.replay.contexts(drawn), self.config.search
        numbers = draw(search, contexts.count.numel(), self.num_actions, self.drawing).to(self.device)
        return reanalysed(sequences, search_again(self.model, contexts, numbers, search, self.planning))

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared. `phases.Stopwatch` says what the times mean."""
        counted = self.meter.scalars() | {"charts/updates": float(self.updates)} | self.model.memory_scalars()
        return counted | self.stopwatch.scalars()

    def evaluate(self, final: bool = False, forget: bool = False) -> Score:
        """Episodes without noise, with the evaluation stream's own seed for this step."""
        config, arena = self.config.evaluation, replace(Arena.of(self.config, self.device), forget=forget)
        quota = config.final_episodes_per_env if final else config.episodes_per_env
        self.stopwatch.begin(EVALUATION)
        seed = episodes_seed(self.evaluation_seed, self.steps, final and self.solved)
        score = evaluate(self.model, arena, config.num_eval_envs, quota, seed, self.planning)
        self.stopwatch.stop()
        return score

    def judge(self, score: Score) -> None:
        """Note whether an evaluation reached `--stop-at-return`."""
        goal = self.config.evaluation.stop_at_return
        self.solved = goal is not None and float(score.returns.mean()) >= goal

    def weights(self) -> dict[str, torch.Tensor]:
        """Model and target, buffers included, by name."""
        networks = {"model": self.model, "target": self.target}.items()
        return {f"{part}.{name}": value for part, net in networks for name, value in net.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything else that the future of the run depends on, but the replay."""
        return {
            "optimizer": self.optimizer.state_dict(), "fleet": self.fleet.state_dict(),
            "planner": self.planner.state_dict(), "meter": self.meter.state_dict(),
            "numbers": self.numbers.get_state(), "drawing": self.drawing.get_state(),
            **dropout_state(self.device),
            "observation": self.observation, "time": self.time,
            "solved": self.solved, "iterations": self.iterations, "updates": self.updates,
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made; a UserError where its networks are of another form."""
        checkpoint.fill(self.model, "model")
        checkpoint.fill(self.target, "target")
        state = checkpoint.trainer
        restore_optimizer(self.optimizer, state["optimizer"])
        for name in ("fleet", "planner", "meter"):
            getattr(self, name).load_state_dict(state[name])
        restore_generator(self.numbers, state["numbers"])
        restore_generator(self.drawing, state["drawing"])
        restore_dropout(state, self.device)
        for name in ("observation", "time"):
            setattr(self, name, state[name].to(self.device))
        for name in ("solved", "iterations", "updates"):
            setattr(self, name, state[name])
        if checkpoint.replay is None:
            self._begin()  # steps whose episode began before the replay does would claim a history it does not hold
        else:
            self.replay.restore(checkpoint.replay.start, checkpoint.replay.data)


def start(argv: Sequence[str]) -> tuple[Training, Run]:
    """A fresh run from flags and presets, or a stopped one at its last checkpoint."""
    if resumes(argv):
        config, run = stopped(argv)
        return resume(Training, config, run), run
    config, folder = fresh(argv)
    training = Training(config)
    return training, Run.create(folder, to_toml(config), training.device)


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


def fresh(argv: Sequence[str]) -> tuple[TrainConfig, Path]:
    """The config that flags and presets make, and the folder of its run.

    A prior that they choose starts where the paper starts it, unless they say otherwise.
    """
    config = parse(TrainConfig, argv, base=parse(TrainConfig, argv).base())
    load_plugins(config.plugin)
    form = f"unizero-{config.model.dynamics}-{config.model.prior.kind}"
    world = config.environment.env.replace("/", "-")
    return config, Path(config.output.run or f"runs/{world}/{form}/seed_{config.seed}")


def stopped(argv: Sequence[str]) -> tuple[TrainConfig, Run]:
    """A run that exists, and its config with the few changes that a resume may make."""
    config, run, _ = reopened(argv, TrainConfig, KIND)
    return config, run


if __name__ == "__main__":
    main()
