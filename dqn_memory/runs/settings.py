"""What a run is made of: dataclass defaults < `--config NAME|PATH` < explicit flags.

    @dataclass(frozen=True)
    class TrainConfig:
        steps: int = 100_000
        "environment steps"

    config = parse(TrainConfig)             # python -m ... --config memory-7x7 --steps 5000
    text = to_toml(config)                  # complete, reloadable
    same = from_toml(TrainConfig, text, "config.toml")

Fields of nested classes need defaults; a field of the top one without a default is a required flag.
"""

import argparse
import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.flags import Repeatable, flag_names, parse_flags
from dqn_memory.runs.toml import defaults, from_record, from_toml, to_toml
from envs import cli

__all__ = [
    "PRESETS",
    "Repeatable",
    "flag_names",
    "from_record",
    "from_toml",
    "load_plugins",
    "parse",
    "preset_names",
    "read_config",
    "study_files",
    "to_toml",
]

C = TypeVar("C")
STUDIES = "studies"  # folder of sets of runs (dqn_memory.study), which are no presets of one
PRESETS = Path(__file__).resolve().parents[2] / "configs"  # beside the package, installed or not


def parse(
    config_class: type[C],
    argv: Sequence[str] | None = None,
    presets: Path = PRESETS,
    prog: str | None = None,
    base: C | None = None,
) -> C:
    """Read a config from the command line: defaults (or `base`), then each --config in order, then the flags.

    Raises UserError for a bad config file or a combination that the config class refuses; unknown
    flags and --help end the process as argparse does.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    config = defaults(config_class) if base is None else base
    for name in _config_names(arguments):
        config = read_config(config_class, name, presets, config)
    about = inspect.cleandoc(config_class.__doc__ or "")
    shipped = ", ".join(preset_names(presets)) or "none"
    return parse_flags(config, arguments, f"{about}\n\nShipped presets for --config: {shipped}.", prog)


def preset_names(presets: Path = PRESETS) -> list[str]:
    """Names of the shipped presets, such as "memory-7x7" or "paper/dtqn"."""
    files = set(presets.rglob("*.toml")) - set(study_files(presets).values())
    return sorted(path.relative_to(presets).with_suffix("").as_posix() for path in files)


def study_files(presets: Path = PRESETS) -> dict[str, Path]:
    """Files of the shipped studies, by the names that they go by."""
    return {path.stem: path for path in (presets / STUDIES).glob("*.toml")}


def read_config(config_class: type[C], name: str, presets: Path = PRESETS, base: C | None = None) -> C:
    """Lay a preset or a TOML file over `base` (the defaults)."""
    path = _find(name, presets)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the config file {path}: {reason}") from None
    return from_toml(config_class, text, str(path), base)


def load_plugins(names: Iterable[str]) -> None:
    """Import modules that register blocks or worlds from outside the package: see `envs.cli.load_plugins`.

    Raises UserError where one is missing or registers what cannot be; any other error inside a plugin keeps its
    traceback.
    """
    cli.load_plugins(names)


def _config_names(arguments: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", default=[])
    names: list[str] = parser.parse_known_args(arguments)[0].config
    return names


def _find(name: str, presets: Path) -> Path:
    shipped, path = presets / f"{name}.toml", Path(name)
    if shipped.is_file() and presets in shipped.parents:
        path = shipped
    _refuse_study(name, path, presets)
    if path.is_file():
        return path
    if path.suffix == ".toml" or path.exists():
        raise UserError(f"--config {name}: no such file")
    raise UserError(f"--config: {near_names('preset', name, preset_names(presets))}")


def _refuse_study(name: str, path: Path, presets: Path) -> None:
    for study, file in study_files(presets).items():
        if name == study or path.resolve() == file.resolve():
            raise UserError(
                f"--config {name} is a study, a set of runs, and no preset of one run; "
                f"`python -m dqn_memory.study.run {study}` carries it out"
            )
