"""Measure what each memory learns to remember: `python -m dqn_memory.memory_bench`.

The tasks are supervised, so that results do not depend on learning to act. Every memory stands in the same gated
residual layer, in a network of as many parameters, and is trained for the same processor time on delays up to 256. A
sequence holds several episodes, with a reset at the beginning of each. Networks are evaluated on delays up to 1,024.

Prints the tables; --write FOLDER writes them to memory_bench.json, .md and .png. Each finished training is a row there,
so the same command continues a bench that was stopped.
"""

import itertools
import math
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.analysis.plots import plot_delay_curves, save
from dqn_memory.network import ARCHITECTURES, Architecture, NetworkConfig, ObservationSpec, QNetwork
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.common import set_tf32
from dqn_memory.runs.errors import UserError, check_known, one_line_errors
from dqn_memory.runs.progress import Progress
from dqn_memory.runs.seeding import Streams, generator, seeded
from dqn_memory.runs.settings import Bounds, Repeatable, check_numbers
from dqn_memory.size import match, on_meta
from envs.cli import Plugins, WriteArgs, load_plugins
from envs.files import make_folder
from envs.machine import benchmark_facts, revision
from envs.tables import Table, Value, origin, read_page, read_tables, write_page
from envs.terminal import say
from envs.timing import Timer

NAME, TITLE = "memory_bench", "What memories learn to remember"
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CPU = torch.device("cpu")
REMEMBERED = 0.9  # accuracy that counts as remembered
Row = dict[str, Value]


# ---- tasks: B sequences of T positions, which hold E episodes --------------------------------------------------------
ITEMS = 4  # symbols of an episode that are to be copied, or pairs that are to be recalled
SYMBOLS = 8  # tokens 0 ... 7, and the classes of the output
BLANK, RECALL = 8, 9  # a blank, and the token that asks for the next symbol; 10 and 11 are not in use
KEY = 12  # the first of SYMBOLS keys
PAIR = KEY + SYMBOLS  # of a key and a symbol: PAIR + SYMBOLS * key + symbol
VOCABULARY = PAIR + SYMBOLS**2
SPEC = ObservationSpec("discrete", (1,), VOCABULARY, torch.int32)
Episodes = tuple[Tensor, Tensor, Tensor]  # tokens that are shown, tokens that ask, their answers, all (B, E, 4)


def copy(rows: int, episodes: int, draws: torch.Generator) -> Episodes:
    """Draw four symbols, to be repeated in their order."""
    symbols = torch.randint(SYMBOLS, (rows, episodes, ITEMS), generator=draws)
    return symbols, torch.full_like(symbols, RECALL), symbols


def associative_recall(rows: int, episodes: int, draws: torch.Generator) -> Episodes:
    """Draw four pairs of a key and a symbol; then each key alone, in any order, asks for its symbol.

    A pair is one token, so that a single layer can keep it without looking at neighbours.
    """
    keys = torch.rand(rows, episodes, SYMBOLS, generator=draws).argsort(-1)[..., :ITEMS]
    symbols = torch.randint(SYMBOLS, (rows, episodes, ITEMS), generator=draws)
    order = torch.rand(rows, episodes, ITEMS, generator=draws).argsort(-1)
    return PAIR + SYMBOLS * keys + symbols, KEY + keys.gather(-1, order), symbols.gather(-1, order)


TASKS: dict[str, Callable[[int, int, torch.Generator], Episodes]] = {
    "copy": copy,
    "associative_recall": associative_recall,
}


class TaskBatch(NamedTuple):
    """Sequences of several episodes, all (B, T)."""

    tokens: Tensor
    targets: Tensor  # the answers; without meaning where `asked` is false
    asked: Tensor
    reset: Tensor  # true where an episode begins


def draw_sequences(task: str, delays: Tensor, length: int, draws: torch.Generator) -> TaskBatch:
    """Fill sequences of `length` positions with episodes of these delays (B, E); the last one may be cut.

    An episode shows four tokens, then `delay` blanks, then asks four times.
    """
    ends = (delays + 2 * ITEMS).cumsum(1)  # (B, E)
    time = torch.arange(length).expand(len(delays), -1).contiguous()  # (B, T)
    episode = torch.searchsorted(ends, time, right=True)
    offset = time - F.pad(ends, (1, 0)).gather(1, episode)
    since = offset - ITEMS - delays.gather(1, episode)  # positions since the first query
    shown, queries, answers = TASKS[task](delays.shape[0], delays.shape[1], draws)

    def place(values: Tensor, index: Tensor) -> Tensor:
        """Take one of the four values of each position's episode by `index` (B, T), clamped to 0 ... 3."""
        here = values.gather(1, episode[..., None].expand(-1, -1, ITEMS))  # (B, T, 4)
        return here.gather(-1, index.clamp(0, ITEMS - 1)[..., None])[..., 0]

    later = torch.where(since < 0, BLANK, place(queries, since))
    tokens = torch.where(offset < ITEMS, place(shown, offset), later)
    return TaskBatch(tokens, place(answers, since), since >= 0, offset == 0)


def training_batch(task: str, max_delay: int, rows: int, length: int, draws: torch.Generator) -> TaskBatch:
    """Draw a batch of training, whose delays are 1 ... `max_delay`, log-uniform."""
    share = torch.rand(rows, math.ceil(length / (1 + 2 * ITEMS)), generator=draws, dtype=torch.float64)
    return draw_sequences(task, ((max_delay + 1.0) ** share).long(), length, draws)


def evaluation_batch(task: str, delay: int, rows: int, draws: torch.Generator) -> TaskBatch:
    """Draw a batch of evaluation: two whole episodes of this delay."""
    return draw_sequences(task, torch.full((rows, 2), delay), 2 * (delay + 2 * ITEMS), draws)


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BenchSizes:
    """Sizes of the batches of training and of the evaluation."""

    rows: int = 16  # of a batch
    length: int = 320  # of a sequence, and the context of a memory that attends
    max_delay: int = 256  # delay in training
    delays: tuple[int, ...] = tuple(2**power for power in range(1, 11))  # of the evaluation
    evaluated: int = 128  # rows of the evaluation, of two episodes each


@dataclass(frozen=True, kw_only=True)
class MemoryBenchArgs(WriteArgs):
    """Train every memory on supervised memory tasks, and report its accuracy by delay."""

    write: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder of the results; trainings that have a row there are not repeated (None: print only)."""
    task: Repeatable = ()
    """copy or associative_recall; repeatable (none given: both)."""
    memory: Repeatable = ()
    """Architectures; repeatable (none given: each memory in the layer in which memories are compared)."""
    seeds: Annotated[int, Bounds(1)] = 3
    """Trainings of each memory in each task, with the seeds 0, 1, ..."""
    seconds: Annotated[float, Bounds(above=0, most=1e6)] = 60.0
    """Processor seconds of a training; a short timing of each memory converts them to updates."""
    updates: Annotated[int, Bounds(1)] | None = None
    """Updates of a training, in place of --seconds; the number in a row reproduces that row."""
    match: str = "100k"
    """Trainable parameters of every network, or at most 2 % fewer."""
    learning_rate: Annotated[float, Bounds(above=0)] = 3e-3
    """Peak learning rate of Adam; it rises over the first twentieth of the updates, then falls to 0 by a cosine."""
    threads: Annotated[int, Bounds(1, 1_024)] = 1
    """Threads of torch; processor time counts all of them."""
    plugin: Plugins = ()
    """A module that registers memories of your own, by its name without .py; repeatable."""
    quick: bool = False
    """Tiny sizes: shows that everything runs; its numbers mean nothing."""

    def check(self) -> None:
        """Raise a UserError for unknown names and for numbers out of bounds."""
        check_numbers(self)
        for kind, given, known in (("task", self.task, TASKS), ("memory", self.memory, streaming())):
            for name in given:
                check_known(f"{kind} of --{kind}", name, known)

    @property
    def sizes(self) -> BenchSizes:
        """Sizes of the batches."""
        return BenchSizes(2, 48, 16, (2, 32), 2) if self.quick else BenchSizes()

    @property
    def settings(self) -> dict[str, Value]:
        """Settings that all rows of one folder share."""
        shared = ("seconds", "updates", "match", "learning_rate", "threads", "quick")
        return {name: getattr(self, name) for name in shared}

    def config(self, name: str) -> NetworkConfig:
        """Size a memory's network."""
        return match(self.match, network_config(name, self.sizes), SPEC, SYMBOLS)


# ---- networks and training -------------------------------------------------------------------------------------------
def streaming() -> list[str]:
    """List the architectures that carry a state."""
    rows = [name for name, row in ARCHITECTURES.items() if isinstance(row, Architecture) and row.positions == "none"]
    return [name for name in rows if on_meta(network_config(name), SPEC, 2).stateful]


def compared_memories() -> list[str]:
    """List the architectures that carry a state and have the layer in which memories are compared."""
    layer = {"gate": "gru", "order": "identity", "wrapped": True}
    return [name for name in streaming() if all(getattr(ARCHITECTURES[name], key) == layer[key] for key in layer)]


def network_config(name: str, sizes: BenchSizes | None = None) -> NetworkConfig:
    """Configure the network of an architecture, of the default width."""
    return NetworkConfig(architecture=name, context=(sizes or BenchSizes()).length, initialisation="torch")


def build_network(config: NetworkConfig, seed: int) -> QNetwork:
    """Build a network with the initial weights of this seed, on the fastest backend of its memory here."""
    with seeded(seed):
        network = config.build(SPEC, SYMBOLS)
    resolve_backend([network], "auto", CPU)
    return network


def compute_loss(network: QNetwork, batch: TaskBatch) -> Tensor:
    """Average the cross-entropy over the positions of queries."""
    logits, _ = network.sequence(batch.tokens[..., None], batch.tokens, None, batch.reset)  # (B, T, S)
    return F.cross_entropy(logits[batch.asked], batch.targets[batch.asked])


def updater(network: QNetwork, learning_rate: float, updates: int) -> Callable[[TaskBatch], float]:
    """Make one update of Adam as a function of a batch; it returns the loss before the update."""
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    rise = max(1, updates // 20)

    def rate(update: int) -> float:
        return min(1.0, (update + 1) / rise) * (1 + math.cos(math.pi * update / updates)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def update(batch: TaskBatch) -> float:
        optimizer.zero_grad()
        loss = compute_loss(network, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        network.project()
        schedule.step()
        return float(loss.detach())

    return update


@torch.no_grad()
def accuracy_at(network: QNetwork, task: str, delay: int, sizes: BenchSizes, draws: torch.Generator) -> float:
    """Give the share of right answers at a delay; the state is carried from one chunk of the sequence to the next."""
    batch, state, right = evaluation_batch(task, delay, sizes.evaluated, draws), None, 0
    for tokens, targets, asked, reset in zip(*(each.split(sizes.length, 1) for each in batch), strict=True):
        logits, state = network.sequence(tokens[..., None], tokens, state, reset)
        right += int(((logits.argmax(-1) == targets) & asked).sum())
    return right / int(batch.asked.sum())


def train_network(task: str, name: str, seed: int, updates: int, args: MemoryBenchArgs) -> Row:
    """Train one network and evaluate it: a row of the results."""
    sizes, streams = args.sizes, Streams.spawn(seed)
    network, draws = build_network(args.config(name), streams.network), generator(streams.replay)
    update, began, loss = updater(network, args.learning_rate, updates), time.process_time(), math.nan
    with Progress(updates, title=f"{task} {name} seed {seed}", interval=30.0) as progress:
        for done in range(1, updates + 1):
            loss = update(training_batch(task, sizes.max_delay, sizes.rows, sizes.length, draws))
            progress.update(done, loss=loss)
    seconds, judged = time.process_time() - began, generator(streams.evaluation)
    facts: Row = {"updates": updates, "cpu_s": seconds, "loss": loss if math.isfinite(loss) else None}
    accuracy = {str(delay): accuracy_at(network, task, delay, sizes, judged) for delay in sizes.delays}
    return {"task": task, "memory": name, "seed": seed, **facts, "revision": revision(), **accuracy}


# ---- results ---------------------------------------------------------------------------------------------------------
FORMATS = {str(delay): ".3f" for delay in (*BenchSizes.delays, 32)} | {"loss": ".4f"}


class Results:
    """Rows of trainings. Each row is written as soon as it is added."""

    def __init__(self, folder: Path | None, facts: Mapping[str, Value], settings: Mapping[str, Value]) -> None:
        self.folder, self.facts = folder, {**facts, **settings}
        self.rows: list[Row] = []
        if folder is not None:
            make_folder(folder)
            self._read(folder / f"{NAME}.json", settings)

    def _read(self, path: Path, settings: Mapping[str, Value]) -> None:
        """Read the rows on the disk; raise a UserError if their settings differ."""
        theirs, tables = read_page(path).get("machine", settings), read_tables(path)
        for key, value in settings.items():
            if (other := theirs.get(key)) != value:
                flag = f"--{key.replace('_', '-')}"
                raise UserError(f"{path} holds rows of {flag} {other}, not {value}; choose another folder for --write")
        title, _ = TEXTS["trainings"]
        self.rows = tables[title].records() if title in tables else []

    def add(self, row: Row) -> None:
        """Add a row; write all tables and the figure."""
        self.rows.append(row)
        if self.folder is not None:
            trainings = Table.from_records(self.rows, *TEXTS["trainings"], FORMATS)
            write_page(self.folder, NAME, TITLE, self.facts, [*self.summaries(), trainings])
            figure = plot_delay_curves(self.means(), BenchSizes.max_delay, 1 / SYMBOLS, TITLE)
            save(figure, self.folder / f"{NAME}.png")

    def means(self) -> dict[str, dict[str, dict[int, float]]]:
        """Average the accuracy over seeds, by task, memory and delay; the best memory comes first."""
        means: dict[str, dict[str, dict[int, float]]] = {}
        for row in self.rows:
            task, memory = str(row["task"]), str(row["memory"])
            alike = [each for each in self.rows if (each["task"], each["memory"]) == (task, memory)]
            delays = filter(str.isdigit, row)
            mean = {int(delay): statistics.mean(float(each[delay] or 0) for each in alike) for delay in delays}
            means.setdefault(task, {})[memory] = mean
        return {task: dict(sorted(means[task].items(), key=lambda each: -sum(each[1].values()))) for task in means}

    def summaries(self) -> Iterator[Table]:
        """Make a table of each task."""
        title, note = TEXTS["accuracy"]
        for task, means in self.means().items():
            trained = [row["memory"] for row in self.rows if row["task"] == task]
            rows: list[Row] = [
                {
                    "memory": name, "seeds": trained.count(name), "reach": max_remembered_delay(mean),
                    **{str(delay): mean[delay] for delay in mean},
                }
                for name, mean in means.items()
            ]  # fmt: skip
            yield Table.from_records(rows, f"{title}: {task}", f"{TEXTS['tasks'][task]} {note}", FORMATS)


def max_remembered_delay(mean: Mapping[int, float]) -> int:
    """Give the maximum delay up to which the accuracy is never below `REMEMBERED`; 0 if there is none."""
    return max(itertools.takewhile(lambda delay: mean[delay] >= REMEMBERED, mean), default=0)


# ---- the command -----------------------------------------------------------------------------------------------------
@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Run the trainings that have no row yet; print each row as it comes, and all tables at the end."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(MemoryBenchArgs, args=argv, prog=f"python -m dqn_memory.{NAME}")
    load_plugins(args.plugin)
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    results = Results(args.write, origin(f"dqn_memory.{NAME}", argv, **benchmark_facts()), args.settings)
    try:
        add_missing_rows(args, results)
    except KeyboardInterrupt:
        again = "the same command continues" if args.write else "nothing was saved without --write"
        say(f"stopped; {again}", file=sys.stderr)
        raise SystemExit(130) from None
    for table in results.summaries():
        say(table.text(), end="\n\n")
    if args.write is not None:
        say(f"wrote {args.write / NAME}.md, .json and .png")


def add_missing_rows(args: MemoryBenchArgs, results: Results) -> None:
    """Run the trainings that have no row yet, and print each row as it comes."""
    wanted = list(itertools.product(range(args.seeds), args.task or TASKS, args.memory or compared_memories()))
    done = {(row["seed"], row["task"], row["memory"]) for row in results.rows}
    budgets: dict[str, int] = {}
    for number, (seed, task, name) in enumerate(wanted, 1):
        if (seed, task, name) in done:
            continue
        if name not in budgets:
            budgets[name] = args.updates or affordable_updates(name, args)
        row = train_network(task, name, seed, budgets[name], args)
        results.add(row)
        shown = ", ".join(f"{delay}: {row[str(delay)]:.3f}" for delay in args.sizes.delays)
        say(f"{number}/{len(wanted)} {task} {name} seed {seed}, accuracy by delay {shown}")


def affordable_updates(name: str, args: MemoryBenchArgs) -> int:
    """Time some updates of a memory's network; give the number of updates that --seconds allow."""
    sizes = args.sizes
    update = updater(build_network(args.config(name), 0), args.learning_rate, 1_000)
    batch = training_batch("copy", sizes.max_delay, sizes.rows, sizes.length, generator(0))
    times = Timer(*((2, 1) if args.quick else (7, 2)), "cpu")({"update": lambda: update(batch)})
    budget = max(1, round(1000 * args.seconds / min(times["update"].milliseconds)))
    return min(budget, 2) if args.quick else budget


if __name__ == "__main__":
    main()
