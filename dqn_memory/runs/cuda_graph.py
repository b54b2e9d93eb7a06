"""How an update is executed: eagerly (the tested reference), compiled, or captured once a bucket as a CUDA graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.learner import update
from dqn_memory.learner_config import LearnerConfig
from dqn_memory.network import QNetwork
from dqn_memory.replay import Prefixes, Windows
from dqn_memory.runs.settings import Engine
from dqn_memory.td_loss import Metrics, td_loss

Batch = Windows | Prefixes
Update = Callable[[Batch], Metrics]
Inputs = TypeVar("Inputs")  # a dataclass of tensors
Result = TypeVar("Result")


def make_update(
    engine: Engine,
    network: QNetwork,
    target: QNetwork,
    optimizer: torch.optim.Optimizer,
    config: LearnerConfig,
) -> Update:
    """The update of one batch, `batch -> metrics`, under the chosen engine."""
    loss = torch.compile(td_loss, dynamic=False) if engine == "compile" else td_loss

    def work(batch: Batch) -> Metrics:
        return update(network, target, optimizer, batch, config, loss)

    return GraphedUpdate(work, (network,), optimizer) if engine == "cudagraph" else work


class GraphedUpdate(Generic[Inputs]):
    """One captured graph a batch shape; inputs are copied into the graph's own buffers before each replay.

    `work` maps a dataclass of tensors to metrics and changes nothing but `modules` and `optimizer`. The warm-up runs
    on a side stream as capture demands; parameters, buffers and optimiser state are put back afterwards, so a
    captured run takes the same steps as an eager one. Each graph holds its memory for itself: where shapes come one
    after another and never again, `kept` = 1 lets the last one's go.
    """

    def __init__(
        self,
        work: Callable[[Inputs], Metrics],
        modules: Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
        kept: int | None = None,
    ) -> None:
        self.work, self.modules, self.optimizer, self.kept = work, modules, optimizer, kept
        self.captured: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Inputs, Metrics]] = {}

    def __call__(self, batch: Inputs) -> Metrics:
        key = tuple(tuple(value.shape) for value in _tensors(batch))
        if key not in self.captured:
            make_room(self.captured, self.kept)
            self.captured[key] = self._capture(batch)
        graph, inputs, metrics = self.captured[key]
        for buffer, value in zip(_tensors(inputs), _tensors(batch), strict=True):
            buffer.copy_(value)
        graph.replay()
        return {name: value.clone() for name, value in metrics.items()}

    def _capture(self, batch: Inputs) -> tuple[torch.cuda.CUDAGraph, Inputs, Metrics]:
        buffers = {name: value.clone() for name, value in _fields(batch).items()}
        inputs = dataclasses.replace(batch, **buffers)  # type: ignore[type-var]
        saved = [value.detach().clone() for value in self._live()]
        graph, metrics = capture(lambda: self.work(inputs))
        self._restore(saved)
        return graph, inputs, metrics

    @torch.no_grad()
    def _restore(self, saved: list[Tensor]) -> None:
        """Put values back in place; state that the warm-up created had value zero before."""
        live = self._live()
        for value, before in zip(live, saved, strict=False):
            value.copy_(before)
        for value in live[len(saved) :]:
            value.zero_()

    def _live(self) -> list[Tensor]:
        """Parameters and buffers, then optimiser state in the parameters' order; state appears with the first step."""
        held = [value for module in self.modules for value in (*module.parameters(), *module.buffers())]
        state, groups = self.optimizer.state, self.optimizer.param_groups
        states = [state[p] for group in groups for p in group["params"] if p in state]
        return held + [value for entry in states for value in entry.values()]


def make_room(captured: dict[Any, Any], kept: int | None) -> None:
    """Let the oldest graphs go, so that with one more there are at most `kept` (None: any number)."""
    while kept is not None and len(captured) >= kept:
        del captured[next(iter(captured))]


def capture(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of what `work` launches, and its result, whose tensors every replay overwrites.

    `work` runs three times on a side stream first; the random numbers that this takes are given back.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]), torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def _fields(batch: Any) -> dict[str, Tensor]:
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def _tensors(batch: Any) -> list[Tensor]:
    return list(_fields(batch).values())
