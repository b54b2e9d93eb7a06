"""Write the pages of a report: Markdown with pictures beside it, and one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import markdown
from matplotlib.figure import Figure

from dqn_memory.analysis.plots import png
from dqn_memory.runs.errors import UserError
from envs.files import disk_errors, write_atomic
from envs.tables import Table

PICTURES, PAGE, HTML = "pictures", "report.md", "report.html"
MADE = "Made by `python -m dqn_memory.study."  # every report says so, by which it is known as one
LINK = re.compile(rf"^!\[.*\]\({PICTURES}/([a-z0-9-]+)\.png\)$", re.MULTILINE)
CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 0 auto; padding: 1.5rem; }
h2 { margin-top: 2.6rem; border-top: 1px solid #ddd; padding-top: .6rem; }
p { max-width: 52rem; }
p:has(img) { max-width: none; }
nav { columns: 2; max-width: 52rem; }
a { color: #0060a0; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .76rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #e4e4e4; text-align: left; }
code { background: #f3f3f3; padding: .1em .3em; border-radius: 3px; }
"""


@dataclass(frozen=True)
class Picture:
    """A figure with a caption; `name` is its file's, numbered where others have it too."""

    name: str
    figure: Figure
    caption: str


Part = str | Table | Picture  # a string is a paragraph


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading."""

    title: str
    parts: tuple[Part, ...]


def counted(number: int, word: str) -> str:
    """Name a number of things."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def slug(text: str) -> str:
    """Join lower-case letters and digits by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def write_report(
    folder: Path, title: str, lead: Sequence[str], sections: Sequence[Section], few: int | None = None
) -> list[Path]:
    """Write report.md, its pictures and, where it has all of them, report.html; return the pages.

    Args:
        folder: where they go; pages and pictures of an earlier report there are replaced, and nothing else.
        title: heading of the report.
        lead: paragraphs below it.
        sections: its parts.
        few: how many pictures it may have (None: all); the others are named.

    Raises:
        UserError: a page or a picture would replace a file that is of no report.
    """
    sections = _with_own_names(sections)
    shown = _leading(sections, few)
    text = page_text(title, lead, sections, shown)
    _make_room(folder, shown)
    write_atomic(folder / PAGE, text.encode())
    for picture in _pictures(sections):
        if picture.name in shown:
            write_atomic(folder / PICTURES / f"{picture.name}.png", png(picture.figure))
    if few is not None:
        return [folder / PAGE]
    write_atomic(folder / HTML, as_html(title, text, folder).encode())
    return [folder / PAGE, folder / HTML]


def _pictures(sections: Iterable[Section]) -> list[Picture]:
    return [part for section in sections for part in section.parts if isinstance(part, Picture)]


def _with_own_names(sections: Sequence[Section]) -> list[Section]:
    """Put -2, -3 after the name of a picture that another has: two environments may have one slug."""
    names: set[str] = set()

    def named(part: Part) -> Part:
        if not isinstance(part, Picture):
            return part
        choices = (part.name if number == 1 else f"{part.name}-{number}" for number in count(1))
        name = next(choice for choice in choices if choice not in names)
        names.add(name)
        return replace(part, name=name)

    return [replace(section, parts=tuple(named(part) for part in section.parts)) for section in sections]


def _leading(sections: Sequence[Section], few: int | None) -> set[str]:
    """Choose the pictures that are shown: the first of every section, then in their order."""
    firsts = [picture for section in sections for picture in _pictures([section])[:1]]
    return {picture.name for picture in [*firsts, *(p for p in _pictures(sections) if p not in firsts)][:few]}


def page_text(title: str, lead: Sequence[str], sections: Sequence[Section], shown: set[str] | None = None) -> str:
    """Write the report as Markdown; pictures are links to their PNG where they are shown (None: all are)."""
    blocks = [f"# {title}", *lead]
    for section in sections:
        blocks += [f"## {section.title}", *(_block(part, shown) for part in section.parts)]
    return "\n\n".join(blocks) + "\n"


def _block(part: Part, shown: set[str] | None) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Table):
        return filled(part).markdown()
    if shown is None or part.name in shown:
        return f"![{part.caption}]({PICTURES}/{part.name}.png)\n\n{part.caption}"
    return f"`{part.name}.png`, not kept here: {part.caption}"


def filled(table: Table) -> Table:
    """Leave out the columns that are empty in every row."""
    kept = [i for i in range(len(table.columns)) if not table.rows or any(row[i] for row in table.rows)]
    return Table([table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows])


def as_html(title: str, text: str, folder: Path) -> str:
    """Turn report.md into one HTML page that holds the pictures of its folder."""
    reader = markdown.Markdown(extensions=["tables", "toc"], extension_configs={"toc": {"toc_depth": "2-2"}})
    body = reader.convert(text).replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")

    def inlined(found: re.Match[str]) -> str:
        data = base64.b64encode((folder / PICTURES / f"{found[1]}.png").read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    body = re.sub(rf'src="{PICTURES}/([a-z0-9-]+)\.png"', inlined, body)
    heading, rest = body.partition("</h1>")[0] + "</h1>", body.partition("</h1>")[2]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">\n'
        f"<style>{CSS}</style></head>\n<body>{heading}\n<nav>{reader.toc}</nav>\n{rest}\n</body></html>\n"  # type: ignore[attr-defined]
    )


def check_folder(folder: Path) -> None:
    """Refuse to replace a page that is of no report."""
    for name, mark in ((PAGE, f"\n\n{MADE}"), (HTML, f"<p>{MADE.replace('`', '<code>')}")):
        path = folder / name
        if _exists(path) and mark not in _text(path):
            raise UserError(f"{path} is not what study.report writes and would be replaced: give another --folder")


def _make_room(folder: Path, pictures: set[str]) -> None:
    """Make the folder and remove the earlier report's pictures that are not among `pictures`."""
    check_folder(folder)
    earlier = set(LINK.findall(_text(folder / PAGE)))
    for name in sorted(pictures - earlier):
        path = folder / PICTURES / f"{name}.png"
        if _exists(path):
            raise UserError(f"{path} is of no earlier report and would be replaced: give another --folder")
    with disk_errors(folder):
        (folder / PICTURES if pictures else folder).mkdir(parents=True, exist_ok=True)
        for name in earlier - pictures:
            (folder / PICTURES / f"{name}.png").unlink(missing_ok=True)


def _exists(path: Path) -> bool:
    with disk_errors(path):
        return path.exists()


def _text(path: Path) -> str:
    """Read a page, "" where there is none to be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
