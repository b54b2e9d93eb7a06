"""Readings of success from a run's curve, and the scales of scores."""

from itertools import starmap

import numpy as np
import pytest
from run_folders import error_of

from dqn_memory.runs.metrics import metrics_line, read_metrics
from dqn_memory.study.run_summary import Curve, in_steps, median_steps, read_curve, summarise
from dqn_memory.study.statistics import HUMAN, game, world_scale
from envs.atari import rom
from envs.baselines.reference import shipped_references


def curve(success, final=None, every=100, trained=None):
    steps = np.arange(len(success)) * every
    return Curve(steps, np.array(success, float), int(steps[-1]) if trained is None else trained, final)


@pytest.mark.parametrize(
    ("success", "last", "mean"),
    [
        ([0.0] * 10 + [1.0] * 5, 0.5, np.mean([0.0] * 10 + [0.1, 0.2, 0.3, 0.4, 0.5])),  # evaluations 6 to 15
        ([1.0, 0.0, 0.5], 0.5, np.mean([1.0, 0.5, 0.5])),
    ],
)
def test_both_readings_of_the_running_average_which_starts_with_what_there_is(success, last, mean):
    found = summarise(curve(success))
    assert (found["last_average"], found["mean_average"]) == (last, pytest.approx(mean))


def test_area_is_per_step_also_with_uneven_steps():
    uneven = Curve(np.array([0, 100, 400]), np.array([0.0, 1.0, 1.0]), 400)
    assert summarise(uneven)["area"] == pytest.approx((50 + 300) / 400)
    assert summarise(curve([0.7]))["area"] == 0.7


def test_steps_to_a_level_and_a_median_that_is_censored_where_the_middle_is():
    assert summarise(curve([0.1, 0.5, 0.3, 0.8], trained=450))["steps_to"] == [100, None]
    runs = [100, None, 300]
    assert [median_steps([*runs, *more]) for more in ([], [None], [200])] == [300, None, 250]
    assert (in_steps(1_250_000, 2_000_000), in_steps(None, 450)) == ("1,250,000", "> 450")


LINES = [
    (0, {"eval/success_rate": 0.2}),
    (50, {"losses/td_loss": 1.0}),
    (100, {"eval/success_rate": 0.6}),
    (200, {"eval/success_rate": 0.4}),
    (250, {"final/success_rate": 0.45, "final/episodes": 100.0}),
]


def curve_of(path, lines, more=b""):
    path.write_bytes(b"".join(starmap(metrics_line, lines)) + more)
    return read_curve(read_metrics(path), True, str(path))


def test_a_run_is_read_from_its_folder_and_an_unfinished_one_has_no_final_success(tmp_path):
    found = curve_of(tmp_path / "metrics.jsonl", LINES)
    assert found.steps.tolist() == [0, 100, 200] and found.success.tolist() == [0.2, 0.6, 0.4]
    assert (found.final, found.trained) == (0.45, 250)
    assert summarise(found)["steps_to"] == [100, None]
    assert summarise(curve_of(tmp_path / "metrics.jsonl", LINES[:-1]))["final"] is None
    assert "no evaluation" in error_of(curve_of, tmp_path / "metrics.jsonl", LINES[1:2])
    alone = curve_of(tmp_path / "metrics.jsonl", [(250, {"final/success_rate": 0.45})])  # --evaluate-every 0
    assert (alone.steps.tolist(), alone.success.tolist(), alone.final) == ([250], [0.45], 0.45)
    drawn = (250, {"final/success_rate": 0.45, "sampled/success_rate": 0.75})
    assert curve_of(tmp_path / "metrics.jsonl", [*LINES[:-1], drawn]).final == 0.75


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"step": 100, "eval/success_rate": 0.5}', "do not ascend"),
        ('{"step": 300, "eval/success_rate": 1.5}', "not a number from 0 to 1"),
        ('{"step": 300, "eval/success_rate": null}', "not a number from 0 to 1"),
        *((text, "jsonl is damaged: line 6 ") for text in ("{not", "[1]", '{"eval/success_rate": 0.5}', "\xff")),
    ],
)
def test_a_line_that_cannot_be_is_noticed(tmp_path, line, words):
    assert words in error_of(curve_of, tmp_path / "metrics.jsonl", LINES, f"{line}\n".encode("latin-1"))


def test_worlds_are_scaled_between_random_and_the_best_known_player():
    for world, lines in shipped_references().items():
        scale = world_scale(world, lines.defines_success)
        assert scale(lines.score(lines.random).mean) == 0
        assert scale(lines.score(lines.lower).mean) == pytest.approx(1)
        assert world_scale(f"envs:{world}", lines.defines_success) == scale
    bounded = shipped_references()["Gridverse/Memory-SixteenRooms-21x21-v0"]
    assert world_scale(bounded.id)(bounded.upper.success.mean) > 1  # more than any known player
    assert world_scale("POMDP/CarFlg-v0") is None


def test_every_game_of_the_benchmark_has_a_human_score_under_any_spelling():
    assert len(HUMAN) == 26 and all(rom(name) == name for name in HUMAN)
    assert {game(name) for name in ("ms_pacman", "MsPacman", "Ms Pacman", "ALE/MsPacman-v5")} == {"ms_pacman"}
    assert game("James Bond") == "jamesbond"
    assert HUMAN["pong"](-20.7) == 0 and HUMAN["pong"](14.6) == 1
    assert HUMAN["boxing"](76) == pytest.approx(75.9 / 12)
    assert game("Pang") == ""
