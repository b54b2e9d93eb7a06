"""Tables for a terminal show every label as it is."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dqn_memory.study.definition import parse_definition
from dqn_memory.study.run import overview
from dqn_memory.study.store import Study

WORLDS = ("Rooms [/7x7]", "[bold]Hall")
FORMS = ("dtqn [/]", "[red]dgfqn")
TEXT = 'title = "[b]Odd[/c]"\nkind = "dqn_memory.train"\n[axes]\nworld = ["w"]\narchitecture = ["a"]\nseed = [1]\n'
TEXT += '"gamma[/]" = [1]\n'


@pytest.mark.parametrize("seeds", [2, 12])  # few runs, which are all listed, and more than FEW
def test_labels_in_brackets_are_no_markup(tmp_path: Path, seeds: int) -> None:
    runs = [
        (f"{world}{form}{seed}", {"world": world, "architecture": form, "seed": seed, "gamma[/]": 1}, 100)
        for world in WORLDS
        for form in FORMS
        for seed in range(seeds)
    ]
    study = Study.create(tmp_path / "study", parse_definition(TEXT, "odd.toml", "odd"), runs)
    study.mark(runs[0][0], "failed", "[/] is wrong")
    console = Console(file=StringIO(), width=200)
    console.print(overview(study, everything=True))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(label in said for label in (*WORLDS, *FORMS, "[b]Odd[/c]", "[/] is wrong", "gamma[/]"))
