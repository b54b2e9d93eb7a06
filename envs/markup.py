"""Escape texts of files, environments and users for Markdown and LaTeX, so that none of them acts as markup."""

import re
from typing import Self

from envs.console import one_line

# Characters with a meaning in Markdown or HTML. The group `reference` cannot be escaped by a backslash.
# `p < 0.001`, `an_underscore` and the interval `[0.9, 1.0]` have no such meaning and stay the same.
ACTIVE = re.compile(
    r"""
    (?P<interval> \[[-+\d.,%\ ]+\] (?![(\[]) )
    | (?P<reference> &(?=\#?\w+;) | <(?=[a-zA-Z/!?]) | ~(?=~) | (?<=~)~ | \#(?=\#*\s*$) )
    | [`*|\[\]] | (?<!\w)_+ | _+(?!\w) | \\(?=[!-/:-@\[-`{-~]|$)
    """,
    re.VERBOSE,
)
LEADING = re.compile(r"(\d*)([#>+=-]|(?<=\d)[.)])")  # begins a heading, list or quote
IN_CODE = re.compile(r"[`<>&|\\]")  # ends a code span, or changes its look
SPAN = re.compile(r"(`[^`<>&|\\]+`)")
TAG = re.compile(r"<(?=[a-zA-Z/!?])")
ALT = re.compile(r"((?:\\\\)*)\\?([\[\]])")

LATEX = {character: f"\\{character}" for character in "#$%&_{}"} | {"[": "{[}", '"': "''"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}"}


class Markup(str):
    """Markdown written by the suite; `format` escapes the texts that it fills in, unless they are Markup."""

    def format(self, *args: object, **kwargs: object) -> Self:
        """Fill in values."""
        texts = [escape(value) if isinstance(value, str) else value for value in args]
        escaped = {name: escape(value) if isinstance(value, str) else value for name, value in kwargs.items()}
        return type(self)(super().format(*texts, **escaped))


def escape(text: str) -> Markup:
    """Escape a text and join its lines; Markup stays the same."""
    return text if isinstance(text, Markup) else Markup(ACTIVE.sub(_escaped, one_line(text)))


def _escaped(match: re.Match[str]) -> str:
    if match["interval"]:
        return match[0]
    return _reference(match[0]) if match["reference"] else "".join(f"\\{character}" for character in match[0])


def _reference(character: str) -> str:
    return f"&#{ord(character)};"


def paragraph(text: str) -> Markup:
    """Escape a text that begins a line."""
    if isinstance(text, Markup):
        return text
    line = one_line(text).lstrip()
    match = LEADING.match(line)
    return Markup(f"{match[1]}{_reference(match[2])}{escape(line[match.end() :])}") if match else escape(line)


def prose(text: str) -> Markup:
    """Escape a text as `paragraph` does, but keep its code spans."""
    first, *others = SPAN.split(one_line(text))
    return Markup("".join([paragraph(first), *(part if SPAN.fullmatch(part) else escape(part) for part in others)]))


def without_tags(text: str) -> str:
    """Escape the HTML tags of Markdown."""
    return TAG.sub("&#60;", text)


def code(text: str) -> Markup:
    """Write a text as a code span, or escaped if a code span cannot show it."""
    line = one_line(text)
    return escape(line) if IN_CODE.search(line) else Markup(f"`{line}`")


def alt(text: Markup) -> Markup:
    """Write Markdown as a picture's alternative text, without brackets, which would end it."""
    return Markup(ALT.sub(lambda match: f"{match[1]}{_reference(match[2])}", text))


class Latex(str):
    """LaTeX written by the suite."""


def latex(text: str) -> Latex:
    """Escape a text for LaTeX and join its lines; Latex stays the same."""
    if isinstance(text, Latex):
        return text
    escaped = "".join(LATEX.get(character, character) for character in one_line(text))
    return Latex(re.sub("-(?=-)", "-{}", escaped))  # two hyphens would be a dash
