"""Strings that try to be more than text, in every field of a study, and how to tell that a page or a terminal held."""

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import markdown
from reported import make_study, noisy

from dqn_memory.study.definition import Planned
from dqn_memory.study.store import Study

OWNED = "document.title='owned'"
ACTIVE = (  # {0} is what would run, {1} a place that must not be asked for
    "<script>{0}</script>", "<ScRiPt>{0}</sCrIpT >", "<img src=x onerror={0}>", "<img src={1} >", "<svg onload={0}>",
    "<svg><script>{0}</script></svg>", "<iframe src={1}></iframe>", "<iframe srcdoc='<script>{0}</script>'>",
    "<object data={1}>", "<embed src={1}>", "<link rel=stylesheet href={1}>", "<style>@import '{1}';</style>",
    "<style>* {{ display: none }}</style>", "<meta http-equiv=refresh content='0;url={1}'>", "<base href={1}>",
    "<form action={1}><button>x</button></form>", "<details open ontoggle={0}>x</details>", "<body onload={0}>",
    "<input autofocus onfocus={0}>", "<video src={1} onerror={0}>", "<math href='javascript:{0}'>x</math>",
    "<a href='javascript:{0}'>x</a>", "<!-- <script>{0}</script> -->", "<!--><script>{0}</script>",
    "</title><script>{0}</script>", "</textarea><script>{0}</script>", "</style><script>{0}</script>",
    "</td></table><script>{0}</script>", "\"><script>{0}</script>", "'><script>{0}</script>",
    "<div style='background: url({1})'>x</div>", "<?xml-stylesheet href='{1}'?>", "<![CDATA[<script>{0}</script>]]>",
    "[x](javascript:{0})", "[x](JaVaScRiPt:{0})", "[x](java\tscript:{0})", "[x](&#106;avascript:{0})",
    "[x](&#x6A;avascript&colon;{0})", "[x](data:text/html,<script>{0}</script>)", "[x](vbscript:{0})",
    "[x](//evil.test/x)", "[x](<javascript:{0}>)", "![x]({1})", "![x](javascript:{0})", "![x]({1} \"x\" onerror={0})",
    "![](x\" onerror=\"{0})", "<javascript:{0}>", "<{1}>", "[x]: javascript:{0}", "[x][y]\n\n[y]: javascript:{0}",
    "`</code><script>{0}</script>`", "```\n<script>{0}</script>\n```", "    <script>{0}</script>",
    "&lt;script&gt;{0}&lt;/script&gt;", "\\<script>{0}</script>", "\\\\<script>{0}</script>",
    "a | b\n--- | ---\n{0} | x",
    "\x02wzxhzdk:0\x03", "\x02klzzwxh:0001\x03", "{{x}} ${{body}} $title %s", "pictures/x.png\" onerror=\"{0}",
)  # fmt: skip
PLAIN = (
    "*em* _em_ __both__", "**bold**", "~~gone~~", "# head", "1. one", "- item", "> said", "===", "x #", "a|b", "a\\|b",
    "a\\", "C:\\a\\_b", "]]](((", "[[[[", "&amp; &copy; & co", "$\\frac{1}{2$", "[TOC]", "p < 0.001 > x", "http://a.test",
)  # fmt: skip
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
STEERING = (
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;http://evil.test\x1b\\link\x1b]8;;\x1b\\", "\x9b2J",
    "\x1b[2J\x1b[H",
    "back\x08\x08\x08\x08", "over\rwritten", "bell\x07", "null\x00", "\u202eevil\u202c", "\u2066x\u2069",
    "a\u2028b\u2029c",
    "del\x7f", "form\x0cfeed", "line\nfeed", "tab\tted", "\x85next", "[red]red[/red]", "[link=http://evil.test]x[/link]",
    ":warning:",
)  # fmt: skip


def strings(place: str = "http://127.0.0.1:9/") -> list[str]:
    """All that is tried against a page; `place` is where it must not ask."""
    return [each.format(OWNED, place) for each in ACTIVE] + list(PLAIN)


def toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value).replace("\x7f", "\\u007f")


def hostile_study(folder: Path, given: Sequence[str]) -> Study:
    """A study with these strings, of which there are seven, in every field.

    All of them are its title, description, machine and metrics, and of failed runs one each is the error; the first
    ones are labels of finished runs.
    """
    worlds = [
        {"name": f"{given[0]}0", "env": "Gridverse/Memory-5x5-v0"},
        {"name": f"{given[1]}1", "env": "POMDP/Hallway-v0"},
    ]
    series = [{"name": f"{given[2]}2", "architecture": "dtqn4"}, {"name": f"{given[3]}3", "architecture": "dgfqn"}]
    value, whole = {"name": given[4], "n_step": 2}, " ".join(given)
    lost = [{"name": f"lost-{number}", "env": "Gridverse/Memory-5x5-v0"} for number in range(len(given))]
    skip = {"world": [each["name"] for each in lost], "architecture": [series[1]["name"]]}
    text = "\n".join((
        "schema = 2", f"title = {toml(whole)}", 'kind = "q_network"', f"about = {toml(' '.join(reversed(given)))}",
        "[base]", "total_steps = 600", "learning_starts = 100", "prepopulate = 100", "width = 16", "heads = 2",
        "layers = 1", "context = 8", "[axes]", f"world = {toml(worlds + lost)}", f"architecture = {toml(series)}",
        f"{toml('x' + given[5])} = {toml([value])}", "seed = [1]", "[[skip]]",
        *(f"{key} = {toml(labels)}" for key, labels in skip.items()),
        f"[lines.{toml(worlds[0]['name'])}]", "random = 0.1", "best = 1.0",
    ))  # fmt: skip

    def more(run: Planned, step: int) -> dict[str, float]:
        return {f"moved/{whole}": 0.5, f"memory/{given[6]}.mu": 1.0}

    study = make_study(folder, [], "", [], noisy({}), more, text=text)
    facts = {**dict.fromkeys(("cpu", "device", "threads", "torch", "revision"), whole), "mamba_backend": whole}
    errors = iter(given)
    for run in study.runs():
        (run.folder / "environment.json").write_text(json.dumps(facts))
        if run.world.startswith("lost-"):
            study.mark(run.name, "failed", error=" ".join(next(errors).splitlines()))
    return study


class Active(HTMLParser):
    """Lists what in a page could run, load or lead to a script."""

    TAGS = frozenset(
        ["h1", "h2", "a", "p", "img", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "em", "br"]
    )
    KNOWN = frozenset(["href", "src", "alt"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.TAGS:
            self.found.append(tag)
        for name, value in attrs:
            link = (value or "").strip()
            fine = name in self.KNOWN
            if name == "href":
                fine = bool(re.match(r"https?://|#", link))
            elif name == "src":
                fine = bool(re.fullmatch(r"pictures/[a-z0-9-]+\.png", link))
            if not fine:
                self.found.append(f"{tag} {name}={link}")

    def handle_comment(self, data: str) -> None:
        self.found.append(f"comment {data}")

    def handle_data(self, data: str) -> None:
        self.text += data

    @classmethod
    def of(cls, page: Path) -> "Active":
        """Read a page of Markdown as a browser shows it; tags in the text count."""
        reader = cls()
        reader.feed(markdown.markdown(page.read_text(), extensions=["tables"]))
        reader.close()
        return reader


def shown(text: str) -> str:
    """How a page or a terminal shows a string: on one line, control characters as their numbers."""
    line = " ".join(text.replace("\t", " ").splitlines())
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
