"""Pass the log lines to trackers: TensorBoard, or one of your own.

Resumes, reports and archives read metrics.jsonl; trackers are for people. `--track` chooses those of a run.
A module of your own can add one, and `--plugin my_module` lets a script import it:

    class Printed:
        def __init__(self, folder, resumed): ...       # see Builder; <folder>/config.toml is the run's config
        def log(self, step, scalars): print(step, scalars)
        def close(self): ...

    TRACKERS["printed"] = Printed                      # --plugin my_module --track printed
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dqn_memory.runs.errors import UserError, check_known
from envs.extras import has_extra, missing
from envs.files import open_file

NONE = "none"
Scalars = Mapping[str, float]


class Tracker(Protocol):
    """Receives the log lines of a run."""

    def log(self, step: int, scalars: Scalars) -> None:
        """Receive the scalars of an environment step; some may not be finite."""

    def close(self) -> None:
        """End the tracker; no line follows in this process."""


Builder = Callable[[Path, int | None], Tracker]
"""Builds a tracker for a run folder and the step of the checkpoint from which the run continues (-1: it starts over;
None: it is new). Lines of later steps will come again."""


def check_trackers(names: Sequence[str]) -> None:
    """Check names of trackers; a UserError names an unknown one, or one without its package."""
    if NONE in names and len(names) > 1:
        raise UserError(f"--track {' '.join(names)}: none excludes all others; leave it out")
    for name in names:
        check_known("tracker", name, [*TRACKERS, NONE], "--track: ")
    if "tensorboard" in names and len(names) > 1 and not has_extra("tensorboard"):
        raise UserError(f"--track {' '.join(names)}: {missing('tensorboard', 'tensorboard')}")


class TensorBoard:
    """Event files of scalars. They are written without a thread, so that a full disk is an error at once."""

    def __init__(self, folder: Path, resumed: int | None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # slow to import
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        name = f"events.out.tfevents.{time.time_ns() / 1e9:019.8f}.{platform.node()}.{os.getpid()}"
        self._file = open_file(folder / name, "xb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if resumed is not None:  # TensorBoard then ignores later steps in earlier files
            self._add(step=resumed + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def log(self, step: int, scalars: Scalars) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(step=step, summary=self._summary(value=values))

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


TRACKERS: dict[str, Builder] = {"tensorboard": TensorBoard}
