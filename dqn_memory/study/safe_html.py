"""Convert Markdown to HTML with only the tags of a report: nothing can run, load or link to a script."""

import html
import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from envs.extras import extra

with extra("plots"):
    import markdown
    from markdown.treeprocessors import Treeprocessor

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
LISTS, TABLES = ("ul", "ol", "li"), ("table", "thead", "tbody", "tr", "th", "td")
TAGS = {"div", "p", "br", "hr", "blockquote", "pre", "code", "em", "strong", "span", *HEADINGS, *LISTS, *TABLES}
ALLOWED = {"a": ("href",), "th": ("align",), "td": ("align",), **dict.fromkeys(HEADINGS, ("id",))}  # attributes by tag
LINK = re.compile(r"https?://[^\s\\]+|\#[\w.-]*|(?![/\\])[^\s:\\]+", re.I)  # to the web, the page, or a file beside it
CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f]")


class Cleaner(Treeprocessor):
    """Keeps allowed tags and attributes, and turns others into text; `pictures` are base64 PNG files by their link."""

    def __init__(self, reader: markdown.Markdown, pictures: Mapping[str, str]) -> None:
        super().__init__(reader)
        self.pictures = pictures

    def run(self, root: Element) -> None:
        """Clean a page."""
        for element in root.iter():
            tag, given = element.tag, dict(element.attrib)
            element.attrib.clear()
            if tag == "img" and (data := self.pictures.get(given.get("src", ""))) is not None:
                element.attrib.update(src=f"data:image/png;base64,{data}", alt=given.get("alt", ""))
            elif tag == "a" and is_safe_link(given.get("href", "")):
                element.set("href", given["href"])
            elif tag in TAGS:
                element.attrib.update({name: value for name, value in given.items() if name in ALLOWED.get(tag, ())})
            else:
                element.tag, element.text = "span", given.get("alt", "") if tag == "img" else element.text


def is_safe_link(link: str) -> bool:
    """Tell whether a link is http, https or relative, also after a browser unescapes it."""
    return all(LINK.fullmatch(each) and not CONTROL.search(each) for each in (link, html.unescape(link)))


def to_html(text: str, pictures: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Convert a text with these pictures, and list its headings of the second level by their id."""
    contents = {"toc_depth": "2-2", "marker": ""}
    reader: Any = markdown.Markdown(
        extensions=["tables", "toc"], extension_configs={"tables": {"use_align_attribute": True}, "toc": contents}
    )
    reader.preprocessors.deregister("html_block")
    reader.inlinePatterns.deregister("html")
    reader.treeprocessors.register(Cleaner(reader, pictures), "cleaner", -1)
    body: str = reader.convert(text)
    return body, {each["id"]: html.unescape(each["name"]) for each in reader.toc_tokens}
