"""Write the pages of a report: Markdown with pictures beside it, and one HTML file that needs nothing but itself."""

import base64
import hashlib
import html
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, count
from pathlib import Path
from string import Template

from matplotlib.figure import Figure

from dqn_memory.analysis.plots import png
from dqn_memory.runs.errors import UserError
from dqn_memory.study.safe_html import to_html
from envs.files import check_inside, disk_errors, make_inside, read_bytes, read_text, write_atomic
from envs.markup import Markup, alt, escape, paragraph
from envs.tables import Table
from envs.terminal import one_line

WORDS: Mapping[str, Mapping[str, Markup]] = {
    name: {key: Markup(text) for key, text in words.items()}
    for name, words in tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8")).items()
}
PICTURES, PAGE, HTML = "pictures", "report.md", "report.html"
LONGEST = 150  # letters of the name of a picture, which has a number after it, too
# Every report says by which command it was made, by which it is known as one.
MARK = re.compile(r"^(<p>)?Made by (`|<code>)python -m dqn_memory\.study\.", re.MULTILINE)
LINK = re.compile(rf"^!\[.*\]\({PICTURES}/([a-z0-9-]+)\.png\)$", re.MULTILINE)


@dataclass(frozen=True)
class Picture:
    """A figure with a caption; `name` is its file's, numbered where others have it too."""

    name: str
    figure: Figure
    caption: str


Part = str | Table | Picture  # a string is a paragraph, whose markup counts where it is Markup alone
Row = Mapping[str, str]  # cells by column


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading."""

    title: str
    parts: tuple[Part, ...]

    @property
    def pictures(self) -> dict[str, Figure]:
        """Its figures by name."""
        return {part.name: part.figure for part in self.parts if isinstance(part, Picture)}


def section(name: str, *parts: Part | Sequence[Part] | Sequence[Row], **facts: object) -> Section | None:
    """Put parts below the heading and words that words.toml has of a section, which may name `facts`.

    Parts are single ones, lists of them, and rows, which are one table. Where there are none a sentence says why, or
    there is no section.
    """
    words, found = WORDS[name], list[Part]()
    for part in parts:
        several = [part] if isinstance(part, Part) else list(part)
        rows = [each for each in several if isinstance(each, Mapping)]
        found += [Table.from_records(rows)] if rows else [each for each in several if isinstance(each, Part)]
    sentence = words.get("words") if found else words.get("nothing")
    text = () if sentence is None else (Markup(sentence.format(**facts).strip()),)
    return Section(words["title"], (*text, *found)) if found or text else None


def counted(number: int, word: str) -> str:
    """Name a number of things."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def picture_name(text: str) -> str:
    """Join lower-case letters and digits by hyphens, for the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST].strip("-")


def write_report(
    folder: Path, title: str, lead: Sequence[str], sections: Sequence[Section], few: int | None = None
) -> list[Path]:
    """Write report.md, its pictures and, where it has all of them, report.html; return the pages.

    An earlier report in the folder is replaced, and nothing else: a UserError where a page or a picture would replace
    another file. Of more pictures than `few` (None: all are written) the first of every section come before others, and
    the rest is only named. `lead` are paragraphs below the title.
    """
    sections = _with_own_names(sections)
    pictures = {name: figure for section in sections for name, figure in section.pictures.items()}
    firsts = [name for section in sections for name in list(section.pictures)[:1]]
    shown = list(dict.fromkeys([*firsts, *pictures]))[:few]
    text = report_text(title, lead, sections, shown)
    _make_room(folder, shown)
    write_atomic(folder / PAGE, text.encode())
    for name in shown:
        write_atomic(folder / PICTURES / f"{name}.png", png(pictures[name]))
    if few is not None:
        return [folder / PAGE]
    write_atomic(folder / HTML, as_html(title, text, folder).encode())
    return [folder / PAGE, folder / HTML]


def _with_own_names(sections: Sequence[Section]) -> list[Section]:
    """Put -2, -3 after the name of a picture that another has: two environments may have one slug."""
    names: set[str] = set()

    def named(part: Part) -> Part:
        if not isinstance(part, Picture):
            return part
        choices = chain([part.name], (f"{part.name}-{number}" for number in count(2)))
        name = next(choice for choice in choices if choice not in names)
        names.add(name)
        return replace(part, name=name)

    return [replace(section, parts=tuple(map(named, section.parts))) for section in sections]


def report_text(
    title: str, lead: Sequence[str], sections: Sequence[Section], shown: Collection[str] | None = None
) -> str:
    """Write the report as Markdown; pictures are links to their PNG where they are shown (None: all are)."""
    blocks = [f"# {escape(title)}", *map(paragraph, lead)]
    for section in sections:
        blocks += [f"## {section.title}", *(_block(part, shown) for part in section.parts)]
    return "\n\n".join(blocks) + "\n"


def _block(part: Part, shown: Collection[str] | None) -> str:
    """Write one part; a table's columns that are empty in every row are left out."""
    if isinstance(part, str):
        return paragraph(part)
    if isinstance(part, Table):
        filled = [not part.rows or any(row[place] for row in part.rows) for place in range(len(part.columns))]
        return Table(
            list(compress(part.columns, filled)), [list(compress(row, filled)) for row in part.rows]
        ).markdown()
    caption = paragraph(part.caption)
    if shown is None or part.name in shown:
        return f"![{alt(caption)}]({PICTURES}/{part.name}.png)\n\n{caption}"
    return f"`{part.name}.png`, not kept here: {caption}"


def as_html(title: str, text: str, folder: Path) -> str:
    """Turn report.md into one HTML page that holds the pictures of its folder and can neither run nor load anything."""
    pictures = {
        f"{PICTURES}/{name}.png": base64.b64encode(read_bytes(folder / PICTURES / f"{name}.png")).decode()
        for name in LINK.findall(text)
    }
    body, headings = to_html(text, pictures)
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    links = (f'<li><a href="#{id}">{html.escape(name)}</a></li>' for id, name in headings.items())
    body = body.replace("</h1>", f"</h1>\n<nav><ul>{''.join(links)}</ul></nav>\n", 1)
    page = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    style = page.partition("<style>")[2].partition("</style>")[0]
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return Template(page).substitute(title=html.escape(one_line(title)), body=body, style=f"'sha256-{allowed}'")


def check_folder(folder: Path) -> None:
    """Refuse to replace a page that is of no report, or to write through a link."""
    check_inside(folder, PICTURES)
    for path in (folder / PAGE, folder / HTML):
        with disk_errors(path):
            if os.path.lexists(path) and not MARK.search(_text(path)):
                raise UserError(f"{path} is not what study.report writes and would be replaced: give another folder")


def _make_room(folder: Path, pictures: Sequence[str]) -> None:
    """Make the folder and remove the earlier report's pictures that are not among `pictures`."""
    check_folder(folder)
    earlier = set(LINK.findall(_text(folder / PAGE)))
    with disk_errors(folder):
        for path in (folder / PICTURES / f"{name}.png" for name in pictures if name not in earlier):
            if os.path.lexists(path):
                raise UserError(f"{path} is of no earlier report and would be replaced: give another folder")
        folder.mkdir(parents=True, exist_ok=True)
        if pictures:
            make_inside(folder, PICTURES)
        for name in earlier.difference(pictures):
            (folder / PICTURES / f"{name}.png").unlink(missing_ok=True)


def _text(path: Path) -> str:
    """Read a page, "" where there is none to be read."""
    try:
        return read_text(path, follow=False)
    except UserError:
        return ""
