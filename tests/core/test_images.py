"""Images are read as their space says: by its bounds, and along the axes that their sizes settle."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from run_folders import error_of

from dqn_memory import train
from dqn_memory.agent import Agent
from dqn_memory.blocks.embeddings import ImageEmbedding
from dqn_memory.network import observation_embedding, observation_spec
from dqn_memory.replay import Replay
from dqn_memory.runs.base_config import EnvironmentConfig
from envs.actions import InterfaceConfig
from envs.gymnasium import GymnasiumVector
from envs.packages import make_env
from envs.spaces import encoder
from envs.vector import make_vector
from world_models.unizero.config import EncoderConfig
from world_models.unizero.encoders import ENCODERS

FORM = (64, 64, 3)  # which both embeddings take
RANGES = [
    (bool, 0, 1), (np.uint8, 0, 1), (np.uint8, 0, 255), (np.uint8, 10, 20), (np.int8, -128, 127),
    (np.int16, -100, 300), (np.uint16, 0, 65_535), (np.int64, 0, 1_000), (np.float32, 0, 1), (np.float32, -1, 1),
    (np.float64, 0, 255), (np.float16, 0, 8),
]  # fmt: skip


def embedded(build, space, image):
    """Embed an image as acting and the replay hold it, by networks with the same weights."""
    inner, encode = encoder(space)
    spec = observation_spec(inner)
    replay = Replay(spec, 2, 1, 2, torch.device("cpu"))
    held = torch.as_tensor(encode(image)).to(replay.cells["observation"].dtype)
    assert (held.double().numpy() == np.asarray(image, float)).all()  # raw values, not scaled ones
    torch.manual_seed(0)
    return build(spec).double()(held[None, None])


BUILDS = {
    "network": lambda spec: observation_embedding(spec, 8),
    "unizero": lambda spec: ENCODERS["image"](spec, 8, EncoderConfig(channels=4, norm="group")),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize(("dtype", "low", "high"), RANGES)
def test_an_image_is_read_from_its_least_to_its_greatest_value(build, dtype, low, high):
    pattern = np.random.default_rng(0).integers(2, size=FORM)
    wanted = embedded(build, spaces.Box(0, 1, FORM, np.float64), pattern.astype(float))
    found = embedded(build, spaces.Box(low, high, FORM, dtype), np.where(pattern == 1, high, low).astype(dtype))
    assert torch.allclose(found, wanted, atol=1e-6)


def test_bounds_may_differ_from_entry_to_entry():
    pattern = np.random.default_rng(0).integers(2, size=FORM)
    low, high = np.zeros(FORM, np.float32), np.ones(FORM, np.float32)
    low[..., 1], high[..., 1], high[..., 2] = -5, 5, 255
    space = spaces.Box(low, high, dtype=np.float32)
    wanted = embedded(BUILDS["network"], spaces.Box(0, 1, FORM, np.float64), pattern.astype(float))
    assert torch.allclose(embedded(BUILDS["network"], space, np.where(pattern, high, low)), wanted, atol=1e-6)


def test_usual_images_are_read_bit_for_bit_as_ever_and_weights_keep_their_names():
    spec = observation_spec(spaces.Box(0, 255, FORM, np.uint8))
    embedding = observation_embedding(spec, 8)
    assert list(embedding.state_dict()) == list(ImageEmbedding(FORM, 8, True).state_dict())
    assert {name.split(".")[0] for name in embedding.state_dict()} == {"convolutions", "linear"}
    image = torch.arange(64 * 64 * 3).remainder(256).byte().reshape(1, 1, *FORM)
    frames = (image[0].float() * (1 / 255)).permute(0, 3, 1, 2)
    assert torch.equal(embedding(image)[0], embedding.linear(embedding.convolutions(frames).flatten(1)))


def test_values_without_bounds_stay_as_they_are_and_it_is_said(capsys):
    class Boundless(gymnasium.Env):
        observation_space, action_space = spaces.Box(-np.inf, np.inf, (4, 5, 3), np.float32), spaces.Discrete(2)

    assert observation_embedding(observation_spec(Boundless.observation_space), 8).scale(
        torch.tensor([7.0]), torch.float32
    ).tolist() == [7.0]
    gymnasium.register("Mine/Boundless-v0", Boundless)
    make_vector("Mine/Boundless-v0", 2, 0)
    del gymnasium.registry["Mine/Boundless-v0"]
    assert capsys.readouterr().err.count("Mine/Boundless-v0") == 1


@pytest.mark.parametrize(("shape", "last"), [
    ((7, 7, 3), True), ((3, 7, 7), False), ((84, 84, 4), True), ((4, 84, 84), False), ((64, 64, 12), True),
    ((12, 64, 64), False), ((210, 160, 3), True), ((4, 5, 3), True), ((10, 10, 4), True), ((8, 8, 1), True),
    ((64, 3, 3), True), ((2, 1, 3), True), ((7, 7, 20), True), ((20, 7, 7), False), ((3, 3, 3), None),
    ((4, 3, 3), False), ((8, 8, 8), None), ((5, 3, 9), None), ((1, 1, 1), None),
])  # fmt: skip
def test_axes_that_sizes_do_not_settle_are_refused(shape, last):
    space = spaces.Box(0, 255, shape, np.uint8)
    if last is None:
        assert " x ".join(map(str, shape)) in error_of(observation_spec, space)
        with pytest.raises(ValueError, match="channels"):
            ImageEmbedding(shape, 8, True)
    else:
        first_layer = observation_embedding(observation_spec(space), 8).convolutions[0]
        assert first_layer.in_channels == (shape[-1] if last else shape[0])


@pytest.mark.parametrize(("shape", "seen"), [
    ((84, 84), (1, 84, 84)), ((5, 9), (1, 5, 9)), ((4, 84, 84, 3), (12, 84, 84)), ((4, 3, 84, 84), (12, 84, 84)),
    ((4, 7, 7, 3), (12, 7, 7)), ((2, 6, 5, 1), (2, 6, 5)), ((3, 6, 9, 1), (3, 6, 9)),
    ((40, 4), (160,)), ((2, 2, 84, 84), (28224,)),
])  # fmt: skip
def test_grey_and_stacked_images_have_their_pixels_side_by_side(shape, seen):
    space = spaces.Box(0, 255, shape, np.uint8)
    inner, encode = encoder(space)
    image = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    shown = encode(image)
    assert inner.shape == shown.shape == seen and inner.contains(shown)
    if len(seen) == 3:
        frames = image.reshape(-1, *shape[-2:]) if shape[-1] > 3 else np.concatenate([each.T for each in image]).mT
        assert np.array_equal(shown, frames) and observation_spec(inner).kind == "image"
        observation_embedding(observation_spec(inner), 8)(torch.as_tensor(shown)[None, None])


def test_frames_whose_channels_would_be_taken_for_a_side_are_refused():
    assert "16 x 7 have 12 channels" in error_of(encoder, spaces.Box(0, 255, (4, 16, 7, 3), np.uint8))


@pytest.mark.parametrize(("space", "said"), [
    (spaces.Box(0, 1, (6, 7), np.float32), 1), (spaces.Box(0, 255, (6, 7), np.uint8), 0), (spaces.Discrete(3), 0),
    (spaces.Box(0, 1, (6,), np.float32), 0), (spaces.Box(0, 1, (6, 7, 3), np.float32), 0),
    (spaces.Box(0, 1, (2, 6, 7, 3), np.float32), 1),
])  # fmt: skip
def test_no_image_is_flattened_in_silence(space, said, capsys):
    class Shows(gymnasium.Env):
        observation_space, action_space = space, spaces.Discrete(2)

    GymnasiumVector(Shows, 1, 0)
    assert capsys.readouterr().err.count("flat") == said


class Film(gymnasium.Env):
    """The picture is as bright as the number of steps."""

    observation_space, action_space = spaces.Box(0, 255, (10, 11, 3), np.uint8), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros((10, 11, 3), np.uint8), {}

    def step(self, action):
        self.time += 1
        return np.full((10, 11, 3), self.time, np.uint8), 0.0, self.time == 4, False, {}


@pytest.fixture
def film():
    gymnasium.register("Mine/Film-v0", Film)
    yield "Mine/Film-v0"
    del gymnasium.registry["Mine/Film-v0"]


def test_stacked_frames_are_the_newest_ones_of_the_episode(film):
    vector = make_vector(film, 2, 0, env_kwargs={"stack": 3})
    shown = [vector.reset()] + [vector.step(torch.zeros(2, dtype=torch.int64)).final_observation for _ in range(6)]
    assert all(each.shape == (2, 9, 10, 11) for each in shown)
    assert [each[1, ::3, 0, 0].tolist() for each in shown] == [
        [0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 1], [0, 1, 2]
    ]  # fmt: skip


def test_frames_of_a_dictionary_are_stacked_without_its_texts():
    pytest.importorskip("minigrid")
    vector = make_vector("MiniGrid-MemoryS7-v0", 2, 0, env_kwargs={"stack": 4}, interface=InterfaceConfig("image"))
    single = make_vector("MiniGrid-MemoryS7-v0", 2, 0, interface=InterfaceConfig("image"))
    frames = [single.reset(), single.step(torch.tensor([2, 1])).observation]  # (N, 7, 7, 3)
    vector.reset()
    shown = vector.step(torch.tensor([2, 1])).observation
    assert torch.equal(shown, torch.cat([frames[0]] * 3 + [frames[1]], -1).movedim(-1, 1))


@pytest.mark.long
def test_a_run_with_stacked_frames_trains_and_its_agent_sees_them(film, tmp_path):
    run = tmp_path / "run"
    small = "--num-envs 2 --width 8 --heads 2 --layers 1 --context 4 --learning-starts 8 --prepopulate 8"
    rest = "--total-steps 24 --evaluate-every 24 --episodes 1 --final-episodes 1 --track none"
    train.main(f"--env {film} --stack 3 --run {run} {small} {rest}".split())
    agent = Agent.load(run)
    observation, _ = make_env(film, stack=3).reset()
    assert agent.act(observation, reset=True) in (0, 1)


@pytest.mark.parametrize("env", ["Pixel/BlinkingCatch-v0", "ALE/Pong-v5"])
def test_other_environments_take_no_stack(env):
    assert "--stack 2" in error_of(EnvironmentConfig(env=env, stack=2).kwargs)


@pytest.mark.parametrize("space", [
    spaces.Box(0, 255, (0, 5, 3), np.uint8), spaces.Box(0, 2**64 - 1, (5, 5, 1), np.uint64), spaces.Discrete(2**40),
])  # fmt: skip
def test_an_observation_that_no_network_can_hold_is_one_sentence(space):
    assert error_of(lambda: observation_spec(encoder(space)[0])).isprintable()


@pytest.mark.parametrize("axes", ["chw", "hwc"])
@pytest.mark.parametrize("shape", [(4, 4, 4), (7, 7, 3), (3, 5, 4)])
def test_axes_that_are_told_need_no_guess(shape, axes):
    class Told(gymnasium.Env):
        observation_space = spaces.Dict(seen=spaces.Box(0, 255, shape, np.uint8), number=spaces.Box(0, 1, (2,)))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"seen": np.arange(np.prod(shape), dtype=np.uint8).reshape(shape), "number": np.zeros(2)}, {}

    gymnasium.register("Mine/Told-v0", Told)
    told = make_vector("Mine/Told-v0", 1, 0, env_kwargs={"image_axes": axes}, interface=InterfaceConfig("seen"))
    image, spec = told.reset()[0], observation_spec(told.observation_space)
    rows = observation_spec(make_vector("Mine/Told-v0", 1, 0, env_kwargs={"image_axes": axes}).observation_space)
    del gymnasium.registry["Mine/Told-v0"]
    given = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert np.array_equal(image.numpy(), given if axes == "chw" else given.transpose(2, 0, 1))
    channels = shape[0] if axes == "chw" else shape[2]
    assert observation_embedding(spec, 8).convolutions[0].in_channels == channels
    assert dict(rows.entries)["seen"] == spec
