"""Create, read and continue a run folder: config, metrics and checkpoints of a training run.

config.toml       complete and reloadable          metrics.jsonl   one JSON object a line
environment.json  versions, revision, device       events.out...   the same scalars for TensorBoard, or other trackers
checkpoints/      the latest checkpoint; its manifest.json is renamed last

run = Run.create(path, to_toml(config))
run.log(step, {"charts/episodic_return": 0.5})
run.save(step, weights, trainer, replay, header)

run = Run.open(path)            # to read it, without a lock; or an agent's name such as "memory-7x7"
run = Run.take_up(path)         # to continue it
checkpoint = run.resume()       # None: it was killed before its first checkpoint

One process at a time writes to a run. It holds a lock that ends with the process.
"""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Self

import tomli_w
import torch
import tyro
from torch import Tensor

from dqn_memory.runs.checkpoint import Checkpoint, CheckpointFolder
from dqn_memory.runs.errors import UserError, require, train_anew
from dqn_memory.runs.lock import held_by, lock_holder, take_lock
from dqn_memory.runs.metrics import FINAL, Metrics, checked_facts, read_metrics
from dqn_memory.runs.ring import Ring
from dqn_memory.runs.settings import Repeatable
from envs.cli import load_plugins
from envs.files import MAX_TEXT_BYTES, disk_errors, leftovers, parse_json, read_bytes, read_text, write_atomic
from envs.machine import describe_environment
from envs.spaces import Array

LOCK = ".lock"  # held by the process that trains the run
PATIENCE = 2.0  # seconds to wait for a process that is ending
AGENTS = Path(__file__).parents[1] / "agents"  # run folders of trained agents, in the package


def find_run(path: Path | str) -> Path:
    """Give the path of a run; if there is no run of that path, of the agent in the package that has this name."""
    path = Path(path)
    shipped = AGENTS / path.name
    ours = str(path) == path.name and not _is_run(path) and _is_run(shipped)
    return shipped if ours else path


def agent_names() -> list[str]:
    """Name the agents in the package."""
    return sorted(folder.name for folder in AGENTS.iterdir() if _is_run(folder))


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


class Run:
    """A run folder, made by `create` or found by `open`; a context manager that closes its files."""

    def __init__(self, path: Path, lock: IO[bytes] | None = None) -> None:
        self.path = path
        self._lock = lock  # None: the run is only read
        self._metrics = Metrics(path)
        self._checkpoints = CheckpointFolder(path / "checkpoints")

    @classmethod
    def create(
        cls,
        path: Path | str,
        config_toml: str,
        device: torch.device | str = "cpu",
        facts: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start a run in a new or empty folder; a UserError says that the folder is not empty.

        Unfinished files of a start that was killed do not count. `facts` are added to environment.json.
        """
        path = Path(path)
        check_empty(path)
        run = cls(path, _taken(path))
        try:
            check_empty(path)  # another process may have started here meanwhile
            _sweep(path)
            write_atomic(path / "config.toml", config_toml.encode())
            run.describe(device, facts)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a run to read it, by its path or an agent's name; a UserError says that there is none."""
        return cls(_checked(find_run(path), f"; agents in the package: {', '.join(agent_names())}"))

    @classmethod
    def take_up(cls, path: Path | str) -> Self:
        """Open a run to continue it; a UserError says that there is none, or that another process trains it."""
        run = cls(_checked(Path(path)))
        run._lock = _taken(run.path)
        try:
            _sweep(run.path)
        except BaseException:
            run.close()
            raise
        return run

    @property
    def config_file(self) -> Path:
        """Path of config.toml."""
        return self.path / "config.toml"

    @property
    def config_toml(self) -> str:
        """Text of config.toml."""
        return read_text(self.config_file, follow=False)

    def describe(self, device: torch.device | str = "cpu", facts: Mapping[str, Any] | None = None) -> None:
        """Write environment.json."""
        environment = describe_environment(device) | dict(facts or {})
        write_atomic(self.path / "environment.json", json.dumps(environment, indent=1).encode())

    def lengthen(self, total_steps: int) -> None:
        """Write a new length of the run into config.toml, for later resumes."""
        values = tomllib.loads(self.config_toml)
        if values.get("total_steps") != total_steps:
            write_atomic(self.path / "config.toml", tomli_w.dumps(values | {"total_steps": total_steps}).encode())

    @property
    def environment(self) -> dict[str, Any]:
        """Facts in environment.json; empty if the run was killed before it was written."""
        path = self.path / "environment.json"
        try:
            return checked_facts(parse_json(read_bytes(path, MAX_TEXT_BYTES))) if os.path.lexists(path) else {}
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}; delete it to continue without its facts") from None

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run has saved a checkpoint."""
        return self._checkpoints.exists

    def track(self, names: Sequence[str]) -> None:
        """Pass each later line to these trackers (see `dqn_memory.runs.trackers`)."""
        self._metrics.track(names)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars at an environment step."""
        self._metrics.log(step, scalars)

    def log_histograms(self, step: int, values: Mapping[str, Array]) -> None:
        """Show histograms of arrays at an environment step in TensorBoard."""
        self._metrics.log_histograms(step, values)

    def metrics(self) -> list[dict[str, Any]]:
        """Read all log lines, oldest first: {"step": ..., name: number or None}."""
        self._metrics.flush()
        return read_metrics(self._metrics.path)

    def save(
        self,
        step: int,
        weights: dict[str, Tensor],
        trainer: dict[str, Any],
        replay: Ring | None = None,
        header: dict[str, str] | None = None,
    ) -> None:
        """Save a checkpoint in place of the last one, which stays valid until this one is complete.

        `trainer` is nested plain Python values and tensors; `header` goes into the weights file. Only columns of
        `replay` that no earlier checkpoint holds are written. A UserError says that the disk is full.
        """
        self._checkpoints.save(step, weights, trainer, replay, header or {}, self._metrics.flush())

    def load(self, with_replay: bool = True) -> Checkpoint:
        """Read the latest checkpoint and change nothing; a UserError names a damaged file.

        Another process may train the run meanwhile.
        """
        return self._checkpoints.load(with_replay)[0]

    def resume(self, restore: Callable[[Checkpoint], object] = lambda checkpoint: None) -> Checkpoint | None:
        """Return to the latest checkpoint: call `restore`, then cut the metrics to the length at that time.

        The result is None if there is no checkpoint: the run starts over at step 0 with empty metrics. A UserError
        says that the run is finished and without its checkpoint: starting over would delete its metrics.
        """
        if not self.has_checkpoint:
            if any(name.startswith(FINAL) for line in self.metrics() for name in line):
                raise UserError(
                    f"{self.path} is a finished run without its checkpoint, so it cannot be continued; "
                    f"{train_anew(self.path)}"
                )
            self._metrics.truncate(0, -1)
            self._checkpoints.tidy(None)
            return None
        checkpoint, manifest = self._checkpoints.load()
        restore(checkpoint)
        self._metrics.truncate(manifest["metrics_bytes"], checkpoint.step, manifest.get("metrics_sha256"))
        self._checkpoints.tidy(manifest)
        return checkpoint

    def close(self) -> None:
        """Close the files and release the lock."""
        try:
            self._metrics.close()
        finally:
            if self._lock is not None:
                self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(path: Path, absent: str = "") -> Path:
    """Check that a path is a run; a UserError describes the path, or says `absent` if the path does not exist."""
    if _is_run(path):
        return path
    hint = "" if path.exists() else absent
    if path.is_dir() and not _strange(path):
        hint = "; nothing was written there yet"
    elif below := sorted(file for depth in ("*", "*/*") for file in path.glob(f"{depth}/config.toml")):
        hint = f"; a run below it is {below[0].parent}"
    raise UserError(f"{path} is no run folder: it has no config.toml{hint}")


def _taken(path: Path) -> IO[bytes]:
    return take_lock(path / LOCK, f"the run {path} is being trained", PATIENCE)


def _sweep(path: Path) -> None:
    with disk_errors(path):
        for left in leftovers(path):
            left.unlink()


def _strange(path: Path) -> list[str]:
    """List the content of a folder without the lock and leftovers."""
    ours = {path / LOCK, *leftovers(path)}
    return sorted(entry.name for entry in path.iterdir() if entry not in ours)


def check_empty(path: Path) -> None:
    """Raise a UserError if a new run cannot start in this folder."""
    if path.is_symlink() and not path.exists():
        raise UserError(f"the run folder {path} is a link that leads nowhere: choose another --run")
    if path.exists() and not path.is_dir():
        raise UserError(f"the run folder {path} is a file: choose another --run")
    if not path.exists() or not (content := _strange(path)):
        return
    holder = lock_holder(path / LOCK)
    if holder is not None:
        raise UserError(f"the run {path} is being trained, {held_by(holder)}: choose another --run")
    hint = f"the run folder {path} is not empty: choose another --run, or continue its run by --resume {path}"
    require("config.toml" not in content, hint)
    raise UserError(
        f"the run folder {path} is not empty, and holds no run ({content[0]} is in it): choose another --run"
    )


@dataclass(frozen=True)
class RunArgument:
    """The run of a script, given as an argument or as --run."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, or the name of a shipped agent: demo, memory-7x7 or car-flag."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """The same, as a flag instead."""
    plugin: Repeatable = ()
    """Import this module, which the run names (not needed for a run that you started)."""

    def chosen_run(self) -> Path:
        """Import the plugins, and give the path of the run."""
        load_plugins(self.plugin)
        require(bool(self.folder) != bool(self.run), "give one run folder, as an argument or as --run RUN")
        return Path(self.folder or self.run)
