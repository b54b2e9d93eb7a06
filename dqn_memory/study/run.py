"""Carry out a study: `python -m dqn_memory.study.run smoke`, or any TOML file (see dqn_memory/study/definition.py).

Stop it anywhere and give the same command again: finished runs are kept, all others continue.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.files import disk_errors
from dqn_memory.runs.settings import Repeatable
from dqn_memory.study import store
from dqn_memory.study.definition import Definition, Planned, expand, read_definition, shipped
from dqn_memory.study.estimate import estimate, in_words, size_in_words
from dqn_memory.study.import_runs import take_over, takeable
from dqn_memory.study.overview import counts, overview
from dqn_memory.study.place import home, kept_name
from dqn_memory.study.runner import Backend, Drive, Processes, check_place, has_ray, open_runs, prepare
from dqn_memory.study.store import STATE, RunState, Study, run_folder


@dataclass(frozen=True)
class Args:
    """Carry out a study: every run of a TOML file, on this machine or on a Ray cluster."""

    study: tyro.conf.Positional[str]
    """A shipped study's name or a TOML file."""
    folder: Path | None = None
    """Where the study lives (None: runs/studies/<name>). On a cluster of several machines it must be on storage that
    all of them share under the same path, and so must the working directory."""
    smoke: bool = False
    """Carry out the study's cut of seconds instead."""
    backend: Literal["processes", "ray"] | None = None
    """`processes` of this machine, or `ray` (None: ray where it is installed, else processes; it says which)."""
    address: str | None = None
    """A Ray cluster, such as auto or 10.0.0.1:6379 (None: this machine alone, without a server to start)."""
    workers: int | None = None
    """Most runs at once (None: as many as the CPUs and GPUs have room for)."""
    cpus: int | None = None
    """CPU threads of a run's process (None: as the study says). Sums depend on it, so it is part of a run's config."""
    gpus: float | None = None
    """Share of a GPU of a run (None: as the study says; 0: runs see no GPU)."""
    retries: int = 5
    """Times in a row that a run may be killed without reaching a further checkpoint, before it counts as failed."""
    only: Repeatable = ()
    """Carry out those runs alone whose name one of these patterns matches, such as '*__causal__seed-?'; the others wait
    for another call (empty: all)."""
    take_from: Repeatable = ()
    """Other studies, by name or folder, or records of some: their finished runs are taken over where all settings and
    the seed are the same. Those of a record have no checkpoints."""
    dry_run: bool = False
    """Show what would be run, with names, time and disk, and write nothing."""

    def check(self) -> None:
        """One sentence for each value that cannot work."""
        for name in ("workers", "cpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} must be at least 1")
        if self.retries < 0:
            raise UserError(f"--retries {self.retries} must not be negative")
        if self.address is not None and self.backend == "processes":
            raise UserError("--address is for Ray: leave out --backend processes")


def resolved_backend(args: Args) -> str:
    """The backend by its name; a UserError where Ray is asked for and missing."""
    wants_ray = args.backend == "ray" or args.address is not None
    if wants_ray and not has_ray():
        raise UserError("Ray is not installed; pip install 'dqn-memory[cluster]', or give --backend processes")
    return "ray" if wants_ray or (args.backend is None and has_ray()) else "processes"


def make_backend(args: Args, definition: Definition) -> Backend:
    """Where the runs will be carried out."""
    resources = definition.resources
    if resolved_backend(args) == "processes":
        return Processes(args.workers, resources.cpus, resources.gpus)
    from dqn_memory.study.ray import Cluster

    return Cluster(args.address, args.workers, resources.cpus, resources.gpus)


def defined(args: Args) -> Definition:
    """The study's file with this machine's --cpus and --gpus."""
    definition = kept_name(read_definition(args.study, args.smoke))
    given = {name: getattr(args, name) for name in ("cpus", "gpus")}
    resources = replace(definition.resources, **{name: value for name, value in given.items() if value is not None})
    resources.check(definition.source)
    return replace(definition, resources=resources)


def announce(
    definition: Definition, folder: Path, runs: Sequence[RunState], total: int, slots: int | None, say: Console
) -> None:
    """Number of runs, of `total` that the study has, time and disk, before anything starts."""
    axes = " x ".join(f"{len(values)} {axis}" for axis, values in definition.axes.items())
    skipped = prod(len(values) for values in definition.axes.values()) - total
    axes += f", less {skipped} that it skips" if skipped else ""
    axes += f", of which --only chose {len(runs)}" if len(runs) < total else ""
    cost = estimate(runs, definition.resources)
    source = f" ({cost.source})" if cost.source else ""
    heading = f"{definition.title}\n{folder}: {counts(runs)} = {axes}"
    say.print(heading, markup=False, highlight=False, soft_wrap=True)
    wall = "" if slots is None or cost.seconds is None else f", {in_words(cost.seconds / slots)} with {slots} at once"
    time_left = f"about {in_words(cost.seconds)} of one worker{wall}" if cost.seconds is not None else "time unknown"
    free = shutil.disk_usage(_existing(folder)).free / 1e6
    disk = f"disk {size_in_words(cost.megabytes)} of {size_in_words(free)} free"
    say.print(f"left to do: {time_left}; {disk}{source}", markup=False, highlight=False, soft_wrap=True)
    if cost.megabytes is not None and cost.megabytes > free:
        say.print("warning: the disk is too small for the study", style="bold red")


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def chosen(runs: Sequence[RunState], patterns: Sequence[str]) -> list[RunState]:
    """Those that a pattern matches, all where there is none; a UserError for a pattern that matches no run."""
    for pattern in patterns:
        if not any(fnmatchcase(run.name, pattern) for run in runs):
            raise UserError(f"--only {pattern} matches no run; --dry-run shows their names, such as {runs[0].name}")
    return [run for run in runs if not patterns or any(fnmatchcase(run.name, pattern) for pattern in patterns)]


def show_plan(args: Args, definition: Definition, folder: Path, planned: Sequence[Planned], say: Console) -> None:
    """What would be run, and what --take-from would bring; nothing is written."""
    known = {run.name: run for run in Study.open(folder).runs()} if (folder / STATE).exists() else {}
    runs = chosen([known.get(run.name) or _unbegun(run, folder) for run in planned], args.only)
    names = {run.name for run in runs}
    taken = takeable(folder, definition.kind, [run for run in planned if run.name in names], _paths(args.take_from))
    for run in runs:
        told = (
            f"{'take':9}{run.name} from {taken[run.name].folder}" if run.name in taken else f"{run.state:9}{run.name}"
        )
        say.print(told, markup=False, highlight=False, soft_wrap=True)
    announce(definition, folder, [taken.get(run.name, run) for run in runs], len(planned), None, say)


def _paths(given: Sequence[str]) -> list[Path]:
    return [Path(path) for path in given]


def _unbegun(run: Planned, folder: Path) -> RunState:
    place = run_folder(folder, run.name)
    return RunState(run.name, run.axes, "waiting", place, place, place, run.config.total_steps, 0, None, "")


def carry_out(args: Args, definition: Definition, folder: Path, say: Console) -> Study:
    """Prepare the study, run what is left of it, and return it; the lock keeps a second `study.run` away."""
    planned = expand(definition)
    check_place(folder, definition, planned)
    if args.dry_run:
        show_plan(args, definition, folder, planned, say)
        raise SystemExit(0)
    with disk_errors(folder):
        lock = store.acquire_lock(folder / "locks" / "study.lock", patience=2.0)
    if lock is None:
        who = store.lock_holder(folder / "locks" / "study.lock") or {}
        raise UserError(f"{folder} is being carried out already, by process {who.get('pid')} on {who.get('host')}")
    try:
        study = prepare(folder, definition, planned)
        tell = partial(say.print, markup=False, highlight=False, soft_wrap=True)
        wanted = {run.name for run in chosen(study.runs(), args.only)}
        take_over(study, [run for run in planned if run.name in wanted], _paths(args.take_from), tell)
        left = [run for run in open_runs(study, definition.resources.keep_replay) if run.name in wanted]
        if left:
            backend = make_backend(args, definition)
            runs = chosen(study.runs(), args.only)
            announce(definition, folder, runs, len(study.runs()), backend.room(), say)
            say.print(f"backend {resolved_backend(args)}: {backend.describes}", markup=False, highlight=False)
            Drive(study, backend, definition.resources, args.retries, tell).run(left)
    finally:
        os.close(lock)
    return study


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Expand, show, run, and show what came of it; exit code 1 where a run failed, 130 after Ctrl-C."""
    about = f"{Args.__doc__}\n\nShipped studies: {', '.join(shipped())}."
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.run", description=about)
    args.check()
    definition = defined(args)
    folder = args.folder or home(definition)
    say = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also where a shell in the background ignores SIGINT
    try:
        study = carry_out(args, definition, folder, say)
    except KeyboardInterrupt:
        say.print("\nstopped; the same command continues", highlight=False)
        raise SystemExit(130) from None
    say.print(overview(study))
    if any(run.state == "failed" for run in study.runs()):
        sys.exit(1)


if __name__ == "__main__":
    main()
