"""World models, UniZero and GLAM, from the same memory blocks: for Atari, Gymnasium and this suite's environments."""

from dqn_memory import _check_envs

_check_envs()
