"""A report shows what it is given as text: its page runs, loads and leads to nothing, in a browser too."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hostile_text import ACTIVE, OWNED, STEERING, Active, hostile_study, shown, strings

from dqn_memory.study.page import HTML, PAGE, Section, write_report
from dqn_memory.study.report import main
from envs.markup import Markup
from envs.tables import Table, tables_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MADE = Markup("Made by `python -m dqn_memory.study.report`")


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A place that nothing should ask for, and what was asked for there."""
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", paths
    server.shutdown()
    server.server_close()


def reported(folder: Path, given: list[str]) -> Path:
    """The report of a study with these strings everywhere."""
    hostile_study(folder, given)
    main([str(folder), "--no-attention"])
    return folder / "report"


def test_a_page_of_hostile_strings_is_inert_and_shows_them_as_they_are(tmp_path: Path, asked) -> None:
    given = [*strings(asked[0]), *STEERING]
    folder = reported(tmp_path / "<img src=x onerror=alert(1)>", given)
    found = Active.of((folder / HTML).read_text())
    assert len(given) >= 80 and not found.found
    assert [each for each in given if shown(each).strip() not in found.text] == []
    text = (folder / PAGE).read_text()
    assert not re.search(
        r"<[a-zA-Z/!?]|(?<!\\)\]\((?!pictures/[a-z0-9-]+\.png\)$)|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text, re.M
    )
    if BROWSER:
        _opened_in_a_browser(folder / HTML, asked[1])


def _opened_in_a_browser(path: Path, asked: list[str]) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = [str(BROWSER), *flags, f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr"]
    done = subprocess.run([*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=60)
    assert re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1].startswith("&lt;script&gt;")
    assert "Scores by environment" in done.stdout and "<script" not in done.stdout
    assert "Content Security Policy" not in done.stderr  # nothing of the page itself was kept from it
    assert asked == []


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_the_policy_alone_keeps_scripts_and_requests_away(tmp_path: Path, asked) -> None:
    """Should a string ever get through, the browser does not run it."""
    write_report(tmp_path, "Title", [MADE], [])
    inside = "".join(each.format(OWNED, asked[0]) for each in ACTIVE if each.startswith("<") and "refresh" not in each)
    text = (tmp_path / HTML).read_text().replace("</h1>", f"</h1>{inside}<h2>after</h2>", 1)
    (tmp_path / HTML).write_text(text)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(BROWSER), *flags, "--dump-dom", (tmp_path / HTML).as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "<title>Title</title>" in done.stdout and asked[1] == []


@pytest.mark.parametrize("text", [*strings(), *STEERING])
def test_each_place_of_a_page_shows_a_string_as_it_is(tmp_path: Path, text: str) -> None:
    table = Table((text, "b"), [(text, "1"), ("x", text)])
    write_report(
        tmp_path, text, [MADE, text], [Section(Markup("Heading"), (text, table, Markup("Of {}.").format(text)))]
    )
    found = Active.of((tmp_path / HTML).read_text())
    assert not found.found
    assert found.text.count(shown(text).strip()) >= 7


@pytest.mark.parametrize(
    ("link", "stays"),
    [
        ("https://a.test/b?c=d#e", True), ("HTTP://a.test", True), ("#heading", True), ("pictures/x.md", True),
        ("../other/report.md", True), ("javascript:alert(1)", False), ("JAVASCRIPT:alert(1)", False),
        ("java&#x73;cript:alert(1)", False), ("&#1;javascript:alert(1)", False), ("data:text/html,x", False),
        ("vbscript:x", False), ("//evil.test", False), ("/\\evil.test", False), ("\\\\evil.test", False),
        ("file:///etc/passwd", False), ("x&colon;y", False), ("https:evil", False),
    ],
)  # fmt: skip
def test_links_lead_to_the_web_or_beside_the_page_alone(tmp_path: Path, link: str, stays: bool) -> None:
    write_report(tmp_path, "Title", [MADE, Markup(f"[words]({link})")], [])
    html = (tmp_path / HTML).read_text()
    assert ('<a href="' in html.partition("</nav>")[2]) == stays and "words" in html


def test_a_page_of_tables_holds_no_tags_of_its_data(tmp_path: Path) -> None:
    for text in strings():
        written = tables_page(text, {"cpu": text}, [Table((text,), [(text,)], title=text, note=text)])
        assert not re.search(r"<[a-zA-Z/!?]", written), text
