"""Read the definition of a study: a TOML file of base settings, axes and the resources of a run.

    schema = 2                                # version of the settings' names
    title = "Which memory remembers?"
    kind = "q_network"                        # the trainer: q_network, pqn, ppo, unizero or glam

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
    steps_per_second = 900                    # for the first estimate of the time
    megabytes = 12

    [[skip]]                                  # combinations to leave out, by labels
    world = "Car Flag"
    architecture = ["dtqn4", "dgfqn"]

    [lines."Car Flag"]                        # reference scores of an environment of your own, by label
    random = 0.25                             # score of random actions, 0 on the report's scale
    best = 1.0                                # score of the best known player, 1 on that scale

    [smoke.base]                              # --smoke lays this over the rest: a cut of seconds on one CPU thread
    [smoke.axes]

A value of an axis is a value of the setting that has the axis's name (`world` is the flag --env; a list of ids is one
mixture), or a bundle of settings. Presets and settings of a bundle override those of the base.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import gymnasium

from dqn_memory.runs.errors import UserError, check_known, near_names, require
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.modules import load_modules, other_envs
from dqn_memory.runs.settings import Bounds, check_numbers, check_sizes, flag_names, read_config, study_files
from dqn_memory.runs.toml import SCHEMA, defaults, from_toml, nested, overlaid, to_toml
from envs.extras import has_extra
from envs.files import read_text
from envs.registry import WORLDS

AXES = ("world", "architecture", "seed")  # axes of every study; a report groups by them
FLAGS = {"world": "env"}  # axes whose plain values belong to a flag of another name
PRESETS = "config"  # the key of presets, beside settings
EVALUATIONS = 10  # during a short run of PPO or PQN, if its study does not set evaluate_every
Label = str | int | float | bool
MAX_TEXT = 10_000  # characters of a title or another text, so that a report is written in reasonable time


@dataclass(frozen=True)
class Resources:
    """Resources of one run, and estimates of its cost until the first run has finished."""

    cpus: Annotated[int, Bounds(1)] = 1
    """CPU threads."""
    gpus: Annotated[float, Bounds(0)] = 0.0
    """Share of an accelerator."""
    steps_per_second: Annotated[float, Bounds(above=0)] | None = None
    """Environment steps a second of one run, evaluations included."""
    megabytes: Annotated[float, Bounds(above=0)] | None = None
    """Disk of one finished run."""
    measured: str = ""
    """Machine on which the two numbers above were measured."""
    keep_replay: bool = True
    """Whether the replay of a finished run stays on disk; a resume with more steps needs it."""

    def check(self, source: str) -> None:
        """Check the values; a UserError names the first one that cannot work."""
        with named_source(f"{source}: resources"):
            check_numbers(self)
            if self.gpus > 1 and self.gpus != int(self.gpus):
                raise UserError(f"--gpus {self.gpus} must be a share between 0 and 1, or a whole number")


@dataclass(frozen=True)
class Line:
    """Reference scores of an environment: success rates if it reports success, else returns."""

    random: float = math.nan
    """Score of random actions."""
    best: float = math.nan
    """Score of the best known player."""


@dataclass(frozen=True)
class Cut:
    """Settings and axes that --smoke lays over a study; an axis replaces all its values."""

    base: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """The content of a study's file."""

    title: str
    kind: str
    schema: int = SCHEMA
    about: str = ""
    base: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    resources: Resources = Resources()
    skip: tuple[dict[str, Any], ...] = ()
    lines: dict[str, Line] = field(default_factory=dict)
    smoke: Cut = Cut()


@dataclass(frozen=True)
class Value:
    """One value of an axis: its label, and its settings by flag."""

    label: Label
    settings: Mapping[str, Any]


Axes = dict[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Definition(File):
    """A study as it is run. Its axes hold Values; if it `is_cut`, its cut is laid over it."""

    name: str = ""
    source: str = ""
    text: str = ""
    is_cut: bool = False


@dataclass(frozen=True)
class Planned:
    """A run of the study; `config` is the trainer's own dataclass, complete."""

    name: str
    axes: dict[str, Label]
    config: Any

    @property
    def toml(self) -> str:
        """The config as the trainer reads it."""
        return to_toml(self.config)


@contextmanager
def named_source(source: str) -> Iterator[None]:
    """Put the source in front of errors that are raised inside."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


# ---- from a file to a definition


def shipped() -> list[str]:
    """List the names of the shipped studies."""
    return sorted(study_files())


def read_definition(name: str, smoke: bool = False) -> Definition:
    """Read a shipped study by its name, or another one by its file; a UserError names the problem and its place."""
    path = study_files().get(name, Path(name))
    if not path.is_file():
        raise UserError(f"there is no file {name}" if path.suffix == ".toml" else near_names("study", name, shipped()))
    return parse_definition(read_text(path, "the study "), str(path), path.stem, smoke)


def parse_definition(text: str, source: str, name: str, smoke: bool = False) -> Definition:
    """Read a definition from the text of a file; `source` names it in errors."""
    file = parse_file(text, source)
    with named_source(source):
        require(file.schema == SCHEMA, f"schema {file.schema} is not known here; this version reads {SCHEMA}")
        axes, cut = _axes(file.axes), _axes(file.smoke.axes)
        for axis in AXES:
            if axis not in axes:
                raise UserError(f"the axis 'axes.{axis}' is missing; every study has {', '.join(AXES)}")
        for axis in cut:
            check_known("axis", axis, axes, "smoke: ")
        worlds = {str(value.label) for value in (*axes["world"], *cut.get("world", ()))}
        for world in file.lines:  # a misspelt label would have no effect
            check_known("world", world, worlds, "lines: ")
        skip = tuple(_rule(rule, axes) for rule in file.skip)
    base, resources = file.base, file.resources
    if smoke:
        name, base, axes = f"{name}-smoke", base | file.smoke.base, axes | cut
        resources = replace(resources, cpus=1, gpus=0.0, keep_replay=True)
    resources.check(source)
    base = _settings_table(base, f"{source}: base")
    values = vars(file) | {"base": base, "axes": axes, "skip": skip, "resources": resources}
    return Definition(**values, name=name, source=source, text=text, is_cut=smoke)


def parse_file(text: str, source: str) -> File:
    """Read a definition's file, also one of another version."""
    file = from_toml(File, text, source)
    for name in ("title", "about"):
        if len(getattr(file, name)) > MAX_TEXT:
            raise UserError(f"{source}: {name} has more than {MAX_TEXT:,} characters")
    for world, line in file.lines.items():
        if not -math.inf < line.random < line.best < math.inf:  # a missing score is nan
            raise UserError(
                f"{source}: lines.{world}: best {line.best} must be above random {line.random}, and both finite: give "
                "both, the scores that count as 1 and as 0"
            )
    return file


def _rule(rule: dict[str, Any], axes: Axes) -> dict[str, list[str]]:
    """Read one table of `skip` as labels by axis; a UserError names a label that the study lacks."""
    out: dict[str, list[str]] = {}
    for axis, given in rule.items():
        known = {str(value.label) for value in axes[check_known("axis", axis, axes, "skip: ")]}
        labels = given if isinstance(given, list) else [given]
        out[axis] = [check_known("value", str(label), known, f"skip.{axis}: ") for label in labels]
    if not all(out.values()) or not out:
        raise UserError("skip: each of its tables must name at least one axis, and at least one value of each")
    return out


def _axes(axes: Mapping[str, tuple[Any, ...]]) -> Axes:
    """Read the values of every axis."""
    found = {
        axis: tuple(_value(axis, value, f"axes.{axis}[{index}]") for index, value in enumerate(values))
        for axis, values in axes.items()
    }
    for seed in found.get("seed", ()):
        if not isinstance(seed.label, int):
            raise UserError(f"axes.seed holds {seed.label!r}, but a seed is a whole number without a name")
    return found


def _value(axis: str, value: Any, where: str) -> Value:
    if not isinstance(value, dict):
        label = " + ".join(map(str, value)) if isinstance(value, list | tuple) else value  # several environments
        return Value(label, {FLAGS.get(axis, axis): value})
    settings = {key: item for key, item in value.items() if key != "name"}
    label = value.get("name", "+".join(f"{key}-{item}" for key, item in settings.items() if key != PRESETS))
    if not isinstance(label, str) or not label:
        raise UserError(f'{where} needs a name: name = "..."')
    return Value(label, _settings_table(settings, where))


def _settings_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Give a table of settings with its presets as a list."""
    given = table.get(PRESETS, [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}.config must be a preset's name or an array of them, not {given!r}")
    return {**table, PRESETS: names}


def slug(label: Label) -> str:
    """Write a label as part of a file's name: letters, digits, dots, plus and minus signs."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".+-_") else "-" for c in str(label))


# ---- from a definition to its runs


def expand(definition: Definition) -> list[Planned]:
    """List all runs in the order of the file; the last axis varies fastest.

    The name of a run is made of environment, architecture, every other axis as axis-value, and the seed. Its CPU
    threads are those of the study's resources, unless a setting gives them.

    Raises:
        UserError: a run cannot work; the error names the first one.
    """
    planned: dict[str, Planned] = {}
    for values in product(*definition.axes.values()):
        chosen = dict(zip(definition.axes, values, strict=True))
        labels = {axis: value.label for axis, value in chosen.items()}
        if any(all(str(labels[axis]) in out for axis, out in rule.items()) for rule in definition.skip):
            continue
        others = [f"{slug(axis)}-{slug(label)}" for axis, label in labels.items() if axis not in AXES]
        name = "__".join([slug(labels["world"]), slug(labels["architecture"]), *others, f"seed-{labels['seed']}"])
        if name.lower() in planned:
            raise UserError(f"{definition.source}: two combinations would be called {name}; name every value once")
        with named_source(f"{definition.source}: run {name}"):
            planned[name.lower()] = Planned(name, labels, _run_config(definition, chosen))
    require(planned, f"{definition.source}: no run is left; give each axis a value, and skip fewer combinations")
    return list(planned.values())


def _run_config(definition: Definition, chosen: Mapping[str, Value]) -> Any:
    """Build a run's config: the trainer's defaults, the presets in their order, then the settings.

    The config is checked here, except for the GPU: a run may train on another machine.
    """
    from dqn_memory.rollouts import RolloutConfig  # imported here because it loads torch

    known, resources = trainer_class(definition.kind).config_class, definition.resources
    tables = [definition.base, *(value.settings for value in chosen.values())]
    presets = [preset for table in tables for preset in table.get(PRESETS, ())]
    settings = nested(_settings(definition, chosen))

    def over(config: Any) -> Any:
        for name in presets:
            config = read_config(known, name, base=config)
        return overlaid(config, settings, "its settings")

    config = over(defaults(known))
    if hasattr(config, "base"):  # the settings may change defaults of other settings
        config = over(config.base())
    if issubclass(known, RolloutConfig) and config.total_steps <= config.evaluation.evaluate_every:
        often = replace(defaults(known).evaluation, evaluate_every=max(1, config.total_steps // EVALUATIONS))
        config = over(replace(defaults(known), evaluation=often))
    check_sizes(config, [path.rpartition(".")[2] for path in _settings(definition, chosen)])
    load_modules(config, f"the study {definition.source}", Path(definition.source))
    compute = replace(config.compute, device="cpu") if resources.gpus == 0 else type(config.compute)()
    replace(config, compute=compute).check()
    if has_extra("atari"):
        gymnasium.register_envs(import_module("ale_py"))
    known_envs = {*WORLDS, *gymnasium.registry}
    for id in (*config.environment.ids, *other_envs(config)):
        env = id.removeprefix("envs:")
        if ":" not in env and env not in known_envs:  # Gymnasium checks `module:Id`
            raise UserError(near_names("environment", env, known_envs))
    if config.compute.engine == "auto":  # all runs of a study by one engine, also those that are added later
        config = replace(config, compute=replace(config.compute, engine="eager"))
    if config.compute.threads is None:
        config = replace(config, compute=replace(config.compute, threads=resources.cpus))
    return config


def _settings(definition: Definition, chosen: Mapping[str, Value]) -> dict[str, Any]:
    """Collect the settings of one combination by path; a UserError says that two axes set the same one."""
    found: dict[str, Any] = {}
    set_by: dict[str, str] = {}
    tables = [("", definition.base), *((axis, value.settings) for axis, value in chosen.items())]
    paths = _setting_paths(definition.kind)
    for axis, table in tables:
        for key, value in table.items():
            if key == PRESETS:
                continue
            path = paths[check_known("setting", key.replace("-", "_"), paths)]
            require(path != "output.run", f"the study chooses the run folders itself; remove '{key}'")
            if path in set_by:
                raise UserError(f"the axes {set_by[path]} and {axis} both set {path}")
            found[path] = value
            if axis:
                set_by[path] = axis
    return found


@cache
def _setting_paths(kind: str) -> dict[str, str]:
    """Give the path of each setting of a trainer by its flag, and by the path itself: {"mu": "network.prior.mu"}."""
    paths = flag_names(defaults(trainer_class(kind).config_class))
    return {flag: path for path, flag in paths.items()} | {path: path for path in paths}
