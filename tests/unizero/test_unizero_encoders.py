"""Encoders: published counts, layouts, normalisation, tokens, this project's worlds."""

import pytest
import torch
from unizero_models import ACTIONS, IMAGE, TOKENS, VECTOR, config, model

from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.network import ObservationSpec, observation_spec
from dqn_memory.runs.errors import UserError
from envs.registry import make_world
from world_models.unizero.config import EncoderConfig
from world_models.unizero.encoders import make_encoder
from world_models.unizero.networks import build


@pytest.mark.parametrize("layout", [(64, 64, 3), (3, 64, 64)])
def test_images(layout):
    spec = ObservationSpec("image", layout, 0, torch.uint8)
    encoder = make_encoder(spec, 768, EncoderConfig())
    assert sum(p.numel() for p in encoder.parameters()) == 3_461_152
    small = make_encoder(spec, 16, EncoderConfig(channels=4, norm="group"))
    pixels = torch.randint(256, (2, 3, *layout), generator=torch.Generator().manual_seed(0)).byte()
    z = small(pixels)
    assert z.shape == (2, 3, 16)
    torch.testing.assert_close(z.unflatten(-1, (2, 8)).sum(-1), torch.ones(2, 3, 2))
    floats = make_encoder(ObservationSpec("image", layout), 16, EncoderConfig(channels=4, norm="group"))
    floats.load_state_dict(small.state_dict())
    torch.testing.assert_close(floats(pixels.float() / 255), z)
    if layout[0] == 64:
        first = ObservationSpec("image", (3, 64, 64), 0, torch.uint8)
        turned = make_encoder(first, 16, EncoderConfig(channels=4, norm="group"))
        turned.load_state_dict(small.state_dict())
        torch.testing.assert_close(turned(pixels.movedim(-1, 2)), z)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_batch_normalisation_is_the_only_thing_that_mixes_rows(norm):
    encoder = make_encoder(IMAGE, 16, EncoderConfig(channels=4, norm=norm)).train()
    pixels = torch.randint(256, (4, 64, 64, 3), generator=torch.Generator().manual_seed(0)).byte()
    alone, together = encoder(pixels[:1]), encoder(pixels)[:1]
    assert torch.allclose(alone, together, atol=1e-6) == (norm == "group")
    encoder.eval()
    torch.testing.assert_close(encoder(pixels[:1]), encoder(pixels)[:1])


@pytest.mark.parametrize(("spec", "layers"), [(IMAGE, 11), (TOKENS, 1), (VECTOR, 1)])
def test_the_activation_of_the_paper_and_of_the_code(spec, layers):
    for name, kind in (("leaky_relu", torch.nn.LeakyReLU), ("gelu", Gelu)):
        encoder = make_encoder(spec, 16, EncoderConfig(channels=4, activation=name))
        assert sum(isinstance(module, kind) for module in encoder.modules()) == layers
    assert EncoderConfig().activation == "leaky_relu"


def test_tokens_of_different_components_are_different():
    encoder = model(spec=TOKENS).encoder
    one, other = torch.tensor([[1, 2, 0]]), torch.tensor([[2, 1, 0]])
    assert (encoder(one) - encoder(other)).abs().max() > 1e-3
    assert encoder(torch.randint(6, (2, 5, 3))).shape == (2, 5, 16)


@pytest.mark.parametrize("world", ["Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0", "POMDP/MemoryCards-v0"])
def test_this_projects_worlds_can_be_encoded(world):
    made = make_world(world)
    spec = observation_spec(made.observation_space)
    draws = torch.rand(5, made.reset_draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    observation = made.reset(draws).observation.reshape(5, *spec.shape)
    net = build(config(), spec, made.num_actions)
    assert net.encode(observation).shape == (5, 16)


def test_images_of_another_size_are_refused():
    with pytest.raises(UserError, match="84 x 84 cannot be encoded; resize them to 64 x 64"):
        build(config(), ObservationSpec("image", (84, 84, 1)), ACTIONS)
