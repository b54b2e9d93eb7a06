"""Folders that name code of their own: whatever a command does with them, that code does not run."""

import csv
import io
import json
import os
import random
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from fuzz_targets import RUNS, Case, Target, run_folders
from fuzz_targets import TARGETS as FILES
from safetensors import safe_open
from safetensors.torch import load, save

from dqn_memory import api, evaluate, inspect, watch
from dqn_memory.agent import Agent
from dqn_memory.runs import checkpoint
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.settings import PRESETS
from dqn_memory.study import archive as archive_module
from dqn_memory.study import report
from dqn_memory.study import run as study_run
from envs.files import sha256
from world_models.glam import inspect as glam_inspect
from world_models.unizero import inspect as unizero_inspect

EVIL = 'from pathlib import Path\nPath(r"{marker}").write_text(__name__)\nraise SystemExit("foreign code ran")\n'
# Where the module lies in the working directory, and what names it. `run` is the folder of the run itself.
PLACES = {
    "evil": "evil.py",
    "evil_package": "evil_package/__init__.py",
    "run.evil": "run/evil.py",
    "run.inner.evil": "run/inner/evil.py",
    "minigrid": "minigrid/__init__.py",
    "popgym": "popgym.py",
    "memory_gym": "memory_gym/__init__.py",
    "wandb": "wandb.py",
}
FOREIGN_IDS = ("{}:Evil-v0", "{}:MiniGrid-MemoryS7-v0", "envs:{}:POMDP/CarFlag-v0")
KNOWN_IDS = ("MiniGrid-Evil-v0", "popgym-Evil-v0", "MortarMayhem-v9", "BabyAI-Evil-v0")


def strings(tree: Any) -> list[tuple[Any, Any]]:
    """List the places of all strings of nested plain values, as (holder, key)."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    places = [(tree, key) for key in keys if isinstance(tree[key], str)]
    return places + [place for key in keys for place in strings(tree[key])]


def forge(text: str, draw: random.Random) -> str:
    """Let a config name foreign modules: as plugins, environments, or in place of any other string."""
    config = tomllib.loads(text)
    module = draw.choice(list(PLACES))
    change = draw.randrange(4)
    settings = config.get("base", config)  # of a study's runs, or a run's own
    if change in (0, 3):
        settings["plugin"] = draw.choice(([module], [module, "json"], [f"{module}.more"], ["json", module]))
    if change in (1, 3):
        id = draw.choice((*FOREIGN_IDS, *KNOWN_IDS)).format(module)
        (settings if "base" in config else settings.setdefault("environment", {}))["env"] = id
        for worlds in config.get("axes", {}).values():
            worlds[:] = [id if "/" in str(world) else world for world in worlds]
    if change == 2:
        holder, key = draw.choice(strings(config) or [(config, "env")])
        holder[key] = draw.choice((module, f"{module}:Evil", f"{module}.Evil", f"{module}:Evil-v0"))
    return tomli_w.dumps(config)


def forge_run(run: Path, draw: random.Random) -> None:
    """Forge a run's config.toml, the config in its checkpoint, or both alike."""
    seed, which = draw.random(), draw.choice(("config.toml", "checkpoint", "both", "both"))
    path = run / "config.toml"
    if which != "checkpoint":
        path.write_text(forge(path.read_text(), random.Random(seed)))
    if which == "config.toml":
        return
    path = run / "checkpoints" / checkpoint.MANIFEST
    content = json.loads(path.read_bytes())["content"]
    file = path.with_name(content["weights"]["file"])
    with safe_open(file, "pt") as opened:
        header = opened.metadata()
    header["config"] = forge(header["config"], random.Random(seed))
    data = save(load(file.read_bytes()), metadata=header)
    file.write_bytes(data)
    content["weights"] |= {"size": len(data), "sha256": sha256(data)}
    path.write_bytes(checkpoint._seal(content))


def plant(folder: Path) -> Path:
    """Put the modules into a folder; gives the file that they would write."""
    marker = folder.parent / f"{folder.name}-executed"
    for place in PLACES.values():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(EVIL.format(marker=marker))
    return marker


def in_folder(folder: Path, marker: Path, case: Case) -> Case:
    """Carry a case out as `python -m` does in a folder, and fail where foreign code ran."""

    def there() -> None:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        try:
            case()
        finally:
            assert not marker.exists(), f"foreign code ran: {marker.read_text()}"

    return there


def commands(kind: str, run: Path) -> dict[str, Case]:
    """List what people do with a run of others."""
    resume = ["--resume", str(run), "--total-steps", "100000"]
    few = {"num_eval_envs": 1, "episodes_per_env": 1} if kind in ("unizero", "glam") else {"episodes": 1}
    flags = [word for name, number in few.items() for word in (f"--{name.replace('_', '-')}", str(number))]
    looks = {"unizero": unizero_inspect.main, "glam": glam_inspect.main}.get(kind, inspect.main)
    # 16 episodes and a video would take as long as a case may.
    short = ["--episodes", "1", "--no-frames"] if looks is inspect.main else []
    return {
        "evaluate": lambda: evaluate.main([str(run), *flags]),
        "inspect": lambda: looks([str(run), *short]),
        "watch": lambda: watch.main([str(run), "--on", "terminal", "--delay", "0"]),
        "resume": lambda: trainer_class(kind).start(resume)[1].close(),
        "Agent.load": lambda: Agent.load(run),
        "api.evaluate": lambda: api.evaluate(run, **few),
        "api.load_run": lambda: api.load_run(run),
        "report": lambda: report.main([str(run), "--no-attention"]),
        "--config": lambda: trainer_class(kind).start(["--config", str(run / "config.toml"), "--run", str(run / "x")]),
    }


def foreign_run(source: tuple[str, random.Random], folder: Path) -> Case:
    """Make a case of a forged run of some kind."""
    kind, draw = source
    run = folder / "run"
    shutil.copytree(run_folders()[kind], run)
    forge_run(run, draw)
    case = draw.choice(list(commands(kind, run).values()))
    return in_folder(folder, plant(folder), case)


def foreign_study(source: tuple[str, random.Random], folder: Path) -> Case:
    """Make a case of a forged definition of a study, which is planned."""
    text, draw = source
    path = folder / "study.toml"
    path.write_text(forge(text, draw))
    more = draw.choice(([], ["--smoke"]))
    return in_folder(folder, plant(folder), lambda: study_run.main([str(path), "--dry-run", *more]))


def forge_rows(text: str, draw: random.Random, drop: str = "") -> str:
    """Let the rows of an archive name foreign environments, or drop columns whose name begins so."""
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [name for name in rows[0] if not (drop and name.startswith(drop))]
    id = draw.choice((*FOREIGN_IDS, *KNOWN_IDS)).format(draw.choice(list(PLACES)))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        worlds = {name: id for name in names if not drop and row[name].startswith(("Gridverse/", "POMDP/"))}
        writer.writerow(row | worlds)
    return out.getvalue()


class Sealed(str):
    """A checksum that fits, as who forges an archive computes it."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def foreign_archive(source: tuple[Path, random.Random], folder: Path) -> Case:
    """Make a case of a forged archive of a study, whose checksums fit."""
    archive, draw = source
    copy = folder / "archive"
    shutil.copytree(archive, copy)
    path = copy / draw.choice(("study.toml", "config.toml", "runs.csv"))
    path.write_text((forge_rows if path.suffix == ".csv" else forge)(path.read_text(), draw))
    if draw.random() < 0.5:  # without it a reader makes the environment, to find out what its runs measured
        table = copy / "runs.csv"
        table.write_text(forge_rows(table.read_text(), draw, drop="summary."))

    def case() -> None:
        archive_module.checksum = archive_module.sha256 = lambda _: Sealed()
        report.main([str(copy), *draw.choice(([], ["--no-attention"]))])

    return in_folder(folder, plant(folder), case)


def studies() -> list[str]:
    """Read the shipped definitions of studies."""
    return [path.read_text() for path in sorted((PRESETS / "studies").glob("*.toml"))]


def archives() -> list[Path]:
    """List the archives of this checkout that are read within a second."""
    return [PRESETS.parent / "results" / "studies" / "smoke"]


def drawn(source: Any, draw: random.Random) -> tuple[Any, random.Random]:
    """Leave all choices to the use."""
    return source, draw


TARGETS = FILES | {
    "foreign run": Target(lambda: list(RUNS), drawn, foreign_run),
    "foreign study": Target(studies, drawn, foreign_study),
    "foreign archive": Target(archives, drawn, foreign_archive),
}
