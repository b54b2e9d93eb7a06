"""Pictures say what their arrays say: panels, labels, marks, and files that are whole."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from dqn_memory.analysis import plots
from dqn_memory.runs.errors import UserError

RNG = np.random.default_rng(0)


def maps(heads, length):
    """Random causal attention maps."""
    scores = np.where(np.tri(length, dtype=bool), RNG.normal(size=(heads, length, length)), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def panels(figure: Figure):
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def pixels(figure: Figure, tmp_path):
    return np.asarray(Image.open(plots.save(figure, tmp_path / "a.png")).convert("RGB"))


@pytest.mark.parametrize(("heads", "length"), [(1, 1), (2, 5), (8, 50)])
def test_attention_maps_show_each_head_over_numbered_steps(tmp_path, heads, length):
    shown = maps(heads, length)
    figure = plots.attention_maps(shown, "Attention", first_step=7, query=6 + length, key=7)
    assert [panel.get_title() for panel in panels(figure)] == [f"head {head}" for head in range(heads)]
    assert figure.get_supxlabel() == "key step" and figure.get_supylabel() == "query step"
    for head, panel in enumerate(panels(figure)):
        image = panel.images[0]
        np.testing.assert_array_equal(image.get_array().filled(0), shown[head])
        assert image.get_array().mask.sum() == length * (length - 1) // 2  # the future is grey, not a weight of 0
        assert tuple(image.get_extent()) == (6.5, 6.5 + length, 6.5 + length, 6.5)
        query, key = panel.patches
        assert query.get_bbox().bounds == (6.5, 5.5 + length, length, 1)
        assert key.get_bbox().bounds == (6.5, 6.5, 1, length)
    assert pixels(figure, tmp_path).std() > 5


@pytest.mark.parametrize("heads", [3, 4, 5, 7, 9, 11])
def test_every_column_of_heads_has_its_numbers(heads):
    figure = plots.attention_maps(maps(heads, 5), "Attention")
    assert numbered(figure) == [f"head {head}" for head in range(max(0, heads - 4), heads)]


@pytest.mark.parametrize("layers", [1, 3, 4, 5, 6])
def test_every_column_of_priors_has_its_numbers(layers):
    figure = plots.prior_tables({f"layer {number}": np.ones((2, 5)) for number in range(layers)}, "Priors")
    assert numbered(figure) == [f"layer {number}" for number in range(max(0, layers - 3), layers)]


def numbered(figure):
    """Titles of the panels that have numbers along their lower edge."""
    figure.canvas.draw()
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_title()]
    return [
        axes.get_title()
        for axes in shown
        if any(label.get_visible() and label.get_text() for label in axes.get_xticklabels())
    ]


def test_a_non_causal_map_hides_nothing():
    figure = plots.attention_maps(np.full((1, 4, 4), 0.25), "Attention")
    assert not np.ma.getmaskarray(panels(figure)[0].images[0].get_array()).any()


@pytest.mark.parametrize("length", [5, 40])
def test_a_decision_marks_its_steps_and_shows_pictures_of_short_windows(tmp_path, length):
    weights = RNG.dirichlet(np.ones(length), size=3)
    frames = [np.full((8, 8, 3), step, np.uint8) for step in range(length)]
    marks = {11: "beacon", 9 + length: "decision"}
    figure = plots.decision(weights, ["a", "b", "c"], "Memory", marks, frames, first_step=10)
    panel = next(axes for axes in figure.axes if axes.get_xlabel() == "step of the episode")
    assert len(panels(figure)) == (1 + length if length <= plots.FILM else 1)
    assert {patch.get_x() for patch in panel.patches} == {0.5, length - 1.5}
    words = [label.get_text() for label in panel.get_xticklabels()]
    assert "11\nbeacon" in words and f"{9 + length}\ndecision" in words
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a", "b", "c"]
    assert pixels(figure, tmp_path).std() > 5


def test_prior_tables_draw_a_line_a_head(tmp_path):
    tables = {"layer 0": RNG.random((4, 20)), "layer 1": RNG.random((4, 20))}
    figure = plots.prior_tables(tables, "Priors")
    for panel, (name, table) in zip(panels(figure), tables.items(), strict=True):
        assert panel.get_title() == name
        np.testing.assert_array_equal([line.get_ydata() for line in panel.lines], table)
    assert "distance" in figure.get_supxlabel() and "steps" in figure.get_supxlabel()
    pixels(figure, tmp_path)


def test_learning_curves_name_their_runs_and_bands(tmp_path):
    steps, rates = [0, 1000, 2000], np.array([0.1, 0.5, 0.9])
    figure = plots.learning_curves(
        {"one": (steps, rates), "two": (steps, rates / 2)}, "Curves", {"one": (rates - 0.1, rates + 0.1)}
    )
    (panel,) = panels(figure)
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["one", "two"]
    assert len(panel.collections) == 1 and panel.get_ylim()[1] > 1
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("environment steps", "success rate")
    pixels(figure, tmp_path)
    with pytest.raises(UserError):
        plots.learning_curves({}, "Curves")


def test_q_values_ring_the_action_taken(tmp_path):
    q, action = RNG.normal(size=(9, 3)), RNG.integers(3, size=9)
    (panel,) = panels(figure := plots.q_values(q, action, "Q", ("left", "stay")))
    np.testing.assert_array_equal([line.get_ydata() for line in panel.lines], q.T)
    np.testing.assert_array_equal(panel.collections[0].get_offsets()[:, 1], q[np.arange(9), action])
    words = [text.get_text() for text in panel.get_legend().get_texts()]
    assert words == ["left", "stay", "action 2", "action taken"]
    pixels(figure, tmp_path)


def test_the_same_arrays_give_the_same_file_and_a_full_disk_spares_the_old_one(tmp_path, monkeypatch):
    def bytes_of(figure):
        return plots.save(figure, tmp_path / "a.png").read_bytes()

    first = bytes_of(plots.attention_maps(shown := maps(2, 6), "Attention"))
    assert first == bytes_of(plots.attention_maps(shown, "Attention"))
    assert Image.open(io.BytesIO(first)).format == "PNG"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        plots.save(plots.attention_maps(maps(1, 3), "Attention"), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == first and len(list(tmp_path.iterdir())) == 1


def test_seeds_of_a_form_share_its_colour_and_have_a_mean(tmp_path):
    steps, rates = [0, 1000, 2000], np.array([0.0, 0.4, 0.8])
    figure = plots.seed_curves(
        {"two seeds": [(steps, rates), ([0, 2000], [0.2, 0.4])], "alone": [(steps, rates)]}, "Seeds"
    )
    (panel,) = panels(figure)
    first, second, mean, alone = panel.lines
    assert first.get_color() == second.get_color() == mean.get_color() != alone.get_color()
    assert list(mean.get_xdata()) == [0, 2000] and mean.get_ydata() == pytest.approx([0.1, 0.6])
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["two seeds, mean of 2", "alone"]
    pixels(figure, tmp_path)
