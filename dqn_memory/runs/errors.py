"""Errors that a user can cause: one sentence, no traceback."""

from envs.errors import UserError, near_names, one_line_errors

__all__ = ["UserError", "near_names", "one_line_errors"]
