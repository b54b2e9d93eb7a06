"""Tiny runs of GLAM in Blinking Catch."""

from __future__ import annotations

from pathlib import Path

from world_models.glam.train import main

TINY = (
    "--config glam/smoke --env Pixel/BlinkingCatch-v0 --grid 4 --balls 2 --screen 8 --num-envs 2 --width 8 --hidden 8 "
    "--learning-starts 32 --num-eval-envs 1 --evaluate-every 0 --log-every 16 --max-episode-steps 12"
)


def flags(run: Path, *more: str, steps: int = 64) -> list[str]:
    """A command line of the training script."""
    return [*TINY.split(), "--run", str(run), "--total-steps", str(steps), *more]


def trained(folder: Path, *more: str, steps: int = 64) -> Path:
    """A run that has ended."""
    main(flags(folder, *more, steps=steps))
    return folder
