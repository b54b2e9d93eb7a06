"""Studies for the tests of reports: their folders as a finished trainer leaves them, with invented numbers."""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.runs.metrics import metrics_line
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import Data, collect
from dqn_memory.study.definition import Planned, expand, read_definition
from dqn_memory.study.page import Section, report_text
from dqn_memory.study.report import all_sections, introduction, main
from dqn_memory.study.store import Study
from envs.tables import Table

EVERY, STEPS = 100, 600
MEMORY, HALLWAY = "Gridverse/Memory-5x5-v0", "POMDP/Hallway-v0"
TWO = '["dtqn4", "dgfqn"]'
HEADINGS = (
    "Over all environments", "Scores by environment", "Learning curves", "Performance profiles",
    "Probability of improvement", "Parameters beside scores", "Learned priors", "Learned spans", "Attention maps",
    "Hallucinated structure (RQ5)", "Every run", "Time and cost",
)  # fmt: skip
MACHINE = {"cpu": "a cpu", "device": "cpu", "threads": 1, "torch": "2.0", "revision": "0123456789ab", "dirty": False}
Scalars = Callable[[Planned, int], Mapping[str, float]]  # what a run logs at a step, beside its success

TEXT = """
title = "{title}"
kind = "q_network"
about = "Whether reports work."
[base]
total_steps = 600
learning_starts = 100
prepopulate = 100
width = 16
heads = 2
layers = 1
context = 8
[axes]
world = {worlds}
architecture = {architectures}
seed = {seeds}
"""


def noisy(effect: Mapping[str, float]) -> Callable[[Planned, int], float]:
    """Success by architecture with noise by world and seed."""

    def success(run: Planned, step: int) -> float:
        world, architecture = str(run.axes["world"]), str(run.axes["architecture"])
        words = [0, int(run.axes["seed"]), step, *f"{world} {architecture}".encode()]
        noise = np.random.default_rng(words).normal(0, 0.05)
        return float(np.clip((0.45 + effect.get(architecture, 0.0) + noise) * step / STEPS + 0.3, 0, 1))

    return success


def make_study(
    folder: Path,
    worlds: list[Any] | str,
    architectures: str,
    seeds: list[int],
    level: Callable[[Planned, int], float] | None = None,
    more: Scalars = lambda run, step: {},
    title: str = "Invented",
    text: str = "",
) -> Study:
    """A study of finished runs; `architectures` is the TOML of its axis, `worlds` may be; or `text` is all of it."""
    file = folder.with_suffix(".toml")
    listed = worlds if isinstance(worlds, str) else json.dumps(worlds)
    file.write_text(text or TEXT.format(title=title, worlds=listed, architectures=architectures, seeds=seeds))
    definition = read_definition(str(file), False)
    planned = expand(definition)
    study = Study.create(folder, definition, planned)
    for run in planned:
        write_run(study, run, level or noisy({}), more)
        study.mark(run.name, "finished", seconds=60.0, begun=True)
    return study


def write_run(study: Study, run: Planned, level: Callable[[Planned, int], float], more: Scalars) -> None:
    """Config, environment and metrics of a finished run; there is no checkpoint."""
    folder = study.folder / "runs" / run.name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(run.toml)
    (folder / "environment.json").write_text(json.dumps(MACHINE | {"command": f"train --run {folder.resolve()}"}))
    lines = []
    for step in range(EVERY, STEPS + 1, EVERY):
        lines.append(metrics_line(step, {"charts/loss": 0.1, **more(run, step)}))
        score = {"eval/success_rate": level(run, step), "eval/episodic_return": 0.0}
        pace = 1 / (100 if run.axes["seed"] == 1 else 90)  # seconds are told at the quickest run's
        lines.append(metrics_line(step, score | {"time/processor": step * pace}))
    end = {"final/success_rate": level(run, STEPS), "final/episodic_return": 0.0}
    lines.append(metrics_line(STEPS, {**end, "time/elapsed": 60.0, "time/processor": 50.0}))
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))


def report(folder: Path, *flags: str) -> Path:
    """Make a report without attention maps (these runs have no checkpoints); returns its folder."""
    main([str(folder), "--no-attention", *flags])
    return folder / "report"


def read(folder: Path) -> Data:
    return collect(open_source(folder))


def table(section: Section | None, place: int = 0) -> list[dict[str, Any]]:
    """One of a section's tables, rows by the names of its columns."""
    return [part for part in section.parts if isinstance(part, Table)][place].records() if section else []


def text_of(data: Data) -> str:
    """The page as Markdown, without drawing its pictures."""
    return report_text(data.source.title, introduction(data), all_sections(data))


def raw(folder: Path, number: str = "final") -> dict[tuple[str, str], list[float]]:
    """Read a number of every run from an archive's table."""
    found = defaultdict(list)
    with (folder / "runs.csv").open() as file:
        for row in csv.DictReader(file):
            if row[f"summary.{number}"]:
                found[row["axes.world"], row["axes.architecture"]].append(float(row[f"summary.{number}"]))
    return found
