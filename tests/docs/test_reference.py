"""Every name and every member that a page of the reference lists exists."""

import pkgutil
import re

import pytest
from pages import ROOT

TEXTS = {page.name: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))}
NAME = re.compile(r"^::: ([\w.]+)\n(?: +options: \{(.*)\}\n)?", re.M)
MEMBERS = re.compile(r"members: \[(.*?)\]")
LISTED = [
    (page, name, re.findall(r"\w+", "".join(MEMBERS.findall(options))))
    for page, text in TEXTS.items()
    for name, options in NAME.findall(text)
]


def test_every_name_of_a_page_is_read():
    together = "".join(TEXTS.values())
    assert len(LISTED) == together.count(":::") > 50
    assert sum(map(len, (members for *_, members in LISTED))) == len(
        re.findall(r"\w+", " ".join(MEMBERS.findall(together)))
    )


@pytest.mark.parametrize(("page", "name", "members"), LISTED)
def test_a_listed_name_and_its_members_exist(page, name, members):
    found = pkgutil.resolve_name(name)
    assert [member for member in members if not hasattr(found, member)] == [], f"{page}: {name}"
