"""Look into a GLAM checkpoint: what it imagines, and how its losses went: `python -m world_models.glam.inspect RUN`.

Plays episodes and imagines a part of the first, under the actions that were really taken. Writes into RUN/inspect:

- imagined.png and imagined.gif: imagined and real frames (the paper's Figure 7)
- losses.png: every part of the loss with its fluctuation around the trend (Figure 6), also of other runs
- inspect.json: the numbers, among them the errors of imagination on a window and with carried state, by the number of
  steps ahead, over all episodes; these are printed as a table too
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dqn_memory.analysis.plots import save
from dqn_memory.runs import backend
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run, run_folder
from dqn_memory.runs.settings import Repeatable
from envs.files import disk_errors, write_atomic
from world_models.glam.acting import Trained, load
from world_models.glam.config import ComputeConfig
from world_models.glam.foresight import (
    EpisodeRollout,
    MemoryComparison,
    compare_memories,
    imagine_episode,
    play_episode,
)
from world_models.glam.plots import WINDOW, Curve, curves, loss_panels, rollout_strip, save_animation

MOST = 16  # imagined steps by default
MOST_DRAWN = 64


@dataclass(frozen=True)
class Args:
    """Draw what a run's latest checkpoint imagines and what really happened, and the run's losses; compare both forms
    of imagination, on a window and with carried state, by the steps ahead.
    """

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    compare: Repeatable = ()
    """Other runs whose losses are drawn too."""
    start: int | None = None
    """Step of the episode whose frame is the last one that is seen (None: as many as the model's context)."""
    imagined: int | None = None
    """Steps to imagine (None: 16, or as many as the episode has after the start)."""
    episodes: int = 3
    """Episodes in which both forms of imagination are compared; the first is drawn."""
    max_episode_steps: int = 500
    """Steps of an episode that are played at most."""
    greedy: bool = False
    """Play the most probable actions in place of drawn ones."""
    seed: int = 0
    """Seed of the first episode and of what is drawn; every further episode's is one more."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""

    def check(self) -> None:
        """One sentence for numbers that make no sense."""
        least_of = {"imagined": 1, "episodes": 1, "max_episode_steps": 1, "start": 0, "seed": 0, "threads": 1}
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name} {value} must be at least {least}")
        if self.imagined is not None and self.imagined > MOST_DRAWN:
            raise UserError(f"--imagined {self.imagined} is more than the {MOST_DRAWN} steps that a picture can show")


def imagine(args: Args, found: Trained) -> tuple[EpisodeRollout, MemoryComparison, float]:
    """Draw what was imagined, both forms of imagination compared, and the return of the first episode."""
    episodes = [play_episode(found, args.seed + i, args.max_episode_steps, args.greedy) for i in range(args.episodes)]
    episode = episodes[0]
    start = min(found.config.model.context, len(episode) - 1) if args.start is None else args.start
    horizon = min(MOST, max(len(episode) - start, 1)) if args.imagined is None else args.imagined
    drawn = imagine_episode(found, episode, start, horizon, args.seed)
    return drawn, compare_memories(found, episodes, horizon, args.seed), episode.episode_return


def all_losses(run: Path, others: Sequence[str]) -> dict[str, dict[str, Curve]]:
    """Read the curves of all runs by their folders' names."""
    folders = [run, *map(Path, others)]
    short = {folder: f"{folder.parent.name}/{folder.name}" if len(folders) > 1 else folder.name for folder in folders}
    if len(set(short.values())) < len(folders):
        raise UserError(f"--compare names a run twice: {', '.join(str(folder) for folder in folders)}")
    return {short[folder]: _losses(folder) for folder in folders}


def _losses(folder: Path) -> dict[str, Curve]:
    return curves(Run.open(folder, tensorboard=False).metrics(), str(folder / "metrics.jsonl"))


def draw(folder: Path, about: str, found: EpisodeRollout, losses: dict[str, dict[str, Curve]]) -> list[Path]:
    """All pictures; returns what was written."""
    error = found.errors()
    caption = (
        f"mean squared error of a colour {error['frame']:.2g} ({error['frame_unchanged']:.2g} if nothing changed), "
        f"of a reward {error['reward']:.2g} ({error['reward_zero']:.2g} if it were always 0)"
    )
    title = f"{len(found)} steps imagined from step {found.start}\n{about}"
    return [
        save(rollout_strip(found, title, caption), folder / "imagined.png"),
        save_animation(folder / "imagined.gif", found, about),
        save(loss_panels(losses, f"Parts of the world model's loss\n{about}"), folder / "losses.png"),
    ]


def numbers(found: EpisodeRollout, forms: MemoryComparison, losses: dict[str, dict[str, Curve]]) -> dict[str, Any]:
    """Collect what inspect.json has of the pictures and of both forms of imagination."""
    measured = {
        run: {
            part: {"last": float(curve.values[-1]), "fluctuation": _finite(curve.fluctuation())}
            for part, curve in parts.items()
        }
        for run, parts in losses.items()
    }
    return {
        "start": found.start, "imagined": len(found), "errors": found.errors(),
        "reward": found.reward.tolist(), "imagined_reward": found.imagined_reward.tolist(), "end": found.end.tolist(),
        "forms": forms.numbers(), "trend_window": WINDOW, "losses": measured,
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if value == value else None


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, imagine, draw."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.glam.inspect")
    args.check()
    run = run_folder(args.folder, args.run)
    losses = all_losses(run, args.compare)
    device = ComputeConfig(args.device, args.threads).start()
    found = load(run, device)
    backend.log_backend(found.backend, device)
    foreseen, forms, episode_return = imagine(args, found)
    config = found.config
    about = f"{config.model.sequence} in {config.environment.env} at step {found.step:,}"
    folder = run / "inspect"
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    written = draw(folder, about, foreseen, losses)
    facts = {"step": found.step, "env": config.environment.env, "sequence": config.model.sequence, "seed": args.seed}
    facts |= backend.facts(found.backend) | {"episode_return": episode_return}
    facts |= {"episodes": args.episodes} | numbers(foreseen, forms, losses)
    write_atomic(folder / "inspect.json", json.dumps(facts, indent=1).encode())
    print(f"{run}: {about}, an episode of return {episode_return:.2f}")
    print("\n".join(f"{name}: {value:.3g}" for name, value in foreseen.errors().items()))
    print(forms.table())
    print("\n".join(f"wrote {path}" for path in (*written, folder / "inspect.json")))


if __name__ == "__main__":
    main()
