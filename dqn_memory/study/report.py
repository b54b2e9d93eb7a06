"""Report the results of a study so far: `python -m dqn_memory.study.report smoke`.

The report is written into STUDY/report: report.md and every picture. The report of an
archive goes into runs/reports/NAME, because the archive's folder must not change. Runs that are unfinished, failed,
missing or damaged are named and left out. --archive FOLDER writes the numbers there as a few tables, with a report of
few pictures; a report of that archive has all pictures again. `--all results` remakes the report of each archive there.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from dqn_memory.runs.errors import one_line_errors, require
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.settings import Repeatable
from dqn_memory.study.archive import find_study, is_archive, open_source, write_archive
from dqn_memory.study.collect import PREFERRED, Data, collect, kept_record, meaning
from dqn_memory.study.page import WORDS, Section, check_folder, counted, write_report
from dqn_memory.study.run_record import compact
from dqn_memory.study.sections import learned, lines, mixtures, runs, scores
from dqn_memory.study.store import INDEX
from dqn_memory.study.template import filled_pages
from envs.baselines import reference as baselines
from envs.cli import load_plugins
from envs.console import say
from envs.files import check_inside, write_atomic
from envs.markup import Markup, prose
from envs.tables import remake_page

REPORTS = "runs/reports"  # folder for the reports of archives
FEW = 3  # max pictures in an archive's own folder


@dataclass(frozen=True)
class Args:
    """Report the results of a study so far."""

    study: tyro.conf.Positional[Path | None] = None
    """A study's folder, its name in runs/studies, or its TOML file; or the folder of an archive."""
    write: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder of the report (None: `report` in the study's folder; for an archive runs/reports/NAME)."""
    archive: Path | None = None
    """Write the finished runs here as tables, with a report of few pictures; an older archive is replaced."""
    all: Path | None = None
    """Remake the reports of all archives below this folder, and the pages of all other tables there."""
    returns: bool = False
    """Read returns, even if the environment reports success."""
    figure_width: float | None = None
    """Inches of a paper's figures: also write these as PDF, their numbers as CSV, and tables for LaTeX."""
    attention: bool = True
    """Play an episode with one run of each environment and architecture and show its attention."""
    plugin: Repeatable = ()
    """Import this module, which the runs name (not needed for runs of your own)."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Write the reports; exit code 1 if files of the study are damaged or missing."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.report")
    require((args.all is None) != (args.study is None), "give a study, or --all FOLDER")
    if args.figure_width is not None:
        require(args.all is args.archive is None, "--figure-width is for the report of one study, without --archive")
    load_plugins(args.plugin)
    if args.all is not None:
        bad = remake_all(args.all)
    elif args.study is not None:
        source = open_source(find_study(args.study))
        returns = args.returns or source.shown.get("returns", False)
        shown = {"attention": args.attention, "published": False, "returns": returns}  # the format has "published"
        data = collect(replace(source, shown=shown))
        if args.archive is not None:
            archive_runs(data, args.archive)
            bad = unsound(data) + write_pages(collect(open_source(args.archive)), args.archive, FEW)
        else:
            own = Path(REPORTS, source.folder.resolve().name) if is_archive(source.folder) else source.folder / "report"
            if args.write is None:
                check_inside(own.parent, own.name)
            bad = write_pages(data, args.write or own, figure_width=args.figure_width)
    if bad:
        raise SystemExit(f"error: {len(bad)} of the study's runs or files are damaged or missing, see above")


def archive_runs(data: Data, folder: Path) -> None:
    """Write an archive of a study's finished runs, or of all runs of another archive."""
    source = data.source
    maps = learned.archived_maps(data) if source.shown.get("attention") else {}
    records = {name: compact(record) for name, record in (source.recorded or {}).items()}
    records |= {entry.run.name: kept_record(entry, maps.get(entry.run.name)) for entry in data.entries}
    write_archive(source, records, folder)
    say(f"{folder}: {len(records)} runs archived")


def remake_all(folder: Path) -> list[str]:
    """Write all pages in a folder of results from their tables; return the names of damaged runs."""
    archives = [path.parent for path in sorted(folder.rglob(INDEX))]
    bad = [name for archive in archives for name in write_pages(collect(open_source(archive)), archive, FEW)]
    made = {path.with_suffix(".md"): remake_page(path) for path in sorted(folder.rglob("*.json"))}
    pages = {path: text for path, text in made.items() if text is not None}
    known = folder / "baselines.json"
    if known.is_file():
        pages[known.with_suffix(".md")] = baselines.references_page(baselines.read_references(known))
    for path, content in ({path: text.encode() for path, text in pages.items()} | filled_pages(folder)).items():
        write_atomic(path, content)
        say(f"wrote {path}")
    return bad


def write_pages(data: Data, folder: Path, few: int | None = None, figure_width: float | None = None) -> list[str]:
    """Write a report and print its content; return the names of damaged runs."""
    check_folder(folder, figure_width)
    written = write_report(folder, data.source.title, introduction(data), all_sections(data), few, figure_width)
    say(f"{data.source.title}: {len(data.entries)} of {len(data.source.runs)} runs are in the report")
    for names, why in runs.left_out_rows(data.left_out):
        say(f"left out: {names}: {why}", file=sys.stderr)
    say(f"wrote {written}")
    return unsound(data)


def unsound(data: Data) -> list[str]:
    """List the finished runs that are damaged."""
    finished = {run.name for run in data.source.runs if run.state == "finished"} | {"the study"}
    return [name for name, _ in data.left_out if name in finished]


def introduction(data: Data) -> list[str]:
    """Write the first paragraphs: the study's question, the number of its runs, and the commands that made them.

    The definition is the one beside the runs, because a shipped one may be newer.
    """
    source, words = data.source, WORDS["lead"]
    number = Counter(run.state for run in source.runs)
    summary = words["runs"].format(
        runs=counted(len(source.runs), "run"), script=script_of(source.kind), series=len(data.series),
        states=", ".join(f"{number[state]} {state}" for state in sorted(number)),
        environments=counted(len(source.worlds), "environment"), entries=len(data.entries),
        seeds=counted(len({run.seed for run in source.runs}), "seed"), meaning=meaning(data, PREFERRED),
    )  # fmt: skip
    about = Markup(" ".join(filter(None, [prose(source.about), words["cut"] if source.smoke else ""])))
    return [*filter(None, [about]), summary, words["made"].format(smoke=" --smoke" if source.smoke else "")]


def all_sections(data: Data) -> list[Section]:
    """Make all sections; an empty one gives the reason."""
    makers = (
        runs.left_out_section,
        runs.uneven_section,
        scores.aggregate_section,
        scores.table_section,
        lines.lines_section,
        scores.solved_section,
        mixtures.mixtures_section,
        scores.memory_section,
        scores.curves_section,
        scores.profile_section,
        scores.improvement_section,
        learned.priors_section,
        learned.spans_section,
        learned.attention_section,
        learned.moved_section,
        scores.phantoms_section,
        runs.runs_section,
        runs.losses_section,
        scores.parameters_section,
        runs.cost_section,
    )
    return [section for make in makers if (section := make(data)) is not None]


if __name__ == "__main__":
    main()
