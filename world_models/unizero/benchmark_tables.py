"""The benchmark's tables: acting, learning, priors, and the run that they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dqn_memory.analysis.timing import Work
from dqn_memory.benchmark_tables import Effort, Table, Value
from dqn_memory.blocks import PRIORS
from dqn_memory.runs.precision import set_tf32
from envs.atari import AtariConfig
from envs.fleet import make_fleet
from world_models.unizero.benchmark_cases import PRESETS, Acting, Case, Learning, Mixing, Preset
from world_models.unizero.config import CollectionConfig

STEP_BAR = 15.0  # ms of an acting step of 8 environments, 50 simulations
UPDATE_BAR = 20.0  # ms of a batch of 64
RATE_BAR = 30.0  # environment steps/s of the tiny preset on a CPU
RUN_BAR = 20.0  # minutes of a run
CONTEXTS = (16, 20, 32, 64, 128, 256, 512)
STEPS, RATIO, EVERY = 100_000, 0.25, 10_000  # environment steps, updates per step, steps between evaluations
REANALYSE = CollectionConfig().reanalyse_fraction  # share of the updates whose policies are searched anew
EPISODE = 2_000  # steps of the longest episode of an evaluation in Pong, roughly; a guess, said in the table
GAME = "ALE/Pong-v5"


def cases(device: str, engines: Sequence[str] = ()) -> list[Case]:
    """The tiny preset on a CPU; on an accelerator the full one in every way. Given engines choose among those."""
    if device == "cpu":
        ways = [Case("tiny"), Case("tiny", query_per="action"), Case("tiny", engine="compile")]
        wanted = engines or ("eager",)  # compiling takes minutes
    else:
        full, wanted = Case("full", "cuda"), engines or ("eager", "compile", "cudagraph")
        ways = [
            full,
            replace(full, engine="compile"),
            replace(full, engine="cudagraph"),
            replace(full, engine="cudagraph", query_per="action"),
            replace(full, engine="cudagraph", trees="torch"),
            replace(full, engine="compile", precision="tf32"),
            replace(full, engine="cudagraph", precision="tf32"),
            replace(full, engine="cudagraph", precision="bfloat16"),
        ]
    return [way for way in ways if way.engine in wanted]


def acting_table(effort: Effort, chosen: Sequence[Case]) -> Table:
    """Milliseconds of an acting step and of its parts."""
    note = (
        "One step of all worlds: draw the numbers of chance, encode, judge the root, expand nodes and walk the trees "
        "(select and back up; `expand` and `walk` are all of a step), play and remember. Parts are measured alone, so "
        "they need not add up. `asking`: auto asks for all actions of a node at once where trees are compiled; "
        "`questions`: how often it is asked in a step, by trees of a network whose heads are drawn. `steps_s`: "
        "environment steps per second without the time of the environment. `trees`: who walks them. `precision`: "
        "bfloat16 concerns the learner, where acting has tf32."
    )
    return Table("Acting", note, [_acting_row(case, effort) for case in chosen])


def _acting_row(case: Case, effort: Effort) -> dict[str, Value]:
    case.set_precision()
    acting = Acting(case)
    parts = acting.parts()
    questions, times = len(acting.questions), effort.turns(parts)
    step, size = times["step"], case.size
    full = case.preset == "full" and case.device == "cuda"
    return {
        **_place(case), "query_per": case.query_per, "worlds": size.worlds, "simulations": size.simulations,
        "questions": questions,
        "step_ms": step.median, "fastest_ms": step.fastest, "spread": step.spread,
        **{f"{name}_ms": times[name].median for name in ("draw", "encode", "root", "expand", "walk")},
        "steps_s": 1000 * size.worlds / step.median,
        "step_bar": STEP_BAR if full else None, "steps_s_bar": RATE_BAR if case.preset == "tiny" else None,
    }  # fmt: skip


def learning_table(effort: Effort, chosen: Sequence[Case]) -> Table:
    """Milliseconds of an update."""
    note = (
        "`gather`: draw a batch of sequences and collect it from the replay; `update`: everything from there to moved "
        "weights (targets, encoders, losses, backward, clipping, AdamW, moving average). `reanalysis`: one search that "
        "finds the policies of all steps of a batch anew."
    )
    # the trees have no part in learning, and in reanalysis all ask alike
    chosen = [case for case in chosen if case.trees == "compiled" and case.query_per == "auto"]
    return Table("Learning", note, [_learning_row(case, effort) for case in chosen])


def _learning_row(case: Case, effort: Effort) -> dict[str, Value]:
    case.set_precision()
    times = effort.turns(Learning(case).parts())
    update = times["update"]
    full = case.preset == "full" and case.device == "cuda"
    place = {name: value for name, value in _place(case).items() if name != "trees"}
    return {
        **place, "batch": case.size.batch, "horizon": case.size.model.horizon, "update_ms": update.median,
        "fastest_ms": update.fastest, "spread": update.spread, "gather_ms": times["gather"].median,
        "reanalysis_ms": times["reanalysis"].median, "update_bar": UPDATE_BAR if full else None,
    }  # fmt: skip


def _place(case: Case) -> dict[str, Value]:
    return {
        "preset": case.preset, "device": case.device, "engine": case.engine, "precision": case.precision,
        "trees": case.trees,
    }  # fmt: skip


def prior_table(effort: Effort, device: str, mixing: Mixing | None = None, contexts: Sequence[int] = CONTEXTS) -> Table:
    """Milliseconds of attention under every prior, by context."""
    mixing = mixing or Mixing(heads=8, width=96, batch=64 if device == "cuda" else 2, device=device)
    note = (
        f"Attention without its projections, {mixing.batch} sequences, {mixing.heads} heads of {mixing.width}; forward "
        "(`ms`) and with the gradient (`both_ms`). `local` looks 10 back, in blocks where that pays; `local, masked` "
        "is the same function with all scores computed. `of_causal`, `both_of_causal`: over plain causal attention at "
        "the same context. `growth`: `both_ms` over that of half the context if measured; 2 is linear, 4 square."
    )
    set_tf32(False)
    rows: list[dict[str, Value]] = []
    for tokens in contexts:
        rows += _prior_rows(mixing, tokens, effort, rows)
    return Table("Priors", note, rows)


def _prior_rows(
    mixing: Mixing, tokens: int, effort: Effort, before: Sequence[Mapping[str, Value]]
) -> list[dict[str, Value]]:
    works: dict[str, Work] = {}
    for name in (*PRIORS, "local, masked"):
        kind, masked = name.removesuffix(", masked"), name.endswith(", masked")
        works[name] = mixing.work(kind, tokens, False, masked)
        works[f"{name} both"] = mixing.work(kind, tokens, True, masked)
    times = effort.turns(works)
    half = {row["prior"]: row["both_ms"] for row in before if row["tokens"] == tokens // 2}
    rows: list[dict[str, Value]] = []
    for name in (*PRIORS, "local, masked"):
        forward, both, smaller = times[name], times[f"{name} both"], half.get(name)
        rows.append({
            "prior": name, "tokens": tokens, "ms": forward.median, "both_ms": both.median, "spread": both.spread,
            "of_causal": 1 / forward.speed_up(times["causal"]),
            "both_of_causal": 1 / both.speed_up(times["causal both"]),
            "growth": both.median / smaller if isinstance(smaller, float) else None,
        })  # fmt: skip
    return rows


def projection_table(acting: Table, learning: Table, worlds_ms: float) -> Table:
    """How long a whole run takes, from the measured parts of each engine and precision."""
    note = (
        f"A run of {STEPS:,} environment steps, {RATIO} updates per step, {REANALYSE} of them with policies "
        f"searched anew (`reanalysis_min`), and {STEPS // EVERY + 1} evaluations, whose episodes are played side by "
        f"side and taken to last {EPISODE:,} steps. `worlds_min`: stepping the games "
        f"({GAME}) themselves, measured with random actions. Everything in minutes, one part after another."
    )
    updates = {(row["preset"], row["engine"], row["precision"]): row for row in learning.rows}
    rows = [_projected(row, updates[row["preset"], row["engine"], row["precision"]], worlds_ms) for row in acting.rows]
    return Table("Projected run", note, rows)


def _projected(acting: Mapping[str, Value], learning: Mapping[str, Value], worlds_ms: float) -> dict[str, Value]:
    step, update = _number(acting["step_ms"]), _number(learning["update_ms"]) + _number(learning["gather_ms"])
    iterations, evaluated = STEPS / _number(acting["worlds"]), (STEPS // EVERY + 1) * EPISODE
    minutes = {
        "acting_min": iterations * step, "learning_min": STEPS * RATIO * update,
        "reanalysis_min": STEPS * RATIO * REANALYSE * _number(learning["reanalysis_ms"]),
        "evaluation_min": evaluated * step, "worlds_min": (iterations + evaluated) * worlds_ms,
    }  # fmt: skip
    minutes = {name: value / 60_000 for name, value in minutes.items()}
    place = {name: acting[name] for name in ("preset", "device", "engine", "precision", "trees", "query_per")}
    full = acting["preset"] == "full" and acting["device"] == "cuda"
    return {**place, **minutes, "run_min": sum(minutes.values()), "run_bar": RUN_BAR if full else None}


def _number(value: Value) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no measurement")
    return float(value)


def worlds_milliseconds(effort: Effort, worlds: int = PRESETS["full"].worlds, device: str = "cpu") -> float:
    """One step of `worlds` games under random actions, observations on `device`."""
    fleet = make_fleet(GAME, worlds, 0, torch.device(device), env_kwargs=vars(AtariConfig()))
    draws = torch.Generator().manual_seed(0)
    fleet.reset()

    def step() -> None:
        fleet.step(torch.randint(fleet.num_actions, (worlds,), generator=draws).to(device))

    return effort.turns({"worlds": step})["worlds"].median


def smaller(case: Case) -> Case:
    """The same with sizes that are over at once."""
    size = case.size
    model = replace(PRESETS["tiny"].model, width=16, heads=2, encoder=replace(size.model.encoder, channels=4))
    return replace(case, sizes=Preset(model, worlds=2, simulations=2, batch=2))
