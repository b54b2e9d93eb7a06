"""How reports look: one look for each name in all shipped studies, pictures of many series, tables on a page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from reported import make_study, success

from dqn_memory.blocks.priors import PRIORS
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.definition import read_definition, shipped
from dqn_memory.study.page import Picture, Section, page_text
from dqn_memory.study.plots import (
    FEW_SERIES,
    FIXED,
    curves_figure,
    looks,
    over_time_figure,
    parameters_figure,
    profile_figure,
)
from dqn_memory.study.sections.priors import moves, priors_section
from dqn_memory.study.sections.scores import curves_section
from dqn_memory.study.statistics import Estimate, performance_profile
from envs.tables import Table
from world_models.glam.sequences import SEQUENCES

MEMORY, HALLWAY = "Gridverse/Memory-5x5-v0", "POMDP/Hallway-v0"


def compared(study: str, smoke: bool) -> list[str]:
    """Names of a study's series."""
    definition = read_definition(study, smoke)
    assert set(definition.axes) == {"world", "architecture", "seed"}, "a name of its own for every other axis, too"
    return [str(value.label) for value in definition.axes["architecture"]]


def test_a_name_has_one_look_in_all_shipped_studies() -> None:
    known: dict[str, object] = {}
    for study in shipped():
        for names in (compared(study, False), compared(study, True)):
            found = looks(names)
            assert len(set(found.values())) == len(names), study
            assert {name: known.setdefault(name, look) for name, look in found.items()} == found, study


def test_priors_dynamics_and_sequence_modules_have_looks_of_their_own() -> None:
    assert {*PRIORS, *SEQUENCES, "glam_no_variation", "recurrent", "gru"} <= set(FIXED)


def test_variants_keep_their_colour() -> None:
    found = looks(["dtqn", "dbgfqn", "dbgfqn as published", "dbgfqn, positions 8"])
    assert found["dtqn"] == looks(["dtqn4"])["dtqn4"]
    variants = [found[name] for name in found if name.startswith("dbgfqn")]
    assert len({look.colour for look in variants}) == 1
    assert len({look.dash for look in variants}) == 3


def test_names_of_two_families_differ_and_architectures_keep_theirs() -> None:
    found = looks(["gaussian", "dtqn4", "something new"])
    assert found["dtqn4"] == looks(["dtqn4"])["dtqn4"]
    assert len(set(found.values())) == 3


def shown(figure: Figure) -> list[object]:
    return [panel for panel in figure.axes if panel.get_visible()]


@pytest.mark.parametrize("count", [FEW_SERIES, FEW_SERIES + 1])
def test_many_series_have_a_panel_each(tmp_path: Path, count: int) -> None:
    names = [f'{{ name = "form {number}", architecture = "dtqn4" }}' for number in range(count)]
    make_study(tmp_path / "many", [MEMORY], f"[{', '.join(names)}]", [1, 2], success)
    section = curves_section(collect(open_source(tmp_path / "many")))
    (picture,) = (part for part in section.parts if isinstance(part, Picture))
    panels = shown(picture.figure)
    assert len(panels) == (1 if count <= FEW_SERIES else count)
    for panel in panels:  # each shows all curves, and the bands of its own
        curves = [line for line in panel.lines if len(line.get_xdata()) == 6]  # type: ignore[attr-defined]
        assert len(curves) == count
        assert len(panel.collections) == count // len(panels)  # type: ignore[attr-defined]


def test_many_profiles_have_a_panel_each_which_begins_at_the_worst_score() -> None:
    scores = np.random.default_rng(0).normal(0.5, 0.4, (5, 2))
    for count in (2, FEW_SERIES + 1):
        names = [f"form {number}" for number in range(count)]
        thresholds = np.linspace(-0.5, 1.0, 31)
        profiles = {name: performance_profile(scores, thresholds) for name in names}
        figure = profile_figure(profiles, looks(names))
        panels = shown(figure)
        assert len(panels) == (1 if count == 2 else count)
        assert all(panel.get_xlim() == (-0.5, 1.0) for panel in panels)  # type: ignore[attr-defined]


def test_heads_over_time_stand_layer_by_layer() -> None:
    heads = {(layer, head): np.full((3, 4), 1.0 + head) for layer in (0, 1) for head in range(4)}
    figure = over_time_figure(
        {"mu": (np.arange(4.0), heads), "span": (np.arange(4.0), heads)}, {"mu": 1, "span": 1}, ""
    )
    assert len(figure.axes) == 4
    assert all(len(panel.lines) == 5 and not panel.collections for panel in figure.axes)


def test_sizes_have_a_panel_a_world() -> None:
    points = [("dtqn4", 100, Estimate(0.5, 0.4, 0.6)), ("dgfqn", 80, Estimate(0.7, 0.6, 0.8))] * 2
    styles = looks(["dtqn4", "dgfqn"])
    figure = parameters_figure(points, styles, [MEMORY, MEMORY, HALLWAY, HALLWAY])
    assert [panel.get_title() for panel in shown(figure)] == [MEMORY, HALLWAY]  # type: ignore[attr-defined]
    assert len(shown(parameters_figure(points, styles))) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["dtqn4", "dgfqn"]


def test_what_did_not_move_is_said_and_not_drawn(tmp_path: Path) -> None:
    def learned(run: object, step: int) -> dict[str, float]:
        return {"memory/0.0.span": 5.0, "memory/0.0.mu": 6.0 + step / 600, "memory/0.0.sigma": 1.0}

    form = "name = '{0}', architecture = 'dtqn4', prior = '{0}', span = 5.0, mu = 6.0, sigma = 1.0"
    both = ", ".join(f"{{ {form.format(name)} }}" for name in ("adaptive_hard", "gaussian_adaptive_hard"))
    make_study(tmp_path / "hard", [MEMORY], f"[{both}]", [1, 2], success, learned)
    section = priors_section(collect(open_source(tmp_path / "hard")))
    words = " ".join(part for part in section.parts if isinstance(part, str))
    assert f"span of adaptive_hard in {MEMORY} (start 5)" in words
    assert "gives its span no gradient" in words
    pictures = [part for part in section.parts if isinstance(part, Picture)]
    assert [picture.name.partition("-")[0] for picture in pictures] == ["learned", "learning"]
    assert [panel.get_title() for panel in pictures[1].figure.axes] == ["mu"]


def test_a_nudge_is_a_move() -> None:
    assert not moves({(0, 0): np.full((2, 3), 6.0 + 1e-7)}, 6.0)
    assert moves({(0, 0): np.full((2, 3), 6.0), (0, 1): np.array([[6.0, 6.0, 6.01]])}, 6.0)


def test_empty_columns_are_left_out() -> None:
    rows = tuple((MEMORY, f"form_{row}", "1.000 [0.900, 1.100]", "") for row in range(2))
    header = ("environment", "series", "a", "nothing")
    told = page_text("T", [], [Section("Table", (Table(header, rows), Table(("left", "right"), ())))])
    assert "nothing" not in told and "| environment | series | a |" in told
    assert "| left | right |" in told


@pytest.mark.parametrize(("first", "left"), [(60_000, 58_500), (45_000, 0)])
def test_curves_begin_where_evaluations_do(first: int, left: float) -> None:
    steps = np.linspace(first, 90_000, 7).astype(int)
    run = SimpleNamespace(success=True, curve=SimpleNamespace(steps=steps, success=np.linspace(0, 1, 7)))
    figure = curves_figure({"causal": [run]}, looks(["causal"]), "a world", None)  # type: ignore[list-item]
    assert figure.axes[0].get_xlim()[0] == pytest.approx(left)
