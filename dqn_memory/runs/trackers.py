"""Pass the log lines to trackers: TensorBoard, a CSV file, Weights & Biases, or one of your own.

Resumes, reports and archives read metrics.jsonl; trackers are for people. `--track csv wandb` chooses those of a run.
A module of your own can add one, and `--plugin my_module` lets a script import it:

    class Printed:
        def __init__(self, folder, resumed): ...       # see Builder; <folder>/config.toml is the run's config
        def log(self, step, scalars): print(step, scalars)
        def close(self): ...

    TRACKERS["printed"] = Printed                      # --plugin my_module --track printed
"""

import csv
import math
import os
import platform
import secrets
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dqn_memory.runs.errors import UserError, check_known
from envs.extras import has_extra, missing
from envs.files import check_inside, open_file, read_text, write_atomic
from envs.spaces import Array

NONE = "none"
BUCKETS = 64  # of a histogram
WANDB_ID = "wandb-run-id"  # file of a run folder with the id of its W&B run
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


def check_trackers(names: Sequence[str], histograms: bool) -> None:
    """Check names of trackers; a UserError names an unknown one, or one without its package."""
    if NONE in names and len(names) > 1:
        raise UserError(f"--track {' '.join(names)}: none excludes all others; leave it out")
    for name in names:
        check_known("tracker", name, [*TRACKERS, NONE], "--track: ")
    if histograms and "tensorboard" not in names:
        others = [name for name in names if name != NONE]
        raise UserError(f"--histograms are for TensorBoard; say --track {' '.join([*others, 'tensorboard'])}")
    if "tensorboard" in names and (len(names) > 1 or histograms) and not has_extra("tensorboard"):
        flags = "--histograms" if histograms else f"--track {' '.join(names)}"
        raise UserError(f"{flags}: {missing('tensorboard', 'tensorboard')}")
    if "wandb" in names and find_spec("wandb") is None:
        raise UserError("--track wandb needs the package of Weights & Biases, which is missing: pip install wandb")


class TensorBoard:
    """Event files of scalars and histograms. Without a thread, so that a full disk is an error at once."""

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

    def log_histograms(self, step: int, values: Mapping[str, Array]) -> None:
        """Write a histogram of each array, without entries that are not finite."""
        self._add(step=step, summary=self._summary(value=[self._histogram(*each) for each in values.items()]))

    def _histogram(self, name: str, values: Array) -> Any:
        values = values[np.isfinite(values)].astype(np.float64)
        counts, edges = np.histogram(values, BUCKETS)
        sums = {"num": values.size, "sum": values.sum(), "sum_squares": np.square(values).sum()}
        found = {"min": edges[0], "max": edges[-1], **sums, "bucket_limit": edges[1:], "bucket": counts}
        return self._summary.Value(tag=name, histo=found)

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvFile:
    """metrics.csv with one row for each scalar: step, name, value (empty if it is not finite).

    New names appear during a run, and columns for them would need a new file each time. A pivot table makes columns
    from these rows. A resumed run writes the rows of earlier lines again from metrics.jsonl.
    """

    def __init__(self, folder: Path, resumed: int | None) -> None:
        from dqn_memory.runs.metrics import METRICS, read_metrics  # which imports this module

        path = folder / "metrics.csv"
        write_atomic(path, b"step,name,value\r\n")
        self._file = open_file(path, "a", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file)
        for line in read_metrics(folder / METRICS):
            self.log(line.pop("step"), line)

    def log(self, step: int, scalars: Mapping[str, float | None]) -> None:
        self._rows.writerows(
            (step, name, value if value is not None and math.isfinite(value) else "") for name, value in scalars.items()
        )
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandB:
    """A run of Weights & Biases over environment steps; its files are in the run folder.

    The variables of W&B choose its place (WANDB_ENTITY, WANDB_PROJECT, WANDB_NAME, WANDB_MODE=offline ...). A resumed
    run continues the same W&B run, which ignores repeated steps.
    """

    def __init__(self, folder: Path, resumed: int | None) -> None:
        import wandb

        check_inside(folder, "wandb")
        saved, variables = folder / WANDB_ID, os.environ
        there = os.path.lexists(saved)
        id = read_text(saved, follow=False).strip() if there else variables.get("WANDB_RUN_ID") or secrets.token_hex(4)
        write_atomic(saved, f"{id}\n".encode())
        self._errors = (wandb.Error, OSError)
        with self._one_sentence():
            self._run: Any = wandb.init(
                id=id, resume="allow", config=tomllib.loads(read_text(folder / "config.toml", follow=False)),
                project=variables.get("WANDB_PROJECT", "dqn-memory"),
                name=variables.get("WANDB_NAME", "/".join(folder.as_posix().strip("/").split("/")[-3:])),
                dir=variables.get("WANDB_DIR", str(folder)),
            )  # fmt: skip

    def log(self, step: int, scalars: Scalars) -> None:
        with self._one_sentence():
            self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        with self._one_sentence():
            self._run.finish()

    @contextmanager
    def _one_sentence(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"--track wandb: {reason}; with WANDB_MODE=offline it needs no network") from error


TRACKERS: dict[str, Builder] = {"tensorboard": TensorBoard, "csv": CsvFile, "wandb": WandB}
