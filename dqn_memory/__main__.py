"""List the commands of the suite: `python -m dqn_memory`."""

import argparse
import ast
from collections.abc import Sequence
from pathlib import Path

from dqn_memory import __version__
from envs.console import say
from envs.errors import one_line_errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "dqn_memory",
    "dqn_memory/study",
    "envs",
    "envs/baselines",
    "world_models",
    "world_models/unizero",
    "world_models/glam",
)
OTHERS = (
    Path(__file__),
    ROOT / "dqn_memory" / "study" / "child.py",
)  # this one, and a script that commands start


def commands() -> dict[str, str]:
    """List the modules that are commands, with the first line of their docstrings."""
    modules = {}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).glob("*.py"))):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text and path not in OTHERS:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
            modules[name] = (
                (ast.get_docstring(ast.parse(text)) or "").split("\n")[0].partition(": `python")[0].rstrip(".:")
            )
    return modules


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser("python -m dqn_memory", description="List the commands of the suite.")
    parser.add_argument("--version", action="version", version=f"dqn-memory {__version__}")
    parser.parse_args(argv)
    say("\n".join(f"python -m {name:32} {about}" for name, about in commands().items()))


if __name__ == "__main__":
    main()
