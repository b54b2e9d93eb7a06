"""The world model by hand: latents, images, heads, presets, gradients; losses against recorded numbers and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from glam_models import PRESETS, TOLERANCE, batch, close, config, golden, loss, model, steps
from torch.nn import functional as F

from dqn_memory.size import count
from dqn_memory.study.collect import trained_numbers
from world_models.distributions import cross_entropy, kl, masked_mean, symlog_code, unimix
from world_models.glam.config import FORMS, GlamLearnerConfig, GlamModelConfig, LossConfig
from world_models.glam.train import adam, floored_kl, reconstruction, trained_positions, update_model
from world_models.parameters import unreached


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
    assert masked_mean(x, mask) == 3 and masked_mean(x, torch.zeros_like(mask)) == 0


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
    assert torch.equal(reconstruction(images, targets), torch.full((1, 2), 12.0))


def weighted(reward=0.0, **weights):
    """Losses with other weights than the paper's, and without floors."""
    fixed = {
        f"{name}_weight": 0.0 for name in ("reconstruction", "termination", "dynamics", "representation", "variation")
    }
    weights = {f"{name}_weight": weight for name, weight in weights.items()}
    return type("Weighted", (LossConfig,), fixed | weights)(reward, free_bits=0.0, variation_free_bits=0.0)


def test_total_is_the_weighted_sum_of_means_over_positions_that_train():
    net = model(
        loss=weighted(reconstruction=1.2, reward=1.8, termination=0.7, dynamics=0.6, representation=0.2, variation=0.3)
    )
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
    net.config = replace(net.config, loss=weighted(**{part: 1.0}))
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
    assert trained_numbers(net.state_dict()) == count(net).trainable


def test_learning_lowers_the_loss():
    net, (data, noise) = model().float(), batch()
    config = GlamLearnerConfig(learning_rate=3e-3)
    optimizer = adam(net, config)
    losses = [float(update_model(net, optimizer, config, data, noise.float())["losses/total"]) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("layers", [0, 2])
def test_the_prior_s_head_is_linear_or_an_mlp_and_reads_what_the_reward_s_does(layers):
    net = model(prior_head="mlp" if layers else "linear")
    h = torch.randn(3, 5, 8, dtype=torch.float64)
    x = h
    for place in range(layers):
        linear, norm = net.prior_head.hidden[3 * place], net.prior_head.hidden[3 * place + 1]
        x = F.layer_norm(x @ linear.weight.T, (8,), norm.weight, norm.bias).relu()
    logits = (x @ net.prior_head.linear.weight.T + net.prior_head.linear.bias).unflatten(-1, (3, 4))
    torch.testing.assert_close(net.prior_head(h).exp(), 0.99 * logits.softmax(-1) + 0.01 / 4)
    assert len(net.prior_head.hidden) == 3 * layers
    assert [type(part) for part in net.prior_head.hidden] == [type(part) for part in net.reward_head[: 3 * layers]]


def test_encoder_by_hand():
    net, (frames, *_) = model(screen=8), steps(2, 3)
    conv, norm, _ = net.encoder.layers
    x = F.conv2d(frames.flatten(0, 1).double() / 255, conv.weight, stride=2, padding=1)
    x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    torch.testing.assert_close(net.encoder(frames), x.relu().flatten(1).unflatten(0, (2, 3)))


def test_batch_statistics_in_updates_and_running_ones_when_acting():
    net, (frames, *_) = model(), steps(4, 6)
    other = 255 - frames
    alone, beside = net.encode(frames)[:1], net.encode(torch.cat([frames[:1], other]))[:1]
    assert torch.equal(alone, beside)
    net.train()
    before = [x.clone() for x in net.encoder.buffers()]
    alone, beside = net.encode(frames)[:1], net.encode(torch.cat([frames[:1], other]))[:1]
    assert not torch.allclose(alone, beside)
    assert not any(torch.equal(a, b) for a, b in zip(before, net.encoder.buffers(), strict=True))


def test_samples_follow_their_probabilities_and_their_gradient_is_straight_through():
    p = torch.tensor([0.1, 0.2, 0.7])
    noise = torch.rand(40_000, 1, 3, generator=torch.Generator().manual_seed(0))
    drawn = model().sample(p.log().expand(40_000, 1, 3), noise)
    assert torch.equal(drawn, drawn.round()) and torch.equal(drawn.sum(-1), torch.ones(40_000))
    torch.testing.assert_close(drawn.mean(0), p, rtol=0, atol=0.01)
    logits, weight = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), torch.randn(2, 12).double()
    drawn = model().sample(logits.log_softmax(-1), torch.zeros(2, 3, 4))  # the smallest uniforms there are
    (through,) = torch.autograd.grad((drawn * weight).sum(), logits)
    (soft,) = torch.autograd.grad((logits.softmax(-1).flatten(1) * weight).sum(), logits)
    torch.testing.assert_close(through, soft)


def test_rewards_are_decoded_in_float32_under_autocast():
    net, large = model(bins=255).float(), torch.tensor([1000.0, -20_000.0])
    net.reward_head = torch.nn.Identity()
    with torch.autocast("cpu", torch.bfloat16):
        decoded = net.reward(symlog_code().encode(large).clamp(min=1e-30).log())
    assert decoded.dtype == torch.float32
    torch.testing.assert_close(decoded, large, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_trained_parameter_gets_a_gradient(preset, name):
    assert unreached(model(preset, sequence=name, global_layers=2, local_layers=2, chained=True).float()) == set()


def test_presets_differ_in_the_named_options_alone():
    paper, code, fast = (PRESETS[name] for name in ("paper", "code", "fast"))
    assert paper == GlamModelConfig() and fast == replace(paper, imagination_memory="carried")
    assert (paper.batch_length, paper.burn_in, paper.context, paper.imagination_memory) == (64, 3, 16, "window")
    assert (paper.variation_target, paper.loss.variation_free_bits) == ("posterior", 1.0)
    assert code == GlamModelConfig(
        post_norm=False, chained=False, prior_head="linear", variation_head="own", variation_target="random_projection",
        reset_at_episode_start=False, burn_in=4, batch_length=68, context=8, loss=LossConfig(variation_free_bits=0.1),
    )  # fmt: skip
    assert (paper.maps, paper.embedding, paper.latent) == ([32, 64, 128, 256], 4096, 1024)
