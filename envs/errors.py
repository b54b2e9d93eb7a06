"""The one error that a user can cause."""


class UserError(ValueError):
    """Wrong input, told in one sentence: what, where, and what would be right."""
