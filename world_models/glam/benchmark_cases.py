"""What GLAM's benchmark times: the four phases of an environment step, with the sizes of a preset."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dqn_memory.analysis.timing import Work
from dqn_memory.runs import backend
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.settings import read_config
from world_models.glam.acting import ActingNoise
from world_models.glam.agent import Agent
from world_models.glam.engine import Engine, Lesson, Seeds, make_execution, make_optimizers
from world_models.glam.evaluation import make_player
from world_models.glam.imagination import Imagined, Noise, uniforms
from world_models.glam.learner import LearnerConfig
from world_models.glam.loading import build
from world_models.glam.memory import Kind
from world_models.glam.model import WorldModel
from world_models.glam.replay import Replay
from world_models.glam.train_config import TrainConfig

ACTIONS = 6  # Pong
EPISODE = 50  # steps between openings in the replay of random frames


@dataclass(frozen=True)
class Case:
    """One way of running a preset."""

    preset: str = "smoke"
    device: str = "cpu"
    engine: Engine = "eager"
    precision: str = "float32"
    backend: Backend = "auto"
    form: Kind | None = None
    """Of imagination (None: the preset's)."""
    horizon: int | None = None
    """Imagined steps (None: as many as the preset begins with)."""

    def config(self) -> TrainConfig:
        """The preset, executed in this way."""
        config = read_config(TrainConfig, f"glam/{self.preset}")
        bfloat16 = self.precision == "bfloat16"
        start = self.horizon or config.horizon.start
        return replace(
            config,
            model=replace(config.model, imagination=self.form or config.model.imagination),
            learner=replace(config.learner, bfloat16=bfloat16),
            agent=replace(config.agent, bfloat16=bfloat16),
            horizon=replace(config.horizon, start=start, growth=0, maximum=start),
            compute=replace(config.compute, tf32=self.precision != "float32", threads=None, device=self.device),
        )


class Phases:
    """Networks, optimisers and a replay of random frames; `parts` are what training does, without its worlds."""

    def __init__(self, case: Case) -> None:
        self.config = config = case.config()
        self.device = config.compute.start()
        self.model, self.agent = self._networks()
        self.backend = backend.settle([self.model], case.backend, self.device)
        self._execute(case.engine, config.learner)
        self.length = max(config.model.batch_length, config.imagination.frames(config.model.context))
        self.drawing, self.numbers = torch.Generator().manual_seed(0), torch.Generator(self.device).manual_seed(0)
        self.replay = self._replay()
        self.player = make_player(self.model, self.agent, config.environment.num_envs, config.collection.blind)
        self.horizon = config.horizon.start
        self.dreamt = self.dream()

    def parts(self) -> dict[str, Work]:
        """Each phase by itself; `agent` learns from the same dream every time."""
        return {
            "act": self.act,
            "model": self.learn_model,
            "dream": self.dream,
            "agent": lambda: self.execution.learn_agent(self.dreamt),
        }

    def act(self) -> Tensor:
        """Choose actions (N,) for N new frames."""
        rows = self.config.environment.num_envs
        frame = self.replay.cells["frames"][0]
        opens = torch.zeros(rows, dtype=torch.bool, device=self.device)
        return self.player.act(frame, opens, ActingNoise.draw(self.model, rows, ACTIONS, self.numbers))

    def learn_model(self) -> object:
        """Draw a batch and update the world model."""
        length, rows = self.config.model.batch_length, self.config.learner.batch
        batch = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        return self.execution.learn_model(Lesson(**vars(batch), noise=self._uniforms(rows, length)))

    def dream(self) -> Imagined:
        """Draw contexts and imagine."""
        rows = self.config.imagination.rows
        length = self.config.imagination.frames(self.config.model.context)
        seen = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        noise = Noise.draw(self.model, rows, self.horizon, ACTIONS, self.numbers)
        encoding = self._uniforms(rows, length)
        return self.execution.dream(Seeds(seen.frames, seen.action, seen.first, encoding, noise.latent, noise.action))

    def _networks(self) -> tuple[WorldModel, Agent]:
        return build(self.config, ACTIONS, 0, self.device)

    def _execute(self, engine: Engine, learner: LearnerConfig) -> None:
        optimizers = make_optimizers(engine, self.model, self.agent, learner)
        begin = self.config.imagination.begin
        self.execution = make_execution(engine, self.model, self.agent, optimizers, learner, begin)

    def _replay(self) -> Replay:
        config, rows = self.config, self.config.environment.num_envs
        replay = Replay(config.replay, config.model.screen, rows, self.device, self.length)
        for column in range(2 * self.length):
            frames = torch.randint(
                256, (rows, 3, config.model.screen, config.model.screen),
                dtype=torch.uint8, device=self.device, generator=self.numbers,
            )  # fmt: skip
            replay.add(
                frames=frames,
                action=torch.randint(ACTIONS, (rows,), device=self.device, generator=self.numbers),
                reward=torch.rand(rows, device=self.device, generator=self.numbers),
                terminated=torch.full((rows,), column % EPISODE == EPISODE - 1, device=self.device),
                first=torch.full((rows,), column % EPISODE == 0, device=self.device),
            )
        return replay

    def _uniforms(self, rows: int, length: int) -> Tensor:
        return uniforms((rows, length, self.config.model.categoricals, self.config.model.classes), self.numbers)
