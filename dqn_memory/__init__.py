"""Deep Q-learning with interchangeable memory blocks for partially observable environments.

    from dqn_memory.api import Agent, evaluate, load_run, train

Importing the package imports no torch: `dqn_memory.Agent` is loaded at its first use. `dqn_memory.blocks` needs torch
and nothing else of the suite; all other parts need the package `envs` that lies beside this one.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqn_memory.agent import Agent

__all__ = ["Agent"]
__version__ = "0.1.0"


def _check_envs() -> None:
    """Fail with one sentence if another module or package hides the `envs` beside this package."""
    spec = find_spec("envs")
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    place = next(filter(None, places), "none")
    if Path(place).resolve().parent == Path(__file__).resolve().parent.with_name("envs"):
        return
    sentence = (
        f"dqn-memory has a package envs of its own, but Python finds {repr(place)[1:-1]} by that name: rename or move "
        "that, or work in another folder"
    )
    if _starts_script():
        print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2)
    raise ImportError(sentence)


def _starts_script() -> bool:
    """Whether Python is about to run a script of this suite (`python -m`)."""
    given = sys.orig_argv[sys.orig_argv.index("-m") :] if "-m" in sys.orig_argv else []
    return sys.argv[:1] == ["-m"] and given[1:2] != [] and given[1].split(".")[0] in ("dqn_memory", "world_models")


def _leave_working_directory() -> None:
    """Remove the working directory, where `python -m` looks first, from the path of this package's scripts.

    A folder `wandb` there would be imported in place of the installed package. `--plugin` still looks into the working
    directory.
    """
    with suppress(FileNotFoundError):  # the working directory was deleted
        here, home = Path.cwd(), Path(__file__).resolve().parents[1]
        if sys.path and Path(sys.path[0]).absolute() == here and here.resolve() != home:
            del sys.path[0]


if _starts_script():
    _check_envs()
    _leave_working_directory()


def __getattr__(name: str) -> Any:
    if name == "Agent":
        from dqn_memory.agent import Agent

        return Agent
    raise AttributeError(f"module 'dqn_memory' has no attribute {name!r}")
