"""Report what a study shows: `python -m dqn_memory.study.report smoke`, while it runs or after.

Writes report.md, one self-contained report.html and every picture into STUDY/report. Runs that are unfinished, failed,
missing or damaged are named and left out. Folders of single runs are reported together as one study. With --archive
FOLDER the raw numbers are kept there as a few tables, with a report of few pictures; the same command makes the whole
report from them, and `--all results` that of every archive again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.kinds import script_of
from dqn_memory.study.archive import Source, find_study, open_source, write_archive
from dqn_memory.study.collect import HEADLINE, PREFERRED, Data, collect, kept_record, meaning
from dqn_memory.study.gather import gather, is_run
from dqn_memory.study.page import MADE, Section, check_folder, counted, page_text, write_report
from dqn_memory.study.papers.verdicts import claims_page
from dqn_memory.study.sections import attention, environments, priors, runs, scores
from dqn_memory.study.sections.published import published_section
from dqn_memory.study.store import INDEX
from envs.baselines import known as baselines
from envs.files import write_atomic
from envs.tables import remake_page

FEW = 6  # pictures of an archive's report
CLAIMS = "python -m dqn_memory.study.claims"


@dataclass(frozen=True)
class Args:
    """Report what a study has shown so far."""

    study: tyro.conf.Positional[tuple[Path, ...]] = ()
    """A study's folder, its name where it is in runs/studies, or the TOML file that study.run was given; or an archive.
    Or folders of finished runs, and archives to which they are added."""
    folder: Path | None = None
    """Where the report goes (None: the folder `report` in the study's own); an earlier report there is replaced, and
    nothing else."""
    archive: Path | None = None
    """Keep the raw numbers of the finished runs here as tables, such as results/studies/smoke, with a report of few
    pictures; an archive of the same study that is there is replaced."""
    title: str = ""
    """Heading of the report, where runs are given (empty: their environments' names)."""
    all: Path | None = None
    """Make the reports of all archives below this folder again, and the pages of all other tables there."""
    published: bool = False
    """Set the published scores beside ours, for environments and architectures that both have, and print them; list
    where the papers' own figures disagree with their tables."""
    returns: bool = False
    """Read the runs by their returns, also where the environment reports success."""
    attention: bool = True
    """Play an episode with one run of each environment and architecture and show what it attends to."""


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read, measure, draw, write; exit code 1 where files of the study are damaged or missing."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.study.report")
    if bool(args.all) == bool(args.study):
        raise UserError("give a study, the folders of runs, or --all FOLDER")
    if args.all is not None:
        bad = remake_all(args.all)
    else:
        source = find(args)
        shown = {"attention": args.attention, "published": args.published, "returns": args.returns}
        data = collect(replace(source, shown=shown | ({"returns": True} if source.shown.get("returns") else {})))
        bad = unsound(data)
        if args.archive is not None:
            archive(data, args.archive)
            bad += remake(args.archive)
        else:
            write(data, args.folder or report_folder(args, source))
    if bad:
        raise SystemExit(f"error: {len(bad)} of the study's runs or files are damaged or missing, see above")


def find(args: Args) -> Source:
    """Open the study or the archive, or gather the runs, that the command line names."""
    if len(args.study) == 1 and not is_run(args.study[0]):
        return open_source(find_study(args.study[0]))
    name = args.archive.name if args.archive is not None else "runs"
    return gather(args.study, name, args.title)


def report_folder(args: Args, source: Source) -> Path:
    """Choose where a report goes that is given no folder."""
    if len(args.study) > 1:
        raise UserError("runs of several folders need a place for their report: give --folder or --archive")
    return source.folder / "report"


def archive(data: Data, folder: Path) -> None:
    """Keep a study's finished runs as tables; runs that only an archive has stay, finished or not."""
    source = data.source
    maps = attention.archived(data) if source.shown.get("attention") else {}
    records = dict(source.recorded or {})
    records |= {entry.run.name: kept_record(entry, maps.get(entry.run.name)) for entry in data.entries}
    write_archive(source, records, folder)
    print(f"{folder}: {len(records)} runs kept")


def remake_all(folder: Path) -> list[str]:
    """Make everything that is made from tables in a folder of results again; return what is damaged."""
    bad = [name for path in sorted(folder.rglob(INDEX)) for name in remake(path.parent)]
    made = {path.with_suffix(".md"): remake_page(path) for path in sorted(folder.rglob("*.json"))}
    pages = {path: text for path, text in made.items() if text is not None}
    known = folder / "baselines.json"
    if known.is_file():
        rows = baselines.read(known)
        pages |= {known.with_suffix(".md"): baselines.markdown(rows), known.with_suffix(".csv"): baselines.as_csv(rows)}
    if (folder / "published").is_dir():
        pages[folder / "claims.md"] = claims_page(CLAIMS, folder / "published")
    for path, text in pages.items():
        write_atomic(path, text.encode())
        print(f"wrote {path}")
    return bad


def remake(folder: Path) -> list[str]:
    """Make an archive's report and its leading pictures from the tables; return what is damaged."""
    data = collect(open_source(folder))
    write(data, folder, FEW)
    return unsound(data)


def write(data: Data, folder: Path, few: int | None = None) -> None:
    """Write a report and say what is in it."""
    check_folder(folder)
    parts = sections(data)
    written = write_report(folder, data.source.title, lead(data), parts, few)
    if data.source.shown.get("published"):
        print(page_text("", [], [published_section(data)]).strip("# \n"))
    print(f"{data.source.title}: {len(data.entries)} of {len(data.source.runs)} runs are in the report")
    for names, why in runs.left_out_rows(data.left_out):
        print(f"left out: {names}: {why}", file=sys.stderr)
    print("\n".join(f"wrote {path}" for path in written))


def unsound(data: Data) -> list[str]:
    """Name what is not merely unfinished: finished runs that could not be used."""
    finished = {run.name for run in data.source.runs if run.state == "finished"} | {"the study"}
    return [name for name, _ in data.left_out if name in finished]


def lead(data: Data) -> list[str]:
    """Say what the study asks, and how much of it is here."""
    source = data.source
    number = Counter(run.state for run in source.runs)
    states = ", ".join(f"{number[state]} {state}" for state in sorted(number))
    cut = " This is the study's smoke-size cut, too small to show anything but that it works." if source.smoke else ""
    seeds = len({run.seed for run in source.runs})
    about = [source.about + cut] if source.about + cut else []
    return [
        *about,
        f"{counted(len(source.runs), 'run')} of `{script_of(source.kind)}` ({states}): "
        f"{counted(len(source.worlds), 'environment')}, {len(data.series)} series, {counted(seeds, 'seed')}; "
        f"{len(data.entries)} are in this report. Where one number stands for a run it is the {HEADLINE} "
        f"({meaning(data, PREFERRED)}). All "
        f"but the section {runs.COST} depends on what the runs learned alone, not on when or where.",
        f"{MADE}{_commands(data)}.",
    ]


def _commands(data: Data) -> str:
    """Say what trained the runs, by the definition kept with them (a shipped one may be newer), and what wrote this."""
    cut = " --smoke" if data.source.smoke else ""
    return (
        f"run FOLDER/study.toml{cut} --folder FOLDER`, then `python -m dqn_memory.study.report FOLDER`, of the study's "
        "own folder; an archive goes on in a new one, with `--folder NEW --take-from FOLDER`"
    )


def sections(data: Data) -> list[Section]:
    """Write all sections; those that cannot be filled say why."""
    shown = data.source.shown
    found: list[Any] = [
        runs.left_out_section(data) if data.left_out else None,
        runs.uneven_section(data),
        scores.aggregate_section(data),
        scores.table_section(data),
        scores.memory_section(data),
        scores.curves_section(data),
        scores.profile_section(data),
        scores.improvement_section(data),
        scores.parameters_section(data),
        published_section(data) if shown.get("published") else None,
        priors.priors_section(data),
        priors.spans_section(data),
        attention.attention_section(data, shown.get("attention", False)),
    ]
    if data.source.kind == "q_network":
        found += [environments.hallucination_section(data), environments.properties_section(data)]
    return [
        section
        for section in (*found, runs.runs_section(data), runs.losses_section(data), runs.cost_section(data))
        if section is not None
    ]


if __name__ == "__main__":
    main()
