"""One run: its folder, settings, seeds, checkpoints, metrics, and the trainer that keeps them."""

from dqn_memory import _check_envs

_check_envs()
