"""How far a study is, as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from dqn_memory.study.definition import AXES
from dqn_memory.study.estimate import in_words
from dqn_memory.study.store import RunState, State, Study, last_step

STYLES: dict[State, str] = {
    "finished": "green", "running": "cyan", "waiting": "dim", "stopped": "yellow", "failed": "bold red",
}  # fmt: skip
FEW = 40  # runs that are all shown without being asked for


def overview(study: Study, everything: bool = False) -> Group:
    """Counts, the runs (the running, stopped and failed ones of a large study), and what failed ones said."""
    runs = study.runs()
    shown = runs
    if len(runs) > FEW and not everything:
        shown = [run for run in runs if run.state not in ("finished", "waiting")]
    parts: list[RenderableType] = [_headline(study, runs)]
    if len(runs) > FEW:
        parts.append(_grid(runs))
    if shown:
        parts.append(_table(study, shown))
    for run in runs:
        if run.state == "failed":
            parts += [Text(f"{run.name} failed (log: {run.log}):", style="bold red"), Text(_indented(run.error))]
    return Group(*parts)


def counts(runs: Sequence[RunState]) -> str:
    """`12 runs: 3 finished, 2 running, 7 waiting`."""
    number = Counter(run.state for run in runs)
    told = ", ".join(f"{number[state]} {state}" for state in STYLES if number[state])
    return f"{len(runs)} runs: {told}"


def _headline(study: Study, runs: Sequence[RunState]) -> Text:
    at_work = "study.run is at work" if study.lives else "study.run is not at work"
    return Text(f"{study.title}\n{study.folder}\n{counts(runs)}; {at_work}")


def _grid(runs: Sequence[RunState]) -> Table:
    """Finished runs of all runs, by world and architecture."""
    architectures = list(dict.fromkeys(run.architecture for run in runs))
    table = Table("finished", *(Column(Text(name)) for name in architectures), box=SIMPLE)
    for world in dict.fromkeys(run.world for run in runs):
        cells = [Text(world)]  # labels may have what rich would read as its markup
        for architecture in architectures:
            here = [run for run in runs if (run.world, run.architecture) == (world, architecture)]
            ended = sum(run.state == "finished" for run in here)
            failed = sum(run.state == "failed" for run in here)
            cells.append(Text.assemble(f"{ended}/{len(here)}", (f" {failed} failed" if failed else "", "red")))
        table.add_row(*cells)
    return table


def _table(study: Study, runs: Sequence[RunState]) -> Table:
    others = [axis for axis in study.axes if axis not in AXES]
    table = Table(*(Column(Text(name), overflow="fold") for name in ("world", "architecture", *others)), box=SIMPLE)
    for name in ("seed", "state", "steps", "time", "starts"):
        table.add_column(name, no_wrap=True)
    for run in runs:
        told = Text(run.state, style=STYLES[run.state])
        table.add_row(
            *(Text(str(run.axes[axis])) for axis in ("world", "architecture", *others, "seed")),
            told, _steps(run), in_words(run.seconds) if run.seconds else "", str(run.attempts),
        )  # fmt: skip
    return table


def _steps(run: RunState) -> str:
    reached = last_step(run.folder)
    return f"{reached:,} of {run.steps:,}" if run.state != "finished" else f"{reached:,}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
