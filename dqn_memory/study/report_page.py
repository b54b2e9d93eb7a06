"""A report as Markdown and as one HTML page that needs nothing but itself: the pictures are in it."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from dqn_memory.analysis.plots import STYLE, png
from dqn_memory.runs.files import write_atomic
from dqn_memory.study.report_folder import HTML, MARKDOWN, PICTURES, make_room
from envs.tables import Table

CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #222; background: #fff;
  max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { line-height: 1.2; margin-bottom: .4rem; }
h2 { margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid #ddd; }
p { max-width: 52rem; }
nav { columns: 2; max-width: 52rem; margin: 1.2rem 0; }
nav a { display: block; }
a { color: #0060a0; }
.wide { overflow-x: auto; margin: 1rem 0; }
.many table { font-size: .76rem; line-height: 1.35; }
.many th, .many td { padding: .25rem .4rem; white-space: normal; }
.many td.number { white-space: nowrap; }
.many .name { box-sizing: border-box; width: 10rem; min-width: 10rem; max-width: 10rem; overflow-wrap: anywhere;
  position: sticky; background: #fff; z-index: 1; }
.many .first { left: 0; }
.many .second { left: 10rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .65rem; border-bottom: 1px solid #e4e4e4; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #999; vertical-align: bottom; }
td.number, th.number { text-align: right; }
.range { display: block; color: #666; font-size: .92em; }
td.words { white-space: normal; min-width: 16rem; }
tr:hover td { background: #f5f8fb; }
figure { margin: 1.2rem 0 1.8rem; }
figure img { max-width: 100%; height: auto; display: block; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(26rem, 1fr)); gap: 0 1.5rem; }
figcaption { color: #555; font-size: .85rem; max-width: 52rem; }
code { background: #f3f3f3; padding: .1em .3em; border-radius: 3px; white-space: nowrap; }
"""
# A number with or without a bound, an interval or a count: columns of these stand on the right.
NUMERIC = re.compile(r"^(> )?[-+]?[\d,]+(\.\d+)?( \[.*\])?( \((\d+ )?of \d+\))?$|^-?$|^< 0\.001$")
RANGE = re.compile(r" (\[[^\]]*\])")
MANY = 6  # columns from above which a table is set small, and its names stay when it scrolls
JOINT = re.compile(r"(?<=\w)([_/])(?=\w)")
LONG = 60  # characters of a cell from which on it may break


@dataclass(frozen=True)
class Words:
    """A paragraph; `code` in backquotes."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def filled(self) -> Grid:
        """Without the columns that are empty in every row."""
        kept = [place for place in range(len(self.header)) if not self.rows or any(row[place] for row in self.rows)]
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return Grid(tuple(self.header[place] for place in kept), rows)


@dataclass(frozen=True)
class Picture:
    """A figure and the name of its files, numbered where others have it too; `small` ones stand side by side."""

    name: str
    figure: Figure
    caption: str
    small: bool = False


Part = Words | Grid | Picture


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading."""

    title: str
    parts: tuple[Part, ...]

    @property
    def anchor(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class Image:
    """A figure in both forms."""

    svg: bytes
    png: bytes


def counted(number: int, word: str) -> str:
    """A number of things in words."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def slug(text: str) -> str:
    """Lower-case letters and digits joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def render(figure: Figure) -> Image:
    """The figure as SVG and PNG, the same bytes for the same figure."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "dqn-memory", "svg.fonttype": "path"}):
        small, svg = png(figure), io.BytesIO()
        figure.set_layout_engine("none")  # it is laid out by now
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Image(svg.getvalue(), small)


def write_report(folder: Path, title: str, lead: Sequence[Words], sections: Sequence[Section]) -> list[Path]:
    """Write report.md, report.html and every picture as PNG and SVG; returns the two pages.

    Pictures of an earlier report are removed; it is known by its report.md, so that one is written first. A UserError
    says what the disk refused, or what is there that is of no report.
    """
    sections = _apart(sections)
    images = {part.name: render(part.figure) for part in _pictures(sections)}
    make_room(folder, images)
    write_atomic(folder / MARKDOWN, markdown(title, lead, sections).encode())
    for name, image in images.items():
        write_atomic(folder / PICTURES / f"{name}.png", image.png)
        write_atomic(folder / PICTURES / f"{name}.svg", image.svg)
    write_atomic(folder / HTML, page(title, lead, sections, images).encode())
    return [folder / MARKDOWN, folder / HTML]


def _apart(sections: Sequence[Section]) -> list[Section]:
    """The sections with -2, -3 behind the name of a picture that another has: two worlds may have one slug."""
    names: set[str] = set()

    def named(part: Part) -> Part:
        if not isinstance(part, Picture):
            return part
        choices = (part.name if number == 1 else f"{part.name}-{number}" for number in count(1))
        name = next(choice for choice in choices if choice not in names)
        names.add(name)
        return replace(part, name=name)

    return [replace(section, parts=tuple(named(part) for part in section.parts)) for section in sections]


def _pictures(sections: Iterable[Section]) -> list[Picture]:
    return [part for section in sections for part in section.parts if isinstance(part, Picture)]


def markdown(title: str, lead: Sequence[Words], sections: Sequence[Section]) -> str:
    """The report as Markdown; pictures are links to their PNG."""
    blocks = [f"# {title}", *(words.text for words in lead)]
    for section in sections:
        blocks += [f"## {section.title}", *(_markdown(part) for part in section.parts)]
    return "\n\n".join(blocks) + "\n"


def _markdown(part: Part) -> str:
    if isinstance(part, Words):
        return part.text
    if isinstance(part, Grid):
        return Table(part.filled.header, part.filled.rows).markdown()
    return f"![{part.caption}]({PICTURES}/{part.name}.png)\n\n{part.caption}"


def page(title: str, lead: Sequence[Words], sections: Sequence[Section], images: dict[str, Image]) -> str:
    """The report as one HTML page."""
    links = "".join(f'<a href="#{section.anchor}">{html.escape(section.title)}</a>' for section in sections)
    body = "\n".join(_section(section, images) for section in sections)
    head = "\n".join(_paragraph(words.text) for words in lead)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,"><style>{CSS}</style></head>\n'
        f"<body><h1>{html.escape(title)}</h1>\n{head}\n<nav>{links}</nav>\n{body}\n</body></html>\n"
    )


def _section(section: Section, images: dict[str, Image]) -> str:
    blocks = [f'<h2 id="{section.anchor}">{html.escape(section.title)}</h2>']
    aside = False  # within a group of small pictures
    for part in section.parts:
        small = isinstance(part, Picture) and part.small
        if small != aside:
            blocks.append('<div class="small">' if small else "</div>")
        aside = small
        blocks.append(_part(part, images))
    return "\n".join([*blocks, *(["</div>"] if aside else [])])


def _part(part: Part, images: dict[str, Image]) -> str:
    if isinstance(part, Words):
        return _paragraph(part.text)
    if isinstance(part, Grid):
        return _table(part.filled)
    alt, caption = html.escape(part.caption, quote=True), _inline(part.caption)
    data = base64.b64encode(images[part.name].svg).decode()
    source = f"data:image/svg+xml;base64,{data}"
    return f'<figure><img src="{source}" alt="{alt}"><figcaption>{caption}</figcaption></figure>'


def _paragraph(text: str) -> str:
    return f"<p>{_inline(text)}</p>"


def _inline(text: str) -> str:
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)


def _table(grid: Grid) -> str:
    """A table in a box of its own; a wide one scrolls there beneath the names on its left, which stay."""
    many = len(grid.header) > MANY
    kinds = [_kind([row[place] for row in grid.rows]) for place in range(len(grid.header))]
    marks = [_class(kind, place, many and not any(kinds[: place + 1])) for place, kind in enumerate(kinds)]
    head = "".join(f"<th{mark}>{_inline(cell)}</th>" for mark, cell in zip(marks, grid.header, strict=True))
    rows = "\n".join(
        f"<tr>{''.join(f'<td{mark}>{_cell(cell, many)}</td>' for mark, cell in zip(marks, row, strict=True))}</tr>"
        for row in grid.rows
    )
    box = "wide many" if many else "wide"
    return f'<div class="{box}"><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>'


def _class(kind: str, place: int, named: bool) -> str:
    """A cell's class; up to two columns of `named` ones stay where they are when the others scroll."""
    kind = f"name {('first', 'second')[place]}" if named and place < 2 else kind
    return f' class="{kind}"' if kind else ""


def _kind(column: Sequence[str]) -> str:
    """How a column of cells is set."""
    if all(NUMERIC.match(cell) for cell in column):
        return "number"
    return "words" if max(map(len, column), default=0) > LONG else ""


def _cell(text: str, narrow: bool = False) -> str:
    """A cell's text; an interval has a line of its own below its number, a long name may break where it is joined."""
    inner = _inline(text)
    if narrow and "<" not in inner:
        inner = JOINT.sub(r"\1<wbr>", inner)
    return RANGE.sub(r'<span class="range">\1</span>', inner)
