"""Errors that a user can cause: one sentence, no traceback."""

from envs.errors import SHORT_OF_MEMORY, UserError, check_known, near_names, one_line_errors, require

__all__ = ["SHORT_OF_MEMORY", "UserError", "check_known", "near_names", "one_line_errors", "require"]
