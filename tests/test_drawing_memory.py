"""Attention over an episode stands beside the world, step by step, in the picture and in the video."""

import numpy as np
import pytest
import torch
from PIL import Image

from dqn_memory.analysis import memory_plots, plots
from dqn_memory.analysis.video import LAST_MS, PAGES, STEP_MS, Looks, save_video
from dqn_memory.playing import Episode

RNG = np.random.default_rng(0)


def maps(heads, length, context):
    """Random attention over the newest `context` steps."""
    age = np.arange(length)[:, None] - np.arange(length)
    weights = RNG.random((heads, length, length)) * ((age >= 0) & (age < context))
    return weights / weights.sum(-1, keepdims=True)


def frames(count):
    return [np.full((8, 12, 3), step % 256, np.uint8) for step in range(count)]


def panels(figure, title="head"):
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_title().startswith(title)]


@pytest.mark.parametrize(("heads", "length"), [(1, 1), (2, 3), (6, 12)])
def test_an_episode_shows_each_head_by_step(heads, length):
    shown = maps(heads, length, 8)
    figure = memory_plots.episode_attention(shown, "Attention", frames(length), context=8)
    assert [panel.get_title() for panel in panels(figure)] == [f"head {head}" for head in range(heads)]
    age = np.arange(length)[:, None] - np.arange(length)
    for head, panel in enumerate(panels(figure)):
        image = panel.images[0].get_array()
        np.testing.assert_array_equal(image.filled(0), shown[head])
        np.testing.assert_array_equal(image.mask, (age < 0) | (age >= 8))
    assert panels(figure)[-1].get_xlabel() == "looks at step"


def test_a_long_episode_shows_each_head_by_age():
    shown = maps(2, 30, 5)
    figure = memory_plots.episode_attention(shown, "Attention", (), context=5)
    for head, panel in enumerate(panels(figure)):
        image = panel.images[0].get_array()
        assert image.shape == (30, 5) and panel.get_xlabel() == "looks back by steps"
        for step, age in ((0, 0), (3, 3), (3, 4), (29, 4)):
            assert (image[step, age] is np.ma.masked) == (age > step)
            assert age > step or image[step, age] == shown[head, step, step - age]


@pytest.mark.parametrize(("length", "by_age"), [(120, False), (121, True), (300, True)])
def test_the_length_of_an_episode_decides_its_columns_also_where_it_is_cut(length, by_age):
    shown = maps(2, length, 60)
    panel = panels(memory_plots.episode_attention(shown, "Attention", (), context=60))[1]
    assert panel.get_xlabel() == ("looks back by steps" if by_age else "looks at step")
    image = panel.images[0].get_array()
    assert image.shape == (100, 60 if by_age else 100)
    assert image[99, 59 if by_age else 40] == shown[1, 99, 40]


@pytest.mark.parametrize("context", [4, None])  # a long episode and a short one
@pytest.mark.parametrize("heads", [1, 4, 5, 6, 7, 8, 9, 11])
def test_every_column_of_heads_has_its_label_and_numbers(heads, context):
    figure = memory_plots.episode_attention(maps(heads, 12, 4), "Attention", (), context)
    figure.canvas.draw()
    labelled = [panel.get_title() for panel in panels(figure) if panel.get_xlabel() and numbers(panel)]
    assert labelled == [f"head {head}" for head in range(max(0, heads - 4), heads)]
    assert len([panel for panel in panels(figure) if panel.get_xlabel() or numbers(panel)]) == len(labelled)


def numbers(panel):
    """What is written along a panel's lower edge."""
    return [label.get_text() for label in panel.get_xticklabels() if label.get_visible() and label.get_text()]


def test_pictures_of_the_world_stand_at_the_steps_that_the_rows_name():
    figure = memory_plots.episode_attention(maps(2, 26, 30), "Attention", frames(26))
    strip = [axes for axes in figure.axes if axes.get_ylabel().startswith("step ")]
    steps = [int(axes.get_ylabel().removeprefix("step ")) for axes in strip]
    assert steps == [0, 5, 10, 15, 20, 25] == panels(figure)[0].get_yticks().tolist()
    assert [axes.images[0].get_array()[0, 0, 0] for axes in strip] == steps
    plain = memory_plots.episode_attention(maps(2, 26, 30), "Attention")
    assert not [axes for axes in plain.axes if axes.get_ylabel().startswith("step ")]


def test_a_video_shows_where_each_decision_looks(tmp_path):
    """The strip below a frame: the weights' colours up to the deciding step, and grey after it."""
    length, zeros = 4, np.zeros(4)
    episode = Episode(
        torch.zeros(length, 1), torch.zeros(length), zeros.astype(int), np.zeros((length, 2)), zeros,
        tuple(frames(length + 1)), False,
    )  # fmt: skip
    weights = np.zeros((1, length, length))
    weights[0, 2, 1] = 1.0
    for looks in ((), (Looks(("layer 0 head 0",), weights),)):
        save_video(tmp_path / f"{len(looks)}.png", [episode], (), looks)
    plain, told = (Image.open(tmp_path / name) for name in ("0.png", "1.png"))
    assert plain.n_frames == told.n_frames == length + 1 and told.width == plain.width and told.height > plain.height
    told.seek(2)
    left, room, line = 14 + 96, told.width - 2 * 14 - 96, plain.height + 14 + 5
    colours = [told.convert("RGB").getpixel((left + round((step + 0.5) * room / length), line)) for step in range(4)]
    nothing, looked, here, ahead = colours
    assert nothing == here and sum(looked) < 0.5 * sum(nothing) and ahead == (236, 236, 236)


def test_pictures_of_a_long_episode_show_its_first_steps_and_say_so():
    length, q = 500, RNG.normal(size=(500, 3))
    nobody = np.zeros(length, bool)
    figures = (
        memory_plots.episode_attention(maps(2, length, 50), "A", frames(length), context=50),
        memory_plots.discrepancy(q, q, nobody, np.ones(length), "A"),
        plots.q_values(q, q.argmax(1), "A"),
    )
    for figure in figures:
        words = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
        assert "A\n(steps 0 to 99 of 500)" in words
    assert panels(figures[0])[0].images[0].get_array().shape == (100, 50)
    assert len(figures[2].axes[0].lines[0].get_xdata()) == 100


def test_shares_end_at_one():
    curve = [(0.9, 0.6, 1.2), (0.2, -0.1, 0.5)]
    figure = memory_plots.recall({"a": curve, "b": curve}, {"a": "x", "b": "y"}, np.array([4, 3]), "R", shares=["b"])
    size, share, _ = figure.axes
    assert size.get_ylim()[1] > 1.2 and share.get_ylim() == (0, 1)
    assert max(path.vertices[:, 1].max() for path in share.collections[0].get_paths()) == 1


def test_a_long_video_leaves_out_steps_and_takes_the_same_time(tmp_path):
    length = 2 * PAGES + 1
    episode = Episode(
        torch.zeros(length, 1), torch.zeros(length), np.zeros(length, int), np.zeros((length, 2)), np.zeros(length),
        tuple(frames(length + 1)), False,
    )  # fmt: skip
    save_video(tmp_path / "long.png", [episode])
    video = Image.open(tmp_path / "long.png")
    assert video.n_frames <= PAGES + 1
    durations = []
    for place in range(video.n_frames):
        video.seek(place)
        durations.append(video.info["duration"])
    assert sum(durations) == pytest.approx(STEP_MS * length + LAST_MS)
