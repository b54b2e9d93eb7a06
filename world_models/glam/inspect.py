"""Inspect the imagination of a GLAM checkpoint: `python -m world_models.glam.inspect RUN`.

Plays an episode and imagines a part of it under its real actions. Writes into RUN/inspect:

- imagined.png and imagined.gif: imagined and real frames (the paper's Figure 7)
- inspect.json: the numbers; the errors are also printed
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from dqn_memory.analysis.plots import save
from dqn_memory.runs import backend
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import RunArgument
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.console import say
from envs.files import check_inside, make_inside, write_atomic
from world_models.glam.acting import GlamAgent
from world_models.glam.foresight import imagine_episode, play_episode
from world_models.glam.plots import rollout_strip, save_animation
from world_models.settings import WorldModelComputeConfig


@dataclass(frozen=True)
class Args(RunArgument):
    """Draw imagined and real frames of a run's latest checkpoint, and measure the imagined ones.

    Older files in RUN/inspect are replaced.
    """

    start: Annotated[int, Bounds(0)] | None = None
    """Step of the last real frame before imagination (None: the model's context)."""
    imagined: Annotated[int, Bounds(1, 64)] | None = None
    """Steps to imagine (None: 16, or the steps of the episode after --start if fewer)."""
    max_episode_steps: Annotated[int, Bounds(1)] = 500
    """Maximum number of steps of the episode."""
    policy: Literal["sampled", "greedy"] = "sampled"
    """`sampled` actions as in training, or `greedy`: the most probable ones."""
    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the episode and of imagination."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, imagine, draw."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.glam.inspect")
    check_numbers(args)
    run = args.chosen_run()
    check_inside(run, "inspect")
    device = WorldModelComputeConfig(args.device, args.threads).start()
    agent = GlamAgent.load(run, device)
    backend.log_backend(agent.backend, device)
    episode = play_episode(agent, args.seed, args.max_episode_steps, args.policy == "greedy")
    start = min(agent.config.model.context, len(episode) - 1) if args.start is None else args.start
    horizon = min(16, max(len(episode) - start, 1)) if args.imagined is None else args.imagined
    foreseen = imagine_episode(agent, episode, start, horizon, args.seed)
    env, sequence = agent.config.environment.id, agent.config.model.sequence
    about = f"{sequence} in {env} at step {agent.step:,}"
    folder = make_inside(run, "inspect")
    error = foreseen.errors()
    caption = (
        f"mean squared error of a colour {error['frame']:.2g} ({error['frame_unchanged']:.2g} if nothing changed), "
        f"of a reward {error['reward']:.2g} ({error['reward_zero']:.2g} if it were always 0)"
    )
    save(
        rollout_strip(foreseen, f"{horizon} steps imagined from step {start}\n{about}", caption),
        folder / "imagined.png",
    )
    save_animation(folder / "imagined.gif", foreseen, about)
    facts = {
        "step": agent.step, "env": env, "sequence": sequence, "seed": args.seed, **backend.facts(agent.backend),
        "episode_return": episode.episode_return, "start": start, "imagined": horizon,
        "errors": error, "reward": foreseen.reward.tolist(),
        "imagined_reward": foreseen.imagined_reward.tolist(), "end": foreseen.end.tolist(),
    }  # fmt: skip
    write_atomic(folder / "inspect.json", json.dumps(facts, indent=1).encode())
    say(f"{run}: {about}, an episode of return {episode.episode_return:.2f}")
    say("\n".join(f"{name}: {value:.3g}" for name, value in error.items()))
    say("\n".join(f"wrote {folder / name}" for name in ("imagined.png", "imagined.gif", "inspect.json")))


if __name__ == "__main__":
    main()
