"""`observe="state"`: the same episodes in every world, with all that matters in view."""

import gymnasium
import numpy as np
import pytest
import torch
from own_worlds import Cue
from run_folders import error_of
from world_keywords import IDS, actions, build

from envs import spaces
from envs.core import StateObserved
from envs.gridverse.encodings import FullState
from envs.gridverse.objects import BOX, EAST, HIDDEN, KEY, NORTH, SOUTH, WEST, YELLOW, Scene, pack
from envs.registry import make_world
from envs.vector import TensorVector

COUNTERS = ("observation", "steps", "returns", "shown")


def walk(id, steps=40, rows=8, **kwargs):
    """Vectors of a world and of its state-observed twin, and the same random actions in both: states and Steps."""
    worlds = [build(id, time_limit=15, observe=observe, **kwargs) for observe in ("observation", "state")]
    vectors = [TensorVector(world, rows, 3, form="clip") for world in worlds]
    for vector in vectors:
        vector.reset()
    for action in actions(vectors[0], steps):
        yield vectors, [vector.step(action) for vector in vectors]


@pytest.mark.parametrize("id", IDS)
def test_only_the_observation_differs(id):
    for (plain, twin), (ours, theirs) in walk(id):
        for name in ("reward", "terminated", "truncated", "success", "episode_return", "episode_length"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        for name, value in vars(plain.state).items():
            assert torch.equal(value, getattr(twin.state, "shown" if name == "observation" else name)), name
        assert torch.equal(theirs.observation, twin.world.observe_state(twin.state))
        shaped = spaces.unflatten(twin.observation_space)(theirs.final_observation.numpy())
        assert all(twin.observation_space.contains(spaces.row(shaped, row)) for row in range(8))
    assert plain.world.text(plain.state, 1) == twin.world.text(twin.state, 1)
    np.testing.assert_array_equal(plain.frame(1), twin.frame(1))
    initial = [vector.world.initial_draws() for vector in (plain, twin)]
    assert initial == [None, None] or torch.equal(*initial)


@pytest.mark.parametrize("id", IDS)
def test_what_is_seen_determines_what_is(id):
    """Rows that look alike are alike in all that the future depends on: here, in what follows the same actions."""
    seen: dict[bytes, list[torch.Tensor]] = {}
    for (plain, twin), _ in walk(id, steps=60, rows=32):
        values = [v for name, v in vars(plain.state).items() if name not in (*COUNTERS, *HIDDEN_FOR_GOOD.get(id, ()))]
        for row, look in enumerate(twin.state.observation):
            state = [value[row] for value in values]
            known = seen.setdefault(look.numpy().tobytes(), state)
            assert all(torch.equal(a, b) for a, b in zip(known, state, strict=True))
    assert len(seen) > 1


# What the future does not depend on: values of cards that are gone and places of balls that have landed or not begun.
HIDDEN_FOR_GOOD = {"POMDP/MemoryCards-v0": ("cards",), "Pixel/BlinkingCatch-v0": ("columns",)}


def test_cards_lie_open():
    world = make_world("POMDP/MemoryCards-v0", observe="state", pairs=3)
    state = world.reset(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0]], dtype=torch.float64))
    assert state.observation.tolist() == [[1 + 4, 2, 3, 1, 2, 3]] and state.shown.tolist() == [[1, 0, 0, 0, 0, 0]]
    draw = torch.tensor([[0.99]], dtype=torch.float64)
    for action, expected in ((3, [4, 2, 3, 4, 2, 7]), (2, [4, 2, 4, 4, 6, 4]), (1, [4] * 6)):
        state, observation, *_ = world.step(state, torch.tensor([action]), draw)
        assert observation.tolist() == [expected]


def scene(height, width, position, heading, held=0, good=0):
    """A grid in which every cell can be told from the others: boxes with different contents."""
    cells = pack(BOX) + torch.arange(height * width, dtype=torch.int16)
    return Scene(cells[None], *(torch.tensor([value]) for value in (position, heading, held, good)))


@pytest.mark.parametrize(("position", "heading", "expected"), [
    *[(4, NORTH, "012 345 678"), (4, SOUTH, "876 543 210"), (4, EAST, "258 147 036"), (4, WEST, "630 741 852")],
    (0, NORTH, "867 201 534"),  # what lies beyond an edge comes in at the opposite one
])  # fmt: skip
def test_a_grid_turns_and_goes_with_the_agent(position, heading, expected):
    whole = FullState(3, 3, torch.device("cpu"))
    seen = whole(scene(3, 3, position, heading))[0, :9] - whole.numbers[pack(BOX)]
    assert seen.tolist() == [int(cell) for cell in expected.replace(" ", "")]


@pytest.mark.parametrize(("height", "width"), [(3, 5), (5, 2)])
def test_every_cell_is_there_once_in_grids_that_are_not_square(height, width):
    whole, hidden = FullState(height, width, torch.device("cpu")), height * width
    for position in range(height * width):
        seen = whole(scene(height, width, position, EAST))[0, :25]
        cells = sorted((seen - whole.numbers[pack(BOX)]).tolist())[-hidden:]
        assert cells == list(range(hidden)) and (seen == whole.numbers[pack(HIDDEN)]).sum() == 25 - hidden
    key = pack(KEY, 0, YELLOW)
    y, x = divmod(8, width)
    rest = whole(scene(height, width, 8, WEST, key, 2))[0, 25:]
    assert rest.tolist() == [y, x, WEST, int(whole.numbers[key]), 2]


def test_gymnasium_makes_it_of_environments_that_show_a_state():
    env = gymnasium.make("POMDP/CarFlag-v0", observe="state")
    vector = gymnasium.make_vec("POMDP/CarFlag-v0", num_envs=2, observe="state")
    assert "Cue shows no state" in error_of(StateObserved, Cue())
    assert np.array_equal(vector.reset(seed=0)[0][0], env.reset(seed=0)[0]) and abs(vector.reset()[0][:, 2]).min() == 1
