"""Copies of finished runs' raw numbers, which both `record` scripts keep beside a table and pictures of their own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import tyro

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import METRICS, RAW, disk_errors
from dqn_memory.runs.folder import Run
from dqn_memory.runs.metrics import shortened


@dataclass(frozen=True)
class Args:
    """Copy the raw numbers of finished runs and write their table and pictures."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Run folders, or what was kept of such runs before, so that a table has old and new ones."""
    folder: str = "results/learning"
    """Where to keep them; files of the same runs are replaced, nothing else is touched. What stands in a record beside
    it is not copied: the table names that place."""
    title: str = ""
    """Heading of the table and the pictures (empty: the world's id)."""


class Kept(Protocol):
    """A finished run, and what its copy is called: FORM-seed_S where it is a seed of a form."""

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str: ...


PAGE = "README.md"
BESIDE = "Raw numbers that stand beside another table: "

K = TypeVar("K", bound=Kept)


def by_form(records: Sequence[K]) -> dict[str, list[K]]:
    """The seeds of every form, in the order given; a run that is named otherwise is a form of its own."""
    forms: dict[str, list[K]] = {}
    for record in records:
        form, seed, _ = record.name.rpartition("-seed_")
        forms.setdefault(form if seed else record.name, []).append(record)
    return forms


def rows(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, a line a row."""
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *cells)]


def open_finished(path: Path, final: str) -> Run:
    """A run that has a final evaluation, which wrote `final`; a UserError says what is missing."""
    run = Run.open(path, tensorboard=False)
    if not any(final in line for line in run.metrics()):
        raise UserError(f"{path} is not finished: it has no final evaluation; continue it with --resume {path}")
    return run


def check_names(records: Sequence[Kept]) -> None:
    """A UserError where there is nothing to keep, or two copies would be one."""
    if not records:
        raise UserError("no run given; name at least one run folder")
    if len({record.name for record in records}) < len(records):
        raise UserError("two of the runs have the same folder name; records are kept under it, so names must differ")


def kept_beside(path: Path, folder: Path) -> bool:
    """Whether it is no run folder but what was kept of one (raw numbers alone), in a record beside `folder`."""
    record, own = path.resolve().parent, folder.resolve()
    return record != own and record.parent == own.parent and {file.name for file in path.iterdir()} == set(RAW)


def places(records: Sequence[Kept], folder: Path) -> list[str]:
    """A sentence with links to the runs that stand in other records."""
    others = [record for record in records if kept_beside(record.path, folder)]
    if not others:
        return []
    links = [f"[{record.name}](../{record.path.resolve().parent.name}/{record.path.name})" for record in others]
    return [f"{BESIDE}{', '.join(links)}.", ""]


def beside(page: str, folder: Path) -> list[Path]:
    """The runs to which `places` has put links into a page of `folder`."""
    links = page.partition(f"\n{BESIDE}")[2].partition("\n")[0]
    return [folder.parent / place for place in re.findall(r"\]\(\.\./([^)]+)\)", links)]


def copy_raw(records: Sequence[Kept], folder: Path) -> None:
    """A folder for each run that is neither there nor in a record beside it."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for record in records:
            if record.path.resolve() == (folder / record.name).resolve() or kept_beside(record.path, folder):
                continue
            (folder / record.name).mkdir(parents=True, exist_ok=True)
            for file in RAW:
                shutil.copyfile(record.path / file, folder / record.name / file)
            metrics = folder / record.name / METRICS
            metrics.write_bytes(shortened(metrics.read_bytes()))
