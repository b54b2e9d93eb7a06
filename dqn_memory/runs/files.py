"""What a run folder keeps, and how its files are written: whole or not at all."""

import hashlib

from envs.files import TEMPORARY, disk_errors, sync_folder, write_atomic

__all__ = ["METRICS", "RAW", "TEMPORARY", "disk_errors", "sha256", "sync_folder", "write_atomic"]

# What a run folder keeps for its tables and pictures: small files, whole without its checkpoints.
METRICS = "metrics.jsonl"
RAW = ("config.toml", "environment.json", METRICS)


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
