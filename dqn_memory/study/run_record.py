"""Read the small files of one run for a report, and tell whether the run is finished.

A run may come from a stranger, so its files may hold anything. Each file is checked when it is read. A check raises a
ValueError, a TypeError or a LookupError, which `read_file` turns into one sentence.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.metrics import FINAL, METRICS, RAW, checked_facts, is_count, is_line, is_number, read_metrics
from dqn_memory.runs.toml import parse_toml
from envs.files import MAX_BYTES, MAX_TEXT_BYTES, check_inside, parse_json, read_bytes, sha256, write_atomic, write_text

CONFIG, ENVIRONMENT = "config.toml", "environment.json"
SUMMARY, ATTENTION = "summary.json", "attention.json"
HASHES = "hashes.json"  # SHA-256 of the raw files when their run was finished
EVALUATIONS = ("eval/", "final/", "sampled/", "memory_ablation/")  # prefixes of metrics of evaluations
LOSSES = ("reconstruction", "reward", "termination", "dynamics", "representation", "variation", "total")
WORLD_MODEL = f"losses/{LOSSES[0]}"  # a metric of GLAM; `compact` keeps LOSSES of every line that has it
LEARNED = ("memory/", "moved/")  # prefixes of metrics of learned priors, and of recurrent weights
TRAINING_LINES = 10  # max lines with LEARNED numbers that `compact` keeps of a run
DIGITS = 7  # significant digits of metrics
FEWER_DIGITS = 4  # significant digits of losses, gradients, charts and times of training
Tree = dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """All data of one run that a report reads. Without a `summary`, the report computes it and the attention maps."""

    config: Tree
    environment: Tree
    metrics: list[Tree]
    summary: Tree | None = None
    attention: Any = None

    @property
    def config_toml(self) -> str:
        """The complete config as TOML."""
        return tomli_w.dumps(self.config)


def read_file(path: Path, parse: Callable[[bytes], Any], limit: int = MAX_BYTES) -> Any:
    """Read a file of a run, a study or an archive; a UserError says that it is missing or damaged."""
    try:
        return parse(read_bytes(path, limit))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"{path} is damaged: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def read_json(path: Path, check: Callable[[Any], Any]) -> Any:
    """Read a file of JSON and check it; None if there is no such file."""
    return read_file(path, lambda data: check(parse_json(data))) if os.path.lexists(path) else None


def read_table(path: Path) -> Tree:
    """Read a file of TOML."""
    return parse_toml(read_file(path, bytes.decode, MAX_TEXT_BYTES), str(path))


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. A folder unpacked from an archive also has a summary and attention maps."""
    return RunRecord(
        read_table(folder / CONFIG),
        read_file(folder / ENVIRONMENT, lambda data: checked_facts(parse_json(data)), MAX_TEXT_BYTES),
        read_metrics(folder / METRICS),
        read_json(folder / SUMMARY, checked_summary),
        read_json(folder / ATTENTION, checked_maps),
    )


def unpack(record: RunRecord, folder: Path) -> None:
    """Write a run folder without a checkpoint."""
    lines = "".join(json.dumps(row) + "\n" for row in record.metrics)
    files = {CONFIG: record.config_toml, ENVIRONMENT: json.dumps(record.environment, indent=1), METRICS: lines}
    files |= {} if record.summary is None else {SUMMARY: json.dumps(record.summary, indent=1)}
    files |= {} if record.attention is None else {ATTENTION: compact_json(record.attention)}
    for name, text in files.items():
        write_text(folder / name, text)
    write_checksums(folder)


def checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read the step and the length of the metrics from a checkpoint's manifest; None: there is no checkpoint yet."""
    path, keys = folder / "checkpoints" / "manifest.json", ("step", "metrics_bytes")
    check_inside(folder, "checkpoints")
    if not os.path.lexists(path):
        return None

    def parse(data: bytes) -> dict[str, Any]:
        content = parse_json(data)["content"]
        if not all(is_count(content[key]) for key in keys):
            raise TypeError(f"{' and '.join(keys)} are not whole numbers")
        return {key: content[key] for key in keys}

    found: dict[str, Any] = read_file(path, parse)
    return found


def final_metrics(folder: Path) -> dict[str, Any] | None:
    """Read the final evaluation of a finished run; None: the run is not finished.

    A run is finished if its last line at its checkpoint is a final evaluation. A run without a checkpoint, such as one
    from an archive, is finished if it has hashes.json.

    Raises:
        UserError: the manifest or the metrics are damaged.
    """
    saved, path = checkpoint(folder), folder / METRICS
    if saved is None and not os.path.lexists(folder / HASHES):
        return None
    if saved is not None and saved["metrics_bytes"] == 0:  # it was stopped before its first line, so there is no file
        return None
    data: bytes = read_file(path, bytes)
    length = len(data) if saved is None else saved["metrics_bytes"]
    if len(data) < length:
        raise UserError(f"{path} is damaged: it has {len(data)} bytes, fewer than the saved {length}")
    lines = data[:length].splitlines() or [b"{}"]
    if saved is None:  # evaluations of another policy may follow the final one
        lines = [line for line in lines if FINAL.encode() in line] or lines
    try:
        line: dict[str, Any] = parse_json(lines[-1])
        if line and not is_line(line):
            raise ValueError
    except ValueError:
        raise UserError(f"{path} is damaged: its last line is not a JSON object of numbers with a step") from None
    done = any(name.startswith(FINAL) for name in line) and (saved is None or line.get("step") == saved["step"])
    return line if done else None


def finished(folder: Path) -> bool:
    """Tell whether a run is finished (see `final_metrics`)."""
    return final_metrics(folder) is not None


def last_step(folder: Path) -> int:
    """Read the environment step of the last log line; 0 without lines."""
    try:
        line = parse_json(read_bytes(folder / METRICS).split(b"\n")[-2])
        return int(line["step"]) if is_line(line) else 0
    except (OSError, ValueError, LookupError):  # the run is being written, or has not begun
        return 0


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of a finished run's raw files, so that a later read notices damage."""
    found = {name: read_file(folder / name, sha256) for name in RAW if os.path.lexists(folder / name)}
    write_atomic(folder / HASHES, json.dumps(found, indent=1).encode())


def changed_files(folder: Path) -> list[str]:
    """List the problems of files that have changed since the run finished."""
    path = folder / HASHES
    try:
        before = read_json(path, checked_hashes) or {}
    except UserError as error:
        return [str(error)]
    return missing_or_changed(folder, dict.fromkeys(RAW) | before, f" (if that was intended, delete {path})")


def missing_or_changed(folder: Path, digests: Mapping[str, str | None], hint: str = "") -> list[str]:
    """List the problems of files that are missing, or that differ from their SHA-256 (None: unknown)."""
    found = []
    for name, digest in digests.items():
        try:
            if digest not in (None, read_file(folder / name, sha256)):
                raise UserError(f"{folder / name} was changed: it has another SHA-256{hint}")
        except UserError as error:
            found.append(str(error))
    return found


def portable(record: RunRecord, folder: Path, place: str) -> RunRecord:
    """Replace the path of a folder of this machine by `place` in a run's config and facts."""
    config, environment = placeless([record.config, record.environment], folder, place)
    return replace(record, config=config, environment=environment)


def compact(record: RunRecord) -> RunRecord:
    """Keep the log lines that a report reads, with rounded numbers.

    These are the lines of evaluations, the lines with losses of GLAM's world model, and of the lines with LEARNED
    numbers at most TRAINING_LINES at even distances, including the last one.
    """
    kept = {number for number, row in enumerate(record.metrics) if evaluates(row) or WORLD_MODEL in row}
    learned = [n for n, row in enumerate(record.metrics) if n not in kept and any(x.startswith(LEARNED) for x in row)]
    count = min(TRAINING_LINES, len(learned))
    kept |= {learned[len(learned) * number // count - 1] for number in range(1, count + 1)}
    return replace(record, metrics=[rounded(shortened(record.metrics[number])) for number in sorted(kept)])


def evaluates(row: Tree) -> bool:
    """Tell whether a log line belongs to an evaluation."""
    return any(name.startswith(EVALUATIONS) for name in row)


def shortened(row: Tree) -> Tree:
    """Drop metrics that no report reads, such as intervals and wall-clock time before the end."""
    if WORLD_MODEL in row and not evaluates(row):
        return {name: row[name] for name in ("step", *(f"losses/{part}" for part in LOSSES)) if name in row}
    final = any(name.startswith(FINAL) for name in row)
    unread = re.compile("(losses|grad|charts)/.*|eval/.*_(low|high)(/.*)?" + ("" if final else "|time/elapsed"))
    return {name: x for name, x in row.items() if not unread.fullmatch(name)}


def rounded(row: Tree) -> Tree:
    """Round the metrics of training to FEWER_DIGITS significant digits, and all other metrics to DIGITS."""
    few = () if evaluates(row) else ("losses/", "grad/", "charts/", "time/")
    return {
        name: float(f"{x:.{FEWER_DIGITS if name.startswith(few) else DIGITS}g}")
        if isinstance(x, float) and not x.is_integer() else x
        for name, x in row.items()
    }  # fmt: skip


def placeless(value: Any, folder: Path, place: str) -> Any:
    """Replace the path of a folder by `place` in all texts of plain values."""
    here = json.dumps(str(folder.resolve()))[1:-1]
    return json.loads(json.dumps(value).replace(here, place))


def compact_json(value: Any) -> str:
    """Write JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


# ---- checks of files that may come from strangers


def checked_hashes(found: Any) -> dict[str, str]:
    """Give the SHA-256 of a run's raw files."""
    if not set(RAW).issuperset(found) or not all(isinstance(digest, str) for digest in found.values()):
        raise TypeError("it does not hold the SHA-256 of a run's files")
    return dict(found)


def checked_machines(found: Any) -> dict[str, Tree]:
    """Give the facts of each machine of an archive by its number."""
    return {number: checked_facts(facts) for number, facts in found.items()}


def checked_summary(found: Any) -> Tree | None:
    """Give the summary of a run; None if it has none."""
    if found is None:
        return None
    if found["measure"] not in ("success", "return"):
        raise TypeError("its summary measures neither success nor return")
    if not all(found.get(name) is None or is_count(found[name]) for name in ("parameters", "budget")):
        raise TypeError("its parameters and its budget are not whole numbers")
    return dict(found)


def checked_maps(found: Any) -> Any:
    """Give the attention maps of a run in the form of `analysis.attention.Maps.plain`."""
    heads = [head for layer in found["layers"].values() for head in layer]
    numbers = all(is_number(each) for head in heads for row in head for each in row)
    if not numbers or not all(layer.isdecimal() for layer in found["layers"]):
        raise TypeError("its attention maps are not numbers by layer")
    facts = [found.get(name) for name in ("success", "total", "first")]
    plain = all(fact is None or isinstance(fact, bool) or is_number(fact) for fact in facts)
    if not plain or not is_count(found["length"]) or any(len(row) > len(head) for head in heads for row in head):
        raise TypeError("its attention maps have another form")
    return found


def checked_all_maps(found: Any) -> Any:
    """Give the attention maps of several runs by name."""
    for maps in found.values():
        checked_maps(maps)
    return found
