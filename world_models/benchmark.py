"""How fast a world model is: `python -m world_models.benchmark unizero|glam [RUN]`.

Without RUN it measures what the trainers do (acting, updates) and what a whole run of 100,000 steps of Pong adds up to:
a small preset on a CPU, the full size on CUDA. With RUN it reads what a finished or a running run logged about its own
speed. Both print tables and write them as a section of results/benchmarks/unizero.{md,json} or glam.{md,json}; other
sections are kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro

from dqn_memory.analysis.timing import BenchmarkConfig, Clock, Timer, environment_step, prior_table
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.errors import UserError, near_names, one_line_errors
from dqn_memory.runs.settings import Bounds, Engine, EnvironmentConfig, Repeatable, check_numbers, read_config, set_tf32
from envs.machine import benchmark_facts
from envs.tables import Table, Value, origin, write_page
from world_models.glam.config import HorizonConfig
from world_models.glam.config import TrainConfig as GlamConfig
from world_models.glam.memory import MemoryKind
from world_models.glam.train import GlamTrainer
from world_models.run_speed import run_section
from world_models.unizero.config import EncoderConfig, ModelConfig, ReplayConfig
from world_models.unizero.config import TrainConfig as UniZeroConfig
from world_models.unizero.networks import WorldModel
from world_models.unizero.train import UniZeroTrainer

MODULE = "world_models.benchmark"
TITLES = {"unizero": "Speed of UniZero", "glam": "Speed of GLAM"}
TABLES = {"unizero": ("acting", "learning", "projection", "priors"), "glam": ("phases", "imagination", "projection")}
ENGINES = {
    ("unizero", "cpu"): ("eager", "compile"), ("unizero", "cuda"): ("eager", "compile", "cudagraph"),
    ("glam", "cpu"): ("eager",), ("glam", "cuda"): ("eager", "cudagraph"),
}  # fmt: skip
Precision = Literal["float32", "tf32", "bfloat16"]  # bfloat16 is that of the learner, beside which all else has tf32
GAME = "ALE/Pong-v5"
STEPS = 100_000  # of the run that is projected
EPISODE = 2_000  # steps of the longest episode of an evaluation in Pong, roughly; a guess, said in the tables
KEY = ("preset", "device", "engine", "precision")  # columns that tell which rows belong together


# ---- arguments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    """Measure a world model, or put what a RUN logged into the page of results.

    UniZero has the tables acting, learning, projection (which needs the first two) and priors; GLAM has phases,
    imagination and projection (which needs the phases).
    """

    model: tyro.conf.Positional[Literal["unizero", "glam"]]
    """Which world model."""
    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder whose log is read; nothing is measured then."""
    name: str = ""
    """Name of a run's section, after "run" (empty: its environment and device)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A small preset on a cpu, the full size on cuda (auto: cuda where there is one)."""
    threads: Annotated[int, Bounds(1)] = 1
    """Threads of every matrix product on a CPU."""
    repetitions: Annotated[int, Bounds(2)] = 15
    """Repetitions of each measurement; medians are over these."""
    engine: Repeatable = ()
    """Engines to measure (none given: all but compile on a CPU, which takes minutes)."""
    only: Repeatable = ()
    """Tables to make (none given: all)."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    backend: Backend = "auto"
    """What the scan of a Mamba runs on (GLAM only)."""
    quick: bool = False
    """Two repetitions of tiny sizes: shows that everything runs; its numbers mean nothing."""
    folder: str = "results/benchmarks"
    """Where the two files go. The section of the measured device is replaced whole, with all its tables."""
    write: bool = True
    """Write the two files."""

    @property
    def on(self) -> str:
        """The device, `auto` resolved."""
        return self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    def check(self) -> None:
        """Raise UserError for what cannot be measured."""
        check_numbers(self)
        known = {"table of --only": (self.only, TABLES[self.model]),
                 "--engine": (self.engine, ENGINES[self.model, self.on])}  # fmt: skip
        for what, (given, names) in known.items():
            for name in given:
                if name not in names:
                    raise UserError(near_names(what, name, names))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here; use cpu")
        if self.clock == "cpu" and self.on == "cuda":
            raise UserError("--clock cpu cannot time an accelerator; leave it out")


def measured(args: Args) -> Iterator[Table]:
    """Measure table after table; one that comes again with more rows replaces the one before."""
    timer = BenchmarkConfig(*(2, 1) if args.quick else (args.repetitions, 3), args.clock).compare
    if args.model == "unizero":
        return unizero_tables(args, timer)
    return glam_tables(args, timer)


# ---- UniZero ---------------------------------------------------------------------------------------------------------

STEP_BAR, UPDATE_BAR, UNIZERO_BAR = (
    15.0,
    20.0,
    20.0,
)  # ms of an acting step and of an update, minutes of a run: full size
RATE_BAR = 30.0  # environment steps/s of the tiny preset on a CPU
COLUMNS = 60  # of the replay that sequences are drawn from
EVERY = 10_000  # steps between the evaluations of a run
CONTEXTS = (16, 20, 32, 64, 128, 256, 512)
TINY = ModelConfig(width=64, heads=4, horizon=5, support=20, dropout=0.0, encoder=EncoderConfig(channels=16))
SIZES = {  # model, environments, simulations, sequences of a batch
    "full": (ModelConfig(), 8, 50, 64),
    "tiny": (TINY, 2, 8, 64),
    "quick": (replace(TINY, width=16, heads=2, encoder=EncoderConfig(channels=4)), 2, 2, 2),
}

ACTING_NOTE = (
    "One step of all environments without the games themselves: draw the random numbers, encode, search, play and "
    "remember, with full histories and drawn heads. `query_per`: auto queries all actions of a node at once where "
    "trees are compiled. `steps_s`: environment steps per second. `trees`: who walks them. `precision`: bfloat16 "
    "concerns the learner, where acting has tf32. `games_ms`: stepping the games, with random actions."
)
LEARNING_NOTE = (
    "`gather_ms`: draw a batch of sequences from the replay; `reanalysis_ms`: the same with the policies of all its "
    "steps searched anew; `update_ms`: everything from there to moved weights (targets, encoders, losses, "
    "backward, clipping, AdamW, moving average)."
)
UNIZERO_NOTE = (
    f"A run of {STEPS:,} environment steps under the default settings, some updates with policies searched anew "
    f"(`reanalysis_min`: what that adds), and {STEPS // EVERY + 1} evaluations, whose episodes are played side by side "
    f"and taken to last {EPISODE:,} steps. Everything in minutes, one part after another."
)


@dataclass(frozen=True)
class UniZeroCase:
    """One way of running UniZero on Pong."""

    preset: str = "tiny"
    device: str = "cpu"
    engine: Engine = "eager"
    precision: Precision = "float32"
    trees: Literal["compiled", "torch"] = "compiled"
    query_per: Literal["auto", "action"] = "auto"

    @property
    def barred(self) -> bool:
        """Whether the bars of an accelerator apply."""
        return self.preset == "full" and self.device == "cuda"

    def config(self) -> UniZeroConfig:
        """Give the settings of a run that begins with random actions."""
        model, num_envs, simulations, batch = SIZES[self.preset]
        base = UniZeroConfig(model=model, environment=EnvironmentConfig(GAME, num_envs=num_envs))
        precision: Any = "bfloat16" if self.precision == "bfloat16" else "float32"
        return replace(
            base,
            search=replace(base.search, simulations=simulations, backend=self.trees, query_per=self.query_per),
            learner=replace(base.learner, batch_size=batch, precision=precision),
            replay=ReplayConfig(COLUMNS * num_envs),
            collection=replace(base.collection, prepopulate=base.collection.learning_starts),
            compute=replace(
                base.compute, device=self.device, engine=self.engine, tf32=self.precision != "float32"
            ),
        )  # fmt: skip

    def trainer(self) -> UniZeroTrainer:
        """Make a trainer whose histories and replay are full, before its first update, with drawn heads."""
        trainer = UniZeroTrainer(self.config())
        for _ in range(COLUMNS):
            trainer.iterate()
        draw_heads(trainer.model)
        return trainer


def unizero_cases(device: str, engines: Sequence[str] = (), quick: bool = False) -> list[UniZeroCase]:
    """List the tiny preset on a CPU; on an accelerator the full one in every way."""
    case = UniZeroCase("quick" if quick else "tiny" if device == "cpu" else "full", device)
    graph = replace(case, engine="cudagraph")
    if device == "cpu":
        ways = [case, replace(case, query_per="action"), replace(case, engine="compile")]
    else:
        ways = [
            case, replace(case, engine="compile"), graph, replace(graph, query_per="action"),
            replace(graph, trees="torch"), replace(case, engine="compile", precision="tf32"),
            replace(graph, precision="tf32"), replace(graph, precision="bfloat16"),
        ]  # fmt: skip
    wanted = engines or (("eager",) if device == "cpu" else ENGINES["unizero", "cuda"])  # compiling takes minutes
    return [way for way in ways if way.engine in wanted]


def unizero_tables(args: Args, timer: Timer) -> Iterator[Table]:
    """Measure the wanted tables, those of acting and learning anew after each case."""
    wanted = set(args.only or TABLES["unizero"])
    acting, learning = list[dict[str, Value]](), list[dict[str, Value]]()
    for case in unizero_cases(args.on, args.engine, args.quick) if wanted != {"priors"} else ():
        trainer = case.trainer()
        if wanted & {"acting", "projection"}:
            acting.append(acting_row(case, trainer, timer))
            yield Table.from_records(acting, "Acting", ACTING_NOTE)
        # the trees have no part in learning, and reanalysis queries the model alike in all cases
        if wanted & {"learning", "projection"} and (case.trees, case.query_per) == ("compiled", "auto"):
            learning.append(learning_row(case, trainer, timer))
            yield Table.from_records(learning, "Learning", LEARNING_NOTE)
    if "projection" in wanted:
        yield Table.from_records([unizero_run(row, learning) for row in acting], "Projected run", UNIZERO_NOTE)
    if "priors" in wanted:
        shape = (1, 2, 4) if args.quick else (64 if args.on == "cuda" else 2, 8, 96)
        yield prior_table(timer, shape, (16, 32, 128) if args.quick else CONTEXTS, args.on)


@torch.no_grad()
def draw_heads(model: WorldModel) -> None:
    """Draw the heads' last layers: with the zeros that they begin with all actions tie, and trees are flatter."""
    generator = torch.Generator().manual_seed(0)
    for head in model.heads.values():
        weight = head[-1].weight  # type: ignore[index]
        weight.copy_(3 * torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)


def acting_row(case: UniZeroCase, trainer: UniZeroTrainer, timer: Timer) -> dict[str, Value]:
    """Measure the milliseconds of an acting step."""
    num_envs = trainer.fleet.num_envs
    no_end = torch.zeros(num_envs, dtype=torch.bool, device=trainer.device)

    def step() -> None:
        action, _, latent = trainer.plan()
        trainer.planner.remember(latent, action, no_end)

    draws = torch.Generator().manual_seed(0)
    times = timer({
        "step": step,
        "games": lambda: trainer.fleet.step(
            torch.randint(trainer.num_actions, (num_envs,), generator=draws).to(trainer.device)
        ),
    })  # fmt: skip
    ours = times["step"]
    return {
        **vars(case), "num_envs": num_envs, "simulations": trainer.config.search.simulations,
        "step_ms": ours.median, "fastest_ms": ours.fastest, "spread": ours.spread, "games_ms": times["games"].median,
        "steps_s": 1000 * num_envs / ours.median, "step_bar": STEP_BAR if case.barred else None,
        "steps_s_bar": RATE_BAR if case.preset == "tiny" else None,
    }  # fmt: skip


def learning_row(case: UniZeroCase, trainer: UniZeroTrainer, timer: Timer) -> dict[str, Value]:
    """Measure the milliseconds of an update, of its batch and of a batch with new policies."""
    sequences = trainer.sequences(reanalyse=False)
    times = timer({
        "gather": partial(trainer.sequences, reanalyse=False),
        "reanalysis": partial(trainer.sequences, reanalyse=True),
        "update": lambda: trainer.learn(sequences),
    })  # fmt: skip
    update, columns = times["update"], {name: getattr(case, name) for name in KEY}
    return {
        **columns, "batch": trainer.config.learner.batch_size, "horizon": trainer.config.model.horizon,
        "update_ms": update.median, "fastest_ms": update.fastest, "spread": update.spread,
        "gather_ms": times["gather"].median, "reanalysis_ms": times["reanalysis"].median,
        "update_bar": UPDATE_BAR if case.barred else None,
    }  # fmt: skip


def unizero_run(acting: Mapping[str, Any], learning: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Project the minutes of a whole run from the measured parts."""
    update = next(row for row in learning if all(row[name] == acting[name] for name in KEY))
    collection, iterations = UniZeroConfig().collection, STEPS / acting["num_envs"]
    updates, evaluated = STEPS * collection.replay_ratio, (STEPS // EVERY + 1) * EPISODE
    again = updates * collection.reanalyse_fraction
    minutes = {
        "acting_min": iterations * acting["step_ms"] / 60_000,
        "learning_min": updates * (update["update_ms"] + update["gather_ms"]) / 60_000,
        "reanalysis_min": again * (update["reanalysis_ms"] - update["gather_ms"]) / 60_000,
        "evaluation_min": evaluated * acting["step_ms"] / 60_000,
        "games_min": (iterations + evaluated) * acting["games_ms"] / 60_000,
    }
    columns = {name: acting[name] for name in (*KEY, "trees", "query_per")}
    bar = UNIZERO_BAR if (acting["preset"], acting["device"]) == ("full", "cuda") else None
    return {**columns, **minutes, "run_min": sum(minutes.values()), "run_bar": bar}


# ---- GLAM ------------------------------------------------------------------------------------------------------------

PHASES_BAR, GLAM_BAR = 20.0, 35.0  # ms of an environment step with both updates, minutes of a run: full size
WARM_UP = 1024  # steps of the projected run before its first update
# As configs/glam/paper.toml and fast.toml have it: 4 evaluations of an episode in each of 20 games, a last one of 5.
ROUNDS, GAMES = 4 + 5, 20
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
    f"side, sampled and greedy, each round taken to last {EPISODE:,} steps. `games_min`: stepping Pong itself, "
    f"one game in training and {GAMES} in evaluations, measured with random actions. Acting there is taken to cost "
    "what it costs in one game. Everything in minutes, one part after another."
)


@dataclass(frozen=True)
class GlamCase:
    """One way of running a preset of GLAM."""

    preset: str = "smoke"
    device: str = "cpu"
    engine: Literal["eager", "cudagraph"] = "eager"
    precision: Precision = "float32"
    backend: Backend = "auto"
    form: MemoryKind | None = None
    """Of imagination (None: the preset's)."""
    horizon: int | None = None
    """Imagined steps (None: as many as the preset begins with)."""

    @property
    def barred(self) -> bool:
        """Whether the bars of an accelerator apply."""
        return self.preset != "smoke" and self.device == "cuda"

    def config(self) -> GlamConfig:
        """Give the preset, executed in this way."""
        config = read_config(GlamConfig, f"glam/{self.preset}")
        bfloat16 = self.precision == "bfloat16"
        start = self.horizon or config.horizon.start
        return replace(
            config,
            model=replace(config.model, imagination_memory=self.form or config.model.imagination_memory),
            learner=replace(config.learner, bfloat16=bfloat16),
            agent=replace(config.agent, bfloat16=bfloat16),
            horizon=replace(config.horizon, start=start, growth=0, maximum=start),
            compute=replace(
                config.compute, tf32=self.precision != "float32", threads=None, device=self.device,
                engine=self.engine, backend=self.backend,
            ),
        )  # fmt: skip

    def trainer(self) -> GlamTrainer:
        """Make a trainer whose replay holds two windows of random play, before its first update."""
        trainer = GlamTrainer(self.config())
        for _ in range(2 * trainer.longest):
            trainer.iterate()
        return trainer

    @property
    def schedule(self) -> HorizonConfig:
        """The horizons of a whole run."""
        return self.config().horizon if self.preset == "smoke" else HorizonConfig()

    @property
    def horizons(self) -> list[int]:
        """Every horizon that the schedule passes through in a whole run."""
        schedule = self.schedule
        return sorted({schedule.at(step) for step in range(0, STEPS, schedule.growth_every)})


def glam_cases(device: str, engines: Sequence[str] = (), backend: Backend = "auto") -> list[GlamCase]:
    """List the smoke preset on a CPU; on an accelerator the full size, as published and quick, in every way."""
    if device == "cpu":
        return [GlamCase(backend=backend)]
    ways = [
        GlamCase("paper", "cuda"),
        GlamCase("fast", "cuda", precision="bfloat16"),
        GlamCase("paper", "cuda", "cudagraph"),
        GlamCase("paper", "cuda", "cudagraph", "bfloat16"),
        GlamCase("fast", "cuda", "cudagraph", "tf32"),
        GlamCase("fast", "cuda", "cudagraph", "bfloat16"),
    ]
    return [replace(way, backend=backend) for way in ways if not engines or way.engine in engines]


def glam_tables(args: Args, timer: Timer) -> Iterator[Table]:
    """Measure the wanted tables; that of phases comes after each case anew, as all of them take minutes."""
    chosen, wanted = glam_cases(args.on, args.engine, args.backend), args.only or TABLES["glam"]
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
        games = partial(environment_step, GAME, device=args.on, env_kwargs=chosen[0].config().env_kwargs())
        alone, evaluated = (timer({"games": games(num_envs)})["games"].median for num_envs in (1, GAMES))
        rows = [glam_run(phases, case, alone, evaluated) for case in chosen]
        yield Table.from_records(rows, "Projected run", PROJECTION_NOTE)


def phase_row(case: GlamCase, timer: Timer) -> dict[str, Value]:
    """Measure the milliseconds of each phase at one horizon; the agent learns from the same rollouts every time."""
    trainer = case.trainer()
    rollouts = trainer.imagine()
    times = timer({
        "act": trainer.act, "model": trainer.learn_model, "dream": trainer.imagine,
        "agent": lambda: trainer.execution.learn_agent(rollouts),
    })  # fmt: skip
    return {
        **{name: getattr(case, name) for name in KEY},
        "backend": None if trainer.backend is None else trainer.backend.name,
        "form": trainer.config.model.imagination_memory, "horizon": trainer.config.horizon.start,
        **{f"{name}_ms": time.median for name, time in times.items()},
        "step_ms": sum(time.median for time in times.values()),
        "spread": max(time.spread for time in times.values()), "bar": PHASES_BAR if case.barred else None,
    }  # fmt: skip


def imagination_row(case: GlamCase, timer: Timer) -> dict[str, Value]:
    """Measure imagination on a sliding window and with carried state by turns."""
    forms = {form: replace(case, form=form).trainer() for form in FORMS}
    times = timer({form: trainer.imagine for form, trainer in forms.items()})
    config = forms["window"].config
    return {
        **{name: getattr(case, name) for name in KEY[1:]},
        "rows": config.imagination.num_rollouts, "context": config.model.context, "horizon": config.horizon.start,
        **{f"{form}_ms": times[form].median for form in FORMS},
        "speed_up": times["carried"].speed_up(times["window"]),
    }  # fmt: skip


def glam_run(
    phases: Sequence[Mapping[str, Any]], case: GlamCase, games_ms: float, evaluated_ms: float
) -> dict[str, Value]:
    """Project the minutes of a whole run from its phases and the steps of its environments."""
    columns = {name: getattr(case, name) for name in KEY}
    measured = {row["horizon"]: row for row in phases if all(row[name] == value for name, value in columns.items())}
    schedule = case.schedule  # reads the preset
    steps = dict.fromkeys(case.horizons, 0) | Counter(schedule.at(step) for step in range(WARM_UP, STEPS))
    first = measured[min(steps)]
    evaluated = 2 * ROUNDS * EPISODE
    minutes = {
        "acting_min": (STEPS - WARM_UP + evaluated) * first["act_ms"] / 60_000,
        "games_min": (STEPS * games_ms + evaluated * evaluated_ms) / 60_000,
        **{
            f"{name}_min": sum(count * measured[horizon][f"{name}_ms"] for horizon, count in steps.items()) / 60_000
            for name in ("model", "dream", "agent")
        },
    }
    bar = GLAM_BAR if case.barred else None
    return {**columns, "form": first["form"], **minutes, "run_min": sum(minutes.values()), "bar": bar}


# ---- measure, print, write -------------------------------------------------------------------------------------------


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure or read; print and write each table as soon as it is there, so that a failure loses none before it."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog=f"python -m {MODULE}")
    args.check()
    if args.run:
        section, facts, tables = run_section(args.model, Path(args.run), args.name)
        write_page(Path(args.folder), args.model, TITLES[args.model], facts, tables, section)
        print(f"wrote the section {section!r} of {args.folder}/{args.model}.md and {args.folder}/{args.model}.json")
        return
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts = origin(MODULE, argv, **benchmark_facts())
    made: dict[str, Table] = {}
    for table in measured(args):
        made[table.title] = table
        print(table.text(), end="\n\n", flush=True)
        if args.write:
            write_page(Path(args.folder), args.model, TITLES[args.model], facts, list(made.values()), args.on)
    if args.write:
        print(f"wrote {args.folder}/{args.model}.md and {args.folder}/{args.model}.json")


if __name__ == "__main__":
    main()
