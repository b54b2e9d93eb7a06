"""Report the results of a study so far: `python -m dqn_memory.study.report smoke`.

The report is report.md, one self-contained report.html and the pictures, in STUDY/report (of an archive in
runs/reports/NAME). Runs that are unfinished, failed, missing or damaged are named and left out. Folders of single runs
are reported together as one study. --archive FOLDER keeps the raw numbers there as a few tables, with a report of few
pictures. The same command makes the whole report from an archive, and `--all results` remakes that of every archive.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from dqn_memory.runs.errors import UserError, one_line_errors, require
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.settings import Repeatable
from dqn_memory.study.archive import Source, compact, find_study, is_archive, open_source, write_archive
from dqn_memory.study.collect import PREFERRED, Data, collect, kept_record, meaning
from dqn_memory.study.gather import gather, is_run
from dqn_memory.study.page import WORDS, Section, check_folder, counted, write_report
from dqn_memory.study.sections import learned, runs, scores
from dqn_memory.study.store import INDEX
from dqn_memory.study.template import filled_pages
from envs.baselines import known as baselines
from envs.cli import load_plugins
from envs.files import check_inside, write_atomic
from envs.markup import Markup, prose
from envs.tables import remake_page
from envs.terminal import say

REPORTS = "runs/reports"  # of archives
FEW = 4  # pictures of an archive's report


@dataclass(frozen=True)
class Args:
    """Report the results of a study so far."""

    study: tyro.conf.Positional[tuple[Path, ...]] = ()
    """A study's folder, its name where it is in runs/studies, or the TOML file that study.run was given, if without
    --folder; or an archive. Or folders of finished runs, and archives to which they are added."""
    write: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Where the report goes (None: the folder `report` in the study's own, or runs/reports/NAME for an archive); an
    earlier report there is replaced, and nothing else."""
    archive: Path | None = None
    """Keep the raw numbers of the finished runs here as tables, such as results/studies/smoke, with a report of few
    pictures; an archive of the same study that is there is replaced."""
    title: str = ""
    """Heading of the report, where runs are given (empty: their environments' names)."""
    all: Path | None = None
    """Make the reports of all archives below this folder again, and the pages of all other tables there."""
    returns: bool = False
    """Read the runs by their returns, also where the environment reports success."""
    attention: bool = True
    """Play an episode with one run of each environment and architecture and show what it attends to."""
    plugin: Repeatable = ()
    """Module that may be imported as runs name it; of runs that you started yourself none need be given."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Make reports; exit with code 1 if files of the study are damaged or missing."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.report")
    require(bool(args.all) != bool(args.study), "give a study, the folders of runs, or --all FOLDER")
    load_plugins(args.plugin)
    if args.all is not None:
        bad = remake_all(args.all)
    else:
        source = open_studies(args)
        returns = args.returns or source.shown.get("returns", False)
        shown = {"attention": args.attention, "published": False, "returns": returns}  # a key of archives, without use
        data = collect(replace(source, shown=shown))
        if args.archive is not None:
            archive_runs(data, args.archive)
            bad = unsound(data) + write_pages(collect(open_source(args.archive)), args.archive, FEW)
        elif len(args.study) > 1 and args.write is None:
            raise UserError("runs of several folders need a place for their report: give --write or --archive")
        else:
            own = Path(REPORTS, source.folder.resolve().name) if is_archive(source.folder) else source.folder / "report"
            if args.write is None:
                check_inside(own.parent, own.name)
            bad = write_pages(data, args.write or own)
    if bad:
        raise SystemExit(f"error: {len(bad)} of the study's runs or files are damaged or missing, see above")


def open_studies(args: Args) -> Source:
    """Open the study, the archive or the runs that the command line names."""
    if len(args.study) == 1 and not is_run(args.study[0]):
        return open_source(find_study(args.study[0]))
    return gather(args.study, args.archive.name if args.archive is not None else "runs", args.title)


def archive_runs(data: Data, folder: Path) -> None:
    """Write an archive of the finished runs, and of all runs that were read from another archive."""
    source = data.source
    maps = learned.archived_maps(data) if source.shown.get("attention") else {}
    records = {name: compact(record) for name, record in (source.recorded or {}).items()}
    records |= {entry.run.name: kept_record(entry, maps.get(entry.run.name)) for entry in data.entries}
    write_archive(source, records, folder)
    say(f"{folder}: {len(records)} runs kept")


def remake_all(folder: Path) -> list[str]:
    """Remake all reports and pages below a folder of results from their tables; name damaged runs."""
    archives = [path.parent for path in sorted(folder.rglob(INDEX))]
    bad = [name for archive in archives for name in write_pages(collect(open_source(archive)), archive, FEW)]
    made = {path.with_suffix(".md"): remake_page(path) for path in sorted(folder.rglob("*.json"))}
    pages = {path: text for path, text in made.items() if text is not None}
    known = folder / "baselines.json"
    if known.is_file():
        rows = baselines.read(known)
        pages |= {known.with_suffix(".md"): baselines.markdown(rows), known.with_suffix(".csv"): baselines.as_csv(rows)}
    for path, content in ({path: text.encode() for path, text in pages.items()} | filled_pages(folder)).items():
        write_atomic(path, content)
        say(f"wrote {path}")
    return bad


def write_pages(data: Data, folder: Path, few: int | None = None) -> list[str]:
    """Write a report and print a summary; name damaged runs."""
    check_folder(folder)
    written = write_report(folder, data.source.title, introduction(data), all_sections(data), few)
    say(f"{data.source.title}: {len(data.entries)} of {len(data.source.runs)} runs are in the report")
    for names, why in runs.left_out_rows(data.left_out):
        say(f"left out: {names}: {why}", file=sys.stderr)
    say("\n".join(f"wrote {path}" for path in written))
    return unsound(data)


def unsound(data: Data) -> list[str]:
    """Name finished runs that could not be read, and the study itself if it is damaged."""
    finished = {run.name for run in data.source.runs if run.state == "finished"} | {"the study"}
    return [name for name, _ in data.left_out if name in finished]


def introduction(data: Data) -> list[str]:
    """Write the paragraphs below the title: the question, the number of runs, and the commands.

    They describe the definition that is kept with the runs; a shipped one may be newer.
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
    """Make all sections that have content or a reason why they have none."""
    makers = (
        runs.left_out_section,
        runs.uneven_section,
        scores.aggregate_section,
        scores.table_section,
        scores.solved_section,
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
