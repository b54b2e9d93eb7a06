"""The tables of GLAM's benchmark: phases, both forms of imagination, and the run that they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dqn_memory.benchmark_tables import Effort, Table, Value
from envs.fleet import make_fleet
from world_models.glam.benchmark_cases import Case, Phases
from world_models.glam.memory import Kind
from world_models.glam.schedule import HorizonConfig

STEP_BAR = 20.0  # ms of an environment step with both updates, full size
RUN_BAR = 35.0  # minutes of a run
STEPS, WARM_UP = 100_000, 1024  # of the run that is projected
# As configs/glam/paper.toml and fast.toml have it: 4 evaluations of an episode in each of 20 games, a last one of 5.
ROUNDS, GAMES = 4 + 5, 20
EPISODE = 2_000  # steps of an evaluation's episode in Pong, roughly; a guess, said in the table
FORMS: tuple[Kind, ...] = ("window", "carried")


def cases(device: str, engines: Sequence[str] = ()) -> list[Case]:
    """The smoke preset on a CPU; on an accelerator the full size, as published and quick, in every way."""
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


def horizons(case: Case) -> list[int]:
    """Every horizon that the preset's schedule passes through in a run of 100,000 steps."""
    schedule = _schedule(case)
    return sorted({schedule.at(step) for step in range(0, STEPS, schedule.every)})


def _schedule(case: Case) -> HorizonConfig:
    return case.config().horizon if case.preset == "smoke" else HorizonConfig()


def phase_table(effort: Effort, chosen: Sequence[Case]) -> Table:
    """Milliseconds of each phase of an environment step, at each horizon."""
    note = (
        "One environment step without the environment: choose an action (`act_ms`), draw a batch and update the world "
        "model (`model_ms`), draw contexts, encode and imagine (`dream_ms`), update actor, critic and slow critic "
        "(`agent_ms`); `step_ms` is their sum. `window` reads the last K steps anew for every imagined one, `carried` "
        "goes on from the recurrent state."
    )
    rows = [
        _phase_row(replace(case, horizon=horizon), effort) for case in chosen for horizon in horizons(case)
    ]  # fmt: skip
    return Table("Phases", note, rows)


def _phase_row(case: Case, effort: Effort) -> dict[str, Value]:
    phases = Phases(case)
    times = effort.turns(phases.parts())
    config = phases.config
    milliseconds: dict[str, Value] = {f"{name}_ms": time.median for name, time in times.items()}
    full = case.device == "cuda" and case.preset != "smoke"
    return {
        **_place(case), "backend": None if phases.backend is None else phases.backend.name,
        "form": config.model.imagination, "horizon": phases.horizon, **milliseconds,
        "step_ms": sum(time.median for time in times.values()),
        "spread": max(time.spread for time in times.values()), "bar": STEP_BAR if full else None,
    }  # fmt: skip


def _place(case: Case) -> dict[str, Value]:
    return {"preset": case.preset, "device": case.device, "engine": case.engine, "precision": case.precision}


def form_table(effort: Effort, chosen: Sequence[Case]) -> Table:
    """Imagination on a sliding window against that with carried state, by turns."""
    note = (
        "The same model, contexts and horizon; `speed_up`: of `carried` over `window`, the median over pairs of "
        "neighbouring repetitions. They are not the same function: a window knows its last K steps only."
    )
    once = {_key(case): case for case in chosen}.values()
    return Table("Imagination", note, [_form_row(replace(case, horizon=horizons(case)[-1]), effort) for case in once])


def _key(case: Case) -> tuple[str, str]:
    return case.engine, case.precision


def _form_row(case: Case, effort: Effort) -> dict[str, Value]:
    forms = {form: Phases(replace(case, form=form)) for form in FORMS}
    times = effort.turns({form: phases.dream for form, phases in forms.items()})
    config = forms["window"].config
    return {
        **{name: value for name, value in _place(case).items() if name != "preset"},
        "rows": config.imagination.rows, "context": config.model.context, "horizon": forms["window"].horizon,
        **{f"{form}_ms": times[form].median for form in FORMS},
        "speed_up": times["carried"].speed_up(times["window"]),
    }  # fmt: skip


def projection_table(phases: Table, chosen: Sequence[Case], worlds_ms: float, evaluated_ms: float) -> Table:
    """How long a whole run takes, from the measured phases and steps of one world and of those of evaluations."""
    note = (
        f"A run of {STEPS:,} environment steps with both updates after each from step {WARM_UP:,} on, under the "
        f"preset's own schedule of horizons, and evaluations that play {ROUNDS} rounds in all of {GAMES} games side by "
        f"side, sampled and greedy, each round taken to last {EPISODE:,} steps. `worlds_min`: stepping Pong itself, "
        f"one game in training and {GAMES} in evaluations, measured with random actions. Acting there is taken to cost "
        "what it costs in one game. Everything in minutes, one part after another."
    )
    rows = [_projected(phases, case, worlds_ms, evaluated_ms) for case in chosen]
    return Table("Projected run", note, rows)


def _projected(phases: Table, case: Case, worlds_ms: float, evaluated_ms: float) -> dict[str, Value]:
    place, schedule = _place(case), _schedule(case)
    measured = {row["horizon"]: row for row in phases.rows if all(row[name] == value for name, value in place.items())}
    steps = dict.fromkeys(horizons(case), 0)
    for step in range(WARM_UP, STEPS):
        steps[schedule.at(step)] += 1
    first = measured[min(steps)]
    evaluated = 2 * ROUNDS * EPISODE
    minutes = {
        "acting_min": (STEPS - WARM_UP + evaluated) * _number(first["act_ms"]),
        "worlds_min": STEPS * worlds_ms + evaluated * evaluated_ms,
        **{
            f"{name}_min": sum(count * _number(measured[horizon][f"{name}_ms"]) for horizon, count in steps.items())
            for name in ("model", "dream", "agent")
        },
    }
    minutes = {name: value / 60_000 for name, value in minutes.items()}
    full = case.device == "cuda" and case.preset != "smoke"
    return {
        **place, "form": first["form"], **minutes, "run_min": sum(minutes.values()),
        "bar": RUN_BAR if full else None,
    }  # fmt: skip


def _number(value: Value) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no measurement")
    return float(value)


def worlds_milliseconds(effort: Effort, case: Case, games: int) -> float:
    """One step of so many of the preset's own games under random actions, with frames on the device."""
    config: Mapping[str, object] = case.config().env_kwargs()
    fleet = make_fleet(case.config().environment.env, games, 0, torch.device(case.device), env_kwargs=dict(config))
    draws = torch.Generator().manual_seed(0)
    fleet.reset()

    def step() -> None:
        fleet.step(torch.randint(fleet.num_actions, (games,), generator=draws).to(case.device))

    return effort.turns({"worlds": step})["worlds"].median
