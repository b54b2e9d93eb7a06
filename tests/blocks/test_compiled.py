"""Every entry of the registries under torch.compile: the same numbers as eager, forward and backward."""

import pytest
import torch

from dqn_memory.blocks import GATES, MEMORY, PRIORS, LayerConfig, PriorConfig

ROWS = (
    [{"memory": memory} for memory in [*MEMORY, "none"]]
    + [{"memory": "linear", "prior": PriorConfig(kind=kind, span=2.4, mu=1.2)} for kind in PRIORS]
    + [{"memory": "linear", "gate": gate, "order": order} for gate in GATES for order in ("post", "identity")]
)


def name(row):
    return "-".join(str(getattr(value, "kind", value)) for value in row.values())


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_compiled_equals_eager(row):
    torch.manual_seed(1)
    layer = LayerConfig(heads=2, **row).build(8, 5).double()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", dynamic=False)
    lengths = torch.tensor([2, 5])
    results = []
    for function in (layer, compiled):
        x = torch.randn(
            2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ).requires_grad_()
        layer.zero_grad()
        y = function(x, lengths)
        y.square().sum().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in layer.parameters())])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-10, rtol=1e-10)
