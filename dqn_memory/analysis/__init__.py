"""Analyse trained agents: attention, recall, hindsight, figures and videos."""

from dqn_memory import _check_envs

_check_envs()
