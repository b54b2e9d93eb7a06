"""A report says which runs it averages although they differ in more than their seed."""

from pathlib import Path

from reported import make_study

from dqn_memory.study.report_data import collect
from dqn_memory.study.report_evenness import UNEVEN, uneven_section
from dqn_memory.study.report_page import Grid
from dqn_memory.study.report_sections import sections
from dqn_memory.study.report_source import open_source


def rows(folder: Path) -> tuple[tuple[str, ...], ...]:
    section = uneven_section(collect(open_source(folder)))
    return () if section is None else next(part.rows for part in section.parts if isinstance(part, Grid))


def test_settings_that_the_seeds_of_a_series_do_not_share_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    make_study(folder, ["POMDP/CarFlag-v0"], '["drqn", "dgfqn"]', [1, 2, 3])
    assert rows(folder) == ()
    changed = [path for path in folder.glob("runs/*/config.toml") if path.parent.name.endswith("seed-2")]
    assert len(changed) == 2
    for path in changed:
        text = path.read_text()
        path.write_text(text.replace("gamma = 0.99\n", "gamma = 0.9\n").replace("log_every = 2000", "log_every = 7"))
    assert rows(folder) == (("learner.gamma", "0.99", "1, 3", "2"), ("learner.gamma", "0.9", "2", "2"))
    titles = [section.title for section in sections(collect(open_source(folder)), attention=False, published=False)]
    assert UNEVEN in titles
