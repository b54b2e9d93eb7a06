"""A world model's configuration: first values of priors, their bounds and regularisers, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from unizero_models import ACTIONS, VECTOR, config, model

from dqn_memory.blocks import PriorConfig
from dqn_memory.runs.errors import UserError
from world_models.unizero.config import EncoderConfig, ModelConfig
from world_models.unizero.networks import build

GRADIENTS = Path(__file__).parents[1] / "data" / "attention" / "attention_grads.npz"


@pytest.mark.parametrize(("kind", "key"), [
    ("l1", "reg_l1_sum"), ("l1_mean", "reg_l1_mean_branch"), ("l2", "reg_l2_sum"), ("max", "reg_max"),
])  # fmt: skip
def test_recorded_regularisers(kind, key):
    golden = np.load(GRADIENTS)
    net = model(
        PriorConfig(kind="adaptive", span=2.0, regulariser=kind, regulariser_weight=0.025, max_span=20.0),
        width=32,
        heads=4,
    )
    for attention, spans in zip(net.attentions(), torch.from_numpy(golden["reg_spans"]), strict=True):
        with torch.no_grad():
            attention.prior.raw["span"].copy_(spans.expm1().log())
    assert net.regularisation().item() == pytest.approx(golden[key].item(), rel=1e-12)


@pytest.mark.parametrize(("kind", "values"), [
    ("adaptive", {"span": 6.0}),
    ("gaussian", {"mu": 6.0, "sigma": 1.0}),
    ("gaussian_adaptive", {"mu": 6.0, "sigma": 1.0, "span": 10.0}),
    ("gaussian_adaptive_gate", {"mu": 6.0, "sigma": 1.0, "span": 10.0}),
    ("adaptive_hard", {"span": 6.0}),
])  # fmt: skip
def test_priors_start_where_the_paper_starts_them(kind, values):
    sizes = {"width": 16, "heads": 2, "layers": 2, "horizon": 10}
    net = build(ModelConfig(**sizes).with_prior(kind), VECTOR, ACTIONS)
    scalars = net.memory_scalars()
    want = {f"memory/{layer}.{head}.{name}": value for layer in range(2) for head in range(2)
            for name, value in values.items()}  # fmt: skip
    assert scalars == pytest.approx(want, rel=1e-6)
    assert net.attentions()[0].prior.cap == 20  # tokens: twice the horizon


def test_mu_has_no_bound_unless_asked_for():
    free = model("gaussian")
    bound = model(PriorConfig(kind="gaussian", mu_max=9.0))
    for net in (free, bound):
        with torch.no_grad():
            net.attentions()[0].prior.raw["mu"].fill_(50.0)
    assert free.memory_scalars()["memory/0.0.mu"] == pytest.approx(50)
    assert bound.memory_scalars()["memory/0.0.mu"] == pytest.approx(9)
    bound.project()
    assert bound.attentions()[0].prior.raw["mu"].max() < 9.01


@pytest.mark.parametrize(
    ("kind", "value"), [("l1", 26.0), ("l1_mean", 6.5), ("l2", 1 + 81 + 36 + 100), ("max", 10.0), ("none", 0.0)]
)
def test_regularisers_act_on_all_layers_together(kind, value):
    net = model(PriorConfig(kind="adaptive", span=2.0, regulariser=kind, regulariser_weight=0.5, max_span=20.0))
    for attention, spans in zip(net.attentions(), [[1.0, 9.0], [6.0, 10.0]], strict=True):
        with torch.no_grad():
            attention.prior.raw["span"].copy_(torch.tensor(spans, dtype=torch.float64).expm1().log())
    assert net.regularisation().item() == pytest.approx(0.5 * value, rel=1e-6)


def test_span_diversity_by_hand():
    net = model("gaussian", span_diversity=0.3)
    for attention, centres in zip(net.attentions(), [[2.0, 3.0], [1.0, 5.0]], strict=True):
        with torch.no_grad():
            attention.prior.raw["mu"].copy_(torch.tensor(centres, dtype=torch.float64).expm1().log())
            attention.prior.raw["sigma"].copy_(torch.tensor([1.0, 9.0], dtype=torch.float64).expm1().log())
    e = lambda x: torch.exp(torch.tensor(-0.5 * x * x, dtype=torch.float64)).item()  # noqa: E731
    assert net.regularisation().item() == pytest.approx(0.3 * (e(1) + e(4) + 2 * e(8)), rel=1e-9)


@pytest.mark.parametrize(("changes", "words"), [
    ({"width": 20}, "--width 20 must be a multiple of 8"),
    ({"heads": 3}, "--heads 3 does not divide --width 16"),
    ({"context": 7}, "--context 7 must be an even number"),
    ({"context": 12}, "--context 12 tokens do not fit"),
    ({"gate": "gruu"}, "did you mean 'gru'"),
    ({"dynamics": "recurent"}, "did you mean 'recurrent'"),
    ({"prior": PriorConfig(kind="gausian")}, "did you mean 'gaussian'"),
    ({"prior": PriorConfig(kind="gaussian", mu=10.0)}, "--mu 10.0 of the gaussian prior does not fit: it must be"),
    ({"prior": PriorConfig(kind="local", local_window=10)}, "--local-window 10 of the local prior does not fit"),
    ({"prior": PriorConfig(kind="adaptive", span=11.0)}, "--span 11.0 of the adaptive prior does not fit"),
    ({"prior": PriorConfig(kind="gaussian", sigma=-1.0)}, "prior sigma is -1.0"),
    ({"width": 24, "heads": 8, "rotary": True}, "--rotary needs heads of even width"),
    ({"prior": PriorConfig(kind="adaptive", regulariser_weight=-1.0)}, "--regulariser-weight -1.0 must not be"),
    ({"encoder": EncoderConfig(channels=0)}, "--channels 0 must be at least 1"),
    ({"encoder": EncoderConfig(hidden=-3)}, "--hidden -3 must be at least 1"),
    ({"encoder": EncoderConfig(token_width=-1)}, "--token-width -1 must be at least 1"),
    ({"span_diversity": -1.0}, "--span-diversity -1.0 must not be negative"),
])  # fmt: skip
def test_what_cannot_work_is_said_in_one_sentence(changes, words):
    with pytest.raises(UserError, match=words) as caught:
        build(config(**changes), VECTOR, ACTIONS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("changes", "words"), [
    ({"dynamics": "recurrent", "gate": "gru"}, "--gate gru changes nothing in --dynamics recurrent"),
    ({"dynamics": "recurrent", "prior": PriorConfig(kind="local")}, "--prior local changes nothing"),
    ({"dynamics": "gru", "prior": PriorConfig(kind="gaussian")}, "--prior gaussian changes nothing in --dynamics gru"),
    ({"dynamics": "gru", "rotary": True}, "--rotary changes nothing in --dynamics gru"),
    ({"dynamics": "recurrent", "span_diversity": 0.5}, "--span-diversity 0.5 changes nothing"),
])  # fmt: skip
def test_options_that_the_dynamics_never_read_are_refused(changes, words):
    with pytest.raises(UserError, match=words) as caught:
        config(**changes).check_used()
    assert "\n" not in str(caught.value)


def test_gates_of_a_recurrence_and_details_of_a_prior_that_is_not_chosen_are_allowed():
    details = PriorConfig(local_window=3, mu=4.0, regulariser="l1", regulariser_weight=0.025)
    for dynamics in ("transformer", "gru"):
        config(dynamics=dynamics, gate="gru", prior=details).check_used()
    config(dynamics="recurrent", prior=details).check_used()
