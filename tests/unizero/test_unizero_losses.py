"""Losses by hand and their masks; the learner's groups, clip, target and modes; value targets."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unizero_models import ACTIONS, IMAGE, VECTOR, config, model, simplex, stored

from dqn_memory.blocks import PriorConfig
from world_models.distributions import value_code
from world_models.unizero.config import UniZeroLearnerConfig
from world_models.unizero.networks import UniZeroPredictions, build_unizero
from world_models.unizero.replay import Sequences
from world_models.unizero.train import (
    UniZeroBatch,
    bootstrap_values,
    make_adamw,
    make_batch,
    make_target,
    n_step_targets,
    target_latents,
    target_values,
    unizero_losses,
    update_unizero,
)


def fresh(prior="causal", spec=VECTOR, **changes):
    torch.manual_seed(0)
    return build_unizero(config(prior, **changes), spec, ACTIONS)


def updated(net, steps=1, data=None, **settings):
    """The target after some updates on one batch, and what was logged of each."""
    target, chosen = make_target(net), UniZeroLearnerConfig(**settings)
    optimizer, data = make_adamw(net, chosen), data or batch(net)
    return target, [update_unizero(net, target, optimizer, data, chosen) for _ in range(steps)]


def batch(net, lengths=(5, 5, 5, 5)):
    """Sequences of five steps, of which so many are real, with random values and peaked policies."""
    values = 5 * torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    data = make_batch(stored(net.spec), lambda *_: values, 0.997, 2)
    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    return replace(data, mask=real, policy=(9 * data.policy.log()).softmax(-1))


def test_losses_by_hand():
    """Two steps and one of padding, support 1: bins -1, 0, 1; everything is written out from the formulas."""
    double = lambda *p: torch.tensor([p], dtype=torch.float64)  # noqa: E731
    logs = lambda *p: double(*p).log()  # noqa: E731
    ones = logs(1, 1, 1)
    said = UniZeroPredictions(
        reward=torch.stack((logs(0.2, 0.5, 0.3), logs(0.1, 0.8, 0.1), ones), 1),
        next_latent=torch.full((1, 3, 16), 1 / 8, dtype=torch.float64),
        policy=torch.stack((logs(0.5, 0.25, 0.25), logs(0.9, 0.05, 0.05), ones), 1),
        value=torch.stack((logs(0.6, 0.3, 0.1), logs(0.25, 0.25, 0.5), ones), 1),
    )
    net = lambda latent, action, lengths: said if lengths.tolist() == [2] else None  # noqa: E731
    net.code, net.encode = value_code(1), lambda observation: observation
    h = lambda x: math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x  # noqa: E731
    data = UniZeroBatch(
        observation=torch.zeros(1, 3, 4), action=torch.zeros(1, 3, dtype=torch.int64),
        reward=double(0.0, -1.0, 9.0), value=double(1.5, 50.0, 9.0),
        policy=double([0.6, 0.4, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]), mask=torch.tensor([[True, True, False]]),
        left=torch.tensor([2]), truncated=torch.tensor([False]),
    )  # fmt: skip
    target = torch.zeros(1, 3, 16, dtype=torch.float64)
    target[0, 1] = torch.tensor([1.0] + [0] * 7 + [0.5, 0.5] + [0] * 6)
    low, high = 1e-6, 1 / 8 + 1e-6
    first = (1 + low) * math.log((1 + low) / high) + 7 * low * math.log(low / high)
    second = 2 * (0.5 + low) * math.log((0.5 + low) / high) + 6 * low * math.log(low / high)
    w, v = -h(-1), h(1.5)
    want = {
        "latent": (first + second) / 2,
        "reward": -(math.log(0.5) + w * math.log(0.1) + (1 - w) * math.log(0.8)) / 2,
        "value": -((1 - v) * math.log(0.3) + v * math.log(0.1) + math.log(0.5)) / 2,
        "policy": -(0.6 * math.log(0.5) + 0.4 * math.log(0.25) + math.log(0.05)) / 2,
        "entropy": -(0.5 * math.log(0.5) + 0.5 * math.log(0.25) + 0.9 * math.log(0.9) + 0.1 * math.log(0.05)) / 2,
    }
    sum_of_parts = 10 * want["latent"] + want["reward"] + 0.5 * want["value"] + want["policy"] - 1e-4 * want["entropy"]
    total, metrics = unizero_losses(net, data, target)
    assert total.item() == pytest.approx(sum_of_parts, rel=1e-12)
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(
        {f"losses/{name}": value for name, value in want.items()}, rel=1e-12
    )


@pytest.mark.parametrize("prior", ["causal", "gaussian_adaptive", "adaptive_gate"])
def test_padding_teaches_nothing(prior):
    net = model(prior)
    data, target = batch(net, lengths=[5, 2, 1, 0]), simplex(4, 5)
    hidden = ~data.mask
    other = replace(
        data, observation=torch.where(hidden[..., None], torch.full_like(data.observation, 9.0), data.observation),
        action=torch.where(hidden, (data.action + 1) % ACTIONS, data.action),
        reward=torch.where(hidden, 1e9, data.reward), value=torch.where(hidden, 1e9, data.value),
        policy=torch.where(hidden[..., None], 1e3, data.policy),
    )  # fmt: skip
    grads = []
    for this, latents in ((data, target), (other, torch.where(hidden[..., None], 1e3, target))):
        net.zero_grad()
        total, metrics = unizero_losses(net, this, latents)
        assert all(value.isfinite() for value in metrics.values())
        total.backward()
        grads.append([total.detach(), *(p.grad for p in net.parameters() if p.grad is not None)])
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-12)


def test_the_gradient_reaches_the_encoder_and_not_the_target():
    net = model()
    data = batch(net)
    target = make_target(net)
    total, _ = unizero_losses(net, data, target_latents(target, data.observation))
    total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.encoder.parameters())
    assert all(p.grad is None for p in target.parameters())


def test_decay_is_for_matrices_alone():
    net = model("gaussian_adaptive", spec=IMAGE, dropout=0.1)
    optimizer = make_adamw(net, UniZeroLearnerConfig())
    decayed, plain = (group["params"] for group in optimizer.param_groups)
    assert {p.ndim for p in decayed} == {2, 4} and {p.ndim for p in plain} == {1}
    assert len(decayed) + len(plain) == len(list(net.parameters()))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1e-4, 0]
    assert optimizer.defaults["lr"] == 1e-4 and optimizer.defaults["betas"] == (0.9, 0.95)
    assert optimizer.defaults["eps"] == 1e-8
    raw = {id(p) for attention in net.attentions() for p in attention.prior.parameters()}
    assert len(raw) == 6 and raw <= {id(p) for p in plain}
    groups = make_adamw(net, UniZeroLearnerConfig(prior_learning_rate=0.1)).param_groups
    assert {id(p) for p in groups[2]["params"]} == raw and groups[2]["lr"] == 0.1
    assert sum(len(group["params"]) for group in groups) == len(list(net.parameters()))


DYNAMICS = [
    ("transformer", "gaussian_adaptive"),
    ("gru", "causal"),
    pytest.param("transformer", "causal", marks=pytest.mark.long),
    pytest.param("transformer", "gaussian_adaptive_gate", marks=pytest.mark.long),
    pytest.param("recurrent", "causal", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("dynamics", "prior"), DYNAMICS)
def test_a_fixed_batch_is_learned(dynamics, prior):
    net = fresh(prior, dynamics=dynamics)
    _, history = updated(net, 60, learning_rate=3e-3)
    for name in ("value", "policy", "reward"):
        assert history[-1][f"losses/{name}"] < 0.9 * history[0][f"losses/{name}"], name
    moved = [attention.prior.learned() for attention in net.attentions()]
    assert all((value - value[0]).abs().max() > 1e-4 for heads in moved for value in heads.values())


def test_the_target_is_a_moving_average():
    net = fresh()
    want = [p.detach().clone() for p in net.parameters()]
    target, chosen = make_target(net), UniZeroLearnerConfig(learning_rate=1e-2, target_update_rate=0.05)
    optimizer, data = make_adamw(net, chosen), batch(net)
    for _ in range(4):
        update_unizero(net, target, optimizer, data, chosen)
        want = [0.95 * old + 0.05 * new.detach() for old, new in zip(want, net.parameters(), strict=True)]
    torch.testing.assert_close([p.detach() for p in target.parameters()], want)
    assert any(not torch.equal(a, b) for a, b in zip(target.parameters(), net.parameters(), strict=True))


def test_the_clip_bounds_a_step_of_gradient_descent():
    net = model()
    before = [p.detach().clone() for p in net.parameters()]
    descent, chosen = torch.optim.SGD(net.parameters(), lr=1.0), UniZeroLearnerConfig(max_grad_norm=0.25)
    assert update_unizero(net, make_target(net), descent, batch(net), chosen)["grad/norm"] > 0.25
    moved = torch.cat([(a - b).flatten() for a, b in zip(net.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)


def test_the_regulariser_is_in_the_loss_and_the_bound_is_kept():
    prior = PriorConfig(kind="adaptive_hard", span=3.0, ramp=1.0, regulariser="l1", regulariser_weight=0.025)
    net = model(prior)
    _, (metrics,) = updated(net)
    spans = sum(attention.prior.span().sum() for attention in model(prior).attentions())
    assert metrics["losses/regularisation"].item() == pytest.approx(0.025 * spans.item(), rel=1e-6)
    parts = {"latent": 10, "reward": 1, "value": 0.5, "policy": 1, "entropy": -1e-4, "regularisation": 1}
    total = sum(weight * metrics[f"losses/{name}"].item() for name, weight in parts.items())
    assert metrics["losses/total"].item() == pytest.approx(total, rel=1e-6)
    after = [value for name, value in net.memory_scalars().items() if name.endswith("span")]
    assert all(value < before for value, before in zip(after, model(prior).memory_scalars().values(), strict=True))
    bound = model(replace(prior, max_norm=2.0))
    updated(bound)
    assert max(bound.memory_scalars().values()) <= 2.0


def test_batch_normalisation_modes():
    """Latent targets from the batch's own statistics; values, and everything a search does, from running ones."""
    net = fresh(spec=IMAGE)
    target, data = make_target(net), batch(net)
    running = lambda m: m.encoder.convolutions[1].running_mean.clone()  # noqa: E731
    online, own = running(net), running(target)
    wanted = target_latents(target, data.observation)
    copied = copy.deepcopy(net).train()
    torch.testing.assert_close(wanted, copied.encode(data.observation).detach())
    assert not torch.equal(running(target), own) and torch.equal(running(net), online)
    kept = running(target)
    values = target_values(target, data.observation, data.action)
    assert torch.equal(running(target), kept) and not target.training
    torch.testing.assert_close(values[:1], target_values(target, data.observation[:1], data.action[:1]))
    settings = UniZeroLearnerConfig()
    update_unizero(net, target, make_adamw(net, settings), data, settings)
    assert net.training and not torch.equal(running(net), running(target))  # parameters follow, buffers do not
    assert not torch.equal(running(net), online)


def test_bootstrap_values_read_the_steps_before_them():
    net = model()
    data = batch(net)
    said = net(net.encode(data.observation), data.action)
    got = target_values(make_target(net), data.observation, data.action)
    torch.testing.assert_close(got, net.code.decode(said.value).detach(), rtol=0, atol=1e-12)


def test_half_precision_stays_close():
    last = {}
    for precision in ("float32", "bfloat16"):
        _, metrics = updated(fresh("gaussian"), 10, precision=precision, learning_rate=3e-3)
        last[precision] = metrics[-1]["losses/total"].item()
    assert last["bfloat16"] == pytest.approx(last["float32"], rel=0.02)


# value targets: recorded ones, a loop over the definition, what an end of an episode is worth

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "unizero" / "nstep.npz")
H, N, GAMMA = int(GOLDEN["H"]), int(GOLDEN["td"]), float(GOLDEN["gamma"])
POSITIONS = {"terminal": [0, 5, 8, 11], "padded": [0, 14, 19]}
DOUBLE = torch.float64


def recorded(case, steps):
    """A stored segment read as sequences; observation i is the number i, so that its value can be looked up."""
    rewards, actions = torch.as_tensor(GOLDEN[f"{case}/rewards"]), int(GOLDEN[f"{case}/n_actions"])
    own = int(GOLDEN["padded/segment_length"]) if case == "padded" else actions
    first = torch.tensor(POSITIONS[case])
    place = first[:, None] + torch.arange(steps + N)  # (B, T + n)
    paid = rewards[place.clamp(max=len(rewards) - 1)]
    return Sequences(
        observation=place[..., None], action=place, reward=torch.where(place < len(rewards), paid, 0.0),
        policy=torch.full((len(first), steps, 2), 0.5), mask=place[:, :steps] < own,
        left=(actions - first).clamp(max=steps + N), truncated=first < 0,
    )  # fmt: skip


@pytest.mark.parametrize("case", POSITIONS)
def test_targets_are_the_recorded_ones_in_one_batch(case):
    values, sequences = torch.as_tensor(GOLDEN[f"{case}/boot"]), recorded(case, H + 1)
    batch = make_batch(sequences, lambda observation, *_: values[observation[..., 0]], GAMMA, N)
    for row, position in enumerate(POSITIONS[case]):
        key = f"{case}/pos{position}"
        np.testing.assert_allclose(batch.value[row], GOLDEN[f"{key}/value"], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(batch.reward[row], GOLDEN[f"{key}/reward"])
        # the recorded mask marks its last entry, which the learner drops, as no step
        np.testing.assert_array_equal(batch.mask[row, :H], GOLDEN[f"{key}/mask"][:H] == 1)
        assert int(sequences.left[row].clamp(1, N)) == GOLDEN[f"{key}/td"]


def defined(rewards, values, left, truncated, gamma, n, steps):
    """One sequence by the definition; values[i] is that of observation i."""
    count = min(n, max(1, left))
    targets = []
    for c in range(steps):
        total = sum(gamma**i * rewards[c + i] for i in range(count) if c + i < left)
        if c + count < left:
            total += gamma**count * values[c + count]
        elif truncated and c < left:
            total += gamma ** (left - c) * values[left]
        targets.append(total)
    return targets


@settings(max_examples=80, deadline=None)
@given(
    steps=st.integers(1, 6),
    n=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.0, 0.5, 0.997, 1.0]),
)
def test_targets_are_the_definitions(steps, n, seed, gamma):
    """An end is worth nothing, a time limit the final observation's value."""
    generator = torch.Generator().manual_seed(seed)
    lefts = torch.arange(1, steps + n + 1).repeat(2)
    rows = len(lefts)
    truncated = (torch.arange(rows) >= rows // 2) & (lefts < steps + n)
    rewards = torch.randn(rows, steps + n, generator=generator, dtype=DOUBLE)  # garbage behind the end, too
    values = torch.randn(rows, steps + n + 1, generator=generator, dtype=DOUBLE)
    place = lefts.clamp(1, n)[:, None] + torch.arange(steps)
    behind = place >= lefts[:, None] + truncated[:, None].long()
    bootstrap = torch.where(behind, torch.nan, values.gather(1, place))  # nothing there may be used
    found = n_step_targets(rewards, bootstrap, lefts, truncated, gamma, n)
    for row in range(rows):
        expected = defined(
            rewards[row].tolist(), values[row].tolist(), int(lefts[row]), bool(truncated[row]), gamma, n, steps
        )
        assert found[row].tolist() == pytest.approx(expected, abs=1e-12)


def test_the_bootstrap_sees_consecutive_observations_and_how_many_are_real():
    observation, action, lengths = bootstrap_values(recorded("terminal", H), N, lambda *seen: seen)
    assert observation[:, 0, 0].tolist() == [0 + 5, 5 + 5, 8 + 4, 11 + 1]
    assert torch.equal(observation[..., 0], observation[:, :1, 0] + torch.arange(H))
    assert torch.equal(action, observation[..., 0])
    assert lengths.tolist() == [H, 2, 1, 1]  # at least one, whose value is not used
