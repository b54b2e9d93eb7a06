"""What in results/ is made from raw files, and how each of it is made again."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dqn_memory.parameters import Row, markdown_page
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import RAW, disk_errors, write_atomic
from dqn_memory.study import keeping
from dqn_memory.study.papers.page import claims_page as recomputed_page
from dqn_memory.study.report_data import collect
from dqn_memory.study.report_folder import CLAIMS
from dqn_memory.study.report_page import write_report
from dqn_memory.study.report_published import claims_page
from dqn_memory.study.report_sections import lead, sections
from dqn_memory.study.report_source import RECORD, open_source
from envs.baselines import report as baselines
from envs.baselines import report as baselines_report
from envs.tables import remake_page

# Suffixes of what is kept for people to read; all else is raw. A report's page in HTML and its pictures as SVG say the
# same again and are not kept.
MADE = (".md", ".png", ".gif")
# What no raw file can give, and why.
BY_HAND = "written by hand"
IMAGINED = (
    "needs the agent itself: python -m world_models.glam.inspect runs/glam-catch/glam/seed_1 --imagined 8 --episodes 20"
)
NOT_MADE = {
    "README.md": BY_HAND,
    "benchmarks/README.md": BY_HAND,
    "benchmarks/notes.md": BY_HAND,
    "learning/memory-7x7.md": BY_HAND,
    "published/README.md": BY_HAND,
    "published/claims.toml": BY_HAND,
    "learning/demo/attention.png": "needs the agent itself: python -m dqn_memory.demo --seed 1",
    "learning/demo/episode.gif": "needs the agent itself: python -m dqn_memory.demo --seed 1",
    "learning/glam-catch/imagined.png": IMAGINED,
    "learning/glam-catch/imagined.gif": IMAGINED,
}


@dataclass(frozen=True)
class Unit:
    """What one step makes. `make` reads the folder of results and writes below another, which may be the same."""

    name: str
    files: tuple[str, ...]  # as they are there, relative to the results
    make: Callable[[Path, Path], None]


def units(results: Path) -> list[Unit]:
    """All steps; a UserError where the folder is none of results."""
    if not (results / "published").is_dir():
        raise UserError(f"{results} is no folder of results: it has no published tables")
    return [
        *(_study(results, path.parent) for path in sorted(results.glob("studies/*/" + RECORD))),
        *(_kept(results, path.parent) for path in sorted(results.glob("learning/**/README.md"))),
        *(_speed(results, path) for path in sorted(results.glob("benchmarks/*.json"))),
        *(_sizes(results, path) for path in sorted(results.glob("*/parameters.json"))),
        *(
            [Unit("memoryless", ("memoryless.md",), _make_memoryless)]
            if (results / "memoryless.json").is_file()
            else []
        ),
        Unit("baselines", ("baselines.csv", "baselines.md"), _make_baselines),
        Unit("parameters", ("parameters.md",), _make_parameters),
        Unit("claims", ("claims.md",), _make_claims),
    ]


def unmade(results: Path) -> dict[str, str]:
    """What is to be read there and no step makes, with the reason; "" where none is known."""
    made = {file for unit in units(results) for file in unit.files}
    shown = sorted(path.relative_to(results).as_posix() for path in results.rglob("*") if path.suffix in MADE)
    return {name: NOT_MADE.get(name, "") for name in shown if name not in made}


def _relative(results: Path, paths: Iterator[Path]) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(results).as_posix() for path in paths if path.suffix in MADE))


def _study(results: Path, folder: Path) -> Unit:
    """A study's report, with the parts that the one before had."""

    def make(source: Path, target: Path) -> None:
        place = folder.relative_to(results)
        data = collect(open_source(source / place))
        before = (source / place / "report/report.md").read_text(encoding="utf-8")
        attention, beside = "\n\nLeft out, as asked.\n" not in before, "\n## Beside the published scores\n" in before
        write_report(target / place / "report", data.source.title, lead(data), sections(data, attention, beside))
        if beside:
            _write(target / place / "report" / CLAIMS, claims_page())

    name = folder.relative_to(results).as_posix()
    return Unit(name, _relative(results, (folder / "report").rglob("*")), make)


def _kept(results: Path, folder: Path) -> Unit:
    """Table and pictures of runs that a `record` script has kept."""
    place = folder.relative_to(results)

    def make(source: Path, target: Path) -> None:
        heading, runs = _runs(source / place)
        kept = [target / run.relative_to(source) for run in runs]
        if source.resolve() != target.resolve():
            with disk_errors(target):
                for run, copy in zip(runs, kept, strict=True):
                    shutil.copytree(run, copy, dirs_exist_ok=True)
        script: Any = importlib.import_module(_script(runs[0]))
        script.main([*map(str, kept), "--folder", str(target / place), "--title", heading])

    files = _relative(results, folder.glob("*"))
    return Unit(place.as_posix(), tuple(file for file in files if file not in NOT_MADE), make)


def _runs(folder: Path) -> tuple[str, list[Path]]:
    """What the page alone says of the runs kept there or named there: its heading, and their order."""
    page = (folder / keeping.PAGE).read_text(encoding="utf-8")
    runs = [*(path.parent for path in folder.glob(f"*/{RAW[-1]}")), *keeping.beside(page, folder)]
    places = {run: page.find(f"\n    {_command(run)}\n") for run in runs}
    missing = [run.name for run, place in places.items() if place < 0]
    if missing or not runs:
        raise UserError(f"{folder / keeping.PAGE} does not name the command of {', '.join(missing) or 'any run'}")
    return _heading(page), sorted(runs, key=lambda run: places[run])


def _command(run: Path) -> str:
    path = run / "environment.json"
    if not path.is_file():
        raise UserError(f"{path} is missing, though a table has that run")
    return str(json.loads(path.read_bytes())["command"])


def _script(run: Path) -> str:
    """The `record` script beside the trainer that a run's command names."""
    found = re.match(r"python -m (\S+)\.train ", _command(run))
    if found is None:
        raise UserError(f"{run / 'environment.json'} names no trainer")
    return f"{found[1]}.record".replace("dqn_memory.record", "dqn_memory.study.record")


def _heading(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def _origin(page: str) -> list[str]:
    """Lines that say where a page comes from: the first list in it."""
    return [line.removeprefix("- ") for line in page.partition("\n- ")[2].partition("\n\n")[0].split("\n")]


def _speed(results: Path, path: Path) -> Unit:
    """A benchmark's page."""
    place = path.relative_to(results).with_suffix(".md")

    def make(source: Path, target: Path) -> None:
        _write(target / place, remake_page(source / place.with_suffix(".json")))

    return Unit(place.with_suffix("").as_posix(), (place.as_posix(),), make)


def _sizes(results: Path, path: Path) -> Unit:
    """The size of a world model."""
    place = path.relative_to(results).with_suffix(".md")

    def make(source: Path, target: Path) -> None:
        numbers = json.loads((source / place.with_suffix(".json")).read_bytes())
        before = (source / place).read_text(encoding="utf-8")
        script: Any = importlib.import_module(f"world_models.{place.parent.name}.parameters")
        _write(target / place, script.markdown(numbers, _origin(before)))

    return Unit(place.with_suffix("").as_posix(), (place.as_posix(),), make)


def _make_memoryless(source: Path, target: Path) -> None:
    _write(target / "memoryless.md", remake_page(source / "memoryless.json"))


def _make_baselines(source: Path, target: Path) -> None:
    records = baselines.read(source / "baselines.json")
    _write(target / "baselines.csv", baselines_report.as_csv(records))
    _write(target / "baselines.md", baselines_report.markdown(records))


def _make_parameters(source: Path, target: Path) -> None:
    lines = (source / "parameters.csv").read_text(encoding="utf-8").splitlines()
    origin = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    rows = csv.DictReader(line for line in lines if not line.startswith("# "))
    _write(target / "parameters.md", markdown_page([_row(row) for row in rows], origin))


def _row(cells: dict[str, str]) -> Row:
    """A line of parameters.csv: two names, and numbers of which some may be missing."""
    names = {"world": cells["world"], "architecture": cells["architecture"]}
    counts = {field.name: _number(cells[field.name]) for field in fields(Row) if field.name not in names}
    return Row(**names, **counts)  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    return (float(text) if "." in text else int(text)) if text else None


def _make_claims(source: Path, target: Path) -> None:
    _write(target / "claims.md", recomputed_page("python -m dqn_memory.study.claims", source / "published"))


def _write(path: Path, page: str) -> None:
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page.encode())
