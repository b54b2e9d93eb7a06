"""What evaluate and inspect say of a GLAM run: both policies, the right frames, honest numbers, clear refusals."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from glam_models import TINY, trained
from PIL import Image
from run_folders import error_of, printed, refused
from trained import contents

from dqn_memory.blocks.kernels.select import set_scan
from dqn_memory.blocks.kernels.selective_scan import scan_torch
from dqn_memory.evaluate import main as evaluate_main
from dqn_memory.runs.seeding import generator
from dqn_memory.runs.settings import parse
from world_models.glam import plots
from world_models.glam.acting import GlamAgent, Player, PolicyScore, build_glam, evaluation_modes
from world_models.glam.config import GlamConfig
from world_models.glam.foresight import EpisodeRollout, imagine_episode, play_episode
from world_models.glam.inspect import main
from world_models.trainer import EvalEnvironments


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("glam") / "run", "--imagination-memory", "carried", steps=64)


@pytest.fixture(scope="module")
def found(run):
    return GlamAgent.load(run, torch.device("cpu"))


@pytest.fixture(scope="module")
def lived(found):
    return play_episode(found, seed=0, max_steps=50, greedy=False)


def test_a_lived_episode_is_the_world_s(found, lived):
    assert len(lived) == 6 and lived.done and lived.frames.shape == (7, 3, 8, 8)
    assert lived.episode_return == lived.reward.sum() == lived.reward[[2, 5]].sum()
    again = play_episode(found, seed=0, max_steps=50, greedy=False)
    assert torch.equal(lived.frames, again.frames) and torch.equal(lived.action, again.action)
    assert len(play_episode(found, 0, 4, False)) == 4


def test_the_dream_sees_the_past_and_the_actions_only(found, lived):
    said = imagine_episode(found, lived, start=2, horizon=4, seed=1)
    assert said.imagined.shape == said.real.shape == (4, 8, 8, 3) and len(said.seen) == 3
    assert np.allclose(said.real * 255, lived.frames[3:7].permute(0, 2, 3, 1).numpy(), atol=1e-4)
    assert said.reward.tolist() == lived.reward[2:6].tolist()
    blank = replace(lived, frames=lived.frames.clone())
    blank.frames[3:] = 0
    assert np.array_equal(imagine_episode(found, blank, 2, 4, 1).imagined, said.imagined)
    blank.frames[2] = 255
    assert not np.array_equal(imagine_episode(found, blank, 2, 4, 1).imagined, said.imagined)
    turned = lived.action.clone()
    turned[5] = (turned[5] + 1) % 3  # the last action of the dream matters at its end, and nowhere before
    same = imagine_episode(found, replace(lived, action=turned), 2, 4, 1).imagined_reward == said.imagined_reward
    assert same.tolist() == [True, True, True, False]


def test_a_dream_may_begin_at_the_first_frame_and_end_with_the_last(found, lived):
    assert len(imagine_episode(found, lived, 0, 6, 0).reward) == 6
    assert "the last start is 4" in error_of(imagine_episode, found, lived, 5, 2, 0)


@pytest.mark.parametrize("form", ["window", "carried"])
def test_the_dream_is_that_of_the_training_form_by_hand(found, lived, form):
    """Each step from the training form on what had been seen and imagined until then."""
    start, horizon, model = 2, 4, copy.deepcopy(found.model).double()
    set_scan(model, scan_torch)  # which alone computes in float64
    model.config = replace(model.config, imagination_memory=form, context=2)
    found = replace(found, model=model, config=replace(found.config, model=model.config))
    said, numbers = imagine_episode(found, lived, start, horizon, 7), generator(7, torch.device("cpu"))
    low = start - model.config.context
    seen = model.sample(model.encode(lived.frames[None, low : start + 1]), model.noise((1, start + 1 - low), numbers))
    noise = model.noise((horizon, 1), numbers)
    action, first = lived.action[None, low : start + horizon], torch.arange(low, start + horizon)[None] == 0
    for t in range(horizon):
        end = start + t + 1 - low
        keep = slice(max(0, end - model.config.context) if form == "window" else 0, end)
        h = model.sequence(seen[:, keep], action[:, keep], first[:, keep]).h[:, -1]
        assert said.imagined_reward[t] == pytest.approx(model.reward(h).item(), rel=1e-6)
        assert said.end[t] == pytest.approx(model.termination(h).sigmoid().item(), rel=1e-6)
        seen = torch.cat((seen, model.sample(model.prior_head(h), noise[t])[:, None]), 1)
        image = model.decoder(seen[:, -1])[0].clamp(0, 1).permute(1, 2, 0).detach().numpy()
        np.testing.assert_allclose(said.imagined[t], image, atol=1e-6)


def test_errors_are_measured_against_the_simplest_guesses():
    frames = np.zeros((2, 4, 4, 3))
    said = EpisodeRollout(
        start=0, seen=frames[:1], real=frames + 1.0, imagined=frames + 0.5, reward=np.array([1.0, -1.0]),
        imagined_reward=np.array([1.0, 0.0]), end=np.zeros(2),
    )  # fmt: skip
    assert said.errors() == {"frame": 0.25, "frame_unchanged": 1.0, "reward": 0.5, "reward_zero": 1.0}


def test_boxes_are_around_what_varied():
    before, after = np.zeros((8, 8, 3)), np.zeros((8, 8, 3))
    assert plots.varied(before, after) == []
    after[2:4, 5], after[7, 1] = 0.9, 0.5
    assert plots.varied(before, after) == [(5, 2, 6, 4), (1, 7, 2, 8)]
    after[0, 0] = 0.05  # too faint
    after[4, 6] = after[5, 7] = 1.0  # touch by their corners
    assert sorted(plots.varied(before, after)) == [(1, 7, 2, 8), (5, 2, 8, 6)]


def test_the_strip_says_what_a_red_frame_means_and_its_words_fit(found, lived):
    figure = plots.rollout_strip(imagine_episode(found, lived, 3, 2, 0), "Imagined", "a caption")
    said = figure._supxlabel
    figure.draw_without_rendering()
    box = said.get_window_extent()
    assert "red box: change of the real frame" in said.get_text() and said.get_text().endswith("a caption")
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_the_script_draws_everything_and_changes_nothing_else(run, capsys):
    before = contents(run)
    main([str(run), "--start", "1", "--imagined", "5"])
    folder = run / "inspect"
    assert {path.name for path in folder.iterdir()} == {"imagined.png", "imagined.gif", "inspect.json"}
    assert {name: digest for name, digest in contents(run).items() if not name.startswith("inspect/")} == before
    with Image.open(folder / "imagined.gif") as film:
        assert film.n_frames == 5
    told = json.loads((folder / "inspect.json").read_text())
    assert (told["start"], told["imagined"], len(told["reward"])) == (1, 5, 5)
    said = capsys.readouterr().out
    assert "frame_unchanged" in said and said.count("mamba runs on its simd backend on cpu") == 1
    assert told["mamba_backend"] == "simd"


@pytest.mark.parametrize(("script", "flags", "words"), [
    (main, "--start 4 --imagined 9", "--start 4 with --imagined 9"), (main, "--imagined 60", "imagine fewer"),
    (main, "--imagined 65", "--imagined 65 must lie between 1 and 64"),
    (evaluate_main, "--env CartPole-v1", "needs frames"), (evaluate_main, "--env ALE/Boxing-v5", "18 actions"),
    (evaluate_main, "--num-eval-envs 0", "--num-eval-envs 0"),
])  # fmt: skip
def test_what_is_wrong_is_one_sentence(run, tmp_path, capsys, script, flags, words):
    assert words in refused(capsys, [str(run), *flags.split()], script)
    assert "no run folder" in refused(capsys, [str(tmp_path)], script)


SHORT = ("--num-eval-envs", "2", "--episodes-per-env", "2")


def played(config, rows=3, quota=2, seed=5):
    device = torch.device("cpu")
    agent, environments = GlamAgent(*build_glam(config, 3, 0, device), config, 0), EvalEnvironments.of(config, device)
    return agent.scores(environments, evaluation_modes(config.evaluation.policy), rows, quota, seed)


def tiny(**changes):
    config = parse(GlamConfig, TINY.split())
    return replace(config, evaluation=replace(config.evaluation, **changes))


def test_every_world_plays_its_quota_by_the_seed_and_sampling_is_not_greedy():
    whole = tiny(max_episode_steps=None)
    first, again, other = (played(whole, seed=seed) for seed in (5, 5, 6))
    sampled, greedy = first["sampled"], first["greedy"]
    assert list(first) == ["sampled", "greedy"] and sampled.episodes == greedy.episodes == 6
    assert (sampled.lengths == 6).all() and set(sampled.returns) <= {-2.0, 0.0, 2.0}
    assert (sampled.success == (sampled.returns == 2)).all()
    assert sampled.scalars() == again["sampled"].scalars() and greedy.scalars() == again["greedy"].scalars()
    assert any(not np.array_equal(first[mode].returns, other[mode].returns) for mode in first)
    both = PolicyScore(**vars(sampled), greedy=greedy).scalars()
    assert both["eval/greedy_episodic_return"] == greedy.returns.mean()
    alone = played(tiny(policy="greedy", max_episode_steps=None))
    assert list(alone) == ["greedy"] and np.array_equal(alone["greedy"].returns, greedy.returns)


def test_every_episode_of_an_evaluation_opens(monkeypatch):
    opened, act = [], Player.act

    def noted(player, frame, first, *more):
        opened.append(first.tolist())
        return act(player, frame, first, *more)

    monkeypatch.setattr(Player, "act", noted)
    played(tiny(policy="sampled", max_episode_steps=None), rows=2)
    assert opened == ([[True] * 2] + [[False] * 2] * 5) * 2


def test_without_its_memory_every_step_opens_an_episode(run, capsys, monkeypatch):
    fresh, act = [], Player.act

    def noted(player, *more):
        fresh.append(player.new.clone())
        return act(player, *more)

    monkeypatch.setattr(Player, "act", noted)
    evaluate_main([str(run), *SHORT])
    assert not torch.stack(fresh).all()
    fresh.clear()
    said = printed(capsys, evaluate_main, run, *SHORT, "--reset-memory")
    assert torch.stack(fresh).all() and "forgetting everything before each step" in said


def test_evaluate_says_both_policies_and_writes_nothing(run, found, capsys):
    before = contents(run)
    assert found.step == 64 and not found.model.training and found.model.num_actions == 3
    said = printed(capsys, evaluate_main, run, *SHORT)
    assert said.count("mamba runs on its simd backend on cpu") == 1
    assert "step 64" in said and "sampled actions, 4 episodes" in said and "greedy actions, 4 episodes" in said
    evaluate_main(
        ["--run", str(run), "--num-eval-envs", "1", "--episodes-per-env", "3", "--format", "json", "--policy=greedy"]
    )
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err.count("mamba runs on its simd backend on cpu") == 1 and told["mamba_backend"] == "simd"
    assert told["greedy"]["episodes"] == 3 and "sampled" not in told and told["step"] == 64
    assert contents(run) == before
