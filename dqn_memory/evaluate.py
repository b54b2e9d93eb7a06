"""How well a checkpoint does: `python -m dqn_memory.evaluate runs/demo-1`.

Plays greedy episodes and prints success, return and length. A world with finitely many initial states is tried from
each of them once, which leaves no interval to give; any other is sampled, and the 95 % intervals are Wilson's for the
success rate and the normal one for the means. Success is what the world says; where it says nothing, the share of
episodes with a return above 0 stands in its place, as "positive return" (JSON: success_told is false).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dqn_memory.acting import EvalSetup, evaluate
from dqn_memory.agent import Interface, load_network, run_folder
from dqn_memory.analysis.episodes import action_names, play_in
from dqn_memory.analysis.video import check_target, save_video
from dqn_memory.config import TrainConfig
from dqn_memory.network import QNetwork, observation_spec
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.score import Score, fields, lines, place
from dqn_memory.runs.settings import ComputeConfig, set_tf32
from envs.baselines import baseline_summary


@dataclass(frozen=True)
class Args:
    """Play a run's latest checkpoint greedily and say how well it does, with 95 % intervals."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    episodes: int = 1_000
    """Episodes, unless every initial state can be tried."""
    seed: int = 0
    """Seed of the worlds."""
    env: str | None = None
    """Another world with the same observations and actions (None: the one trained in)."""
    forget: bool = False
    """Forget everything before each step: what the agent does without its memory."""
    video: str | None = None
    """Also write a video of greedy episodes: a path that ends in .gif, or in .png for an animated PNG."""
    video_episodes: int = 1
    """Episodes in the video."""
    overwrite: bool = False
    """Let the video replace an existing file."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    format: Literal["text", "json"] = "text"
    """What is printed."""


def make_arena(args: Args, config: TrainConfig, network: QNetwork) -> EvalSetup:
    """Where to evaluate; a UserError says why the network cannot act in another world."""
    setup = replace(config.eval_setup(ComputeConfig(args.device).torch_device()), reset_memory=args.forget)
    if args.env is None:
        return setup
    kwargs = replace(config.environment, env=args.env, path=None).kwargs(training=False)
    setup = replace(setup, env=args.env, env_kwargs=kwargs)
    other = Interface.of(args.env, kwargs, setup.observation_key)
    spec = observation_spec(other.encoded)
    if (spec, other.num_actions) != (network.spec, network.num_actions):
        raise UserError(
            f"--env {args.env} has {_form(spec, other.num_actions)}, but the network was trained in "
            f"{config.environment.env} with {_form(network.spec, network.num_actions)}"
        )
    return setup


def _form(spec: Any, num_actions: int) -> str:
    words = f", {spec.vocabulary} tokens" if spec.vocabulary else ""
    return f"{spec.kind} observations of shape {spec.shape}{words}, and {num_actions} actions"


def as_text(args: Args, where: str, score: Score, known: str) -> str:
    """A few lines for people; `known` says what others reach in this world."""
    if score.exhaustive:
        how = f"exhaustive: each of the {score.episodes:,} initial states of the deterministic world once"
    else:
        how = f"sampled: {score.episodes:,} episodes with seed {args.seed}, 95 % intervals"
    success, *others = lines(score)
    success += f"   {int(score.success.sum()):,} of {score.episodes:,}{known}"
    return "\n".join([where, how, success, *others])


def as_json(args: Args, facts: dict[str, Any], score: Score) -> str:
    """One object for programs."""
    about = facts | {"episodes": score.episodes, "exhaustive": score.exhaustive, "seed": args.seed}
    about["success_told"] = score.told
    return json.dumps(about | fields(score), indent=1)


def check(args: Args) -> None:
    """One sentence for numbers that make no sense, and for a video that could not be written."""
    for name, value in (("episodes", args.episodes), ("video-episodes", args.video_episodes)):
        if value < 1:
            raise UserError(f"--{name} {value} must be at least 1")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed} must not be negative")
    if args.video is not None:
        check_target(Path(args.video), args.overwrite)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, print."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.evaluate")
    check(args)
    folder = run_folder(args.folder, args.run)
    set_tf32(False)
    network, config, step = load_network(folder, ComputeConfig(args.device).torch_device())
    setup = make_arena(args, config, network)
    episodes = play_in(setup, network, args.seed, args.video_episodes, draw=True) if args.video else []
    score = evaluate(network, setup, args.episodes, args.seed)
    architecture = config.network.architecture
    if args.format == "json":
        facts = {"run": str(folder), "step": step, "architecture": architecture, "env": setup.env}
        print(as_json(args, facts | {"forget": setup.reset_memory}, score))
    else:
        known = baseline_summary(float(score.success.mean()), setup.env, setup.env_kwargs)
        where = f"{folder} at step {step:,}: {architecture} in {place(setup.env, setup.reset_memory)}"
        print(as_text(args, where, score, known))
    if args.video:
        save_video(Path(args.video), episodes, action_names(setup))
        print(f"wrote {args.video}", file=sys.stderr)


if __name__ == "__main__":
    main()
