"""How good is good: the players, the bounds, and the lines that scripts print."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import error_of

from envs import baselines
from envs.baselines import players, reference
from envs.baselines.__main__ import main
from envs.baselines.minigrid_players import ROOMS, MemoryRoom
from envs.core import State, World
from envs.popgym.ladders import RUNGS
from envs.popgym.levels import LEVELS
from envs.registry import WORLDS, make_world

# Success of random actions in the original worlds, 4,000 episodes each.
RANDOM = {
    "POMDP/Hallway-v0": 0.306, "POMDP/HeavenHell-v0": 0.427, "POMDP/CarFlag-v0": 0.315, "POMDP/MemoryCards-v0": 0.566,
    "Gridverse/Memory-5x5-v0": 0.450, "Gridverse/Memory-7x7-v0": 0.285, "Gridverse/Memory-9x9-v0": 0.203,
    "Gridverse/Memory-11x11-v0": 0.108, "Gridverse/Memory-13x13-v0": 0.060,
    "Gridverse/Memory-13x13-Hallucinated-v0": 0.184, "Gridverse/Memory-13x13-HallucinatedCorridor-v0": 0.060,
    "Gridverse/Memory-FourRooms-7x7-v0": 0.386, "Gridverse/Memory-FourRooms-13x13-v0": 0.167,
    "Gridverse/Memory-NineRooms-13x13-v0": 0.154, "Gridverse/Memory-NineRooms-13x13-2Beacons-v0": 0.157,
    "Gridverse/Memory-NineRooms-13x13-3Beacons-v0": 0.146, "Gridverse/Memory-SixteenRooms-13x13-v0": 0.144,
    "Gridverse/Memory-TwentyFiveRooms-13x13-v0": 0.150, "Gridverse/Memory-SixteenRooms-15x15-v0": 0.112,
    "Gridverse/Memory-SixteenRooms-17x17-v0": 0.090, "Gridverse/Memory-SixteenRooms-21x21-v0": 0.067,
    "Gridverse/Keydoor-5x5-v0": 0.081, "Gridverse/Keydoor-7x7-v0": 0.006, "Gridverse/Keydoor-9x9-v0": 0.002,
}  # fmt: skip
MEASURED = 4_000
NO_ORIGINAL = "Pixel/BlinkingCatch-v0"
PAIRS = (  # hallucinated world and control twin
    ("Gridverse/Memory-13x13-Hallucinated-v0", "Gridverse/Memory-Empty-13x13-v0"),
    ("Gridverse/Memory-13x13-HallucinatedCorridor-v0", "Gridverse/Memory-13x13-v0"),
)


def apart(rate, count, other, others):
    """How many standard errors two success rates lie apart."""
    pooled = (rate * count + other * others) / (count + others)
    return abs(rate - other) / np.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / count + 1 / others))


class Coin(World):
    """An episode of 1 or of 9 steps, equally likely; the long ones succeed, and so would who went on after the end."""

    num_actions, reset_draws, step_draws = 2, 1, 0
    observation_space = gymnasium.spaces.Discrete(2)

    def reset(self, u):
        return State((u < 0.5).long(), *self.counters(len(u)))

    def step(self, state, action, u):
        after = State(state.observation, state.steps + 1, state.returns + 1.0)
        short = state.observation[:, 0] == 0
        ended = short | (after.steps >= 9)
        return after, after.observation, torch.ones(len(ended)), ended, ended & (~short | (after.steps > 1))

    def frame(self, state, row): ...

    def text(self, state, row): ...


def test_short_episodes_are_not_counted_more_often_than_long_ones():
    outcomes = players.play_episodes(Coin(100), players.random_player(Coin(100), 0), 4_000, 0)
    assert apart(float(outcomes.success.double().mean()), 4_000, 0.5, 10**9) < 4
    assert torch.equal(outcomes.lengths, torch.where(outcomes.success, 9, 1))
    assert torch.equal(outcomes.returns, outcomes.lengths.double())  # an ended episode stands still
    measured = players.mean_with_error(torch.tensor([True, False, False, False]))
    assert (measured.mean, measured.error) == pytest.approx((0.25, 0.25))
    cut = players.play_episodes(Coin(5), players.random_player(Coin(100), 0), 100, 0)
    assert not cut.success.any() and set(cut.lengths.tolist()) == {1, 5}


def test_every_world_has_lines_but_those_that_are_made_from_a_file():
    namespaces = ("Gridverse/", "POMDP/", "Pixel/")  # other tests may add worlds of their own
    ours = {id for id in WORLDS if id.startswith(namespaces)}
    measured = {*RANDOM, PAIRS[0][1], NO_ORIGINAL}
    assert set(reference.shipped_references()) == measured | set(LEVELS) | set(RUNGS) | set(ROOMS)
    assert measured <= ours - {"Gridverse/Yaml-v0", "POMDP/File-v0"}
    for hallucinated, control in PAIRS:
        one, other = reference.shipped_references()[hallucinated], reference.shipped_references()[control]
        assert one.random == other.random and one.upper == other.upper
    for id, rate in RANDOM.items():
        assert (
            apart(
                reference.shipped_references()[id].random.success.mean,
                reference.shipped_references()[id].episodes,
                rate,
                MEASURED,
            )
            < 4
        ), id
    for id, lines in reference.shipped_references().items():
        assert lines.time_limit == (MemoryRoom(id) if id in ROOMS else make_world(id)).time_limit
        for lower, upper in ((lines.lower.success, lines.upper.success), (lines.lower.returns, lines.upper.returns)):
            assert lower.mean <= upper.mean + 4 * (lower.error + upper.error) + 1e-9, id
        assert lines.random.success.mean < lines.lower.success.mean or not lines.defines_success
        assert lines.random.returns.mean < lines.lower.returns.mean


def example(random=0.45, error=0.01, lower=0.9, upper=0.99):
    level = lambda mean, kind, error=0.0: reference.Level(reference.Measure(mean, error), reference.Measure(1.0), kind)  # noqa: E731
    levels = level(random, "measured", error), level(lower, "a"), level(upper, "b")
    return reference.ReferenceScores("Mine/World-v0", 100, *levels, 10, 0, 0, "abc")


def test_a_score_is_put_beside_the_two_lines():
    assert baselines.beside_reference(0.8, example()) == "random 0.45, best known 0.90 to 0.99"
    assert baselines.beside_reference(0.8, example(lower=0.991)) == "random 0.45, best known 0.99"
    assert baselines.beside_reference(0.46, example()) == "random 0.45, best known 0.90 to 0.99: not above random"
    assert baselines.reference_summary(1.0, 0.0, "envs:Gridverse/Memory-7x7-v0").endswith(", best known 1.00)")
    assert baselines.reference_summary(1.0, 0.0, "CartPole-v1") == ""
    assert baselines.reference_summary(1.0, 0.0, "POMDP/CarFlag-v0", {"time_limit": 9}) == ""
    assert baselines.reference_of("CartPole-v1") is None


def test_the_lines_of_players_with_less_of_a_memory_stand_between():
    corridor, recall = (
        baselines.reference_of(id) for id in ("Gridverse/Memory-7x7-v0", "POPGym/CountRecall-Medium-v0")
    )
    between = "newest observation alone 0.50, observation and clock 1.00, one remembered step 0.83"
    assert baselines.beside_reference(0.9, corridor) == f"random 0.28, {between}, best known 1.00"
    assert baselines.beside_reference(0.9, recall).endswith(
        "observation and clock -0.49, one remembered step -0.70, perfect memory 1.00"
    )


def test_the_script_writes_its_files_and_keeps_other_rows(tmp_path, capsys):
    flags = ["--episodes", "40", "--write", str(tmp_path)]
    main(["--env", "POMDP/CarFlag-v0", *flags])
    main(["--env", "Gridverse/Memory-5x5-v0", *flags, "--seed", "3"])
    assert "Gridverse/Memory-5x5-v0" in capsys.readouterr().out
    rows = json.loads((tmp_path / "baselines.json").read_text())
    assert list(rows) == ["Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0"]  # in the order of the registry
    assert rows["Gridverse/Memory-5x5-v0"]["seed"] == 3 and rows["POMDP/CarFlag-v0"]["seed"] == 0
    assert rows["POMDP/CarFlag-v0"]["command"].endswith(f"--env POMDP/CarFlag-v0 --episodes 40 --write {tmp_path}")
    page = (tmp_path / "baselines.md").read_text()
    assert "| Gridverse/Memory-5x5-v0 | 40 |  | 3 |" in page and "belief-optimal" in page


def test_a_pattern_names_several_environments_whose_lines_are_printed_and_written(tmp_path, capsys):
    main(["--env", "POPGym/RepeatFirst-[EM]*", "--episodes", "20", "--write", str(tmp_path)])
    assert capsys.readouterr().out.count("observation -0.") == 2
    rows = reference.read_references(tmp_path / "baselines.json")
    assert list(rows) == ["POPGym/RepeatFirst-Easy-v0", "POPGym/RepeatFirst-Medium-v0"]
    assert rows["POPGym/RepeatFirst-Easy-v0"].lines == reference.reference_of("POPGym/RepeatFirst-Easy-v0").lines
    page = (tmp_path / "baselines.md").read_text()
    assert "| POPGym/RepeatFirst-Easy-v0 | -0.5" in page and "-0.499 | -0.461 | 1.000 | 1.000 | " in page


def test_nothing_is_written_unasked(here, capsys):
    main(["--env", "POMDP/CarFlag-v0", "--episodes", "40"])
    assert "POMDP/CarFlag-v0" in capsys.readouterr().out and not list(here.iterdir())


def test_the_best_known_player_is_no_worse_than_chance(tmp_path):
    path = tmp_path / "rare.pomdp"  # who maximises the return succeeds in three of ten episodes
    path.write_text(
        "discount: 0.9 values: reward states: a b start: 0.3 0.7 actions: safe risky observations: 2 T: * : * reset "
        "O: * uniform R: safe : a : * : * 1 R: safe : b : * : * -0.1 R: risky : a : * : * -100 R: risky : b : * : * 10"
    )
    options = ["--options", "path", str(path), "--episodes", "400", "--write", str(tmp_path)]
    main(["--env", "POMDP/File-v0", *options])
    (found,) = reference.read_references(tmp_path / "baselines.json").values()
    assert found.lower.success == found.random.success and found.lower.kind == "lower by random actions"
    assert found.lower.returns.mean > found.random.returns.mean


def test_what_nobody_plays_any_more_is_as_recorded_or_bounded_by_random_actions(tmp_path):
    rooms, cards = "Gridverse/Memory-FourRooms-7x7-v0", "POMDP/MemoryCards-v0"
    shorter, fewer = (rooms, "--options", "time_limit", "100"), (cards, "--options", "pairs", "3")
    for world in ((rooms,), shorter, (cards,), fewer):
        main(["--env", *world, "--episodes", "40", "--write", str(tmp_path)])
    found, shipped = reference.read_references(tmp_path / "baselines.json"), reference.shipped_references()
    assert (found[rooms].lower, found[rooms].scripted_episodes) == (shipped[rooms].lower, 1_000)
    shortened = found[f"{rooms} (time_limit=100)"]
    assert shortened.lower == replace(shortened.random, kind="lower by random actions") and shortened.upper.kind
    assert (found[cards].lower, found[cards].upper) == (shipped[cards].lower, shipped[cards].upper)
    assert not found[f"{cards} (pairs=3)"].bounded


@pytest.mark.parametrize(("flags", "message"), [
    (["--options", "time_limit", "5"], "--options belong to one environment; name it with --env"),
    (["--episodes", "1"], "--episodes 1 must be at least 2"),
    (["--gap", "0"], "--gap 0.0 must be above 0"),
    (["--env", "POPGym/RepeatLast*"], "POPGym/RepeatLast*"),
    (["--seed", "-1"], "--seed -1 must be at least 0"),
    (["--seed", str(2**64)], f"--seed {2**64} must be at least 0, and below"),
    (["--episodes", str(10**20)], f"--episodes {10**20} must be at least 2, and below"),
    (["--env", "MiniGrid-MemoryS7-v0", "--options", "size", "9"], "leave out --options"),
    (["--env", "POMDP/CarFlag-v0"], "is no table of reference scores"),
    (["--env", "POMDP/CarFlag-v0", "--write", "FOLDER/baselines.json/results"], "choose another folder"),
])  # fmt: skip
def test_what_is_wrong_is_one_clear_sentence_before_the_work(flags, message, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "envs.baselines.__main__.compute_reference", lambda *_: pytest.fail("the computation came first")
    )
    (tmp_path / "baselines.json").write_text('{"mine": 1}')
    flags = [flag.replace("FOLDER", str(tmp_path)) for flag in flags]
    assert message in error_of(main, ["--write", str(tmp_path), *flags])
    assert (tmp_path / "baselines.json").read_text() == '{"mine": 1}'
