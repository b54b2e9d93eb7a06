"""Look into a GLAM checkpoint, at what it imagines: `python -m world_models.glam.inspect RUN`.

Plays episodes and imagines a part of the first, under the actions that were really taken. Writes into RUN/inspect:

- imagined.png and imagined.gif: imagined and real frames (the paper's Figure 7)
- inspect.json: the numbers, among them the errors of imagination on a window and with carried state, by the number of
  steps ahead, over all episodes; these are printed as a table too
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
from envs.files import check_inside, make_inside, write_atomic
from envs.terminal import say
from world_models.glam.acting import GlamAgent
from world_models.glam.foresight import compare_memories, foresight_table, imagine_episode, play_episode
from world_models.glam.plots import rollout_strip, save_animation
from world_models.settings import WorldModelComputeConfig


@dataclass(frozen=True)
class Args(RunArgument):
    """Draw what a run's latest checkpoint imagines and what really happened; compare both forms of imagination, on a
    window and with carried state, by the steps ahead.

    What it wrote into RUN/inspect before is replaced.
    """

    start: Annotated[int, Bounds(0)] | None = None
    """Step of the episode whose frame is the last one that is seen (None: as many as the model's context)."""
    imagined: Annotated[int, Bounds(1, 64)] | None = None
    """Steps to imagine (None: 16, or as many as the episode has after the start)."""
    episodes: Annotated[int, Bounds(1, 10**9)] = 3
    """Episodes in which both forms of imagination are compared; the first is drawn."""
    max_episode_steps: Annotated[int, Bounds(1)] = 500
    """Steps of an episode that are played at most."""
    policy: Literal["sampled", "greedy"] = "sampled"
    """`sampled` draws actions as in training, `greedy` takes the most probable ones."""
    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the first episode and of what is drawn; every further episode's is one more."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
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
    found = GlamAgent.load(run, device)
    backend.log_backend(found.backend, device)
    greedy = args.policy == "greedy"
    episodes = [play_episode(found, args.seed + i, args.max_episode_steps, greedy) for i in range(args.episodes)]
    episode = episodes[0]
    start = min(found.config.model.context, len(episode) - 1) if args.start is None else args.start
    horizon = min(16, max(len(episode) - start, 1)) if args.imagined is None else args.imagined
    foreseen = imagine_episode(found, episode, start, horizon, args.seed)
    forms = compare_memories(found, episodes, horizon, args.seed)
    env, sequence = found.config.environment.env, found.config.model.sequence
    about = f"{sequence} in {env} at step {found.step:,}"
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
        "step": found.step, "env": env, "sequence": sequence, "seed": args.seed, **backend.facts(found.backend),
        "episode_return": episode.episode_return, "episodes": args.episodes, "start": start, "imagined": horizon,
        "errors": error, "reward": foreseen.reward.tolist(),
        "imagined_reward": foreseen.imagined_reward.tolist(), "end": foreseen.end.tolist(), "forms": forms,
    }  # fmt: skip
    write_atomic(folder / "inspect.json", json.dumps(facts, indent=1).encode())
    say(f"{run}: {about}, an episode of return {episode.episode_return:.2f}")
    say("\n".join(f"{name}: {value:.3g}" for name, value in error.items()))
    say(foresight_table(forms))
    say("\n".join(f"wrote {folder / name}" for name in ("imagined.png", "imagined.gif", "inspect.json")))


if __name__ == "__main__":
    main()
