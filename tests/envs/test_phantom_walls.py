"""`PhantomWalls` shows what the hallucinated worlds show, on every grid that has places."""

import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from run_folders import error_of

import envs  # noqa: F401
from envs.packages import make_env
from envs.wrappers import OneHot, PhantomWalls, PreviousAction, VectorPhantomWalls

EMPTY, CORRIDOR, YAML = "Gridverse/Memory-Empty-13x13-v0", "Gridverse/Memory-13x13-v0", "Gridverse/Yaml-v0"
MINIGRID = "MiniGrid-FourRooms-v0"
REGISTERED = [  # a hallucinated environment, and the one without phantom rooms
    ("Gridverse/Memory-13x13-Hallucinated-v0", EMPTY),
    ("Gridverse/Memory-13x13-HallucinatedCorridor-v0", CORRIDOR),
]
OPTIONS = [
    (EMPTY, (5, 5), {"view": (7, 7)}),
    (EMPTY, (2, 4), {"view": (5, 3), "encoding": "default"}),
    (CORRIDOR, (3, 3), {"dictionary": True}),
    ("Gridverse/Keydoor-9x9-v0", (4, 2), {"dictionary": True, "encoding": "default", "view": (4, 5)}),
    (YAML, (4, 4), {"path": "memory.9x9"}),
    pytest.param(YAML, (2, 2), {"path": "keydoor.7x7"}, marks=pytest.mark.long),
    pytest.param(YAML, (3, 3), {"path": "dynamic_obstacles.7x7"}, marks=pytest.mark.long),
]


def check_same_episodes(ours, theirs, seeds, steps):
    """Equal observations, rewards and endings under random actions; most go straight ahead, to come around."""
    vector = hasattr(ours, "num_envs")
    for seed in seeds:
        assert data_equivalence(ours.reset(seed=seed), theirs.reset(seed=seed), exact=True)
        chosen = np.random.default_rng(seed).choice([0, 0, 0, 1, 2, 3, 4, 5], (steps, ours.num_envs if vector else 1))
        for actions in chosen:
            given = actions if vector else int(actions[0])
            one, other = ours.step(given), theirs.step(given)
            assert data_equivalence(one, other, exact=True)
            if not vector and (one[2] or one[3]):
                assert data_equivalence(ours.reset(), theirs.reset(), exact=True)


@pytest.mark.parametrize(("phantom", "plain"), REGISTERED)
def test_the_wrapper_shows_what_the_registered_worlds_show(phantom, plain):
    ours = PhantomWalls(gymnasium.make(plain), rooms=(5, 5))
    check_same_episodes(ours, gymnasium.make(phantom), range(4), 1000)


@pytest.mark.parametrize(("mode", "limit"), [(AutoresetMode.SAME_STEP, 7), (AutoresetMode.NEXT_STEP, 90)])
@pytest.mark.parametrize(("phantom", "plain"), REGISTERED)
def test_a_vector_shows_what_the_registered_worlds_show_with_final_observations(phantom, plain, mode, limit):
    make = partial(gymnasium.make_vec, num_envs=16, autoreset_mode=mode, time_limit=limit)
    check_same_episodes(VectorPhantomWalls(make(plain), rooms=(5, 5)), make(phantom), range(3), 200)


@pytest.mark.parametrize(("id", "rooms", "keywords"), OPTIONS)
def test_other_views_encodings_and_files_are_those_with_phantom_rooms(id, rooms, keywords):
    theirs = gymnasium.make(id, phantom_rooms=rooms, **keywords)
    check_same_episodes(PhantomWalls(gymnasium.make(id, **keywords), rooms=rooms), theirs, range(3), 200)


def minigrid(id=MINIGRID, rooms=(6, 3), inside=lambda env: env):
    pytest.importorskip("minigrid")
    return PhantomWalls(inside(make_env(id)), rooms=rooms)


def wrapped(name, **keywords):
    return lambda env: getattr(pytest.importorskip("minigrid.wrappers"), name)(env, **keywords)


@pytest.mark.parametrize("inside", [lambda env: env, wrapped("ViewSizeWrapper", agent_view_size=9)])
@pytest.mark.parametrize(("id", "rooms"), [(MINIGRID, (6, 3)), ("MiniGrid-DoorKey-8x8-v0", (3, 2))])
def test_minigrid_shows_phantom_walls_where_it_would_show_real_ones(id, rooms, inside):
    """MiniGrid's own picture of the same grid with real walls, where walls do not stop sight."""
    env = minigrid(id, rooms, inside)
    inner, painted, see = env.unwrapped, 0, getattr(env.env, "observation", lambda shown: shown)
    wall = pytest.importorskip("minigrid.core.world_object").Wall()
    inner.see_through_walls = True
    down, across = ([k * (inner.height - 1) // n for k in range(1, n)] for n in rooms)  # the grids are square
    for seed in range(3):
        env.reset(seed=seed)
        for action in np.random.default_rng(seed).choice([0, 1, 2, 2, 2, 3, 5], 100):
            shown, *_ = env.step(int(action))
            floor = [(x, y) for x, y in np.ndindex(inner.width, inner.height) if inner.grid.get(x, y) is None]
            lines = [(x, y) for x, y in floor if y in down or x in across]
            plain = see(inner.gen_obs())
            for place in lines:
                inner.grid.set(*place, wall)
            wanted = see(inner.gen_obs())
            for place in lines:
                inner.grid.set(*place, None)
            assert data_equivalence(shown, wanted, exact=True)
            painted += (shown["image"] != plain["image"]).any(-1).sum()
    assert painted > 100


def test_minigrid_hides_no_more_and_plays_the_same():
    ours, plain = minigrid(), make_env(MINIGRID)
    changed, hidden = 0, 0
    for seed in range(3):
        ours.reset(seed=seed), plain.reset(seed=seed)
        for action in np.random.default_rng(seed).choice([0, 1, 2, 2, 2], 90):
            (one, *rest), (other, *same) = ours.step(action), plain.step(action)
            differ = (one["image"] != other["image"]).any(-1)
            assert rest == same and one["mission"] == other["mission"] and one["direction"] == other["direction"]
            assert (one["image"][differ] == [2, 5, 0]).all() and (other["image"][differ] == [1, 0, 0]).all()
            changed, hidden = changed + differ.sum(), hidden + (other["image"][..., 0] == 0).sum()
    assert changed > 100 and hidden > 100


def test_a_vector_of_minigrids_wraps_each_of_them():
    pytest.importorskip("minigrid")
    single = minigrid(inside=wrapped("ImgObsWrapper"))
    wrappers = [wrapped("ImgObsWrapper"), partial(PhantomWalls, rooms=(6, 3))]
    vector = gymnasium.make_vec(MINIGRID, num_envs=2, vectorization_mode="sync", wrappers=wrappers)
    shown, _ = vector.reset(seed=4)
    assert np.array_equal(shown[1], single.reset(seed=5)[0])
    for action in [2, 1, 2, 2] * 8:
        shown, *_ = vector.step([0, action])
        assert np.array_equal(shown[1], single.step(action)[0])


def test_other_wrappers_go_around_it_and_its_spec_makes_it_again():
    env = PreviousAction(OneHot(PhantomWalls(gymnasium.make(EMPTY), rooms=(5, 5))))
    registered = PreviousAction(OneHot(gymnasium.make(REGISTERED[0][0])))
    again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
    for each in (env, again):
        check_same_episodes(each, registered, [3], 50)


@pytest.mark.parametrize(("build", "words"), [
    (lambda: PhantomWalls(gymnasium.make("CartPole-v1"), rooms=(2, 2)), "MiniGrid"),
    (lambda: PhantomWalls(gymnasium.make("POMDP/CarFlag-v0"), rooms=(2, 2)), "CarFlag"),
    (lambda: PhantomWalls(gymnasium.make(EMPTY, observe="state"), rooms=(2, 2)), "Empty"),
    (lambda: PhantomWalls(OneHot(gymnasium.make(EMPTY)), rooms=(2, 2)), "outside of PhantomWalls"),
    (lambda: PhantomWalls(gymnasium.make(EMPTY), rooms=(7, 1)), "7 x 1 rooms do not fit"),
    (lambda: PhantomWalls(gymnasium.make(EMPTY), rooms=3), "(down, across)"),
    (lambda: PhantomWalls(gymnasium.make_vec(EMPTY), rooms=(2, 2)), "VectorPhantomWalls"),
    (lambda: VectorPhantomWalls(gymnasium.make(EMPTY), rooms=(2, 2)), "PhantomWalls"),
    (lambda: VectorPhantomWalls(gymnasium.make_vec(EMPTY, vectorization_mode="sync"), rooms=(2, 2)), "wrappers=["),
    (lambda: minigrid(rooms=(30, 1)), "30 x 1 rooms do not fit"),
    (lambda: minigrid(inside=wrapped("FullyObsWrapper")), "FullyObsWrapper"),
    (lambda: minigrid(inside=wrapped("RGBImgPartialObsWrapper")), "RGBImgPartialObsWrapper"),
])  # fmt: skip
def test_wrong_environments_are_refused_in_one_sentence(build, words):
    assert words in error_of(build)
