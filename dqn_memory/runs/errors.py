"""The errors of `envs.errors`, and the advice for a run that cannot be continued."""

import shlex
from pathlib import Path

from envs.errors import SHORT_OF_MEMORY, UserError, check_known, near_names, one_line_errors, require

__all__ = ["SHORT_OF_MEMORY", "UserError", "check_known", "near_names", "one_line_errors", "require", "train_anew"]


def train_anew(run: Path) -> str:
    """Write the advice for a run that cannot be continued."""
    return f"train it anew with --config {shlex.quote(str(run / 'config.toml'))} and another --run"
