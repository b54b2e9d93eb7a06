"""Text of files, environments and users in a Markdown page: it is shown as it is given, and is never markup itself."""

import re
from typing import Self

from envs.terminal import one_line

# What Markdown or HTML reads as more than characters. A reference stands for what knows no backslash before it.
# `p < 0.001`, `an_underscore` and the interval `[0.9, 1.0]` mean nothing to either and stay as they are.
ACTIVE = re.compile(
    r"""
    (?P<interval> \[[-+\d.,%\ ]+\] (?![(\[]) )
    | (?P<reference> &(?=\#?\w+;) | <(?=[a-zA-Z/!?]) | ~(?=~) | (?<=~)~ | \#(?=\#*\s*$) )
    | [`*|\[\]] | (?<!\w)_+ | _+(?!\w) | \\(?=[!-/:-@\[-`{-~]|$)
    """,
    re.VERBOSE,
)
LEADING = re.compile(r"(\d*)([#>+=-]|(?<=\d)[.)])")  # what makes more than a paragraph of a line that it begins
IN_CODE = re.compile(r"[`<>&|\\]")  # what a code span would end with, or show in another form
SPAN = re.compile(r"(`[^`<>&|\\]+`)")
TAG = re.compile(r"<(?=[a-zA-Z/!?])")
ALT = re.compile(r"((?:\\\\)*)\\?([\[\]])")


class Markup(str):
    """Markdown that the suite itself has written; what `format` fills in is escaped unless it is Markup too."""

    def format(self, *args: object, **kwargs: object) -> Self:
        """Fill in values."""
        texts = [escape(value) if isinstance(value, str) else value for value in args]
        named = {name: escape(value) if isinstance(value, str) else value for name, value in kwargs.items()}
        return type(self)(super().format(*texts, **named))


def escape(text: str) -> Markup:
    """Write a text so that Markdown shows it as it is, on one line; Markup stays as it is."""
    return text if isinstance(text, Markup) else Markup(ACTIVE.sub(_escaped, one_line(text)))


def _escaped(found: re.Match[str]) -> str:
    if found["interval"]:
        return found[0]
    return _reference(found[0]) if found["reference"] else "".join(f"\\{character}" for character in found[0])


def _reference(character: str) -> str:
    return f"&#{ord(character)};"


def paragraph(text: str) -> Markup:
    """Write a text as `escape` does where it begins a line."""
    if isinstance(text, Markup):
        return text
    line = one_line(text).lstrip()
    found = LEADING.match(line)
    return Markup(f"{found[1]}{_reference(found[2])}{escape(line[found.end() :])}") if found else escape(line)


def prose(text: str) -> Markup:
    """Write what a person has said in Markdown as `paragraph` does, code spans aside."""
    first, *others = SPAN.split(one_line(text))
    return Markup("".join([paragraph(first), *(part if SPAN.fullmatch(part) else escape(part) for part in others)]))


def without_tags(text: str) -> str:
    """Leave Markdown as it is, but for the tags of HTML."""
    return TAG.sub("&#60;", text)


def code(text: str) -> Markup:
    """Write a text as code, or as `escape` does where a code span could not show it."""
    line = one_line(text)
    return escape(line) if IN_CODE.search(line) else Markup(f"`{line}`")


def alt(text: Markup) -> Markup:
    """Write Markdown as the text in place of a picture, which brackets would end."""
    return Markup(ALT.sub(lambda found: f"{found[1]}{_reference(found[2])}", text))
