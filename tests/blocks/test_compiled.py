"""Every entry of the registries under torch.compile: the same numbers as eager, forward and backward."""

import itertools

import pytest
import torch

from dqn_memory.blocks import GATES, MEMORY, PRIORS, LayerConfig, PriorConfig

# Compiling is slow, so every row has a memory, a prior, a gate and an order of its own, the shorter lists repeated.
FRAMES = itertools.product(GATES, ("post", "identity"))
ROWS = [
    {"memory": memory, "prior": PriorConfig(kind=kind, span=2.4, mu=1.2), "gate": gate, "order": order}
    for memory, kind, (gate, order) in zip(
        [*MEMORY, "none"], itertools.cycle(PRIORS), itertools.cycle(FRAMES), strict=False
    )
]


def name(row):
    return "-".join(str(getattr(value, "kind", value)) for value in row.values())


def test_rows_cover_the_registries():
    assert {row["memory"] for row in ROWS} == {*MEMORY, "none"}
    assert {row["prior"].kind for row in ROWS} == set(PRIORS)


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=name)
def test_compiled_equals_eager(row):
    torch.manual_seed(1)
    layer = LayerConfig(heads=2, **row).build(8, 5).double()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", dynamic=False)
    lengths = torch.tensor([2, 5])
    results = []
    for function in (layer, compiled):
        x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
        layer.zero_grad()
        y = function(x, lengths)
        y.square().sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in layer.parameters())])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-10, rtol=1e-10)
