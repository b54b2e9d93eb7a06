"""Archives that were changed, pages of hostile strings, and what commands say of them on a terminal."""

import contextlib
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import fuzz_mutate as mutate
from hostile_text import CONTROL, STEERING, Active, shown, strings, toml
from reported import MEMORY, make_study, read

from dqn_memory import evaluate, inspect, train, watch
from dqn_memory.study import report, run
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.page import PAGE
from envs.files import sha256

Case = Callable[[], object]
FILES = ("study.toml", "runs.csv", "metrics.csv", "machines.json", "config.toml", "archive.json", "attention.json")
STUDY = """
title = {0}
kind = "q_network"
about = {1}
[base]
total_steps = 600
{2} = {3}
[axes]
world = [{{ name = {4}, env = {5} }}]
architecture = [{{ name = {6}, architecture = {7} }}]
seed = [1]
"""


@dataclass(frozen=True)
class Target:
    """What is changed (`corpus`), how, and what is done with the changed one in a folder."""

    corpus: Callable[[], list[Any]]
    change: Callable[[Any, random.Random], Any]
    use: Callable[[Any, Path], Case]

    def case(self, seed: int, folder: Path) -> Case:
        """Make the case of a seed."""
        draw = random.Random(seed)
        return self.use(self.change(draw.choice(self.corpus()), draw), folder)


@cache
def small_archive() -> Path:
    """Archive a study of two runs."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-archive-"))
    make_study(folder / "study", [MEMORY], '["dtqn4"]', [1, 2])
    report.archive_runs(read(folder / "study"), folder / "kept")
    (folder / "kept" / "attention.json").write_text("{}")
    return folder / "kept"


def changed_file(name: str, draw: random.Random) -> tuple[str, str, bool]:
    """Change a file of the archive; also say whether its checksum is to be made anew."""
    text = (small_archive() / name).read_text()
    if name.endswith(".json") and draw.random() < 0.5:
        return name, json.dumps(mutate.tree(json.loads(text), draw), default=str), draw.random() < 0.8
    if draw.random() < 0.3:  # a hostile cell or value
        words = list(mutate.WORD.finditer(text))
        place = draw.choice(words) if words else None
        given = json.dumps(draw.choice(everything()))[1:-1]
        text = text if place is None else text[: place.start()] + given + text[place.end() :]
    return name, mutate.text(text, draw), draw.random() < 0.8


def reported_anew(source: tuple[str, str, bool], folder: Path) -> Case:
    """Report a changed archive."""
    name, text, sealed = source
    kept = folder / "kept"
    shutil.copytree(small_archive(), kept)
    (kept / name).write_text(text, errors="replace")
    if sealed and name != "archive.json":
        index = json.loads((kept / "archive.json").read_text())
        index["files"] = index["files"] | {name: sha256((kept / name).read_bytes())}
        (kept / "archive.json").write_text(json.dumps(index))
    return lambda: _printed(lambda: report.main([str(kept), "--write", str(folder / "report")]))


def everything() -> list[str]:
    """All strings that are tried."""
    return [*strings(), *STEERING]


def some(_: Any, draw: random.Random) -> list[str]:
    """Draw strings for every field."""
    return [draw.choice(everything()) for _ in range(16)]


def inert(given: list[str], folder: Path) -> Case:
    """Report an archive that has these strings in every field, and look for what the page could do."""

    def case() -> None:
        fields = iter(given)
        source = open_source(small_archive())
        axes = {"world": next(fields), "architecture": next(fields)}
        facts = {name: next(fields) for name in ("cpu", "device", "torch", "revision", "mamba_backend")}
        records = {name: replace(each, environment=facts) for name, each in (source.recorded or {}).items()}
        runs = [replace(each, axes=each.axes | axes) for each in source.runs]
        lost = replace(runs[0], name=next(fields), state="failed", error=next(fields))
        source = replace(
            source, title=next(fields), about=next(fields), runs=(*runs, lost), recorded=records,
            damage={lost.name: [next(fields)], "": [next(fields)]},
        )  # fmt: skip
        _printed(lambda: report.write_pages(collect(source), folder / "report"))
        found = Active.of(folder / "report" / PAGE)
        assert not found.found, found.found
        for each in (source.title, *axes.values(), facts["cpu"], facts["torch"], *source.damage[""]):
            assert shown(each).strip() in found.text, each

    return case


def said(given: list[str], folder: Path) -> Case:
    """Hand these strings to a command, in its arguments, a config, a study or a run's files."""
    draw = random.Random(" ".join(given))
    key, value, *others = given
    config, study, broken = folder / "config.toml", folder / "study.toml", folder / "run"
    config.write_text(f"schema = 2\n{toml(key)} = {toml(value)}\n[network]\narchitecture = {toml(others[0])}\n")
    study.write_text(STUDY.format(*map(toml, [key, value, *others[:6]])))
    broken.mkdir()
    (broken / "config.toml").write_text(config.read_text())
    (broken / "environment.json").write_text(json.dumps({"revision": value}))
    (broken / "metrics.jsonl").write_text(json.dumps({"step": 1, key: value}) + "\n")
    named = [str(folder / "".join(c for c in key if c not in "/\0"))]
    cases: list[tuple[Callable[[list[str]], object], list[str]]] = [
        (train.main, ["--config", str(config), "--run", str(folder / "new")]), (train.main, ["--resume", str(broken)]),
        (train.main, ["--env", value]), (train.main, ["--plugin", value]), (train.main, ["--prior", value]),
        (train.main, [f"--{key}", value]), (evaluate.main, [str(broken)]), (inspect.main, named), (watch.main, named),
        (run.main, [str(study), "--dry-run"]), (run.main, [value]),
        (run.main, [*named, "--status"]), (report.main, named), (report.main, [str(broken)]),
    ]  # fmt: skip
    command, arguments = draw.choice(cases)
    return lambda: _printed(lambda: command(arguments))


def _printed(call: Callable[[], object]) -> None:
    """Call; an AssertionError where what is printed steers a terminal, or a refusal is not one line."""
    streams = io.StringIO(), io.StringIO()
    code: object = 0
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            call()
    except SystemExit as ended:
        code = ended.code
        raise
    finally:
        out, err = (stream.getvalue() for stream in streams)
        assert not CONTROL.search(out + err), ascii(out + err)
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert code != 2 or not lines or err.endswith(f"{lines[-1]}\n"), err


PAGE_TARGETS: dict[str, Target] = {
    "archive": Target(lambda: list(FILES), changed_file, reported_anew),
    "page": Target(lambda: [None], some, inert),
    "terminal": Target(lambda: [None], some, said),
}
