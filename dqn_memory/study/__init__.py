"""Studies: many runs from one file, on one machine or a cluster; a study can be stopped anywhere and continued."""

from dqn_memory import _check_envs

_check_envs()
