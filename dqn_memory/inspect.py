"""What a checkpoint looks at: `python -m dqn_memory.inspect runs/demo-1`.

Plays one greedy episode and writes pictures into RUN/inspect: attention maps of every layer and head over the
episode's last window, learned priors by distance, Q-values over time. It also measures hindsight: how far Q at a
position of the window differs from Q of the prefix that acting sees there, which is nothing for causal networks and the
information leak of bidirectional ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from dqn_memory import drawing
from dqn_memory.agent import load_network, run_folder
from dqn_memory.blocks import EncoderLayer, Prior
from dqn_memory.config import DeviceConfig, TrainConfig
from dqn_memory.errors import one_line_errors
from dqn_memory.files import disk_errors, write_atomic
from dqn_memory.introspection import Hindsight, attention_maps, hindsight
from dqn_memory.networks import QNetwork
from dqn_memory.playing import Episode, action_names, play_in

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Args:
    """Draw what a run's latest checkpoint attends to in one greedy episode, and measure hindsight."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    seed: int = 0
    """Seed of the world."""
    initial: int | None = None
    """Number of the initial state, in worlds that have finitely many."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""


@dataclass(frozen=True)
class Window:
    """The last K steps of an episode, which its last decision was made from."""

    observation: torch.Tensor  # (T, ...)
    previous_action: torch.Tensor  # (T,), none at the first step of the episode
    first: int  # step of the episode at which it begins

    @classmethod
    def last(cls, episode: Episode, context: int, device: torch.device) -> Window:
        """The newest `context` observations at the episode's last step."""
        first = max(0, len(episode) - context)
        return cls(episode.observation[first:].to(device), episode.previous_action[first:].to(device), first)


def draw(folder: Path, network: QNetwork, episode: Episode, window: Window, names: Sequence[str]) -> list[Path]:
    """All pictures of one episode; returns what was written."""
    final = window.first + len(window.observation) - 1
    written = []
    for layer, maps in attention_maps(network, window.observation, window.previous_action).items():
        title = f"Attention of layer {layer}; the frame marks the query of the last decision, step {final}"
        figure = drawing.attention_maps(maps.double().cpu().numpy(), title, window.first, query=final)
        written.append(drawing.save(figure, folder / f"attention_layer_{layer}.png"))
    tables = prior_tables(network)
    if tables:
        gate = any(kind == "scale" for kind, _ in tables.values())
        ylabel = "factor on the scores" if gate else "prior weight"
        figure = drawing.prior_tables({name: table for name, (_, table) in tables.items()}, "Attention priors", ylabel)
        written.append(drawing.save(figure, folder / "priors.png"))
    title = f"Q-values of one greedy episode, return {episode.episode_return:.2f}"
    figure = drawing.q_values(episode.q, episode.action, title, names)
    return [*written, drawing.save(figure, folder / "q_values.png")]


@torch.no_grad()
def prior_tables(network: QNetwork) -> dict[str, tuple[str, Array]]:
    """Each attention layer's prior by distance, (H, K): its weight exp(bias), or its factor on the scores.

    Plain causal attention has no table and is left out.
    """
    tables = {}
    for place, prior in _priors(network).items():
        scale, bias = prior.tables(network.config.context)
        if bias is not None:
            tables[f"layer {place}"] = "bias", bias.exp().double().cpu().numpy()
        elif scale is not None:
            tables[f"layer {place}"] = "scale", scale.double().cpu().numpy()
    return tables


def _priors(network: QNetwork) -> dict[int, Prior]:
    return {
        place: layer.attention.prior
        for place, layer in enumerate(network.layers)
        if isinstance(layer, EncoderLayer) and layer.attention is not None
    }


def describe(args: Args, config: TrainConfig, step: int, episode: Episode, window: Window) -> dict[str, Any]:
    """What inspect.json says besides the measurements."""
    return {
        "step": step,
        "env": config.world.env,
        "architecture": config.network.architecture,
        "prior": config.network.prior.kind,
        "seed": args.seed,
        "initial": args.initial,
        "episode": {
            "length": len(episode),
            "return": round(episode.episode_return, 6),
            "success": episode.success,
        },
        "window": {"first_step": window.first, "last_step": len(episode) - 1},
    }


def sentence(causal: bool, found: Hindsight) -> str:
    """The hindsight measurement in words."""
    kind = "causal" if causal else "not causal"
    if not found.positions:
        return f"hindsight ({kind}): the window holds one step, which has no future to leak"
    return (
        f"hindsight ({kind}): mean |Q(window) - Q(prefix)| {found.gap:.3g}, largest {found.largest:.3g} "
        f"(Q itself spreads by {found.spread:.3g}); greedy action flips at {found.flips:.1%} "
        f"of {found.positions} positions"
    )


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, measure, draw."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.inspect")
    run = run_folder(args.folder, args.run)
    device = DeviceConfig(args.device).torch_device()
    network, config, step = load_network(run, device)
    arena = config.arena(device)
    (episode,) = play_in(arena, network, args.seed, initial=args.initial)
    window = Window.last(episode, config.network.context, device)
    found = hindsight(network, window.observation, window.previous_action, config.acting)
    folder = run / "inspect"
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    written = draw(folder, network, episode, window, action_names(arena))
    facts = describe(args, config, step, episode, window)
    facts |= {"causal": network.causal, "hindsight": asdict(found), "learned": network.memory_scalars()}
    facts["pictures"] = [path.name for path in written]
    write_atomic(folder / "inspect.json", json.dumps(facts, indent=1).encode())
    outcome = "success" if episode.success else "no success"
    print(f"{run} at step {step:,}: {len(episode)} steps, return {episode.episode_return:.2f}, {outcome}")
    print(sentence(network.causal, found))
    print("\n".join(f"wrote {path}" for path in [*written, folder / "inspect.json"]))


if __name__ == "__main__":
    main()
