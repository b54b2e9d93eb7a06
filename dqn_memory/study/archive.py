"""Write what a study has measured as a few tables, and read runs from a study's folder or from such tables alike.

An archive is a folder that git shows well and that needs no checkpoint:

    study.toml       the definition, as its author wrote it
    archive.json     name and axes of the study, what its report shows, SHA-256 of the other files
    config.toml      the settings that all runs share; `--config` of the trainer takes it
    runs.csv         a row a run: axes, state, cost, settings that differ, summary, SHA-256 of all its numbers
    metrics.csv      a row a log line: number of the run in runs.csv, environment step, a column a metric
    machines.json    the distinct machines and versions that runs.csv refers to
    attention.json   attention maps by run, where the report has any

A cell is a JSON value, or text that is none; an empty one is an absent key. `report.md` and `pictures/` are made from
these tables by `study.report`.
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.metrics import METRICS, RAW, read_metrics
from dqn_memory.runs.migration import SCHEMA, migrate
from dqn_memory.study.definition import Line, read_lines
from dqn_memory.study.store import HASHES, HOME, RunState, Study, read_checksums, run_folder, write_checksums
from envs.files import disk_errors, sha256, write_atomic

FORMAT = "dqn-memory archive 1"
INDEX, RUNS, MACHINES, ROWS = "archive.json", "runs.csv", "machines.json", "metrics.csv"
DEFINITION, CONFIG, ENVIRONMENT, SUMMARY, ATTENTION = (
    "study.toml", "config.toml", "environment.json", "summary.json", "attention.json",
)  # fmt: skip
FACTS = ("name", "title", "about", "kind", "smoke", "axes")
EVALUATIONS = ("eval/", "final/", "memory_ablation/")  # names of metrics that are kept in full
DIGITS = 8  # significant ones of a training line; float32 has seven
PER_RUN = ("revision", "dirty", "command")  # facts of environment.json that are no machine's
Damage = Mapping[str, tuple[str, ...]]
Tree = dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """Everything that a report reads of one run. Missing `summary`: it is computed, and maps are made, from the run."""

    config: Tree
    environment: Tree
    metrics: list[Tree]
    summary: Tree | None = None
    attention: Any = None

    @property
    def config_toml(self) -> str:
        """The complete config as TOML."""
        return tomli_w.dumps(self.config)


@dataclass(frozen=True)
class Source:
    """A study as a report sees it, from its own folder or from an archive.

    Args:
        damage: by run, what is wrong with its files ("": with the study's own).
        recorded: the runs of an archive by name; None for a study's own folder.
        lines: scores of random and best play that the definition gives, by world.
        shown: what the report shows: attention, published scores; and whether returns are read in place of success.
    """

    folder: Path
    name: str
    title: str
    about: str
    kind: str
    smoke: bool
    axes: tuple[str, ...]
    runs: tuple[RunState, ...]
    definition: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    damage: Damage = field(default_factory=dict)
    recorded: Mapping[str, RunRecord] | None = None
    shown: Mapping[str, bool] = field(default_factory=dict)

    @property
    def worlds(self) -> list[str]:
        """Labels of the environments, in the order of the definition."""
        return list(dict.fromkeys(run.world for run in self.runs))

    def record(self, run: RunState) -> RunRecord:
        """Read what is stored of a run; a UserError names what is missing or damaged."""
        if self.recorded is None:
            return renamed(read_run(run.folder), self.kind)
        if run.name not in self.recorded:
            raise UserError(f"{self.folder / RUNS} holds no numbers of the run {run.name}")
        return self.recorded[run.name]


def is_archive(folder: Path) -> bool:
    """Tell whether a folder holds an archive."""
    return (folder / INDEX).is_file()


def open_source(folder: Path) -> Source:
    """Open the study or the archive in a folder.

    Damaged files are no error but are named in `damage`.

    Raises:
        UserError: there is neither.
    """
    return _open_archive(folder) if is_archive(folder) else _open_study(folder)


def _open_study(folder: Path) -> Source:
    study = Study.open(folder)
    runs = tuple(study.runs())
    facts: Tree = {name: getattr(study, name) for name in FACTS}
    damage = {run.name: _changed(run.folder) for run in runs if run.state == "finished"}
    damage[""] = () if (folder / DEFINITION).is_file() else (f"{folder / DEFINITION} is missing",)
    lines, problems = _lines(folder)
    damage[""] += problems
    damage = {name: problems for name, problems in damage.items() if problems}
    return Source(folder=folder, runs=runs, lines=lines, damage=damage, definition=_definition(folder), **facts)


def _definition(folder: Path) -> str:
    path = folder / DEFINITION
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _lines(folder: Path) -> tuple[Mapping[str, Line], tuple[str, ...]]:
    """Read the definition's lines, or say what is wrong with them."""
    try:
        return read_lines(folder / DEFINITION), ()
    except UserError as error:
        return {}, (str(error),)


def _changed(folder: Path) -> tuple[str, ...]:
    """Say which files of a run are not what they were when it was finished."""
    try:
        before = read_checksums(folder)
    except UserError as error:
        return (str(error),)
    lost = [f"{folder / name} is missing" for name in RAW if name not in before and not (folder / name).is_file()]
    problems = [_problem(folder / name, digest) for name, digest in before.items()]
    meant = f" (if that was meant, delete {folder / HASHES})"
    return (*lost, *(problem + meant for problem in problems if problem))


def _problem(path: Path, digest: str) -> str:
    """Say in what a file differs from its SHA-256, "" where it does not."""
    try:
        if sha256(path.read_bytes()) == digest:
            return ""
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if path.name == METRICS:
        try:
            read_metrics(path)
        except UserError as error:
            return str(error)
    return f"{path} was changed: it has another SHA-256"


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; one that was unpacked from an archive has its summary and attention maps too."""
    for name in RAW:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing: a run's folder holds it from the first evaluation on")
    optional = {name: _json(folder / name) if (folder / name).is_file() else None for name in (SUMMARY, ATTENTION)}
    return RunRecord(
        config=_read(folder / CONFIG, tomllib.loads), environment=_json(folder / ENVIRONMENT),
        metrics=read_metrics(folder / METRICS), summary=optional[SUMMARY], attention=optional[ATTENTION],
    )  # fmt: skip


def renamed(record: RunRecord, kind: str) -> RunRecord:
    """Give settings that an earlier version wrote the names of this one, as `read_metrics` does with metrics."""
    return replace(record, config={"schema": SCHEMA} | migrate(kind, record.config, CONFIG))


def unpack(record: RunRecord, folder: Path) -> None:
    """Write a run folder, without a checkpoint, from what is stored of a run."""
    lines = "".join(json.dumps(row) + "\n" for row in record.metrics)
    files = {CONFIG: record.config_toml, ENVIRONMENT: json.dumps(record.environment, indent=1), METRICS: lines}
    files |= {} if record.summary is None else {SUMMARY: json.dumps(record.summary, indent=1)}
    files |= {} if record.attention is None else {ATTENTION: _compact(record.attention)}
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    write_checksums(folder)


# ---------------------------------------------------------------- writing


def write_archive(source: Source, records: Mapping[str, RunRecord], folder: Path) -> None:
    """Put tables of a study's runs into a folder, where an earlier archive of the same study is replaced.

    Args:
        source: the study.
        records: the runs to be kept by name, with summaries and, where the report shows them, attention maps.
        folder: where the archive goes.

    Raises:
        UserError: the folder holds something else, or runs that the study lacks.
    """
    records = {run.name: records[run.name] for run in source.runs if run.name in records}
    earlier = _earlier(source, records, folder)
    if source.recorded is None:
        records = {name: portable(record, source.folder, f"{HOME}/{source.name}") for name, record in records.items()}
    numbers = iter(sorted(set(range(1, len(records) + len(earlier) + 1)) - set(earlier.values())))
    ids = {name: earlier[name] if name in earlier else next(numbers) for name in records}
    configs = {name: flat(record.config) for name, record in records.items()}
    common = shared(list(configs.values()))
    machines = _machines(records)
    rows = [_run_row(run, records.get(run.name), ids.get(run.name), common, machines) for run in source.runs]
    files = {
        DEFINITION: source.definition,
        CONFIG: tomli_w.dumps(nested(common)),
        RUNS: _csv(rows),
        ROWS: _metrics_csv({ids[name]: record.metrics for name, record in records.items()}),
        MACHINES: json.dumps({str(n): facts for n, facts in enumerate(machines, 1)}, indent=1) + "\n",
    }
    maps = {name: record.attention for name, record in records.items() if record.attention is not None}
    if maps:
        files[ATTENTION] = "{" + ",\n".join(f"{_compact(name)}:{_compact(maps[name])}" for name in maps) + "}\n"
    facts = {name: getattr(source, name) for name in FACTS}
    checks = {name: sha256(text.encode()) for name, text in files.items() if name != ROWS}
    index = {"format": FORMAT, "study": facts, "report": dict(source.shown), "files": checks}
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ATTENTION).unlink(missing_ok=True)
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    write_atomic(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())


def _earlier(source: Source, records: Mapping[str, RunRecord], folder: Path) -> dict[str, int]:
    """Check that an archive may be written here; give the numbers that the runs of an earlier one have."""
    if not folder.exists():
        return {}
    if not folder.is_dir() or (not is_archive(folder) and any(folder.iterdir())):
        raise UserError(f"{folder} holds something else than an archive of a study: choose another folder")
    if not is_archive(folder):
        return {}
    before = _open_archive(folder)
    if before.name != source.name:
        raise UserError(f"{folder} holds the archive of the study {before.name}, not of {source.name}: choose another")
    if lost := sorted(set(before.recorded or ()) - set(records)):
        raise UserError(
            f"{folder} holds {len(lost)} runs that this study lacks, such as {lost[0]}: take them over first with "
            f"study.run --take-from {folder}, or choose another folder"
        )
    return {row["name"]: row["run"] for row in _rows(folder / RUNS) if "run" in row}


def portable(record: RunRecord, folder: Path, place: str) -> RunRecord:
    """Name a folder of this machine as `place` in what is stored of a run, and round its training lines."""
    text = _compact([record.config, record.environment])
    config, environment = json.loads(placeless(text.encode(), folder, place))
    return replace(record, config=config, environment=environment, metrics=[rounded(row) for row in record.metrics])


def rounded(row: Tree) -> Tree:
    """Round a log line to DIGITS significant digits, one of an evaluation in full."""
    if any(name.startswith(EVALUATIONS) for name in row):
        return row
    return {name: float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x for name, x in row.items()}


def placeless(text: bytes, folder: Path, place: str) -> bytes:
    """Name a folder of this machine as `place`, wherever a text names it as it is or as TOML and JSON do."""
    old = str(folder.resolve())
    forms: tuple[Callable[[str], str], ...] = (
        str, lambda path: json.dumps(path, ensure_ascii=False)[1:-1], lambda path: json.dumps(path)[1:-1],
    )  # fmt: skip
    for form in forms:
        text = text.replace(form(old).encode(), form(place).encode())
    return text


def _run_row(run: RunState, record: RunRecord | None, number: int | None, common: Tree, machines: list[Tree]) -> Tree:
    """Write one row of runs.csv; of an error the last line is kept."""
    error = "".join(run.error.strip().splitlines()[-1:])
    row: Tree = {} if number is None else {"run": number}
    row |= {"name": run.name} | {f"axes.{axis}": label for axis, label in run.axes.items()}
    row |= {"state": run.state, "steps": run.steps, "attempts": run.attempts}
    row |= {} if run.seconds is None else {"seconds": run.seconds}
    row |= {"error": error} if error else {}
    if record is not None:
        environment = record.environment
        row |= {f"summary.{name}": value for name, value in (record.summary or {}).items()}
        row |= {name: environment[name] for name in PER_RUN if name in environment}
        row["machine"] = machines.index(_machine(environment)) + 1
        row |= {f"config.{path}": value for path, value in flat(record.config).items() if path not in common}
        row["sha256"] = checksum(record)
    return row


def checksum(record: RunRecord) -> str:
    """Compute the SHA-256 of a run's settings, facts and log lines, as JSON with sorted keys."""
    return sha256(json.dumps([record.config, record.environment, record.metrics], sort_keys=True).encode())


def _machine(environment: Tree) -> Tree:
    return {name: value for name, value in environment.items() if name not in PER_RUN}


def _machines(records: Mapping[str, RunRecord]) -> list[Tree]:
    found: list[Tree] = []
    for record in records.values():
        machine = _machine(record.environment)
        if machine not in found:
            found.append(machine)
    return found


def shared(configs: Sequence[Tree]) -> Tree:
    """Give the settings with one value in all runs."""
    first = configs[0] if configs else {}
    return {path: value for path, value in first.items() if all(_same(value, each.get(path)) for each in configs)}


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def _metrics_csv(metrics: Mapping[int, Sequence[Tree]]) -> str:
    return _csv([{"run": number, **row} for number in sorted(metrics) for row in metrics[number]])


def _csv(rows: Sequence[Tree]) -> str:
    """Write rows as text, columns in the order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[name]) if name in row else "" for name in columns] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    """Write a value as JSON; text as it is, unless it would be read as something else."""
    if isinstance(value, str) and value and _value(value) is value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(cell: str) -> Any:
    """Invert `_cell`."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell


# ---------------------------------------------------------------- reading


def _open_archive(folder: Path) -> Source:
    index = _json(folder / INDEX)
    try:
        facts = {name: index["study"][name] for name in FACTS} | {"axes": tuple(index["study"]["axes"])}
        files, shown, known = dict(index["files"]), dict(index["report"]), index["format"] == FORMAT
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / INDEX} is damaged: {error!r}") from None
    if not known:
        raise UserError(f"{folder / INDEX} is foreign: it is not a '{FORMAT}'")
    damage = {"": tuple(problem for name in files if (problem := _problem(folder / name, files[name])))}
    rows = _rows(folder / RUNS)
    try:
        runs = tuple(_run_state(folder, row, facts["axes"]) for row in rows)
        recorded, problems = _recorded(folder, rows)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / RUNS} is damaged: {error!r}") from None
    lines, unread = _lines(folder)
    damage = {name: found for name, found in {"": damage[""] + unread, **problems}.items() if found}
    return Source(
        folder=folder, runs=runs, definition=_definition(folder), lines=lines, damage=damage, recorded=recorded,
        shown=shown, **facts,
    )  # fmt: skip


def _run_state(folder: Path, row: Tree, axes: Iterable[str]) -> RunState:
    return RunState(
        name=row["name"], axes={axis: row[f"axes.{axis}"] for axis in axes}, state=row["state"],
        folder=run_folder(folder, row["name"]), config=folder / RUNS, log=folder / RUNS, steps=row["steps"],
        attempts=row["attempts"], seconds=row.get("seconds"), error=row.get("error", ""),
    )  # fmt: skip


def _recorded(folder: Path, rows: Sequence[Tree]) -> tuple[dict[str, RunRecord], dict[str, tuple[str, ...]]]:
    """Read the runs that have numbers, and say what is wrong with them."""
    common = flat(_read(folder / CONFIG, tomllib.loads))
    machines, maps = _json(folder / MACHINES), _json(folder / ATTENTION) if (folder / ATTENTION).is_file() else {}
    metrics: dict[int, list[Tree]] = {}
    for row in _rows(folder / ROWS):
        metrics.setdefault(row.pop("run"), []).append(row)
    found, damage = dict[str, RunRecord](), dict[str, tuple[str, ...]]()
    for row in rows:
        if "run" not in row:
            continue
        name, lines = row["name"], metrics.get(row["run"], [])
        environment = machines[str(row["machine"])] | {fact: row[fact] for fact in PER_RUN if fact in row}
        found[name] = RunRecord(
            config=nested(common | _part(row, "config.")), environment=environment, metrics=lines,
            summary=_part(row, "summary.") or None, attention=maps.get(name),
        )  # fmt: skip
        if checksum(found[name]) != row["sha256"]:
            damage[name] = (f"{folder} was changed: settings, facts or metrics of {name} have another SHA-256",)
    return found, damage


def _part(row: Tree, prefix: str) -> Tree:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _rows(path: Path) -> list[Tree]:
    """Read the rows of a table by column, without empty cells."""
    rows = csv.DictReader(io.StringIO(_read(path, str), newline=""))
    return [{name: _value(cell) for name, cell in row.items() if cell} for row in rows]


def flat(tree: Tree, prefix: str = "") -> Tree:
    """Give settings by their dotted paths; an empty table is a value."""
    found: Tree = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return found


def nested(flat: Tree) -> Tree:
    """Invert `flat`."""
    tree: Tree = {}
    for path, value in flat.items():
        *outer, name = path.split(".")
        inner = tree
        for each in outer:
            inner = inner.setdefault(each, {})
        inner[name] = value
    return tree


def _json(path: Path) -> Any:
    return _read(path, json.loads)


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """Read a file; a UserError says that it is missing or damaged."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
