"""Measure how fast the core is: `python -m dqn_memory.benchmark`.

Updates stand beside a baseline: the published update (dqn_memory/analysis/published_update.py), measured in the same
process by turns. Memories stand beside torch's recurrences, learners from rollouts beside those of other libraries if
--peer-python names an environment that has them. Prints the tables; --write FOLDER writes them to core.*, memories.*
and rollouts.*, and replaces these files. On CUDA, `rollouts_cuda` measures many memories and numbers of
environments, and `runs_cuda` whole runs by the commands that people type.
"""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from dqn_memory.analysis.published_update import make_baseline_update
from dqn_memory.blocks import Block, build, names
from dqn_memory.config import LearnerConfig
from dqn_memory.network import NetworkConfig, ObservationSpec, QNetwork
from dqn_memory.peers import peer_rows, peers_of
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.replay import Replay, WindowBatch
from dqn_memory.rollouts import CapturedIteration
from dqn_memory.runs import cuda_graph
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.base_config import PLACE, Engine, set_tf32
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.runs.process import keep_freed_memory
from dqn_memory.runs.settings import Repeatable
from dqn_memory.size import count, environment_sizes, gigaflop
from dqn_memory.train import Batch, make_optimizer, make_update, sample
from envs.tables import Table, Value
from envs.timing import BenchmarkArgs, Page, Timer, Timing, Work, floor_columns, matrix_product, run_benchmark

TEXTS: dict[str, tuple[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
Row = dict[str, Value]
CPU = torch.device("cpu")
PUBLISHED = LearnerConfig(
    targets="shifted", window_placement="ending", loss_positions="all", mask_padding=False, lengths=False
)
FORMS = {
    "published": PUBLISHED,
    "corrected": LearnerConfig(),
    "shared": LearnerConfig(loss_positions="all", tail_fraction=1 / 8),
}
BARS = {  # times faster than the baseline, one thread, float32
    ("POMDP/CarFlag-v0", "dtqn4"): 2.5,
    ("Gridverse/Memory-7x7-v0", "dtqn4"): 1.3,
    ("POMDP/CarFlag-v0", "dbgfqn"): 1.6,
    ("Gridverse/Memory-7x7-v0", "dbgfqn"): 1.6,
}
BARRED = ("published", "shared")  # the forms that the bars judge
CASES = tuple(BARS)
# minimum speed of a memory with resets, as a multiple of torch.nn.GRU's or torch.nn.LSTM's, one thread
MEMORY_BARS = {"gru": 1.0, "lstm": 1.0, "mingru": 1.5, "minlstm": 1.5}
STEP_BAR = 1.5  # maximum time of a step for each parameter, as a multiple of torch.nn.GRUCell's
GRAPH_BAR = 5.0  # times faster than eager, on an accelerator
ENGINES: dict[str, tuple[Engine, ...]] = {"cpu": ("eager",), "cuda": ("eager", "cudagraph")}
ROLLOUTS_BAR = 60_000.0  # environment steps a second of PQN with two epochs, two threads
ROLLOUT_MEMORIES = ("gru", "gru_bare", "lstm", "mingru", "attention", "gated_deltanet")
ROLLOUT_SIZES = (2048, 256, 8192, 1024, 512, 4096)  # those first that say most, as --seconds may end the table
BEGAN = time.monotonic()
REPLAY_ENVS = 4  # parallel environments of a full replay


@dataclass(frozen=True, kw_only=True)
class CoreArgs(BenchmarkArgs):
    """Measure updates against the published computation, memories, and whole iterations.

    --only takes these names:
    - update: updates of train
    - memories: the memories beside torch.nn.GRU and torch.nn.LSTM
    - rollouts: environment steps a second of pqn and ppo, with --peer-python also peers
    - peers: pqn beside memorax's and ppo beside sb3-contrib's; it needs --peer-python
    - graphs: captured updates beside eager ones; it needs CUDA
    - rollouts_cuda, runs_cuda: rollouts and whole runs on CUDA; --quick rehearses them on a CPU
    """

    peer_python: Repeatable = ()
    """A Python whose environment has memorax or sb3-contrib, such as peers/bin/python; repeatable."""

    seconds: float | None = None
    """Time from the command's start after which rollouts_cuda measures no further row (None: no limit)."""

    @property
    def known_tables(self) -> Sequence[str]:
        """Names that --only takes."""
        return tuple(TABLES)

    @property
    def wanted(self) -> Sequence[str]:
        """Tables to measure."""
        here = [name for name in TABLES if name != "peers" and (torch.cuda.is_available() or name not in ON_CUDA)]
        names = self.only or here
        return [*names, *(["peers"] if self.peer_python and "rollouts" in names else [])]

    def check(self) -> None:
        """Raise a UserError for tables that cannot be measured here."""
        super().check()
        needed = {"graphs"} if self.quick else set(ON_CUDA)
        if needed.intersection(self.wanted) and (self.clock == "cpu" or not torch.cuda.is_available()):
            needing = ", ".join(name for name in self.wanted if name in needed)
            raise UserError(f"{needing} need a CUDA device that torch sees, and --clock wall; choose others by --only")

        if "peers" in self.wanted and not self.peer_python:
            raise UserError("--only peers needs --peer-python, the Python of an environment that has memorax")
        for python in self.peer_python:
            peers_of(python)

    @property
    def cases(self) -> list[BenchmarkCase]:
        """Cases of all tables."""
        return [BenchmarkCase(*name, batch_size=4 if self.quick else 32) for name in CASES]


# ---- one network and its batches, for our update and for the baseline's ----------------------------------------------
@dataclass(frozen=True)
class BenchmarkCase:
    """One architecture in one environment at the paper's width."""

    env: str
    architecture: str
    context: int = 50
    batch_size: int = 32

    @property
    def columns(self) -> Row:
        """Give the first columns of its rows."""
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

    def batch(self, form: str) -> Batch:
        """Draw one batch as training does, from endless episodes, so that every window is full."""
        network, learner = self.network(), self.learner(form)
        draws = torch.Generator().manual_seed(0)
        replay = full_replay(network.spec, network.num_actions, self.context, draws)
        return sample(replay, learner, self.context, learner.contexts_per_window(network), draws.manual_seed(0))


def full_replay(spec: ObservationSpec, num_actions: int, context: int, draws: torch.Generator) -> Replay:
    """Make a replay of random transitions that has wrapped around, so that every window is K steps long."""
    columns, tokens = 2 * context + 2, spec.vocabulary - 1 if spec.kind == "discrete" else 1
    replay = Replay(spec, num_actions, REPLAY_ENVS, columns * REPLAY_ENVS, CPU)
    cells = {name: torch.zeros_like(cell) for name, cell in replay.cells.items()}
    below = {"observation": tokens, "next_observation": tokens, "previous_action": num_actions, "action": num_actions}
    for name, end in {**below, "reward": 1}.items():
        cells[name] = (torch.rand(cells[name].shape, generator=draws) * end).to(cells[name].dtype)
    cells["time"] += torch.arange(context, context + columns)[:, None]
    replay.restore(context, cells)
    return replay


def update_work(case: BenchmarkCase, form: str, engine: Engine = "eager", device: str = "cpu") -> Work:
    """Make an update of ours on a batch of full windows."""
    learner, network = case.learner(form), case.network(device)
    target = case.network(device).requires_grad_(False)  # cuDNN packs a copy's recurrent weights anew at each call
    optimizer = make_optimizer(network, learner, capturable=device != "cpu")
    run = make_update(engine, network, target, optimizer, learner)
    batch = mapped(lambda x: x.to(device), case.batch(form))
    return lambda: run(batch)


def baseline_work(case: BenchmarkCase) -> Work:
    """Make one update of the baseline on the same windows as the published form's."""
    batch = case.batch("published")
    assert isinstance(batch, WindowBatch)
    return make_baseline_update(case.network(), batch)


# ---- the core --------------------------------------------------------------------------------------------------------
def update_rows(args: CoreArgs) -> Iterator[Row]:
    """Measure the milliseconds of one update on full windows, against the baseline and the floor."""
    product, of_product = matrix_product(128 if args.quick else 1024, torch.float32)
    for case in args.cases:
        works = {"baseline": baseline_work(case), **{form: update_work(case, form) for form in FORMS}}
        operations = {form: gigaflop(works["baseline" if form == "published" else form]) for form in FORMS}
        times = args.timer({**works, "product": product})
        rate = of_product / times["product"].median
        for form in FORMS:
            yield {
                **case.columns, "form": form, **times[form].against(times["baseline"]),
                "bar": BARS[case.env, case.architecture] if form in BARRED else None,
                "gflop_s": 1000 * rate, **floor_columns(times[form], operations[form], rate),
            }  # fmt: skip


def graph_rows(args: CoreArgs) -> Iterator[Row]:
    """Measure one update eager and as a captured CUDA graph, in both forms."""
    for case, form in itertools.product(args.cases, ("published", "corrected")):
        times = args.timer({engine: update_work(case, form, engine, "cuda") for engine in ENGINES["cuda"]})
        row = {"world": case.env, "architecture": case.architecture, "form": form}
        yield {**row, **times["cudagraph"].against(times["eager"], "eager"), "bar": GRAPH_BAR}


# ---- memories --------------------------------------------------------------------------------------------------------
def memory_tables(args: CoreArgs) -> Iterator[Table]:
    """Measure the sequence and the step of each memory: a row in each of two tables."""
    batch, time, width = (4, 8, 16) if args.quick else (256, 64, 64)
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(batch, time, width, generator=draws).requires_grad_()
    reset = torch.rand(batch, time, generator=draws) < 1 / 32
    product, of_product = matrix_product(128 if args.quick else 1024, torch.float32)
    gru, lstm = (kind(width, width, batch_first=True) for kind in (nn.GRU, nn.LSTM))
    torchs = {"gru": lambda: gru(x)[0].sum().backward(), "lstm": lambda: lstm(x)[0].sum().backward()}
    cell = nn.GRUCell(width, width)
    step_timer = replace(args.timer, repetitions=4 * args.timer.repetitions)
    sequences, steps = list[Row](), list[Row]()
    for name in names():
        block = build(name, width)
        if not block.stateful or (block.pointwise and name != "mlp"):
            continue
        resolve_backend([block], "auto", CPU)
        whole, step = memory_works(block, x, reset)
        times = args.timer({"ours": whole, **torchs, "product": product})
        sequences.append(sequence_row(name, block, times, gigaflop(whole), of_product / times["product"].median))
        single = step_timer({"ours": step, "cell": torch.no_grad()(lambda: cell(x[:, 0]))})
        share = count(cell).trainable / count(block).trainable / single["ours"].speed_up(single["cell"])
        steps.append({
            "memory": name, "us": 1000 * single["ours"].median, "cell_us": 1000 * single["cell"].median,
            "of_cell_per_parameter": share, "bar": STEP_BAR,
        })  # fmt: skip
    yield Table.from_records(sequences, *TEXTS["sequences"])
    yield Table.from_records(steps, *TEXTS["steps"])


def memory_works(block: Block, x: Tensor, reset: Tensor) -> tuple[Work, Work]:
    """Make a pass forward and backward over x (B, T, D), and one step of its rows."""
    state = block.initial_state(len(x))

    @torch.no_grad()
    def step() -> None:
        block.step(x[:, 0], state, reset[:, 0])

    return lambda: block.sequence(x, None, reset)[0].sum().backward(), step


def sequence_row(name: str, block: Block, times: dict[str, Timing], operations: float, rate: float) -> Row:
    """Put a memory's pass over sequences beside those of torch's GRU and LSTM."""
    ours = times["ours"]
    row: Row = {"memory": name, "parameters": count(block).trainable, "ms": ours.median, "spread": ours.spread}
    for other in ("gru", "lstm"):
        row |= {f"{other}_ms": times[other].median, f"{other}_speed_up": ours.speed_up(times[other])}
    return {**row, "bar": MEMORY_BARS.get(name), **floor_columns(ours, operations, rate)}


# ---- learners from rollouts ------------------------------------------------------------------------------------------
RolloutLearner = type[PQNTrainer] | type[PPOTrainer]
LEARNERS: tuple[RolloutLearner, ...] = (PQNTrainer, PPOTrainer)


@dataclass(frozen=True)
class RolloutCase:
    """A learner in Memory 5x5 whose iterations are timed, with the defaults of its script otherwise."""

    kind: RolloutLearner
    memory: str
    envs: int
    prediction: float = 1.0
    threads: int = 1
    device: str = "cpu"

    def trainer(self) -> Any:
        """Make a trainer with the eager engine."""
        config: Any = self.kind.config_class()
        environment = replace(config.environment, env="Gridverse/Memory-5x5-v0", num_envs=self.envs)
        network = replace(config.network, architecture=self.memory)
        weight = replace(config.prediction, prediction_weight=self.prediction)
        compute = replace(config.compute, device=self.device, engine="eager")
        return self.kind(replace(config, environment=environment, network=network, prediction=weight, compute=compute))

    def rows(self, timer: Timer, engines: Sequence[Engine], product: tuple[Work, float]) -> Iterator[Row]:
        """Time a trainer by each engine; a row says why an engine cannot run it."""
        torch.set_num_threads(self.threads)
        few = self if self.device == "cpu" else replace(self, envs=16, device="cpu")
        operations, trainer = operations_of(few) * self.envs / few.envs, None
        for engine in engines:
            row: Row = {**self.names, "engine": engine}
            gc.collect()  # the graphs of earlier trainers
            torch.cuda.empty_cache()
            try:
                trainer = trainer or self.trainer()
                if engine == "cudagraph":
                    networks = list(trainer.networks().values())
                    cuda_graph.WARM_UPS = 1  # the eager iterations were the others
                    trainer.learn_once = CapturedIteration(
                        trainer.learn, trainer.collector, networks, trainer.optimizer
                    )
                times = timer({"iteration": trainer.iterate, "product": product[0]})
            except RuntimeError as error:  # out of memory, or no graph can hold it
                yield row | {"reason": str(error).partition("\n")[0][:100]}
                continue
            mine = times["iteration"]
            yield row | {
                "rollout_steps": trainer.collector.length, "epochs": trainer.config.learner.epochs,
                "ms": mine.median, "spread": mine.spread, "steps_s": 1000 * trainer.steps_per_iteration / mine.median,
                "bar": ROLLOUTS_BAR if (self.kind, self.threads) == (PQNTrainer, 2) else None,
                **floor_columns(mine, operations, product[1] / times["product"].median),
            }  # fmt: skip

    @property
    def names(self) -> Row:
        """Give the first columns of its rows."""
        row: Row = {"learner": self.kind.kind, "memory": self.memory, "envs": self.envs}
        return row | {"prediction": self.prediction, "threads": self.threads}


@cache
def operations_of(case: RolloutCase) -> float:
    """Count the billions of operations of an iteration."""
    return gigaflop(case.trainer().iterate)


def iteration_rows(args: CoreArgs, device: str) -> Iterator[Row]:
    """Measure the environment steps per second of whole iterations: acting, environments, returns, updates.

    On a CPU these are iterations of 256 environments, on CUDA of several sizes.
    """
    if device == "cpu":
        envs, threads, weights = (8, (1,), (1.0,)) if args.quick else (256, (1, 2), (0.0, 1.0))
        named = [(kind, weight, number) for kind in LEARNERS for number in threads for weight in weights]
        cases = [RolloutCase(kind, "gru", envs, weight, number) for kind, weight, number in named]
        others = () if args.quick else ROLLOUT_MEMORIES[1:]
        cases += [RolloutCase(kind, memory, envs) for kind in LEARNERS for memory in others]
    else:
        where, sizes = "cuda" if torch.cuda.is_available() else "cpu", (8,) if args.quick else ROLLOUT_SIZES
        pairs = [(kind, memory) for kind in LEARNERS for memory in ROLLOUT_MEMORIES]
        cases = [RolloutCase(kind, memory, envs, device=where) for envs in sizes for kind, memory in pairs]
    large = 128 if args.quick else 1024 if device == "cpu" else 8192
    product = matrix_product(large, torch.float32, cases[0].device)
    timer = args.timer if device == "cpu" else replace(args.timer, warm_up=1)
    for case in cases:
        if args.seconds is not None and time.monotonic() - BEGAN > args.seconds:
            yield case.names | {"reason": "no time left"}
        else:
            yield from case.rows(timer, ENGINES[device], product)
    torch.set_num_threads(args.threads)


def run_rows(args: CoreArgs) -> Iterator[Row]:
    """Train whole runs by the commands that people type; give their scores, and their seconds with evaluations."""
    num_envs, steps = (16, 4096) if args.quick else (2048, 16_000_000)
    with TemporaryDirectory() as folder:
        for kind, env in itertools.product(LEARNERS, ("Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0")):
            run, began = Path(folder) / kind.kind / env, time.monotonic()
            row: Row = {"learner": kind.kind, "env": env, "envs": num_envs, "steps": steps}
            flags = f"--env {env} --num-envs {num_envs} --total-steps {steps} --epsilon-steps {steps // 2}"
            flags += f" --evaluate-every {steps // 4} --device auto"
            command = [sys.executable, "-m", f"dqn_memory.{kind.kind}", *flags.split(), "--run", str(run)]
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                yield row | {"reason": ended.stderr.strip().rpartition("\n")[2][:100]}
                continue
            last = read_metrics(run / "metrics.jsonl")[-1]
            yield row | {
                "computed_on": Run.open(run).environment[PLACE], "seconds": time.monotonic() - began,
                "success": last["final/success_rate"], "without_memory": last["memory_ablation/success_rate"],
            }  # fmt: skip


def rows_beside_peers(args: CoreArgs) -> Iterator[Row]:
    """Measure pqn and ppo beside the same learners of other libraries, on one core."""
    torch.set_num_threads(1)
    yield from peer_rows(args.peer_python, replace(args.timer, clock="cpu"), args.quick)
    torch.set_num_threads(args.threads)


# ---- the command -----------------------------------------------------------------------------------------------------
def one_table(text: str, rows: Callable[[CoreArgs], Iterable[Row]]) -> Callable[[CoreArgs], Iterable[Table]]:
    """Make a single table of rows, under its title and note in benchmark.toml."""
    return lambda args: [Table.from_records(rows(args), *TEXTS[text])]


PAGES = {
    "core": "Speed of the core",
    "memories": "Speed of memories",
    "rollouts": "Speed of learners from rollouts",
}
TABLES: dict[str, tuple[str, Callable[[CoreArgs], Iterable[Table]]]] = {  # by name of --only: page, tables
    "update": ("core", one_table("update", update_rows)),
    "graphs": ("core", one_table("graphs", graph_rows)),
    "memories": ("memories", memory_tables),
    "rollouts": ("rollouts", one_table("iterations", partial(iteration_rows, device="cpu"))),
    "peers": ("rollouts", one_table("peers", rows_beside_peers)),
    "runs_cuda": ("rollouts", one_table("runs", run_rows)),
    "rollouts_cuda": ("rollouts", one_table("iterations", partial(iteration_rows, device="cuda"))),
}
ON_CUDA = ("graphs", "runs_cuda", "rollouts_cuda")


def pages(args: CoreArgs) -> Iterator[Page]:
    """Measure page after page."""
    set_tf32(False)
    keep_freed_memory()
    for page, title in PAGES.items():
        makers = [make for name, (of, make) in TABLES.items() if of == page and name in args.wanted]
        if makers:
            yield Page(page, title, itertools.chain.from_iterable(make(args) for make in makers))


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure; print the tables of every page, and write them with --write."""
    run_benchmark("dqn_memory.benchmark", CoreArgs, pages, argv)


if __name__ == "__main__":
    main()
