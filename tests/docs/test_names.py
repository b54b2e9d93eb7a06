"""One name means one thing: few functions and classes of the packages have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dqn_memory", "envs", "world_models")


def test_few_names_are_defined_in_more_than_one_module():
    places = defaultdict(set)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path.relative_to(ROOT).as_posix())
    assert len(places) > 1000
    twice = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert len(twice) <= 20, twice
