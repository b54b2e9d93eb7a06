"""Folders of strangers: links, special files and wrong types in a run or an archive, which commands then use."""

import csv
import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hostile import KINDS, make_outside, put, seen

from dqn_memory import evaluate, inspect, watch
from dqn_memory.agent import Agent
from dqn_memory.api import load_run
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.study.archive import checksum, open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import expand, read_definition
from dqn_memory.study.report import introduction
from dqn_memory.study.run import main as study_run
from dqn_memory.study.run_record import final_metrics, read_run
from dqn_memory.study.runner import unfinished_runs
from dqn_memory.study.sections import runs as run_sections
from dqn_memory.study.sections import scores
from dqn_memory.study.store import Study
from dqn_memory.study.take_from import take_finished_runs
from envs.files import sha256

MOST_SECONDS = 60  # of the clock, after which a case hangs
SECTIONS = (run_sections.left_out_section, run_sections.runs_section, run_sections.cost_section, scores.table_section)
LINKS = tuple(kind for kind in KINDS if kind.startswith("link"))
SPECIAL = tuple(kind for kind in KINDS if kind not in LINKS)
SMOKE = Path(__file__).resolve().parents[2] / "results/studies/smoke"
VALUES = (
    10**400, -(10**400), 2**63, -1, 0, 0.5, 1e308, float("nan"), float("inf"), None, True, "", "x", "nan", "../../x",
    "<script>alert(1)</script>", "\x1b[2J", [], [1], [[]], {}, {"a": 1}, {"a": {"b": [None]}}, "x" * 5000,
)  # fmt: skip
TEXTS = ("[" * 100_000, "9" * 5000, "", "{", "\0", '{"a": 1, "a": 2}', "é", "null", "1e999", '"' * 99)
MINE = ("notes.txt", "checkpoints/best.pt")  # files of the user beside ours
Damage = Callable[[Path, random.Random, Path], None]  # of a run, with what is outside it


def resume(kind: str, run: Path) -> None:
    """Go on with a run for an iteration, and save it."""
    trainer, opened = trainer_class(kind).start(["--resume", str(run), "--total-steps", "100000"])
    with opened:
        opened.track(["csv"])
        trainer.iterate()
        opened.save(trainer.steps, trainer.weights(), trainer.state_dict())


USES: dict[str, Callable[[str, Path], Any]] = {  # what is done with a run of a kind
    "resume": resume,
    "load_run": lambda kind, run: load_run(run),
    "Agent.load": lambda kind, run: Agent.load(run),
    "report": lambda kind, run: (final_metrics(run), read_run(run)),
}
OF_NETWORKS: dict[str, Callable[[str, Path], Any]] = {
    "evaluate": lambda kind, run: evaluate.main([str(run), "--episodes", "1"]),
    "watch": lambda kind, run: watch.main([str(run), "--on", "terminal", "--delay", "0"]),
    "inspect": lambda kind, run: inspect.main([str(run), "--episodes", "1", "--no-frames"]),
}


@dataclass(frozen=True)
class FolderTarget:
    """A damage to a copy of a run, which some command then uses: nothing outside changes, and no file of the user."""

    damage: Damage

    def case(self, seed: int, folder: Path) -> Callable[[], object]:
        """Make the case of a seed."""
        from fuzz_targets import run_folders  # which itself takes the targets here

        draw = random.Random(seed)
        kind, made = draw.choice(list(run_folders().items()))
        run, outside = folder / "run", make_outside(folder / "outside")
        shutil.copytree(made, run)
        for name in MINE:
            (run / name).write_text("mine")
        self.damage(run, draw, outside)
        before, mine = seen(outside), [run / name for name in MINE if (run / name).exists()]
        use = draw.choice(list((USES | (OF_NETWORKS if kind == "q_network" else {})).values()))

        def case() -> None:
            signal.alarm(MOST_SECONDS)  # which ends the process
            try:
                one_line_errors(use)(kind, run)
            finally:
                assert seen(outside) == before
                assert all(path.read_text() == "mine" for path in mine)

        return case


def another_thing(kinds: tuple[str, ...], run: Path, draw: random.Random, outside: Path) -> None:
    """Put a link, or something special, in place of one file or folder, or beside them."""
    ours = [path for path in run.rglob("*") if path.name not in ("notes.txt", "best.pt") and not path.is_symlink()]
    new = [
        run / name for name in ("inspect", "metrics.csv", "wandb-run-id", "hashes.json", "checkpoints/.a.01234567.tmp")
    ]
    put(draw.choice(sorted(ours) + new), draw.choice(kinds), outside)


def typed(value: Any, draw: random.Random) -> Any:
    """Change one value of a JSON object, or all of it."""
    if not isinstance(value, dict) or not value or draw.random() < 0.1:
        return draw.choice(VALUES)
    key = draw.choice([*value, "new"])
    return value | {key: draw.choice(VALUES)}


def typed_metrics(run: Path, draw: random.Random, _: Path) -> None:
    """Change a line of metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    here = draw.randrange(len(lines))
    lines[here] = draw.choice(TEXTS) if draw.random() < 0.2 else json.dumps(typed(json.loads(lines[here]), draw))
    path.write_text("\n".join(lines) + "\n")


def typed_environment(run: Path, draw: random.Random, _: Path) -> None:
    """Change environment.json."""
    path = run / "environment.json"
    text = json.dumps(typed(json.loads(path.read_text()), draw))
    path.write_text(draw.choice(TEXTS) if draw.random() < 0.2 else text)


@dataclass(frozen=True)
class ArchiveTarget:
    """A change of an archive's tables under right checksums, of which a report is then made, but for its figures."""

    names: tuple[str, ...]

    def case(self, seed: int, folder: Path) -> Callable[[], object]:
        """Make the case of a seed."""
        draw, kept = random.Random(seed), folder / "kept"
        shutil.copytree(SMOKE, kept)
        name = draw.choice(self.names)
        if name.endswith(".csv"):
            change_table(kept / name, draw)
        elif name.endswith(".json") and draw.random() < 0.8:
            (kept / name).write_text(json.dumps(typed(json.loads((kept / name).read_text()), draw)))
        else:
            (kept / name).write_text(draw.choice(TEXTS))
        reseal(kept)

        def case() -> None:
            signal.alarm(MOST_SECONDS)
            data = collect(open_source(kept))
            introduction(data)
            for section in SECTIONS:
                section(data)

        return case


def change_table(path: Path, draw: random.Random) -> None:
    """Change one cell, or a column's name, of a CSV file."""
    rows = list(csv.reader(path.open(newline="")))
    row = rows[draw.choice((0, 1, draw.randrange(len(rows))))]
    row[draw.randrange(len(row))] = draw.choice((draw.choice(TEXTS), json.dumps(draw.choice(VALUES))))
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def reseal(folder: Path) -> None:
    """Give an archive the checksums of what it holds now, as far as it can be read, as who changes it would."""
    path, runs = folder / "archive.json", folder / "runs.csv"
    try:
        index = json.loads(path.read_text())
        names = [name for name in index["files"] if os.path.isfile(folder / name)]
        index["files"] = {name: sha256((folder / name).read_bytes()) for name in names}
        path.write_text(json.dumps(index))
        recorded = open_source(folder).recorded or {}
        header, *rows = list(csv.reader(runs.open(newline="")))
        for row in rows:
            if (name := row[header.index("name")]) in recorded:
                row[header.index("sha256")] = checksum(recorded[name])
        with runs.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
        index["files"]["runs.csv"] = sha256(runs.read_bytes())
        path.write_text(json.dumps(index))
    except (UserError, ValueError, LookupError, TypeError, AttributeError, csv.Error):
        return


@cache
def study_folder() -> Path:
    """Make a finished study, whose runs come from an archive."""
    folder, planned = Path(tempfile.mkdtemp(prefix="fuzz-study-")) / "whole", expand(read_definition("smoke"))
    study = Study.create(folder, read_definition("smoke"), planned)
    take_finished_runs(study, planned, [SMOKE], lambda said: None)
    unfinished_runs(study, keep_replay=False)
    return folder


@dataclass(frozen=True)
class StudyTarget:
    """A link or something special in place of a file of a study or an archive, which is then read or taken over."""

    archive: bool

    def case(self, seed: int, folder: Path) -> Callable[[], object]:
        """Make the case of a seed."""
        draw, study, outside = random.Random(seed), folder / "study", make_outside(folder / "outside")
        shutil.copytree(SMOKE if self.archive else study_folder(), study)
        ours = [path for path in sorted(study.rglob("*")) if "pictures" not in path.parts]
        new = [study / name for name in ("attention.json", "logs", "locks")]
        put(draw.choice([*ours, *new]), draw.choice(list(KINDS)), outside)
        planned = expand(read_definition("smoke"))
        uses: list[Callable[[], object]] = [
            lambda: collect(open_source(study)),
            lambda: take_finished_runs(
                Study.create(folder / "new", read_definition("smoke"), planned), planned, [study], print
            ),
        ]
        if not self.archive:
            uses += [lambda: unfinished_runs(Study.open(study), False), lambda: study_run([str(study), "--status"])]
        before, use = seen(outside), draw.choice(uses)

        def case() -> None:
            signal.alarm(MOST_SECONDS)
            try:
                one_line_errors(use)()
            finally:
                assert seen(outside) == before

        return case


FOLDER_TARGETS: dict[str, Any] = {
    "links": FolderTarget(lambda run, draw, outside: another_thing(LINKS, run, draw, outside)),
    "special files": FolderTarget(lambda run, draw, outside: another_thing(SPECIAL, run, draw, outside)),
    "links in studies": StudyTarget(archive=False),
    "links in archives": StudyTarget(archive=True),
    "typed metrics": FolderTarget(typed_metrics),
    "typed environment": FolderTarget(typed_environment),
    "typed runs.csv": ArchiveTarget(("runs.csv",)),
    "typed archive": ArchiveTarget(("metrics.csv", "machines.json", "archive.json", "config.toml", "study.toml")),
}
