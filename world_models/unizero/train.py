"""Train UniZero: `python -m world_models.unizero.train --config unizero/memory-5x5 --prior gaussian`.

The algorithm is `Training.iterate`: plan and act in N worlds, store, learn. Everything around it is bookkeeping of one
run folder, which `--resume RUN` continues.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from dqn_memory.configuration import to_toml
from dqn_memory.errors import one_line_errors
from dqn_memory.evaluation import Score
from dqn_memory.experiment import Checkpoint, Progress, Run, Streams, generator
from dqn_memory.meter import Clock, Meter
from dqn_memory.observations import observation_spec
from dqn_memory.progress import due
from dqn_memory.starting import check_unfinished
from envs.atari import AtariStep
from envs.fleet import Step, make_fleet
from world_models.unizero import starting
from world_models.unizero.acting import Planner
from world_models.unizero.agent import KIND, check_kind, fit
from world_models.unizero.evaluation import Arena, evaluate
from world_models.unizero.learner import make_target, optimizer_for, target_values, update
from world_models.unizero.losses import Batch
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.reanalysis import reanalysed, rows_due, search_again
from world_models.unizero.replay import Replay
from world_models.unizero.search import draw, play
from world_models.unizero.targets import make_batch
from world_models.unizero.train_config import TrainConfig


class ModelMeter(Meter):
    """Counts a world model's updates."""

    loss = "losses/total"


class Training:
    """All state of a run: worlds, model, target, optimiser, replay, search histories, streams, counters."""

    def __init__(self, config: TrainConfig) -> None:
        config.check()
        self.config, self.device = config, config.compute.start()
        streams, rows = Streams.spawn(config.seed), config.world.worlds
        self.fleet = make_fleet(
            config.world.env, rows, streams.worlds, self.device,
            observation_key=config.world.observation_key, env_kwargs=config.env_kwargs(),
        )  # fmt: skip
        self.spec, self.num_actions = observation_spec(self.fleet.observation_space), self.fleet.num_actions
        self.model = self._build(streams.network)
        self.target = make_target(self.model)
        self.optimizer = optimizer_for(self.model, config.learner)
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
        self.meter = ModelMeter(self.device)
        self._begin()

    def _build(self, seed: int) -> WorldModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(self.config.model, self.spec, self.num_actions).to(self.device)

    def _planner(self) -> Planner:
        config = self.config
        return Planner(self.model, config.world.worlds, self.device, config.search, config.collection.wipe)

    def _begin(self) -> None:
        self.observation = self.fleet.reset()  # (N, ...)
        self.time = torch.zeros(self.config.world.worlds, dtype=torch.int64, device=self.device)  # index in the episode
        self.planner = self._planner()

    @property
    def steps(self) -> int:
        """Environment steps taken."""
        return self.iterations * self.config.world.worlds

    def iterate(self) -> None:
        """One step in every world, then this iteration's updates."""
        search, rows = self.config.search, self.config.world.worlds
        # plan and act
        numbers = draw(search, rows, self.num_actions, self.numbers)
        plan = self.planner.plan(self.observation, numbers)
        action = play(plan.found, numbers, search, self.config.collection.temperature)  # (N,)
        step = self.fleet.step(action)

        # store
        reward, terminated = self.lesson(step)
        done = terminated | step.truncated
        final = {"next_observation": step.final_observation} if self.config.replay.final_observations else {}
        self.replay.add(
            observation=self.observation, action=action, reward=reward, terminated=terminated,
            done=done, time=self.time, policy=plan.found.policy, **final,
        )  # fmt: skip
        self.planner.remember(plan.latent, action, done)
        self.observation = step.observation
        self.time = torch.where(done, 0, self.time + 1)
        self.iterations += 1
        self.meter.count_episodes(step)

        # learn
        if self.replay.drawable:
            for _ in range(self.config.collection.updates_due(self.iterations, rows)):
                self._learn()

    def lesson(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards (N,) as they are learned, and where (N,) an episode of training ends for good."""
        collection = self.config.collection
        reward = step.reward.sign() if collection.clip_rewards else step.reward
        if isinstance(step, AtariStep) and collection.life_ends:
            return reward, step.terminated | (step.life_lost & ~step.truncated)
        return reward, step.terminated

    def _learn(self) -> None:
        metrics = update(self.model, self.target, self.optimizer, self._batch(), self.config.learner)
        self.updates += 1
        self.meter.count_update(metrics, self.steps)

    def _batch(self) -> Batch:
        """Sequences with value targets of the target network, some with policies that are searched anew."""
        learner, share = self.config.learner, self.config.collection.reanalyse
        drawn = self.replay.draw(learner.batch, self.drawing)
        sequences = self.replay.sequences(drawn)
        batch = make_batch(
            sequences, lambda seen, done, real: target_values(self.target, seen, done, real),
            learner.gamma, learner.n_step,
        )  # fmt: skip
        rows = rows_due(self.updates, learner.batch, share)
        if rows == 0:
            return batch
        contexts, search = self.replay.contexts(drawn[:rows]), self.config.search
        numbers = draw(search, rows * self.config.model.horizon, self.num_actions, self.drawing).to(self.device)
        return reanalysed(batch, search_again(self.model, contexts, numbers, search))

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared."""
        return self.meter.scalars() | {"charts/updates": float(self.updates)} | self.model.memory_scalars()

    def evaluate(self, quota: int) -> Score:
        """Episodes without noise, with the evaluation stream's own seed for this step."""
        rows = self.config.evaluation.rows
        return evaluate(self.model, Arena.of(self.config, self.device), rows, quota, self.evaluation_seed + self.steps)

    def judge(self, score: Score) -> None:
        """Note whether an evaluation reached `--stop-at`."""
        goal = self.config.evaluation.stop_at
        self.solved = goal is not None and float(score.returns.mean()) >= goal

    def weights(self) -> dict[str, torch.Tensor]:
        """Model and target, buffers included, by name."""
        networks = {"model": self.model, "target": self.target}.items()
        return {f"{part}.{name}": value for part, net in networks for name, value in net.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything else that the future of the run depends on, but the replay."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return {
            "optimizer": self.optimizer.state_dict(), "fleet": self.fleet.state_dict(),
            "planner": self.planner.state_dict(), "meter": self.meter.state_dict(),
            "numbers": self.numbers.get_state(), "drawing": self.drawing.get_state(),
            "threads": torch.get_num_threads(), "dropout": torch.get_rng_state(), "dropout_cuda": cuda,
            "observation": self.observation, "time": self.time,
            "solved": self.solved, "iterations": self.iterations, "updates": self.updates,
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made; a UserError where its networks are of another form."""
        fit(self.model, checkpoint, "model")
        fit(self.target, checkpoint, "target")
        state = checkpoint.trainer
        for name in ("optimizer", "fleet", "planner", "meter"):
            getattr(self, name).load_state_dict(state[name])
        self.numbers.set_state(state["numbers"])
        self.drawing.set_state(state["drawing"])
        torch.set_num_threads(state["threads"])  # sums over threads depend on their number
        torch.set_rng_state(state["dropout"])
        if state["dropout_cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["dropout_cuda"], self.device)
        for name in ("observation", "time"):
            setattr(self, name, state[name].to(self.device))
        for name in ("solved", "iterations", "updates"):
            setattr(self, name, state[name])
        if checkpoint.replay is None:
            self._begin()  # steps whose episode began before the replay does would claim a history it does not hold
        else:
            self.replay.restore(checkpoint.replay.start, checkpoint.replay.data)


def run_training(training: Training, run: Run) -> Score:
    """Iterate to the end of the run; log, evaluate and save on the way."""
    config, per_iteration = training.config, training.config.world.worlds
    clock, began_at = Clock(run.metrics()), training.steps
    with Progress(config.total_steps, training.steps, config.world.env) as progress:
        while training.steps < config.total_steps and not training.solved:
            training.iterate()
            if due(training.steps, config.output.log_every, per_iteration):
                scalars = training.scalars()
                scalars["charts/SPS"] = (training.steps - began_at) / clock.seconds
                run.log(training.steps, scalars | clock.scalars())
                shown = {"return": scalars.get("charts/episodic_return"), "loss": scalars.get("losses/total")}
                progress.update(training.steps, **{k: v for k, v in shown.items() if v is not None})
            else:
                progress.update(training.steps)
            if training.updates and due(training.steps, config.evaluation.evaluate_every, per_iteration):
                score = training.evaluate(config.evaluation.quota)
                run.log(training.steps, score.scalars() | clock.scalars())
                training.judge(score)
            if due(training.steps, config.output.checkpoint_every, per_iteration):
                save(training, run)
    score = training.evaluate(config.evaluation.final_quota)
    final = {f"final/{name.split('/')[1]}": value for name, value in score.scalars().items()}
    run.log(training.steps, final | clock.scalars())
    save(training, run)
    return score


def save(training: Training, run: Run) -> None:
    """One checkpoint; it becomes valid all at once."""
    training.meter.check_finite()
    replay = training.replay if training.config.output.checkpoint_replay == "full" else None
    header = {"kind": KIND, "config": to_toml(training.config)}
    run.save(training.steps, training.weights(), training.state_dict(), replay, header)


def start(argv: Sequence[str]) -> tuple[Training, Run]:
    """A fresh run from flags and presets."""
    config, folder = starting.fresh(argv)
    training = Training(config)
    return training, Run.create(folder, to_toml(config), training.device)


def resume(argv: Sequence[str]) -> tuple[Training, Run]:
    """A stopped run, at its last checkpoint."""
    config, run = starting.stopped(argv)
    training = Training(config)
    checkpoint = run.resume()
    if checkpoint is None:
        print(f"{run.path} has no checkpoint yet: the run starts over", flush=True)
        return training, run
    check_kind(run.path, checkpoint)
    training.restore(checkpoint)
    check_unfinished(run, config, training.steps, training.solved)
    if checkpoint.replay is None:
        print(
            f"resuming {run.path} without its replay: the continued run is not exact, episodes start anew", flush=True
        )
    return training, run


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Start or resume a run and train it to its end."""
    argv = sys.argv[1:] if argv is None else argv
    resumes = any(word == "--resume" or word.startswith("--resume=") for word in argv)
    training, run = resume(argv) if resumes else start(argv)
    with run:
        score = run_training(training, run)
    print(
        f"{run.path}: return {score.returns.mean():.2f}, success {score.success.mean():.3f}, "
        f"length {score.lengths.mean():.1f} on {score.episodes} episodes"
    )


if __name__ == "__main__":
    main()
