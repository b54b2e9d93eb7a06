"""Tables, parameters, limits and errors of the temporal priors."""

import math

import pytest
import torch

from dqn_memory.blocks.attention import Attention, attend, toeplitz
from dqn_memory.blocks.priors import PRIORS, PriorConfig, inverse_softplus

LEARNED = {
    "causal": set(),
    "local": set(),
    "adaptive": {"span"},
    "adaptive_hard": {"span"},
    "gaussian": {"mu", "sigma"},
    "gaussian_adaptive": {"mu", "sigma", "span"},
    "gaussian_adaptive_hard": {"mu", "sigma", "span"},
    "adaptive_ramp_gate": {"span"},
    "gaussian_gate": {"mu", "sigma"},
    "adaptive_gate": {"span"},
    "gaussian_adaptive_gate": {"mu", "sigma", "span"},
}
SPANS = [kind for kind, names in LEARNED.items() if "span" in names]


@pytest.mark.parametrize("kind", PRIORS)
def test_learned_values_and_shapes(kind):
    prior = PriorConfig(kind=kind, mu=6, sigma=1, span=10).build(8, 50)
    learned = prior.learned()
    assert set(learned) == LEARNED[kind]
    assert sum(p.numel() for p in prior.parameters()) == 8 * len(learned)
    for name, value in learned.items():
        assert value.shape == (8,)
        torch.testing.assert_close(value, torch.full((8,), {"mu": 6.0, "sigma": 1.0, "span": 10.0}[name]))
    for table in prior.tables(20):
        assert table is None or (table.shape == (8, 20) and table.dtype == torch.float32)
    assert prior.causal == (kind not in ("adaptive_gate", "gaussian_adaptive_gate"))
    assert not [name for name in prior.state_dict() if "raw" not in name]


@pytest.mark.parametrize("kind", [kind for kind in PRIORS if kind not in ("causal", "local")])
def test_table_precision_is_at_least_float32(kind):
    config = PriorConfig(kind=kind)
    for dtype, expected in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        tables = config.build(2, 500).to(dtype).tables(500)
        assert {table.dtype for table in tables if table is not None} == {expected}


def test_distances_survive_a_cast_to_bfloat16():
    """Position 301 is not a bfloat16 number; a rounded table would repeat its neighbour's value."""
    prior = PriorConfig(kind="gaussian", mu=300.0).build(1, 310).to(torch.bfloat16)
    _, bias = prior.tables(310)
    assert len(bias[0, 290:310].unique()) > 10


@pytest.mark.parametrize(
    "kind,span,kept",
    [("adaptive_hard", 10.0, 11), ("adaptive_hard", 4.5, 5), ("gaussian_adaptive_hard", 7.0, 8)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_span_includes_its_end(kind, span, kept, dtype):
    _, bias = PriorConfig(kind=kind, span=span).build(2, 30).to(dtype).tables(30)
    assert bias.isfinite().sum(-1).tolist() == [kept, kept]


def test_local_window_includes_its_end():
    _, bias = PriorConfig(kind="local", local_window=3).build(2, 10).tables(10)
    assert bias.tolist() == [[0.0] * 4 + [-math.inf] * 6] * 2


def test_ramp_is_one_up_to_the_span_and_falls_to_zero():
    scale, _ = PriorConfig(kind="adaptive_ramp_gate", span=2.0, ramp=4.0).build(1, 9).tables(9)
    torch.testing.assert_close(scale[0], torch.tensor([1, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0]))


@pytest.mark.parametrize("kind", ["adaptive", "gaussian_adaptive"])
def test_keys_beyond_the_ramp_are_masked_not_merely_small(kind):
    _, bias = PriorConfig(kind=kind, span=2.0, ramp=4.0).build(1, 9).tables(9)
    assert bias[0].isfinite().tolist() == [True] * 6 + [False] * 3


@pytest.mark.parametrize("kind", SPANS)
def test_spans_are_capped_by_the_context_and_keep_their_gradient(kind):
    prior = PriorConfig(kind=kind, span=30.0).build(2, 12)
    span = prior.span()
    torch.testing.assert_close(span, torch.full((2,), 12.0))
    span.sum().backward()
    assert (prior.raw["span"].grad > 0.9).all()
    assert PriorConfig(kind=kind, span=30.0, max_span=40.0).build(2, 12).span().max() > 29


def test_a_preferred_distance_on_its_bound_keeps_its_gradient():
    prior = PriorConfig(kind="gaussian", mu_max=9.0).build(2, 50)
    for start, gradient in ((40.0, 0.0), (9.0, 1.0)):
        with torch.no_grad():
            prior.raw["mu"].fill_(inverse_softplus(start))
        prior.zero_grad()
        mu = prior.mu()
        torch.testing.assert_close(mu, torch.full((2,), 9.0))
        mu.sum().backward()
        torch.testing.assert_close(prior.raw["mu"].grad, torch.full((2,), gradient), atol=1e-3, rtol=0)
    with torch.no_grad():
        prior.raw["mu"].fill_(40.0)
    prior.project()
    prior.zero_grad()
    prior.mu().sum().backward()
    assert (prior.raw["mu"].grad > 0.9).all()


@pytest.mark.parametrize("kind", SPANS)
def test_projection(kind):
    prior = PriorConfig(kind=kind, span=10.0, max_norm=4.0).build(3, 50)
    with torch.no_grad():
        prior.raw["span"][0] = 1.0
    before = prior.span()[0].item()
    prior.project()
    assert prior.span()[0].item() == before
    assert (prior.span() <= 4.0).all() and (prior.span()[1:] > 3.999).all()


@pytest.mark.parametrize("kind", SPANS)
def test_projection_brings_a_span_back_below_its_cap(kind):
    prior = PriorConfig(kind=kind).build(2, 12)
    with torch.no_grad():
        prior.raw["span"].fill_(100.0)
    prior.project()
    prior.span().sum().backward()
    assert (prior.raw["span"].grad > 0.9).all()


@pytest.mark.parametrize("kind", PRIORS)
def test_no_regulariser_by_default(kind):
    prior = PriorConfig(kind=kind, regulariser_weight=0.025).build(2, 12)
    assert prior.regularisation().item() == 0.0
    penalty = PriorConfig(kind=kind, regulariser_weight=0.5, regulariser="l1", span=3.0).build(2, 12).regularisation()
    assert penalty.item() == pytest.approx(3.0 if "span" in LEARNED[kind] else 0.0)


@pytest.mark.parametrize("raw", [-80.0, -20.0, 80.0])
@pytest.mark.parametrize("kind", [kind for kind in PRIORS if LEARNED[kind]])
def test_extreme_parameters_stay_finite(kind, raw):
    """A parameter driven far away must not turn outputs or gradients into NaN."""
    attention = Attention(8, 2, PriorConfig(kind=kind).build(2, 9))
    with torch.no_grad():
        for parameter in attention.prior.parameters():
            parameter.fill_(raw)
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = attention(x, torch.tensor([4, 9]))
    y.square().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


def test_toeplitz():
    table = torch.tensor([[1.0, 2.0, 3.0]])
    assert toeplitz(table, -1.0).tolist() == [[[1, -1, -1], [2, 1, -1], [3, 2, 1]]]
    assert toeplitz(torch.tensor([[5.0]]), 0.0).tolist() == [[[5.0]]]


@pytest.mark.parametrize("kind", PRIORS)
def test_autocast_leaves_tables_in_float32(kind):
    prior = PriorConfig(kind=kind).build(2, 40)
    query, key, value = torch.randn(3, 2, 2, 40, 8, generator=torch.Generator().manual_seed(1))
    options = {"future_logit_zero": prior.future_logit_zero}
    exact = attend(query, key, value, *prior.tables(40), **options)
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(query, key, value, *prior.tables(40), **options)
    if kind == "causal":
        torch.testing.assert_close(got.float(), exact, atol=0.05, rtol=0.05)
    else:
        torch.testing.assert_close(got, exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "change,word",
    [
        ({"kind": "gausian"}, "gaussian"),
        ({"kind": "gaussian", "sigma": 0.0}, "sigma"),
        ({"kind": "gaussian", "mu": math.nan}, "mu"),
        ({"kind": "adaptive", "ramp": -1.0}, "ramp"),
        ({"kind": "local", "local_window": -1}, "local_window"),
        ({"kind": "adaptive", "max_norm": 0.0}, "max_norm"),
        ({"kind": "adaptive", "regulariser": "l3"}, "regulariser"),
    ],
)
def test_wrong_values_are_named(change, word):
    with pytest.raises(ValueError, match=word):
        PriorConfig(**change).build(2, 10)


def test_window_longer_than_the_prior_is_an_error():
    with pytest.raises(ValueError, match="10"):
        PriorConfig(kind="gaussian").build(2, 10).tables(11)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="heads is 3"):
        Attention(64, 3, PriorConfig().build(3, 10))


@pytest.mark.parametrize("kind", PRIORS)
def test_drawn_weights_are_those_of_the_forward_pass(kind):
    torch.manual_seed(5)
    attention = Attention(12, 3, PriorConfig(kind=kind, span=3.0, mu=2.0).build(3, 9)).double()
    x, lengths = torch.randn(2, 9, 12, dtype=torch.float64), torch.tensor([5, 9])
    maps = attention.weights(x, lengths)
    value = attention.project_in(x)[..., 24:].unflatten(-1, (3, 4)).transpose(1, 2)
    mixed = attention.project_out((maps @ value).transpose(1, 2).flatten(2))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(mixed[row, :length], attention(x, lengths)[row, :length])
    torch.testing.assert_close(maps[0, :, :5].sum(-1), torch.ones(3, 5, dtype=torch.float64))
    assert (maps[0, :, 5:] == 0).all() and (maps[0, :, :, 5:] == 0).all() and not maps.requires_grad
