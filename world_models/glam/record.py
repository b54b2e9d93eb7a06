"""Keep what GLAM runs have shown: `python -m world_models.glam.record RUN [RUN ...] --folder results/learning/NAME`.

Copies each run's raw numbers (config.toml, environment.json, metrics.jsonl) and writes one table, the curves of the
returns and those of the losses with their fluctuation. Runs in one parent folder are seeds of one form, named after it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dqn_memory.analysis.plots import save, seed_curves
from dqn_memory.runs.backend import FACT
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.files import write_atomic
from dqn_memory.runs.settings import from_record, parse
from dqn_memory.study.keeping import PAGE, Args, by_form, check_names, copy_raw, open_finished, places, rows
from world_models.glam.config import TrainConfig
from world_models.glam.plots import PARTS, WINDOW, Curve, curves, loss_panels

POLICIES = ("sampled", "greedy")
RUN_COLUMNS = ("form", "seed", "steps", "minutes", "processor", *POLICIES, "episodes", "mamba", "revision")
KEPT = re.compile(r".+-seed_\d+")  # what a kept run's folder is called


@dataclass(frozen=True)
class Record:
    """One finished run as read from its folder."""

    path: Path
    config: TrainConfig
    environment: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Folder of the copy."""
        path = self.path.resolve()
        return path.name if KEPT.fullmatch(path.name) else f"{path.parent.name}-{path.name}"

    @property
    def form(self) -> str:
        """What its seeds have in common."""
        return self.name.rpartition("-")[0]

    @property
    def final(self) -> dict[str, Any]:
        """The line of the last evaluation."""
        return next(line for line in reversed(self.lines) if "final/episodic_return" in line)

    def returns(self) -> tuple[list[int], list[float]]:
        """Environment steps and mean return of every evaluation."""
        points = [(line["step"], line["eval/episodic_return"]) for line in self.lines if "eval/episodic_return" in line]
        points.append((self.final["step"], self.final["final/episodic_return"]))
        return [step for step, _ in points], [value for _, value in points]

    def scores(self) -> dict[str, float]:
        """Final mean returns by the policy that earned them: sampled, greedy, or both."""
        policy, mean = self.config.evaluation.policy, self.final["final/episodic_return"]
        if policy != "both":
            return {policy: mean}
        return {"sampled": mean, "greedy": self.final["final/greedy_episodic_return"]}

    def losses(self) -> dict[str, Curve]:
        """Every part of the world model's loss."""
        return curves(self.lines, str(self.path / "metrics.jsonl"))

    def row(self) -> list[str]:
        """The run's line of the table, in the order of RUN_COLUMNS."""
        final, revision = self.final, str(self.environment.get("revision"))[:10]
        scores = self.scores()
        return [
            self.form,
            str(self.config.seed),
            f"{final['step']:,}",
            f"{final['time/elapsed'] / 60:.1f}",
            f"{final['time/processor'] / 60:.1f}",
            *(f"{scores[name]:.2f}" if name in scores else "-" for name in POLICIES),
            f"{final['final/episodes']:.0f}",
            self.environment.get(FACT) or "-",
            revision + ("+" if self.environment.get("dirty") else ""),
        ]


def read(path: Path) -> Record:
    """A finished run; a UserError says what is missing."""
    run = open_finished(path, "final/episodic_return")
    config = from_record(TrainConfig, run.config_toml, str(path / "config.toml"))
    return Record(path, config, run.environment, run.metrics())


def page(records: Sequence[Record], folder: Path, title: str) -> str:
    """The Markdown page: commands and machine, a line a form, a line a run, how the losses fluctuate."""
    machine = {f"{r.environment.get('cpu')}, {r.environment.get('threads')} torch threads" for r in records}
    lines = [f"# {title}", "", "Commands:", ""]
    lines += [f"    {record.environment.get('command')}" for record in records]
    lines += ["", *places(records, folder)]
    lines += [
        f"Machine: {'; '.join(sorted(machine))}; torch {records[0].environment.get('torch')}.", "",
        "Returns are means of the last evaluation: with actions drawn as in training (`sampled`) and with the most",
        "probable ones (`greedy`). `minutes` is all of the run on the wall, evaluations included, `processor` what its",
        "threads used of a machine that had other work too; `mamba` is the backend of the scan, where a form has one:",
        "all compute the same function, at different speeds. A + behind a revision: with uncommitted changes.", "",
    ]  # fmt: skip
    forms = by_form(records)
    lines += [*rows(("form", "seeds", *POLICIES), [_summary(form, seeds) for form, seeds in forms.items()])]
    lines += ["", *rows(RUN_COLUMNS, [record.row() for record in records]), ""]
    lines += [
        f"Standard deviation of each loss around its moving average over {WINDOW} log lines, mean over seeds:",
        "",
    ]
    lines += rows(("form", *PARTS), [_fluctuations(form, seeds) for form, seeds in forms.items()])
    return "\n".join(lines) + "\n"


def _summary(form: str, seeds: Sequence[Record]) -> list[str]:
    told = [form, str(len(seeds))]
    for policy in POLICIES:
        values = [record.scores()[policy] for record in seeds if policy in record.scores()]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        told.append(f"{statistics.mean(values):.2f}{spread}" if values else "-")
    return told


def _fluctuations(form: str, seeds: Sequence[Record]) -> list[str]:
    known = [record.losses() for record in seeds]
    told = [form]
    for part in PARTS:
        values = [losses[part].fluctuation() for losses in known if part in losses]
        told.append(f"{statistics.mean(values):.3g}" if values else "-")
    return told


def keep(records: Sequence[Record], folder: Path, title: str) -> None:
    """Write copies, table and pictures; losses are drawn of each form's first seed."""
    copy_raw(records, folder)
    write_atomic(folder / PAGE, page(records, folder, title).encode())
    curves = {form: [record.returns() for record in seeds] for form, seeds in by_form(records).items()}
    policies = sorted({record.config.evaluation.policy.replace("both", "sampled") for record in records})
    save(seed_curves(curves, title, f"return of {' or '.join(policies)} actions"), folder / "returns.png")
    first = {form: seeds[0].losses() for form, seeds in by_form(records).items()}
    heading = f"Parts of the world model's loss, first seed of each form\n{title}"
    save(loss_panels(first, heading), folder / "losses.png")


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read all runs before anything is written."""
    args = parse(Args, argv, prog="python -m world_models.glam.record")
    records = [read(Path(run)) for run in args.runs]
    check_names(records)
    keep(records, Path(args.folder), args.title or records[0].config.environment.env)
    print(f"{args.folder}: {len(records)} runs kept")


if __name__ == "__main__":
    main()
