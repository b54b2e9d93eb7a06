"""Import the modules that a run or a study names, if this is allowed.

A module is imported only if the command line (`--plugin`) or a caller names it, or if the suite knows its package.
"""

import argparse
from collections.abc import Mapping
from typing import Any

from dqn_memory.runs.settings import Settings
from envs.cli import load_plugins
from envs.packages import load_wanted


def module_of(env: str | None) -> list[str]:
    """List the module in an environment's id "module:Id-v0"; the list is empty for an id without a module."""
    module, colon, _ = (env or "").rpartition(":")
    return [module] if colon else []


def load_named(argv: Settings) -> None:
    """Import the modules in --plugin and --env of a command line, or in the same settings by name."""
    if isinstance(argv, Mapping):
        plugins, env = argv.get("plugin") or (), argv.get("env")
        given = [plugins] if isinstance(plugins, str) else plugins
        load_plugins([*map(str, given), *module_of(None if env is None else str(env))])
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    found = parser.parse_known_args(list(argv))[0]
    load_plugins([*found.plugin, *(name for env in found.env for name in module_of(env))])


def load_modules(config: Any, who: str) -> None:
    """Import the modules in a trainer's config (plugins, module of its environment's id), if `load_wanted` allows it.

    `who` is the run or study in an error, as in "the run runs/a".

    Raises:
        UserError: the config names a module that is not allowed; the error names --plugin.
    """
    load_wanted(dict.fromkeys([*getattr(config, "plugin", ()), *module_of(config.environment.env)]), who)
