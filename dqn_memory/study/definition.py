"""What a study is: a TOML file of base settings, axes and the resources of a run.

    schema = 2                                # of the settings' names (1 where it is missing)
    title = "Which memory remembers?"
    kind = "q_network"                        # the trainer: q_network, unizero or glam

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import tomli_w

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.migration import KINDS, SCHEMA, new_setting
from dqn_memory.runs.settings import flag_names, from_toml, load_plugins, read_config, study_files, to_toml
from dqn_memory.runs.toml import defaults
from envs.files import read_text
from envs.registry import WORLDS

AXES = ("world", "architecture", "seed")  # every study has these; a report groups by them
FLAGS = {"world": "env"}  # axes whose plain values belong to a flag of another name
LONGEST = 180  # characters of a run's name, which a file system must take with a suffix
RUN_FOLDER = ("output", "run")
Label = str | int | float | bool
Keys = tuple[str, ...]  # where a setting stands in a config


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
        """Refuse each value that cannot work with one sentence."""
        if self.cpus < 1:
            raise UserError(f"{source}: resources.cpus {self.cpus} must be at least 1")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise UserError(f"{source}: resources.gpus {self.gpus} must be a share between 0 and 1, or a whole number")
        for name in ("steps_per_second", "megabytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{source}: resources.{name} {value} must be above 0")

    def of_cut(self, whole: Resources) -> Resources:
        """Take what a cut does not say of time and disk to be as in the whole study."""
        if self.steps_per_second is not None or whole.steps_per_second is None:
            return self
        size = whole.megabytes if self.megabytes is None else self.megabytes
        measured = f"as in the whole study: {whole.measured}"
        return replace(self, steps_per_second=whole.steps_per_second, megabytes=size, measured=measured)


@dataclass(frozen=True)
class Line:
    """Scores that a report sets an environment's runs against: success where it tells what that is, else return."""

    random: float | None = None
    """Of random actions."""
    best: float | None = None
    """Of the best player known."""

    def check(self, where: str) -> None:
        """Refuse what is no scale with one sentence."""
        if self.random is None or self.best is None:
            raise UserError(f"{where} needs both random = ... and best = ..., the scores that count as 0 and as 1")
        if not (math.isfinite(self.random) and math.isfinite(self.best) and self.random < self.best):
            raise UserError(f"{where}: best {self.best} must be above random {self.random}, and both finite")


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
    schema: int = 1
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
    schema: int
    smoke: bool
    presets: tuple[str, ...]
    settings: Mapping[str, Any]
    axes: Mapping[str, tuple[Value, ...]]
    skip: tuple[Mapping[str, tuple[Label, ...]], ...]
    resources: Resources
    source: str
    text: str

    def skips(self, labels: Mapping[str, Label]) -> bool:
        """Tell whether a combination is left out."""
        return any(all(labels[axis] in out for axis, out in rule.items()) for rule in self.skip)


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


# From a file to a definition


def shipped() -> list[str]:
    """List the names of the studies that come with the suite."""
    return sorted(study_files())


def read_definition(name: str, smoke: bool = False) -> Definition:
    """Read a shipped study by its name, or any by its file; a UserError says what is wrong and where."""
    path = study_files().get(name, Path(name))
    if not path.is_file():
        if path.suffix == ".toml" or path.exists():
            raise UserError(f"{name}: no such study file")
        raise UserError(near_names("study", name, shipped()))
    return parse_definition(read_text(path, "the study "), str(path), path.stem, smoke)


def parse_definition(text: str, source: str, name: str, smoke: bool = False) -> Definition:
    """Read the definition that a file's text makes; `source` names it in messages."""
    file = from_toml(File, text, source)
    base, axes, resources = file.base, file.axes, file.resources
    for axis in file.smoke.axes if smoke else ():
        if axis not in file.axes:
            raise UserError(f"{source}: smoke: {near_names('axis', axis, file.axes)}")
    if smoke:
        base, axes = base | file.smoke.base, axes | file.smoke.axes
        resources = file.smoke.resources.of_cut(resources)
    resources.check(source)
    missing = [axis for axis in AXES if axis not in axes]
    if missing:
        raise UserError(f"{source}: the axis 'axes.{missing[0]}' is missing; every study has {', '.join(AXES)}")
    if file.schema not in (1, SCHEMA):
        raise UserError(f"{source}: schema {file.schema} is not known here; this version reads 1 and {SCHEMA}")
    definition = Definition(
        name=f"{name}-smoke" if smoke else name, title=file.title, about=file.about,
        kind=KINDS.get(file.kind, file.kind), schema=file.schema, smoke=smoke,
        presets=_presets(base, f"{source}: base"), settings=_without_presets(base),
        axes={axis: _values(axis, values, source) for axis, values in axes.items()},
        skip=tuple(_rule(rule, file, source) for rule in file.skip), resources=resources, source=source, text=text,
    )  # fmt: skip
    _check_lines(file, source)
    return definition


def read_lines(path: Path) -> dict[str, Line]:
    """Read the lines in the definition that a study or an archive keeps; none where the file is lost.

    Nothing else of it is read: a report is made of runs, whatever today's definitions may say.
    """
    try:
        kept = tomllib.loads(path.read_text(encoding="utf-8")).get("lines", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    lines = from_toml(File, tomli_w.dumps({"title": "", "kind": "", "lines": kept}), str(path)).lines
    for world, line in lines.items():
        line.check(f"{path}: lines.{world}")
    return lines


def _check_lines(file: File, source: str) -> None:
    """Refuse lines that are no scale or of no environment of the study: a misspelt one would scale nothing."""
    worlds = (*file.axes["world"], *file.smoke.axes.get("world", ()))
    known = {str(_value("world", value, f"{source}: axes.world").label) for value in worlds}
    for world, line in file.lines.items():
        if world not in known:
            raise UserError(f"{source}: lines: {near_names('world', world, known)}")
        line.check(f"{source}: lines.{world}")


def _rule(rule: dict[str, Any], file: File, source: str) -> dict[str, tuple[Label, ...]]:
    """Read one table of `skip`; its labels are the whole study's: a misspelt one would skip nothing."""
    out: dict[str, tuple[Label, ...]] = {}
    for axis, given in rule.items():
        if axis not in file.axes:
            raise UserError(f"{source}: skip: {near_names('axis', axis, file.axes)}")
        labels = [str(label) for label in (given if isinstance(given, list) else [given])]
        known = {str(value.label): value.label for value in _values(axis, file.axes[axis], source)}
        for label in labels:
            if label not in known:
                raise UserError(f"{source}: skip.{axis}: {near_names('value', label, known)}")
        out[axis] = tuple(known[label] for label in labels)  # a number may have been given as text
    if not all(out.values()) or not out:
        raise UserError(f"{source}: skip: a table of it must name values of at least one axis, each at least one")
    return out


def _values(axis: str, values: tuple[Any, ...], source: str) -> tuple[Value, ...]:
    if not values:
        raise UserError(f"{source}: axes.{axis} is empty; give it at least one value")
    read = tuple(_value(axis, value, f"{source}: axes.{axis}[{index}]") for index, value in enumerate(values))
    seen: set[str] = set()
    for value in read:
        if axis == "seed" and not isinstance(value.label, int):
            raise UserError(f"{source}: axes.seed holds {value.label!r}, but a seed is a whole number without a name")
        if (name := slug(value.label)).lower() in seen:
            raise UserError(f"{source}: axes.{axis} has two values that would be called '{name}'")
        seen.add(name.lower())
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
    """Write a label as part of a file's name: letters, digits, dots, plus and minus signs."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".+-_") else "-" for c in str(label))


# From a definition to its runs


def expand(definition: Definition) -> list[Planned]:
    """List all runs, in the order of the file with the last axis fastest.

    A run has as many CPU threads as the study's resources say, unless a setting says otherwise.

    Raises:
        UserError: the first run that cannot work.
    """
    planned: list[Planned] = []
    names: set[str] = set()
    for values in product(*definition.axes.values()):
        chosen = dict(zip(definition.axes, values, strict=True))
        labels = {axis: value.label for axis, value in chosen.items()}
        if definition.skips(labels):
            continue
        name = run_name(chosen, definition.source)
        if name.lower() in names:
            raise UserError(f"{definition.source}: two combinations would be called {name}; give a bundle another name")
        names.add(name.lower())
        planned.append(Planned(name, labels, _run_config(definition, chosen, f"{definition.source}: run {name}")))
    if not planned:
        raise UserError(f"{definition.source}: skip leaves no run of the study; leave out less")
    return planned


def run_name(chosen: dict[str, Value], source: str) -> str:
    """Name a run by environment and architecture, then every other axis as axis-value, the seed last."""
    others = [axis for axis in chosen if axis not in AXES]
    parts = [slug(chosen[axis].label) for axis in AXES if axis != "seed"]
    parts += [f"{slug(axis)}-{slug(chosen[axis].label)}" for axis in (*others, "seed")]
    name = "__".join(parts)
    if len(name) > LONGEST:
        raise UserError(f"{source}: the run name {name[:60]}... is too long; give its bundles a short name")
    return name


def _run_config(definition: Definition, chosen: dict[str, Value], source: str) -> Any:
    """Give a run's config: the trainer's defaults, presets in their order, then settings, checked.

    What only the machine that a run will get can say (has it a GPU?) is left to the trainer there, unless all runs
    are on a CPU.
    """
    kind, resources = definition.kind, definition.resources
    presets = [*definition.presets, *(preset for value in chosen.values() for preset in value.presets)]
    settings = _settings(definition, chosen)
    config = _layers(kind, presets, settings, source, None)
    if hasattr(config, "base"):  # what was chosen may bring other defaults with it
        config = _layers(kind, presets, settings, source, config.base())
    try:
        load_plugins(config.plugin)
        compute = replace(config.compute, device="cpu") if resources.gpus == 0 else type(config.compute)()
        replace(config, compute=compute).check()
        check_environment(config.environment.env)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    if config.compute.threads is None:
        config = replace(config, compute=replace(config.compute, threads=resources.cpus))
    return config


def _settings(definition: Definition, chosen: dict[str, Value]) -> dict[Keys, Any]:
    """Collect the settings of one combination; two axes must not set the same."""
    set_by: dict[Keys, str] = {}
    found = dict(_setting(definition, key, item) for key, item in definition.settings.items())
    for axis, value in chosen.items():
        for key, item in value.settings.items():
            keys, now = _setting(definition, key, item)
            if keys in set_by:
                raise UserError(f"{definition.source}: the axes {set_by[keys]} and {axis} both set {'.'.join(keys)}")
            set_by[keys], found[keys] = axis, now
    return found


def _setting(definition: Definition, key: str, value: Any) -> tuple[Keys, Any]:
    """Find where a setting stands; a definition of schema 1 may call it and its value as they were called then."""
    if definition.schema == 1:
        key, value = new_setting(definition.kind, key, value)
    try:
        keys = find_setting(definition.kind, key)
    except UserError as error:
        raise UserError(f"{definition.source}: {error}") from None
    if keys == RUN_FOLDER:
        raise UserError(f"{definition.source}: the study itself chooses its run folders; take '{key}' out")
    return keys, value


@cache
def _known_settings(kind: str) -> dict[str, Keys]:
    """Where each setting of a trainer stands, by its flag: {"mu": ("network", "prior", "mu"), ...}."""
    return {
        flag: tuple(path.split(".")) for path, flag in flag_names(defaults(trainer_class(kind).config_class)).items()
    }


def find_setting(kind: str, key: str) -> Keys:
    """Find a setting by its flag, its full path or an unambiguous end of that (prior-mu, prior.mu)."""
    word = key.replace("-", "_").replace(".", "_")
    flags = _known_settings(kind)
    if word in flags:
        return flags[word]
    named = {path for path in flags.values() for n in range(len(path)) if "_".join(path[n:]) == word}
    if len(named) > 1:
        raise UserError(f"the setting '{key}' may be {' or '.join(sorted('.'.join(path) for path in named))}")
    if not named:
        raise UserError(near_names("setting", key, [flag.replace("_", "-") for flag in flags]))
    return named.pop()


def _layers(kind: str, presets: Iterable[str], settings: Mapping[Keys, Any], source: str, base: Any) -> Any:
    known = trainer_class(kind).config_class
    config = defaults(known) if base is None else base
    for name in presets:
        config = read_config(known, name, base=config)
    table: dict[str, Any] = {"schema": SCHEMA} if hasattr(known, "trainer") else {}
    for path, value in settings.items():
        inner = table
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return from_toml(known, tomli_w.dumps(table), source, config)


def check_environment(env: str) -> None:
    """Refuse an id that no environment has, with the near ones; `module:Id` is left to Gymnasium."""
    name = env.removeprefix("envs:")
    if ":" in name or name in WORLDS:
        return
    gymnasium.register_envs(ale_py)
    if name not in gymnasium.registry:
        raise UserError(near_names("environment", name, {*WORLDS, *gymnasium.registry}))
