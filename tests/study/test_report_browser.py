"""A report in a real browser: it renders, says nothing on the console, and fits a window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from reported import make_study, noisy

from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import collect
from dqn_memory.study.page import write_report
from dqn_memory.study.report import lead, main, sections

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr", "--log-level=0", "--window-size=1280,2400", "--virtual-time-budget=5000",
)  # fmt: skip
# Appended to a copy of the page, which has no script of its own: what only a browser knows goes into the title.
PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images];
  document.title = JSON.stringify({
    images: images.length,
    drawn: images.filter(image => image.complete && image.naturalWidth > 200).length,
    rows: document.querySelectorAll("tbody tr").length,
    headings: [...document.querySelectorAll("h2")].map(heading => heading.textContent),
    broken: [...document.querySelectorAll("nav a")].filter(a => !document.querySelector(a.hash)).length,
    wide: document.documentElement.scrollWidth - innerWidth,
    letters: Math.min(...[...document.querySelectorAll("p, a, td, th, span, figcaption")]
      .map(element => parseFloat(getComputedStyle(element).fontSize))),
    shrunk: Math.min(...images.map(image => image.clientWidth / image.naturalWidth)),
    hidden: [...document.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth)
      .map(box => box.querySelector("th").textContent),
  });
});</script>"""
ARCHIVE = Path(__file__).resolve().parents[2] / "results/studies/unizero_priors"
SHOWN = {"causal", "adaptive", "gaussian_adaptive"}  # series of the archive that are enough to see priors and attention
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome on this machine")


def browse(folder: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "study"
    worlds = ["Gridverse/Memory-5x5-v0", "POMDP/Hallway-v0"]
    make_study(folder, worlds, '["dtqn4", "dgfqn", "dbgfqn"]', [1, 2, 3], noisy({"dgfqn": 0.1}))
    main([str(folder), "--no-attention", "--published"])
    return folder / "report/report.html"


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a committed archive, of some of its series."""
    folder = tmp_path_factory.mktemp("archived")
    whole = collect(open_source(ARCHIVE))
    data = replace(whole, entries=tuple(entry for entry in whole.entries if entry.series in SHOWN))
    write_report(folder, data.source.title, lead(data), sections(data))
    return folder / "report.html"


def probed(page: Path, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """What the browser knows of a page, and what it said."""
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    said = browse(tmp_path, copy, "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", said.stdout, re.DOTALL)
    assert title is not None
    return json.loads(html.unescape(title[1])), said.stderr


@pytest.mark.long
@pytest.mark.parametrize("which", ["page", "archived"])
def test_every_picture_and_table_of_the_page_renders(
    request: pytest.FixtureRequest, tmp_path: Path, which: str
) -> None:
    page: Path = request.getfixturevalue(which)
    found, said = probed(page, tmp_path)
    assert found["images"] == found["drawn"] == len(list((page.parent / "pictures").glob("*.png")))
    assert {"Over all environments", "Scores by environment", "Time and cost"} <= set(found["headings"])
    assert found["rows"] > 20
    assert found["broken"] == 0
    assert found["wide"] <= 0  # wide tables scroll by themselves, the page does not
    assert "world" not in found["hidden"]  # the table of scores shows all its columns at once
    assert found["letters"] >= 11
    assert found["shrunk"] >= 0.75  # of pictures whose letters have at least 8 points
    assert "CONSOLE" not in said


def test_the_page_of_an_archive_has_learned_priors_and_attention(archived: Path) -> None:
    names = {path.name.partition("-")[0] for path in (archived.parent / "pictures").glob("*.png")}
    assert {"learned", "learning", "spans", "attention", "curves"} <= names


def test_a_broken_picture_would_be_seen(page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("data:image/png;base64,iV", "data:image/png;base64,AA", 1))
    found, _ = probed(broken, tmp_path)
    assert found["drawn"] == found["images"] - 1


def test_the_page_is_not_blank(page: Path, tmp_path: Path) -> None:
    browse(tmp_path, page, f"--screenshot={tmp_path / 'shot.png'}")
    shot = matplotlib.image.imread(tmp_path / "shot.png")  # (H, W, 3 or 4), from 0 to 1
    assert shot.shape[:2] == (2400, 1280)
    ink = (shot[..., :3].min(-1) < 0.9).mean(1)  # by row
    assert (ink > 0).mean() > 0.3
    assert ink.mean() < 0.5
