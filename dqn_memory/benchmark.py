"""Measure how fast the core is: `python -m dqn_memory.benchmark`.

Every number stands beside that of a baseline which computes the published update as its reference does
(dqn_memory/analysis/reference.py), measured in the same process by turns. The pages are core.* and mamba.*, each
written whole: its tables that were not asked for are not kept.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from dqn_memory.acting import WindowActor
from dqn_memory.analysis import reference
from dqn_memory.analysis.size import environment_sizes, gigaflop
from dqn_memory.analysis.timing import CompareArgs, Work, full_replay, matrix_product, random_replay
from dqn_memory.config import LearnerConfig
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.replay import ContextBatch, Replay, WindowBatch
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.runs.settings import set_tf32
from dqn_memory.train import make_optimizer, make_update, sample
from envs.machine import benchmark_facts
from envs.tables import Table, Value, origin, publish

TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
Rows = Iterable[dict[str, Value]]
PUBLISHED = LearnerConfig(
    targets="shifted", window_placement="ending", loss_positions="all", mask_padding=False, lengths=False
)
FORMS = {
    "published": PUBLISHED,
    "corrected": LearnerConfig(),
    "shared": LearnerConfig(loss_positions="all", tail_fraction=1 / 8),
    "bfloat16": replace(PUBLISHED, precision="bfloat16"),
}
BARS = {  # times faster than the baseline, one thread, float32
    ("POMDP/CarFlag-v0", "dtqn4"): 2.5,
    ("Gridverse/Memory-7x7-v0", "dtqn4"): 1.3,
    ("POMDP/CarFlag-v0", "dbgfqn"): 1.6,
    ("Gridverse/Memory-7x7-v0", "dbgfqn"): 1.6,
}
BARRED = ("published", "shared")  # the forms that the bars judge
CASES = tuple(BARS)
NO_BASELINE = (("POMDP/CarFlag-v0", "dtqn_mamba"), ("Gridverse/Memory-7x7-v0", "dtqn_mamba"))
WINDOW_ENVS = ("Gridverse/Memory-5x5-v0", "Gridverse/Memory-7x7-v0", "POMDP/MemoryCards-v0", "POMDP/CarFlag-v0")
GRAPH_BAR = 5.0  # times faster than eager, on an accelerator
STEPS_BAR = 1000.0  # environment steps a second with one update a step, on an accelerator


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Args(CompareArgs):
    """Measure updates and acting against the reference's way of computing them, and Mamba against mambapy.

    --only knows update, windows, acting, mamba (the mixer and its scan, beside the package mambapy where it is
    installed); with a CUDA device also graphs (eager against captured updates), training (environment steps/s with one
    update a step) and mamba_cuda (every backend there).
    """

    compile: bool = False
    """Also measure the published update under --engine compile (needs a C++ compiler, minutes of it)."""

    def check(self) -> None:
        """Refuse in one sentence what cannot work."""
        self.check_tables((*TABLES, *MAMBA))
        if not torch.cuda.is_available() and set(self.only) & set(ON_CUDA):
            raise UserError(
                f"--only {' '.join(self.only)}: torch sees no CUDA device here, and {' and '.join(ON_CUDA)} need one"
            )
        if self.clock == "cpu" and set(self.tables()) & set(ON_CUDA):
            raise UserError("--clock cpu cannot time an accelerator; name other tables by --only")

    def tables(self) -> list[str]:
        """List what is to be measured."""
        possible = [name for name in (*TABLES, *MAMBA) if torch.cuda.is_available() or name not in ON_CUDA]
        return [name for name in possible if not self.only or name in self.only]

    def cases(self, names: Sequence[tuple[str, str]]) -> list[BenchmarkCase]:
        """Make the cases of these environments and architectures."""
        return [BenchmarkCase(*name, batch_size=4 if self.quick else 32) for name in names]


# ---- one network and its batches, as ours and as the baseline computes them ------------------------------------------
@dataclass(frozen=True)
class BenchmarkCase:
    """One architecture in one environment at the paper's width."""

    env: str
    architecture: str
    context: int = 50
    batch_size: int = 32

    @property
    def columns(self) -> dict[str, Value]:
        """The first columns of its rows."""
        return {"world": self.env, "architecture": self.architecture, "width": environment_sizes(self.env).width}

    def network(self, device: str = "cpu") -> QNetwork:
        """Build the network, with the same weights at every call."""
        sizes = environment_sizes(self.env)
        config = NetworkConfig(architecture=self.architecture, width=sizes.width, context=self.context)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = config.build(sizes.spec, sizes.num_actions).to(device)
        resolve_backend([network], "auto", torch.device(device))
        return network

    def learner(self, form: str) -> LearnerConfig:
        """Give one of `FORMS` this case's batch size."""
        return replace(FORMS[form], batch_size=self.batch_size)

    def batch(
        self, form: str, replay: Replay | None = None, seed: int = 0, trim: bool = True
    ) -> WindowBatch | ContextBatch:
        """Draw one batch as training does, from a replay (None: of endless episodes, so that every window is full)."""
        network, learner = self.network(), self.learner(form)
        if replay is None:
            draws = torch.Generator().manual_seed(0)
            replay = full_replay(network.spec, network.num_actions, self.context, draws)
        ends, draws = learner.contexts_per_window(network), torch.Generator().manual_seed(seed)
        return sample(replay, learner, self.context, ends, draws, trim)


def update_work(
    case: BenchmarkCase, form: str, engine: Any = "eager", device: str = "cpu", batches: Sequence[Any] = ()
) -> Work:
    """Make an update of ours that takes another of the batches each time (none given: one of full windows)."""
    learner, network = case.learner(form), case.network(device)
    target = case.network(device).requires_grad_(False)  # cuDNN packs a copy's recurrent weights anew at each call
    optimizer = make_optimizer(network, learner, capturable=device != "cpu")
    run = make_update(engine, network, target, optimizer, learner)
    following = itertools.cycle([mapped(lambda x: x.to(device), batch) for batch in batches or [case.batch(form)]])
    return lambda: run(next(following))


def baseline_work(case: BenchmarkCase) -> Work:
    """Make one update of the baseline on the same windows as the published form's."""
    batch = case.batch("published")
    assert isinstance(batch, WindowBatch)
    return reference.baseline_work(case.network(), batch)


def acting_works(case: BenchmarkCase, rows: int) -> dict[str, Work]:
    """Value the actions of `rows` episodes whose context is full: ours, and all positions by the baseline."""
    network, batch = case.network(), replace(case, batch_size=rows).batch("published")
    baseline, window = reference.BaselineNetwork(network), batch.observation[:, : case.context]
    actor, no_action = WindowActor(network, rows, torch.device("cpu")), torch.full((rows,), network.num_actions)
    for t in range(case.context):
        actor.observe(window[:, t], no_action, torch.full((rows,), t == 0))
    return {"ours": actor.q_values, "baseline": torch.no_grad()(lambda: baseline(window)[:, -1])}


# ---- tables of the core ----------------------------------------------------------------------------------------------
def update_rows(args: Args) -> Rows:
    """Measure the milliseconds of one update on full windows, against the baseline and the floor."""
    for case in args.cases((*CASES, *NO_BASELINE)):
        yield from _update_rows(case, args)


def _update_rows(case: BenchmarkCase, args: Args) -> Rows:
    name, size = (case.env, case.architecture), 128 if args.quick else 1024
    choice = resolve_backend([case.network()], "auto", torch.device("cpu"))
    works = {form: update_work(case, form) for form in FORMS}
    baseline = {} if name in NO_BASELINE else {"baseline": baseline_work(case)}
    operations = {form: gigaflop(work) for form, work in works.items()}
    operations["published"] = gigaflop(baseline.get("baseline", works["published"]))
    if args.compile:
        works["published, compiled"] = update_work(case, "published", "compile")
        operations["published, compiled"] = operations["published"]
    single, of_single = matrix_product(size, torch.float32)
    half, of_half = matrix_product(size // 2, torch.bfloat16)  # slow where no unit is built for it
    times = args.config.compare({**baseline, **works, "float32 product": single, "bfloat16 product": half})
    rate = 1000 * of_single / times["float32 product"].median
    half_rate = 1000 * of_half / times["bfloat16 product"].median
    for form in works:
        # where no unit is built for bfloat16 its products are emulated, and a floor above float32's is none
        best = max(rate, half_rate) if form == "bfloat16" else rate
        floor = 1000 * operations[form] / best
        yield {
            **case.columns, "form": form, "backend": None if choice is None else choice.name,
            **times[form].against(times.get("baseline")), "bar": BARS.get(name) if form in BARRED else None,
            "gflop": operations[form], "gflop_s": best, "floor_ms": floor, "reached": floor / times[form].median,
        }  # fmt: skip


def window_rows(args: Args) -> Rows:
    """Measure what masking and trimming gain on real episode lengths."""
    turns = range(args.config.repetitions + args.config.warm_up)
    for case in args.cases([(env, "dtqn4") for env in WINDOW_ENVS]):
        replay = random_replay(case.env, 16, 60 if args.quick else 1500)
        batches = {trim: [case.batch("corrected", replay, seed, trim) for seed in turns] for trim in (True, False)}
        full, trimmed, baseline = args.config.compare({
            "full": update_work(case, "corrected", batches=batches[False]),
            "trimmed": update_work(case, "corrected", batches=batches[True]),
            "baseline": baseline_work(case),
        }).values()  # fmt: skip
        lengths = torch.stack([batch.lengths for batch in batches[True]]).double()
        yield {
            **case.columns, "mean_length": float(lengths.mean()),
            "tokens": sum(batch.action.shape[1] for batch in batches[True]) / len(turns), "full_ms": full.median,
            "gain": trimmed.speed_up(full), **trimmed.against(baseline),
        }  # fmt: skip


def acting_rows(args: Args) -> Rows:
    """Measure the milliseconds to value the actions of one step."""
    config = replace(args.config, repetitions=4 * args.config.repetitions)
    for case, episodes in itertools.product(args.cases(CASES), (1, 16)):
        times = config.compare(acting_works(case, episodes))
        yield {**case.columns, "episodes": episodes, **times["ours"].against(times["baseline"])}


def graph_rows(args: Args) -> Rows:
    """Measure one update eager and as a captured CUDA graph, in both forms."""
    for case, form in itertools.product(args.cases(CASES), ("published", "corrected")):
        works = {engine: update_work(case, form, engine, "cuda") for engine in ("eager", "cudagraph")}
        times = args.config.compare(works)
        row = {"world": case.env, "architecture": case.architecture, "form": form}
        yield {**row, **times["cudagraph"].against(times["eager"], "eager"), "bar": GRAPH_BAR}


def training_rows(args: Args) -> Rows:
    """Measure environment steps per second of `dqn_memory.train` with one update for every step."""
    return (training_row(*case, 320 if args.quick else 8_000) for case in CASES)


def training_row(
    env: str, architecture: str, steps: int, device: str = "cuda", engine: str = "cudagraph"
) -> dict[str, Value]:
    """Train once in a process of its own and read its rate."""
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "env": env, "architecture": architecture, "width": environment_sizes(env).width, "device": device,
            "engine": engine, "num-envs": 16, "updates-per-iteration": 16, "learning-starts": 16, "total-steps": steps,
            "log-every": steps // 4, "evaluate-every": 0, "final-episodes": 1, "checkpoint-replay": "none",
            "run": f"{folder}/run",
        }  # fmt: skip
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        done = subprocess.run([sys.executable, "-m", "dqn_memory.train", *words], capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"training {architecture} in {env} failed: {done.stderr.strip()[-300:]}")
        rate = steady_rate(Path(folder) / "run" / "metrics.jsonl")
    return {"world": env, "architecture": architecture, "steps_s": rate, "bar": STEPS_BAR}


def steady_rate(metrics: Path) -> float:
    """Give the steps per second between the first and the last log line; `charts/SPS` counts from the run's start."""
    lines = [line for line in read_metrics(metrics) if line.get("charts/SPS")]
    if len(lines) < 2:
        raise UserError(f"{metrics} has fewer than two log lines, so no rate between them; train longer")
    first, last = lines[0], lines[-1]
    seconds = last["step"] / last["charts/SPS"] - first["step"] / first["charts/SPS"]
    return float((last["step"] - first["step"]) / seconds)


# ---- measure, print, write -------------------------------------------------------------------------------------------
TABLES: dict[str, Callable[[Args], Rows]] = {
    "update": update_rows,
    "windows": window_rows,
    "acting": acting_rows,
    "graphs": graph_rows,
    "training": training_rows,
}
MAMBA = {"mamba": "cpu", "mamba_cuda": "cuda"}  # two tables each, on a page of their own
ON_CUDA = ("graphs", "training", "mamba_cuda")


def core_tables(args: Args) -> Iterator[Table]:
    """Measure table after table."""
    for name, measure in TABLES.items():
        if name in args.tables():
            yield Table.from_records(measure(args), *TEXTS["tables"][name])


def mamba_tables(args: Args) -> Iterator[Table]:
    """Measure the mixer and the scan on each device that is asked for."""
    for name, device in MAMBA.items():
        if name in args.tables():
            yield from reference.mamba_tables(args.config, 2 if args.quick else 2048, device)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure; print and write the tables of both pages."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.benchmark")
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts = origin("dqn_memory.benchmark", argv, **benchmark_facts())
    if set(args.tables()) & set(TABLES):
        publish(core_tables(args), args.target, "core", "Speed of the core", facts)
    if set(args.tables()) & set(MAMBA):
        publish(mamba_tables(args), args.target, "mamba", "Speed of Mamba", facts)


if __name__ == "__main__":
    main()
