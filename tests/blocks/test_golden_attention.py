"""Attention forms and their gradients against recorded float64 values, which were not computed with this code."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dqn_memory.blocks.attention import attend, logits
from dqn_memory.blocks.priors import PRIORS, Prior, PriorConfig

DATA = Path(__file__).parents[1] / "data" / "attention"
FORMS = {
    "adaptive_hard": "paper_adaptive_hard",
    "adaptive": "adaptive_ramp",
    "adaptive_ramp_gate": "thesis_adaptive_ramp_logitmul",
    "gaussian": "paper_gaussian",
    "gaussian_adaptive_hard": "paper_gaam_hard",
    "gaussian_adaptive": "gaam_ramp",
    "adaptive_gate": "code_adaptive_full",
    "gaussian_gate": "code_gaussian",
    "gaussian_adaptive_gate": "code_gaam_full",
}
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 1e-6)]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(DATA / "attention.npz"))


@pytest.fixture(scope="module")
def gradients() -> dict[str, np.ndarray]:
    return dict(np.load(DATA / "attention_grads.npz"))


def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array)).to(dtype)


def inverse_softplus(value: np.ndarray) -> np.ndarray:
    return np.log(np.expm1(value))


def prior_with(kind: str, dtype: torch.dtype, raw: dict[str, np.ndarray], heads: int = 4) -> Prior:
    prior = PriorConfig(kind=kind, local_window=2, ramp=3.0, max_span=20.0).build(heads, 12).to(dtype)
    with torch.no_grad():
        for name, parameter in prior.raw.items():
            parameter.copy_(tensor(raw[name], dtype))
    return prior


def raw_values(golden: dict[str, np.ndarray], name: str, kind: str) -> dict[str, np.ndarray]:
    span = "Lg" if kind.startswith("gaussian_adaptive") else "L"
    return {
        "mu": golden[f"{name}/raw_mu"],
        "sigma": golden[f"{name}/raw_sg"],
        "span": golden[f"{name}/raw_{span}"],
    }


def maps(prior: Prior, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    tables = prior.tables(query.shape[-2])
    return logits(query, key, *tables, future_logit_zero=prior.future_logit_zero).softmax(-1)


def check_forms(
    golden: dict[str, np.ndarray], prior: Prior, expected: np.ndarray, dtype: torch.dtype, tolerance: float
) -> None:
    query, key, value = (tensor(golden[name], dtype) for name in "qkv")
    want = tensor(expected, dtype)
    got = maps(prior, query, key)
    assert got.dtype == dtype
    assert (got - want).abs().max() < tolerance
    mixed = attend(query, key, value, *prior.tables(12), future_logit_zero=prior.future_logit_zero)
    # Values are of order 3, so outputs are held to the same relative accuracy as the weights.
    assert (mixed - want @ value).abs().max() < tolerance * max(1.0, value.abs().max().item())


@pytest.mark.parametrize("dtype,tolerance", TOLERANCES)
@pytest.mark.parametrize("kind,key", [("causal", "causal"), ("local", "local_w2")])
def test_fixed_forms(golden, kind, key, dtype, tolerance):
    check_forms(golden, prior_with(kind, dtype, {}), golden[key], dtype, tolerance)


@pytest.mark.parametrize("dtype,tolerance", TOLERANCES)
@pytest.mark.parametrize("name", ["seed", "mixed"])
@pytest.mark.parametrize("kind", FORMS)
def test_learned_forms(golden, kind, name, dtype, tolerance):
    prior = prior_with(kind, dtype, raw_values(golden, name, kind))
    check_forms(golden, prior, golden[f"{name}/{FORMS[kind]}"], dtype, tolerance)


def test_every_prior_has_a_recorded_form():
    assert {*FORMS, "causal", "local"} == set(PRIORS)


@pytest.mark.parametrize("dtype,tolerance", TOLERANCES)
@pytest.mark.parametrize("name", ["seed", "mixed"])
@pytest.mark.parametrize(
    "kind,key",
    [
        ("gaussian", "paper_gaussian_incremental"),
        ("adaptive", "adaptive_ramp_incremental"),
        ("adaptive_gate", "code_adaptive_incremental"),
        ("gaussian_adaptive_gate", "code_gaam_incremental"),
    ],
)
def test_one_query_at_a_time(golden, kind, key, name, dtype, tolerance):
    """The last query of every prefix; causal forms also equal the full matrix, the released gates do not."""
    prior = prior_with(kind, dtype, raw_values(golden, name, kind))
    query, keys = (tensor(golden[part], dtype) for part in "qk")
    rows = torch.zeros(4, 12, 12, dtype=dtype)
    for i in range(12):
        rows[:, i, : i + 1] = maps(prior, query[:, : i + 1], keys[:, : i + 1])[:, -1]
    assert (rows - tensor(golden[f"{name}/{key}"], dtype)).abs().max() < tolerance
    full = maps(prior, query, keys)
    assert torch.allclose(rows, full, rtol=0, atol=tolerance) == prior.causal


@pytest.mark.parametrize("dtype,tolerance", TOLERANCES)
@pytest.mark.parametrize("name", ["seed", "mixed"])
@pytest.mark.parametrize("kind,key", [
    ("gaussian", "gaussian"),
    ("gaussian_gate", "code_gaussian"),
    ("adaptive", "adaptive_ramp"),
    ("gaussian_adaptive", "gaam_ramp"),
])  # fmt: skip
def test_the_last_query_of_a_search_window(golden, kind, key, name, dtype, tolerance):
    """Seven tokens: distances 6 .. 0 under priors that are built for longer windows."""
    prior = prior_with(kind, dtype, raw_values(golden, name, kind))
    scores = tensor(golden[f"{name}/window7_scores"], dtype)  # (H, 1, 7)
    scale, bias = (None if table is None else table.flip(-1)[:, None] for table in prior.tables(7))
    got = scores if scale is None else scores * scale
    got = (got if bias is None else got + bias).softmax(-1)
    assert got.dtype == dtype
    assert (got - tensor(golden[f"{name}/window7_{key}"], dtype)).abs().max() < tolerance


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
def test_gradients(golden, gradients, kind, parameter, dtype, tolerance, through_attend):
    span = gradients["Lg" if kind.startswith("gaussian_adaptive") else "L"]
    raw = {"mu": gradients["mu"], "sigma": gradients["sg"], "span": span}
    prior = prior_with(kind, dtype, {name: inverse_softplus(value) for name, value in raw.items()})
    query, key = (tensor(golden[name], dtype) for name in "qk")
    if through_attend:
        identity = torch.eye(12, dtype=dtype).expand(4, 12, 12)
        got = attend(query, key, identity, *prior.tables(12), future_logit_zero=prior.future_logit_zero)
    else:
        got = maps(prior, query, key)
    (got * tensor(gradients["G"], dtype)).sum().backward()
    error = prior.raw[parameter].grad - tensor(gradients[GRADIENTS[kind, parameter]], dtype)
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


@pytest.mark.parametrize("rule,key", [("l1", "reg_l1_sum"), ("l2", "reg_l2_sum"), ("max", "reg_max")])
def test_regulariser(gradients, rule, key):
    """Sums over layers and heads; the largest span is taken over all of them by taking it per layer."""
    penalties = []
    for spans in gradients["reg_spans"]:
        config = PriorConfig(kind="adaptive", max_span=1e3, regulariser=rule, regulariser_weight=0.025)
        prior = config.build(4, 12).double()
        with torch.no_grad():
            prior.raw["span"].copy_(torch.from_numpy(inverse_softplus(spans)))
        penalties.append(prior.regularisation())
    total = torch.stack(penalties).amax() if rule == "max" else torch.stack(penalties).sum()
    assert total.item() == pytest.approx(float(gradients[key]), rel=1e-7)
