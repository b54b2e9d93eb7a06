"""Arrays of finished runs in, figures and tables out."""

from dqn_memory import _check_envs

_check_envs()
