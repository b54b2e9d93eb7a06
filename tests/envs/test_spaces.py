"""The sizes of several whole numbers, as other libraries read them."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

from envs.spaces import MultiDiscrete


@pytest.mark.parametrize("id", ["POMDP/MemoryCards-v0", "Gridverse/Memory-5x5-v0", "Gridverse/Keydoor-5x5-v0"])
def test_the_width_of_a_one_hot_form_is_a_python_integer(id):
    space = gymnasium.make(id).observation_space
    assert type(sum(space.nvec)) is int
    assert sum(space.nvec) == int(np.sum(space.nvec))


def test_it_is_gymnasiums_space_in_all_else():
    ours, plain = MultiDiscrete([3, 2, 5], seed=3), gymnasium.spaces.MultiDiscrete([3, 2, 5], seed=3)
    assert ours == plain
    assert plain == ours
    assert [ours.sample().tolist() for _ in range(5)] == [plain.sample().tolist() for _ in range(5)]
    assert batch_space(ours, 4) == batch_space(plain, 4)
    assert ours.nvec.dtype == np.int64
    assert isinstance(ours, gymnasium.spaces.MultiDiscrete)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda space: pickle.loads(pickle.dumps(space))])
def test_copies_keep_their_sizes(copied):
    space = MultiDiscrete([4, 4], start=[1, 1])
    assert copied(space) == space
    assert type(sum(copied(space).nvec)) is int
