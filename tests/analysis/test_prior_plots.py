"""Pictures of world models say what their arrays say: bars, maps, rows and links."""

from types import SimpleNamespace

import numpy as np
from unizero_models import actions, model, simplex

from dqn_memory.analysis import plots, prior_plots
from world_models.unizero import plots as unizero_plots
from world_models.unizero.analysis import attention_maps

RNG = np.random.default_rng(0)


def frames(count):
    return [np.full((8, 12, 3), 20 * i, np.uint8) for i in range(count)]


def test_bars_are_means_and_the_start_is_dashed(tmp_path):
    runs = 5 + RNG.random((3, 2, 4))
    figure = prior_plots.learned_values({"mu": runs}, {"mu": 6.0}, "Learned")
    (panel,) = figure.axes
    heights = np.array([bar.get_height() for bar in panel.patches]).reshape(2, 4)
    np.testing.assert_allclose(heights, runs.mean(0))
    (start,) = [line for line in panel.lines if line.get_linestyle() == "--"]
    assert set(start.get_ydata()) == {6.0}
    spread = panel.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([part[1, 1] - part[0, 1] for part in spread], 2 * runs[:, 0].std(0, ddof=1))
    assert plots.save(figure, tmp_path / "a.png").exists()


def test_a_trajectory_has_four_rows_and_frames_the_actions_taken():
    reward, predicted = RNG.random(7), RNG.random(7)
    prior, searched, action = RNG.dirichlet(np.ones(3), 7), RNG.dirichlet(np.ones(3), 7), RNG.integers(3, size=7)

    def panels(pictures):
        steps = SimpleNamespace(
            reward=reward, predicted_reward=predicted, frames=pictures, prior=prior, searched=searched, action=action
        )
        figure = unizero_plots.trajectory(steps, "Title", ("stay", "left", "right"), first_step=20)
        return [panel for panel in figure.axes if panel.get_label() != "<colorbar>"]

    first, film, before, after = panels(frames(7))
    np.testing.assert_array_equal([line.get_ydata() for line in first.lines], [reward, predicted])
    assert len(film.images) == 7
    for panel, policy in ((before, prior), (after, searched)):
        np.testing.assert_array_equal(panel.images[0].get_array(), policy.T)
        corners = [(patch.get_x() + 0.5, patch.get_y() + 0.5) for patch in panel.patches]
        assert corners == [(20 + t, taken) for t, taken in enumerate(action)]
        assert [label.get_text() for label in panel.get_yticklabels()] == ["stay", "left", "right"]
    assert len(panels(())) == 3


def test_a_link_marks_its_cell_and_shows_its_two_frames():
    maps = attention_maps(model(), simplex(1, 4)[0], actions(1, 4)[0])
    figure = unizero_plots.link(maps[1, 0], 7, 2, frames(4), "Title", ["a", "b", "c", "d"], first_step=10)
    film, panel, key, query = (axes for axes in figure.axes if axes.get_label() != "<colorbar>")
    assert len(film.images) == 4 and panel.patches[0].get_xy() == (11.0, 13.5)
    assert key.images[0].get_array()[0, 0, 0] == 20 and query.images[0].get_array()[0, 0, 0] == 60
    assert key.get_title() == "key: what was seen at step 11"
    assert query.get_title() == "query: the action at step 13 (d)"


def test_all_maps_are_drawn_and_only_an_unseen_future_is_grey():
    maps = attention_maps(model(), simplex(1, 5)[0], actions(1, 5)[0])
    maps = np.concatenate((maps, maps, maps[:, :1]), 1)  # five heads: one row is not full
    shown = [axes for axes in prior_plots.token_maps(maps, "Title", 3).axes if axes.get_visible() and axes.images]
    assert [axes.get_title() for axes in shown] == [f"layer {i}, head {j}" for i in range(2) for j in range(5)]
    for axes, weights in zip(shown, maps.reshape(10, 10, 10), strict=True):
        drawn = axes.images[0].get_array()
        assert (drawn.mask == np.triu(np.ones((10, 10), bool), 1)).all() and (drawn == weights)[~drawn.mask].all()
    figure = shown[0].figure
    figure.canvas.draw()
    numbered = [axes for axes in shown if any(label.get_visible() for label in axes.get_xticklabels())]
    assert [axes.get_title() for axes in numbered] == [f"layer 1, head {head}" for head in range(1, 5)]
    gate = np.full((1, 1, 4, 4), 0.25)
    assert not np.ma.getmaskarray(prior_plots.token_maps(gate, "Title").axes[0].images[0].get_array()).any()
