"""Train a small memory agent and show it: `python -m dqn_memory.demo`.

The training script trains a preset (configs/demo.toml). The agent is then evaluated from every initial state. Three
pictures are written into the run folder: the learning curve, the attention of one decision, and a video of its episode.
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
from torch import Tensor

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import sensitivity, window_attention
from dqn_memory.analysis.episodes import Episode, action_names, play_in
from dqn_memory.analysis.video import Looks, save_video
from dqn_memory.config import TrainConfig
from dqn_memory.evaluate import evaluate, load_network
from dqn_memory.network import QNetwork
from dqn_memory.play import Score
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import Run
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.baselines import reference_summary
from envs.console import say
from envs.extras import extra

with extra("plots"):
    from matplotlib.figure import Figure

BEACONS = (11, 12, 13, 14)  # tokens of beacons in a Gridverse observation, one for each colour


@dataclass(frozen=True)
class DemoArgs:
    """Train a small memory agent, then show its learning curve, the attention of a decision, and an episode."""

    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of the training and of the evaluation."""
    config: str = "demo"
    """A shipped preset's name or a TOML file."""
    run: str | None = None
    """Run folder (None: the next free runs/demo-<n>)."""


def run_training(args: DemoArgs, folder: Path) -> None:
    """Run the training script; exit with its code if it fails or is stopped (it has printed the reason)."""
    flags = ["--config", args.config, "--seed", str(args.seed), "--run", str(folder)]
    say(f"$ python -m dqn_memory.train {' '.join(flags)}")
    process, code = subprocess.Popen([sys.executable, "-m", "dqn_memory.train", *flags]), None
    while code is None:
        with suppress(KeyboardInterrupt):  # Ctrl-C reaches the script too; it ends after a checkpoint
            code = process.wait()
    if code:
        raise SystemExit(code if code > 0 else 1)


def fresh_folder() -> Path:
    """Give the first of runs/demo-1, runs/demo-2, ... that does not exist."""
    return next(path for number in count(1) if not (path := Path(f"runs/demo-{number}")).exists())


def learning_curve(run: Run, title: str) -> Figure:
    """Draw the recorded success rates of a run, while exploring and greedy."""
    keys_by_curve = {
        "while exploring": ("charts/success_rate",),
        "greedy": ("eval/success_rate", "final/success_rate"),  # the final one may fall on an evaluated step
    }
    curves: dict[str, plots.Curve] = {}
    for name, keys in keys_by_curve.items():
        points = {line["step"]: line[key] for line in run.metrics() for key in keys if line.get(key) is not None}
        if points:
            curves[name] = list(points), list(points.values())
    return plots.plot_learning_curves(curves, title)


@dataclass(frozen=True)
class Decision:
    """A step of an episode whose action may depend on beacons seen before."""

    step: int
    beacons: tuple[int, ...]  # earlier steps at which a beacon was in view
    depends: bool  # another beacon colour would have changed this action


def find_decision(network: QNetwork, episode: Episode, gridverse: bool) -> Decision:
    """Find the first action that depends on the colour of a beacon out of view; else give the last action."""
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
    """Give the observations and previous actions in the acting window at `step`, at most K."""
    begin = max(0, step + 1 - network.config.context)
    return episode.observation[begin : step + 1], episode.previous_action[begin : step + 1]


def attention_figure(network: QNetwork, episode: Episode, decision: Decision) -> Figure:
    """Draw the attention of each head in one decision, and its gradient, over the steps before it."""
    step, (observation, previous) = decision.step, window_at(network, episode, decision.step)
    first = step + 1 - len(observation)
    shares = {
        f"attention, layer {layer} head {head}": rows[-1]  # (T,)
        for layer, maps in window_attention(network, observation, previous).items()
        for head, rows in enumerate(maps)
    }
    shares["sensitivity (all paths)"] = sensitivity(network, observation, previous)
    title = f"The memory at work: steps that the action of step {step} depends on"
    weights = torch.stack(list(shares.values())).double().numpy()
    marks = {seen: "beacon" for seen in decision.beacons if seen >= first} | {step: "decision"}
    return plots.plot_decision(weights, list(shares), title, marks, episode.frames[first : step + 1], first)


def show_run(run: Run, seed: int) -> list[str]:
    """Evaluate a trained run, write its pictures, and give the lines of a summary."""
    network, config, step = load_network(run.path)
    setup = config.eval_setup(torch.device("cpu"))
    score, memoryless = (
        evaluate(network, replace(setup, reset_memory=forget), config.evaluation.final_episodes, seed)
        for forget in (False, True)
    )
    initial = typical(score) if score.exhaustive else None
    (episode,) = play_in(setup, network, seed, initial=initial, draw=True)
    beacons = config.environment.id.startswith("Gridverse/Memory") and config.environment.observe == "observation"
    decision = find_decision(network, episode, beacons)
    curve, attention, video = (run.path / name for name in ("learning_curve.png", "attention.png", "episode.gif"))
    title = f"{config.network.architecture} in {config.environment.id}"
    plots.save(learning_curve(run, title), curve)
    plots.save(attention_figure(network, episode, decision), attention)
    looks = Looks.of_episode(network, episode, config.acting_state)
    save_video(video, [episode], action_names(setup), [looks])
    return [
        count_wins(config, score, step),
        f"  without its memory, from the newest observation alone, it wins {int(memoryless.success.sum())}",
        f"  {curve}   how it learned",
        f"  {attention}   {explain(decision)}",
        f"  {video}   one episode of {len(episode)} steps, {'won' if episode.success else 'not won'}",
        f"More: python -m dqn_memory.evaluate {run.path}, python -m dqn_memory.inspect {run.path}",
    ]


def typical(score: Score) -> int:
    """Choose the won episode of median length; if none is won, the episode of median length."""
    candidates = np.flatnonzero(score.success) if score.success.any() else np.arange(score.episodes)
    order = candidates[np.argsort(score.lengths[candidates], kind="stable")]
    return int(order[len(order) // 2])


def count_wins(config: TrainConfig, score: Score, step: int) -> str:
    """Say how many episodes are won."""
    wins, kind = int(score.success.sum()), "initial states" if score.exhaustive else "episodes"
    agent, env = config.network.architecture, config.environment.id
    known = reference_summary(
        wins / score.episodes, float(score.returns.mean()), env, config.env_kwargs(training=False)
    )
    return f"{agent} wins {wins} of {score.episodes} {kind} of {env} after {step:,} steps{known}"


def explain(decision: Decision) -> str:
    """Describe the attention picture."""
    seen = f"beacon seen at step {', '.join(map(str, decision.beacons))}" if decision.beacons else "no beacon was seen"
    proof = "; another beacon colour would change it" if decision.depends else ""
    return f"steps that the action of step {decision.step} depends on ({seen}{proof})"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Train, then show."""
    args = tyro.cli(DemoArgs, args=argv, prog="python -m dqn_memory.demo")
    check_numbers(args)
    folder = Path(args.run) if args.run else fresh_folder()
    try:
        run_training(args, folder)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    say("\n".join(show_run(Run.open(folder), args.seed)))


if __name__ == "__main__":
    main()
