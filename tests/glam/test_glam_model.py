"""The world model's parts by hand: latents, images, normalisation, presets, and every parameter's gradient."""

from dataclasses import replace

import pytest
import torch
from glam_models import ACTIONS, PRESETS, batch, config, loss, model, steps
from torch.nn import functional as F

from dqn_memory.runs.errors import UserError
from world_models.distributions import symlog_code
from world_models.glam.config import FORMS, LossConfig, ModelConfig
from world_models.parameters import unreached


def test_posterior_is_a_mixed_categorical():
    net, (frames, *_) = model(unimix=0.1), steps(2, 5)
    logp = net.encode(frames)
    logits = net.posterior_head.linear(net.encoder(frames)).unflatten(-1, (3, 4))
    torch.testing.assert_close(logp.exp(), 0.9 * logits.softmax(-1) + 0.1 / 4)
    torch.testing.assert_close(logp.exp().sum(-1), torch.ones(2, 5, 3, dtype=torch.float64))


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


def test_screens():
    for screen in (8, 16, 64):
        net, images = model(screen=screen), torch.rand(2, 3, 3, screen, screen, dtype=torch.float64)
        assert net.encoder(images).shape == (2, 3, net.config.embedding)
        assert net.decoder(torch.rand(2, 3, 12, dtype=torch.float64)).shape == images.shape


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


def test_stem_reads_samples_and_one_hot_actions():
    net, sample, action = model(), torch.rand(2, 5, 12, dtype=torch.float64), torch.arange(5).expand(2, 5) % ACTIONS
    stem = net.sequence_model.stem
    joined = torch.cat([sample, F.one_hot(action, ACTIONS).double()], -1)
    torch.testing.assert_close(stem(sample, action), stem.leave(joined @ stem.enter.weight.mT))


def test_rewards_are_decoded_in_float32_under_autocast():
    net, large = model(bins=255).float(), torch.tensor([1000.0, -20_000.0])
    net.reward_head = torch.nn.Identity()
    with torch.autocast("cpu", torch.bfloat16):
        decoded = net.reward(symlog_code().encode(large).clamp(min=1e-30).log())
    assert decoded.dtype == torch.float32
    torch.testing.assert_close(decoded, large, rtol=1e-3, atol=0)


def test_fusion_is_a_sum_and_variation_the_global_branch():
    net, sample = model(), torch.rand(2, 6, 12, dtype=torch.float64)
    core, first = net.sequence_model, torch.zeros(2, 6, dtype=torch.bool)
    action = torch.zeros(2, 6, dtype=torch.int64)
    said, state = net.sequence(sample, action, first), core.initial_state(2)
    e, age = core.stem(sample, action), torch.arange(6).expand(2, 6)
    parts = [branch(e, age, part)[0] for branch, part in zip(core.branches, state.branches, strict=True)]
    torch.testing.assert_close(said.h, parts[0] + parts[1])
    torch.testing.assert_close(said.variation, parts[0])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_trained_parameter_gets_a_gradient(preset, name):
    assert unreached(model(preset, sequence=name, global_layers=2, local_layers=2, chained=True).float()) == set()


def test_presets_differ_in_the_named_options_alone():
    paper, code, fast = (PRESETS[name] for name in ("paper", "code", "fast"))
    assert paper == ModelConfig(prior_head="mlp") and fast == replace(paper, imagination_memory="carried")
    assert (paper.batch_length, paper.burn_in, paper.context, paper.imagination_memory) == (64, 3, 16, "window")
    assert (paper.variation_target, paper.loss.variation_free_bits) == ("posterior", 1.0)
    assert code == ModelConfig(
        post_norm=False, chained=False, variation_head="own", variation_target="random_projection",
        reset_at_episode_start=False, burn_in=4, batch_length=68, context=8, loss=LossConfig(variation_free_bits=0.1),
    )  # fmt: skip
    assert (paper.maps, paper.embedding, paper.latent) == ([32, 64, 128, 256], 4096, 1024)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"screen": 60}, "--screen 60 must be a power of two"),
        ({"burn_in": 11}, "--burn-in 11 must be at least 0 and below --batch-length 12"),
        ({"sequence": "storm", "heads": 3}, "--heads 3 must divide --width 8"),
    ],
)
def test_impossible_models_are_one_sentence(changes, words):
    with pytest.raises(UserError, match=words):
        config(**changes).check()


def test_same_seed_same_weights_and_the_same_loss():
    a, b, c = (model(seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())
    first, again, other = (loss(net, *batch())[0] for net in (a, b, c))
    assert first == again != other
