"""Lambda returns, their scale and the horizon's growth: golden values, definitions, limits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqn_memory.runs.errors import UserError
from world_models.distributions import SymlogCode
from world_models.glam.agent import ReturnScale, lambda_return, percentile
from world_models.glam.config import HorizonConfig

GOLDEN = np.load(Path(__file__).parent.parent / "data" / "glam" / "glam_losses.npz")
GAMMA, LAM = 0.985, 0.95
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def golden(name, dtype=torch.float64):
    """Time first."""
    return torch.from_numpy(GOLDEN[name]).to(dtype).T


def close(ours, wanted, tolerance):
    assert (ours.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


@DTYPES
@pytest.mark.parametrize(("form", "name"), [("textbook", "textbook"), ("released", "as_coded")])
def test_golden_lambda_returns(form, name, dtype):
    reward, value, ended = (golden(each, dtype) for each in ("reward", "value", "termination"))
    returns = lambda_return(reward, value, ended, GAMMA, LAM, form)
    assert returns.dtype == dtype
    close(returns, golden(f"lambda_return_{name}"), TOLERANCE[dtype])
    assert torch.equal(returns, lambda_return(reward, value, ended.bool(), GAMMA, LAM, form))


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 7), seed=st.integers(0, 2**20), lam=st.floats(0, 1), gamma=st.floats(0, 1))
def test_the_return_is_the_mixture_of_n_step_returns(steps, seed, lam, gamma):
    """Sutton and Barto (2018), eq. 12.18: weights (1 - lam) lam^(n-1), the rest on the longest."""
    generator = torch.Generator().manual_seed(seed)
    reward, ended = torch.randn(steps, generator=generator).double(), torch.rand(steps, generator=generator) < 0.2
    value = torch.randn(steps + 1, generator=generator).double()
    returns = lambda_return(reward, value, ended, gamma, lam)
    for t in range(steps):
        longest, expected = steps - t, 0.0
        for n in range(1, longest + 1):
            weight = (1 - lam) * lam ** (n - 1) if n < longest else lam ** (n - 1)
            expected += weight * n_step(reward, value, ended, gamma, t, n)
        assert float(returns[t]) == pytest.approx(expected, abs=1e-9)


def n_step(reward, value, ended, gamma, t, n):
    total, discount = 0.0, 1.0
    for at in range(t, t + n):
        total += discount * float(reward[at])
        discount *= 0.0 if ended[at] else gamma
    return total + discount * float(value[t + n])


def test_batches_are_apart_and_bfloat16_is_widened():
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn(5, 3, 2, generator=generator), torch.randn(6, 3, 2, generator=generator)
    ended = torch.rand(5, 3, 2, generator=generator) < 0.3
    returns = lambda_return(reward, value, ended, GAMMA, LAM)
    for row in range(3):
        assert torch.equal(returns[:, row], lambda_return(reward[:, row], value[:, row], ended[:, row], GAMMA, LAM))
    assert lambda_return(reward.bfloat16(), value.bfloat16(), ended, GAMMA, LAM).dtype == torch.float32


def test_the_released_form_differs_where_values_change():
    reward, ended = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    rising = torch.tensor([0.0, 1.0, 2.0, 3.0])
    textbook, released = (lambda_return(reward, rising, ended, 1.0, 0.0, form) for form in ("textbook", "released"))
    assert textbook.tolist() == [1.0, 2.0, 3.0]
    assert released.tolist() == [0.0, 1.0, 2.0]


# Scale


def test_golden_percentiles():
    x = torch.from_numpy(GOLDEN["percentile_x"])
    ours = torch.stack([percentile(x, share) for share in (0.05, 0.95)])
    assert torch.equal(ours, torch.from_numpy(GOLDEN["percentile_05_95_kth"]))
    assert percentile(torch.tensor([3.0, 1.0]), 0.05) == 1.0  # of few entries the smallest


def test_the_scale_follows_the_percentiles_from_zero():
    scale, low, high = ReturnScale(), 0.0, 0.0
    assert float(scale.value) == 1.0
    for step in range(30):
        returns = 40 * torch.randn(8, 50, generator=torch.Generator().manual_seed(step))
        low, high = (
            0.99 * old + 0.01 * float(returns.flatten().sort().values[int(share * 400) - 1])
            for old, share in ((low, 0.05), (high, 0.95))
        )
        assert float(scale.update(returns)) == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert float(scale.value) > 10
    other = ReturnScale()
    other.load_state_dict(scale.state_dict())
    assert torch.equal(other.value, scale.value)
    assert not list(scale.parameters())


def test_golden_decoding_of_two_hot_logits():
    code = SymlogCode()
    for dtype, tolerance in TOLERANCE.items():
        logits = torch.from_numpy(GOLDEN["twohot_logits"]).to(dtype)
        close(code.decode(logits), torch.from_numpy(GOLDEN["decode"]), tolerance)
    x = torch.tensor([-4000.0, -1.0, 0.0, 0.3, 20_000.0]).double()
    assert torch.allclose(code.decode(code.encode(x).log()), x, rtol=1e-10)
    assert float(code.decode(code.encode(torch.tensor(1000.0)).log().bfloat16())) == pytest.approx(1000, rel=0.02)


# Horizon


@pytest.mark.parametrize(("step", "stepped"), [(0, 16), (24_999, 16), (25_000, 24), (50_000, 32), (99_999, 32)])
def test_the_horizon_of_the_paper(step, stepped):
    assert HorizonConfig().at(step) == stepped


@pytest.mark.parametrize(("step", "smooth"), [(0, 16), (3_125, 17), (25_000, 24), (50_000, 32), (100_000, 48)])
def test_the_horizon_of_the_code(step, smooth):
    assert HorizonConfig("smooth", maximum=48).at(step) == smooth


def test_horizons_that_cannot_work_are_one_sentence():
    for wrong in ({"start": 0}, {"growth": -1}, {"growth_every": 0}, {"maximum": 15}):
        with pytest.raises(UserError, match=r"must (be at least|not be negative)"):
            HorizonConfig(**wrong).check()
    HorizonConfig(start=16, maximum=16).check()
