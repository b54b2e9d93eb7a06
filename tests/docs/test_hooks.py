"""What the site takes from the results: sections by their headings, and nothing from other sites."""

import runpy
from types import SimpleNamespace

import pytest
from pages import ROOT

exceptions = pytest.importorskip("mkdocs.exceptions")  # of the extra `docs`
hooks = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "hooks.py")))


def page(name: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=name))


def test_a_section_ends_at_the_next_heading_of_its_level():
    given = hooks.on_page_markdown("<!-- include: results/details.md#first-evidence -->", page("concepts/a.md"))
    assert "| Memory 5x5 |" in given and "# " not in given and "RQ1" not in given


def test_links_to_results_are_right_in_the_site():
    given = hooks.on_page_markdown("![x](../../results/a.png) [y](../b.md)", page("concepts/a.md"))
    assert given == "![x](../results/a.png) [y](../b.md)"


@pytest.mark.parametrize("target", ["results/details.md#no-such-heading", "results/none.md#first-evidence"])
def test_a_section_that_is_not_there_stops_the_build(target):
    with pytest.raises(exceptions.PluginError, match=r"a\.md includes results/"):
        hooks.on_page_markdown(f"<!-- include: {target} -->", page("a.md"))


def test_a_page_that_loads_from_another_site_stops_the_build():
    with pytest.raises(exceptions.PluginError, match="would load"):
        hooks.on_post_page('<script src="https://example.org/a.js"></script>', page("a.md"))
    assert hooks.on_post_page('<a href="https://example.org">a link</a>', page("a.md"))
