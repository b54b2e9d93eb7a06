"""Whatever is wrong with an environment's name or keywords is told in one sentence."""

import pytest

from envs.errors import UserError
from envs.registry import make_world

WRONG = [  # an id, its keywords, and what the sentence says
    # the names and the time limit
    ("POMDP/CarFlg-v0", {}, "POMDP/CarFlag-v0"),
    ("carflag", {}, "POMDP/CarFlag-v0"),
    ("Gridverse/Memory-6x6-v0", {}, "Gridverse/Memory-"),
    ("nothing like it", {}, "known: Gridverse/"),
    ("POMDP/CarFlag-v0", {"timelimit": 3}, "time_limit"),
    ("POMDP/CarFlag-v0", {"time_limit": 0}, "time_limit must be at least 1"),
    ("Gridverse/Memory-5x5-v0", {"size": 6}, "odd"),
    ("POMDP/MemoryCards-v0", {"pairs": 1}, "pairs"),
    ("POMDP/CarFlag-v0", {"observe": "all"}, "observe of .* must be 'observation' or 'state', not 'all'"),
    ("Gridverse/Memory-7x7-v0", {"device": "gpu"}, "no device 'gpu'"),
    ("Gridverse/Memory-7x7-v0", {"time_limit": "a"}, "a whole number"),
    ("Gridverse/Memory-7x7-v0", {"time_limit": 2.5}, "a whole number"),
    ("Gridverse/Memory-7x7-v0", {"view": (2.5, 3)}, "whole numbers"),
    ("Gridverse/Memory-7x7-v0", {"phantom_rooms": "ab"}, "whole numbers"),
    ("Gridverse/Memory-7x7-v0", {"encoding": 3}, "a name"),
    ("Gridverse/Memory-7x7-v0", {"dictionary": "yes"}, "True or False"),
    ("Gridverse/Yaml-v0", {"path": 5}, "the name of a file, not 5"),
    # grids
    ("Gridverse/Memory-5x5-v0", {"size": 3}, "odd and at least 5, not 3"),
    ("Gridverse/Memory-NineRooms-13x13-v0", {"size": 6}, "3 x 3 rooms do not fit into a grid of 6 x 6 cells"),
    ("Gridverse/Memory-NineRooms-13x13-v0", {"rooms": (0, 3)}, "two positive numbers"),
    ("Gridverse/Memory-NineRooms-13x13-v0", {"rooms": 3}, "rooms of .* must be whole numbers, such as .2, 3., not 3"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"beacons": 30}, "do not fit on 20 cells of floor"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"exits": 5}, "5 exits need as many different colours, but there are 4"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"exits": 0}, "at least 1 exit"),
    ("Gridverse/Memory-Empty-13x13-v0", {"rooms": (7, 7)}, "do not fit"),
    ("Gridverse/Keydoor-5x5-v0", {"size": 4}, "at least 4 x 5 cells"),
    ("Gridverse/Keydoor-5x5-v0", {"view": (2, 4)}, "odd number of columns, not 2 x 4"),
    ("Gridverse/Keydoor-5x5-v0", {"view": (3,)}, "two numbers"),
    ("Gridverse/Keydoor-5x5-v0", {"phantom_rooms": (3, 3)}, "do not fit into a grid of 5 x 5 .* at least 7 x 7"),
    ("Gridverse/Keydoor-5x5-v0", {"phantom_rooms": (2,)}, "two positive numbers"),
    ("Gridverse/Keydoor-5x5-v0", {"phantom_cells": "flor-cue", "phantom_rooms": (1, 1)}, "did you mean 'floor-cue'"),
    ("Gridverse/Keydoor-5x5-v0", {"encoding": "no_overlap"}, "grid encoding 'no_overlap'; did you mean 'no-overlap'"),
    ("Gridverse/Yaml-v0", {"path": "empty.4x4", "view": (2, 3)}, "The view of empty.4x4 is in the file"),
    ("Gridverse/Keydoor-5x5-v0", {"veiw": (7, 7)}, "did you mean 'view'"),
    ("Gridverse/Keydor-5x5-v0", {}, "did you mean 'Gridverse/Keydoor-5x5-v0'"),
    # other environments
    ("Pixel/BlinkingCatch-v0", {"size": 7}, "size of Blinking Catch must be from 8"),
    ("Pixel/BlinkingCatch-v0", {"size": 300}, "to 256 pixels, not 300"),
    ("Pixel/BlinkingCatch-v0", {"grid": 2}, "from 3 to 16 cells, not 2"),
    ("Pixel/BlinkingCatch-v0", {"balls": 0}, "balls of Blinking Catch must be at least 1"),
    ("Pixel/BlinkingCatch-v0", {"blink": 0}, "blink of Blinking Catch must be at least 1"),
    ("Pixel/BlinkingCatch-v0", {"blinks": 3}, "blink"),
    ("POMDP/HeavenHell-v0", {"n": 0}, "n of HeavenHell must be at least 1 cell, not 0"),
    ("POMDP/HeavenHell-v0", {"n": 5000}, "HeavenHell with n=5000: found .* entries"),
    ("POMDP/File-v0", {}, "Environment 'POMDP/File-v0' needs the keyword 'path'"),
    ("POMDP/File-v0", {"path": "tigre.pomdp"}, "tigre.pomdp: found no readable file"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "keywords", "words"), WRONG)
def test_wrong_environments_are_one_clear_sentence(id, keywords, words):
    with pytest.raises(UserError, match=words) as error:
        make_world(id, **keywords)
    assert "\n" not in str(error.value)
