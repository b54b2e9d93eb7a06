"""Write the page of a report: Markdown with picture files, a web page, and the forms that a paper needs."""

import base64
import html
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, count
from pathlib import Path

from dqn_memory.analysis.plots import png
from dqn_memory.runs.errors import UserError, require
from dqn_memory.study.paper import pdf
from envs.extras import extra
from envs.files import check_inside, disk_errors, make_inside, read_text, write_atomic
from envs.markup import Markup, alt, escape, paragraph
from envs.tables import Table

with extra("plots"):
    import markdown
    from matplotlib.figure import Figure

WORDS: Mapping[str, Mapping[str, Markup]] = {
    name: {key: Markup(text) for key, text in words.items()}
    for name, words in tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8")).items()
}
PICTURES, PAPER, PAGE, WEB_PAGE = "pictures", "paper", "report.md", "report.html"
WIDTHS = 2.5, 20.0  # min and max inches of a figure in a paper
MAX_LETTERS = 150  # letters in the name of a picture, without its number
# Every report names its command. A page without it is no report and is not replaced.
MARK = re.compile(r"^(?:Made by `|<p>Made by <code>)python -m dqn_memory\.(study\.|diagnose)", re.MULTILINE)
IMAGE = re.compile(rf'(<img [^>]*src=)"({PICTURES}/[a-z0-9-]+\.png)"')
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #ccc; padding: .2em .6em; text-align: left }
img { max-width: 100% }
code { background: #f2f2f2 }
"""
LINK = re.compile(
    rf"^(?:!\[.*\]|\[[a-z0-9.-]+\])\(((?:{PICTURES}|{PAPER})/[a-z0-9-]+\.(?:png|pdf|csv|tex))\)$", re.MULTILINE
)


@dataclass(frozen=True)
class Picture:
    """A figure with a caption. `name` is the name of its file, which gets a number if another picture has it."""

    name: str
    figure: Figure
    caption: str
    numbers: Table | None = None  # those that are drawn, of `plots.drawn`


@dataclass(frozen=True)
class PaperTable:
    """A table that the page does not show, for a paper. `name` is the name of its file."""

    name: str
    table: Table


Part = str | Table | Picture | PaperTable  # a string is a paragraph; only Markup may hold markup
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
    """Make a section of parts, with its title and its words from words.toml; `facts` replace the names in braces.

    A part may be a list of parts, or a list of rows, which is one table. A section without parts has the sentence
    `nothing` of words.toml; the result is None if there is no such sentence.
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
    """Make the file name of a picture: lower-case letters and digits, joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MAX_LETTERS].strip("-")


def write_report(
    folder: Path, title: str, lead: Sequence[str], sections: Sequence[Section], few: int | None = None,
    figure_width: float | None = None, web: bool = False,
) -> Path:  # fmt: skip
    """Write report.md and its pictures, and with `web` report.html, which holds its pictures; return the page.

    An earlier report in the folder is replaced. A UserError says that the page or a picture would replace another file.
    At most `few` pictures are written (None: all): the first of each section, then others; the page names the rest.
    `lead` are the paragraphs below the title. With `figure_width` (inches), the folder `paper` has these pictures as
    PDF of that width, their numbers as CSV, and the PaperTables as LaTeX.
    """
    sections = _with_own_names(sections)
    pictures = {name: figure for section in sections for name, figure in section.pictures.items()}
    firsts = [name for section in sections for name in list(section.pictures)[:1]]
    shown = list(dict.fromkeys([*firsts, *pictures]))[:few]
    text = report_text(title, lead, sections, shown, figure_width is not None)
    check_folder(folder, figure_width)
    _make_room(folder, LINK.findall(text))
    write_atomic(folder / PAGE, text.encode())
    for name in shown:
        write_atomic(folder / PICTURES / f"{name}.png", png(pictures[name]))
    if figure_width is not None:
        for part in chain.from_iterable(section.parts for section in sections):
            if not isinstance(part, Picture) or part.name in shown:
                for name, content in _for_paper(part).items():
                    write_atomic(folder / PAPER / name, content(figure_width))
    if web:
        write_atomic(folder / WEB_PAGE, web_page(title, text, folder).encode())
        return folder / WEB_PAGE
    (folder / WEB_PAGE).unlink(missing_ok=True)  # of an earlier report, which has just been replaced
    return folder / PAGE


def web_page(title: str, text: str, folder: Path) -> str:
    """Turn a report into one web page that holds its pictures, so that it can be sent as a single file."""
    body = markdown.markdown(text, extensions=["tables"], output_format="html")

    def inside(found: re.Match[str]) -> str:
        return f'{found[1]}"data:image/png;base64,{base64.b64encode((folder / found[2]).read_bytes()).decode()}"'

    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{IMAGE.sub(inside, body)}\n</body>\n</html>\n"
    )


def _for_paper(part: Part) -> dict[str, Callable[[float], bytes]]:
    """Give the files of a part for a paper by name, and their content by the width of figures."""
    if isinstance(part, PaperTable):
        return {f"{part.name}.tex": lambda width: part.table.latex().encode()}
    if not isinstance(part, Picture):
        return {}
    table = part.numbers
    numbers = {} if table is None else {f"{part.name}.csv": lambda width: table.csv().encode()}
    return {f"{part.name}.pdf": partial(pdf, part.figure), **numbers}


def _with_own_names(sections: Sequence[Section]) -> list[Section]:
    """Add -2, -3 ... to the name of a picture if an earlier one has it."""
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
    title: str, lead: Sequence[str], sections: Sequence[Section], shown: Collection[str] | None = None,
    paper: bool = False,
) -> str:  # fmt: skip
    """Write the report as Markdown; it links to the files of the pictures that are `shown` (None: all)."""
    blocks = [f"# {escape(title)}", *map(paragraph, lead)]
    for section in sections:
        blocks += [f"## {section.title}", *(_block(part, shown, paper) for part in section.parts)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _block(part: Part, shown: Collection[str] | None, paper: bool) -> str:
    """Write one part; a table leaves out columns that are empty in every row."""
    links = "\n".join(f"[{name}]({PAPER}/{name})" for name in _for_paper(part)) if paper else ""
    if isinstance(part, PaperTable):
        return links
    if isinstance(part, str):
        return paragraph(part)
    if isinstance(part, Table):
        filled = [not part.rows or any(row[place] for row in part.rows) for place in range(len(part.columns))]
        return Table(
            list(compress(part.columns, filled)), [list(compress(row, filled)) for row in part.rows]
        ).markdown()
    caption = paragraph(part.caption)
    if shown is None or part.name in shown:
        return f"![{alt(caption)}]({PICTURES}/{part.name}.png)\n\n{caption}\n\n{links}".rstrip()
    return f"`{part.name}.png`, not kept here: {caption}"


def check_folder(folder: Path, figure_width: float | None = None) -> None:
    """Refuse to replace a page that is not a report, or to write through a link; and a wrong width of figures."""
    least, most = WIDTHS
    require(
        figure_width is None or least <= figure_width <= most,
        f"--figure-width {figure_width}: it must be {least:g} to {most:g} inches; a paper's column has about 3.3",
    )
    check_inside(folder, PICTURES, PAPER)
    for path in (folder / PAGE, folder / WEB_PAGE):
        with disk_errors(path):
            if os.path.lexists(path) and not MARK.search(_text(path)):
                raise UserError(f"{path} is no report of this suite and would be replaced: give another folder")


def _make_room(folder: Path, files: Sequence[str]) -> None:
    """Make the folders and remove files of the earlier report that are not among `files`."""
    earlier = set(LINK.findall(_text(folder / PAGE)))
    with disk_errors(folder):
        for path in (folder / name for name in files if name not in earlier):
            if os.path.lexists(path):
                raise UserError(f"{path} is not part of an earlier report and would be replaced: give another folder")
        folder.mkdir(parents=True, exist_ok=True)
        for inside in {name.partition("/")[0] for name in files}:
            make_inside(folder, inside)
        for name in earlier.difference(files):
            (folder / name).unlink(missing_ok=True)


def _text(path: Path) -> str:
    """Read a page; the result is "" if it cannot be read."""
    try:
        return read_text(path, follow=False)
    except UserError:
        return ""
