"""Worlds from gridverse YAML files."""
