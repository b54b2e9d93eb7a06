"""Gridverse: grid worlds that are seen through a small window in front of the agent."""
