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
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, make_dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import docstring_parser
import tomli_w
import tyro

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.migration import SCHEMA
from dqn_memory.runs.toml import NONE, defaults, field_types, from_toml
from dqn_memory.runs.trackers import check_trackers
from envs.files import read_text
from envs.registry import WORLDS

if TYPE_CHECKING:  # scripts that compute nothing, such as the runner of studies, go without torch
    import torch

C = TypeVar("C")
Keys = tuple[str, ...]
Settings = Sequence[str] | Mapping[str, Any]  # a command line, or its flags by name, with underscores
Repeatable = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
Engine = Literal["eager", "compile", "cudagraph"]
CONFIG_HELP = "A TOML file, or a shipped preset: {}. Of several the later one wins."
FLAG = re.compile(r"--([a-z][a-z0-9-]*)|^(\w+)")  # a message of an environment begins with its keyword's bare name
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
    return parse_flags(config, arguments, inspect.cleandoc(config_class.__doc__ or ""), prog, names)


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
            raise UserError(f"--config {name} is a preset of {script_of(preset_trainer(preset))}")
    return from_toml(config_class, read_text(path, "the config file "), str(path), base)


def _trainer(config_class: type) -> str | None:
    return getattr(config_class, "trainer", None)


def _settings(config: C, settings: Mapping[str, Any], presets: Path) -> C:
    """Lay presets and then settings over a config: {"config": "demo", "total_steps": 5_000, "prior": "local"}."""
    given = dict(settings)
    presets_given = given.pop("config", ()) if "config" not in field_types(type(config)) else ()
    for name in [presets_given] if isinstance(presets_given, str | Path) else presets_given:
        config = read_config(type(config), str(name), presets, config)
    paths = {flag: path for path, flag in flag_names(config).items()}
    table: dict[str, Any] = {"schema": SCHEMA} if hasattr(config, "trainer") else {}
    for flag, value in given.items():
        if flag not in paths:
            raise UserError(near_names("setting", flag, ["config", *paths]))
        *holders, name = paths[flag].split(".")
        place = reduce(lambda inner, holder: inner.setdefault(holder, {}), holders, table)
        place[name] = NONE if value is None else _plain(flag, value)
    return from_toml(type(config), tomli_w.dumps(table), "settings", config)


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
    for heading, (about, members) in _groups(default, flags, presets is not None).items():
        group = make_dataclass("Group", [entries[flag] for flag in members], frozen=True)
        told = tyro.conf.arg(name=heading, help=about)
        top += [(heading.replace(" ", "_") or "all", Annotated[group, told], field(default=group()))]
    parsed: Any = tyro.cli(
        make_dataclass(type(default).__name__, top, frozen=True), args=argv, prog=prog or _program(),
        description=description, config=(tyro.conf.OmitArgPrefixes,),
    )  # fmt: skip
    values = {flag: value for group in vars(parsed).values() for flag, value in vars(group).items()}
    return _rebuild(default, {path: values[flag] for path, flag in flags.items()}, "")


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


def _bounds(annotation: Any) -> Iterator[Bounds]:
    """Find the bounds in an annotation, inside unions and tuples too."""
    yield from (item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, Bounds))
    for inner in get_args(annotation):
        if inner is not Ellipsis and not isinstance(inner, str):
            yield from _bounds(inner)


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


# ---- parts that every trainer's config has ---------------------------------------------------------------------------
@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment, and how many copies of it run."""

    env: str = "Gridverse/Memory-5x5-v0"
    """An environment of this suite, or any Gymnasium id with discrete actions; ids of MiniGrid, POPGym and Memory Gym
    need no more than their package."""
    num_envs: Annotated[int, Bounds(1)] = 16
    """Parallel copies N; one iteration of training is N environment steps."""
    time_limit: Annotated[int, Bounds(1)] | None = None
    """Steps after which a training episode is truncated (None: the environment's own limit, which evaluations keep)."""
    path: str | None = None
    """File that the environment is read from, where it takes one."""
    observation_key: str | None = None
    """Which entry of a dictionary observation the agent sees (None: its only Box, if there is one)."""
    observe: Literal["observation", "state"] = "observation"
    """`state` shows the state in place of the observation: what the same agent does where nothing is hidden
    (environments of this suite)."""
    env_workers: Annotated[int, Bounds(1)] | None = None
    """Processes that step Gymnasium environments, each its share of the copies (None: this one does). The results are
    the same. It pays where a step of all copies takes some milliseconds; asking processes costs about 0.2 ms."""

    def completed(self) -> EnvironmentConfig:
        """Choose the only Box of a dictionary observation, and say so, where no key is given."""
        from envs.packages import make_env
        from envs.spaces import only_box

        if self.observation_key is not None or self.env.startswith("ALE/") or self.env.removeprefix("envs:") in WORLDS:
            return self
        env = make_env(self.env, **self.kwargs(training=False))
        key = only_box(env.observation_space)
        env.close()
        if key is None:
            return self
        print(f"{self.env} shows a dictionary; the agent sees its entry {key!r} (--observation-key)", file=sys.stderr)
        return replace(self, observation_key=key)

    def kwargs(self, training: bool = True) -> dict[str, Any]:
        """Give the keywords of the environment's constructor.

        Raises:
            UserError: the environment cannot have what is asked for.
        """
        ours = self.env.removeprefix("envs:") in WORLDS
        if self.env_workers is not None and (ours or self.env.startswith("ALE/")):
            how = "all copies at once, as tensors" if ours else "its copies in threads of its own"
            raise UserError(f"--env-workers {self.env_workers}: {self.env} steps {how}; leave the flag out")
        if self.observe == "state" and not ours:
            raise UserError(
                f"--observe state needs an environment of this suite, which {self.env} is not; use --observe "
                "observation"
            )
        limit = "time_limit" if ours else "max_episode_steps"  # the keyword of gymnasium.make
        given = {limit: self.time_limit if training else None, "path": self.path}
        if self.env.startswith("ALE/"):
            from envs.atari import AtariConfig

            frames = AtariConfig().frame_skip * (given.pop(limit) or 0)
            given["most_frames"] = frames or None
        given |= {"observe": self.observe if self.observe == "state" else None}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class OutputConfig:
    """Where a run lives and what it writes."""

    run: str | None = None
    """Run folder (None: runs/ENV/VARIANT/seed_SEED); it must not hold a run yet."""
    log_every: Annotated[int, Bounds(0)] = 2_000
    """Environment steps between log lines (0: none)."""
    track: tuple[str, ...] = ("tensorboard",)
    """Who is told of them, besides metrics.jsonl: any of tensorboard, csv (a file metrics.csv), wandb (Weights &
    Biases) and trackers of a --plugin; or none."""
    checkpoint_every: Annotated[int, Bounds(0)] = 50_000
    """Environment steps between checkpoints (0: only at the end)."""
    checkpoint_replay: Literal["full", "none"] = "full"
    """`none` leaves the replay out of checkpoints: small files, but a resumed run is no longer exact."""
    max_repeated_actions: Annotated[int, Bounds(0)] | None = 1_000_000
    """Environments that cannot be copied (Gymnasium's, Atari's) are resumed by taking all actions since their seeds
    again. A checkpoint that would need more of them starts new episodes, which a resume then begins at (0: every
    checkpoint does; None: none does)."""

    def check(self) -> None:
        """Refuse trackers that cannot be had."""
        check_trackers(self.track)


@dataclass(frozen=True)
class ComputeConfig:
    """Where and how tensors are computed."""

    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: Annotated[int, Bounds(1)] | None = None
    """CPU threads of torch (None: torch's own choice)."""
    engine: Engine = "eager"
    """How networks are executed; every engine computes the same function."""

    def start(self) -> torch.device:
        """Set what float sums depend on (number of threads, form of products) and give the device."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        set_tf32(getattr(self, "tf32", False))
        return self.torch_device()

    def check(self) -> None:
        """One sentence for a device or an engine that cannot be had, on this machine or at all."""
        check_numbers(self)
        device = self.torch_device()
        if self.engine == "cudagraph" and device.type != "cuda":
            raise UserError("--engine cudagraph needs --device cuda; use another engine on a CPU")
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch chooses it
        if self.engine == "compile" and sys.platform != "win32" and shutil.which(compiler) is None:
            raise UserError(
                f"--engine compile needs a C++ compiler, and there is no {compiler} here; use --engine eager"
            )

    def torch_device(self) -> torch.device:
        """Give the device, or one sentence that says why it cannot be used."""
        import torch

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise UserError(f"--device {self.device} is not a device of torch; use cpu, cuda or auto") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"--device {self.device}: torch sees no CUDA device here; use cpu")
        try:
            torch.Generator(device)  # every trainer has one there
        except RuntimeError:
            raise UserError(f"--device {self.device} cannot be used here; use cpu, cuda or auto") from None
        return device


def set_tf32(allowed: bool) -> None:
    """Whether an accelerator may round float32 factors to TF32's 10 bits of mantissa; no effect on a CPU.

    torch by itself rounds in cuDNN's convolutions and recurrent layers and not in matrix products, so that neither
    "float32" nor "tf32" would be true of a whole network.
    """
    import torch

    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
