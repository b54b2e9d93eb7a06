"""Import packages of the suite's extras. An error for a missing package names its extra.

Write such imports inside `with extra("plots"):`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from envs.console import say

EXTRAS = {  # the modules of each extra, as in pyproject.toml
    "plots": ("matplotlib", "PIL", "scipy", "markdown"),
    "atari": ("ale_py",),
    "tensorboard": ("tensorboard",),
    "fast": ("numba", "llvmlite"),
    "sb3": ("sb3_contrib", "stable_baselines3"),
    "torchrl": ("torchrl", "tensordict"),
}
OURS = ("dqn_memory", "envs", "world_models")


class MissingExtra(ImportError):
    """A package of an extra is not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import packages of an extra.

    Raises:
        MissingExtra: one of them is not installed. A command of the suite prints the sentence and exits instead.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[name]:
            raise
        sentence = missing(package, name)
        command = getattr(sys.modules.get("__main__"), "__spec__", None)
        if command is not None and command.name.partition(".")[0] in OURS:
            say(f"error: {sentence}", file=sys.stderr)
            raise SystemExit(2) from None
        raise MissingExtra(sentence) from None


def missing(package: str, name: str) -> str:
    """Write the sentence for a package that is not installed."""
    return f"{package} is not installed; the extra {name!r} brings it: pip install '.[{name}]' in dqn-memory's folder"


def has_extra(name: str) -> bool:
    """Tell whether the packages of an extra are installed."""
    return all(find_spec(module) is not None for module in EXTRAS[name])
