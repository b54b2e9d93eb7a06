"""The numbers that a network is shown of each object, and the spaces that declare them."""

import gymnasium
import numpy as np
import pytest
import torch

from envs.gridverse import objects
from envs.gridverse.encodings import ENCODINGS, encoding_of
from envs.gridverse.objects import BLUE, CLOSED, LOCKED, OPEN, PHANTOM, RED, YELLOW, pack
from envs.gridverse.tasks import KEYDOOR, MEMORY

SIZES = {  # by encoding: of memory and of Keydoor
    "summed": ((21,), (13,)),
    "default": ((11, 2, 5), (7, 4, 5)),
}


@pytest.mark.parametrize(("declared", "code", "default", "summed"), [
    (MEMORY, pack(objects.NONE), (0, 0, 0), 0),
    (MEMORY, pack(objects.HIDDEN), (1, 0, 0), 1),
    (MEMORY, pack(objects.FLOOR), (2, 0, 0), 2),
    (MEMORY, pack(objects.WALL), (3, 0, 0), 3),
    *((MEMORY, pack(objects.EXIT, colour=c), (4, 0, c), 4 + c)
      for c in (RED, BLUE, YELLOW)),
    *((MEMORY, pack(objects.BEACON, colour=c), (10, 0, c), 10 + c)
      for c in (RED, YELLOW)),
    (KEYDOOR, pack(objects.NONE), (0, 0, 0), 0),
    (KEYDOOR, pack(objects.HIDDEN), (1, 0, 0), 1),
    (KEYDOOR, pack(objects.FLOOR), (2, 0, 0), 2),
    (KEYDOOR, pack(objects.WALL), (3, 0, 0), 3),
    (KEYDOOR, pack(objects.EXIT), (4, 0, 0), 4),
    *((KEYDOOR, pack(objects.DOOR, s, YELLOW), (5, s, 4), 9)
      for s in (OPEN, CLOSED, LOCKED)),
    (KEYDOOR, pack(objects.KEY, colour=YELLOW), (6, 0, 4), 10),
])  # fmt: skip
def test_numbers_and_sizes(declared, code, default, summed):
    expected = {"default": default, "summed": (summed,)}
    assert set(expected) == set(ENCODINGS)
    for name, numbers in expected.items():
        encoding = encoding_of(name, declared, torch.device("cpu"))
        assert tuple(encoding.numbers[code].tolist()) == numbers, name
        assert encoding.sizes == SIZES[name][declared is KEYDOOR]
        assert all(number < size for number, size in zip(numbers, encoding.sizes, strict=True)), name


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_floor_on_a_phantom_line_looks_like_a_wall_and_nothing_else_does(name):
    numbers = encoding_of(name, MEMORY, torch.device("cpu")).numbers
    assert torch.equal(numbers[PHANTOM | pack(objects.FLOOR)], numbers[pack(objects.WALL)])
    for code in (pack(objects.WALL), pack(objects.EXIT, colour=RED), pack(objects.BEACON, colour=BLUE)):
        assert torch.equal(numbers[PHANTOM | code], numbers[code])
    assert not torch.equal(numbers[pack(objects.FLOOR)], numbers[pack(objects.WALL)])


def test_a_box_shows_nothing_of_its_contents():
    numbers = encoding_of("default", MEMORY, torch.device("cpu")).numbers
    assert numbers[[pack(objects.BOX), pack(objects.BOX) | 5, pack(objects.BOX) | 31]].tolist() == [[8, 0, 0]] * 3


@pytest.mark.parametrize(("encoding", "view"), [*zip(ENCODINGS, [(2, 3), (7, 7)], strict=True)])
@pytest.mark.parametrize("id", ["Gridverse/Memory-NineRooms-13x13-v0", "Gridverse/Keydoor-7x7-v0"])
def test_dictionaries_hold_what_vectors_hold(id, view, encoding):
    flat = gymnasium.make(id, view=view, encoding=encoding)
    dictionary = gymnasium.make(id, view=view, encoding=encoding, dictionary=True)
    many = gymnasium.make_vec(id, num_envs=2, view=view, encoding=encoding, dictionary=True)
    vector, entries, rows = (env.reset(seed=3)[0] for env in (flat, dictionary, many))
    channels = 1 if encoding == "summed" else 3
    assert entries["grid"].shape == (*view, channels)
    assert np.array_equal(entries["grid"].flatten(), vector)
    assert np.array_equal(np.argwhere(entries["agent_id_grid"]), [[view[0] - 1, view[1] // 2]])
    assert entries["item"].shape == (channels,)
    for key, entry in entries.items():
        assert np.array_equal(rows[key][0], entry)
    assert vector in flat.observation_space and entries in dictionary.observation_space
    assert rows in many.observation_space
