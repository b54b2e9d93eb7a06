"""What the benchmark measures of GLAM: the four phases of an environment step, both forms of imagination, a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from dqn_memory.analysis.timing import Timer, Work, environment_step
from dqn_memory.runs import backend
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.settings import read_config
from envs.tables import Table, Value
from world_models.glam.acting import ActingNoise, build, make_player
from world_models.glam.config import Engine, HorizonConfig, TrainConfig
from world_models.glam.engine import ModelBatch, RolloutInputs, make_execution, make_optimizers
from world_models.glam.imagination import Noise, Rollouts, uniforms
from world_models.glam.memory import MemoryKind
from world_models.glam.replay import Replay

ACTIONS = 6  # Pong
EPISODE_IN_REPLAY = 50  # steps between the starts of episodes in the replay of random frames
STEP_BAR = 20.0  # ms of an environment step with both updates, full size
RUN_BAR = 35.0  # minutes of a run
STEPS, WARM_UP = 100_000, 1024  # of the run that is projected
# As configs/glam/paper.toml and fast.toml have it: 4 evaluations of an episode in each of 20 games, a last one of 5.
ROUNDS, GAMES = 4 + 5, 20
EPISODE = 2_000  # steps of an evaluation's episode in Pong, roughly; a guess, said in the table
FORMS: tuple[MemoryKind, ...] = get_args(MemoryKind)

PHASES_NOTE = (
    "One environment step without the environment: choose an action (`act_ms`), draw a batch and update the world "
    "model (`model_ms`), draw contexts, encode and imagine (`dream_ms`), update actor, critic and slow critic "
    "(`agent_ms`); `step_ms` is their sum. `window` reads the last K steps anew for every imagined one, `carried` "
    "goes on from the recurrent state."
)
IMAGINATION_NOTE = (
    "The same model, contexts and horizon; `speed_up`: of `carried` over `window`, the median over pairs of "
    "neighbouring repetitions. They are not the same function: a window knows its last K steps only."
)
PROJECTION_NOTE = (
    f"A run of {STEPS:,} environment steps with both updates after each from step {WARM_UP:,} on, under the "
    f"preset's own schedule of horizons, and evaluations that play {ROUNDS} rounds in all of {GAMES} games side by "
    f"side, sampled and greedy, each round taken to last {EPISODE:,} steps. `envs_min`: stepping Pong itself, "
    f"one game in training and {GAMES} in evaluations, measured with random actions. Acting there is taken to cost "
    "what it costs in one game. Everything in minutes, one part after another."
)


@dataclass(frozen=True)
class Case:
    """One way of running a preset."""

    preset: str = "smoke"
    device: str = "cpu"
    engine: Engine = "eager"
    precision: str = "float32"
    backend: Backend = "auto"
    form: MemoryKind | None = None
    """Of imagination (None: the preset's)."""
    horizon: int | None = None
    """Imagined steps (None: as many as the preset begins with)."""

    def config(self) -> TrainConfig:
        """Give the preset, executed in this way."""
        config = read_config(TrainConfig, f"glam/{self.preset}")
        bfloat16 = self.precision == "bfloat16"
        start = self.horizon or config.horizon.start
        return replace(
            config,
            model=replace(config.model, imagination_memory=self.form or config.model.imagination_memory),
            learner=replace(config.learner, bfloat16=bfloat16),
            agent=replace(config.agent, bfloat16=bfloat16),
            horizon=replace(config.horizon, start=start, growth=0, maximum=start),
            compute=replace(config.compute, tf32=self.precision != "float32", threads=None, device=self.device),
        )

    @property
    def schedule(self) -> HorizonConfig:
        """The horizons of a whole run."""
        return self.config().horizon if self.preset == "smoke" else HorizonConfig()

    @property
    def horizons(self) -> list[int]:
        """Every horizon that the schedule passes through in a run of 100,000 steps."""
        schedule = self.schedule
        return sorted({schedule.at(step) for step in range(0, STEPS, schedule.growth_every)})

    def columns(self) -> dict[str, Value]:
        """Give what a row of a table says of the case."""
        return {name: getattr(self, name) for name in ("preset", "device", "engine", "precision")}


def cases(device: str, engines: Sequence[str] = ()) -> list[Case]:
    """List the smoke preset on a CPU; on an accelerator the full size, as published and quick, in every way."""
    if device == "cpu":
        return [Case("smoke")]
    ways = [
        Case("paper", "cuda"),
        Case("fast", "cuda", precision="bfloat16"),
        Case("paper", "cuda", "cudagraph"),
        Case("paper", "cuda", "cudagraph", "bfloat16"),
        Case("fast", "cuda", "cudagraph", "tf32"),
        Case("fast", "cuda", "cudagraph", "bfloat16"),
    ]
    return [way for way in ways if not engines or way.engine in engines]


def tables(timer: Timer, device: str, wanted: Sequence[str], engines: Sequence[str], scan: Backend) -> Iterator[Table]:
    """Measure the wanted tables; that of phases comes after each case anew, as all of them take minutes."""
    chosen = [replace(case, backend=scan) for case in cases(device, engines)]
    phases: list[dict[str, Value]] = []
    if {"phases", "projection"} & set(wanted):
        for case in chosen:
            phases += [phase_row(replace(case, horizon=horizon), timer) for horizon in case.horizons]
            yield Table.from_records(phases, "Phases", PHASES_NOTE)
    if "imagination" in wanted:
        once = {(case.engine, case.precision): case for case in chosen}.values()
        rows = [imagination_row(replace(case, horizon=case.horizons[-1]), timer) for case in once]
        yield Table.from_records(rows, "Imagination", IMAGINATION_NOTE)
    if "projection" in wanted:
        config = chosen[0].config()
        games = partial(environment_step, config.environment.env, device=device, env_kwargs=config.env_kwargs())
        alone, evaluated = (timer({"envs": games(num_envs)})["envs"].median for num_envs in (1, GAMES))
        rows = [projected(phases, case, alone, evaluated) for case in chosen]
        yield Table.from_records(rows, "Projected run", PROJECTION_NOTE)


class Phases:
    """Networks, optimisers and a replay of random frames; `parts` are what training does, without its environments."""

    def __init__(self, case: Case) -> None:
        self.config = config = case.config()
        self.device = config.compute.start()
        self.model, self.agent = build(config, ACTIONS, 0, self.device)
        self.backend = backend.resolve_backend([self.model], case.backend, self.device)
        optimizers = make_optimizers(case.engine, self.model, self.agent, config.learner)
        self.execution = make_execution(
            case.engine, self.model, self.agent, optimizers, config.learner, config.imagination.start_from
        )
        self.length = max(config.model.batch_length, config.imagination.frames(config.model.context))
        self.drawing, self.numbers = torch.Generator().manual_seed(0), torch.Generator(self.device).manual_seed(0)
        self.replay = self._replay()
        self.player = make_player(
            self.model, self.agent, config.environment.num_envs, config.collection.act_before_observing
        )
        self.horizon = config.horizon.start
        self.rollouts = self.imagine()

    def parts(self) -> dict[str, Work]:
        """Make each phase by itself; `agent` learns from the same rollouts every time."""
        return {
            "act": self.act,
            "model": self.learn_model,
            "dream": self.imagine,
            "agent": lambda: self.execution.learn_agent(self.rollouts),
        }

    def act(self) -> Tensor:
        """Choose actions (N,) for N new frames."""
        rows = self.config.environment.num_envs
        frame = self.replay.cells["frames"][0]
        opens = torch.zeros(rows, dtype=torch.bool, device=self.device)
        return self.player.act(frame, opens, ActingNoise.draw(self.model, rows, ACTIONS, self.numbers))

    def learn_model(self) -> object:
        """Draw a batch and update the world model."""
        length, rows = self.config.model.batch_length, self.config.learner.batch_size
        batch = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        return self.execution.learn_model(ModelBatch(**vars(batch), noise=self._uniforms(rows, length)))

    def imagine(self) -> Rollouts:
        """Draw contexts and imagine."""
        rows = self.config.imagination.num_rollouts
        length = self.config.imagination.frames(self.config.model.context)
        seen = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        noise = Noise.draw(self.model, rows, self.horizon, ACTIONS, self.numbers)
        encoding = self._uniforms(rows, length)
        return self.execution.imagine(
            RolloutInputs(seen.frames, seen.action, seen.first, encoding, noise.latent, noise.action)
        )

    def _replay(self) -> Replay:
        config, rows = self.config, self.config.environment.num_envs
        replay = Replay(config.replay, config.model.screen, rows, self.device, self.length)
        numbers: Any = {"device": self.device, "generator": self.numbers}
        for column in range(2 * self.length):
            shape = (rows, 3, config.model.screen, config.model.screen)
            replay.add(
                frames=torch.randint(256, shape, dtype=torch.uint8, **numbers),
                action=torch.randint(ACTIONS, (rows,), **numbers),
                reward=torch.rand(rows, **numbers),
                terminated=torch.full((rows,), column % EPISODE_IN_REPLAY == EPISODE_IN_REPLAY - 1, device=self.device),
                first=torch.full((rows,), column % EPISODE_IN_REPLAY == 0, device=self.device),
            )
        return replay

    def _uniforms(self, rows: int, length: int) -> Tensor:
        return uniforms((rows, length, self.config.model.categoricals, self.config.model.classes), self.numbers)


def phase_row(case: Case, timer: Timer) -> dict[str, Value]:
    """Measure the milliseconds of each phase at one horizon."""
    phases = Phases(case)
    times = timer(phases.parts())
    full = case.device == "cuda" and case.preset != "smoke"
    return {
        **case.columns(), "backend": None if phases.backend is None else phases.backend.name,
        "form": phases.config.model.imagination_memory, "horizon": phases.horizon,
        **{f"{name}_ms": time.median for name, time in times.items()},
        "step_ms": sum(time.median for time in times.values()),
        "spread": max(time.spread for time in times.values()), "bar": STEP_BAR if full else None,
    }  # fmt: skip


def imagination_row(case: Case, timer: Timer) -> dict[str, Value]:
    """Measure imagination on a sliding window and with carried state by turns."""
    forms = {form: Phases(replace(case, form=form)) for form in FORMS}
    times = timer({form: phases.imagine for form, phases in forms.items()})
    config = forms["window"].config
    return {
        **{name: value for name, value in case.columns().items() if name != "preset"},
        "rows": config.imagination.num_rollouts, "context": config.model.context, "horizon": forms["window"].horizon,
        **{f"{form}_ms": times[form].median for form in FORMS},
        "speed_up": times["carried"].speed_up(times["window"]),
    }  # fmt: skip


def projected(phases: Sequence[Mapping[str, Any]], case: Case, envs_ms: float, evaluated_ms: float) -> dict[str, Value]:
    """Project the minutes of a whole run from its phases and the steps of its environments."""
    columns = case.columns()
    measured = {row["horizon"]: row for row in phases if all(row[name] == value for name, value in columns.items())}
    schedule = case.schedule  # reads the preset
    steps = dict.fromkeys(case.horizons, 0) | Counter(schedule.at(step) for step in range(WARM_UP, STEPS))
    first = measured[min(steps)]
    evaluated = 2 * ROUNDS * EPISODE
    milliseconds = {
        "acting_min": (STEPS - WARM_UP + evaluated) * first["act_ms"],
        "envs_min": STEPS * envs_ms + evaluated * evaluated_ms,
        **{
            f"{name}_min": sum(count * measured[horizon][f"{name}_ms"] for horizon, count in steps.items())
            for name in ("model", "dream", "agent")
        },
    }
    minutes = {name: value / 60_000 for name, value in milliseconds.items()}
    full = case.device == "cuda" and case.preset != "smoke"
    return {
        **columns, "form": first["form"], **minutes, "run_min": sum(minutes.values()),
        "bar": RUN_BAR if full else None,
    }  # fmt: skip
