"""One benchmark's page in sections: the tables of a CPU, those of an accelerator, those of whole runs.

A section is refreshed alone; the others stay as they are, each with the machine and revision that it was measured on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dqn_memory.analysis.tables import markdown_page
from dqn_memory.benchmark_tables import Table
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import disk_errors, write_atomic

Section = dict[str, Any]  # machine: facts by name; tables: list of title, note, rows


def put_section(
    folder: Path, name: str, title: str, section: str, facts: Mapping[str, object], tables: Sequence[Table]
) -> None:
    """Write one section of `name`.md and `name`.json in `folder`; a UserError says what the disk refused."""
    sections = read_sections(folder / f"{name}.json")
    sections[section] = {"machine": dict(facts), "tables": [asdict(table) for table in tables]}
    sections = dict(sorted(sections.items()))  # the same page in whatever order it was made
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{name}.json", (json.dumps({"sections": sections}, indent=1) + "\n").encode())
    write_atomic(folder / f"{name}.md", markdown(title, sections).encode())


def markdown(title: str, sections: Mapping[str, Section]) -> str:
    """The page of all sections, one below the other."""
    return "\n".join(_page(f"{title}: {key}", entry) for key, entry in sections.items())


def read_sections(path: Path) -> dict[str, Section]:
    """Sections by name; none where there is no file yet. A page of before there were sections is one of them.

    Raises:
        UserError: the file is something else.
    """
    if not path.exists():
        return {}
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
        if "tables" in page:
            return {"cuda" if page["machine"]["accelerator"] else "cpu": page}
        return {
            str(key): {"machine": dict(s["machine"]), "tables": list(s["tables"])}
            for key, s in page["sections"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no benchmark's page; move it away or choose another --folder") from None


def _page(title: str, section: Section) -> str:
    return markdown_page(title, section["machine"], [Table(**table) for table in section["tables"]])
