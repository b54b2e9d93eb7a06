"""Draw and measure the memory of a checkpoint: `python -m dqn_memory.inspect runs/demo-1`.

It plays episodes and writes files into RUN/inspect (for an agent of the package: runs/inspect/NAME). The first episode
is drawn, all are measured:

    attention_layer_*.png  attention of each decision, head by head, beside the environment
    states_layer_*.png     the state of a memory over the episode (over its first window if acting reads windows)
    priors.png             learned attention priors by distance
    recall.png             dependence of Q-values on past observations, each replaced by others
    episode.gif            the episode with Q-values and attention of each decision; a long episode leaves out steps
    inspect.json           all numbers

Pictures of an episode show its first 100 steps.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import attention_priors, carried_states, episode_attention, prior_tables
from dqn_memory.analysis.episodes import Episode, action_names, play_in
from dqn_memory.analysis.hindsight import Discrepancy, Hindsight, discrepancy
from dqn_memory.analysis.recall import Recall, RecallConfig, recall
from dqn_memory.analysis.video import Looks, save_video
from dqn_memory.config import TrainConfig
from dqn_memory.evaluate import EvalSetup, load_network, setup_in
from dqn_memory.network import QNetwork
from dqn_memory.runs.base_config import ComputeConfig, set_tf32
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import RunArgument
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.console import say
from envs.errors import DrawsNothing
from envs.files import check_inside, make_inside, write_atomic
from envs.spaces import Array


@dataclass(frozen=True)
class InspectArgs(RunArgument):
    """Draw and measure the memory of a run's latest checkpoint, in episodes that it plays.

    Files of an earlier inspection in RUN/inspect are replaced.
    """

    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the environments, of drawn actions, and of replaced observations."""
    env: str | None = None
    """Another environment with the same observations and actions (None: that of training; of several the first)."""
    initial: int | None = None
    """Number of the drawn episode's initial state; for environments with finitely many."""
    episodes: Annotated[int, Bounds(1, 10**9)] = 16
    """Episodes measured, the drawn one among them."""
    frames: bool = True
    """Show the environment: in a video, and beside the attention maps."""
    recall: Annotated[RecallConfig, tyro.conf.arg(name="")] = field(default_factory=RecallConfig)
    """How the recall profile is measured."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one)."""


@dataclass(frozen=True)
class Inspection:
    """All measurements; the first episode is the one that is drawn."""

    episodes: list[Episode]
    attention: dict[int, Array]  # by layer, (H, T, T), of the first episode
    states: dict[int, Array]  # by layer, (T, numbers), of the first episode; empty without a state
    discrepancies: list[Discrepancy]
    recall: Recall

    @property
    def outputs(self) -> str:
        """Name of the network's outputs."""
        return "Q" if self.episodes[0].values == "Q-values" else "logits"


def play_episodes(args: InspectArgs, setup: EvalSetup, network: QNetwork) -> list[Episode]:
    """Play the episode to draw, then the others."""
    try:
        shown = play_in(setup, network, args.seed, initial=args.initial, draw=args.frames)
    except DrawsNothing as error:
        say(f"{error} There is no episode.gif, and nothing beside the attention maps.", file=sys.stderr)
        shown = play_in(setup, network, args.seed, initial=args.initial)
    others = args.episodes - 1
    return shown + (play_in(setup, network, args.seed + 1, others) if others else [])


def inspect_network(args: InspectArgs, config: TrainConfig, network: QNetwork, setup: EvalSetup) -> Inspection:
    """Play and measure."""
    episodes = play_episodes(args, setup, network)
    drawn, *_ = seen = [(each.observation.to(setup.device), each.previous_action.to(setup.device)) for each in episodes]
    attention = episode_attention(network, *drawn, config.acting_state)
    carries = network.stateful and len(network.layers) > 0
    carries &= config.network.row().positions == "none"  # a step form has no positions
    length = len(drawn[0]) if config.acting_state == "episode" else network.config.context  # of acting's window
    states = carried_states(network, *(each[:length] for each in drawn)) if carries else {}
    last = time.monotonic()

    def report_progress(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= 5:
            last = time.monotonic()
            say(f"recall measured in {done} of {len(episodes)} episodes", file=sys.stderr)

    profile = recall(network, episodes, args.recall, args.seed, config.acting_state, report_progress)
    return Inspection(
        episodes=episodes,
        attention={layer: maps.double().cpu().numpy() for layer, maps in attention.items()},
        states={layer: state for layer, state in states.items() if state.size},
        discrepancies=[discrepancy(network, *each) for each in seen],
        recall=profile,
    )


def draw_pictures(
    folder: Path, network: QNetwork, config: TrainConfig, measured: Inspection, names: Sequence[str]
) -> list[Path]:
    """Draw all pictures and list what was written."""
    episode, context = measured.episodes[0], network.config.context
    agent = f"{config.network.architecture} in {config.environment.id}"
    figures = {
        f"attention_layer_{layer}.png": plots.plot_attention_maps(
            maps, f"Attention of layer {layer} at each decision: {agent}", episode.frames[:-1], context
        )
        for layer, maps in measured.attention.items()
    }
    for layer, state in measured.states.items():
        title = f"State of layer {layer} over one episode:\n{agent}"
        figures[f"states_layer_{layer}.png"] = plots.plot_states(state, title)
    tables, meaning = prior_tables(attention_priors(network), context)
    if tables:
        figures["priors.png"] = plots.plot_prior_tables(tables, "Attention priors", meaning)
    count, found = len(measured.episodes), measured.recall
    title = f"Influence of past observations on {measured.outputs}: {agent}, {count} episode{'s' if count > 1 else ''}"
    change, flips = found.curve("occlusion"), found.curve("flips")
    figures["recall.png"] = plots.plot_recall(change, flips, found.decisions, title, measured.outputs)
    written = [plots.save(figure, folder / name) for name, figure in figures.items()]
    if episode.frames:
        save_video(folder / "episode.gif", [episode], names, [Looks.of(measured.attention)])
        written.append(folder / "episode.gif")
    return written


def describe(
    args: InspectArgs, config: TrainConfig, step: int, network: QNetwork, measured: Inspection
) -> dict[str, Any]:
    """Collect the content of inspect.json."""
    episode, first = measured.episodes[0], measured.discrepancies[0]
    return {
        "step": step, "env": config.environment.id, "observe": config.environment.observe,
        "architecture": config.network.architecture, "prior": config.network.prior.kind,
        "causal": network.causal, "trained_on_whole_windows": config.whole_windows,
        "seed": args.seed, "initial": args.initial, "episodes": len(measured.episodes),
        "episode": {
            "length": len(episode), "return": round(episode.episode_return, 6), "success": episode.success,
        },
        "hindsight": asdict(Hindsight.of(measured.discrepancies)),
        "discrepancy": {
            "gap": first.gap.tolist(), "flip": first.flips.tolist(), "future": first.future.tolist(),
            "q_window": plain_values(first.inside), "q_prefix": plain_values(first.alone),
        },
        "recall": {"config": asdict(args.recall)} | measured.recall.plain(),
        "learned": network.memory_scalars(),
    }  # fmt: skip


def plain_values(q: Array) -> list[list[float | None]]:
    """List Q-values (T, A) for a JSON file; that of an illegal action is None."""
    return [[value if value > -math.inf else None for value in row] for row in q.tolist()]


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, measure, draw."""
    args = tyro.cli(InspectArgs, args=argv, prog="python -m dqn_memory.inspect")
    check_numbers(args)
    run = args.chosen_run()
    check_inside(run, "inspect")
    set_tf32(False)
    device = ComputeConfig(args.device).torch_device()
    network, config, step = load_network(run, device)
    setup = setup_in(args.env, config, network, device)
    if args.env is not None:
        config = replace(config, environment=config.environment.other(args.env))
    measured = inspect_network(args, config, network, setup)
    folder = make_inside(run, "inspect") if run.is_dir() else make_inside(Path("runs"), f"inspect/{run}")
    written = draw_pictures(folder, network, config, measured, action_names(setup))
    facts = describe(args, config, step, network, measured)
    facts["pictures"] = [path.name for path in written]
    write_atomic(folder / "inspect.json", json.dumps(facts, indent=1).encode())
    episode = measured.episodes[0]
    how = f"return {episode.episode_return:.2f}" + (f", {episode.outcome}" if episode.env_reports_success else "")
    say(f"{run} at step {step:,}: {len(episode)} steps, {how}")
    say(Hindsight.of(measured.discrepancies).words(network.causal, facts["trained_on_whole_windows"], measured.outputs))
    say(measured.recall.words(measured.outputs))
    say("\n".join(f"wrote {path}" for path in [*written, folder / "inspect.json"]))


if __name__ == "__main__":
    main()
