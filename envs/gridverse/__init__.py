"""Gridverse: grid environments in which the agent sees a small window in front of it."""
