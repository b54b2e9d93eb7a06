"""One run: its folder, settings, seeds, checkpoints and metrics, and the base class of all trainers."""

from dqn_memory import _check_envs

_check_envs()
