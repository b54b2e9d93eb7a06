"""The world model: windows equal token lists, causality, its equations, its first values; its encoders."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import unizero_models
from torch.nn import functional as F
from unizero_models import ACTIONS, CLOSE, IMAGE, MUZERO, TOKENS, VECTOR, actions, config, model, simplex, windows

from dqn_memory.blocks import PriorConfig
from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import UserError
from world_models.distributions import simnorm
from world_models.unizero.config import EncoderConfig, UniZeroModelConfig
from world_models.unizero.dynamics import History
from world_models.unizero.encoders import ENCODERS
from world_models.unizero.networks import build_unizero

GRADIENTS = Path(__file__).parents[1] / "data" / "attention" / "attention_grads.npz"
FORMS = [*unizero_models.FORMS, pytest.param("causal", {"layers": 1, "context": 4}, id="one-layer")]


def read(net, latents, taken):
    """Features at the last token of the list z, a, z, a, ...: the plain forward pass of that list alone."""
    steps = max(len(latents), len(taken))
    z = torch.stack([*latents, latents[-1]][:steps])[None]
    a = torch.stack([*taken, torch.tensor(0)][:steps])[None]
    tokens = net.dynamics.tokens(z, a)[:, : len(latents) + len(taken)]
    return net.dynamics.stack(net.dynamics.embed(tokens))[:, -1]


@pytest.mark.parametrize(("prior", "changes"), FORMS)
def test_a_search_reads_what_the_forward_pass_of_its_tokens_reads(prior, changes):
    net = model(prior, **changes)
    pairs = net.config.pairs
    window, z, a = windows(pairs), simplex(pairs + 1, seed=2), actions(pairs + 1, seed=3)
    policy, value = net.root(window, z)
    found = net.expand(window, z, a)
    decoded = lambda head, features: net.code.decode(net.heads[head](features))[0]  # noqa: E731
    for b, count in enumerate(window.count.tolist()):
        past, taken = [*window.latent[b, :count], z[b]], [*window.action[b, :count], a[b]]
        here = read(net, past, taken[:-1])
        torch.testing.assert_close(policy[b], net.heads["policy"](here)[0], **CLOSE)
        torch.testing.assert_close(value[b], decoded("value", here), **CLOSE)
        past, taken = past[-pairs:], taken[-pairs:]  # the oldest pair goes
        at_action = read(net, past, taken)
        following = simnorm(net.heads["latent"](at_action))
        at_latent = read(net, [*past, following[0]], taken)
        torch.testing.assert_close(found.reward[b], decoded("reward", at_action), **CLOSE)
        torch.testing.assert_close(found.latent[b], following[0], **CLOSE)
        torch.testing.assert_close(found.policy[b], net.heads["policy"](at_latent)[0], **CLOSE)
        torch.testing.assert_close(found.value[b], decoded("value", at_latent), **CLOSE)


def first_difference(net, prior_step, at_action):
    """Largest change of all earlier predictions when everything from one token on is replaced."""
    z, a = simplex(1, 5, seed=6), actions(1, 5, seed=7)
    other_z, other_a = simplex(1, 5, seed=8), (a + 1) % ACTIONS
    t, keep = prior_step, torch.arange(5)
    changed_z = torch.where((keep < t + at_action)[:, None], z, other_z)
    changed_a = torch.where(keep < t, a, other_a)
    before, after = net(z, a), net(changed_z, changed_a)
    ends = {"policy": t + at_action, "value": t + at_action, "reward": t, "next_latent": t}
    return max((getattr(before, n)[:, :e] - getattr(after, n)[:, :e]).abs().max().item() for n, e in ends.items() if e)


@pytest.mark.parametrize(("prior", "changes"), [*FORMS, MUZERO])
def test_the_future_moves_the_past_only_where_the_label_says_so(prior, changes):
    net = model(prior, **changes)
    moved = [first_difference(net, t, half) for t, half in itertools.product(range(1, 5), (0, 1))]
    if prior in ("adaptive_gate", "gaussian_adaptive_gate"):
        assert not net.causal and max(moved) > 1e-4
    else:
        assert net.causal and max(moved) == 0


def test_half_precision_weights_give_scalars_in_single_precision():
    """As a GPU searches: bfloat16 weights, float32 latents and values."""
    net = model("gaussian").float()
    window, z, a = net.empty_history(4), simplex(4, seed=2).float(), actions(4, seed=3)
    half = model("gaussian").bfloat16()
    fine, coarse = net.expand(window, z, a), half.expand(window, z, a)
    assert coarse.value.dtype == coarse.reward.dtype == coarse.latent.dtype == torch.float32
    torch.testing.assert_close(coarse.latent, fine.latent, rtol=0, atol=0.1)
    torch.testing.assert_close(coarse.policy.float(), fine.policy, rtol=0.2, atol=0.3)


def test_muzero_forgets_its_history_and_unrolls_from_the_first_latent():
    net = model(dynamics="recurrent")
    window, z, a = windows(3), simplex(4, seed=2), actions(4, seed=3)
    policy, value = net.root(window, z)
    torch.testing.assert_close(policy, net.root(net.empty_history(4), z)[0], **CLOSE)
    taken = actions(4, 3, seed=9)
    said = net(torch.cat((z[:, None], simplex(4, 2, seed=10)), 1), taken)
    torch.testing.assert_close(said.policy[:, 0], policy, **CLOSE)
    torch.testing.assert_close(net.values(z[:, None], a[:, None])[:, 0], value, **CLOSE)
    for t in range(2):
        step = net.expand(net.empty_history(4), z, taken[:, t])
        torch.testing.assert_close(net.code.decode(said.reward[:, t]), step.reward, **CLOSE)
        torch.testing.assert_close(said.policy[:, t + 1], step.policy, **CLOSE)
        torch.testing.assert_close(said.next_latent[:, t], step.latent, **CLOSE)
        z = step.latent
    seen = simplex(4, 3, seed=11)
    alone = torch.stack([net.root(net.empty_history(4), seen[:, t])[1] for t in range(3)], 1)
    torch.testing.assert_close(net.values(seen, taken), alone, **CLOSE)


def test_muzero_halves_the_gradient_between_steps():
    net = model(dynamics="recurrent")
    z = simplex(1, 3, seed=2).requires_grad_()
    taken = actions(1, 3)
    (whole,) = torch.autograd.grad(net(z, taken).reward[:, 1].sum(), z)
    following = net.expand(net.empty_history(1), z[:, 0], taken[:, 0]).latent
    at_action = net.dynamics._at_action(following, taken[:, 1])
    (full,) = torch.autograd.grad(net.heads["reward"](at_action).sum(), z)
    torch.testing.assert_close(2 * whole, full, **CLOSE)


def plain_forward(net, tokens):
    """The transformer's equations, written out once more for the causal form."""
    x = tokens + net.dynamics.positions.table[: tokens.shape[1]]
    for layer in net.dynamics.stack.layers:
        y = F.layer_norm(x, (16,), layer.norms[0].weight, layer.norms[0].bias)
        q, k, v = F.linear(y, layer.attention.project_in.weight, layer.attention.project_in.bias).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (q, k, v))  # (B, H, T, D / H)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + layer.attention.project_out(mixed)
        y = F.layer_norm(x, (16,), layer.norms[1].weight, layer.norms[1].bias)
        first, last = layer.feed_forward.layers[0], layer.feed_forward.layers[2]
        x = x + last(F.gelu(first(y), approximate="tanh"))
    return net.dynamics.stack.norm(x)


def test_the_equations():
    net = model()
    z, a = simplex(2, 5), actions(2, 5)
    tokens = torch.stack((z, net.dynamics.embedding.weight[a]), 2).flatten(1, 2)
    features = plain_forward(net, tokens)
    said = net(z, a)
    torch.testing.assert_close(said.policy, net.heads["policy"](features[:, 0::2]), **CLOSE)
    torch.testing.assert_close(said.value, net.heads["value"](features[:, 0::2]), **CLOSE)
    torch.testing.assert_close(said.reward, net.heads["reward"](features[:, 1::2]), **CLOSE)
    torch.testing.assert_close(said.next_latent, simnorm(net.heads["latent"](features[:, 1::2])), **CLOSE)


@pytest.mark.parametrize("dynamics", ["transformer", "recurrent", "gru"])
def test_at_first_nothing_is_known(dynamics):
    net = build_unizero(config(dynamics=dynamics), VECTOR, ACTIONS).eval()
    window, z, a = windows(3), simplex(4).float(), actions(4)
    window = History(window.latent.float(), window.action, window.count)
    policy, value = net.root(window, z)
    step = net.expand(window, z, a)
    for zeros in (policy, value, step.policy, step.value, step.reward):
        assert zeros.abs().max() < 1e-6
    torch.testing.assert_close(step.latent, torch.full_like(step.latent, 1 / 8))
    assert all(p.isfinite().all() for p in net.parameters())


def test_first_values():
    torch.manual_seed(0)
    net = build_unizero(config(width=64, layers=1), IMAGE, ACTIONS)
    hidden = net.heads["value"][0]
    assert hidden.weight.std().item() == pytest.approx(0.02, rel=0.1) and not hidden.bias.any()
    assert net.dynamics.embedding.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert net.dynamics.positions.table.std().item() == pytest.approx(0.02, rel=0.2)
    wide = net.encoder.convolutions[4].inner[0]  # from 4 channels to 8: fan out is 8 x 9
    assert wide.weight.std().item() == pytest.approx((2 / (8 * 9)) ** 0.5, rel=0.15)
    own = build_unizero(config(width=64, initialisation="torch"), VECTOR, ACTIONS)
    assert own.heads["value"][0].weight.std().item() == pytest.approx(64**-0.5 / 3**0.5, rel=0.1)
    assert not own.heads["value"][-1].weight.any()


# encoders: published counts, layouts, normalisation, tokens, this project's worlds


@pytest.mark.parametrize("layout", [(64, 64, 3), (3, 64, 64)])
def test_images(layout):
    spec, config = ObservationSpec("image", layout, 0, torch.uint8), EncoderConfig(channels=4, norm="group")
    assert sum(p.numel() for p in ENCODERS["image"](spec, 768, EncoderConfig()).parameters()) == 3_461_152
    small = ENCODERS["image"](spec, 16, config)
    pixels = torch.randint(256, (2, 3, *layout), generator=torch.Generator().manual_seed(0)).byte()
    z = small(pixels)
    assert z.shape == (2, 3, 16)
    torch.testing.assert_close(z.unflatten(-1, (2, 8)).sum(-1), torch.ones(2, 3, 2))
    turned = pixels.movedim(-1, 2) if layout[0] == 64 else pixels.movedim(2, -1)
    for dtype, same in ((torch.float32, pixels.float() / 255), (torch.uint8, turned)):
        other = ENCODERS["image"](ObservationSpec("image", tuple(same.shape[2:]), 0, dtype), 16, config)
        other.load_state_dict(small.state_dict())
        torch.testing.assert_close(other(same), z)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_batch_normalisation_is_the_only_thing_that_mixes_rows(norm):
    encoder = ENCODERS["image"](IMAGE, 16, EncoderConfig(channels=4, norm=norm)).train()
    pixels = torch.randint(256, (4, 64, 64, 3), generator=torch.Generator().manual_seed(0)).byte()
    alone, together = encoder(pixels[:1]), encoder(pixels)[:1]
    assert torch.allclose(alone, together, atol=1e-6) == (norm == "group")
    encoder.eval()
    torch.testing.assert_close(encoder(pixels[:1]), encoder(pixels)[:1])


def test_a_model_with_channels_last_computes_the_same_and_loads_weights_of_either_layout():
    plain, last = (ENCODERS["image"](IMAGE, 16, EncoderConfig(channels=4)) for _ in range(2))
    last.to(memory_format=torch.channels_last)  # what `place` does on a GPU
    last.load_state_dict(plain.state_dict())
    assert last.convolutions[0].weight.is_contiguous(memory_format=torch.channels_last)
    pixels = torch.randint(256, (3, *IMAGE.shape), dtype=torch.uint8)
    torch.testing.assert_close(last(pixels), plain(pixels))


@pytest.mark.parametrize(("spec", "layers"), [(IMAGE, 11), (TOKENS, 1), (VECTOR, 1)])
def test_the_activation_of_the_paper_and_of_the_code(spec, layers):
    for name, kind in (("leaky_relu", torch.nn.LeakyReLU), ("gelu", Gelu)):
        encoder = ENCODERS[spec.kind](spec, 16, EncoderConfig(channels=4, activation=name))
        assert sum(isinstance(module, kind) for module in encoder.modules()) == layers
    assert EncoderConfig().activation == "leaky_relu"


def test_tokens_of_different_components_are_different():
    encoder = model(spec=TOKENS).encoder
    one, other = torch.tensor([[1, 2, 0]]), torch.tensor([[2, 1, 0]])
    assert (encoder(one) - encoder(other)).abs().max() > 1e-3
    assert encoder(torch.randint(6, (2, 5, 3))).shape == (2, 5, 16)


def test_images_of_another_size_are_refused():
    with pytest.raises(UserError, match="84 x 84, but UniZero needs 64 x 64"):
        build_unizero(config(), ObservationSpec("image", (84, 84, 1)), ACTIONS)


# settings: first values of priors, their bounds and regularisers, what is refused


@pytest.mark.parametrize(("kind", "key"), [
    ("l1", "reg_l1_sum"), ("l1_mean", "reg_l1_mean_branch"), ("l2", "reg_l2_sum"), ("max", "reg_max"), ("none", None),
])  # fmt: skip
def test_recorded_regularisers(kind, key):
    golden = np.load(GRADIENTS)
    prior = PriorConfig(kind="adaptive", span=2.0, regulariser=kind, regulariser_weight=0.025, max_span=20.0)
    net = model(prior, width=32, heads=4)
    for attention, spans in zip(net.attentions(), torch.from_numpy(golden["reg_spans"]), strict=True):
        with torch.no_grad():
            attention.prior.raw["span"].copy_(spans.expm1().log())
    assert net.regularisation().item() == pytest.approx(golden[key].item() if key else 0, rel=1e-12)


@pytest.mark.parametrize(("kind", "values"), [
    ("adaptive", {"span": 6.0}),
    ("gaussian", {"mu": 6.0, "sigma": 1.0}),
    ("gaussian_adaptive", {"mu": 6.0, "sigma": 1.0, "span": 10.0}),
    ("gaussian_adaptive_gate", {"mu": 6.0, "sigma": 1.0, "span": 10.0}),
])  # fmt: skip
def test_priors_start_where_the_paper_starts_them(kind, values):
    net = build_unizero(UniZeroModelConfig(width=16, heads=2, horizon=10).with_prior(kind), VECTOR, ACTIONS)
    heads = itertools.product(("0.0", "0.1", "1.0", "1.1"), values.items())
    want = {f"memory/{head}.{name}": value for head, (name, value) in heads}
    assert net.memory_scalars() == pytest.approx(want, rel=1e-6)
    assert net.attentions()[0].prior.cap == 20  # tokens: twice the horizon


@pytest.mark.parametrize(("changes", "words"), [
    ({"width": 20}, "--width 20 must be a multiple of 8"),
    ({"context": 7}, "--context 7 must be an even number"),
    ({"prior": PriorConfig(kind="gaussian", mu=10.0)}, "--mu 10.0 of the gaussian prior does not fit: it must be"),
    ({"prior": PriorConfig(kind="adaptive", span=11.0)}, "--span 11.0 of the adaptive prior does not fit"),
    ({"prior": PriorConfig(kind="gaussian", sigma=-1.0)}, "prior sigma is -1.0"),
    ({"dynamics": "recurrent", "prior": PriorConfig(kind="local")}, "--prior local changes nothing"),
])  # fmt: skip
def test_what_cannot_work_or_is_never_read_is_said_in_one_sentence(changes, words):
    chosen = config(**changes)
    with pytest.raises(UserError, match=words) as caught:
        chosen.check_used()
        build_unizero(chosen, VECTOR, ACTIONS)
    assert "\n" not in str(caught.value)


def test_details_of_a_prior_that_is_not_chosen_are_allowed():
    details = PriorConfig(local_window=3, mu=4.0, regulariser="l1", regulariser_weight=0.025)
    for dynamics in ("transformer", "gru", "recurrent"):
        config(dynamics=dynamics, prior=details).check_used()
