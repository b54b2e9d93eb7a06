"""What the site takes from `results/` while it is built, so that no number is typed and no picture is kept twice.

Every Markdown page and picture below `results/` becomes a file of the site, and a page may include one of its sections:
`<!-- include: results/details.md#first-evidence -->` stands for what follows that heading.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SHOWN = {".md", ".png", ".gif"}
INCLUDE = re.compile(r"<!-- include: (results/\S+\.md)#(\S+) -->")
OUTSIDE = re.compile(r"\]\(\.\./((?:\.\./)*)results/")  # as it is right in the repository, docs/ being beside results/
HEADING = re.compile(r"^(#+) +(.*?) *$", re.M)
REMOTE = re.compile(r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"?https?://[^>]*>")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures of the results."""
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in SHOWN and ".template" not in path.suffixes and "report" not in path.relative_to(ROOT).parts:
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in the sections of results that a page includes, and lead its links to where the results are in the site."""
    markdown = OUTSIDE.sub(r"](\1results/", markdown)
    return INCLUDE.sub(lambda found: section(found[1], found[2], page.file.src_uri), markdown)


def section(path: str, anchor: str, page: str) -> str:
    """Read what follows a heading of a results page, with its pictures' paths seen from the including page.

    Raises:
        PluginError: there is no such file or heading.
    """
    text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
    headings = list(HEADING.finditer(text))
    for number, found in enumerate(headings):
        if slugify(found[2], "-") == anchor:
            ends = (each.start() for each in headings[number + 1 :] if len(each[1]) <= len(found[1]))
            body = text[found.end() : next(ends, len(text))].strip()
            here = "../" * page.count("/") + path.rpartition("/")[0]
            return re.sub(r"\]\((?!https?:|#)", f"]({here}/", body)
    raise PluginError(f"{page} includes {path}#{anchor}, which is not there")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load anything from elsewhere when it is read.

    Raises:
        PluginError: the page has a script, a style or a picture of another site.
    """
    for found in REMOTE.finditer(output):
        if 'rel="canonical"' not in found[0]:
            raise PluginError(f"{page.file.src_uri} would load {found[0]}")
    return output
