"""Write and read archives: the results of a study as a few tables, which a report reads like a study's folder.

An archive is a folder of text files without checkpoints, so that git shows its changes:

    study.toml       the definition, as its author wrote it
    archive.json     name and axes of the study, options of its report, SHA-256 of the other files
    config.toml      the settings that all runs share, a file for `--config` of the trainer
    runs.csv         one row per run: axes, state, cost, settings that differ, summary, SHA-256 of all its numbers
    metrics.csv      one row per log line that `compact` keeps: number of the run in runs.csv, step, metrics
    machines.json    the distinct machines and versions in runs.csv
    attention.json   attention maps by run, if the report has any

A cell is a JSON value, or a text that is no JSON; an empty cell is an absent key. A row ends with its last value.
`study.report` makes `report.md` and `pictures/` from these tables.
"""

import csv
import io
import json
import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.metrics import checked_facts, is_line
from dqn_memory.runs.toml import flat, nested
from dqn_memory.study.definition import Definition, Line, parse_file, read_definition, shipped
from dqn_memory.study.run_record import (
    ATTENTION,
    CONFIG,
    RunRecord,
    changed_files,
    checked_all_maps,
    checked_machines,
    checked_summary,
    compact_json,
    missing_or_changed,
    portable,
    read_file,
    read_json,
    read_run,
    read_table,
)
from dqn_memory.study.store import DEFINITION, HOME, INDEX, Facts, RunState, Study, checked_run, read_facts
from envs.files import MAX_TEXT_BYTES, disk_errors, parse_json, sha256, write_text

FORMAT = "dqn-memory archive 1"
RUNS, MACHINES, ROWS = "runs.csv", "machines.json", "metrics.csv"
PROGRESS = ("state", "steps", "attempts", "seconds", "error")  # columns of a run's state
PER_RUN = ("revision", "dirty", "command")  # facts of environment.json about a run, not about its machine
Damage = Mapping[str, Sequence[str]]
Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Source(Facts):
    """A study's data for a report, from its own folder or from an archive.

    Args:
        damage: problems of a run's files by run; problems of the study's own files under "".
        recorded: the runs of an archive by name; None for a study's own folder.
        lines: scores of random and best play in the definition, by environment.
        shown: options of the report: whether it shows attention, and reads returns instead of success.
    """

    folder: Path
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
        """Read a run; a UserError names a missing or damaged file."""
        if self.recorded is None:
            return read_run(run.folder)
        require(run.name in self.recorded, f"{self.folder / RUNS} holds no numbers of the run {run.name}")
        return self.recorded[run.name]


def is_archive(folder: Path) -> bool:
    """Tell whether a folder holds an archive."""
    return os.path.lexists(folder / INDEX)


def open_source(folder: Path) -> Source:
    """Open the study or the archive in a folder; a UserError says that there is neither.

    Damaged files raise no error; `damage` names them.
    """
    if is_archive(folder):
        return _open_archive(folder)
    study = Study.open(folder)
    runs = tuple(study.runs())
    damage = {run.name: changed_files(run.folder) for run in runs if run.state == "finished"}
    return _with_definition(study.plain(), folder, runs, damage)


def _with_definition(facts: Tree, folder: Path, runs: tuple[RunState, ...], damage: Damage, **others: Any) -> Source:
    """Add the definition to the facts of a study, and its problems to the damage."""
    problems, path, text, lines = list(damage.get("", ())), folder / DEFINITION, "", dict[str, Line]()
    try:
        text = read_file(path, bytes.decode, MAX_TEXT_BYTES)
        lines = parse_file(text, str(path)).lines
    except UserError as error:
        problems.append(str(error))
    damage = {name: found for name, found in {**damage, "": list(dict.fromkeys(problems))}.items() if found}
    return Source(folder=folder, runs=runs, definition=text, lines=lines, damage=damage, **others, **facts)


# ---------------------------------------------------------------- writing


def write_archive(source: Source, records: Mapping[str, RunRecord], folder: Path) -> None:
    """Write an archive of the runs `records` into a folder, in place of an earlier archive of the same study.

    Each record has a summary, and attention maps if the report shows any.

    Raises:
        UserError: the folder holds something else or runs that the study lacks, or a run is damaged.
    """
    for problem in (each for name in ("", *records) for each in source.damage.get(name, ())):
        raise UserError(f"{problem}; nothing was archived")
    records = {run.name: records[run.name] for run in source.runs if run.name in records}
    earlier = _earlier_numbers(source, records, folder)
    if source.recorded is None:
        for name, record in records.items():
            for here in (_made_in(record, name, source.folder), source.folder):
                records[name] = portable(records[name], here, f"{HOME}/{source.name}")
    numbers = iter(sorted(set(range(1, len(records) + len(earlier) + 1)) - set(earlier.values())))
    ids = {name: earlier[name] if name in earlier else next(numbers) for name in records}
    common = shared([flat(record.config) for record in records.values()])
    machines: list[Tree] = []
    for machine in (_machine(record.environment) for record in records.values()):
        machines += [machine] if machine not in machines else []
    rows = [_run_row(run, records.get(run.name), ids.get(run.name), common, machines) for run in source.runs]
    lines = [
        {"run": ids[name], **row} for name in sorted(records, key=ids.__getitem__) for row in records[name].metrics
    ]
    files = {
        DEFINITION: source.definition,
        CONFIG: tomli_w.dumps(nested(common)),
        RUNS: _csv(rows),
        ROWS: _csv(lines),
        MACHINES: json.dumps({str(n): facts for n, facts in enumerate(machines, 1)}, indent=1) + "\n",
    }
    maps = {name: record.attention for name, record in records.items() if record.attention is not None}
    if maps:
        files[ATTENTION] = "{" + ",\n".join(f"{compact_json(name)}:{compact_json(maps[name])}" for name in maps) + "}\n"
    checks = {name: sha256(text.encode()) for name, text in files.items() if name != ROWS}
    index = {"format": FORMAT, "study": source.plain(), "report": dict(source.shown), "files": checks}
    _replace_files(folder, files | {INDEX: json.dumps(index, indent=1) + "\n"})


def _replace_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files under other names, then rename them, so that a mixture of old and new exists only briefly."""
    for name, text in files.items():
        write_text(folder / f".{name}.new", text)
    with disk_errors(folder):
        if ATTENTION not in files:
            (folder / ATTENTION).unlink(missing_ok=True)
        for name in files:
            (folder / f".{name}.new").replace(folder / name)


def _earlier_numbers(source: Source, records: Mapping[str, RunRecord], folder: Path) -> dict[str, int]:
    """Check that an archive may be written here; give the numbers of runs in an earlier archive."""
    if not is_archive(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is not empty and no archive of a study: choose another folder")
        return {}
    before = _open_archive(folder)
    if before.name != source.name:
        raise UserError(f"{folder} holds the archive of the study {before.name}, not of {source.name}: choose another")
    if lost := sorted(set(before.recorded or ()) - set(records)):
        raise UserError(
            f"{folder} holds {len(lost)} runs that this study lacks, such as {lost[0]}: copy them first with "
            f"study.run --take-from {folder}, or choose another folder"
        )
    return {row["name"]: row["run"] for row in _rows(folder / RUNS) if "run" in row}


def _made_in(record: RunRecord, name: str, folder: Path) -> Path:
    """Find the folder of the study that made a run; the run may be a copy."""
    path = Path(record.config["output"].get("run", ""))
    return path.parents[1] if path.parts[-2:] == ("runs", name) and len(path.parts) > 3 else folder


def _run_row(run: RunState, record: RunRecord | None, number: int | None, common: Tree, machines: list[Tree]) -> Tree:
    """Write one row of runs.csv; an error is cut to its last line."""
    state = vars(run) | {"error": "".join(run.error.strip().splitlines()[-1:])}
    row: Tree = {} if number is None else {"run": number}
    row |= {"name": run.name} | {f"axes.{axis}": label for axis, label in run.axes.items()}
    row |= {name: state[name] for name in PROGRESS if state[name] not in (None, "")}
    if record is not None:
        environment = record.environment
        row |= {f"summary.{name}": value for name, value in (record.summary or {}).items()}
        row |= {name: environment[name] for name in PER_RUN if name in environment}
        row["machine"] = machines.index(_machine(environment)) + 1
        row |= {f"config.{path}": value for path, value in flat(record.config).items() if path not in common}
        row["sha256"] = checksum(record)
    return row


def checksum(record: RunRecord) -> str:
    """Compute the SHA-256 of a run's settings, facts and log lines, written as JSON with sorted keys."""
    return sha256(json.dumps([record.config, record.environment, record.metrics], sort_keys=True).encode())


def _machine(environment: Tree) -> Tree:
    return {name: value for name, value in environment.items() if name not in PER_RUN}


def shared(configs: Sequence[Tree]) -> Tree:
    """Give the settings that have the same value in all runs."""
    first = configs[0] if configs else {}
    return {
        path: value for path, value in first.items() if all(repr(value) == repr(each.get(path)) for each in configs)
    }


def _csv(rows: Sequence[Tree]) -> str:
    """Write rows as text, columns in the order of first appearance; a row ends with its last value."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        end = max(map(columns.index, row)) + 1
        writer.writerow(_cell(row[name]) if name in row else "" for name in columns[:end])
    return text.getvalue()


def _cell(value: Any) -> str:
    """Write a value as JSON, but a text without quotes unless it would be read as another value."""
    if isinstance(value, str) and value and _value(value) is value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(cell: str) -> Any:
    """Invert `_cell`."""
    try:
        return parse_json(cell)
    except (ValueError, TypeError):  # a row with too many cells has a list of them
        return cell


# ---------------------------------------------------------------- reading


def _open_archive(folder: Path) -> Source:
    index = read_file(folder / INDEX, _parse_index)
    damage: dict[str, list[str]] = {"": missing_or_changed(folder, index["files"])}
    rows, runs, recorded = _rows(folder / RUNS), list[RunState](), dict[str, RunRecord]()
    common = flat(read_table(folder / CONFIG))
    machines = read_file(folder / MACHINES, lambda data: checked_machines(parse_json(data)))
    maps = read_json(folder / ATTENTION, checked_all_maps) or {}
    metrics: dict[int, list[Tree]] = defaultdict(list)
    try:
        for row in _rows(folder / ROWS):
            metrics[row.pop("run")].append(row)
            if not is_line(row):
                raise TypeError(f"{ROWS} has a row that is not a step and numbers")
        for row in rows:
            progress = {name: row[name] for name in PROGRESS if name in row}
            run = RunState(row["name"], _columns(row, "axes."), folder=folder / RUNS, **progress)
            runs.append(checked_run(run, index["study"]["axes"]))
        if len({run.name for run in runs}) < len(runs):
            raise ValueError("two rows have one name")
        for row in (row for row in rows if "run" in row):
            name, environment = row["name"], machines[str(row["machine"])]
            record = recorded[name] = RunRecord(
                config=nested(common | _columns(row, "config.")),
                environment=checked_facts(environment | {fact: row[fact] for fact in PER_RUN if fact in row}),
                metrics=metrics[row["run"]], summary=checked_summary(_columns(row, "summary.") or None),
                attention=maps.get(name),
            )  # fmt: skip
            record.config_toml  # noqa: B018 - TOML cannot hold a null or a key in two forms
            if checksum(record) != row["sha256"]:
                damage[name] = [f"{folder} was changed: settings, facts or metrics of {name} have another SHA-256"]
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{folder / RUNS} is damaged: {' '.join(repr(error).split()):.400}") from None
    return _with_definition(index["study"], folder, tuple(runs), damage, recorded=recorded, shown=index["report"])


def _parse_index(data: bytes) -> Tree:
    index = parse_json(data)
    if index["format"] != FORMAT:
        raise ValueError(f"it is not a '{FORMAT}'")
    if not all(isinstance(name, str) and isinstance(shown, bool) for name, shown in index["report"].items()):
        raise TypeError("the options of its report are not truth values")
    known = {DEFINITION, CONFIG, RUNS, ROWS, MACHINES, ATTENTION}
    if not known.issuperset(index["files"]) or not all(isinstance(each, str) for each in index["files"].values()):
        raise TypeError("its files are not those of an archive, each with its SHA-256")
    return {"files": index["files"], "report": index["report"], "study": read_facts(index["study"])}


def _columns(row: Tree, prefix: str) -> Tree:
    """Give the columns whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _rows(path: Path) -> list[Tree]:
    """Read the rows of a table by column, without empty cells."""
    rows = csv.DictReader(io.StringIO(read_file(path, bytes.decode), newline=""))
    try:
        found = [{name: _value(cell) for name, cell in row.items() if cell} for row in rows]
    except csv.Error as error:
        raise UserError(f"{path} is damaged: {error}") from None
    columns = rows.fieldnames or ()
    if len(set(columns)) < len(columns) or any(None in row for row in found):
        raise UserError(f"{path} is damaged: two columns have one name, or a row has more cells than columns")
    return found


# ---------------------------------------------------------------- finding


def find_study(study: Path) -> Path:
    """Find the folder of a study or an archive by its path, its name in HOME, or the argument of study.run.

    Raises:
        UserError: study.run has not made the folder yet.
    """
    if len(study.parts) == 1 and not study.exists() and (HOME / study).is_dir():
        return HOME / study
    if study.is_dir() or not (study.is_file() or study.suffix == ".toml" or str(study) in shipped()):
        return study
    folder = HOME / named_definition(str(study)).name
    if not folder.is_dir():
        raise UserError(
            f"the study {study} was not run yet: there is no folder {folder}; `python -m dqn_memory.study.run "
            f"{shlex.quote(str(study))}` runs it; give its folder instead if it was run with --folder or --smoke"
        )
    return folder


def named_definition(study: str, smoke: bool = False) -> Definition:
    """Read a definition; the study.toml of a study or an archive gets the name of that study."""
    definition = read_definition(study, smoke)
    folder = Path(definition.source).parent
    if definition.source != str(folder / DEFINITION):
        return definition
    try:
        archived = read_file(folder / INDEX, _parse_index)["study"] if is_archive(folder) else None
        kept: Tree = archived or Study.open(folder).plain()
    except UserError:  # a study.toml outside of a study's folder
        return definition
    name = kept["name"].removesuffix("-smoke") if kept["smoke"] else kept["name"]
    return replace(definition, name=f"{name}-smoke" if smoke else name)
