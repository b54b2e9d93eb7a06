"""Capture a function of tensors as a CUDA graph, once for each form of its inputs, and replay it.

Inputs and results may be tensors or None, or dataclasses, tuples, lists and dicts of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")
WARM_UPS = 3  # runs of a function before its capture


class Captured(Generic[P, R]):
    """A function whose graph copies its inputs into buffers of its own, and its results out of them.

    The function may change only `modules`, the state of `optimizers` and `generators`. The warm-up before a capture
    changes them too, so they are restored: a captured run takes the same steps as an eager one. Each graph has its own
    memory. `kept` is the max number of graphs (None: no limit); 1 suits forms that do not recur.
    """

    def __init__(
        self,
        function: Callable[P, R],
        modules: Sequence[nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
        kept: int | None = None,
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self.function, self.modules, self.optimizers, self.kept = function, modules, optimizers, kept
        self.generators = generators
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Any, R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function; return its result in tensors of its own."""
        inputs = (args, kwargs)
        key = form(inputs)
        if key not in self.graphs:
            while self.kept is not None and len(self.graphs) >= self.kept:
                del self.graphs[next(iter(self.graphs))]  # the oldest
            self.graphs[key] = self._capture(inputs)
        graph, buffers, result = self.graphs[key]
        for buffer, value in zip(tensors(buffers), tensors(inputs), strict=True):
            buffer.copy_(value)
        graph.replay()
        return mapped(Tensor.clone, result)

    def _capture(self, inputs: Any) -> tuple[torch.cuda.CUDAGraph, Any, R]:
        buffers = args, kwargs = mapped(Tensor.clone, inputs)
        saved = [(value, value.detach().clone()) for value in self._live()]
        drawn = [generator.get_state() for generator in self.generators]
        graph, result = capture(lambda: self.function(*args, **kwargs), self.generators)
        self._restore(saved)
        for generator, state in zip(self.generators, drawn, strict=True):
            generator.set_state(state)
        return graph, buffers, result

    @torch.no_grad()
    def _restore(self, saved: list[tuple[Tensor, Tensor]]) -> None:
        """Restore saved values in place; state that the warm-up created becomes zero."""
        known = {id(value) for value, _ in saved}
        for value, before in saved:
            value.copy_(before)
        for value in self._live():
            if id(value) not in known:
                value.zero_()

    def _live(self) -> list[Tensor]:
        """List parameters and buffers, then optimiser state in the order of the parameters."""
        held = [value for module in self.modules for value in (*module.parameters(), *module.buffers())]
        for optimizer in self.optimizers:
            state, groups = optimizer.state, optimizer.param_groups
            states = [state[p] for group in groups for p in group["params"] if p in state]
            held += [value for entry in states for value in entry.values()]
        return held


def capture(work: Callable[[], R], generators: Sequence[torch.Generator] = ()) -> tuple[torch.cuda.CUDAGraph, R]:
    """Capture `work` as a graph; return the graph and the result. Each replay overwrites the result's tensors.

    First `work` runs `WARM_UPS` times on a side stream, and the state of the random generators is restored.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]), torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to every tensor of a tree."""
    if tree is None or isinstance(tree, Tensor):
        return None if tree is None else function(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return dataclasses.replace(tree, **{name: mapped(function, value) for name, value in vars(tree).items()})
    if isinstance(tree, dict):
        return {name: mapped(function, value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [mapped(function, value) for value in tree]
    if isinstance(tree, tuple):
        values = [mapped(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    raise TypeError(f"a captured function takes and gives tensors, not {type(tree).__name__}")


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield all tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        yield tree
    if tree is None or isinstance(tree, Tensor):
        return
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else vars(tree).values()
    for value in inner:
        yield from tensors(value)


def form(tree: Any) -> Any:
    """Describe a tree by shapes, types and names; None stands for an absent tensor."""
    if tree is None or isinstance(tree, Tensor):
        return None if tree is None else (tree.shape, tree.dtype)
    if isinstance(tree, tuple | list):
        return tuple(form(value) for value in tree)
    return tuple((name, form(value)) for name, value in (tree if isinstance(tree, dict) else vars(tree)).items())
