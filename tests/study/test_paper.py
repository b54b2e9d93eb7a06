"""What a report writes for a paper: figures of a column's width, their numbers, and tables for LaTeX."""

import csv
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from reported import HALLWAY, MEMORY, make_study, noisy, read, report
from run_folders import error_of
from trained import contents

from dqn_memory.analysis.plots import plot_attention_maps, plot_learned_values, plot_token_maps
from dqn_memory.study import plots
from dqn_memory.study.definition import Planned
from dqn_memory.study.page import Picture, Section, write_report
from dqn_memory.study.paper import fitted, pdf
from dqn_memory.study.report import all_sections
from dqn_memory.study.statistics import Estimate
from envs.markup import Latex, Markup, latex
from envs.tables import Table

FORMS = ["dtqn4", "dgfqn", "as_100%_{mine}"]
WIDTH = 3.3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report, with a paper's files, of a study in which the second series is far behind in one environment."""
    folder = tmp_path_factory.mktemp("paper") / "study"
    forms = ", ".join(f'{{ name = "{name}", architecture = "dtqn4" }}' for name in FORMS)

    def level(run: Planned, step: int) -> float:
        behind = run.axes["architecture"] == FORMS[1] and run.axes["world"] == MEMORY
        return max(0.0, noisy({})(run, step) - 0.4 * behind)

    make_study(folder, [MEMORY, HALLWAY], f"[{forms}]", [1, 2, 3, 4], level)
    return report(folder, "--figure-width", str(WIDTH))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_report_has_each_picture_three_times(made: Path) -> None:
    names = {path.stem for path in (made / "pictures").iterdir()}
    assert {path.name for path in (made / "paper").iterdir()} == {
        *(f"{name}.{kind}" for name in names for kind in ("pdf", "csv")), "scores.tex", "aggregates.tex"
    }  # fmt: skip


def test_a_pdf_has_its_width_and_carries_its_letters(made: Path) -> None:
    for path in (made / "paper").glob("*.pdf"):
        data = path.read_bytes()
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ ?\]", data)
        assert float(width) == pytest.approx(72 * WIDTH)
        assert b"/FontFile2" in data and b"/Type3" not in data and b"CreationDate" not in data


@pytest.mark.long
def test_a_pdf_has_equal_bytes_again_and_leaves_the_figure_as_it_is(made: Path) -> None:
    figures = [part.figure for part in drawn_parts(made)]
    sizes = [tuple(figure.get_size_inches()) for figure in figures]
    assert [pdf(figure, WIDTH) for figure in figures] == [pdf(figure, WIDTH) for figure in figures]
    assert [tuple(figure.get_size_inches()) for figure in figures] == sizes


def drawn_parts(made: Path) -> Iterator[Picture]:
    for section in all_sections(read(made.parent)):
        yield from (part for part in section.parts if isinstance(part, Picture))


def figures() -> dict[str, Figure]:
    """One figure of every kind, with as many and as long names as reports have."""
    random, line = np.random.default_rng(0), np.linspace(0, 1, 9)
    names = [f"gaussian_adaptive_gate_{number}" for number in range(11)]
    worlds = [f"Gridverse/Memory-FourRooms-{number}x{number}-v0" for number in range(5, 12)]
    heads = {(layer, head): random.random((2, 9)) for layer in range(2) for head in range(4)}
    few, many = (dict.fromkeys(some, (line * 1000000.0, line, line, line)) for some in (names[:6], names))
    points = [(world, name, 99_000, Estimate(0.5, 0.4, 0.6)) for world in worlds for name in names]
    bars = {name: {world: (Estimate(0.5, 0.4, 0.6), True) for world in worlds} for name in names[:3]}
    styles, scale = plots.looks(names), plots.Scale(0.2, 1.0)
    return {
        "one panel": plots.curves_figure(few, styles, worlds[0], scale, True),
        "a panel each": plots.curves_figure(many, styles, worlds[0], scale, True),
        "profiles": plots.profile_figure(many, styles),
        "parameters": plots.parameters_figure(points, styles),
        "bars": plots.bars_figure(bars, dict.fromkeys(worlds, scale), "gru"),
        "heads": plots.over_time_figure(line * 1e5, dict.fromkeys(("mu", "sigma", "span"), heads),
                                        {"mu": 1, "sigma": 1, "span": 1}, f"Learned over training: {names[0]}"),
        "spans": plots.spans_figure({name: (random.random(99), 0.5) for name in names}, styles, "Learned spans"),
        "learned": plot_learned_values({"mu": random.random((3, 2, 4))}, {"mu": 0.5}, f"Learned: {names[0]}"),
        "attention": plot_attention_maps(random.random((8, 24, 24)), f"Layer 0 of {names[0]} in {worlds[0]}, seed 1"),
        "tokens": plot_token_maps(random.random((2, 4, 40, 40)), f"Attention of {names[0]}"),
    }  # fmt: skip


def drawn_words(figure: Figure) -> list[Text]:
    """The texts of a figure that are drawn; a number of an axis is not if it lies outside of the limits."""
    figure.draw_without_rendering()
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    outside = [
        text
        for axis in axes
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for text in (tick.label1, tick.label2)
    ]
    texts = [found for found in figure.findobj(Text) if isinstance(found, Text) and found not in outside]
    return [
        text
        for text in texts
        if text.get_text().strip() and text.get_visible() and (text.axes is None or text.axes.get_visible())
    ]


@pytest.mark.long
@pytest.mark.parametrize("width", [WIDTH, 6.9])
def test_words_are_legible_inside_and_apart(width: float) -> None:
    for name, wide in figures().items():
        figure = fitted(wide, width)
        words = drawn_words(figure)
        assert words and {text.get_fontsize() for text in words} <= {7, 8, 9}, name
        boxes = [(text.get_text(), text.get_window_extent().padded(-1)) for text in words]
        inside = figure.bbox.fully_contains
        assert [(name, text) for text, box in boxes if not (inside(*box.min) and inside(*box.max))] == []
        pairs = combinations(boxes, 2)
        assert not [(name, one, two) for (one, box), (two, other) in pairs if box.overlaps(other)]


def test_a_csv_gives_the_means_of_the_runs(made: Path) -> None:
    data = read(made.parent)
    for world in (MEMORY, HALLWAY):
        rows = rows_of(made / "paper" / f"curves-{world.replace('/', '-').lower()}.csv")
        assert [row["series"] for row in rows] == [name for name in FORMS for _ in range(6)]
        for row in rows:
            runs = data.of(world, row["series"])
            scores = [run.curve.success[run.curve.steps.tolist().index(int(row["step"]))] for run in runs]
            assert float(row["mean"]) == pytest.approx(np.mean(scores), rel=1e-5) and row["seeds"] == "4"
            assert float(row["low"]) <= float(row["mean"]) <= float(row["high"])


def test_a_csv_has_the_numbers_of_its_picture(made: Path) -> None:
    columns = {"curves": ("step", "mean"), "profiles": ("normalised score", "share above it"),
               "parameters": ("parameters", "normalised score")}  # fmt: skip
    for part in drawn_parts(made):
        rows = rows_of(made / "paper" / f"{part.name}.csv")
        x, y = columns[part.name.partition("-")[0]]
        lines = [line for panel in part.figure.axes for line in panel.lines if line.get_label() in FORMS]
        drawn = np.concatenate([np.array(line.get_xydata()) for line in lines])
        assert drawn == pytest.approx(np.array([(float(row[x]), float(row[y])) for row in rows]), rel=1e-5)


def test_numbers_have_six_digits_and_none_is_an_empty_cell() -> None:
    table = plots.drawn("name, step, value", [("a", np.arange(2), np.array([1 / 3, np.nan])), ("b", 7, 123456789.0)])
    assert table.csv() == "name,step,value\na,0,0.333333\na,1,\nb,7,123457000.0\n"


def cells(text: str) -> list[list[str]]:
    """The rows of a table in LaTeX, between its rules."""
    comment, begin, top, head, middle, *rows, bottom, end = text.splitlines()
    assert comment.startswith("% ") and (top, middle, bottom) == (r"\toprule", r"\midrule", r"\bottomrule")
    assert end == r"\end{tabular}" and all(row.endswith(r" \\") for row in (head, *rows))
    found = [row.removesuffix(r" \\").split(" & ") for row in (head, *rows)]
    assert begin == rf"\begin{{tabular}}{{l{'r' * (len(found[0]) - 1)}}}" and len({len(row) for row in found}) == 1
    return found


def test_the_table_of_scores_marks_the_best_and_those_not_below_it(made: Path) -> None:
    head, *rows = cells((made / "paper" / "scores.tex").read_text())
    assert head == ["series", MEMORY, HALLWAY]
    assert [row[0] for row in rows] == ["dtqn4", "dgfqn", r"as\_100\%\_\{mine\}"]
    assert [[cell.startswith(r"\textbf{") for cell in row[1:]] for row in rows] == [
        [True] * 2,
        [False, True],
        [True] * 2,
    ]
    score = np.mean([run.score for run in read(made.parent).of(HALLWAY, "dgfqn")])
    assert re.fullmatch(rf"\\textbf{{{score:.3f}}} {{\\scriptsize \[0\.\d{{3}}, [01]\.\d{{3}}\]}}", rows[1][2])


def test_the_table_of_aggregates_has_a_row_a_series(made: Path) -> None:
    head, *rows = cells((made / "paper" / "aggregates.tex").read_text())
    assert head[:3] == ["series", "seeds", "IQM"] and [row[1] for row in rows] == ["4"] * 3


def test_latex_escapes_each_special_character() -> None:
    text = latex("50% of a_b & {c} #1 $x^2$ ~ \\d [e] <f|g> --h `i`\nj")
    assert text == (
        r"50\% of a\_b \& \{c\} \#1 \$x\textasciicircum{}2\$ \textasciitilde{} \textbackslash{}d {[}e] "
        r"\textless{}f\textbar{}g\textgreater{} -{}-h \textasciigrave{}i\textasciigrave{} j"
    )
    assert latex(Latex(r"\textbf{1}")) == r"\textbf{1}"
    assert cells(Table(["a&b", "n"], [["x\\\\", 1234.5], ["y", None]], note="Of\nall").latex())[1:] == [
        [r"x\textbackslash{}\textbackslash{}", "1,234"], ["y", ""]
    ]  # fmt: skip


def test_a_report_without_the_width_takes_its_own_files_away(tmp_path: Path) -> None:
    make_study(tmp_path / "study", [MEMORY], '["dtqn4"]', [1, 2])
    plain = contents(report(tmp_path / "study"))
    paper = report(tmp_path / "study", "--figure-width", "3.3") / "paper"
    (paper / "mine.pdf").write_bytes(b"my figure")
    assert len(list(paper.iterdir())) > 1
    after = contents(report(tmp_path / "study"))
    assert after.pop("paper/mine.pdf") and after == plain


@pytest.mark.parametrize("name", ["scores.tex", "profiles.csv", "profiles.pdf"])
def test_a_file_of_another_stays(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(tmp_path / "study", [MEMORY], '["dtqn4"]', [1, 2])
    paper = report(tmp_path / "study") / "paper"
    paper.mkdir()
    (paper / name).write_bytes(b"mine")
    with pytest.raises(SystemExit):
        report(tmp_path / "study", "--figure-width", "3.3")
    assert re.search(rf"^error: .*paper/{re.escape(name)} .* would be replaced", capsys.readouterr().err, re.MULTILINE)
    assert (paper / name).read_bytes() == b"mine" and len(list(paper.iterdir())) == 1


def test_a_text_of_an_earlier_page_claims_no_file(tmp_path: Path) -> None:
    lead = [Markup("Made by `python -m dqn_memory.study.report`."), "[mine.pdf](paper/mine.pdf)"]
    for _ in range(2):
        write_report(tmp_path, "[mine.pdf](paper/mine.pdf)", lead, [Section("Heading", (lead[1],))])
        (tmp_path / "paper").mkdir(exist_ok=True)
        (tmp_path / "paper" / "mine.pdf").touch()
    write_report(tmp_path, "Title", lead, [])
    assert (tmp_path / "paper" / "mine.pdf").exists()


@pytest.mark.parametrize("width", ["0", "-1", "nan", "inf", "100"])
def test_a_wrong_width_is_named(tmp_path: Path, width: str) -> None:
    error = error_of(write_report, tmp_path / "new", "Title", [], [], figure_width=float(width))
    assert f"--figure-width {float(width)}" in error and not (tmp_path / "new").exists()
