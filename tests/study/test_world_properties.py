"""Properties of worlds: each against what can be counted by hand or by other means."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dqn_memory.study import world_properties
from dqn_memory.study.page import WORDS
from dqn_memory.study.world_properties import (
    control_twin,
    delay,
    properties,
    regions,
    tabular_delay,
)
from envs import baselines
from envs.errors import UserError
from envs.registry import make_world
from envs.worlds.heaven_hell import tables as heaven_hell

MEMORY = "Gridverse/Memory-{0}x{0}-v0"


def test_every_property_has_a_definition_in_its_order() -> None:
    assert list(properties("POMDP/Hallway-v0")) == list(WORDS["definitions"])


def test_walls_are_counted_inside_the_border() -> None:
    assert properties(MEMORY.format(5))["wall density"] == 2 / 9  # both cells beside the middle
    rooms = properties("Gridverse/Memory-FourRooms-7x7-v0")
    assert rooms["wall density"] == pytest.approx((9 - 4) / 25)  # a cross of 9 with an opening in each of its 4 arms
    assert properties("Gridverse/Memory-13x13-Hallucinated-v0")["wall density"] == 0  # phantoms are no walls
    assert properties("POMDP/Hallway-v0")["wall density"] is None


@pytest.mark.parametrize(
    ("world", "count"),
    [("Memory-7x7", 1), ("Memory-FourRooms-7x7", 4), ("Memory-SixteenRooms-13x13", 16), ("Keydoor-5x5", 2),
     ("Memory-13x13-Hallucinated", 1), ("Memory-TwentyFiveRooms-13x13", 25)],
)  # fmt: skip
def test_rooms_are_counted_with_openings_closed(world: str, count: int) -> None:
    assert properties(f"Gridverse/{world}-v0")["rooms"] == count


def test_regions_join_over_sides_and_not_over_corners() -> None:
    grid = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 0], [1, 0, 1, 1]], dtype=torch.bool)
    assert regions(grid) == 4
    assert regions(torch.zeros(2, 2, dtype=torch.bool)) == 0


@pytest.mark.parametrize(("size", "steps"), [(5, 4), (7, 8), (9, 12)])
def test_delay_of_a_corridor_is_the_way_from_beacon_to_exit(size: int, steps: int) -> None:
    """Two steps to the middle and two to the side, and the corridor between the bars."""
    assert properties(MEMORY.format(size))["delay"] == (size - 1) // 2 * 2 + size - 5 == steps


def test_more_beacons_shorten_the_delay() -> None:
    found = [
        properties(f"Gridverse/Memory-NineRooms-13x13{more}-v0")["delay"] for more in ("", "-2Beacons", "-3Beacons")
    ]
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]
    assert len(set(found)) == 3


@pytest.mark.parametrize("n", [1, 2, 5])
def test_delay_of_heaven_hell_is_the_way_from_the_priest(n: int) -> None:
    assert tabular_delay(heaven_hell(n)) == 3 * n + 1  # n to the corner, one to the start, n north, n along the arm


def test_hallway_has_no_fact_that_a_cue_could_tell() -> None:
    assert delay(make_world("POMDP/Hallway-v0")) is None


def test_delay_of_car_flag_is_what_a_plain_simulation_counts() -> None:
    world = make_world("POMDP/CarFlag-v0")
    starts = torch.rand(
        world_properties.SCENES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(world_properties.SEED)
    )
    counts = []
    for side, place in starts.tolist():
        heaven, position, velocity, known, count = (-1 if side < 0.5 else 1), (place - 0.5) * 0.4, 0.0, False, 0
        while abs(position) < 1:
            known = known or 0.3 <= position <= 0.7
            velocity = max(-0.07, min(0.07, velocity + 0.0015 * (heaven if known else 1)))
            position += velocity
            count += known
        counts.append(count)
    assert delay(world) == pytest.approx(np.mean(counts))


def test_delay_of_cards_is_about_their_number_and_never_less_than_a_step() -> None:
    found = delay(make_world("POMDP/MemoryCards-v0"))
    assert found is not None
    assert 1 < found < 10


def test_what_never_looks_alike_within_an_episode_has_one_state_per_observation() -> None:
    for world in ("POMDP/HeavenHell-v0", "POMDP/MemoryCards-v0", "POMDP/CarFlag-v0"):
        assert properties(world)["aliasing"] == 1.0
    corridors = [properties(MEMORY.format(size))["aliasing"] for size in (5, 7, 9)]
    assert corridors == sorted(corridors)  # type: ignore[type-var]  # longer corridors look the same for longer
    assert properties("POMDP/Hallway-v0")["aliasing"] > 2  # type: ignore[operator]


def test_aliasing_counts_states_of_each_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, states = np.array([[1, 1], [1, 1], [2, 1], [2, 1]]), np.array([[10, 7], [11, 7], [12, 8], [12, 9]])
    alive = np.array([[True, True], [True, True], [True, True], [True, False]])
    monkeypatch.setattr(world_properties, "_random_moments", lambda world: (looks, states, alive))
    assert world_properties.aliasing(make_world("POMDP/Hallway-v0")) == (3 / 2 + 2 / 1) / 2


def test_gap_is_between_the_shipped_lines() -> None:
    lines = baselines.lines(MEMORY.format(5))
    assert lines is not None
    assert properties(MEMORY.format(5))["gap"] == lines.lower.success.mean - lines.random.success.mean


def test_control_twins_differ_by_their_phantoms_only() -> None:
    twins = {
        name: control_twin(f"Gridverse/Memory-{name}-v0") for name in ("13x13-Hallucinated", "13x13", "Empty-13x13")
    }
    assert twins == {"13x13-Hallucinated": "Gridverse/Memory-Empty-13x13-v0", "13x13": None, "Empty-13x13": None}
    assert control_twin("Gridverse/Memory-13x13-HallucinatedCorridor-v0") == MEMORY.format(13)
    assert control_twin("ALE/Pong-v5") is None


def test_an_unknown_world_is_named() -> None:
    with pytest.raises(UserError, match="Memory-5x5"):
        properties("Gridverse/Memory-5x6-v0")
