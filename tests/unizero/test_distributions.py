"""Value transforms, two-hot codes, SimNorm and divergences against recorded and hand-computed values."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from world_models import distributions as d

DATA = Path(__file__).parents[1] / "data" / "unizero"
NORMS = dict(np.load(DATA / "simnorm.npz"))
GOLDEN = NORMS | dict(np.load(DATA / "value_transform.npz"))
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 1e-6)]
VALUES = [(torch.float64, 1e-10, 1e-12), (torch.float32, 1e-4, 2e-3)]  # relative, floor


def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array)).to(dtype)


@pytest.mark.parametrize(("dtype", "relative", "floor"), VALUES)
def test_golden_value_transform(dtype, relative, floor):
    code = d.value_code()
    x = tensor(GOLDEN["x"], dtype)
    close = {"rtol": relative, "atol": floor}
    torch.testing.assert_close(d.value_transform(x), tensor(GOLDEN["h"], dtype), **close)
    torch.testing.assert_close(code.encode(x), tensor(GOLDEN["two_hot"], dtype), rtol=relative, atol=floor)
    decoded = d.inverse_value_transform((code.encode(x) * torch.arange(-50, 51)).sum(-1))
    torch.testing.assert_close(decoded, tensor(GOLDEN["decoded"], dtype), **close)
    torch.testing.assert_close(code.decode(tensor(GOLDEN["logits"], dtype)), tensor(GOLDEN["logits_decoded"], dtype),
                               **close)  # fmt: skip
    limit = d.inverse_value_transform(torch.tensor(50.0, dtype=dtype))
    torch.testing.assert_close(limit, tensor(GOLDEN["h_inv_50"], dtype), **close)
    assert torch.equal(d.two_hot(torch.tensor([-50.0, 50.0]), -50, 50, 101).argmax(-1), torch.tensor([0, 100]))


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_golden_cross_entropy_simnorm_and_group_kl(dtype, tolerance):
    close = {"rtol": tolerance, "atol": tolerance}
    given = {name: tensor(GOLDEN[name], dtype) for name in GOLDEN}
    torch.testing.assert_close(d.cross_entropy(given["logits"], given["ce_target"]), given["ce_loss"], **close)
    torch.testing.assert_close(d.simnorm(tensor(NORMS["x"], dtype)), given["y"], rtol=0, atol=tolerance)
    torch.testing.assert_close(d.group_kl(given["kl_pred"], given["kl_target"]), given["kl_loss"], **close)


@given(st.floats(-2300, 2300), st.sampled_from([d.value_code(), d.symlog_code()]))
def test_decoding_undoes_encoding(x, code):
    logits = code.encode(torch.tensor(x, dtype=torch.float64)).clamp(min=1e-300).log()
    assert code.decode(logits).item() == pytest.approx(x, rel=1e-9, abs=1e-9)


@given(st.floats(-20, 20), st.integers(2, 255))
def test_two_hot_has_at_most_two_weights_and_the_right_mean(x, bins):
    weights = d.two_hot(torch.tensor(x, dtype=torch.float64), -15, 15, bins)
    points = torch.linspace(-15, 15, bins, dtype=torch.float64)
    assert (weights > 0).sum() <= 2
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert (weights @ points).item() == pytest.approx(min(max(x, -15), 15), abs=1e-11)


def test_gradients_at_zero_are_finite():
    x = torch.zeros(2, requires_grad=True)
    (d.value_transform(x) + d.inverse_value_transform(x)).sum().backward()
    assert x.grad.isfinite().all()
