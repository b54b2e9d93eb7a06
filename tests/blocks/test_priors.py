"""Temporal priors: recorded float64 values and gradients not computed with this code, tables, limits and errors."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dqn_memory.blocks.attention import Attention, attend, logits
from dqn_memory.blocks.priors import PRIORS, Prior, PriorConfig, inverse_softplus

DATA = Path(__file__).parents[1] / "data" / "attention"
GOLDEN, DERIVED = (dict(np.load(DATA / f"{name}.npz")) for name in ("attention", "attention_grads"))
FORMS = {  # the recorded name, what is learned
    "causal": ("causal", ()),
    "local": ("local_w2", ()),
    "adaptive_hard": ("paper_adaptive_hard", ("span",)),
    "adaptive": ("adaptive_ramp", ("span",)),
    "adaptive_ramp_gate": ("thesis_adaptive_ramp_logitmul", ("span",)),
    "gaussian": ("paper_gaussian", ("mu", "sigma")),
    "gaussian_adaptive_hard": ("paper_gaam_hard", ("mu", "sigma", "span")),
    "gaussian_adaptive": ("gaam_ramp", ("mu", "sigma", "span")),
    "adaptive_gate": ("code_adaptive_full", ("span",)),
    "gaussian_gate": ("code_gaussian", ("mu", "sigma")),
    "gaussian_adaptive_gate": ("code_gaam_full", ("mu", "sigma", "span")),
}
SPANS = [kind for kind, (_, names) in FORMS.items() if "span" in names]
DTYPES = pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
RECORDS = pytest.mark.parametrize("name", ["seed", "mixed"])


def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array)).to(dtype)


def prior_with(kind: str, dtype: torch.dtype, raw: dict[str, np.ndarray]) -> Prior:
    prior = PriorConfig(kind=kind, local_window=2, ramp=3.0, max_span=20.0).build(4, 12).to(dtype)
    with torch.no_grad():
        for name, parameter in prior.raw.items():
            parameter.copy_(tensor(raw[name], dtype))
    return prior


def recorded(name: str, kind: str, dtype: torch.dtype) -> Prior:
    """Build the prior with the raw values of a record."""
    span = "Lg" if kind.startswith("gaussian_adaptive") else "L"
    raw = {"mu": GOLDEN[f"{name}/raw_mu"], "sigma": GOLDEN[f"{name}/raw_sg"], "span": GOLDEN[f"{name}/raw_{span}"]}
    return prior_with(kind, dtype, raw)


def maps(prior: Prior, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    tables = prior.tables(query.shape[-2])
    return logits(query, key, *tables, future_logit_zero=prior.future_logit_zero).softmax(-1)


# ---- recorded values


@DTYPES
@RECORDS
@pytest.mark.parametrize("kind", PRIORS)
def test_forms(kind, name, dtype, tolerance):
    key, learned = FORMS[kind]
    prior, want = recorded(name, kind, dtype), tensor(GOLDEN[f"{name}/{key}" if learned else key], dtype)
    query, keys, value = (tensor(GOLDEN[part], dtype) for part in "qkv")
    got = maps(prior, query, keys)
    assert got.dtype == dtype and (got - want).abs().max() < tolerance
    mixed = attend(query, keys, value, *prior.tables(12), future_logit_zero=prior.future_logit_zero)
    # Values are of order 3, so outputs have the same relative tolerance as the weights.
    assert (mixed - want @ value).abs().max() < tolerance * max(1.0, value.abs().max().item())


@DTYPES
@RECORDS
@pytest.mark.parametrize("kind,key", [
    ("gaussian", "paper_gaussian"), ("adaptive", "adaptive_ramp"), ("adaptive_gate", "code_adaptive"),
    ("gaussian_adaptive_gate", "code_gaam"),
])  # fmt: skip
def test_one_query_at_a_time(kind, key, name, dtype, tolerance):
    """The last query of every prefix; causal forms also equal the full matrix, the released gates do not."""
    prior = recorded(name, kind, dtype)
    query, keys = (tensor(GOLDEN[part], dtype) for part in "qk")
    rows = torch.zeros(4, 12, 12, dtype=dtype)
    for i in range(12):
        rows[:, i, : i + 1] = maps(prior, query[:, : i + 1], keys[:, : i + 1])[:, -1]
    assert (rows - tensor(GOLDEN[f"{name}/{key}_incremental"], dtype)).abs().max() < tolerance
    full = maps(prior, query, keys)
    assert torch.allclose(rows, full, rtol=0, atol=tolerance) == prior.causal


@DTYPES
@RECORDS
@pytest.mark.parametrize("kind,key", [
    ("gaussian", "gaussian"), ("gaussian_gate", "code_gaussian"), ("adaptive", "adaptive_ramp"),
    ("gaussian_adaptive", "gaam_ramp"),
])  # fmt: skip
def test_the_last_query_of_a_search_window(kind, key, name, dtype, tolerance):
    """Seven tokens: distances 6 .. 0 under priors that are built for longer windows."""
    prior = recorded(name, kind, dtype)
    scores = tensor(GOLDEN[f"{name}/window7_scores"], dtype)  # (H, 1, 7)
    scale, bias = (None if table is None else table.flip(-1)[:, None] for table in prior.tables(7))
    got = scores if scale is None else scores * scale
    got = (got if bias is None else got + bias).softmax(-1)
    assert got.dtype == dtype
    assert (got - tensor(GOLDEN[f"{name}/window7_{key}"], dtype)).abs().max() < tolerance


GRADIENTS = {
    ("adaptive", "span"): "d_adaptive_ramp/d_rawL",
    ("adaptive_hard", "span"): "d_adaptive_hard/d_rawL",
    ("gaussian", "mu"): "d_gaussian/d_rawmu",
    ("gaussian", "sigma"): "d_gaussian/d_rawsg",
    ("gaussian_adaptive", "span"): "d_gaam_ramp/d_rawL",
    ("gaussian_gate", "mu"): "d_code_gaussian/d_rawmu",
    ("adaptive_gate", "span"): "d_code_adaptive/d_rawL",
}


@pytest.mark.parametrize("through_attend", [False, True])
@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-8), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kind,parameter", GRADIENTS)
def test_gradients(kind, parameter, dtype, tolerance, through_attend):
    span = DERIVED["Lg" if kind.startswith("gaussian_adaptive") else "L"]
    raw = {"mu": DERIVED["mu"], "sigma": DERIVED["sg"], "span": span}
    prior = prior_with(kind, dtype, {name: np.log(np.expm1(value)) for name, value in raw.items()})
    query, key = (tensor(GOLDEN[name], dtype) for name in "qk")
    if through_attend:
        identity = torch.eye(12, dtype=dtype).expand(4, 12, 12)
        got = attend(query, key, identity, *prior.tables(12), future_logit_zero=prior.future_logit_zero)
    else:
        got = maps(prior, query, key)
    (got * tensor(DERIVED["G"], dtype)).sum().backward()
    error = prior.raw[parameter].grad - tensor(DERIVED[GRADIENTS[kind, parameter]], dtype)
    assert error.abs().max() < tolerance


@pytest.mark.parametrize("kind", PRIORS)
def test_gradcheck(kind):
    """Analytic gradients of inputs and raw parameters against finite differences, spans off the integers."""
    generator = torch.Generator().manual_seed(3)
    query, key, value = (
        torch.randn(2, 2, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    prior = PriorConfig(kind=kind, mu=1.4, sigma=0.8, span=1.3, ramp=2.15, local_window=2).build(2, 5).double()
    lengths = torch.tensor([3, 5])

    def forward(query, key, value, *raw):
        return attend(query, key, value, *prior.tables(5), lengths, future_logit_zero=prior.future_logit_zero)

    assert torch.autograd.gradcheck(forward, (query, key, value, *prior.parameters()))


# ---- tables and limits


@pytest.mark.parametrize("kind", PRIORS)
def test_learned_values_and_shapes(kind):
    prior = PriorConfig(kind=kind, mu=6, sigma=1, span=10).build(8, 50)
    learned = prior.learned()
    assert tuple(learned) == FORMS[kind][1]
    assert sum(p.numel() for p in prior.parameters()) == 8 * len(learned)
    for name, value in learned.items():
        assert value.shape == (8,)
        torch.testing.assert_close(value, torch.full((8,), {"mu": 6.0, "sigma": 1.0, "span": 10.0}[name]))
    for table in prior.tables(20):
        assert table is None or (table.shape == (8, 20) and table.dtype == torch.float32)
    assert prior.causal == (kind not in ("adaptive_gate", "gaussian_adaptive_gate"))
    assert not [name for name in prior.state_dict() if "raw" not in name]
    for dtype, expected in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        tables = PriorConfig(kind=kind).build(2, 500).to(dtype).tables(500)
        assert kind == "local" or {table.dtype for table in tables if table is not None} <= {expected}
    with pytest.raises(ValueError, match="a window of 51 exceeds the 50"):
        prior._distances(51)
    for rule, penalty in {"none": 0.0, "l1": 40.0, "l1_mean": 5.0}.items():  # half of the spans' sum or mean
        config = PriorConfig(kind=kind, regulariser=rule, regulariser_weight=0.5, span=10.0)
        assert config.build(8, 50).regularisation().item() == pytest.approx(penalty if kind in SPANS else 0.0)


def test_distances_survive_a_cast_to_bfloat16():
    """Position 301 is not a bfloat16 number; a rounded table would repeat its neighbour's value."""
    prior = PriorConfig(kind="gaussian", mu=300.0).build(1, 310).to(torch.bfloat16)
    _, bias = prior.tables(310)
    assert len(bias[0, 290:310].unique()) > 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind,span,kept", [
    ("adaptive_hard", 10.0, 11), ("adaptive_hard", 4.5, 5), ("gaussian_adaptive_hard", 7.0, 8),
    ("adaptive", 1.9, 6), ("gaussian_adaptive", 1.9, 6),  # not merely small beyond the ramp
])  # fmt: skip
def test_spans_include_their_end_and_mask_the_rest(kind, span, kept, dtype):
    _, bias = PriorConfig(kind=kind, span=span, ramp=4.0).build(2, 30).to(dtype).tables(30)
    assert bias.isfinite().sum(-1).tolist() == [kept, kept]


@pytest.mark.parametrize("kind", SPANS)
def test_spans_are_capped_and_projected_and_keep_their_gradient(kind):
    assert PriorConfig(kind=kind, span=30.0, max_span=40.0).build(2, 12).span().max() > 29
    prior = PriorConfig(kind=kind, span=30.0).build(2, 12)
    for raw in (None, 100.0):  # at the cap from the start, and brought back below it
        with torch.no_grad():
            prior.raw["span"].copy_(prior.raw["span"] if raw is None else torch.full((2,), raw))
        if raw:
            prior.project()
        prior.zero_grad()
        torch.testing.assert_close(prior.span(), torch.full((2,), 12.0))
        prior.span().sum().backward()
        assert (prior.raw["span"].grad > 0.9).all()
    tight = PriorConfig(kind=kind, span=10.0, max_norm=4.0).build(3, 50)
    with torch.no_grad():
        tight.raw["span"][0] = 1.0
    before = tight.span()[0].item()
    tight.project()
    assert tight.span()[0].item() == before
    assert (tight.span() <= 4.0).all() and (tight.span()[1:] > 3.999).all()


def test_a_preferred_distance_on_its_bound_keeps_its_gradient():
    free = PriorConfig(kind="gaussian", mu=30.0).build(2, 50)
    free.project()
    torch.testing.assert_close(free.mu(), torch.full((2,), 30.0))  # no bound by default
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


@pytest.mark.parametrize("raw", [-80.0, -20.0, 80.0])
@pytest.mark.parametrize("kind", [kind for kind, (_, learned) in FORMS.items() if learned])
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


@pytest.mark.parametrize("change,word", [
    ({"kind": "gausian"}, "gaussian"), ({"kind": "gaussian", "sigma": 0.0}, "sigma"), ({"mu": math.nan}, "mu"),
    ({"ramp": -1.0}, "ramp"), ({"kind": "local", "local_window": -1}, "local_window"), ({"max_norm": 0.0}, "max_norm"),
    ({"kind": "adaptive", "regulariser": "l3"}, "regulariser"),
])  # fmt: skip
def test_wrong_values_are_named(change, word):
    with pytest.raises(ValueError, match=word):
        PriorConfig(**change).build(2, 10)
