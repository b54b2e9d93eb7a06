"""Environments from gridverse YAML files."""
