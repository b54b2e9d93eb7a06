"""Read the settings of a command: dataclass defaults < `--config NAME|PATH` < explicit flags. Check their bounds.

    @dataclass(frozen=True)
    class TrainConfig:
        steps: Annotated[int, Bounds(1)] = 100_000
        "Environment steps."

    config = parse(TrainConfig)  # python -m ... --config memory-7x7 --total-steps 5000
    check_numbers(config)        # --steps 0 must be at least 1

The flag of a field is its own name. If several fields have that name, the name of the field's part stands in front. A
nested field called `kind` is named after its part: `prior.kind` is `--prior`. Fields of nested classes need defaults; a
field of the top class without a default is a required flag. Presets are for the configs of trainers. Such a config has
the class variables `trainer`, its kind, and `first_flags`, the flags with which --help begins.
"""

from __future__ import annotations

import argparse
import inspect
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import docstring_parser
import tyro

from dqn_memory.runs.errors import UserError, check_known, near_names
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.toml import NONE, defaults, field_types, from_toml, nested, overlaid
from envs.files import read_text

C = TypeVar("C")
Settings = Sequence[str] | Mapping[str, Any]  # a command line, or its flags by name, with underscores
Repeatable = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
OneOrSeveral = str | tuple[str, ...]  # a repeatable flag; a single text stays one
CONFIG_HELP = "A TOML file, or a shipped preset: {}. A later one overrides an earlier one."
RULES = tyro.constructors.ConstructorRegistry()  # how flags are read
FLAG = re.compile(r"--([a-z][a-z0-9-]*)|^(\w+)")  # an environment's error begins with the bare name of its keyword
MATCHED = ("width", "head_width")  # flags that --match sets
STUDIES = "studies"  # folder with the definitions of studies (dqn_memory.study), which are no presets
PRESETS = Path(__file__).resolve().parents[2] / "configs"  # beside the package, also in an installation


def parse(
    config_class: type[C],
    argv: Settings | None = None,
    presets: Path = PRESETS,
    prog: str | None = None,
    base: C | None = None,
) -> C:
    """Read a config from the command line: defaults (or `base`), then each --config in order, then the flags.

    Unknown flags and --help end the process, as in argparse. Settings by name raise a UserError in every case.

    Raises:
        UserError: a config file is bad, or the config class refuses the combination.
    """
    config = defaults(config_class) if base is None else base
    if isinstance(argv, Mapping):
        return _with_settings(config, argv, presets)
    arguments, names = list(sys.argv[1:] if argv is None else argv), None
    if trainer := _trainer(config_class):
        names = preset_names(presets, trainer)
        for name in _config_names(arguments):
            config = read_config(config_class, name, presets, config)
    parsed = parse_flags(config, arguments, inspect.cleandoc(config_class.__doc__ or ""), prog, names)
    check_sizes(parsed, [argument.partition("=")[0][2:].replace("-", "_") for argument in arguments])
    return parsed


def check_sizes(config: Any, given: Collection[str]) -> None:
    """Refuse a width beside --match, which sets the width."""
    match = getattr(config, "match", None)
    for flag in MATCHED if match is not None else ():
        if flag in given:
            raise UserError(f"{_dashed(flag)} has no effect beside --match {match}, which sets it; leave one out")


def preset_names(presets: Path = PRESETS, trainer: str | None = None) -> list[str]:
    """List the shipped presets, such as "memory-7x7" or "glam/paper"; only those of `trainer`, if it has any."""
    files = set(presets.rglob("*.toml")) - set(study_files(presets).values())
    names = sorted(path.relative_to(presets).with_suffix("").as_posix() for path in files)
    return [name for name in names if preset_trainer(name) == trainer] or names


def preset_trainer(name: str) -> str:
    """Give the kind of run of a preset: the name of its folder, or else q_network."""
    return name.rpartition("/")[0] or "q_network"


def study_files(presets: Path = PRESETS) -> dict[str, Path]:
    """Give the files of the shipped studies by name."""
    return {path.stem: path for path in (presets / STUDIES).glob("*.toml")}


def read_config(config_class: type[C], name: str, presets: Path = PRESETS, base: C | None = None) -> C:
    """Lay a preset or a TOML file over `base` (the defaults).

    Raises:
        UserError: the file is missing, is for another trainer, or is no config.
    """
    trainer = _trainer(config_class)
    fitting = preset_names(presets, trainer)
    path = _find(name, presets, fitting)
    if path.resolve().is_relative_to(presets):
        preset = path.resolve().relative_to(presets).with_suffix("").as_posix()
        if preset in preset_names(presets) and preset not in fitting:
            kind = preset_trainer(preset)
            raise UserError(f"--config {name} is a preset of {script_of(kind)} (in Python: kind={kind!r})")
    text = read_text(path, "the config file ")
    if re.search(r"^\[axes\]", text, re.MULTILINE):
        study = path.stem if path in study_files(presets).values() else name
        raise UserError(f"--config {name} is a study; run it by python -m dqn_memory.study.run {study}")
    return from_toml(config_class, text, str(path), base)


def _trainer(config_class: type) -> str | None:
    return getattr(config_class, "trainer", None)


def _with_settings(config: C, given: Mapping[str, Any], presets: Path) -> C:
    """Lay presets and then settings over a config: {"config": "demo", "total_steps": 5_000, "prior": "local"}."""
    settings, has_presets = dict(given), _trainer(type(config)) is not None
    names = (settings.pop("config", None) or ()) if has_presets else ()
    names = [names] if isinstance(names, str | Path) else names
    if not isinstance(names, list | tuple):
        raise UserError(f"settings: config is a {type(names).__name__}; give a preset, a path or a list of them")
    for name in names:
        config = read_config(type(config), str(name), presets, config)
    paths = {flag: path for path, flag in flag_names(config).items()}
    known = [*["config"] * has_presets, *paths]
    values = {paths[check_known("setting", flag, known)]: _plain(value) for flag, value in settings.items()}
    config = overlaid(config, nested(values), "settings")
    check_sizes(config, settings)
    return config


def _plain(value: Any) -> Any:
    """Convert a value to TOML's types: a path to a text, a number of numpy or torch to Python's, 1e6 to an integer."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    value = value.item() if getattr(value, "shape", None) == () else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _config_names(arguments: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    return parser.parse_known_args(arguments)[0].config


def _find(name: str, presets: Path, known: Sequence[str]) -> Path:
    shipped, path = presets / f"{name}.toml", Path(name)
    if shipped.is_file() and presets in shipped.parents:
        path = shipped
    if path.is_file():
        return path
    if path.suffix == ".toml" or path.exists():
        raise UserError(f"--config {name}: no such file")
    raise UserError(f"--config: {near_names('preset', name, known)}")


# ---- flags -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Field:
    """A field of a config, or of a part of it."""

    path: str
    """Its place in the config, such as "network.prior.mu"."""
    flag: str
    """Its flag with underscores, such as "mu"."""
    part: Any
    """The dataclass that holds it."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def value(self) -> Any:
        return getattr(self.part, self.name)

    @property
    def annotation(self) -> Any:
        return field_types(type(self.part))[self.name]

    @property
    def help(self) -> str | None:
        owner: Any = type(self.part)
        return _docs(owner).get(self.name)


def fields_of(config: Any) -> list[Field]:
    """List the fields of a config and of its parts.

    Raises:
        TypeError: two fields would share a flag; the author of the config must rename one.
    """
    parts = dict(_leaves(config, ()))
    # a nested `kind` is named after its part, so its last word is left out
    words = {path: path[:-1] if len(path) > 1 and path[-1] == "kind" else path for path in parts}
    tails = Counter(each[-n:] for each in words.values() for n in range(1, len(each) + 1))
    flags = {path: "_".join(_shortest(each, tails)) for path, each in words.items()}
    shared = [flag for flag, count in Counter(flags.values()).items() if count > 1]
    if shared:
        raise TypeError(f"{type(config).__name__}: several fields share the flag {_dashed(shared[0])}")
    return [Field(".".join(path), flags[path], part) for path, part in parts.items()]


def flag_names(config: Any) -> dict[str, str]:
    """Give the flag of every field of a config by its path: {"network.prior.mu": "mu", ...}."""
    return {each.path: each.flag for each in fields_of(config)}


def _leaves(part: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of each field that is no part, and the part that holds it."""
    for name in field_types(type(part)):
        if is_dataclass(value := getattr(part, name)):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), part


def _shortest(words: tuple[str, ...], tails: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    """Give the shortest end of a path that no other path has."""
    return next((words[-n:] for n in range(1, len(words)) if tails[words[-n:]] == 1), words)


def parse_flags(
    default: C, argv: list[str], description: str, prog: str | None = None, presets: Sequence[str] | None = None
) -> C:
    """Lay the flags in `argv` over `default`; tyro prints --help and its own errors.

    `presets` are the names in the help of --config; None: there is no such flag.
    """
    fields = fields_of(default)
    entries = {each.flag: _entry(each.flag, each.annotation, each.value, each.help)
               for each in fields}  # fmt: skip
    if presets is not None:
        text = CONFIG_HELP.format(", ".join(presets) or "none")
        entries["config"] = _entry("config", Repeatable, (), text, metavar="NAME|PATH")
    groups: list[Any] = []
    for heading, (about, flags) in _groups(default, fields, presets is not None).items():
        group = make_dataclass("Group", [entries[flag] for flag in flags], frozen=True)
        help = tyro.conf.arg(name=heading, help=about)
        groups += [(heading.replace(" ", "_") or "all", Annotated[group, help], field(default=group()))]
    parsed: Any = tyro.cli(
        make_dataclass(type(default).__name__, groups, frozen=True), args=argv, prog=prog or _program(),
        description=description, config=(tyro.conf.OmitArgPrefixes,), registry=RULES,
    )  # fmt: skip
    values = {flag: value for group in vars(parsed).values() for flag, value in vars(group).items()}
    given = {each.path: values[each.flag] for each in fields}
    for each in fields:
        if each.annotation == OneOrSeveral:
            texts = given[each.path]
            given[each.path] = each.value if not texts else texts[0] if len(texts) == 1 else texts
    return _rebuilt(default, given)


def _entry(flag: str, annotation: Any, default: Any, text: str | None, **shown: Any) -> tuple[str, Any, Any]:
    if annotation == OneOrSeveral:  # tyro would add the flags to the default
        known = default if isinstance(default, str) else " ".join(default)
        annotation, default, text = Repeatable, (), f"{text} (default: {known or NONE})"
    return flag, Annotated[annotation, tyro.conf.arg(name=flag, help=text, **shown)], field(default=default)


@RULES.primitive_rule
def _whole(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Let flags write an integer as 1e6 or 2.5e3, too."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int), str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


def whole_number(word: str) -> int:
    """Read an integer; a ValueError says that the word is none."""
    try:
        return int(word)
    except ValueError:
        with suppress(ValueError, OverflowError):
            if "e" in word.lower() and (number := float(word)).is_integer():
                return int(number)
        raise ValueError(f"{word!r} is no whole number; write it as 1000000 or 1e6") from None


def _groups(config: Any, fields: Sequence[Field], with_presets: bool) -> dict[str, tuple[str, list[str]]]:
    """Group flags under the headings of --help: the first flags, then one heading for each part."""
    known = {each.flag for each in fields} | ({"config"} if with_presets else set())
    first = [flag for flag in getattr(config, "first_flags", ()) if flag in known]
    if with_presets and "config" not in first:
        first.insert(0, "config")
    groups: dict[str, tuple[str, list[str]]] = {"main": ("The flags of most commands.", first)}
    others = []
    for each in fields:
        heading = each.path.rpartition(".")[0].replace(".", " ")
        if each.flag in first:
            continue
        if heading:
            about = " ".join((type(each.part).__doc__ or "").split())
            groups.setdefault(heading, (re.split(r"(?<=\.) (?=[A-Z])", about)[0], []))[1].append(each.flag)
        else:
            others.append(each.flag)
    groups["other" if first else ""] = ("", others)
    return {heading: group for heading, group in groups.items() if group[1]}


def _program() -> str | None:
    """Name the running command, such as `python -m dqn_memory.train`; None: the name of the file."""
    spec = sys.modules["__main__"].__spec__
    return None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"


def _rebuilt(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Copy a config with other values, by path."""
    new: dict[str, Any] = {}
    for name in field_types(type(config)):
        value, path = getattr(config, name), f"{prefix}{name}"
        new[name] = _rebuilt(value, values, f"{path}.") if is_dataclass(value) else values.get(path, value)
    return replace(config, **new)


@cache
def _docs(config_class: type) -> dict[str, str]:
    """Read the text below each field as one line; tyro itself would keep the line breaks."""
    owners = [owner for owner in reversed(config_class.__mro__) if is_dataclass(owner)]
    found = [field for owner in owners for field in docstring_parser.parse_from_object(owner).params]
    return {field.arg_name: " ".join((field.description or "").split()) for field in found}


# ---- numbers ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bounds:
    """Bounds of a number: `rate: Annotated[float, Bounds(0, 1)]`; None is no bound."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Tell whether a value is within the bounds."""
        compared = zip((operator.ge, operator.le, operator.gt, operator.lt), vars(self).values(), strict=True)
        return all(bound is None or compare(value, bound) for compare, bound in compared)

    def __str__(self) -> str:
        """Give the words after "must", as in "be at least 1"."""
        if self == Bounds(0):
            return "not be negative"
        if self == Bounds(self.least, self.most) and None not in (self.least, self.most):
            return f"lie between {self.least} and {self.most}"
        words = {"be at least": self.least, "be above": self.above, "be at most": self.most, "be below": self.below}
        limits = [f"{word} {bound}" for word, bound in words.items() if bound is not None]
        return " and ".join(limits[:1] + [word.removeprefix("be ") for word in limits[1:]])


def check_numbers(config: Any) -> None:
    """Check that every number in a tree of dataclasses is finite and lies within its `Bounds`.

    Raises:
        UserError: a number is not; the error names the flag of the first one.
    """
    for each in fields_of(config):
        for number in each.value if isinstance(each.value, tuple) else (each.value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{_dashed(each.flag)} {number} must be a finite number")
            for bounds in _bounds(each.annotation):
                if number is not None and not bounds.holds(number):
                    raise UserError(f"{_dashed(each.flag)} {number} must {bounds}")
            if isinstance(number, int) and abs(number) >= 2**63:  # torch and numpy have no larger ones
                raise UserError(f"{_dashed(each.flag)} {number} must be below {2**63}")


def _bounds(annotation: Any) -> Iterator[Bounds]:
    """Find the bounds in an annotation, inside unions and tuples too."""
    yield from (item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, Bounds))
    for inner in get_args(annotation):
        if inner is not Ellipsis and not isinstance(inner, str):
            yield from _bounds(inner)


def check_goal(config: Any) -> None:
    """Refuse --stop-at-... without evaluations during training."""
    every = config.evaluation.evaluate_every
    for name, goal in vars(config.evaluation).items():
        if name.startswith("stop_at") and goal is not None and not 0 < every <= config.total_steps:
            flag = name.replace("_", "-")
            raise UserError(
                f"--{flag} {goal} needs evaluations on the way, but --evaluate-every is {every}; use a number from 1 "
                f"to --total-steps, {config.total_steps}"
            )


def check_parts(config: Any, *parts: str) -> None:
    """Call `check` of these parts."""
    for part in parts:
        with flags_of(config, part):
            getattr(config, part).check()


@contextmanager
def flags_of(config: Any, part: str, **others: str) -> Iterator[None]:
    """Replace field names by flags in errors that are raised inside.

    A part knows the names of its fields but not their flags. `others` are the flags of further names.
    """
    try:
        yield
    except UserError as error:
        inside = sorted(
            (each for each in fields_of(config) if each.path.startswith(f"{part}.")),
            key=lambda each: -each.path.count("."),  # the less deep of two fields with one name wins
        )
        flags = {each.name: each.flag for each in inside} | others

        def flag(found: re.Match[str]) -> str:
            name = (found[1] or found[2]).replace("-", "_")
            return _dashed(flags[name]) if name in flags else found[0]

        raise UserError(FLAG.sub(flag, str(error))) from None


def _dashed(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"
