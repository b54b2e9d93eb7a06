"""World models, UniZero and GLAM, from the same memory blocks: for Atari, Gymnasium and this suite's environments."""

import dqn_memory  # noqa: F401  (it checks that the package envs is the one that lies beside it)
