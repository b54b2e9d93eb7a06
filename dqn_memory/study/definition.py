"""What a study is: a TOML file of base settings, axes and the resources of a run.

    title = "Which memory remembers?"
    kind = "dqn_memory.train"                 # the trainer

    [base]                                    # settings of every run, by the names of the trainer's flags
    config = "demo"                           # presets: a name, a file, or several
    total_steps = 20_000

    [axes]                                    # a run for every combination
    world = ["Gridverse/Memory-5x5-v0", { name = "Car Flag", env = "POMDP/CarFlag-v0", width = 64 }]
    architecture = ["dtqn4", "dgfqn", { name = "DGFQN, mu 2", architecture = "dgfqn", prior = "gaussian", mu = 2 }]
    seed = [1, 2, 3]

    [resources]                               # of one run
    cpus = 1
    gpus = 0.0
    steps_per_second = 900                    # what the estimate starts from
    megabytes = 12

    [[skip]]                                  # combinations that are left out, by labels
    world = "Car Flag"
    architecture = ["dtqn4", "dgfqn"]

    [lines."Car Flag"]                        # of worlds of your own, by label: what counts as 0 and as 1 in a report
    random = 0.25                             # score of random actions
    best = 1.0                                # of the best player known

    [smoke.base]                              # laid over by --smoke: a cut for seconds
    [smoke.axes]

A value of an axis is a setting named as the axis (`world` is the flag --env), or a bundle of settings. Presets and
settings of a bundle come after those of the base.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.settings import study_files, to_toml
from dqn_memory.runs.toml import from_toml
from dqn_memory.study.trainers import Path_, path_of, settle

AXES = ("world", "architecture", "seed")  # every study has these; a report groups by them


FLAGS = {"world": "env"}  # axes whose plain values belong to a flag of another name


Label = str | int | float | bool


@dataclass(frozen=True)
class Resources:
    """What one run takes, and what is known of its cost before the first has ended."""

    cpus: int = 1
    """CPU threads."""
    gpus: float = 0.0
    """Share of an accelerator."""
    steps_per_second: float | None = None
    """Environment steps a second of one run, evaluations included."""
    megabytes: float | None = None
    """Disk of one finished run."""
    measured: str = ""
    """On what the two numbers above were measured."""
    keep_replay: bool = True
    """Whether a finished run keeps its replay, without which it cannot be made longer."""

    def check(self, source: str) -> None:
        """One sentence for each value that cannot work."""
        if self.cpus < 1:
            raise UserError(f"{source}: resources.cpus {self.cpus} must be at least 1")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise UserError(f"{source}: resources.gpus {self.gpus} must be a share between 0 and 1, or a whole number")
        for name in ("steps_per_second", "megabytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{source}: resources.{name} {value} must be above 0")


@dataclass(frozen=True)
class Cut:
    """What --smoke lays over a study: settings, whole axes, and the resources of a small run."""

    base: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    resources: Resources = Resources()


@dataclass(frozen=True)
class File:
    """A study's file as it is written."""

    title: str
    kind: str
    about: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    resources: Resources = Resources()
    skip: tuple[dict[str, Any], ...] = ()
    lines: dict[str, Line] = field(default_factory=dict)
    smoke: Cut = Cut()


@dataclass(frozen=True)
class Value:
    """One value of an axis: its label, the presets it brings and its settings by flag."""

    label: Label
    presets: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Definition:
    """A study as it is carried out; with `smoke`, its cut."""

    name: str
    title: str
    about: str
    kind: str
    smoke: bool
    presets: tuple[str, ...]
    settings: Mapping[str, Any]
    axes: Mapping[str, tuple[Value, ...]]
    skip: tuple[Mapping[str, tuple[Label, ...]], ...]
    resources: Resources
    source: str
    text: str

    def skips(self, labels: Mapping[str, Label]) -> bool:
        """Whether a combination is left out."""
        return any(all(labels[axis] in out for axis, out in rule.items()) for rule in self.skip)


def shipped() -> list[str]:
    """Names of the studies that come with the suite."""
    return sorted(study_files())


def read_definition(name: str, smoke: bool = False) -> Definition:
    """A shipped study by its name, or any by its file; a UserError says what is wrong and where."""
    path = _find(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the study {path}: {reason}") from None
    return parse_definition(text, str(path), path.stem, smoke)


def parse_definition(text: str, source: str, name: str, smoke: bool = False) -> Definition:
    """The definition that a file's text makes; `source` names it in messages."""
    file = from_toml(File, text, source)
    base, axes, resources = file.base, file.axes, file.resources
    if smoke:
        _check_cut(file, source)
        base, axes = base | file.smoke.base, axes | file.smoke.axes
        resources = _small(file.smoke.resources, resources)
    resources.check(source)
    missing = [axis for axis in AXES if axis not in axes]
    if missing:
        raise UserError(f"{source}: the axis 'axes.{missing[0]}' is missing; every study has {', '.join(AXES)}")
    definition = Definition(
        name=f"{name}-smoke" if smoke else name, title=file.title, about=file.about, kind=file.kind, smoke=smoke,
        presets=_presets(base, f"{source}: base"), settings=_without_presets(base),
        axes={axis: _values(axis, values, source) for axis, values in axes.items()},
        skip=tuple(_rule(rule, file, source) for rule in file.skip), resources=resources, source=source, text=text,
    )  # fmt: skip
    _check_lines(file, source)
    return definition


def _small(cut: Resources, whole: Resources) -> Resources:
    """The cut's own resources; what it does not say of time and disk is taken to be as in the whole study."""
    if cut.steps_per_second is not None or whole.steps_per_second is None:
        return cut
    size = whole.megabytes if cut.megabytes is None else cut.megabytes
    measured = f"as in the whole study: {whole.measured}"
    return replace(cut, steps_per_second=whole.steps_per_second, megabytes=size, measured=measured)


def _find(name: str) -> Path:
    if name in (known := study_files()):
        return known[name]
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == ".toml" or path.exists():
        raise UserError(f"{name}: no such study file")
    raise UserError(near_names("study", name, shipped()))


def _check_cut(file: File, source: str) -> None:
    for axis in file.smoke.axes:
        if axis not in file.axes:
            raise UserError(f"{source}: smoke: {near_names('axis', axis, file.axes)}")


def _check_lines(file: File, source: str) -> None:
    """That each of the lines is a scale, and of a world of the study or its cut: a misspelt one would scale nothing."""
    if not file.lines:
        return
    worlds = (*file.axes["world"], *file.smoke.axes.get("world", ()))
    known = {str(_value("world", value, f"{source}: axes.world").label) for value in worlds}
    for world, line in file.lines.items():
        if world not in known:
            raise UserError(f"{source}: lines: {near_names('world', world, known)}")
        line.check(f"{source}: lines.{world}")


def _rule(rule: dict[str, Any], file: File, source: str) -> dict[str, tuple[Label, ...]]:
    """One table of `skip`, with its labels checked against the whole study's: a misspelt one would skip nothing."""
    out: dict[str, tuple[Label, ...]] = {}
    for axis, given in rule.items():
        if axis not in file.axes:
            raise UserError(f"{source}: skip: {near_names('axis', axis, file.axes)}")
        known = {str(value.label): value.label for value in _values(axis, file.axes[axis], source)}
        for label in given if isinstance(given, list) else [given]:
            if str(label) not in known:
                raise UserError(f"{source}: skip.{axis}: {near_names('value', str(label), known)}")
        labels = given if isinstance(given, list) else [given]
        out[axis] = tuple(known[str(label)] for label in labels)  # a number may have been given as text
    if not all(out.values()) or not out:
        raise UserError(f"{source}: skip: a table of it must name values of at least one axis, each at least one")
    return out


def _values(axis: str, values: tuple[Any, ...], source: str) -> tuple[Value, ...]:
    if not values:
        raise UserError(f"{source}: axes.{axis} is empty; give it at least one value")
    read = tuple(_value(axis, value, f"{source}: axes.{axis}[{index}]") for index, value in enumerate(values))
    for value in read if axis == "seed" else ():
        if not isinstance(value.label, int):
            raise UserError(f"{source}: axes.seed holds {value.label!r}, but a seed is a whole number without a name")
    seen: dict[str, Label] = {}
    for value in read:
        key = slug(value.label).lower()
        if key in seen:
            raise UserError(f"{source}: axes.{axis} has two values that would be called '{slug(value.label)}'")
        seen[key] = value.label
    return read


def _value(axis: str, value: Any, where: str) -> Value:
    if not isinstance(value, dict):
        return Value(value, (), {FLAGS.get(axis, axis): value})
    settings = _without_presets({key: item for key, item in value.items() if key != "name"})
    label = value.get("name", "+".join(f"{key}-{item}" for key, item in settings.items()))
    if not isinstance(label, str) or not label:
        raise UserError(f'{where} needs a name: name = "..."')
    return Value(label, _presets(value, where), settings)


def _presets(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    given = table.get("config", [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}.config must be a preset's name or an array of them, not {given!r}")
    return tuple(names)


def _without_presets(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "config"}


def slug(label: Label) -> str:
    """A label as part of a file's name: letters, digits, dots, plus and minus signs."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".+-_") else "-" for c in str(label))


LONGEST = 180  # characters of a name, which a file system must take with a suffix


NAMELESS = ("world", "architecture")  # axes whose values say in a name what they are


PLACE = ("output", "run")


@dataclass(frozen=True)
class Planned:
    """A run to be carried out: `config` is the trainer's own dataclass, complete."""

    name: str
    axes: dict[str, Label]
    config: Any

    @property
    def toml(self) -> str:
        """The config as the trainer reads it."""
        return to_toml(self.config)


def expand(definition: Definition) -> list[Planned]:
    """All runs, in the order of the file with the last axis fastest; a UserError for the first that cannot work.

    A run has as many CPU threads as the study's resources say, unless a setting says otherwise.
    """
    planned: list[Planned] = []
    names: set[str] = set()
    base = {_path(definition, key): value for key, value in definition.settings.items()}
    for values in product(*definition.axes.values()):
        chosen = dict(zip(definition.axes, values, strict=True))
        labels = {axis: value.label for axis, value in chosen.items()}
        if definition.skips(labels):
            continue
        name = run_name(chosen, definition.source)
        if name.lower() in names:
            raise UserError(f"{definition.source}: two combinations would be called {name}; give a bundle another name")
        names.add(name.lower())
        presets = [*definition.presets, *(preset for value in values for preset in value.presets)]
        settings = base | dict(_settings(definition, chosen))
        on_cpu = definition.resources.gpus == 0
        config = settle(definition.kind, presets, settings, f"{definition.source}: run {name}", on_cpu)
        if config.compute.threads is None:
            config = replace(config, compute=replace(config.compute, threads=definition.resources.cpus))
        planned.append(Planned(name, labels, config))
    if not planned:
        raise UserError(f"{definition.source}: skip leaves no run of the study; leave out less")
    return planned


def run_name(chosen: dict[str, Value], source: str) -> str:
    """World, architecture, then every other axis as axis-value, the seed last."""
    others = [axis for axis in chosen if axis not in AXES]
    parts = [slug(chosen[axis].label) for axis in NAMELESS]
    parts += [f"{slug(axis)}-{slug(chosen[axis].label)}" for axis in (*others, "seed")]
    name = "__".join(parts)
    if len(name) > LONGEST:
        raise UserError(f"{source}: the run name {name[:60]}... is too long; give its bundles a short name")
    return name


def _settings(definition: Definition, chosen: dict[str, Value]) -> Iterator[tuple[Path_, Any]]:
    """Settings of one combination by their places; two axes must not set the same."""
    set_by: dict[Path_, str] = {}
    for axis, value in chosen.items():
        for key, item in value.settings.items():
            path = _path(definition, key)
            if path in set_by:
                raise UserError(f"{definition.source}: the axes {set_by[path]} and {axis} both set {'.'.join(path)}")
            set_by[path] = axis
            yield path, item


def _path(definition: Definition, key: str) -> Path_:
    try:
        path = path_of(definition.kind, key)
    except UserError as error:
        raise UserError(f"{definition.source}: {error}") from None
    if path == PLACE:
        raise UserError(f"{definition.source}: the study itself chooses its run folders; take '{key}' out")
    return path


@dataclass(frozen=True)
class Line:
    """Scores of a world that a report sets its runs' against: success where the world tells it, else return."""

    random: float | None = None
    """Of random actions."""
    best: float | None = None
    """Of the best player known."""

    def check(self, where: str) -> None:
        """One sentence for what is no scale."""
        if self.random is None or self.best is None:
            raise UserError(f"{where} needs both random = ... and best = ..., the scores that count as 0 and as 1")
        if not (math.isfinite(self.random) and math.isfinite(self.best) and self.random < self.best):
            raise UserError(f"{where}: best {self.best} must be above random {self.random}, and both finite")


@dataclass(frozen=True)
class Lines:
    """What of a definition a report reads."""

    lines: dict[str, Line] = field(default_factory=dict)


def read_lines(path: Path) -> dict[str, Line]:
    """The lines in the definition that a study or a record keeps; none where the file is lost, as reports then say.

    Nothing else of it is read: a report is made of runs, whatever today's definitions may say.
    """
    try:
        kept = tomllib.loads(path.read_text(encoding="utf-8")).get("lines", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    lines = from_toml(Lines, tomli_w.dumps({"lines": kept}), str(path)).lines
    for world, line in lines.items():
        line.check(f"{path}: lines.{world}")
    return lines
