"""Import the modules that a run or a study names, if this is allowed.

A module is imported only if the command line (`--plugin`) or a caller names it, or if this user started the run or the
study with it. `$XDG_STATE_HOME/dqn-memory` (default ~/.local/state/dqn-memory) remembers runs and studies that were
started with modules, by the real path and the SHA-256 of their settings. A copy is another run.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Settings
from envs.cli import load_plugins
from envs.console import say
from envs.files import parse_json, sha256, write_atomic
from envs.packages import ORIGINAL, is_known, load_wanted

MAX_ENTRIES = 4096  # remembered runs and studies; the oldest are forgotten
MAX_ENTRY_BYTES = 1 << 16


def module_of(env: str | None) -> list[str]:
    """List the module in an environment's id "module:Id-v0"; the list is empty for an id without a module."""
    module, colon, _ = (env or "").rpartition(":")
    return [module] if colon and not str(env).startswith(ORIGINAL) else []


def other_envs(config: Any) -> tuple[str, ...]:
    """List the environments of `--eval-env`, which the configs of some trainers lack."""
    others: tuple[str, ...] = getattr(getattr(config, "evaluation", None), "others", ())
    return others


def modules_of(config: Any) -> list[str]:
    """List the modules in a trainer's config: its plugins, and the modules of its environments' ids."""
    envs = *config.environment.ids, *other_envs(config)
    return list(dict.fromkeys([*getattr(config, "plugin", ()), *(name for env in envs for name in module_of(env))]))


def load_named(argv: Settings) -> None:
    """Import the modules in --plugin, --env and --eval-env of a command line, or in the same settings by name."""
    if isinstance(argv, Mapping):
        plugins, *several = (
            [given] if isinstance(given := argv.get(name) or (), str) else given
            for name in ("plugin", "env", "eval_env")
        )
        envs = [str(env) for named in several for env in named]
        load_plugins([*map(str, plugins), *(name for env in envs for name in module_of(env))])
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--env", "--eval-env", action="append", default=[])
    found = parser.parse_known_args(list(argv))[0]
    load_plugins([*found.plugin, *(name for env in found.env for name in module_of(env))])


def load_modules(config: Any, who: str, *files: Path) -> None:
    """Import the modules in a trainer's config that `load_wanted` allows or that are remembered for one of `files`.

    Args:
        config: config of a trainer.
        who: the run or study in an error, as in "the run runs/a".
        files: config.toml of the run and study.toml of its study.

    Raises:
        UserError: the config names a module that is not allowed; the error names --plugin.
    """
    wanted = modules_of(config)
    if any(name not in sys.modules for name in wanted):
        own = {name for file in files for name in remembered_modules(file)}
        load_plugins(name for name in wanted if name in own and name not in sys.modules)
    load_wanted(wanted, who)


# ---- runs and studies that this user started -------------------------------------------------------------------------
def remember_modules(file: Path, modules: Iterable[str]) -> None:
    """Remember that this user started the run or study of this file with these modules; print a failure."""
    places = {name: _place(name) for name in modules if not is_known(name)}
    if not places:
        return
    try:
        digest, entry = sha256(file.read_bytes()), _entry(file)
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(entry, json.dumps({"file": str(file.resolve()), "sha256": digest, "modules": places}).encode())
        _forget_oldest(entry.parent)
    except (OSError, RuntimeError, UserError) as error:
        _warn(f"{error}; runs with modules of your own will need --plugin again")


def remembered_modules(file: Path) -> list[str]:
    """List the modules that are remembered for this file, without those that are at another place now.

    The list includes modules that are missing now, so that an import fails with their names.
    """
    with suppress(OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        entry = _entry(file)
        if file.is_file() and entry.is_file() and entry.stat().st_size <= MAX_ENTRY_BYTES:
            saved = parse_json(entry.read_bytes())
            if (saved["file"], saved["sha256"]) == (str(file.resolve()), sha256(file.read_bytes())):
                return [name for name, place in saved["modules"].items() if _place(name) in (place, None)]
    return []


def _entry(file: Path) -> Path:
    """Give the path of the entry for a file of settings; a RuntimeError says that this user has no home."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    home = given if given.is_absolute() else Path.home() / ".local" / "state"
    return home / "dqn-memory" / "started" / f"{sha256(os.fsencode(file.resolve()))[:32]}.json"


def _place(name: str) -> str | None:
    """Find the file of a module, or the folder of a package, without running code of it or of its parents."""
    top, *inner = name.split(".")
    with suppress(ImportError, ValueError, AttributeError, TypeError, OSError):
        first = None if top in sys.modules else PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
        spec = first or find_spec(top)
        for part in inner:
            spec = spec and PathFinder.find_spec(part, list(spec.submodule_search_locations or ()))
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        return next((str(Path(place).resolve()) for place in places if place is not None), None)
    return None


def _forget_oldest(folder: Path) -> None:
    entries = [Path(each) for each in os.scandir(folder)]
    if len(entries) > MAX_ENTRIES:
        with suppress(OSError):  # another process may have been faster
            for oldest in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - MAX_ENTRIES]:
                oldest.unlink(missing_ok=True)


@cache
def _warn(sentence: str) -> None:
    say(f"cannot remember that you started this: {sentence}", file=sys.stderr)
