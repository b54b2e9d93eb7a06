"""Properties of worlds: each against what can be counted by hand or by other means."""

import numpy as np
import pytest
import torch
from run_folders import told

from dqn_memory.study import world_properties
from dqn_memory.study.page import WORDS
from dqn_memory.study.world_properties import SCENES, SEED, control_twin, delay, properties, tabular_delay
from envs import baselines
from envs.registry import make_world
from envs.worlds.heaven_hell import tables as heaven_hell

MEMORY = "Gridverse/Memory-{0}-v0"


@pytest.mark.parametrize(
    ("world", "name", "value"),
    [
        (MEMORY.format("5x5"), "wall density", 2 / 9),  # both cells beside the middle
        (MEMORY.format("FourRooms-7x7"), "wall density", (9 - 4) / 25),  # a cross with an opening in each of its arms
        (MEMORY.format("13x13-Hallucinated"), "wall density", 0),  # phantoms are no walls
        ("POMDP/Hallway-v0", "wall density", None),
        (MEMORY.format("7x7"), "rooms", 1),
        (MEMORY.format("FourRooms-7x7"), "rooms", 4),
        (MEMORY.format("SixteenRooms-13x13"), "rooms", 16),
        (MEMORY.format("13x13-Hallucinated"), "rooms", 1),
        (MEMORY.format("TwentyFiveRooms-13x13"), "rooms", 25),
        ("Gridverse/Keydoor-5x5-v0", "rooms", 2),
        # two steps to the middle and two to the side, and the corridor between the bars
        *((MEMORY.format(f"{size}x{size}"), "delay", (size - 1) // 2 * 2 + size - 5) for size in (5, 7, 9)),
        ("POMDP/Hallway-v0", "delay", None),  # it has no fact that a cue could tell
        # what never looks alike within an episode has one state per observation
        *((f"POMDP/{world}-v0", "aliasing", 1) for world in ("HeavenHell", "MemoryCards", "CarFlag")),
    ],
)
def test_properties_that_can_be_counted_by_hand(world: str, name: str, value: float | None) -> None:
    assert list(properties(world)) == list(WORDS["definitions"])
    assert properties(world)[name] == (value if value is None else pytest.approx(value))


def test_properties_that_can_be_ordered() -> None:
    corridors = [properties(MEMORY.format(size))["aliasing"] or 0 for size in ("5x5", "7x7", "9x9")]
    assert corridors == sorted(corridors)  # longer corridors look the same for longer
    assert (properties("POMDP/Hallway-v0")["aliasing"] or 0) > 2
    rooms = [MEMORY.format(f"NineRooms-13x13{more}") for more in ("", "-2Beacons", "-3Beacons")]
    beacons = [properties(room)["delay"] or 0 for room in rooms]
    assert beacons == sorted(set(beacons), reverse=True)
    assert 1 < (delay(make_world("POMDP/MemoryCards-v0")) or 0) < 10  # about their number, never less than a step


@pytest.mark.parametrize("n", [1, 2, 5])
def test_delay_of_heaven_hell_is_the_way_from_the_priest(n: int) -> None:
    assert tabular_delay(heaven_hell(n)) == 3 * n + 1  # n to the corner, one to the start, n north, n along the arm


def test_delay_of_car_flag_is_what_a_plain_simulation_counts() -> None:
    starts = torch.rand(SCENES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    counts = []
    for side, place in starts.tolist():
        heaven, position, velocity, known, count = (-1 if side < 0.5 else 1), (place - 0.5) * 0.4, 0.0, False, 0
        while abs(position) < 1:
            known = known or 0.3 <= position <= 0.7
            velocity = max(-0.07, min(0.07, velocity + 0.0015 * (heaven if known else 1)))
            position += velocity
            count += known
        counts.append(count)
    assert delay(make_world("POMDP/CarFlag-v0")) == pytest.approx(np.mean(counts))


def test_aliasing_counts_states_of_each_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, states = np.array([[1, 1], [1, 1], [2, 1], [2, 1]]), np.array([[10, 7], [11, 7], [12, 8], [12, 9]])
    alive = np.array([[True, True], [True, True], [True, True], [True, False]])
    monkeypatch.setattr(world_properties, "_random_moments", lambda world: (looks, states, alive))
    assert world_properties.aliasing(make_world("POMDP/Hallway-v0")) == (3 / 2 + 2 / 1) / 2


def test_gap_is_between_the_shipped_lines_of_known_worlds() -> None:
    world, lines = MEMORY.format("5x5"), baselines.lines(MEMORY.format("5x5"))
    assert properties(world)["gap"] == lines.lower.success.mean - lines.random.success.mean
    assert "Memory-5x5" in told(properties, MEMORY.format("5x6"))


def test_control_twins_differ_by_their_phantoms_only() -> None:
    for world, twin in (("13x13-Hallucinated", "Empty-13x13"), ("13x13-HallucinatedCorridor", "13x13")):
        assert control_twin(MEMORY.format(world)) == MEMORY.format(twin)
        assert control_twin(MEMORY.format(twin)) is None
    assert control_twin("ALE/Pong-v5") is None
