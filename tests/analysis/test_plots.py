"""Pictures say what their arrays say: panels, labels, marks, and files that are whole; so do videos."""

import io

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from run_folders import error_of
from unizero_models import actions, model, simplex

from dqn_memory.analysis import plots
from dqn_memory.analysis.episodes import Episode
from dqn_memory.analysis.video import LAST_MS, LONGEST_MS, MARGIN, NAMES, PAGES, ROW, STEP_MS, Looks, save_video
from dqn_memory.runs.errors import UserError
from world_models.unizero.analysis import window_attention

RNG = np.random.default_rng(0)


def maps(heads, length, context=1000):
    """Random attention over the newest `context` steps."""
    age = np.arange(length)[:, None] - np.arange(length)
    weights = RNG.random((heads, length, length)) * ((age >= 0) & (age < context))
    return weights / weights.sum(-1, keepdims=True)


def frames(count):
    return [np.full((8, 12, 3), step % 256, np.uint8) for step in range(count)]


def played(length):
    """An episode with pictures in which nothing happens."""
    zeros = np.zeros(length)
    q, seen = np.zeros((length, 2)), torch.zeros(length, 1)
    return Episode(seen, seen[:, 0], zeros.astype(int), q, zeros, tuple(frames(length + 1)), False)


def panels(figure: Figure, title=""):
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]
    return [axes for axes in shown if axes.get_title().startswith(title)]


def words(texts):
    return [text.get_text() for text in texts if text.get_visible() and text.get_text()]


@pytest.mark.parametrize("layers", [1, 3, 4, 5, 6])
def test_every_column_of_priors_has_its_numbers_and_every_panel_a_line_a_head(layers):
    tables = {f"layer {number}": RNG.random((4, 5)) for number in range(layers)}
    figure = plots.plot_prior_tables(tables, "Priors")
    figure.canvas.draw()
    numbered = [axes.get_title() for axes in panels(figure, "layer") if words(axes.get_xticklabels())]
    assert numbered == [f"layer {number}" for number in range(max(0, layers - 3), layers)]
    for panel, (name, table) in zip(panels(figure, "layer"), tables.items(), strict=True):
        assert panel.get_title() == name
        np.testing.assert_array_equal([line.get_ydata() for line in panel.lines], table)
    assert "distance" in figure.get_supxlabel() and "steps" in figure.get_supxlabel()


@pytest.mark.parametrize("length", [5, 40])
def test_a_decision_marks_its_steps_and_shows_pictures_of_short_windows(tmp_path, length):
    weights = RNG.dirichlet(np.ones(length), size=3)
    marks = {11: "beacon", 9 + length: "decision"}
    figure = plots.plot_decision(weights, ["a", "b", "c"], "Memory", marks, frames(length), first_step=10)
    panel = next(axes for axes in figure.axes if axes.get_xlabel().startswith("step of the episode"))
    assert len(panels(figure)) == (1 + length if length <= plots.FILM else 1)
    assert {patch.get_x() for patch in panel.patches} == {0.5, length - 1.5}
    told = {"11\nbeacon", f"{9 + length}\ndecision"} if length <= plots.FILM else {"11", f"{9 + length}"}
    assert told <= set(words(panel.get_xticklabels()))
    assert panel.get_xlabel().endswith("(orange: beacon, black: decision)") == (length > plots.FILM)
    assert words(panel.get_yticklabels()) == ["a", "b", "c"]
    assert np.asarray(Image.open(plots.save(figure, tmp_path / "a.png")).convert("RGB")).std() > 5


def test_learning_curves_name_their_runs():
    steps, rates = [0, 1000, 2000], np.array([0.1, 0.5, 0.9])
    (panel,) = panels(plots.plot_learning_curves({"one": (steps, rates), "two": (steps, rates / 2)}, "Curves"))
    assert words(panel.get_legend().get_texts()) == ["one", "two"] and panel.get_ylim()[1] > 1
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("environment steps", "success rate")
    with pytest.raises(UserError):
        plots.plot_learning_curves({}, "Curves")


def test_the_same_arrays_give_the_same_file_and_a_full_disk_spares_the_old_one(tmp_path, monkeypatch):
    def bytes_of(figure):
        return plots.save(figure, tmp_path / "a.png").read_bytes()

    first = bytes_of(plots.plot_attention_maps(shown := maps(2, 6), "Attention"))
    assert first == bytes_of(plots.plot_attention_maps(shown, "Attention"))
    assert Image.open(io.BytesIO(first)).format == "PNG"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "No space left" in error_of(
        plots.save, plots.plot_attention_maps(maps(1, 3), "Attention"), tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes() == first and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("heads", "length", "context"),
    [(1, 1, 8), (2, 3, 8), (6, 12, 8), (2, 30, 5), (2, 120, 60), (2, 121, 60), (2, 300, 60)],
)
def test_the_length_of_an_episode_decides_its_columns_also_where_it_is_cut(heads, length, context):
    shown, by_age, steps = maps(heads, length, context), length > 2 * context, min(length, 100)
    drawn = panels(plots.plot_attention_maps(shown, "Attention", (), context), "head")
    assert [panel.get_title() for panel in drawn] == [f"head {head}" for head in range(heads)]
    assert drawn[-1].get_xlabel() == ("looks back by steps" if by_age else "looks at step")
    step, column = np.indices((steps, context if by_age else steps))
    age = column if by_age else step - column
    there = (age >= 0) & (age < context) & (age <= step)
    for head, panel in enumerate(drawn):
        image = panel.images[0].get_array()
        np.testing.assert_array_equal(image.mask, ~there)
        np.testing.assert_array_equal(image[there], shown[head][step[there], (step - age)[there]])


@pytest.mark.parametrize("context", [4, None])  # a long episode and a short one
@pytest.mark.parametrize("heads", [1, 4, 5, 8, 11])
def test_every_column_of_heads_has_its_label_and_numbers(heads, context):
    figure = plots.plot_attention_maps(maps(heads, 12, 4), "Attention", (), context)
    figure.canvas.draw()
    shown = [panel for panel in panels(figure, "head") if panel.get_xlabel() or words(panel.get_xticklabels())]
    assert [panel.get_title() for panel in shown] == [f"head {head}" for head in range(max(0, heads - 4), heads)]
    assert all(panel.get_xlabel() and words(panel.get_xticklabels()) for panel in shown)


def test_pictures_of_the_world_stand_at_the_steps_that_the_rows_name():
    figure = plots.plot_attention_maps(maps(2, 26, 30), "Attention", frames(26))
    strip = [axes for axes in figure.axes if axes.get_ylabel().startswith("step ")]
    steps = [int(axes.get_ylabel().removeprefix("step ")) for axes in strip]
    assert steps == [0, 5, 10, 15, 20, 25] == panels(figure, "head")[0].get_yticks().tolist()
    assert [axes.images[0].get_array()[0, 0, 0] for axes in strip] == steps
    plain = plots.plot_attention_maps(maps(2, 26, 30), "Attention")
    assert not [axes for axes in plain.axes if axes.get_ylabel().startswith("step ")]


def test_a_video_shows_where_each_decision_looks(tmp_path):
    """The strip below a frame: the weights' colours up to the deciding step, and grey after it."""
    length = 4
    weights = np.zeros((1, length, length))
    weights[0, 2, 1] = 0.01  # the darkest colour is the largest weight of the decision
    for looks in ((), (Looks(("layer 0 head 0",), weights),)):
        save_video(tmp_path / f"{len(looks)}.png", [played(length)], (), looks)
    plain, told = (Image.open(tmp_path / name) for name in ("0.png", "1.png"))
    assert plain.n_frames == told.n_frames == length + 1 and told.width == plain.width and told.height > plain.height
    told.seek(2)
    left, line = MARGIN + NAMES, plain.height + ROW + 5
    room = told.width - left - MARGIN
    colours = [told.convert("RGB").getpixel((left + round((step + 0.5) * room / length), line)) for step in range(4)]
    nothing, looked, here, ahead = colours
    assert nothing == here and sum(looked) < 0.5 * sum(nothing) and ahead == (236, 236, 236)


def test_pictures_of_a_long_episode_show_its_first_steps_and_say_so():
    length, q = 500, RNG.normal(size=(500, 3))
    figures = (
        plots.plot_attention_maps(maps(2, length, 50), "A", frames(length), context=50),
        plots.plot_states(q, "A"),
    )
    for figure in figures:
        words = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
        assert "A\n(steps 0 to 99 of 500)" in words
    assert figures[1].axes[0].images[0].get_array().shape == (3, 100)


def test_a_picture_is_shown_no_longer_than_a_gif_can(tmp_path):
    save_video(tmp_path / "slow.gif", [played(3)], step_ms=10**6)
    assert Image.open(tmp_path / "slow.gif").info["duration"] == LONGEST_MS


def test_a_long_video_leaves_out_steps_and_takes_the_same_time(tmp_path):
    length = 2 * PAGES + 1
    save_video(tmp_path / "long.png", [played(length)])
    video = Image.open(tmp_path / "long.png")
    assert video.n_frames <= PAGES + 1
    durations = []
    for page in range(video.n_frames):
        video.seek(page)
        durations.append(video.info["duration"])
    assert sum(durations) == pytest.approx(STEP_MS * length + LAST_MS)


def test_recall_shows_each_curve_and_how_much_stands_behind_it():
    curve = [(0.9, 0.6, 1.2), (0.2, -0.1, 0.5)]
    figure = plots.plot_recall(curve, curve, np.array([4, 3]), "R")
    size, share, counts = figure.axes
    assert size.get_ylabel() == "mean |change of Q|" and "actions" in share.get_ylabel()
    assert size.lines[0].get_ydata().tolist() == [0.9, 0.2]
    assert [bar.get_height() for bar in counts.patches] == [4, 3]
    assert size.get_ylim()[1] > 1.2 and share.get_ylim() == (0, 1)  # shares end at one
    assert max(path.vertices[:, 1].max() for path in share.collections[0].get_paths()) == 1


def apart(found):
    return not any(one.overlaps(other) for place, one in enumerate(found) for other in found[:place])


def test_bars_are_means_and_the_start_is_dashed():
    runs = 5 + RNG.random((3, 2, 4))
    (panel,) = plots.plot_learned_values({"mu": runs}, {"mu": 6.0}, "Learned").axes
    heights = np.array([bar.get_height() for bar in panel.patches]).reshape(2, 4)
    np.testing.assert_allclose(heights, runs.mean(0))
    (start,) = [line for line in panel.lines if line.get_linestyle() == "--"]
    assert set(start.get_ydata()) == {6.0}
    spread = panel.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([part[1, 1] - part[0, 1] for part in spread], 2 * runs[:, 0].std(0, ddof=1))


def test_all_maps_are_drawn_and_only_an_unseen_future_is_grey():
    maps = window_attention(model(), simplex(1, 5)[0], actions(1, 5)[0])
    maps = np.concatenate((maps, maps, maps[:, :1]), 1)  # five heads: one row is not full
    shown = [axes for axes in plots.plot_token_maps(maps, "Title", 3).axes if axes.get_visible() and axes.images]
    assert [axes.get_title() for axes in shown] == [f"layer {i}, head {j}" for i in range(2) for j in range(5)]
    for axes, weights in zip(shown, maps.reshape(10, 10, 10), strict=True):
        drawn = axes.images[0].get_array()
        assert (drawn.mask == np.triu(np.ones((10, 10), bool), 1)).all() and (drawn == weights)[~drawn.mask].all()
    figure = shown[0].figure
    figure.canvas.draw()
    numbered = [axes for axes in shown if any(label.get_visible() for label in axes.get_xticklabels())]
    assert [axes.get_title() for axes in numbered] == [f"layer 1, head {head}" for head in range(1, 5)]
    gate = np.full((1, 1, 4, 4), 0.25)
    assert not np.ma.getmaskarray(plots.plot_token_maps(gate, "Title").axes[0].images[0].get_array()).any()
