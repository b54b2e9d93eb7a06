"""The folder of a report: what an earlier one left there, and that nothing else is replaced or removed."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import disk_errors

PICTURES = "pictures"
FORMS = (".png", ".svg")
MARKDOWN, HTML, CLAIMS = "report.md", "report.html", "claims.md"
# What every page of that name says, by which it is known as written here.
MARKS = {
    MARKDOWN: "\n\nMade by `python -m dqn_memory.study.",
    HTML: "<p>Made by <code>python -m dqn_memory.study.",
    CLAIMS: "\nMachine-written by `python -m dqn_memory.study.claims`",
}
LINK = re.compile(rf"^!\[.*\]\({PICTURES}/([a-z0-9-]+)\.png\)$", re.MULTILINE)


def check_folder(folder: Path, claims: bool = False) -> None:
    """A UserError where a page would replace one that is none of a report; `claims`: there will be that page too."""
    for name in (MARKDOWN, HTML, *([CLAIMS] if claims else [])):
        path = folder / name
        if _there(path) and MARKS[name] not in _text(path):
            raise UserError(f"{path} is not what study.report writes and would be replaced: give another --folder")


def make_room(folder: Path, pictures: Collection[str]) -> None:
    """Make the folder and remove the earlier report's pictures that are not among `pictures`.

    A UserError, with nothing changed, where a page or one of `pictures` would replace what is of no report.
    """
    check_folder(folder)
    earlier = set(LINK.findall(_text(folder / MARKDOWN)))
    for path in _files(folder, set(pictures) - earlier):
        if _there(path):
            raise UserError(f"{path} is of no earlier report and would be replaced: give another --folder")
    with disk_errors(folder):
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for path in _files(folder, earlier - set(pictures)):
            path.unlink(missing_ok=True)


def _files(folder: Path, pictures: Collection[str]) -> list[Path]:
    return [folder / PICTURES / f"{name}{form}" for name in sorted(pictures) for form in FORMS]


def _there(path: Path) -> bool:
    with disk_errors(path):
        return path.exists()


def _text(path: Path) -> str:
    """A page, "" where there is none to be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
