"""Fill the placeholders of a page with numbers of the archives beside it.

`study.report --all results` makes `README.md` from `README.template.md`. A placeholder is a word with its arguments.
Quotes enclose a name with blanks, and semicolons separate names. The name of an environment has no family or version.

    {{mean memories Hallway gru}}                mean over seeds of the final score
    {{mean memories Hallway gru area}}           the mean of another number of the summary, or of a metric
    {{interval memories Hallway gru}}            the mean with its 95 % bootstrap interval
    {{lead memories CarFlag;Hallway gru mlp}}    lead of the first series over the second, with its 95 % interval
    {{won memories Hallway;CarFlag gru 0.95}}    number of runs whose final score reaches a level
    {{times memories attention gru}}             processor seconds per step, divided by those of another series
    {{runs memories}} {{seeds memories}}         number of finished runs, and of seeds with a finished run
    {{scores memories "Hallway=no cue"}}         table of mean scores by task; an arrow: significantly below the best
    {{reached memories "Hallway=no cue"}}        table of the number of runs that end with each task solved
    {{costs memories}}                           table of the parameters, time and bytes of each series
    {{questions}}                                table of verdicts on the claims of questions.toml
    {{figure memories}}                          picture of the scores, and of their mean over each cost
"""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path

import numpy as np

from dqn_memory.analysis.plots import png
from dqn_memory.runs.errors import UserError, check_known, require
from dqn_memory.runs.toml import from_toml
from dqn_memory.study import statistics
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import COSTS, PREFERRED, Data, collect, million_seconds, sizes_of
from dqn_memory.study.page import counted
from dqn_memory.study.plots import answer_figure
from dqn_memory.study.sections import scores
from dqn_memory.study.statistics import Contrast, Estimate, interval, plain_name, runs_reaching, short_name
from dqn_memory.study.store import INDEX
from envs.files import read_text
from envs.tables import Table, format_value

TEMPLATE, QUESTIONS = ".template.md", "questions.toml"
FEW_WORLDS = 2  # max environments of a question whose names a table shows
PLACEHOLDER = re.compile(r"\{\{([^{}]+)\}\}")
NOTE = "<!-- Made from {name} by `make results`: change that file. -->\n"


@dataclass(frozen=True)
class Question:
    """Claims that are tested together: the first series of a claim leads the second.

    `least` is the smallest lead that would matter. The table shows the first `shown` claims (None: all).
    """

    asks: str = ""
    archive: str = ""
    worlds: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    number: str = PREFERRED
    least: float = 0.05
    shown: int | None = None


@dataclass(frozen=True)
class QuestionFile:
    """The content of `questions.toml`."""

    question: tuple[Question, ...] = ()


class Archives:
    """The archives below a folder, by the names of their folders; `pictures` are the pictures of the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folders = {path.parent.name: path.parent for path in sorted(folder.rglob(INDEX))}
        self.read: dict[str, Data] = {}
        self.pictures: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> Data:
        if name not in self.read:
            self.read[name] = collect(open_source(self.folders[check_known("archive", name, self.folders)]))
        return self.read[name]

    def world(self, archive: str, name: str) -> str:
        """Give an environment's label by its short name."""
        labels = {short_name(label): label for label in self[archive].source.worlds}
        return labels[check_known("environment", name, labels)]

    def notes(self, archive: str, words: str) -> dict[str, str]:
        """Read notes such as "CarFlag=30;Hallway=60" by the labels of the environments."""
        pairs = (word.partition("=") for word in words.split(";") if word)
        return {self.world(archive, name): note for name, _, note in pairs}

    def values(self, archive: str, world: str, series: str, number: str = PREFERRED) -> list[float]:
        """Give a number of each seed's summary, or the last value of a metric."""
        data, label = self[archive], self.world(archive, world)
        runs = data.of(label, check_known("series", series, data.series))
        require(runs, f"{archive}: {series} has no finished run in {world}")
        if "/" in number:
            return [math.nan if (value := run.last(number)) is None else value for run in runs]
        check_known("number", number, runs[0].summary)
        return [run.number(number) for run in runs]

    def sample(self, archive: str, world: str, series: str, number: str) -> list[float]:
        """Give the values of at least two seeds for a test; "series@environment" names another environment."""
        name, _, elsewhere = series.partition("@")
        found = self.values(archive, elsewhere or world, name, number)
        if len(found) < 2:
            raise UserError(f"{archive}: {name} has one seed in {elsewhere or world}; a lead needs two")
        if np.isnan(found).any():
            raise UserError(f"{archive}: a run of {name} in {elsewhere or world} has no {number}")
        return found


# ---- numbers ---------------------------------------------------------------------------------------------------------
def mean(archives: Archives, archive: str, world: str, series: str, number: str = PREFERRED) -> str:
    """Average over seeds."""
    return f"{np.mean(archives.values(archive, world, series, number)):.2f}"


def with_interval(archives: Archives, archive: str, world: str, series: str, number: str = PREFERRED) -> str:
    """Average over seeds, with the bootstrap interval."""
    return f"{interval(archives.values(archive, world, series, number)):.2f}"


def lead(archives: Archives, archive: str, worlds: str, series: str, rival: str, number: str = PREFERRED) -> str:
    """Average the lead of one series over another over environments."""
    claim = series, rival
    return show_lead(lead_of(archives, archive, worlds.split(";"), claim, number))


def lead_of(archives: Archives, archive: str, worlds: Sequence[str], claim: tuple[str, str], number: str) -> Contrast:
    """Compare the two series of a claim in several environments, or in one if it has a "series@environment"."""
    if len(worlds) > 1 and any("@" in series for series in claim):
        raise UserError(f"{' above '.join(claim)}: a series of another environment needs a question of one environment")
    return statistics.contrast(
        [[archives.sample(archive, world, series, number) for series in claim] for world in worlds]
    )


def show_lead(lead: Contrast) -> str:
    """Show a lead with its 95 % interval, if it has one."""
    margin = lead.margin() if math.isfinite(lead.margin()) else math.nan
    return f"{Estimate(lead.effect, lead.effect - margin, lead.effect + margin):+.2f}"


def count_won(archives: Archives, archive: str, worlds: str, series: str, level: str) -> str:
    """Count the runs of a series in several environments whose final score reaches a level."""
    found = [score for world in worlds.split(";") for score in archives.values(archive, world, series)]
    return runs_reaching(found, float(level))


def times(archives: Archives, archive: str, series: str, rival: str) -> str:
    """Divide the processor seconds per step of a series by those of another one."""
    data = archives[archive]
    ours, theirs = (million_seconds(data.of(series=check_known("series", n, data.series))) for n in (series, rival))
    return f"{ours / theirs:.1f}"


def runs(archives: Archives, archive: str) -> str:
    """Count finished runs."""
    data = archives[archive]
    return f"{len(data.entries)} of {len(data.source.runs)}"


def seeds(archives: Archives, archive: str) -> str:
    """Count the seeds that have a finished run: 4 of 10, or 2 to 4 of 10 if environments or series differ."""
    data = archives[archive]
    counts = [len(runs) for _, _, runs in data.groups()] or [0]
    finished = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{finished} of {len({run.seed for run in data.source.runs})}"


# ---- tables ----------------------------------------------------------------------------------------------------------
def scores_table(archives: Archives, archive: str, tasks: str = "") -> str:
    """Tabulate final scores; an arrow marks a mean that is significantly below the best mean of its row."""

    def score(data: Data, world: str, name: str) -> str:
        row = {other: list(data.scores(world, other).values()) for other in data.series if data.of(world, other)}
        mark = " ↓" if name in statistics.below_best(row) else ""
        return f"{np.mean(row[name]):.2f}{mark}" if name in row else ""

    return _by_environment(archives, archive, score, tasks, scaled=True)


def reached(archives: Archives, archive: str, tasks: str = "") -> str:
    """Tabulate the number of runs of each series whose final score counts as solved."""
    return _by_environment(archives, archive, scores.runs_solved, tasks)


def _by_environment(
    archives: Archives, archive: str, cell: Callable[[Data, str, str], str], tasks: str = "", scaled: bool = False
) -> str:
    """Tabulate environments down and series across; `tasks` describe the task of each environment."""
    data, rows, examples = archives[archive], [], archives.notes(archive, tasks)
    for world in examples or data.worlds:
        row = {"a task with": examples[world], "environment": plain_name(world)} if tasks else {"": plain_name(world)}
        if scaled:
            scale = data.scale(world)
            row |= {"random play": f"{scale.zero:.2f}", "best known": f"{scale.one:.2f}"} if scale else {}
        rows.append(row | {name: cell(data, world, name) for name in data.series})
    return Table.from_records(rows).markdown()


def costs(archives: Archives, archive: str) -> str:
    """Tabulate the costs of each series."""
    data, rows = archives[archive], []
    for name in data.series:
        if runs := data.of(series=name):
            row = {"": name, "parameters": sizes_of(runs)}
            rows.append(row | {label: format_value(cost(runs), ",.0f") for label, cost in COSTS.items()})
    return Table.from_records(rows).markdown()


def verdicts_table(archives: Archives) -> str:
    """Tabulate each claim's lead, averaged over the environments of its question, and its verdict."""
    path = archives.folder / QUESTIONS
    listed = from_toml(QuestionFile, read_text(path, "the questions in "), str(path)).question
    rows = (row for question in listed for row in _verdicts(question, archives)[: question.shown])
    return Table.from_records(rows).markdown()


def _verdicts(question: Question, archives: Archives) -> list[dict[str, str]]:
    leads = [lead_of(archives, question.archive, question.worlds, each, question.number) for each in question.claims]
    corrected, count = statistics.holm([lead.p for lead in leads]), len(leads)
    worlds = question.worlds
    place = ", ".join(worlds) if len(worlds) <= FEW_WORLDS else counted(len(worlds), "environment")
    rows: list[dict[str, str]] = []
    for (first, second), lead, p in zip(question.claims, leads, corrected, strict=True):
        detectable = lead.detectable(count)
        rows.append({
            "question": "" if rows else question.asks, "claim": f"{first} above {second}", "by": question.number,
            "in": place, "lead": show_lead(lead), "p": "< 0.001" if p < 0.0005 else f"{p:.2g}",
            "detectable": f"{detectable:.2f}" if detectable else "-",
            "verdict": lead.verdict(p, question.least, count),
        })  # fmt: skip
    return rows


# ---- pictures --------------------------------------------------------------------------------------------------------
def figure(archives: Archives, archive: str) -> str:
    """Draw scores by environment and series, and their mean over each cost; give the link to the picture."""
    data = archives[archive]
    shared = scores.matrices(data)[1]
    require(bool(shared), f"{archive} has no environment that all series share")
    cells, means, costs = {}, {}, {label: dict[str, float]() for label in COSTS}
    for name in [name for name in data.series if data.of(series=name)]:
        levels = [list(data.normalised(world, name).values()) for world in shared]
        for world, level in zip(shared, levels, strict=True):
            cells[name, world] = interval(list(data.scores(world, name).values())), float(np.mean(level))
        means[name] = statistics.mean_over(levels)
        for label, cost in COSTS.items():
            costs[label][name] = cost([run for world in shared for run in data.of(world, name)])
    known = {label: found for label, found in costs.items() if not any(map(math.isnan, found.values()))}
    require(bool(known), f"{archive} has no processor times")
    scales = {world: scale for world in shared if (scale := data.scale(world))}
    name = f"{archive}.png"
    archives.pictures[name] = png(answer_figure(cells, means, known, scales))
    return f"![Final scores of {archive}, with 95 % intervals, and their mean over each cost.]({name})"


# ---- pages -----------------------------------------------------------------------------------------------------------
WORDS: Mapping[str, Callable[..., str]] = {
    "mean": mean, "interval": with_interval, "lead": lead, "won": count_won, "times": times, "runs": runs,
    "seeds": seeds, "scores": scores_table, "reached": reached, "costs": costs, "questions": verdicts_table,
    "figure": figure,
}  # fmt: skip


def filled_pages(folder: Path) -> dict[Path, bytes]:
    """Fill every template in a folder; give the pages and their pictures by path.

    A UserError names the template and the placeholder if a name in it does not exist.
    """
    archives, pages = Archives(folder), {}
    for path in sorted(folder.glob(f"*{TEMPLATE}")):
        text = read_text(path, "the template ")
        parts = PLACEHOLDER.split(text)  # text and placeholders in turn
        parts[1::2] = [_fill(archives, placeholder, path.name) for placeholder in parts[1::2]]
        page = NOTE.format(name=path.name) + "".join(parts)
        pages[path.with_name(path.name.replace(TEMPLATE, ".md"))] = page.encode()
    return pages | {folder / name: picture for name, picture in archives.pictures.items()}


def _fill(archives: Archives, placeholder: str, template: str) -> str:
    try:
        word, *arguments = shlex.split(placeholder)
        function = WORDS[check_known("word", word, list(WORDS))]
        wanted = list(signature(function).parameters.values())[1:]
        if not sum(each.default is Parameter.empty for each in wanted) <= len(arguments) <= len(wanted):
            raise UserError(f"{word} takes {', '.join(each.name for each in wanted) or 'nothing'}")
        return function(archives, *arguments)
    except (UserError, ValueError) as error:  # a quotation that is not closed is a ValueError
        raise UserError(f"{template}: {{{{{placeholder}}}}}: {error}") from None
