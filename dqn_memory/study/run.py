"""Run a study: `python -m dqn_memory.study.run smoke`, or any TOML file (see dqn_memory/study/definition.py).

Stop the command anywhere and give it again: finished runs stay, all others continue. --status shows the progress of
the study, while it runs or after a crash. --dry-run lists its runs.
"""

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from math import prod
from pathlib import Path
from textwrap import indent
from typing import Annotated, Literal, get_args

import tyro

from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.lock import held_lock
from dqn_memory.runs.modules import modules_of, remember_modules
from dqn_memory.runs.settings import Bounds, Repeatable, check_numbers
from dqn_memory.study import store
from dqn_memory.study.archive import find_study, named_definition, open_source
from dqn_memory.study.definition import Definition, Planned, Resources, expand, shipped
from dqn_memory.study.run_record import last_step
from dqn_memory.study.runner import (
    Backend,
    Processes,
    Scheduler,
    duration,
    local_device_slots,
    unfinished_runs,
)
from dqn_memory.study.store import RunState, State, Study
from dqn_memory.study.take_from import NOTHING_TAKEN, matching_runs, take_finished_runs
from envs.cli import load_plugins
from envs.console import say
from envs.tables import Table

FEW = 40  # max runs of a study whose runs are all shown


@dataclass(frozen=True)
class Args:
    """Train every run of a study, on this machine or on a Ray cluster."""

    study: tyro.conf.Positional[str]
    """A shipped study's name or a TOML file."""
    folder: Path | None = None
    """Folder of the study, which all machines of a cluster share (None: runs/studies/NAME)."""
    smoke: bool = False
    """Run a shortened form of the study, which takes seconds, instead."""
    backend: Literal["processes", "ray"] | None = None
    """`processes` of this machine, or `ray` (None: ray if it is installed)."""
    address: str | None = None
    """A Ray cluster, such as auto or 10.0.0.1:6379 (None: this machine alone)."""
    workers: Annotated[int, Bounds(1)] | None = None
    """Max runs at once (None: as many as fit on the CPUs and GPUs)."""
    cpus: Annotated[int, Bounds(1)] | None = None
    """CPU threads of a run, written into its config (None: the number in the study's file)."""
    gpus: float | None = None
    """Share of a GPU of a run (None: the share in the study's file; 0: no GPU)."""
    retries: Annotated[int, Bounds(0)] = 5
    """How often a killed run starts again without a new checkpoint in between; then it counts as failed."""
    only: Repeatable = ()
    """Run only the runs that match a pattern such as '*__causal__seed-?'; the others wait (empty: all)."""
    take_from: Repeatable = ()
    """Copy finished runs of the same settings and seed from this study or archive."""
    plugin: Repeatable = ()
    """Import this module, which the study names (not needed to go on with a study that you started here)."""
    dry_run: bool = False
    """List the runs with time and disk space, and write nothing."""
    status: bool = False
    """Show the progress of the study, given by its folder, name or TOML file, and change nothing."""

    def make_backend(self, resources: Resources) -> Backend:
        """Start the backend; a UserError says that Ray is chosen but missing."""
        if not self.uses_ray():
            return Processes(self.workers, resources.cpus, resources.gpus)
        from dqn_memory.study.cluster import Cluster

        return Cluster(self.address, self.workers, resources.cpus, resources.gpus)

    def uses_ray(self) -> bool:
        """Tell whether the backend is Ray; a UserError says that Ray is chosen but missing."""
        wants_ray = self.backend == "ray" or self.address is not None
        has_ray = find_spec("ray") is not None
        if wants_ray and not has_ray:
            raise UserError("Ray is not installed; pip install 'dqn-memory[cluster]', or give --backend processes")
        return has_ray and self.backend != "processes"

    def definition(self) -> Definition:
        """Read the study's file, with --cpus and --gpus laid over it."""
        definition = named_definition(self.study, self.smoke)
        given = {name: value for name in ("cpus", "gpus") if (value := getattr(self, name)) is not None}
        resources = replace(definition.resources, **given)
        resources.check(definition.source)
        base = definition.base
        if self.gpus == 0 < definition.resources.gpus and base.get("engine", "cudagraph") == "cudagraph":
            base = base | {"engine": "eager"}  # CUDA graphs need a GPU; the numbers are the same
        return replace(definition, base=base, resources=resources)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Run the study and show its state; the exit code is 1 if a run failed, 130 after Ctrl-C."""
    about = f"{Args.__doc__}\n\nShipped studies: {', '.join(shipped())}."
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.run", description=about)
    check_numbers(args)
    if args.address is not None and args.backend == "processes":
        raise UserError("--address is for Ray: leave out --backend processes")
    if args.status:
        folder = args.folder or (store.HOME / args.definition().name if args.smoke else find_study(Path(args.study)))
        return say(overview(Study.open(folder)))
    definition = args.definition()
    folder = args.folder or store.HOME / definition.name
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a background job's shell may ignore SIGINT
    try:
        load_plugins(args.plugin)
        planned = expand(definition)
        wanted = matching(planned, args.only)
        store.check_study_folder(folder, definition, planned)
        if args.dry_run:
            return show_plan(args, definition, folder, wanted, len(planned))
        gpus = definition.resources.gpus
        if gpus and not (folder / store.STATE).exists() and not args.uses_ray():
            local_device_slots(gpus)  # raises its error before a folder is made
        study = run_study(args, definition, folder, planned, wanted)
    except KeyboardInterrupt:
        say("\nstopped; the same command continues")
        raise SystemExit(130) from None
    say(overview(study))
    if any(run.state == "failed" for run in study.runs()):
        sys.exit(1)


def run_study(
    args: Args, definition: Definition, folder: Path, planned: Sequence[Planned], wanted: Sequence[Planned]
) -> Study:
    """Prepare the study, train the unfinished runs among `wanted`, and return it; a lock excludes a second call."""
    for source in args.take_from:
        open_source(find_study(Path(source)))  # raises its error before a folder is made
    with held_lock(folder / store.LOCK, f"{folder} is being run already", patience=2.0):
        store.check_study_folder(folder, definition, planned)
        study = Study.create(folder, definition, planned)
        modules = [module for run in planned for module in modules_of(run.config)]
        for file in (Path(definition.source), folder / store.DEFINITION):
            remember_modules(file, modules)
        names = {run.name for run in wanted}
        take_finished_runs(study, wanted, list(map(Path, args.take_from)), say)
        left = [run for run in unfinished_runs(study, definition.resources.keep_replay) if run.name in names]
        if left:
            backend = args.make_backend(definition.resources)
            show_size(definition, folder, [run for run in study.runs() if run.name in names], len(planned))
            say(f"backend {backend.describes}")
            configs = {run.name: run.config for run in wanted}
            Scheduler(study, backend, definition.resources, args.retries, configs).run(left)
    return study


def matching(runs: Sequence[Planned], patterns: Sequence[str]) -> list[Planned]:
    """Select the runs that match a pattern (no patterns: all); a UserError names a pattern without a match."""
    for pattern in patterns:
        if not any(fnmatchcase(run.name, pattern) for run in runs):
            raise UserError(f"--only {pattern} matches no run; --dry-run shows their names, such as {runs[0].name}")
    return [run for run in runs if not patterns or any(fnmatchcase(run.name, pattern) for pattern in patterns)]


# ---- before it runs


def show_plan(args: Args, definition: Definition, folder: Path, wanted: Sequence[Planned], total: int) -> None:
    """List the runs, and mark those that --take-from would copy; nothing is written."""
    known = {run.name: run for run in Study.open(folder).runs()} if (folder / store.STATE).exists() else {}
    left, taken = [run for run in wanted if not (folder / "runs" / run.name).exists()], dict[str, RunState]()
    for source in reversed(args.take_from):
        taken |= matching_runs(open_source(find_study(Path(source))), definition.kind, left, say)
    runs = []
    for each in wanted:
        place, steps = folder / "runs" / each.name, each.config.total_steps
        new = RunState(each.name, each.axes, "waiting", place, steps)
        runs.append(taken.get(each.name) or known.get(each.name, new))
        source = f" from {runs[-1].folder}" if each.name in taken else ""
        say(f"{'take' if source else runs[-1].state:9}{each.name}{source}")
    if args.take_from and not taken and any(run.state != "finished" for run in runs):
        say(NOTHING_TAKEN)
    show_size(definition, folder, runs, total)


def show_size(definition: Definition, folder: Path, runs: Sequence[RunState], total: int) -> None:
    """Print the number of chosen runs among the study's `total`, the time left, and the disk space of these runs."""
    axes = " x ".join(f"{len(values)} {axis}" for axis, values in definition.axes.items())
    skipped = prod(len(values) for values in definition.axes.values()) - total
    axes += f", less {skipped} that it skips" if skipped else ""
    axes += f", of which --only chose {len(runs)}" if len(runs) < total else ""
    say(f"{definition.title}\n{folder}: {counts(runs)} = {axes}")
    seconds, megabytes = estimate(runs, definition.resources)
    disk = "unknown" if megabytes is None else f"{megabytes:,.0f} MB"
    there = folder.absolute()
    free = shutil.disk_usage(next(path for path in (there, *there.parents) if path.exists())).free / 1e6
    short = " (too small)" if megabytes is not None and megabytes > free else ""
    say(f"left to do: {duration(seconds)} of one worker; disk {disk} of {free:,.0f} MB free{short}")


def estimate(runs: Sequence[RunState], resources: Resources) -> tuple[float | None, float | None]:
    """Estimate the seconds left for one worker, and the megabytes of all runs; None is unknown.

    Pace and size come from finished runs, or from the study's resources until the first run has finished.
    """
    known = [run for run in runs if run.state == "finished" and run.seconds]
    left = sum(max(0, run.steps - last_step(run.folder)) for run in runs if run.state != "finished")
    if not known:
        pace, size = resources.steps_per_second, resources.megabytes
        return None if pace is None else left / pace, None if size is None else size * len(runs)
    seconds = left * sum(run.seconds or 0.0 for run in known) / sum(run.steps for run in known)
    folders = [run.folder for run in known if (run.folder / "checkpoints").is_dir()]  # runs of archives are smaller
    bytes_known = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    size = bytes_known / 1e6 / len(folders) if folders else resources.megabytes
    return seconds, None if size is None else size * len(runs)


# ---- progress


def overview(study: Study) -> str:
    """Show counts, runs and errors; of a large study only the running, stopped and failed runs."""
    runs = shown = study.runs()
    running = "study.run is running" if study.is_running else "study.run is not running"
    if len(runs) > FEW:
        shown = [run for run in runs if run.state not in ("finished", "waiting")]
    parts = [f"{study.title}\n{study.folder}\n{counts(runs)}; {running}\n", *([_table(study, shown)] if shown else [])]
    for run in runs:
        if run.state == "failed":
            parts.append(f"{run.name} failed (log: {run.log}):\n{indent(run.error, '    ')}")
    return "\n".join(parts)


def counts(runs: Sequence[RunState]) -> str:
    """Write counts such as `12 runs: 3 finished, 2 running, 7 waiting`."""
    number = Counter(run.state for run in runs)
    return f"{len(runs)} runs: {', '.join(f'{number[state]} {state}' for state in get_args(State) if number[state])}"


def _table(study: Study, runs: Sequence[RunState]) -> str:
    """Write a table with one row for each run."""
    rows = []
    for run in runs:
        reached = f"{last_step(run.folder):,}" + ("" if run.state == "finished" else f" of {run.steps:,}")
        time = duration(run.seconds) if run.seconds else None
        rows.append([*(str(run.axes[axis]) for axis in study.axes), run.state, reached, time, run.attempts])
    return Table([*study.axes, "state", "steps", "time", "starts"], rows).text() + "\n"


if __name__ == "__main__":
    main()
