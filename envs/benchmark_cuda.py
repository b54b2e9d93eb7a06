"""Many worlds inside one CUDA graph: steps, random actions and resets without a return to the CPU."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from envs.benchmark_measures import Value
from envs.benchmark_originals import GRAPH
from envs.core import Step, World
from envs.fleet import advance
from envs.registry import make_world

WORLDS = 65_536
IDS = ("Gridverse/Memory-13x13-v0", "Gridverse/Memory-NineRooms-13x13-v0")


class RandomPlay:
    """N worlds whose random steps write into tensors that stay where they are, as a CUDA graph needs.

    `finished` counts the episodes that ended, so that one sees that resets took part.
    """

    def __init__(self, world: World[Any], count: int, seed: int = 0) -> None:
        self.world, self.count = world, count
        self.generator = torch.Generator(world.device).manual_seed(seed)
        first = world.reset(self._uniforms(world.reset_draws))
        self.state = type(first)(**{name: value.clone() for name, value in vars(first).items()})
        self.finished = torch.zeros((), dtype=torch.int64, device=world.device)

    def step(self) -> Step:
        """One random action in every world."""
        u = self._uniforms(1 + self.world.step_draws + self.world.reset_draws)
        action = (u[:, 0] * self.world.num_actions).long()
        after, step = advance(self.world, self.state, action, u[:, 1:])
        for name, value in vars(after).items():
            getattr(self.state, name).copy_(value)
        self.finished += step.done.sum()
        return step

    def _uniforms(self, draws: int) -> Tensor:
        return torch.rand(self.count, draws, dtype=torch.float64, device=self.world.device, generator=self.generator)


def graph_row(id: str, count: int = WORLDS, steps: int = 10, replays: int = 100) -> dict[str, Value]:
    """Steps per second of `count` worlds in a graph of `steps` steps, over `replays` replays; needs a CUDA device."""
    play = RandomPlay(make_world(id, "cuda"), count)
    graph = capture(play, steps)
    for _ in range(1 + play.world.time_limit // steps):  # until episodes no longer end together
        graph.replay()
    torch.cuda.synchronize()
    before, began = int(play.finished), time.perf_counter()
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    rate = count * steps * replays / (time.perf_counter() - began)
    ended = int(play.finished) - before
    return {
        "world": id, "worlds": count, "steps_s": rate, "bar": GRAPH, "holds": rate >= GRAPH, "episodes": ended,
    }  # fmt: skip


def capture(play: RandomPlay, steps: int) -> torch.cuda.CUDAGraph:
    """A graph of `steps` steps, warmed up on a side stream as capture demands."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            play.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(play.generator)
    with torch.cuda.graph(graph):
        for _ in range(steps):
            play.step()
    return graph
