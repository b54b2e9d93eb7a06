"""What the benchmark runs: one network and one batch, as ours and as the baseline computes them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import torch

from dqn_memory.acting import WindowActor
from dqn_memory.analysis.reference import (
    BaselineBatch,
    BaselineConfig,
    BaselineNetwork,
    baseline_optimizer,
    baseline_update,
    copy_weights,
)
from dqn_memory.analysis.size import world_row
from dqn_memory.analysis.timing import Work, full_replay
from dqn_memory.blocks.kernels.select import Choice
from dqn_memory.learner import optimizer_for, sample
from dqn_memory.learner_config import LearnerConfig
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.replay import Prefixes, Replay, Windows
from dqn_memory.runs import backend
from dqn_memory.runs.cuda_graph import make_update
from envs.fleet import make_fleet

Engine = Literal["eager", "compile", "cudagraph"]

PUBLISHED = LearnerConfig(targets="shifted", placement="ending", positions="all", mask_padding=False, lengths=False)
FORMS = {
    "published": PUBLISHED,
    "corrected": LearnerConfig(),
    "shared": LearnerConfig(positions="all", tails=1 / 8),
    "bfloat16": replace(PUBLISHED, precision="bfloat16"),
}
BASELINE_MEMORY: dict[str, Literal["feedforward", "bigru"]] = {"dtqn4": "feedforward", "dbgfqn": "bigru"}


@dataclass(frozen=True)
class Case:
    """One architecture in one world at the paper's width."""

    world: str
    architecture: str
    context: int = 50
    batch: int = 32

    def network(self, device: str = "cpu") -> QNetwork:
        """The same weights at every call; a Mamba runs on the backend that training would settle on."""
        return self._settled(device)[0]

    def backend(self, device: str = "cpu") -> str | None:
        """That backend; None where there is no Mamba."""
        choice = self._settled(device)[1]
        return None if choice is None else choice.name

    def _settled(self, device: str) -> tuple[QNetwork, Choice | None]:
        network = self._built().to(device)
        return network, backend.settle([network], "auto", torch.device(device))

    def _built(self) -> QNetwork:
        row = world_row(self.world)
        config = NetworkConfig(architecture=self.architecture, width=row.width, context=self.context)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return config.build(row.spec(), row.num_actions)

    def baseline(self) -> BaselineNetwork:
        """The reference's network with the weights of ours."""
        row = world_row(self.world)
        config = BaselineConfig(
            row.width, row.num_actions, row.components, row.vocabulary,
            memory=BASELINE_MEMORY[self.architecture], context=self.context,
        )  # fmt: skip
        network = config.build()
        copy_weights(self._built(), network)
        return network

    def replay(self) -> Replay:
        """Random transitions of endless episodes, so that every window is full."""
        row, draws = world_row(self.world), torch.Generator().manual_seed(0)
        return full_replay(row.spec(), row.num_actions, self.context, draws)

    def learner(self, form: str) -> LearnerConfig:
        """One of `FORMS` at this case's batch."""
        return replace(FORMS[form], batch=self.batch)

    def draw(self, learner: LearnerConfig, replay: Replay, seed: int = 0, trim: bool = True) -> Windows | Prefixes:
        """One batch as training draws it."""
        ends, draws = learner.ends(self._built()), torch.Generator().manual_seed(seed)
        return sample(replay, learner, self.context, ends, draws, trim)


def update_work(case: Case, form: str, engine: Engine = "eager", device: str = "cpu") -> Work:
    """One update of ours on one batch of full windows."""
    learner, network = case.learner(form), case.network(device)
    target = case.network(device).requires_grad_(False)  # cuDNN packs a copy's recurrent weights anew at each call
    optimizer = optimizer_for(network, learner, capturable=device != "cpu")
    update = make_update(engine, network, target, optimizer, learner)
    return partial(update, on_device(case.draw(learner, case.replay()), device))


def on_device(batch: Windows | Prefixes, device: str) -> Windows | Prefixes:
    """A batch with all its tensors on `device`."""
    return replace(batch, **{field.name: getattr(batch, field.name).to(device) for field in fields(batch)})


def baseline_work(case: Case) -> Work:
    """One update of the baseline on the same windows as the published form's."""
    network, batch = case.baseline(), case.draw(case.learner("published"), case.replay())
    assert isinstance(batch, Windows)
    target, optimizer = copy.deepcopy(network), baseline_optimizer(network)
    padding = world_row(case.world).spec().padding
    return partial(baseline_update, network, target, optimizer, baseline_batch(batch, padding))


def baseline_batch(batch: Windows, padding: float) -> BaselineBatch:
    """Windows of K + 1 observations as two windows of K: the first one's own, and those one step later."""
    observation = batch.observation
    observation = observation if observation.is_floating_point() else observation.long()
    real = torch.arange(batch.action.shape[1]) < batch.lengths[:, None]  # (B, T)
    return BaselineBatch(
        observation[:, :-1].masked_fill(~real[..., None], padding), observation[:, 1:].contiguous(),
        batch.action, batch.reward, batch.terminated,
    )  # fmt: skip


def acting_works(case: Case, rows: int) -> dict[str, Work]:
    """Valuing the actions of `rows` episodes whose context is full: ours, and all positions by the baseline."""
    network, baseline = case.network(), case.baseline()
    actor = WindowActor(network, rows, torch.device("cpu"))
    draws = torch.Generator().manual_seed(0)
    observations = full_replay(network.spec, network.num_actions, case.context, draws).cells["observation"]
    windows = observations[: case.context].transpose(0, 1).repeat(-(-rows // observations.shape[1]), 1, 1)[:rows]
    nothing = torch.full((rows,), network.num_actions)
    for moment in range(case.context):
        actor.observe(windows[:, moment], nothing, torch.full((rows,), moment == 0))
    window = windows if windows.is_floating_point() else windows.long()

    @torch.no_grad()
    def reference() -> torch.Tensor:
        return baseline(window)[:, -1]

    return {"ours": actor.q_values, "baseline": reference}


def random_replay(world: str, worlds: int, columns: int) -> Replay:
    """What a uniformly random policy meets in `worlds` copies of a world over `columns` steps each."""
    row, draws = world_row(world), torch.Generator().manual_seed(0)
    fleet = make_fleet(world, worlds, seed=0)
    replay = Replay(row.spec(), row.num_actions, worlds, worlds * columns, torch.device("cpu"))
    observation = fleet.reset()
    previous, time = torch.full((worlds,), row.num_actions), torch.zeros(worlds, dtype=torch.int64)
    for _ in range(columns):
        action = torch.randint(row.num_actions, (worlds,), generator=draws)
        step = fleet.step(action)
        replay.add(
            observation=observation, next_observation=step.final_observation, previous_action=previous,
            action=action, reward=step.reward, terminated=step.terminated, done=step.done, time=time,
        )  # fmt: skip
        observation = step.observation
        previous, time = torch.where(step.done, row.num_actions, action), torch.where(step.done, 0, time + 1)
    return replay
