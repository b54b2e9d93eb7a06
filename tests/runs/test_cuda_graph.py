"""The wrapper of CUDA graphs, with graphs that launch nothing where there is no GPU."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dqn_memory.runs import cuda_graph
from dqn_memory.runs.cuda_graph import Captured, mapped, tensors


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor


class Found(NamedTuple):
    total: Tensor
    parts: dict[str, Tensor]


class Recorded:
    """A graph on the CPU: its replay computes anew what the function gave, into the same tensors."""

    def __init__(self, work):
        for _ in range(3):
            work()
        self.work, self.result = work, work()

    def replay(self):
        for held, value in zip(tensors(self.result), tensors(self.work()), strict=True):
            held.detach().copy_(value.detach())


def recorded(work, generators):
    graph = Recorded(work)
    return graph, graph.result


def test_trees_of_tensors():
    tree = (Batch(torch.zeros(2), torch.ones(3)), {"a": [torch.ones(1)]}, Found(torch.ones(()), {"b": torch.zeros(4)}))
    assert [len(value.flatten()) for value in tensors(tree)] == [2, 3, 1, 1, 4]
    doubled = mapped(lambda value: 2 * value, tree)
    assert isinstance(doubled[0], Batch) and isinstance(doubled[2], Found)
    assert [float(value.sum()) for value in tensors(doubled)] == [0, 6, 2, 2, 0]
    with pytest.raises(TypeError, match="not set"):
        mapped(torch.clone, {torch.zeros(1)})


def test_a_graph_for_each_form_and_results_of_their_own(monkeypatch):
    monkeypatch.setattr(cuda_graph, "capture", recorded)
    work = Captured(lambda batch, scale: Found((batch.x * scale).sum(), {"y": batch.y}), kept=2)
    first = work(Batch(torch.ones(2), torch.ones(1)), torch.tensor(3.0))
    second = work(Batch(torch.ones(2), torch.zeros(1)), torch.tensor(5.0))
    assert (float(first.total), float(first.parts["y"])) == (6, 1)  # the replay did not touch it
    assert (float(second.total), float(second.parts["y"])) == (10, 0)
    assert len(work.graphs) == 1
    for form in (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(4)):
        work(Batch(form, torch.ones(1)), torch.tensor(1.0))
    assert len(work.graphs) == 2  # the oldest went


@pytest.mark.parametrize(
    "swapped", [[(1, None), (None, 1)], [{"x": 1, "y": 2}, {"y": 2, "x": 1}], [(1, [2]), ([1], 2)]]
)
def test_a_graph_knows_where_its_inputs_stand(monkeypatch, swapped):
    def total(tree):
        first, second = (tree["x"], tree["y"]) if isinstance(tree, dict) else tree
        first, second = (each[0] if isinstance(each, list) else each for each in (first, second))
        return 10 * (0 if first is None else first) + (torch.zeros(()) if second is None else second)

    def filled(tree):
        if isinstance(tree, dict):
            return {name: filled(value) for name, value in tree.items()}
        if isinstance(tree, tuple | list):
            return type(tree)(map(filled, tree))
        return None if tree is None else torch.tensor(float(tree))

    monkeypatch.setattr(cuda_graph, "capture", recorded)
    work = Captured(total)
    for tree in (*swapped, *swapped):
        assert work(filled(tree)) == total(filled(tree))


def test_the_warm_up_leaves_modules_and_optimiser_as_they_were(monkeypatch):
    monkeypatch.setattr(cuda_graph, "capture", recorded)

    def parts():
        torch.manual_seed(0)
        layer = torch.nn.Linear(2, 1)
        return layer, torch.optim.Adam(layer.parameters(), capturable=False), torch.Generator().manual_seed(1)

    def step(layer, optimizer, generator):
        def work(x):
            loss = layer(x + torch.rand(1, 2, generator=generator)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return work

    theirs, ours, x = parts(), parts(), torch.tensor([[1.0, 2.0]])
    captured = Captured(step(*ours), ours[:1], ours[1:2], generators=ours[2:])
    captured._capture(((x,), {}))  # what it warmed up with is put back
    torch.testing.assert_close(ours[0].weight, theirs[0].weight, rtol=0, atol=0)
    assert all(float(state["step"]) == 0 for state in ours[1].state.values())
    step(*theirs)(x)
    captured.function(x)
    torch.testing.assert_close(ours[0].weight, theirs[0].weight, rtol=0, atol=0)
