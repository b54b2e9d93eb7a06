"""How an update is executed: eagerly (the tested reference), compiled, or captured once a bucket as a CUDA graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from dqn_memory.learner import LearnerConfig, Metrics, td_loss, update
from dqn_memory.networks import QNetwork
from dqn_memory.replay import Prefixes, Windows

Batch = Windows | Prefixes
Update = Callable[[Batch], Metrics]


def make_update(
    engine: Literal["eager", "compile", "cudagraph"],
    network: QNetwork,
    target: QNetwork,
    optimizer: torch.optim.Optimizer,
    config: LearnerConfig,
) -> Update:
    """The update of one batch, `batch -> metrics`, under the chosen engine."""
    if engine == "cudagraph":
        return GraphedUpdate(network, target, optimizer, config)
    loss = torch.compile(td_loss, dynamic=False) if engine == "compile" else td_loss
    return lambda batch: update(network, target, optimizer, batch, config, loss)


class GraphedUpdate:
    """One captured graph a batch shape; inputs are copied into the graph's own buffers before each replay.

    The warm-up runs on a side stream as capture demands; parameters and optimiser state are put back afterwards,
    so a captured run takes the same steps as an eager one.
    """

    def __init__(
        self, network: QNetwork, target: QNetwork, optimizer: torch.optim.Optimizer, config: LearnerConfig
    ) -> None:
        self.network, self.target, self.optimizer, self.config = network, target, optimizer, config
        self.captured: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Batch, Metrics]] = {}

    def __call__(self, batch: Batch) -> Metrics:
        key = tuple(tuple(value.shape) for value in _tensors(batch))
        if key not in self.captured:
            self.captured[key] = self._capture(batch)
        graph, inputs, metrics = self.captured[key]
        for buffer, value in zip(_tensors(inputs), _tensors(batch), strict=True):
            buffer.copy_(value)
        graph.replay()
        return {name: value.clone() for name, value in metrics.items()}

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Metrics]:
        inputs = dataclasses.replace(
            batch, **{f.name: getattr(batch, f.name).clone() for f in dataclasses.fields(batch)}
        )
        saved = _snapshot(self.network, self.optimizer)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._update(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            metrics = self._update(inputs)
        _restore(self.network, self.optimizer, saved)
        return graph, inputs, metrics

    def _update(self, inputs: Batch) -> Metrics:
        return update(self.network, self.target, self.optimizer, inputs, self.config)


def _tensors(batch: Batch) -> list[Tensor]:
    return [getattr(batch, f.name) for f in dataclasses.fields(batch)]


def _snapshot(network: QNetwork, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value.detach().clone() for value in _live(network, optimizer)]


@torch.no_grad()
def _restore(network: QNetwork, optimizer: torch.optim.Optimizer, saved: list[Tensor]) -> None:
    """Put values back in place; state that the warm-up created had value zero before."""
    live = _live(network, optimizer)
    for value, before in zip(live, saved, strict=False):
        value.copy_(before)
    for value in live[len(saved) :]:
        value.zero_()


def _live(network: QNetwork, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters, then optimiser state in the parameters' order; state appears with the first step."""
    states = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"] if p in optimizer.state]
    return list(network.parameters()) + [value for state in states for value in state.values()]
