"""Pages and pictures of reports: what they replace, and how series look."""

import base64
import html
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from reported import HALLWAY, MEMORY, make_study, read
from run_folders import error_of
from trained import contents

from dqn_memory.blocks.priors import PRIORS
from dqn_memory.study import plots
from dqn_memory.study.definition import AXES, Planned, read_definition, shipped
from dqn_memory.study.page import PAGE, WEB_PAGE, Picture, Section, report_text, write_report
from dqn_memory.study.plots import FEW_SERIES, FIXED, LOOKS, looks
from dqn_memory.study.sections.learned import priors_section
from dqn_memory.study.sections.scores import curves_section
from dqn_memory.study.statistics import Estimate
from envs.markup import Markup
from envs.tables import Table
from world_models.glam.sequences import SEQUENCES

LEAD = [Markup("Made by `python -m dqn_memory.study.run`.")]


def pictures(*names: str) -> Section:
    return Section(names[0], tuple(Picture(name, Figure(figsize=(1 + i, 1)), name) for i, name in enumerate(names)))


def write(folder: Path, *parts: Section, few: int | None = None) -> str:
    """A report; returns its report.md."""
    write_report(folder, "Title", LEAD, parts, few)
    return (folder / PAGE).read_text()


def test_only_the_earlier_reports_pictures_go(tmp_path: Path) -> None:
    write(tmp_path, pictures("one", "two"))
    (tmp_path / "pictures" / "mine.png").write_bytes(b"a photograph")
    write(tmp_path, pictures("two", "three"))
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"two.png", "three.png", "mine.png"}


@pytest.mark.parametrize("name", [PAGE, WEB_PAGE, "pictures/one.png"])
def test_what_is_of_no_report_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / name).write_bytes(b"# My own report\n\n![Me](pictures/one.png)\n")
    before = contents(tmp_path)
    assert re.search(
        rf"{name} is .* would be replaced: give another folder", error_of(write, tmp_path, pictures("one"))
    )
    assert contents(tmp_path) == before


def test_the_web_page_holds_its_pictures_and_shows_names_as_they_are(tmp_path: Path) -> None:
    table = Table(("series",), [("<b>bold_name_</b>",), ('src="pictures/none.png"',)])
    write_report(tmp_path, "Title", LEAD, [pictures("one"), Section("S", (table,))], web=True)
    text = (tmp_path / WEB_PAGE).read_text()
    picture = base64.b64encode((tmp_path / "pictures/one.png").read_bytes()).decode()
    assert f'src="data:image/png;base64,{picture}"' in text and text.count('src="pictures') == 1
    assert html.unescape(re.sub(r"<td>(.*)</td>", r"\1", re.findall(r"<td>.*</td>", text)[0])) == "<b>bold_name_</b>"
    write_report(tmp_path, "Title", LEAD, [pictures("one")], web=True)  # its own page is replaced
    write_report(tmp_path, "Title", LEAD, [pictures("one")])
    assert not (tmp_path / WEB_PAGE).exists()  # it would show the earlier report


def test_pictures_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    text = write(tmp_path, pictures("rooms", "rooms-2", "rooms", "rooms"))
    places = [line.rpartition("(")[2][:-1] for line in text.splitlines() if line.startswith("![")]
    assert places == [f"pictures/{name}.png" for name in ("rooms", "rooms-2", "rooms-3", "rooms-4")]
    assert len({(tmp_path / place).read_bytes() for place in places}) == 4


def test_few_pictures_are_the_first_of_each_section(tmp_path: Path) -> None:
    text = write(tmp_path, pictures("a1", "a2"), pictures("b1", "b2"), pictures("c1"), few=4)
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {"a1", "b1", "c1", "a2"}
    assert "`b2.png`, not kept here: b2" in text and "(pictures/b2.png)" not in text


def test_empty_columns_are_left_out() -> None:
    rows = [(MEMORY, f"form_{row}", "1.000 [0.900, 1.100]", "") for row in range(2)]
    header = ("environment", "series", "a", "nothing")
    text = report_text("T", [], [Section("Table", (Table(header, rows), Table(("left", "right"), ())))])
    assert "nothing" not in text and "| environment | series | a |" in text and "| left | right |" in text


def test_a_name_has_one_look_in_all_shipped_studies() -> None:
    known: dict[str, object] = {}
    for study, smoke in ((study, smoke) for study in shipped() for smoke in (False, True)):
        definition = read_definition(study, smoke)
        others = [definition.axes[axis] for axis in definition.axes if axis not in AXES]
        series = product(definition.axes["architecture"], *others)
        names = [", ".join(str(value.label) for value in values) for values in series]
        found = looks(names)
        assert len(set(found.values())) == len(names), study
        if not others:  # a cut of such a study has fewer series, which no other study has
            assert {name: known.setdefault(name, look) for name, look in found.items()} == found, study


def test_looks_are_of_their_own_and_variants_keep_their_colour() -> None:
    assert {*PRIORS, *SEQUENCES, "glam_no_variation", "recurrent", "gru"} <= set(FIXED)
    found = looks(["dtqn", "dgfqn", "dbgfqn", "dbgfqn as published", "dbgfqn, as I like it"])
    assert found["dtqn"] == looks(["gaussian", "dtqn4", "something new"])["dtqn4"]
    assert found["dbgfqn"].colour == found["dbgfqn as published"].colour != found["dbgfqn, as I like it"].colour
    mixed = looks(["gaussian", "dgfqn", "dtqn4", "something new"])
    for each in (found, mixed, looks([f"variant {number}" for number in range(len(LOOKS))])):
        assert len(set(each.values())) == len(each)
    paper = looks(["dtqn4", "drfqn", "dlfqn", "dgfqn", "dbrfqn", "dblfqn", "dbgfqn"])
    assert len({look.colour for look in paper.values()}) == 7 and paper["dgfqn"] == mixed["dgfqn"]


def shown(figure: Figure) -> list[Any]:
    return [panel for panel in figure.axes if panel.get_visible()]


@pytest.mark.parametrize("count", [FEW_SERIES, FEW_SERIES + 1])
def test_many_series_have_a_panel_each(tmp_path: Path, count: int) -> None:
    names = [f"form {number}" for number in range(count)]
    forms = ", ".join(f'{{ name = "{name}", architecture = "dtqn4" }}' for name in names)
    make_study(tmp_path / "many", [MEMORY], f"[{forms}]", [1, 2])
    section = curves_section(read(tmp_path / "many"))
    panels = shown(*section.pictures.values())
    assert len(panels) == (1 if count <= FEW_SERIES else count)
    for panel in panels:  # each shows all curves, and the bands of its own
        assert len([line for line in panel.lines if len(line.get_xdata()) == 6]) == count
        assert len(panel.collections) == count // len(panels)
    thresholds, share = np.linspace(-0.5, 1.0, 31), np.linspace(1.0, 0.0, 31)
    profiles = shown(plots.profile_figure(dict.fromkeys(names, (thresholds, share, share, share)), looks(names)))
    assert [panel.get_xlim() for panel in profiles] == [(-0.5, 1.0)] * len(panels)  # from the worst score on


def test_heads_over_time_stand_layer_by_layer() -> None:
    heads = {(layer, head): np.full((3, 4), 1.0 + head) for layer in (0, 1) for head in range(4)}
    figure = plots.over_time_figure(np.arange(4.0), {"mu": heads, "span": heads}, {"mu": 1, "span": 1}, "")
    assert len(figure.axes) == 4
    assert all(len(panel.lines) == 5 and not panel.collections for panel in figure.axes)


def test_sizes_have_a_panel_a_world() -> None:
    scores = {"dtqn4": (100, Estimate(0.5, 0.4, 0.6)), "dgfqn": (80, Estimate(0.7, 0.6, 0.8))}
    points = [(world, name, *score) for world in (MEMORY, HALLWAY) for name, score in scores.items()]
    figure = plots.parameters_figure(points, looks([*scores]))
    assert [panel.get_title() for panel in shown(figure)] == [MEMORY, HALLWAY]
    assert len(shown(plots.parameters_figure(points[:2], looks([*scores])))) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["dtqn4", "dgfqn"]


def test_what_did_not_move_is_said_and_not_drawn(tmp_path: Path) -> None:
    def learned(run: Planned, step: int) -> dict[str, float]:
        return {"memory/0.0.span": 5.0 + 1e-7, "memory/0.0.mu": 6.0 + step / 600, "memory/0.0.sigma": 1.0}

    form = "name = '{0}', architecture = 'dtqn4', prior = '{0}', span = 5.0, mu = 6.0, sigma = 1.0"
    both = ", ".join(f"{{ {form.format(name)} }}" for name in ("adaptive_hard", "gaussian_adaptive_hard"))
    make_study(tmp_path / "hard", [MEMORY], f"[{both}]", [1, 2], more=learned)
    section = priors_section(read(tmp_path / "hard"))
    words = " ".join(part for part in section.parts if isinstance(part, str))
    assert f"span of adaptive_hard in {MEMORY} (start 5)" in words and "gives its span no gradient" in words
    assert [name.partition("-")[0] for name in section.pictures] == ["learned", "learning"]
    assert [panel.get_title() for panel in list(section.pictures.values())[1].axes] == ["mu"]


@pytest.mark.parametrize(("first", "left"), [(60_000, 58_500), (45_000, 0)])
def test_curves_begin_where_evaluations_do(first: int, left: float) -> None:
    curve = np.linspace(first, 90_000, 7).astype(int), *np.broadcast_to(np.linspace(0, 1, 7), (3, 7))
    figure = plots.curves_figure({"causal": curve}, looks(["causal"]), "a world", None, True)
    assert figure.axes[0].get_xlim()[0] == pytest.approx(left)
