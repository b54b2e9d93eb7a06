"""Deep Q-learning with interchangeable memory blocks for partially observable environments.

    from dqn_memory.api import Agent, evaluate, load_run, train

Importing the package imports no torch: `dqn_memory.Agent` is loaded at its first use.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqn_memory.agent import Agent

__all__ = ["Agent"]
__version__ = "0.1.0"


def _check_envs() -> None:
    """Say in one sentence that another module or package `envs` hides the one that lies beside this package."""
    spec = find_spec("envs")
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    found = next(filter(None, places), "none")
    if Path(found).resolve().parent == Path(__file__).resolve().parent.with_name("envs"):
        return
    sentence = (
        f"dqn-memory has a package envs of its own, but Python finds {found} by that name: rename or move that, or "
        "work in another folder"
    )
    if sys.argv[:1] == ["-m"]:  # a script of this package is about to run
        print(f"error: {sentence}", file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(sentence)


def _leave_working_directory() -> None:
    """Take the working directory, where `python -m` looks first, off the path of this package's scripts.

    A folder `wandb` there, perhaps of somebody else, would be imported in place of an installed package. `--plugin`
    looks into the working directory all the same.
    """
    here, home = Path.cwd(), Path(__file__).resolve().parents[1]
    scripts = ("dqn_memory.", "envs.", "world_models.")
    runs_ours = sys.orig_argv[1:2] == ["-m"] and f"{(*sys.orig_argv, '')[2]}.".startswith(scripts)
    if runs_ours and sys.path and Path(sys.path[0]).absolute() == here and here.resolve() != home:
        del sys.path[0]


_check_envs()
_leave_working_directory()


def __getattr__(name: str) -> Any:
    if name == "Agent":
        from dqn_memory.agent import Agent

        return Agent
    raise AttributeError(f"module 'dqn_memory' has no attribute {name!r}")
