"""Train a memory agent: `python -m dqn_memory.train --env Gridverse/Memory-5x5-v0 --architecture dgfqn`.

The algorithm is `Training.iterate`: act in N worlds, store, learn, copy the target. Everything around it is bookkeeping
of one run folder, which `--resume RUN` continues.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from dqn_memory.acting import make_actor
from dqn_memory.config import TrainConfig
from dqn_memory.evaluation import evaluate
from dqn_memory.exploration import Explorer
from dqn_memory.learner import average_parameters, copy_parameters, optimizer_for, restore_optimizer, sample, set_rate
from dqn_memory.network import QNetwork
from dqn_memory.observations import observation_spec
from dqn_memory.replay import Replay
from dqn_memory.runs import backend
from dqn_memory.runs.cuda_graph import make_update
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import Checkpoint, Run, Streams, generator
from dqn_memory.runs.kinds import Q_NETWORK
from dqn_memory.runs.meter import Meter
from dqn_memory.runs.resume import fresh, stopped
from dqn_memory.runs.score import Score
from dqn_memory.runs.seeding import dropout_state, episodes_seed, restore_dropout
from dqn_memory.runs.settings import to_toml
from dqn_memory.runs.trainer import resume, resumes, run_training
from envs.baselines import baseline_summary
from envs.fleet import make_fleet
from envs.seeding import restore_generator


class Training:
    """All state of a run: worlds, networks, optimiser, replay, streams, counters."""

    kind: ClassVar[str] = Q_NETWORK
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "loss": "losses/td_loss"}

    def __init__(self, config: TrainConfig) -> None:
        config.check()
        self.config, self.device = config, config.compute.torch_device()
        streams = Streams.spawn(config.seed)
        self.fleet = make_fleet(
            config.environment.env, config.environment.num_envs, streams.worlds, self.device,
            observation_key=config.environment.observation_key, env_kwargs=config.environment.kwargs(),
        )  # fmt: skip
        self.spec, self.num_actions = observation_spec(self.fleet.observation_space), self.fleet.num_actions
        self.network = self._build(streams.network)
        self.target = self._build(streams.network)
        self.target.requires_grad_(False).eval()  # values without dropout
        self.greedy = self.network  # what evaluations play and a checkpoint offers as the agent
        if config.learner.ema_decay > 0:
            self.greedy = self._build(streams.network).requires_grad_(False)
        self.backend = backend.settle(self._networks().values(), config.compute.backend, self.device)
        config.learner.check(self.network)
        self.ends = config.learner.ends(self.network)
        cuda = self.device.type == "cuda"
        self.optimizer = optimizer_for(self.network, config.learner, capturable=cuda)
        self.update = make_update(config.compute.engine, self.network, self.target, self.optimizer, config.learner)
        rows = config.environment.num_envs
        self.replay = Replay(self.spec, self.num_actions, rows, config.replay.capacity, self.device)
        self.actor = make_actor(self.network, rows, self.device, config.acting, config.acting_state)
        self.explorer = Explorer(
            config.exploration, rows, self.num_actions, generator(streams.exploration, self.device)
        )
        self.drawing = generator(streams.replay, torch.device("cpu"))
        self.evaluation_seed = streams.evaluation
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does
        self.iterations = self.updates = 0
        self.solved = False
        self.meter = Meter(self.device)
        self._begin()

    def _build(self, seed: int) -> QNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.config.network.build(self.spec, self.num_actions).to(self.device)

    def _begin(self) -> None:
        rows = self.config.environment.num_envs
        self.observation = self.fleet.reset()  # (N, ...)
        self.previous_action = torch.full((rows,), self.num_actions, device=self.device)
        self.time = torch.zeros(rows, dtype=torch.int64, device=self.device)  # index in the episode
        self.actor.observe(self.observation, self.previous_action, self.time == 0)

    @property
    def steps(self) -> int:
        """Environment steps taken."""
        return self.iterations * self.config.environment.num_envs

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
        self.meter.count_episodes(step)

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
        self.meter.count_update(metrics, self.steps)

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared."""
        scalars = self.meter.scalars()
        scalars["charts/epsilon"] = self.explorer.epsilon(self.steps)
        scalars["charts/updates"] = float(self.updates)
        return scalars | self.network.memory_scalars()

    def evaluate(self, final: bool = False, forget: bool = False) -> Score:
        """Greedy episodes with the evaluation stream's own seed for this step."""
        config = self.config.evaluation
        episodes = config.final_episodes if final else config.episodes
        arena = replace(self.config.arena(self.device), forget=forget)
        seed = episodes_seed(self.evaluation_seed, self.steps, final and self.solved)
        return evaluate(self.greedy, arena, episodes, seed)

    def judge(self, score: Score) -> None:
        """Note whether an evaluation reached `--stop-at-success`."""
        goal = self.config.evaluation.stop_at_success
        self.solved = goal is not None and float(score.success.mean()) >= goal

    def weights(self) -> dict[str, torch.Tensor]:
        """All networks, by name."""
        networks = self._networks().items()
        return {f"{part}.{name}": value for part, net in networks for name, value in net.state_dict().items()}

    def _networks(self) -> dict[str, QNetwork]:
        named = {"network": self.network, "target": self.target}
        return named if self.greedy is self.network else named | {"average": self.greedy}

    def state_dict(self) -> dict[str, Any]:
        """Everything else that the future of the run depends on, but the replay."""
        return {
            "optimizer": self.optimizer.state_dict(), "fleet": self.fleet.state_dict(),
            "actor": self.actor.state_dict(), "explorer": self.explorer.state_dict(),
            "exploration": self.explorer.generator.get_state(), "drawing": self.drawing.get_state(),
            **dropout_state(self.device),
            "observation": self.observation, "previous_action": self.previous_action, "time": self.time,
            "solved": self.solved,
            "iterations": self.iterations, "updates": self.updates, "meter": self.meter.state_dict(),
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made; a UserError where its networks are of another form."""
        for part, net in self._networks().items():
            checkpoint.fill(net, part)
        state = checkpoint.trainer
        restore_optimizer(self.optimizer, state["optimizer"])
        for name in ("fleet", "actor", "explorer", "meter"):
            getattr(self, name).load_state_dict(state[name])
        restore_generator(self.explorer.generator, state["exploration"])
        restore_generator(self.drawing, state["drawing"])
        restore_dropout(state, self.device)
        for name in ("observation", "previous_action", "time"):
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
        config, run = stopped(argv)
        training = resume(Training, config, run)
        backend.announce(training.backend, training.device, run.environment.get(backend.FACT))
        return training, run
    config, folder = fresh(argv)
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
    low, high = score.interval()
    kind = "all initial states" if score.exhaustive else f"{score.episodes} episodes"
    world = training.config.environment
    known = baseline_summary(float(score.success.mean()), world.env, world.kwargs(training=False))
    print(
        f"{run.path}: {score.word} {score.success.mean():.3f} [{low:.3f}, {high:.3f}] on {kind}{known}, "
        f"return {score.returns.mean():.2f}, length {score.lengths.mean():.1f}"
    )


if __name__ == "__main__":
    main()
