"""Measure the speed of a world model: `python -m world_models.benchmark unizero|glam`.

Measures the parts of training: acting and updates. A CPU runs a small preset, CUDA the published size. Prints tables;
--write FOLDER writes them to unizero.{md,json} or glam.{md,json} too. A device's results replace its older section
there; other sections stay.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from dqn_memory.runs.base_config import set_tf32
from dqn_memory.runs.errors import check_known, one_line_errors
from dqn_memory.runs.settings import parse
from envs.tables import Table
from envs.timing import BenchmarkArgs, Page, Timer, Work, run_benchmark
from world_models.glam.train import GlamTrainer
from world_models.unizero.train import UniZeroTrainer

CASES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TRAINERS: dict[str, Any] = {"unizero": UniZeroTrainer, "glam": GlamTrainer}
COLUMNS = 60  # of UniZero's replay
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class WorldModelArgs(BenchmarkArgs):
    """Measure a world model. The tables are acting and learning (UniZero), or phases (GLAM)."""

    model: tyro.conf.Positional[Literal["unizero", "glam"]]
    """World model to measure."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu` runs a small preset, `cuda` the published size (auto: cuda if there is one)."""
    engine: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Engine to measure; repeatable (default: eager on a CPU, else all)."""

    @property
    def on(self) -> str:
        """The device, `auto` resolved."""
        return self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def known_tables(self) -> Sequence[str]:
        """Values of --only."""
        return tuple(CASES[self.model]["tables"])

    @property
    def cases(self) -> list[Row]:
        """Cases to measure."""
        engines = self.engine or (("eager",) if self.on == "cpu" else ("eager", "compile", "cudagraph"))
        quick = {"preset": "quick"} if self.quick and self.model == "unizero" else {}
        return [case | quick for case in all_cases(self.model, self.on) if case["engine"] in engines]

    def check(self) -> None:
        """Raise UserError for settings that cannot be measured."""
        super().check()
        engines = {case["engine"] for case in all_cases(self.model, self.on)}
        for name in self.engine:
            check_known("--engine", name, engines)


def all_cases(model: str, device: str) -> list[Row]:
    """List the cases of a model on a device, as the first columns of their rows."""
    words = (case.split() for case in CASES[model][device])
    return [
        {"preset": preset, "device": device, "engine": engine, "precision": precision}
        for preset, engine, precision in words
    ]


def parsed(model: str, case: Row, flags: str = "") -> Any:
    """Parse the settings of a case's run."""
    where = f"--device {case['device']} --engine {case['engine']} --threads {torch.get_num_threads()}"
    words = f"{CASES['presets'][case['preset']]} {CASES[model]['precisions'][case['precision']]} {where} {flags}"
    return parse(TRAINERS[model].config_class, words.split())


def make_trainer(model: str, case: Row, flags: str = "") -> Any:
    """Make a trainer before its first update, and fill its replay and histories by random play.

    UniZero's heads get random weights. Their last layers start at zero: all actions would tie, and trees would be
    flatter than in training.
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
    """Look up the bar of the published size on CUDA; None for other cases."""
    has_bar = row["device"] == "cuda" and row["preset"] in ("full", "paper", "fast")
    return float(CASES["bars"][name]) if has_bar else None


def timed(timer: Timer, works: Mapping[str, Work]) -> Row:
    """Measure milliseconds: a column for each work, and their maximum spread."""
    times = timer(works)
    medians = {f"{name}_ms": time.median for name, time in times.items()}
    return medians | {"spread": max(time.spread for time in times.values())}


# ---- the tables ------------------------------------------------------------------------------------------------------
def unizero_rows(case: Row, wanted: Sequence[str], timer: Timer) -> Iterator[tuple[str, Row]]:
    """Measure an acting step, an update, a batch, and a batch with reanalysed policies."""
    trainer = make_trainer("unizero", case)
    config, num_envs = trainer.config, trainer.vector.num_envs
    no_end = torch.zeros(num_envs, dtype=torch.bool, device=trainer.device)

    def step() -> None:
        action, _, latent = trainer.plan()
        trainer.planner.remember(latent, action, no_end)

    if "acting" in wanted:
        row = case | {"num_envs": num_envs, "simulations": config.search.simulations, **timed(timer, {"step": step})}
        row |= {"steps_s": 1000 * num_envs / row["step_ms"], "step_bar": bar("step", row)}
        yield "acting", row | {"steps_s_bar": CASES["bars"]["tiny"] if case["preset"] == "tiny" else None}
    if "learning" in wanted:
        gather, reanalyse = (partial(trainer.sequences, reanalyse=again) for again in (False, True))
        works: dict[str, Work] = {"update": partial(trainer.learn, gather()), "gather": gather, "reanalysis": reanalyse}
        row = case | {"batch": config.learner.batch_size, "horizon": config.model.horizon, **timed(timer, works)}
        yield "learning", row | {"update_bar": bar("update", row)}


def glam_rows(case: Row, wanted: Sequence[str], timer: Timer) -> Iterator[tuple[str, Row]]:
    """Measure each phase at the first and at the last horizon of the schedule."""
    schedule = parsed("glam", case).horizon
    for horizon in sorted({schedule.start, schedule.maximum}):
        trainer = make_trainer("glam", case, f"--growth 0 --start {horizon} --maximum {horizon}")
        works: dict[str, Work] = {"act": trainer.act, "model": trainer.learn_model, "dream": trainer.imagine}
        works["agent"] = partial(trainer.learn_agent, trainer.imagine())
        row = case | {"backend": None if trainer.backend is None else trainer.backend.name}
        row |= {"form": trainer.config.model.imagination_memory, "horizon": horizon, **timed(timer, works)}
        yield "phases", row | {"step_ms": sum(row[f"{name}_ms"] for name in works), "bar": bar("phases", row)}


# ---- the command -----------------------------------------------------------------------------------------------------
def model_tables(args: WorldModelArgs) -> Iterator[Table]:
    """Measure case after case; yield a table again after each new row."""
    set_tf32(False)
    measure = unizero_rows if args.model == "unizero" else glam_rows
    found: dict[str, list[Row]] = defaultdict(list)
    for case in args.cases:
        for name, row in measure(case, args.only or args.known_tables, args.timer):
            found[name].append(row)
            yield Table.from_records(found[name], *CASES[args.model]["tables"][name])


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write them if --write is set."""
    run_benchmark(
        "world_models.benchmark",
        WorldModelArgs,
        lambda args: [Page(args.model, CASES[args.model]["title"], model_tables(args), args.on)],
        argv,
    )


if __name__ == "__main__":
    main()
