"""What a study shows: `python -m dqn_memory.study.report smoke`, while it runs or after.

Writes report.md, one self-contained report.html and every picture as PNG and SVG into STUDY/report. Runs that are
unfinished, failed, missing or damaged are named and left out. With --record FOLDER it also keeps the raw numbers there,
from which the same command makes the same report: `python -m dqn_memory.study.report FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.files import write_atomic
from dqn_memory.study.place import place_of
from dqn_memory.study.report_data import Data, collect
from dqn_memory.study.report_folder import CLAIMS, check_folder
from dqn_memory.study.report_page import markdown, write_report
from dqn_memory.study.report_published import claims_page, published_section
from dqn_memory.study.report_record import record
from dqn_memory.study.report_sections import lead, left_out_rows, sections
from dqn_memory.study.report_source import open_source


@dataclass(frozen=True)
class Args:
    """Report what a study has shown so far."""

    study: tyro.conf.Positional[Path]
    """A study's folder, its name where it is in runs/studies, or the TOML file that study.run was given; or a record of
    one."""
    folder: Path | None = None
    """Where the report goes (None: the folder `report` in the study's own); an earlier report there is replaced, and
    nothing else."""
    record: Path | None = None
    """Keep the raw numbers of the finished runs here, such as results/studies/smoke; a record of the same study that is
    there is replaced."""
    published: bool = False
    """Set the published scores beside ours, for worlds and architectures that both have, and print them; list where the
    papers' own figures disagree with their tables, and write all of them to claims.md beside the report."""
    attention: bool = True
    """Play an episode with one run of each world and architecture and show what it attends to."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read, measure, draw, write; exit code 1 where files of the study are damaged or missing."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.report")
    study = place_of(args.study)
    report = args.folder or study / "report"
    source = open_source(study)
    check_folder(report, args.published)
    data = collect(source)
    if args.record is not None:
        record(data, args.record, args.attention)
        print(f"{args.record}: {len(data.entries)} runs kept")
    parts = sections(data, args.attention, args.published)
    written = write_report(report, data.source.title, lead(data), parts)
    if args.published:
        write_atomic(report / CLAIMS, claims_page().encode())
        print(markdown("", [], [published_section(data)]).strip("# \n"))
    say(data)
    print("\n".join(f"wrote {path}" for path in written))
    if bad := unsound(data):
        raise SystemExit(f"error: {len(bad)} of the study's runs or files are damaged or missing, see above")


def unsound(data: Data) -> list[str]:
    """What is not merely unfinished: finished runs that could not be used."""
    finished = {run.name for run in data.source.runs if run.state == "finished"} | {"the study"}
    return [name for name, _ in data.left_out if name in finished]


def say(data: Data) -> None:
    """Counts, and what is left out, a line for runs that differ in their seed alone."""
    print(f"{data.source.title}: {len(data.entries)} of {len(data.source.runs)} runs are in the report")
    for names, why in left_out_rows(data.left_out):
        print(f"left out: {names}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
