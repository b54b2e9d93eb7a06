"""What a run is made of: dataclass defaults < `--config NAME|PATH` < explicit flags, and the bounds of its numbers.

    @dataclass(frozen=True)
    class TrainConfig:
        steps: Annotated[int, Bounds(1)] = 100_000
        "Environment steps."

    config = parse(TrainConfig)  # python -m ... --config memory-7x7 --total-steps 5000
    check_numbers(config)        # --steps 0 must be at least 1

A field's flag is its own name where no other field of the tree has it, else it takes the name of the field that holds
it in front. A nested field called `kind` is named after its holder: `prior.kind` is `--prior`. Fields of nested classes
need defaults; a field of the top one without a default is a required flag. Presets are for the configs of trainers,
which name theirs as the class variable `trainer`, and as `first_flags` what their --help begins with.
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
from functools import cache, reduce
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import docstring_parser
import tomli_w
import tyro

from dqn_memory.runs.errors import UserError, check_known, near_names
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.toml import SCHEMA, defaults, field_types, from_toml, members
from envs.files import read_text

C = TypeVar("C")
Keys = tuple[str, ...]
Settings = Sequence[str] | Mapping[str, Any]  # a command line, or its flags by name, with underscores
Repeatable = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
CONFIG_HELP = "A TOML file, or a shipped preset: {}. Of several the later one wins."
RULES = tyro.constructors.ConstructorRegistry()  # how flags are read
FLAG = re.compile(r"--([a-z][a-z0-9-]*)|^(\w+)")  # a message of an environment begins with its keyword's bare name
MATCHED = ("width", "head_width")  # flags that --match sets
STUDIES = "studies"  # folder of sets of runs (dqn_memory.study), which are no presets of one
PRESETS = Path(__file__).resolve().parents[2] / "configs"  # beside the package, installed or not


def parse(
    config_class: type[C],
    argv: Settings | None = None,
    presets: Path = PRESETS,
    prog: str | None = None,
    base: C | None = None,
) -> C:
    """Read a config from the command line: defaults (or `base`), then each --config in order, then the flags.

    Raises UserError for a bad config file or a combination that the config class refuses; unknown
    flags and --help end the process as argparse does. Settings by name raise a UserError in every case.
    """
    config = defaults(config_class) if base is None else base
    if isinstance(argv, Mapping):
        return _settings(config, argv, presets)
    arguments, names = list(sys.argv[1:] if argv is None else argv), None
    if trainer := _trainer(config_class):
        names = preset_names(presets, trainer)
        for name in _config_names(arguments):
            config = read_config(config_class, name, presets, config)
    parsed = parse_flags(config, arguments, inspect.cleandoc(config_class.__doc__ or ""), prog, names)
    check_sizes(parsed, [argument.partition("=")[0][2:].replace("-", "_") for argument in arguments])
    return parsed


def check_sizes(config: Any, given: Collection[str]) -> None:
    """Refuse a width that was given by its flag where a number of parameters to match would set another."""
    match = getattr(config, "match", None)
    for flag in MATCHED if match is not None else ():
        if flag in given:
            raise UserError(f"{_dashed(flag)} has no effect beside --match {match}, which sets it; leave one out")


def preset_names(presets: Path = PRESETS, trainer: str | None = None) -> list[str]:
    """Names of the shipped presets, such as "memory-7x7" or "glam/paper"; of a trainer's alone, where it has any."""
    files = set(presets.rglob("*.toml")) - set(study_files(presets).values())
    names = sorted(path.relative_to(presets).with_suffix("").as_posix() for path in files)
    return [name for name in names if preset_trainer(name) == trainer] or names


def preset_trainer(name: str) -> str:
    """Kind of run that a shipped preset is for: the name of its folder, or else a Q-network."""
    return name.rpartition("/")[0] or "q_network"


def study_files(presets: Path = PRESETS) -> dict[str, Path]:
    """Files of the shipped studies, by the names that they go by."""
    return {path.stem: path for path in (presets / STUDIES).glob("*.toml")}


def read_config(config_class: type[C], name: str, presets: Path = PRESETS, base: C | None = None) -> C:
    """Lay a preset or a TOML file over `base` (the defaults).

    Raises:
        UserError: there is no such file, or it is another trainer's or not a config.
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


def _settings(config: C, settings: Mapping[str, Any], presets: Path) -> C:
    """Lay presets and then settings over a config: {"config": "demo", "total_steps": 5_000, "prior": "local"}."""
    given, presets_known = dict(settings), ["config"] if _trainer(type(config)) else []
    presets_given = (given.pop("config", None) or ()) if presets_known else ()
    names = [presets_given] if isinstance(presets_given, str | Path) else presets_given
    if not isinstance(names, list | tuple):
        raise UserError(f"settings: config is a {type(names).__name__}; give a preset, a path or a list of them")
    for name in names:
        config = read_config(type(config), str(name), presets, config)
    paths = {flag: path for path, flag in flag_names(config).items()}
    table: dict[str, Any] = {"schema": SCHEMA} if hasattr(config, "trainer") else {}
    nothing = set[str]()  # paths that are to hold None, for which TOML has no word that no string has
    for flag, value in given.items():
        path = paths[check_known("setting", flag, [*presets_known, *paths])]
        *holders, name = path.split(".")
        if value is None:
            holder = reduce(getattr, holders, config)
            if NoneType not in members(field_types(type(holder))[name]):
                raise UserError(f"settings: {flag} cannot be None; leave it out for its default")
            nothing.add(path)
        else:
            kinds = members(field_types(type(reduce(getattr, holders, config)))[name])
            plain = _plain(flag, value)
            if isinstance(plain, float) and plain.is_integer() and int in kinds and float not in kinds:
                plain = int(plain)  # 1e6 is a million in Python, too
            reduce(lambda inner, key: inner.setdefault(key, {}), holders, table)[name] = plain
    config = from_toml(type(config), tomli_w.dumps(table), "settings", config)
    values = {path: reduce(getattr, path.split("."), config) for path in paths.values()}
    config = _rebuild(config, values | dict.fromkeys(nothing), "")
    check_sizes(config, settings)
    return config


def _plain(flag: str, value: Any) -> Any:
    """Give a value the form that a TOML file would have; numbers of numpy and torch become Python's."""
    if isinstance(value, tuple | list):
        return [_plain(flag, each) for each in value]
    if isinstance(value, Path):
        return str(value)
    value = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(value, bool | int | float | str):
        raise UserError(
            f"settings: {flag} is a {type(value).__name__}; give a number, a truth value, a string or a list"
        )
    return value


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
def flag_names(config: Any) -> dict[str, str]:
    """Flag of every settable field of a config instance: {"network.prior.mu": "mu", ...}.

    Raises TypeError (a mistake of the config's author) where two fields would share a flag.
    """
    # a nested `kind` is named by its holder, so its last word says nothing
    named = {path: path[:-1] if len(path) > 1 and path[-1] == "kind" else path for path in _leaves(config, ())}
    tails = Counter(name[-n:] for name in named.values() for n in range(1, len(name) + 1))
    flags = {".".join(path): "_".join(_shortest(name, tails)) for path, name in named.items()}
    twice = [flag for flag, count in Counter(flags.values()).items() if count > 1]
    if twice:
        raise TypeError(f"{type(config).__name__}: several fields share the flag {_dashed(twice[0])}")
    return flags


def parse_flags(
    default: C, argv: list[str], description: str, prog: str | None = None, presets: Sequence[str] | None = None
) -> C:
    """Give `default` with the flags in `argv` laid over it; tyro prints --help and its own errors.

    `presets` are those that --config names; None: there is no such flag.
    """
    flags = flag_names(default)
    entries = {flag: _entry(default, path, flag) for path, flag in flags.items()}
    if presets is not None:
        told = tyro.conf.arg(help=CONFIG_HELP.format(", ".join(presets) or "none"), metavar="NAME|PATH")
        entries["config"] = ("config", Annotated[Repeatable, told], field(default=()))
    top: list[Any] = []
    for heading, (about, shown) in _groups(default, flags, presets is not None).items():
        group = make_dataclass("Group", [entries[flag] for flag in shown], frozen=True)
        told = tyro.conf.arg(name=heading, help=about)
        top += [(heading.replace(" ", "_") or "all", Annotated[group, told], field(default=group()))]
    parsed: Any = tyro.cli(
        make_dataclass(type(default).__name__, top, frozen=True), args=argv, prog=prog or _program(),
        description=description, config=(tyro.conf.OmitArgPrefixes,), registry=RULES,
    )  # fmt: skip
    values = {flag: value for group in vars(parsed).values() for flag, value in vars(group).items()}
    return _rebuild(default, {path: values[flag] for path, flag in flags.items()}, "")


@RULES.primitive_rule
def _whole(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Let a whole number be written as 1e6 and 2.5e3, too."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int), str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


def whole_number(word: str) -> int:
    """Read a whole number; a ValueError says that it is none."""
    try:
        return int(word)
    except ValueError:
        with suppress(ValueError, OverflowError):
            if "e" in word.lower() and (number := float(word)).is_integer():
                return int(number)
        raise ValueError(f"{word!r} is no whole number; write it as 1000000 or 1e6") from None


def _groups(config: Any, flags: dict[str, str], with_presets: bool) -> dict[str, tuple[str, list[str]]]:
    """Divide flags as --help shows them: those to begin with, then by the part that holds them, by their headings."""
    first = [flag for flag in getattr(config, "first_flags", ()) if flag in flags.values() or flag == "config"]
    if with_presets and "config" not in first:
        first.insert(0, "config")
    groups: dict[str, tuple[str, list[str]]] = {"main": ("What most calls choose.", first)}
    for path, flag in flags.items():
        holder = path.rpartition(".")[0]
        if flag not in first and holder:
            about = " ".join((type(reduce(getattr, holder.split("."), config)).__doc__ or "").split())
            sentence = re.split(r"(?<=\.) (?=[A-Z])", about)[0]
            groups.setdefault(holder.replace(".", " "), (sentence, []))[1].append(flag)
    others = [flag for path, flag in flags.items() if "." not in path and flag not in first]
    return {name: group for name, group in (groups | {"other" if first else "": ("", others)}).items() if group[1]}


def _entry(config: Any, path: str, flag: str) -> tuple[str, Any, Any]:
    *holders, name = path.split(".")
    holder = reduce(getattr, holders, config)
    owner: Any = type(holder)
    told = tyro.conf.arg(name=flag, help=_docs(owner).get(name))
    return flag, Annotated[field_types(owner)[name], told], field(default=getattr(holder, name))


def _program() -> str | None:
    """Name the command that runs: `python -m dqn_memory.train`, or None for a file's own name."""
    spec = sys.modules["__main__"].__spec__
    return None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"


def _leaves(config: Any, prefix: Keys) -> Iterator[Keys]:
    for name in field_types(type(config)):
        if is_dataclass(value := getattr(config, name)):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name)


def _shortest(name: Keys, tails: Counter[Keys]) -> Keys:
    return next((name[-n:] for n in range(1, len(name)) if tails[name[-n:]] == 1), name)


def _rebuild(config: Any, values: dict[str, Any], prefix: str) -> Any:
    new: dict[str, Any] = {}
    for name in field_types(type(config)):
        value, path = getattr(config, name), f"{prefix}{name}"
        new[name] = _rebuild(value, values, f"{path}.") if is_dataclass(value) else values[path]
    return replace(config, **new)


@cache
def _docs(config_class: type) -> dict[str, str]:
    """Read the string below each field, in one line; tyro itself would keep its line breaks."""
    owners = [owner for owner in reversed(config_class.__mro__) if is_dataclass(owner)]
    found = [field for owner in owners for field in docstring_parser.parse_from_object(owner).params]
    return {field.arg_name: " ".join((field.description or "").split()) for field in found}


# ---- numbers ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bounds:
    """Where a number must lie: `rate: Annotated[float, Bounds(0, 1)]`; None is no bound."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Tell whether a value lies there."""
        compared = zip((operator.ge, operator.le, operator.gt, operator.lt), vars(self).values(), strict=True)
        return all(bound is None or compare(value, bound) for compare, bound in compared)

    def __str__(self) -> str:
        """Say what a value must do, as in "must be at least 1"."""
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
        UserError: names the flag of the first that does not.
    """
    for path, flag in flag_names(config).items():
        *holders, name = path.split(".")
        holder = reduce(getattr, holders, config)
        value, annotation = getattr(holder, name), field_types(type(holder))[name]
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{_dashed(flag)} {number} must be a finite number")
            for bounds in _bounds(annotation):
                if number is not None and not bounds.holds(number):
                    raise UserError(f"{_dashed(flag)} {number} must {bounds}")
            if isinstance(number, int) and abs(number) >= 2**63:  # torch and numpy hold no larger ones
                raise UserError(f"{_dashed(flag)} {number} must be below {2**63}")


def _bounds(annotation: Any) -> Iterator[Bounds]:
    """Find the bounds in an annotation, inside unions and tuples too."""
    yield from (item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, Bounds))
    for inner in get_args(annotation):
        if inner is not Ellipsis and not isinstance(inner, str):
            yield from _bounds(inner)


def check_goal(config: Any) -> None:
    """Refuse a goal that no evaluation before the end could reach."""
    every = config.evaluation.evaluate_every
    for name, goal in vars(config.evaluation).items():
        if name.startswith("stop_at") and goal is not None and not 0 < every <= config.total_steps:
            flag = name.replace("_", "-")
            raise UserError(
                f"--{flag} {goal} needs evaluations on the way, but --evaluate-every is {every}; use a number from 1 "
                f"to --total-steps, {config.total_steps}"
            )


def check_parts(config: Any, *parts: str) -> None:
    """Let these parts check themselves."""
    for part in parts:
        with flags_of(config, part):
            getattr(config, part).check()


@contextmanager
def flags_of(config: Any, part: str, **others: str) -> Iterator[None]:
    """Let what is refused inside name the flags that exist; `others` are flags of other names.

    A part of a config knows its fields' names but not their flags: where two parts share a name, the flag has the
    part's in front.
    """
    try:
        yield
    except UserError as error:
        known = _flags_by_name(config, part) | others
        raise UserError(FLAG.sub(lambda found: _real(found, known), str(error))) from None


def _flags_by_name(config: Any, part: str) -> dict[str, str]:
    """Map the last word of each path in a part to its flag; of two fields of one name, that which lies less deep."""
    flags = {path: flag for path, flag in flag_names(config).items() if path.startswith(f"{part}.")}
    deepest_first = sorted(flags, key=lambda path: -path.count("."))
    return {path.rpartition(".")[2]: flags[path] for path in deepest_first}


def _real(found: re.Match[str], known: dict[str, str]) -> str:
    name = (found[1] or found[2]).replace("-", "_")
    return _dashed(known[name]) if name in known else found[0]


def _dashed(flag: str) -> str:
    return f"--{flag.replace('_', '-')}"
