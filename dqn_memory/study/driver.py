"""Carries a study out: hands its runs to a backend and notes in the study's state what becomes of them."""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import disk_errors, write_atomic
from dqn_memory.runs.toml import from_record
from dqn_memory.study.backends import Backend
from dqn_memory.study.definition import Definition, Resources
from dqn_memory.study.estimate import in_words
from dqn_memory.study.expansion import Planned
from dqn_memory.study.finished import checkpoint, final_metrics, finished, vouch
from dqn_memory.study.report_source import RECORD
from dqn_memory.study.state import STATE, RunState, Study
from dqn_memory.study.worker import Order, Outcome
from envs.registry import WORLDS

POLL = 1.0  # seconds between looks at the room for more runs
Say = Callable[[str], object]


def prepare(folder: Path, definition: Definition, planned: Sequence[Planned]) -> Study:
    """Make or extend the study in `folder`; what is finished there stays.

    Raises UserError as `check_place` does.
    """
    check_place(folder, definition, planned)
    listed = [(run.name, run.axes, run.config.total_steps) for run in planned]
    with disk_errors(folder):
        study = Study.create(folder, definition, listed)
        (folder / "configs").mkdir(exist_ok=True)
    for run in planned:
        path = study.config_of(run.name)
        if not path.exists():
            write_atomic(path, run.toml.encode())
    return study


def check_place(folder: Path, definition: Definition, planned: Sequence[Planned]) -> None:
    """Refuse, with nothing written, a folder in which the study would lie among strangers.

    Raises UserError where the folder is none or holds something else or another study, and where a run of the same
    name was made with another config: its numbers would not belong here.
    """
    with disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--folder {folder} is no folder; name another")
        _check_ours(folder)
        _check_study(folder, definition, planned)
        for run in planned:
            _check_same(folder / "configs" / f"{run.name}.toml", run)


def _check_ours(folder: Path) -> None:
    if not folder.exists() or (folder / STATE).exists():
        return
    if (folder / RECORD).exists():
        raise UserError(f"{folder} is the record of a study: give another --folder, and --take-from {folder}")
    strange = sorted(path.name for path in folder.iterdir() if path.name != "locks")
    if strange:
        raise UserError(f"{folder} is not empty and no study ({strange[0]} is in it); give another --folder")


def _check_study(folder: Path, definition: Definition, planned: Sequence[Planned]) -> None:
    """That a study which is there is this one: of its title, and with a run in common."""
    if not (folder / STATE).exists():
        return
    there, hint = Study.open(folder), "give another --folder"
    if there.title != definition.title:
        raise UserError(f"{folder} holds the study '{there.title}', not '{definition.title}'; {hint}")
    made = {path.stem for path in (folder / "configs").glob("*.toml")}
    if made and made.isdisjoint(run.name for run in planned):
        raise UserError(f"the study in {folder} has none of these runs but others, such as {min(made)}; {hint}")


def _check_same(path: Path, run: Planned) -> None:
    if not path.exists():
        return
    made = from_record(type(run.config), path.read_text(encoding="utf-8"), str(path))
    if made != run.config:
        raise UserError(
            f"the study in {path.parent.parent} was made with other settings of {run.name} ({_difference(made, run)}); "
            "give another --folder, or the definition it was made with"
        )


def _difference(made: Any, run: Planned) -> str:
    """The first line in which two configs differ."""
    ours, theirs = run.toml.splitlines(), Planned(run.name, run.axes, made).toml.splitlines()
    pairs = ((old, new) for old, new in zip(theirs, ours, strict=False) if old != new)
    old, new = next(pairs, (f"{len(theirs)} lines", f"{len(ours)} lines"))
    return f"{old}, now {new}"


def open_runs(study: Study, keep_replay: bool) -> list[RunState]:
    """Runs that are still to be brought to their end; the state is put right where the folders tell otherwise."""
    left = []
    for run in study.runs():
        try:
            done = finished(run.folder)
        except UserError as error:
            study.mark(run.name, "failed", str(error))
            left.append(run)
            continue
        if done and run.state != "finished":
            note_finished(study, run, keep_replay)
        elif not done:
            left.append(run)
            if run.state != "waiting":
                study.mark(run.name, "stopped" if checkpoint(run.folder) else "waiting")
    return left


def note_finished(study: Study, run: RunState, keep_replay: bool) -> float | None:
    """Tidy a finished run up, then note it; returns its time in seconds."""
    if not keep_replay and checkpoint(run.folder) is not None:
        from dqn_memory.runs.checkpoint import CheckpointFolder  # it imports torch, which nothing else here needs

        CheckpointFolder(run.folder / "checkpoints").drop_replay()
    elapsed = final_metrics(run.folder).get("time/elapsed")
    seconds = None if elapsed is None else float(elapsed)
    vouch(run.folder)
    study.mark(run.name, "finished", seconds=seconds)
    return seconds


class Drive:
    """One session of `study.run`: from the runs that are left to their outcomes."""

    def __init__(self, study: Study, backend: Backend, resources: Resources, retries: int, say: Say) -> None:
        self.study, self.backend, self.retries, self.say = study, backend, retries, say
        self.cpus, self.keep_replay = resources.cpus, resources.keep_replay
        self.waiting: deque[RunState] = deque()
        self.running: dict[str, RunState] = {}
        self._starts: dict[str, int] = {}
        self._vain: dict[str, tuple[int, int]] = {}  # by run: step of its checkpoint, times killed since it had it
        self.done = self.total = 0

    def run(self, runs: Sequence[RunState]) -> None:
        """Until every run has finished or failed; an interrupt stops all trainers and leaves their runs resumable."""
        self.waiting.extend(runs)
        known = self.study.runs()
        self.total, self.done = len(known), sum(run.state == "finished" for run in known)
        try:
            while self.waiting or self.running:
                while self.waiting and self.backend.room() > 0:
                    self._begin(self.waiting.popleft())
                for outcome in self.backend.outcomes(POLL):
                    self._end(self.running.pop(outcome.name), outcome)
        finally:
            self.backend.close()
            for name in self.running:
                self.study.mark(name, "stopped", "study.run was stopped")

    def _begin(self, run: RunState) -> None:
        attempt = self._starts[run.name] = self._starts.get(run.name, run.attempts) + 1
        self.study.mark(run.name, "running", begun=True)
        self.running[run.name] = run
        folder = str(self.study.folder.resolve())
        order = Order(run.name, self.study.kind, folder, str(Path.cwd()), self.cpus, attempt)
        self.backend.submit(order)
        self.say(f"started  {run.name}" + (f" (start {attempt})" if attempt > 1 else ""))

    def _end(self, run: RunState, outcome: Outcome) -> None:
        if outcome.result == "finished":
            self.done += 1
            seconds = note_finished(self.study, run, self.keep_replay)
            self.say(f"finished {run.name} in {in_words(seconds)} ({self.done} of {self.total}){_score(run)}")
        elif outcome.result == "killed" and self._worth_another(run):
            self.study.mark(run.name, "stopped", outcome.error)
            self.waiting.append(run)
            self.say(f"lost     {run.name}: {outcome.error}; it continues from its last checkpoint")
        else:
            self.study.mark(run.name, "failed", outcome.error)
            last = outcome.error.splitlines()[-1] if outcome.error else "no word of why"
            self.say(f"failed   {run.name}: {last}")

    def _worth_another(self, run: RunState) -> bool:
        """Whether a killed run has not been killed too often without a further checkpoint in between."""
        reached = -1
        with suppress(UserError):  # a damaged checkpoint is the trainer's to refuse
            reached = (checkpoint(run.folder) or {"step": -1})["step"]
        before, times = self._vain.get(run.name, (reached, 0))
        self._vain[run.name] = (reached, times + 1 if reached == before else 1)
        return self._vain[run.name][1] <= self.retries


def _score(run: RunState) -> str:
    """What its last evaluation says, as the report will read it: success only of worlds that tell what it is."""
    final = final_metrics(run.folder)
    env = tomllib.loads(run.config.read_text(encoding="utf-8"))["world"]["env"]
    named = {"success": "final/success_rate"} if env.removeprefix("envs:") in WORLDS else {}
    named["return"] = "final/episodic_return"
    told = [f"{name} {final[key]:.3g}" for name, key in named.items() if final.get(key) is not None]
    return f": {', '.join(told)}" if told else ""
