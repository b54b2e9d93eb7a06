"""What inspect draws of a GLAM run: the right frames, honest numbers, whole files, one sentence for what is wrong."""

import json

import numpy as np
import pytest
import torch
from glam_runs import trained
from PIL import Image
from run_folders import refused
from trained import contents

from dqn_memory.errors import UserError
from world_models.glam import pictures
from world_models.glam.curves import Curve, curves
from world_models.glam.foresight import Foreseen, foresee, live
from world_models.glam.inspect import main
from world_models.glam.loading import load
from world_models.glam.record import main as record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("glam") / "run", "--imagination", "carried", steps=64)


@pytest.fixture(scope="module")
def found(run):
    return load(run)


def test_the_trend_of_a_straight_line_is_the_line_itself():
    line = Curve(np.arange(40.0), 3.0 - 0.5 * np.arange(40.0))
    assert np.allclose(line.trend(), line.values) and line.fluctuation() < 1e-12
    noise = np.random.default_rng(0).normal(size=4000)
    rough = Curve(np.arange(4000.0), 0.01 * np.arange(4000) + noise)
    assert abs(rough.fluctuation() - np.sqrt(1 - 1 / 11)) < 0.03  # the mean of 11 takes 1/11 of the variance away
    assert np.isnan(Curve(np.arange(1.0), np.ones(1)).fluctuation())


def test_curves_are_the_logged_losses():
    lines = [
        {"step": 10, "losses/reward": 2.0, "losses/total": 5.0},
        {"step": 20, "eval/episodic_return": 1.0},
        {"step": 30, "losses/reward": None, "losses/total": 4.0},
    ]
    known = curves(lines, "here")
    assert set(known) == {"reward", "total"}
    assert known["total"].steps.tolist() == [10, 30] and known["reward"].values.tolist() == [2.0]
    with pytest.raises(UserError, match="here has logged no loss"):
        curves(lines[1:2], "here")


def test_a_lived_episode_is_the_world_s(found):
    lived = live(found, seed=0, longest=50, greedy=False)
    assert len(lived) == 6 and lived.done and lived.frames.shape == (7, 3, 8, 8)
    assert lived.episode_return == lived.reward.sum() == lived.reward[[2, 5]].sum()
    again = live(found, seed=0, longest=50, greedy=False)
    assert torch.equal(lived.frames, again.frames) and torch.equal(lived.action, again.action)
    assert len(live(found, 0, 4, False)) == 4


def test_the_dream_sees_the_past_and_the_actions_only(found):
    lived = live(found, 0, 50, False)
    said = foresee(found, lived, start=2, horizon=4, seed=1)
    assert said.imagined.shape == said.real.shape == (4, 8, 8, 3) and len(said.seen) == 3
    assert np.allclose(said.real * 255, lived.frames[3:7].permute(0, 2, 3, 1).numpy(), atol=1e-4)
    assert said.reward.tolist() == lived.reward[2:6].tolist()
    blank = type(lived)(lived.frames.clone(), lived.action, lived.reward, lived.episode_return, lived.done)
    blank.frames[3:] = 0
    assert np.array_equal(foresee(found, blank, 2, 4, 1).imagined, said.imagined)
    blank.frames[2] = 255
    assert not np.array_equal(foresee(found, blank, 2, 4, 1).imagined, said.imagined)
    turned = lived.action.clone()
    turned[5] = (turned[5] + 1) % 3  # the last action of the dream matters at its end, and nowhere before
    other = type(lived)(lived.frames, turned, lived.reward, lived.episode_return, lived.done)
    same = foresee(found, other, 2, 4, 1).imagined_reward == said.imagined_reward
    assert same.tolist() == [True, True, True, False]


def test_a_dream_may_begin_at_the_first_frame_and_end_with_the_last(found):
    lived = live(found, 0, 50, False)
    assert len(foresee(found, lived, 0, 6, 0)) == 6
    with pytest.raises(UserError, match="the last start is 4"):
        foresee(found, lived, 5, 2, 0)


def test_errors_are_measured_against_the_simplest_guesses():
    frames = np.zeros((2, 4, 4, 3))
    said = Foreseen(
        start=0, seen=frames[:1], real=frames + 1.0, imagined=frames + 0.5, reward=np.array([1.0, -1.0]),
        imagined_reward=np.array([1.0, 0.0]), end=np.zeros(2),
    )  # fmt: skip
    assert said.errors() == {"frame": 0.25, "frame_unchanged": 1.0, "reward": 0.5, "reward_zero": 1.0}


def test_boxes_are_around_what_varied():
    before, after = np.zeros((8, 8, 3)), np.zeros((8, 8, 3))
    assert pictures.varied(before, after) == []
    after[2:4, 5], after[7, 1] = 0.9, 0.5
    assert pictures.varied(before, after) == [(5, 2, 6, 4), (1, 7, 2, 8)]
    after[0, 0] = 0.05  # too faint
    after[4, 6] = after[5, 7] = 1.0  # touch by their corners
    assert pictures.varied(before, after) == [(5, 2, 8, 6), (1, 7, 2, 8)]


def test_the_script_draws_everything_and_changes_nothing_else(run, capsys):
    before = contents(run)
    main([str(run), "--start", "1", "--imagined", "5"])
    folder = run / "inspect"
    names = {"imagined.png", "imagined.gif", "losses.png", "inspect.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert {name: digest for name, digest in contents(run).items() if not name.startswith("inspect/")} == before
    with Image.open(folder / "imagined.gif") as film:
        assert film.n_frames == 5
    told = json.loads((folder / "inspect.json").read_text())
    assert (told["start"], told["imagined"], len(told["reward"])) == (1, 5, 5)
    assert {"reconstruction", "reward", "dynamics", "variation", "total"} <= next(iter(told["losses"].values())).keys()
    assert "frame_unchanged" in capsys.readouterr().out


def test_losses_of_two_runs_stand_side_by_side(run, tmp_path):
    other = trained(tmp_path / "other", "--sequence", "storm", steps=64)
    main([str(run), "--beside", str(other)])
    told = json.loads((run / "inspect" / "inspect.json").read_text())["losses"]
    assert len(told) == 2 and "variation" not in told[f"{other.parent.name}/other"]


def test_what_is_wrong_is_one_sentence(run, tmp_path, capsys):
    assert "--start 4 with --imagined 9" in refused(capsys, [str(run), "--start", "4", "--imagined", "9"], main)
    assert "--imagined 0" in refused(capsys, [str(run), "--imagined", "0"], main)
    assert "twice" in refused(capsys, [str(run), "--beside", str(run)], main)
    assert "no run folder" in refused(capsys, [str(run), "--beside", str(tmp_path)], main)


def test_finished_runs_are_kept_with_their_table(run, tmp_path, capsys):
    twin = trained(tmp_path / "storm" / "seed_2", "--sequence", "storm", "--seed", "2", steps=64)
    kept = tmp_path / "kept"
    record([str(run), str(twin), "--folder", str(kept), "--title", "Two forms"])
    assert (kept / "storm-seed_2" / "metrics.jsonl").read_bytes() == (twin / "metrics.jsonl").read_bytes()
    text = (kept / "README.md").read_text()
    final = json.loads((twin / "metrics.jsonl").read_text().splitlines()[-1])
    assert text.startswith("# Two forms") and "| storm | 2 | 64 |" in text
    assert f"| storm | 1 | {final['final/episodic_return']:.2f} |" in text
    assert "2 runs kept" in capsys.readouterr().out
    assert {path.name for path in kept.glob("*.png")} == {"returns.png", "losses.png"}
    page = (kept / "README.md").read_bytes()
    record([str(run), str(kept / "storm-seed_2"), "--folder", str(kept), "--title", "Two forms"])
    assert (kept / "README.md").read_bytes() == page
    record([str(kept / "storm-seed_2"), "--folder", str(tmp_path / "other")])
    assert [path.name for path in (tmp_path / "other").iterdir() if path.is_dir()] == ["storm-seed_2"]
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.toml", "environment.json"):
        (unfinished / name).write_bytes((twin / name).read_bytes())
    assert "is not finished" in refused(capsys, [str(unfinished), "--folder", str(kept)], record)
    assert "names must differ" in refused(capsys, [str(twin), str(twin), "--folder", str(kept)], record)
