"""The benchmark's tables on a CPU: updates, trimmed windows, acting, worlds."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from dqn_memory.analysis.size import SIZED_BY_THEIR_FILE, gigaflop, world_row
from dqn_memory.analysis.timing import Clock, Timing, Work, interleaved, matrix_product
from dqn_memory.benchmark_cases import FORMS, Case, acting_works, baseline_work, random_replay, update_work
from dqn_memory.learner import optimizer_for, update
from dqn_memory.replay import Replay, Windows
from envs.fleet import make_fleet
from envs.registry import WORLDS

Value = str | float | int | bool | None

CASES = (
    ("POMDP/CarFlag-v0", "dtqn4"),
    ("Gridverse/Memory-7x7-v0", "dtqn4"),
    ("POMDP/CarFlag-v0", "dbgfqn"),
    ("Gridverse/Memory-7x7-v0", "dbgfqn"),
)
ALONE = (("POMDP/CarFlag-v0", "dtqn_mamba"), ("Gridverse/Memory-7x7-v0", "dtqn_mamba"))  # no baseline has a Mamba
BARS = dict(zip(CASES, (2.5, 1.3, 1.6, 1.6), strict=True))  # one thread, float32
BARRED = ("published", "shared")  # the forms that the bars judge
WINDOW_WORLDS = (
    "Gridverse/Memory-5x5-v0",
    "Gridverse/Memory-7x7-v0",
    "POMDP/MemoryCards-v0",
    "POMDP/CarFlag-v0",
)
FLEETS = (1, 16, 1024)  # worlds side by side


@dataclass(frozen=True)
class Effort:
    """How much is measured, and on what."""

    repetitions: int = 15
    warm_up: int = 2
    batch: int = 32
    columns: int = 1500
    """Steps of each of 16 worlds behind the table of windows."""
    rows: int = 2048
    """Most sequences side by side in the tables of Mamba."""
    matrix: int = 1024
    """Side of the square matrices that the machine's rate is measured with."""
    clock: Clock = "wall"

    def turns(self, alternatives: dict[str, Work]) -> dict[str, Timing]:
        """Time alternatives by turns."""
        return interleaved(alternatives, self.repetitions, self.clock, self.warm_up)


@dataclass(frozen=True)
class Table:
    """Rows of named values under one title, with a note that defines the columns."""

    title: str
    note: str
    rows: list[dict[str, Value]] = field(default_factory=list)


def update_table(effort: Effort, compiled: bool = False) -> Table:
    """Milliseconds of one update on full windows, against the baseline and the floor."""
    note = (
        "One update, full windows of 50, batch 32: three forwards (the corrected form: two, and the newest position "
        "of two more), backward, clipping, Adam. `published` is the baseline's mathematics, `corrected` the default "
        "(a bidirectional network then trains on 4 acting contexts a window, 128 sequences). `shared` takes the values "
        "of the next observations from the forward passes of the windows themselves (`--positions all --tails 0.125`: "
        "two passes over all windows, and the newest position of two more over 4 of 32). `gflop`: operations of "
        "the matrix products; `gflop_s`: the rate of a large product here (bfloat16: of the faster of the two "
        "precisions); `floor_ms`: the first over the second; `reached`: floor over median. "
        "`speed_up`: median over pairs of neighbouring repetitions; `spread`: half the distance "
        "of the quartiles over the median. dtqn_mamba has no baseline, because the reference has no such layer; "
        "`backend`: what its scan runs on, the one that training settles on here."
    )
    cases = _cases(effort, (*CASES, *ALONE))
    return Table("Update", note, [row for case in cases for row in _update_rows(case, effort, compiled)])


def _cases(effort: Effort, names: Sequence[tuple[str, str]] = CASES) -> list[Case]:
    return [Case(world, architecture, batch=effort.batch) for world, architecture in names]


def _update_rows(case: Case, effort: Effort, compiled: bool) -> Iterable[dict[str, Value]]:
    works = {form: update_work(case, form) for form in FORMS}
    baseline = {} if (case.world, case.architecture) in ALONE else {"baseline": baseline_work(case)}
    counted = works | {"published": baseline.get("baseline", works["published"])}
    asked = {form: gigaflop(work) for form, work in counted.items()}
    if compiled:
        works["published, compiled"] = update_work(case, "published", "compile")
        asked["published, compiled"] = asked["published"]
    asked["bfloat16"] = asked["published"]
    single, of_single = matrix_product(effort.matrix, torch.float32)
    half, of_half = matrix_product(effort.matrix // 2, torch.bfloat16)  # slow where no unit is built for it
    times = effort.turns({**baseline, **works, "float32 product": single, "bfloat16 product": half})
    rates = {
        precision: 1000 * size / times[f"{precision} product"].median
        for precision, size in (("float32", of_single), ("bfloat16", of_half))
    }
    backend = case.backend()
    for form in works:
        # where no unit is built for bfloat16 its products are emulated, and a floor above float32's is none
        rate = max(rates.values()) if form == "bfloat16" else rates["float32"]
        floor = 1000 * asked[form] / rate
        yield {
            **_place(case), "form": form, "backend": backend, **_against(times[form], times.get("baseline")),
            "bar": BARS.get((case.world, case.architecture)) if form in BARRED else None,
            "gflop": asked[form], "gflop_s": rate, "floor_ms": floor, "reached": floor / times[form].median,
        }  # fmt: skip


def window_table(effort: Effort) -> Table:
    """What masking and trimming gain on real episode lengths."""
    note = (
        "Corrected form of dtqn4, batch 32, windows drawn from what a random policy met in 16 worlds. `mean_length`: "
        "real transitions of a window of at most 50; `tokens`: mean width of the batches after trimming to a bucket; "
        "`full_ms`: the same batches 50 wide; `gain`: full over trimmed; `speed_up`: the baseline, which knows no "
        "lengths, over trimmed."
    )
    return Table("Masked and trimmed windows", note, [_window_row(world, effort) for world in WINDOW_WORLDS])


def _window_row(world: str, effort: Effort) -> dict[str, Value]:
    case = Case(world, "dtqn4", batch=effort.batch)
    replay = random_replay(world, 16, effort.columns)
    batches = {
        name: [_windows(case, replay, seed, trim) for seed in range(effort.repetitions + effort.warm_up)]
        for name, trim in (("trimmed", True), ("full", False))
    }
    works = {name: _each_in_turn(case, drawn) for name, drawn in batches.items()}
    times = effort.turns({"baseline": baseline_work(case), **works})
    lengths = torch.stack([batch.lengths for batch in batches["trimmed"]]).double()
    widths = [batch.action.shape[1] for batch in batches["trimmed"]]
    return {
        **_place(case), "mean_length": float(lengths.mean()), "tokens": sum(widths) / len(widths),
        "full_ms": times["full"].median, "gain": times["trimmed"].speed_up(times["full"]),
        **_against(times["trimmed"], times["baseline"]),
    }  # fmt: skip


def _windows(case: Case, replay: Replay, seed: int, trim: bool) -> Windows:
    batch = case.draw(case.learner("corrected"), replay, seed, trim)
    assert isinstance(batch, Windows)
    return batch


def _each_in_turn(case: Case, batches: list[Windows]) -> Work:
    """An update that takes another batch each time."""
    learner, network = case.learner("corrected"), case.network()
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer, following = optimizer_for(network, learner), itertools.cycle(batches)
    return lambda: update(network, target, optimizer, next(following), learner)


def acting_table(effort: Effort) -> Table:
    """Milliseconds to value the actions of one step."""
    note = (
        "Q-values of one step of 1 and of 16 episodes whose context is full, 50 observations each. The baseline "
        "computes all positions of every layer."
    )
    rows = []
    for case, episodes in itertools.product(_cases(effort), (1, 16)):
        times = replace(effort, repetitions=4 * effort.repetitions).turns(acting_works(case, episodes))
        rows.append({**_place(case), "episodes": episodes, **_against(times["ours"], times["baseline"])})
    return Table("Acting", note, rows)


def world_table(effort: Effort) -> Table:
    """Environment steps per second of every registered world."""
    note = (
        "Environment steps per second under random actions, resets included, for 1, 16 and 1,024 worlds side by side "
        "on the CPU."
    )
    worlds = [world for world in WORLDS if world not in SIZED_BY_THEIR_FILE]
    return Table("Worlds", note, [_world_row(world, effort) for world in worlds])


def _world_row(world: str, effort: Effort) -> dict[str, Value]:
    steps = 10  # a repetition
    times = effort.turns({f"{count}": _walk(world, count, steps) for count in FLEETS})
    return {"world": world} | {
        f"steps_s_{count}": round(1000 * steps * count / times[f"{count}"].median) for count in FLEETS
    }


def _walk(world: str, count: int, steps: int) -> Callable[[], None]:
    fleet, draws = make_fleet(world, count, seed=0), torch.Generator().manual_seed(0)
    fleet.reset()
    actions = torch.randint(fleet.num_actions, (steps, count), generator=draws)

    def walk() -> None:
        for action in actions:
            fleet.step(action)

    return walk


def _place(case: Case) -> dict[str, Value]:
    return {"world": case.world, "architecture": case.architecture, "width": world_row(case.world).width}


def _against(ours: Timing, baseline: Timing | None) -> dict[str, Value]:
    return {
        "ms": ours.median, "fastest_ms": ours.fastest, "spread": ours.spread,
        "baseline_ms": None if baseline is None else baseline.median,
        "speed_up": None if baseline is None else ours.speed_up(baseline),
    }  # fmt: skip
