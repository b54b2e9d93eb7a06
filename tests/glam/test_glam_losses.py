"""Losses against recorded numbers and by hand: floors, masks, targets, and where gradients go."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from glam_models import TOLERANCE, batch, close, config, loss, model

from world_models.distributions import cross_entropy, symlog_code, unimix
from world_models.glam.config import LearnerConfig, LossConfig
from world_models.glam.learner import adam, floored_kl, kl, mean, reconstruction, trained_positions, update

GOLDEN = np.load(Path(__file__).parent.parent / "data" / "glam" / "glam_losses.npz")


def golden(key, dtype=torch.float64):
    return torch.tensor(GOLDEN[key], dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_recorded_two_hot_unimix_and_floored_kl(dtype):
    code, logits = symlog_code(), golden("twohot_logits", dtype)
    close(cross_entropy(logits, code.encode(golden("twohot_target", dtype))).mean(), golden("twohot_ce_mean"), dtype)
    close(code.decode(logits), golden("decode"), dtype)
    p, q = (unimix(golden(f"kl_raw_{name}", dtype)) for name in "pq")
    close(p, golden("unimix_p"), dtype)
    close(q, golden("unimix_q"), dtype)
    everywhere = torch.ones(p.shape[:2], dtype=torch.bool)
    close(floored_kl(p, q, everywhere, 0.0), golden("kl_real"), dtype)
    close(floored_kl(p, q, everywhere, 1.0), golden("kl_freebits1"), dtype)


def test_decoding_undoes_encoding_and_survives_bfloat16():
    code, x = symlog_code(), torch.tensor([-4000.0, -1.0, 0.0, 0.3, 20_000.0]).double()
    assert torch.allclose(code.decode(code.encode(x).log()), x, rtol=1e-10)
    assert float(code.decode(code.encode(torch.tensor(1000.0)).log().bfloat16())) == pytest.approx(1000, rel=0.02)


def test_the_floor_is_under_the_mean_and_stops_its_gradient():
    p = torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]]).log()[None]  # (1, 2, 1, 2)
    q = torch.tensor([[[0.5, 0.5]], [[0.1, 0.9]]]).log()[None].requires_grad_()
    everywhere = torch.ones(1, 2, dtype=torch.bool)
    average = 0.5 * (0.9 * np.log(9) + 0.1 * np.log(1 / 9))  # 0.88: one position is above 1, the mean is not
    assert kl(p, q)[0, 1] > 1
    assert floored_kl(p, q, everywhere, 0.0).item() == pytest.approx(average, rel=1e-6)
    loss = floored_kl(p, q, everywhere, 1.0)
    loss.backward()
    assert loss.item() == 1 and not q.grad.any()


def test_mean_takes_masked_positions_alone():
    x, mask = torch.tensor([[1.0, float("nan"), 5.0]]), torch.tensor([[True, False, True]])
    assert mean(x, mask) == 3 and mean(x, torch.zeros_like(mask)) == 0


def test_which_positions_train():
    first = torch.zeros(3, 8, dtype=torch.bool)
    first[1, 0] = first[2, 2] = first[2, 6] = True
    here, pairs = trained_positions(first, config())
    assert here.int().tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8, [0, 0, 1, 1, 1, 1, 1, 1]]
    assert pairs.int().tolist() == [[0, 0, 0, 1, 1, 1, 1], [1] * 7, [0, 0, 1, 1, 1, 0, 1]]
    here, pairs = trained_positions(first, config("code"))
    assert here.int().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]] * 3 and pairs.int().tolist() == [[0, 0, 0, 0, 1, 1, 1]] * 3


def test_reconstruction_by_hand():
    images, targets = torch.zeros(1, 2, 3, 4, 4), torch.full((1, 2, 3, 4, 4), 0.5)
    assert torch.equal(reconstruction(images, targets, "squared"), torch.full((1, 2), 12.0))
    torch.testing.assert_close(reconstruction(images, targets, "norm"), torch.full((1, 2), 12.0**0.5))
    images.requires_grad_()
    reconstruction(images, images.detach(), "norm").sum().backward()
    assert torch.isfinite(images.grad).all()


def test_total_is_the_weighted_sum_of_means_over_positions_that_train():
    weights = LossConfig(
        reconstruction_weight=1.2, reward_weight=1.8, termination_weight=0.7, dynamics_weight=0.6,
        representation_weight=0.2, variation_weight=0.3, free_bits=0.0, variation_free_bits=0.0,
    )  # fmt: skip
    net = model(loss=weights)
    data, noise = batch()
    total, metrics = loss(net, data, noise)
    said = net.predictions(data, noise)
    here, pairs = trained_positions(data.first, net.config)
    squares = ((said.images - data.frames.double() / 255) ** 2).sum((2, 3, 4)).mean()
    reward = -(net.code.encode(data.reward) * said.reward.log_softmax(-1)).sum(-1)[here].mean()
    p, q, v = said.posterior[:, 1:], said.prior[:, :-1], said.variation[:, :-1]
    nats = (p.exp() * (p - q)).sum((2, 3))[pairs].mean()
    changes = (p.exp() * (p - v)).sum((2, 3))[pairs].mean()
    ends = torch.nn.functional.binary_cross_entropy_with_logits(said.termination[here], data.terminated[here].double())
    by_hand = 1.2 * squares + 1.8 * reward + 0.7 * ends + (0.6 + 0.2) * nats + 0.3 * changes
    torch.testing.assert_close(total, by_hand)
    known = {"reconstruction": squares, "reward": reward, "termination": ends, "dynamics": nats, "variation": changes}
    for name, value in known.items():
        torch.testing.assert_close(metrics[f"losses/{name}"], value.detach())
    assert not any(metric.requires_grad for metric in metrics.values())


def gradients(net, part):
    """Names of the modules that one part of the loss reaches."""
    zero = {name: 0.0 for name in vars(LossConfig()) if name.endswith("_weight")}
    changes = {**zero, f"{part}_weight": 1.0, "free_bits": 0.0, "variation_free_bits": 0.0}
    net.config = replace(net.config, loss=replace(net.config.loss, **changes))
    net.zero_grad()
    data, noise = batch()
    loss(net.train(), data, noise)[0].backward()
    return {name.split(".")[0] for name, p in net.named_parameters() if p.grad is not None and p.grad.any()}


def test_where_each_part_of_the_loss_goes():
    latent, core = {"encoder", "posterior_head"}, {"sequence_model"}
    assert gradients(model(), "reconstruction") == latent | {"decoder"}
    assert gradients(model(), "reward") == latent | core | {"reward_head"}
    assert gradients(model(), "termination") == latent | core | {"termination_head"}
    assert gradients(model(), "dynamics") == latent | core | {"prior_head"}
    assert gradients(model(), "representation") == latent
    assert gradients(model(), "variation") == latent | core | {"prior_head"}
    assert gradients(model("code"), "variation") == latent | core | {"variation_head"}


def test_variation_targets_of_paper_and_released_code():
    """The stopped posterior of the next frame, or a random map of the encoder's difference."""
    net, (data, noise) = model(), batch()
    said = net.predictions(data, noise)
    assert torch.equal(said.variation_target, said.posterior[:, 1:]) and not said.variation_target.requires_grad
    features = net.sequence(net.sample(said.posterior, noise), data.action, data.first)
    torch.testing.assert_close(said.variation, net.prior_head(features.variation))
    net = model("code")
    embedded = net.encoder(data.frames)
    logits = net.random_projection(embedded[:, 1:] - embedded[:, :-1])
    mixed = (0.99 * logits.unflatten(-1, (3, 4)).softmax(-1) + 0.01 / 4).log()
    torch.testing.assert_close(net.predictions(data, noise).variation_target, mixed)
    assert not any(p.requires_grad for p in net.random_projection.parameters())


def test_learning_lowers_the_loss():
    net, (data, noise) = model().float(), batch()
    config = LearnerConfig(learning_rate=3e-3)
    optimizer = adam(net, config)
    losses = [float(update(net, optimizer, config, data, noise.float())["losses/total"]) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
