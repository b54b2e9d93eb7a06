"""Measure how fast the core is: `python -m dqn_memory.benchmark`.

Every number stands beside that of a baseline which computes the published update as its reference does
(dqn_memory/analysis/reference.py), measured in the same process by turns. Prints the tables and writes them, with the
machine, into results/benchmarks/.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from dqn_memory.acting import WindowActor
from dqn_memory.analysis import reference
from dqn_memory.analysis.size import environment_sizes, gigaflop
from dqn_memory.analysis.timing import BenchmarkConfig, Clock, Work, full_replay, matrix_product, random_replay
from dqn_memory.config import LearnerConfig
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.replay import ContextBatch, Replay, WindowBatch
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError, near_names, one_line_errors
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.runs.settings import Bounds, Repeatable, check_numbers, parse, set_tf32
from dqn_memory.train import make_optimizer, make_update, sample
from envs.machine import benchmark_facts
from envs.tables import Table, Value, origin, write_page

PAGES = {"core": "Speed of the core", "mamba": "Speed of Mamba"}
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
class Args:
    """Measure updates and acting against the reference's way of computing them, and Mamba against mambapy."""

    threads: Annotated[int, Bounds(1)] = 1
    """Threads of every matrix product, ours and the baseline's."""
    repetitions: Annotated[int, Bounds(2)] = 15
    """Turns of each alternative; medians are over these."""
    compile: bool = False
    """Also measure the published update under --engine compile (needs a C++ compiler, minutes of it)."""
    only: Repeatable = ()
    """Tables to make (none given: all that this machine can): update, windows, acting, mamba (the mixer and its scan,
    beside the package mambapy where it is installed); with a CUDA device also graphs (eager against captured updates),
    training (environment steps/s with one update a step) and mamba_cuda (every backend there)."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Two repetitions of small batches: shows that everything runs; its numbers mean nothing."""
    folder: str = "results/benchmarks"
    """Where core.* and mamba.* go (md and json), each whole: its tables that were not asked for are not kept."""
    write: bool = True
    """Write the two files."""

    @property
    def config(self) -> BenchmarkConfig:
        """How often everything is measured."""
        return BenchmarkConfig(2, 1, self.clock) if self.quick else BenchmarkConfig(self.repetitions, clock=self.clock)

    def check(self) -> None:
        """Refuse in one sentence what cannot work."""
        check_numbers(self)
        for name in self.only:
            if name not in TABLES:
                raise UserError(near_names("table of --only", name, TABLES))
        if not torch.cuda.is_available() and set(self.only) & set(ON_CUDA):
            raise UserError(
                f"--only {' '.join(self.only)}: torch sees no CUDA device here, and {' and '.join(ON_CUDA)} need one"
            )
        if self.clock == "cpu" and set(self.tables()) & set(ON_CUDA):
            raise UserError("--clock cpu cannot time an accelerator; name other tables by --only")

    def tables(self) -> list[str]:
        """List what is to be measured, in the order of the page."""
        possible = [name for name in TABLES if torch.cuda.is_available() or name not in ON_CUDA]
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
def update_table(args: Args) -> Table:
    """Measure the milliseconds of one update on full windows, against the baseline and the floor."""
    note = (
        "One update, full windows of 50, batch 32: three forwards (the corrected form: two, and the newest position "
        "of two more), backward, clipping, Adam. `published` is the baseline's mathematics, `corrected` the default "
        "(a bidirectional network then trains on 4 acting contexts a window, 128 sequences). `shared` takes the values "
        "of the next observations from the forward passes of the windows themselves (`--loss-positions all "
        "--tail-fraction 0.125`: two passes over all windows, and the newest position of two more over 4 of 32). "
        "`gflop`: operations of the matrix products; `gflop_s`: the rate of a large product here (bfloat16: of the "
        "faster of the two precisions); `floor_ms`: the first over the second; `reached`: floor over median. "
        "`speed_up`: median over pairs of neighbouring repetitions; `spread`: half the distance "
        "of the quartiles over the median. dtqn_mamba has no baseline, because the reference has no such layer; "
        "`backend`: what its scan runs on, the one that training chooses here."
    )
    rows = [row for case in args.cases((*CASES, *NO_BASELINE)) for row in _update_rows(case, args)]
    return Table.from_records(rows, "Update", note)


def _update_rows(case: BenchmarkCase, args: Args) -> Iterable[dict[str, Value]]:
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


def window_table(args: Args) -> Table:
    """Measure what masking and trimming gain on real episode lengths."""
    note = (
        "Corrected form of dtqn4, batch 32, windows drawn from what a random policy met in 16 worlds. `mean_length`: "
        "real transitions of a window of at most 50; `tokens`: mean width of the batches after trimming to a bucket; "
        "`full_ms`: the same batches 50 wide; `gain`: full over trimmed; `speed_up`: the baseline, which knows no "
        "lengths, over trimmed."
    )
    rows, turns = [], range(args.config.repetitions + args.config.warm_up)
    for case in args.cases([(env, "dtqn4") for env in WINDOW_ENVS]):
        replay = random_replay(case.env, 16, 60 if args.quick else 1500)
        batches = {trim: [case.batch("corrected", replay, seed, trim) for seed in turns] for trim in (True, False)}
        full, trimmed, baseline = args.config.compare({
            "full": update_work(case, "corrected", batches=batches[False]),
            "trimmed": update_work(case, "corrected", batches=batches[True]),
            "baseline": baseline_work(case),
        }).values()  # fmt: skip
        lengths = torch.stack([batch.lengths for batch in batches[True]]).double()
        rows.append({
            **case.columns, "mean_length": float(lengths.mean()),
            "tokens": sum(batch.action.shape[1] for batch in batches[True]) / len(turns), "full_ms": full.median,
            "gain": trimmed.speed_up(full), **trimmed.against(baseline),
        })  # fmt: skip
    return Table.from_records(rows, "Masked and trimmed windows", note)


def acting_table(args: Args) -> Table:
    """Measure the milliseconds to value the actions of one step."""
    note = (
        "Q-values of one step of 1 and of 16 episodes whose context is full, 50 observations each. The baseline "
        "computes all positions of every layer."
    )
    config, rows = replace(args.config, repetitions=4 * args.config.repetitions), []
    for case, episodes in itertools.product(args.cases(CASES), (1, 16)):
        times = config.compare(acting_works(case, episodes))
        rows.append({**case.columns, "episodes": episodes, **times["ours"].against(times["baseline"])})
    return Table.from_records(rows, "Acting", note)


def graph_table(args: Args) -> Table:
    """Measure one update eager and as a captured CUDA graph, in both forms."""
    note = "One update on the accelerator, full windows of 50, batch 32; `speed_up`: eager over captured."
    rows = []
    for case, form in itertools.product(args.cases(CASES), ("published", "corrected")):
        works = {engine: update_work(case, form, engine, "cuda") for engine in ("eager", "cudagraph")}
        times = args.config.compare(works)
        row = {"world": case.env, "architecture": case.architecture, "form": form}
        rows.append({**row, **times["cudagraph"].against(times["eager"], "eager"), "bar": GRAPH_BAR})
    return Table.from_records(rows, "Captured updates", note)


def training_table(args: Args) -> Table:
    """Measure environment steps per second of `dqn_memory.train` with one update for every step."""
    note = (
        "`python -m dqn_memory.train` with 16 worlds and 16 updates an iteration: acting, replay, one "
        "update for every environment step. Steps per second after the first log line, so without start and capture."
    )
    rows = [training_row(*case, 320 if args.quick else 8_000) for case in CASES]
    return Table.from_records(rows, "Training", note)


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

TABLES: dict[str, Callable[[Args], list[Table]]] = {
    "update": lambda args: [update_table(args)],
    "windows": lambda args: [window_table(args)],
    "acting": lambda args: [acting_table(args)],
    "graphs": lambda args: [graph_table(args)],
    "training": lambda args: [training_table(args)],
    "mamba": lambda args: reference.mamba_tables(args.config, 2 if args.quick else 2048),
    "mamba_cuda": lambda args: reference.mamba_tables(args.config, 2 if args.quick else 2048, "cuda"),
}
ON_CUDA = ("graphs", "training", "mamba_cuda")


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Print and write each table as soon as it is there, so that one that fails loses none of those before it."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog="python -m dqn_memory.benchmark")
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts = origin("dqn_memory.benchmark", argv, **benchmark_facts())
    pages: dict[str, list[Table]] = {}
    for name in args.tables():
        page, tables = "mamba" if name.startswith("mamba") else "core", TABLES[name](args)
        pages.setdefault(page, []).extend(tables)
        for table in tables:
            print(f"{table.text()}\n\n{table.note}\n", flush=True)
        if args.write:
            write_page(Path(args.folder), page, PAGES[page], facts, pages[page])
    for page in pages if args.write else ():
        print(f"wrote {args.folder}/{page}.md and {args.folder}/{page}.json")


if __name__ == "__main__":
    main()
