"""Measure how fast the core is: `python -m dqn_memory.benchmark`.

Every number stands beside that of a baseline which computes the published update as its reference does
(dqn_memory/analysis/reference.py), measured in the same process by turns; memories stand beside torch's recurrences.
Prints the tables; --write FOLDER keeps them as core.*, memories.*, rollouts.* and mamba.*, each written whole: its
tables that were not asked for are not kept.
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
from torch import nn

from dqn_memory.actors import WindowActor
from dqn_memory.analysis import reference
from dqn_memory.analysis.size import count, environment_sizes, gigaflop
from dqn_memory.analysis.timing import CompareArgs, Work, full_replay, matrix_product
from dqn_memory.blocks import Block, build, names
from dqn_memory.config import LearnerConfig
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.replay import WindowBatch
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.common import Engine, set_tf32
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.train import Batch, make_optimizer, make_update, sample
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
# how many times torch.nn.GRU's, or torch.nn.LSTM's, speed a memory with resets should have, one thread
MEMORY_BARS = {"gru": 1.0, "lstm": 1.0, "mingru": 1.5, "minlstm": 1.5}
STEP_BAR = 1.5  # times torch.nn.GRUCell's time for each parameter that a step should take at most
GRAPH_BAR = 5.0  # times faster than eager, on an accelerator
ENGINES: dict[str, tuple[Engine, ...]] = {"cpu": ("eager",), "cuda": ("eager", "cudagraph")}
ROLLOUTS_BAR = 60_000.0  # environment steps a second of PQN with two epochs, two threads
STEPS_BAR = 1000.0  # environment steps a second with one update a step, on an accelerator


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Args(CompareArgs):
    """Measure updates and acting against the reference's way of computing them, and Mamba against mambapy.

    --only knows update, acting, memories (each beside torch.nn.GRU and torch.nn.LSTM), rollouts (environment steps/s of
    pqn and ppo), mamba (the mixer and its scan, beside the package mambapy where it is installed); with a CUDA device
    also graphs (eager against captured updates), training (environment steps/s with one update a step), rollouts_cuda
    and mamba_cuda (every backend there).
    """

    compile: bool = False
    """Also measure the published update under --engine compile (needs a C++ compiler, minutes of it)."""

    def check(self) -> None:
        """Refuse in one sentence what cannot work."""
        self.check_tables((*TABLES, *PAGES))
        if set(self.tables()) & set(ON_CUDA) and (self.clock == "cpu" or not torch.cuda.is_available()):
            needing = " and ".join(ON_CUDA)
            raise UserError(f"{needing} need a CUDA device that torch sees, and --clock wall; choose others by --only")

    def tables(self) -> Sequence[str]:
        """List what is to be measured."""
        return self.only or [name for name in (*TABLES, *PAGES) if torch.cuda.is_available() or name not in ON_CUDA]

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

    def batch(self, form: str) -> Batch:
        """Draw one batch as training does, from endless episodes, so that every window is full."""
        network, learner = self.network(), self.learner(form)
        draws = torch.Generator().manual_seed(0)
        replay = full_replay(network.spec, network.num_actions, self.context, draws)
        return sample(replay, learner, self.context, learner.contexts_per_window(network), draws.manual_seed(0))


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
    size = 128 if args.quick else 1024
    for case in args.cases((*CASES, *NO_BASELINE)):
        name, choice = (case.env, case.architecture), resolve_backend([case.network()], "auto", torch.device("cpu"))
        works = {form: update_work(case, form) for form in FORMS}
        baseline = {} if name in NO_BASELINE else {"baseline": baseline_work(case)}
        operations = {form: gigaflop(work) for form, work in works.items()}
        operations["published"] = gigaflop(baseline.get("baseline", works["published"]))
        if args.compile:
            works["published, compiled"] = update_work(case, "published", "compile")
            operations["published, compiled"] = operations["published"]
        single, of_single = matrix_product(size, torch.float32)
        times = args.timer({**baseline, **works, "float32 product": single})
        rate = 1000 * of_single / times["float32 product"].median
        for form in works:
            floor = 1000 * operations[form] / rate
            yield {
                **case.columns, "form": form, "backend": None if choice is None else choice.name,
                **times[form].against(times.get("baseline")), "bar": BARS.get(name) if form in BARRED else None,
                "gflop": operations[form], "gflop_s": rate, "floor_ms": floor, "reached": floor / times[form].median,
            }  # fmt: skip


def acting_rows(args: Args) -> Rows:
    """Measure the milliseconds to value the actions of one step."""
    timer = replace(args.timer, repetitions=4 * args.timer.repetitions)
    for case, episodes in itertools.product(args.cases(CASES), (1, 16)):
        times = timer(acting_works(case, episodes))
        yield {**case.columns, "episodes": episodes, **times["ours"].against(times["baseline"])}


def graph_rows(args: Args) -> Rows:
    """Measure one update eager and as a captured CUDA graph, in both forms."""
    for case, form in itertools.product(args.cases(CASES), ("published", "corrected")):
        works = {engine: update_work(case, form, engine, "cuda") for engine in ("eager", "cudagraph")}
        times = args.timer(works)
        row = {"world": case.env, "architecture": case.architecture, "form": form}
        yield {**row, **times["cudagraph"].against(times["eager"], "eager"), "bar": GRAPH_BAR}


def training_rows(args: Args) -> Rows:
    """Measure environment steps per second of `dqn_memory.train` with one update for every step."""
    for env, architecture in CASES:
        rate = training_rate(env, architecture, 320 if args.quick else 8_000)
        yield {"world": env, "architecture": architecture, "steps_s": rate, "bar": STEPS_BAR}


def training_rate(env: str, architecture: str, steps: int, device: str = "cuda", engine: str = "cudagraph") -> float:
    """Train once in a process of its own; give the steps per second between its first and its last log line."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"--env {env} --architecture {architecture} --width {environment_sizes(env).width} --device {device} "
        words += f"--engine {engine} --total-steps {steps} --log-every {steps // 4} {TEXTS['training']}"
        command = [sys.executable, "-m", "dqn_memory.train", *words.split(), "--run", f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"training {architecture} in {env} failed: {done.stderr.strip()[-300:]}")
        lines = [line for line in read_metrics(Path(folder) / "run" / "metrics.jsonl") if "charts/SPS" in line]
    first, last = lines[0], lines[-1]
    return float((last["step"] - first["step"]) / (last["time/elapsed"] - first["time/elapsed"]))


# ---- memories --------------------------------------------------------------------------------------------------------
def memory_rows(args: Args) -> Iterator[tuple[dict[str, Value], dict[str, Value]]]:
    """Measure the sequence and the step of each memory: a row of both tables."""
    batch, time, width = (4, 8, 16) if args.quick else (256, 64, 64)
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(batch, time, width, generator=draws).requires_grad_()
    reset = torch.rand(batch, time, generator=draws) < 1 / 32
    product, of_product = matrix_product(128 if args.quick else 1024, torch.float32)
    gru, lstm = (kind(width, width, batch_first=True) for kind in (nn.GRU, nn.LSTM))
    cell = nn.GRUCell(width, width)
    step_timer = replace(args.timer, repetitions=4 * args.timer.repetitions)
    for name in names():
        block = build(name, width)
        if not block.stateful or (block.pointwise and name != "mlp"):
            continue
        resolve_backend([block], "auto", torch.device("cpu"))
        ours, step = memory_works(block, x, reset)
        others: dict[str, Work] = {
            "gru": lambda: gru(x)[0].sum().backward(),
            "lstm": lambda: lstm(x)[0].sum().backward(),
        }
        times = args.timer({"ours": ours, **others, "product": product})
        steps = step_timer({"ours": step, "cell": torch.no_grad()(lambda: cell(x[:, 0]))})
        mine, parameters = times["ours"], count(block).trainable
        operations = gigaflop(ours)
        floor = operations / of_product * times["product"].median
        sequences: dict[str, Value] = {
            "memory": name,
            "parameters": parameters,
            "ms": mine.median,
            "spread": mine.spread,
        }
        for kind in others:
            sequences |= {f"{kind}_ms": times[kind].median, f"{kind}_speed_up": mine.speed_up(times[kind])}
        bar = {"bar": MEMORY_BARS.get(name)}
        share = count(cell).trainable / parameters / steps["ours"].speed_up(steps["cell"])
        yield (
            {**sequences, **bar, "gflop": operations, "floor_ms": floor, "reached": floor / mine.median},
            {
                "memory": name, "us": 1000 * steps["ours"].median, "cell_us": 1000 * steps["cell"].median,
                "of_cell_per_parameter": share, "bar": STEP_BAR,
            },
        )  # fmt: skip


def memory_works(block: Block, x: torch.Tensor, reset: torch.Tensor) -> tuple[Work, Work]:
    """Make a pass forward and backward over x (B, T, D), and one step of its rows."""
    state = block.initial_state(len(x))

    @torch.no_grad()
    def step() -> None:
        block.step(x[:, 0], state, reset[:, 0])

    return lambda: block.sequence(x, None, reset)[0].sum().backward(), step


def memory_tables(args: Args) -> list[Table]:
    """Make both tables of the memories."""
    sequences, steps = zip(*memory_rows(args), strict=True)
    return [
        Table.from_records(list(rows), *TEXTS["tables"][name])
        for name, rows in (("sequences", sequences), ("steps", steps))
    ]


# ---- learners from rollouts ------------------------------------------------------------------------------------------
def learner_from_rollouts(
    kind: type[PQNTrainer] | type[PPOTrainer], num_envs: int, device: str, engine: Engine = "eager",
    prediction: float = 1.0,
) -> PQNTrainer | PPOTrainer:  # fmt: skip
    """Make a run of Memory 5x5 as its script would with few other flags."""
    config: Any = kind.config_class()
    environment = replace(config.environment, env="Gridverse/Memory-5x5-v0", num_envs=num_envs)
    compute = replace(config.compute, device=device, engine=engine)
    weight = replace(config.prediction, prediction_weight=prediction)
    return kind(replace(config, environment=environment, compute=compute, prediction=weight))


def iteration_rows(args: Args, device: str) -> Rows:
    """Measure the environment steps per second of whole iterations: acting, environments, returns, updates."""
    large = 128 if args.quick else 1024 if device == "cpu" else 8192
    product, of_product = matrix_product(large, torch.float32, device)
    learners: tuple[type[PQNTrainer] | type[PPOTrainer], ...] = (PQNTrainer, PPOTrainer)
    sizes = (8,) if args.quick else (256,) if device == "cpu" else (256, 2048)
    for kind, threads, num_envs, prediction in itertools.product(
        learners, (1, 2) if device == "cpu" else (1,), sizes, (0.0, 1.0)
    ):
        torch.set_num_threads(threads)
        counted = learner_from_rollouts(kind, num_envs, device, prediction=prediction)
        operations = gigaflop(counted.iterate)
        for engine in ENGINES[device]:
            trainer = learner_from_rollouts(kind, num_envs, device, engine=engine, prediction=prediction)
            times = args.timer({"iteration": trainer.iterate, "product": product})
            mine, floor = times["iteration"], operations / of_product * times["product"].median
            yield {
                "learner": kind.kind, "engine": engine, "prediction": prediction, "threads": threads,
                "envs": num_envs, "rollout_steps": trainer.collector.length, "epochs": trainer.config.learner.epochs,
                "ms": mine.median, "spread": mine.spread, "steps_s": 1000 * trainer.steps_per_iteration / mine.median,
                "bar": ROLLOUTS_BAR if (kind, threads) == (PQNTrainer, 2) else None,
                "gflop": operations, "floor_ms": floor, "reached": floor / mine.median,
            }  # fmt: skip
    torch.set_num_threads(args.threads)


def rollout_tables(args: Args, device: str) -> list[Table]:
    """Make the table of learners from rollouts."""
    return [Table.from_records(list(iteration_rows(args, device)), *TEXTS["tables"]["iterations"])]


def mamba_tables(args: Args, device: str) -> list[Table]:
    """Measure Mamba's mixer and scan beside mambapy's."""
    return reference.mamba_tables(args.timer, 2 if args.quick else 2048, device)


# ---- measure, print, write -------------------------------------------------------------------------------------------
TABLES: dict[str, Callable[[Args], Rows]] = {
    "update": update_rows,
    "acting": acting_rows,
    "graphs": graph_rows,
    "training": training_rows,
}
# tables of pages of their own: page, title, tables
PAGES: dict[str, tuple[str, str, Callable[[Args], Iterable[Table]]]] = {
    "memories": ("memories", "Speed of memories", memory_tables),
    "rollouts": ("rollouts", "Speed of learners from rollouts", lambda args: rollout_tables(args, "cpu")),
    "rollouts_cuda": ("rollouts", "Speed of learners from rollouts", lambda args: rollout_tables(args, "cuda")),
    "mamba": ("mamba", "Speed of Mamba", lambda args: mamba_tables(args, "cpu")),
    "mamba_cuda": ("mamba", "Speed of Mamba", lambda args: mamba_tables(args, "cuda")),
}
ON_CUDA = ("graphs", "training", "rollouts_cuda", "mamba_cuda")


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure; print the tables of both pages, and write them where asked."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.benchmark")
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts = origin("dqn_memory.benchmark", argv, **benchmark_facts())
    wanted = args.tables()
    core = (Table.from_records(make(args), *TEXTS["tables"][name]) for name, make in TABLES.items() if name in wanted)
    publish(core, args.write, "core", "Speed of the core", facts)
    for page, title in dict.fromkeys(PAGES[name][:2] for name in wanted if name in PAGES):
        tables = (make(args) for name, (of, _, make) in PAGES.items() if of == page and name in wanted)
        publish(itertools.chain.from_iterable(tables), args.write, page, title, facts)


if __name__ == "__main__":
    main()
