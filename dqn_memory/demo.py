"""Train a small memory agent and show it: `python -m dqn_memory.demo`.

The training script trains a preset (configs/demo.toml); the agent is then evaluated from every initial state, and three
pictures are left in the run folder: the learning curve, what one decision drew on, and a video of the episode.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import attention_maps, sensitivity
from dqn_memory.analysis.episodes import Episode, action_names, play_in
from dqn_memory.analysis.video import Looks, save_video
from dqn_memory.config import TrainConfig
from dqn_memory.evaluation import Score, evaluate, load_network
from dqn_memory.network import QNetwork
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import Run
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.baselines import baseline_summary
from envs.terminal import say

BEACONS = (11, 12, 13, 14)  # what a Gridverse observation shows of a beacon, one token a colour


@dataclass(frozen=True)
class Args:
    """Train a small memory agent, then show how it learned, what it remembers and what it does."""

    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of everything."""
    config: str = "demo"
    """A shipped preset's name or a TOML file."""
    run: str | None = None
    """Run folder (None: the next free runs/demo-<n>)."""


def train(args: Args, folder: Path) -> None:
    """Run the training script; where it fails or is stopped, it has said why, and its exit code is passed on."""
    flags = ["--config", args.config, "--seed", str(args.seed), "--run", str(folder)]
    say(f"$ python -m dqn_memory.train {' '.join(flags)}")
    process, code = subprocess.Popen([sys.executable, "-m", "dqn_memory.train", *flags]), None
    while code is None:
        with suppress(KeyboardInterrupt):  # Ctrl-C reaches the script too, which ends after a checkpoint
            code = process.wait()
    if code:
        raise SystemExit(code if code > 0 else 1)


def fresh_folder() -> Path:
    """Give the first of runs/demo-1, runs/demo-2, ... that does not exist."""
    return next(path for number in count(1) if not (path := Path(f"runs/demo-{number}")).exists())


def learning_curve(run: Run, title: str) -> Figure:
    """Draw the success rates that a run has recorded, while exploring and greedy."""
    named = {
        "while exploring": ("charts/success_rate",),
        "greedy": ("eval/success_rate", "final/success_rate"),  # the final one may fall on an evaluated step
    }
    curves: dict[str, plots.Curve] = {}
    for name, keys in named.items():
        points = {line["step"]: line[key] for line in run.metrics() for key in keys if line.get(key) is not None}
        if points:
            curves[name] = list(points), list(points.values())
    return plots.learning_curves(curves, title)


@dataclass(frozen=True)
class Decision:
    """A step of an episode whose action may depend on beacons seen before."""

    step: int
    beacons: tuple[int, ...]  # earlier steps at which a beacon was in view
    depends: bool  # another beacon colour would have changed this action


def find_decision(network: QNetwork, episode: Episode, gridverse: bool) -> Decision:
    """Find the first action that another colour of beacons no longer in view would have changed; else the last one."""
    last = len(episode) - 1
    shown = torch.isin(episode.observation, torch.tensor(BEACONS)).any(1) & gridverse  # (T,)
    beacons = [int(step) for step in shown.nonzero()]
    for step in range(1, last + 1):
        before = tuple(beacon for beacon in beacons if beacon < step)
        if before and not shown[step] and _depends(network, episode, step):
            return Decision(step, before, True)
    return Decision(last, tuple(beacon for beacon in beacons if beacon < last), False)


@torch.no_grad()
def _depends(network: QNetwork, episode: Episode, step: int) -> bool:
    observation, previous = window_at(network, episode, step)
    beacon = torch.isin(observation, torch.tensor(BEACONS))
    variants = torch.stack([torch.where(beacon, colour, observation) for colour in BEACONS])  # (4, T, d)
    greedy = network(variants, previous.expand(len(BEACONS), -1))[:, -1].argmax(-1)  # (4,)
    return bool((greedy != greedy[0]).any())


def window_at(network: QNetwork, episode: Episode, step: int) -> tuple[Tensor, Tensor]:
    """Give the observations and previous actions that acting saw at `step`, at most K."""
    begin = max(0, step + 1 - network.config.context)
    return episode.observation[begin : step + 1], episode.previous_action[begin : step + 1]


def attention_figure(network: QNetwork, episode: Episode, decision: Decision) -> Figure:
    """Draw what one decision drew on: each head's attention, and its gradient, over the steps before it."""
    step, (observation, previous) = decision.step, window_at(network, episode, decision.step)
    first = step + 1 - len(observation)
    shares = {
        f"attention, layer {layer} head {head}": rows[-1]  # (T,)
        for layer, maps in attention_maps(network, observation, previous).items()
        for head, rows in enumerate(maps)
    }
    shares["sensitivity (all paths)"] = sensitivity(network, observation, previous)
    title = f"The memory at work: what the action of step {step} draws on"
    weights = torch.stack(list(shares.values())).double().numpy()
    marks = {seen: "beacon" for seen in decision.beacons if seen >= first} | {step: "decision"}
    return plots.decision(weights, list(shares), title, marks, episode.frames[first : step + 1], first)


def show(run: Run, seed: int) -> list[str]:
    """Evaluate a trained run, write its pictures and give the lines of a summary."""
    network, config, step = load_network(run.path)
    setup = config.eval_setup(torch.device("cpu"))
    score, memoryless = (
        evaluate(network, replace(setup, reset_memory=forget), config.evaluation.final_episodes, seed)
        for forget in (False, True)
    )
    initial = typical(score) if score.exhaustive else None
    (episode,) = play_in(setup, network, seed, initial=initial, draw=True)
    beacons = config.environment.env.startswith("Gridverse/Memory") and config.environment.observe == "observation"
    decision = find_decision(network, episode, beacons)
    curve, attention, video = (run.path / name for name in ("learning_curve.png", "attention.png", "episode.gif"))
    title = f"{config.network.architecture} in {config.environment.env}"
    plots.save(learning_curve(run, title), curve)
    plots.save(attention_figure(network, episode, decision), attention)
    looks = Looks.found(network, episode, config.acting_state)
    save_video(video, [episode], action_names(setup), [looks])
    return [
        won(config, score, step),
        f"  without its memory, from the newest observation alone, it wins {int(memoryless.success.sum())}",
        f"  {curve}   how it learned",
        f"  {attention}   {explain(decision)}",
        f"  {video}   one episode of {len(episode)} steps, {'won' if episode.success else 'not won'}",
        f"More: python -m dqn_memory.evaluate {run.path}, python -m dqn_memory.inspect {run.path}",
    ]


def typical(score: Score) -> int:
    """Choose the won episode of middle length, or of all where none is won."""
    candidates = np.flatnonzero(score.success) if score.success.any() else np.arange(score.episodes)
    order = candidates[np.argsort(score.lengths[candidates], kind="stable")]
    return int(order[len(order) // 2])


def won(config: TrainConfig, score: Score, step: int) -> str:
    """Say how many episodes end well."""
    wins, kind = int(score.success.sum()), "initial states" if score.exhaustive else "episodes"
    agent, env = config.network.architecture, config.environment.env
    known = baseline_summary(wins / score.episodes, env, config.env_kwargs(training=False))
    return f"{agent} wins {wins} of {score.episodes} {kind} of {env} after {step:,} steps{known}"


def explain(decision: Decision) -> str:
    """Say what the attention picture shows."""
    seen = f"beacon seen at step {', '.join(map(str, decision.beacons))}" if decision.beacons else "no beacon was seen"
    proof = "; another beacon colour would change it" if decision.depends else ""
    return f"what the action of step {decision.step} draws on ({seen}{proof})"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Train, then show."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.demo")
    check_numbers(args)
    folder = Path(args.run) if args.run else fresh_folder()
    try:
        train(args, folder)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    say("\n".join(show(Run.open(folder), args.seed)))


if __name__ == "__main__":
    main()
