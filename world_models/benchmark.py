"""How fast a world model is: `python -m world_models.benchmark unizero|glam`.

It measures what the trainers do (acting, updates) and what a whole run of 100,000 steps of Pong adds up to: a small
preset on a CPU, the full size on CUDA. Prints the tables; --write FOLDER keeps them as unizero.{md,json} or
glam.{md,json}, where each device has a section, which is written whole; other sections stay.
"""

import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import tyro
from torch import Tensor

from dqn_memory.analysis.timing import CompareArgs, Timer, Work
from dqn_memory.blocks import PRIORS, PriorConfig
from dqn_memory.blocks.attention import attend
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.common import set_tf32
from dqn_memory.runs.errors import UserError, check_known, one_line_errors
from dqn_memory.runs.settings import Repeatable, parse
from envs.fleet import Fleet, make_fleet
from envs.machine import benchmark_facts
from envs.tables import Table, origin, publish
from world_models.glam.config import MemoryKind
from world_models.glam.train import GlamTrainer
from world_models.unizero.config import UniZeroConfig
from world_models.unizero.train import UniZeroTrainer

MODULE = "world_models.benchmark"
CASES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TRAINERS: dict[str, Any] = {"unizero": UniZeroTrainer, "glam": GlamTrainer}
STEPS = 100_000  # of the run that is projected
EPISODE = 2_000  # steps of the longest episode of an evaluation in Pong, roughly; a guess, said in the tables
COLUMNS = 60  # of the replay that UniZero's sequences are drawn from
CONTEXTS = (16, 20, 32, 64, 128, 256, 512)
WARM_UP = 1024  # steps of a GLAM run before its first update
# As configs/glam/paper.toml and fast.toml have it: 4 evaluations of an episode in each of 20 games, a last one of 5.
ROUNDS, GAMES = 4 + 5, 20
Row = dict[str, Any]


@dataclass(frozen=True)
class Args(CompareArgs):
    """Measure a world model.

    UniZero has the tables acting, learning, projection (which needs the first two) and priors; GLAM has phases,
    imagination and projection (which needs the phases).
    """

    model: tyro.conf.Positional[Literal["unizero", "glam"]]
    """Which world model."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A small preset on a cpu, the full size on cuda (auto: cuda where there is one)."""
    engine: Repeatable = ()
    """Engines to measure (none given: all but compile on a CPU, which takes minutes)."""
    backend: Backend = "auto"
    """What the scan of a Mamba runs on (GLAM only)."""

    @property
    def on(self) -> str:
        """The device, `auto` resolved."""
        return self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    def check(self) -> None:
        """Raise UserError for what cannot be measured."""
        self.check_tables(CASES[self.model]["tables"])
        engines = {case["engine"] for case, _ in ways(self.model, self.on)}
        for name in self.engine:
            check_known("--engine", name, engines)
        if self.on == "cuda" and (self.clock == "cpu" or not torch.cuda.is_available()):
            raise UserError("--device cuda needs a CUDA device, which torch does not see here, and --clock wall")


def ways(model: str, device: str) -> list[tuple[Row, str]]:
    """List the ways of running a model on a device: the columns that tell their rows from others, and more flags."""
    words = [way.split(maxsplit=3) for way in CASES[model][device]]
    return [
        ({"preset": preset, "device": device, "engine": engine, "precision": precision}, " ".join(flags))
        for preset, engine, precision, *flags in words
    ]


def parsed(model: str, case: Row, flags: str) -> Any:
    """Give the settings of a case's run."""
    where = f"--device {case['device']} --engine {case['engine']} --threads {torch.get_num_threads()}"
    words = f"{CASES['presets'][case['preset']]} {CASES[model]['precisions'][case['precision']]} {where} {flags}"
    return parse(TRAINERS[model].config_class, words.split())


def make_trainer(model: str, case: Row, flags: str) -> Any:
    """Make a trainer before its first update, whose replay and histories random play has filled.

    UniZero's heads are drawn: with the zeros that their last layers begin with all actions tie, and trees are flatter.
    """
    trainer = TRAINERS[model](parsed(model, case, flags))
    for _ in range(COLUMNS if model == "unizero" else 2 * trainer.longest):
        trainer.iterate()
    generator = torch.Generator().manual_seed(0)
    for head in trainer.model.heads.values() if model == "unizero" else ():
        weight = head[-1].weight.data
        weight.copy_(3 * torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
    return trainer


def bar(name: str, row: Row) -> float | None:
    """Look up a bar, which the full size on an accelerator has to pass."""
    barred = row["device"] == "cuda" and row["preset"] in ("full", "paper", "fast")
    return float(CASES["bars"][name]) if barred else None


def timed(timer: Timer, works: Mapping[str, Work]) -> Row:
    """Measure milliseconds: a column for each work, and the largest spread among them."""
    times = timer(works)
    medians = {f"{name}_ms": time.median for name, time in times.items()}
    return medians | {"spread": max(time.spread for time in times.values())}


def games(fleet: Fleet, device: str) -> Work:
    """Make a step of parallel environments under random actions."""
    draws = torch.Generator().manual_seed(0)
    return lambda: fleet.step(torch.randint(fleet.num_actions, (fleet.num_envs,), generator=draws).to(device))


def minutes(milliseconds: Mapping[str, float]) -> Row:
    """Turn the parts of a run into minutes, and add them up."""
    parts = {f"{name}_min": value / 60_000 for name, value in milliseconds.items()}
    return parts | {"run_min": sum(parts.values())}


def tables(args: Args) -> Iterator[Table]:
    """Measure table after table; one that comes again with more rows replaces the one before."""
    timer = args.timer
    notes = CASES[args.model]["tables"]
    wanted = args.only or tuple(notes)
    engines = args.engine or (("eager",) if args.on == "cpu" else ("eager", "compile", "cudagraph"))
    quick = {"preset": "quick"} if args.quick and args.model == "unizero" else {}
    cases = [(case | quick, flags) for case, flags in ways(args.model, args.on) if case["engine"] in engines]
    measure: Any = unizero_rows if args.model == "unizero" else glam_rows
    found: dict[str, list[Row]] = defaultdict(list)
    for case, flags in cases if set(wanted) != {"priors"} else ():
        more = f"--backend {args.backend}" if args.model == "glam" else flags
        for name, row in measure(case, more, wanted, timer):
            found[name].append(row)
            yield Table.from_records(found[name], *notes[name])
    if "projection" in wanted:
        rows = unizero_runs(found) if args.model == "unizero" else glam_runs(found, cases, timer)
        yield Table.from_records(rows, *notes["projection"])
    if "priors" in wanted:
        shape = (1, 2, 4) if args.quick else (64 if args.on == "cuda" else 2, 8, 96)
        contexts, (title, note) = (16, 32, 128) if args.quick else CONTEXTS, notes["priors"]
        yield Table.from_records(prior_rows(timer, shape, contexts, args.on), title, note.format(*shape))


# ---- UniZero ---------------------------------------------------------------------------------------------------------
def unizero_rows(case: Row, flags: str, wanted: Sequence[str], timer: Timer) -> Iterator[tuple[str, Row]]:
    """Measure an acting step beside a step of the games; an update, its batch, and a batch with new policies."""
    trainer = make_trainer("unizero", case, flags)
    config, num_envs = trainer.config, trainer.fleet.num_envs
    no_end = torch.zeros(num_envs, dtype=torch.bool, device=trainer.device)

    def step() -> None:
        action, _, latent = trainer.plan()
        trainer.planner.remember(latent, action, no_end)

    if {"acting", "projection"} & set(wanted):
        row = case | {
            "num_envs": num_envs,
            "simulations": config.search.simulations,
            **timed(timer, {"step": step, "games": games(trainer.fleet, case["device"])}),
        }
        row |= {"steps_s": 1000 * num_envs / row["step_ms"], "step_bar": bar("step", row)}
        yield "acting", row | {"steps_s_bar": CASES["bars"]["tiny"] if case["preset"] == "tiny" else None}
    if {"learning", "projection"} & set(wanted):
        gather, reanalyse = (partial(trainer.sequences, reanalyse=again) for again in (False, True))
        works: dict[str, Work] = {"update": partial(trainer.learn, gather()), "gather": gather, "reanalysis": reanalyse}
        row = case | {"batch": config.learner.batch_size, "horizon": config.model.horizon, **timed(timer, works)}
        yield "learning", row | {"update_bar": bar("update", row)}


def unizero_runs(found: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """Project the minutes of whole runs from the measured parts."""
    alike, defaults = itemgetter("preset", "device", "engine", "precision"), UniZeroConfig()
    collection, evaluation = defaults.collection, defaults.evaluation
    looks = len(range(evaluation.evaluate_from, STEPS + 1, evaluation.evaluate_every))  # on the way
    rounds = looks * evaluation.episodes_per_env + evaluation.final_episodes_per_env
    updates, evaluated = STEPS * collection.replay_ratio, rounds * EPISODE
    for acting in found["acting"]:
        update = next(row for row in found["learning"] if alike(row) == alike(acting))
        iterations = STEPS / acting["num_envs"]
        milliseconds = {
            "acting": iterations * acting["step_ms"],
            "learning": updates * (update["update_ms"] + update["gather_ms"]),
            "reanalysis": updates * collection.reanalyse_fraction * (update["reanalysis_ms"] - update["gather_ms"]),
            "evaluation": evaluated * acting["step_ms"],
            "games": (iterations + evaluated) * acting["games_ms"],
        }
        columns = {name: acting[name] for name in ("preset", "device", "engine", "precision")}
        yield columns | minutes(milliseconds) | {"run_bar": bar("unizero", columns)}


# ---- GLAM ------------------------------------------------------------------------------------------------------------
def horizons(case: Row) -> Counter[int]:
    """Count the steps at each horizon of a whole run, from its first update on."""
    schedule = parsed("glam", case, "").horizon
    return Counter(schedule.at(step) for step in range(WARM_UP, STEPS))


def glam_rows(case: Row, flags: str, wanted: Sequence[str], timer: Timer) -> Iterator[tuple[str, Row]]:
    """Measure each phase at each horizon, and imagination with both memories by turns at the longest."""
    reached, fixed = sorted(horizons(case)), f"{flags} --growth 0 --start {{0}} --maximum {{0}}".format
    for horizon in reached if {"phases", "projection"} & set(wanted) else ():
        trainer = make_trainer("glam", case, fixed(horizon))
        backend = None if trainer.backend is None else trainer.backend.name
        works: dict[str, Work] = {"act": trainer.act, "model": trainer.learn_model, "dream": trainer.imagine}
        works["agent"] = partial(trainer.learn_agent, trainer.imagine())
        row = case | {"backend": backend, "form": trainer.config.model.imagination_memory, "horizon": horizon}
        row |= timed(timer, works)
        yield "phases", row | {"step_ms": sum(row[f"{name}_ms"] for name in works), "bar": bar("phases", row)}
    if "imagination" in wanted:
        trainers = {
            kind: make_trainer("glam", case, f"{fixed(reached[-1])} --imagination-memory {kind}")
            for kind in get_args(MemoryKind)
        }
        times = timer({form: trainer.imagine for form, trainer in trainers.items()})
        config = trainers["window"].config
        row = case | {"rows": config.imagination.num_rollouts, "context": config.model.context, "horizon": reached[-1]}
        row |= {f"{form}_ms": time.median for form, time in times.items()}
        yield "imagination", row | {"speed_up": times["carried"].speed_up(times["window"])}


def glam_runs(found: Mapping[str, Sequence[Row]], cases: Sequence[tuple[Row, str]], timer: Timer) -> Iterator[Row]:
    """Project the minutes of whole runs from their phases and the steps of their environments."""
    device, config = cases[0][0]["device"], parsed("glam", cases[0][0], "")
    evaluated, taken = 2 * ROUNDS * EPISODE, []
    for num_envs in (1, GAMES):
        fleet = make_fleet(config.environment.env, num_envs, 0, device, env_kwargs=config.env_kwargs())
        fleet.reset()
        taken.append(timed(timer, {"games": games(fleet, device)})["games_ms"])
    alone, many = taken
    for case, _ in cases:
        steps = horizons(case)
        measured = {row["horizon"]: row for row in found["phases"] if case.items() <= row.items()}
        first = measured[min(steps)]
        milliseconds = {
            "acting": (STEPS - WARM_UP + evaluated) * first["act_ms"],
            "games": STEPS * alone + evaluated * many,
        }
        for name in ("model", "dream", "agent"):
            milliseconds[name] = sum(count * measured[horizon][f"{name}_ms"] for horizon, count in steps.items())
        yield case | {"form": first["form"]} | minutes(milliseconds) | {"bar": bar("glam", case)}


# ---- attention -------------------------------------------------------------------------------------------------------
def mixing_work(shape: tuple[int, int, int], device: str, name: str, tokens: int, gradient: bool) -> Work:
    """Mix the values of `tokens` positions for a shape (B, H, E); "local, masked" is computed as other priors are."""
    kind, _, masked = name.partition(", ")
    prior = PriorConfig(kind=kind).build(shape[1], tokens).to(device)
    draws = torch.Generator().manual_seed(0)
    values = torch.randn(3, *shape[:2], tokens, shape[2], generator=draws).to(device)
    query, key, value = inputs = [value.clone().requires_grad_(gradient) for value in values]

    def mix() -> Tensor:
        scale, bias = prior.tables(tokens)
        window = None if masked else prior.fixed_window
        mixed = attend(query, key, value, scale, bias, future_logit_zero=prior.future_logit_zero, window=window)
        if gradient:
            torch.autograd.backward(mixed, torch.ones_like(mixed), inputs=inputs)
        return mixed

    return mix if gradient else torch.no_grad()(mix)


def prior_rows(timer: Timer, shape: tuple[int, int, int], contexts: Sequence[int], device: str) -> Iterator[Row]:
    """Measure the milliseconds of attention under every prior, by context, forward and with the gradient."""
    names, measured = (*PRIORS, "local, masked"), dict[tuple[str, int], float]()  # measured: with the gradient
    for tokens in contexts:
        forward, both = (
            timer({name: mixing_work(shape, device, name, tokens, gradient) for name in names})
            for gradient in (False, True)
        )
        for name in names:
            measured[name, tokens], half = both[name].median, measured.get((name, tokens // 2))
            yield {
                "prior": name, "tokens": tokens, "ms": forward[name].median, "both_ms": both[name].median,
                "spread": both[name].spread, "of_causal": 1 / forward[name].speed_up(forward["causal"]),
                "both_of_causal": 1 / both[name].speed_up(both["causal"]),
                "growth": None if half is None else both[name].median / half,
            }  # fmt: skip


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure; print the tables, and write them where asked."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog=f"python -m {MODULE}")
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts = origin(MODULE, argv, **benchmark_facts())
    publish(tables(args), args.write, args.model, CASES[args.model]["title"], facts, args.on)


if __name__ == "__main__":
    main()
