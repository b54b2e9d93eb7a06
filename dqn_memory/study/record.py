"""Keep what runs have shown: `python -m dqn_memory.study.record RUN [RUN ...] --folder results/learning/NAME`.

Copies each run's raw numbers (config.toml, environment.json, metrics.jsonl) and writes one table and one picture of
all of them, so that a result stands beside the command, seed, budget, revision and machine that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.analysis import plots
from dqn_memory.config import TrainConfig
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.files import write_atomic
from dqn_memory.runs.settings import from_record, parse
from dqn_memory.study.keeping import (
    PAGE,
    Args,
    by_form,
    check_names,
    copy_raw,
    kept_beside,
    open_finished,
    places,
    rows,
)
from envs import baselines

COLUMNS = (
    "run", "seed", "steps", "minutes", "processor", "success", "95 % interval", "episodes", "return", "steps to 0.9",
    "revision",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One finished run as read from its folder."""

    path: Path
    config: TrainConfig
    environment: dict[str, Any]
    lines: list[dict[str, Any]]
    name: str
    """Name of its copy: that of its folder behind that of the folder's parent, which names the architecture."""

    @property
    def final(self) -> dict[str, Any]:
        return next(line for line in reversed(self.lines) if "final/success_rate" in line)

    @property
    def written(self) -> str:
        """The run folder that its command names; empty where it names none."""
        return str(self.environment.get("command")).partition(" --run ")[2].partition(" ")[0]

    @property
    def keeps_its_name(self) -> bool:
        """Whether the copy is called as that folder, with or without its parent's name."""
        path = Path(self.written)
        return self.name in (path.name, f"{path.parent.name}-{path.name}") or not self.written

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Environment steps and greedy success of every evaluation."""
        points = [(x["step"], x["eval/success_rate"]) for x in self.lines if "eval/success_rate" in x]
        points.append((self.final["step"], self.final["final/success_rate"]))
        steps, rates = zip(*points, strict=True)
        return np.array(steps), np.array(rates)

    def row(self) -> list[str]:
        """The run's line of the table, in the order of COLUMNS."""
        final, (steps, rates) = self.final, self.curve()
        reached = steps[rates >= 0.9]
        low, high = final["final/success_low"], final["final/success_high"]
        return [
            self.name,
            str(self.config.seed),
            f"{final['step']:,}",
            f"{final['time/elapsed'] / 60:.1f}",
            f"{final['time/processor'] / 60:.1f}" if "time/processor" in final else "-",
            f"{final['final/success_rate']:.3f}",
            "every start tried" if low == high else f"{low:.3f} - {high:.3f}",
            f"{final['final/episodes']:.0f}",
            f"{final['final/episodic_return']:.2f}",
            f"{reached[0]:,}" if len(reached) else "never",
            str(self.environment.get("revision"))[:10] + ("+" if self.environment.get("dirty") else ""),
        ]


def read(path: Path, folder: Path) -> Record:
    """A finished run, or what was kept of one in `folder` or beside it; a UserError says what is missing."""
    run = open_finished(path, "final/success_rate")
    config = from_record(TrainConfig, run.config_toml, str(path / "config.toml"))
    kept = path.resolve().parent == folder.resolve() or kept_beside(path, folder)
    name = path.name if kept or not path.parent.name else f"{path.parent.name}-{path.name}"
    return Record(path, config, run.environment, run.metrics(), name)


def table(records: Sequence[Record], folder: Path, title: str) -> str:
    """The Markdown page: commands and machine above, a line a run below."""
    machine = {f"{r.environment.get('cpu')}, {r.environment.get('threads')} torch threads" for r in records}
    lines = [f"# {title}", "", "Commands:", ""]
    lines += [f"    {record.environment.get('command')}" for record in records]
    lines += ["", *places(records, folder), *renamed(records)]
    lines += [f"Machine: {'; '.join(sorted(machine))}; torch {records[0].environment.get('torch')}.", ""]
    lines += [
        "Success is that of the greedy policy after the last step, whatever it was before; `minutes` is all of the"
    ]
    lines += [
        "run on the wall, evaluations included, `processor` what its threads used of a machine that had other work"
    ]
    lines += ["too. A + behind a revision: with uncommitted changes.", "", *known_lines(records)]
    lines += [*forms_table(records), *rows(COLUMNS, [record.row() for record in records])]
    return "\n".join(lines) + "\n"


def renamed(records: Sequence[Record]) -> list[str]:
    """A sentence where runs are kept under another name than that of the folder their command wrote."""
    apart = [f"{record.name} was {record.written}" for record in records if not record.keeps_its_name]
    if not apart:
        return []
    return [f"Run folders that were renamed before the runs were kept, after their commands: {'; '.join(apart)}.", ""]


def forms_table(records: Sequence[Record]) -> list[str]:
    """A line a form, where forms have several seeds."""
    forms = by_form(records)
    if len(forms) == len(records):
        return []
    cells = []
    for form, seeds in forms.items():
        found = [float(record.final["final/success_rate"]) for record in seeds]
        cells.append([form, str(len(found)), *(f"{value:.3f}" for value in (np.mean(found), min(found), max(found)))])
    return [*rows(("form", "seeds", "mean success", "lowest", "highest"), cells), ""]


def known_lines(records: Sequence[Record]) -> list[str]:
    """What success is to be read against, a line a world of which something is known."""
    worlds = dict.fromkeys(record.config.environment.env for record in records if not record.config.environment.path)
    known = [f"Success in {env}: {found.words}." for env in worlds if (found := baselines.lines(env))]
    return [*known, ""] if known else []


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read all runs before anything is written."""
    args = parse(Args, argv, prog="python -m dqn_memory.study.record")
    folder = Path(args.folder)
    records = [read(Path(run), folder) for run in args.runs]
    check_names(records)
    title = args.title or records[0].config.environment.env
    copy_raw(records, folder)
    curves = {form: [record.curve() for record in seeds] for form, seeds in by_form(records).items()}
    write_atomic(folder / PAGE, table(records, folder, title).encode())
    plots.save(plots.seed_curves(curves, title), folder / "curves.png")
    print(f"{folder}: {len(records)} runs kept")


if __name__ == "__main__":
    main()
