"""Fill the fields of a page with numbers of the archives beside it, so that text and tables cannot part.

`README.template.md` becomes `README.md` when `study.report --all results` makes the reports again. A field is a word
and what it is about, separated by blanks, names with blanks in quotes; an environment is named without its family and
version, and several names have semicolons between them:

    {{mean first_evidence Memory-5x5 dtqn4 area}}        mean over seeds, also of another number, such as area
    {{interval first_evidence Memory-5x5 dtqn4}}         the same with its 95 % bootstrap interval
    {{each priors Memory-5x5 gaussian_adaptive}}         the score of every seed
    {{p priors Memory-5x5 local causal}}                 Welch's p of two series, not corrected
    {{lead memories CarFlag;Hallway gru mlp}}            lead of the first over the second, with its 95 % interval
    {{beats first_evidence dbgfqn dtqn4}}                chance that a run of the first beats one of the second
    {{won memories HeavenHell;Hallway gru 0.95}}         runs whose final score reaches a level, of how many
    {{times memories attention gru}}                     how many times the seconds of another series a step takes
    {{iqm first_evidence dtqn4}}                         IQM of normalised scores over all environments
    {{runs every_environment}}                           finished runs of all
    {{seeds memories}}                                   seeds with a finished run, of all
    {{hours memories;popgym}}                            processor hours of finished runs, * for all archives
    {{table first_evidence Memory-5x5;Hallway *}}        means, environments down and series across
    {{within first_evidence Memory-5x5;Hallway * 110}}   the same at the last evaluation within processor seconds
    {{solved every_environment CarFlag=30;Hallway=60}}   what each environment came to, when it was solved, and aims
    {{curve every_environment MemoryCards}}              learning curves in an environment
    {{figure memories}}                                  a heat map of scores, and their mean over each cost
    {{reached memories "Hallway=no cue"}}                runs of each series that solve each environment in the end
    {{solving memories}}                                 seconds until each series has solved each environment
    {{costs memories}}                                   size, and time and memory that learning and acting take
    {{used memories}}                                    scores with and without the memory, how far back it reaches
    {{choices memories "Hallway=no cue" mlp}}            what to take in each environment, beside a series without
    {{questions}}                                        verdicts on the comparisons of questions.toml
    {{questions priors}}                                 the same on those of an archive, also what the above leaves out
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
from dqn_memory.study.collect import COSTS, PREFERRED, REMEMBERED, Data, Entry, collect, million_seconds, sizes_of
from dqn_memory.study.page import counted, slug
from dqn_memory.study.plots import answer_figure, curves_figure, looks
from dqn_memory.study.sections.scores import (
    matrices,
    recall_distances,
    scores_and_seconds,
    solved,
    solved_level,
    without_memory,
)
from dqn_memory.study.statistics import Contrast, Moments, contrast, holm, interval, plain_name, short_name, welch
from dqn_memory.study.store import INDEX
from envs.files import read_text
from envs.tables import Table, show

TEMPLATE, QUESTIONS = ".template.md", "questions.toml"
FIELD = re.compile(r"\{\{([^{}]+)\}\}")
NAMED = 2  # environments of a question up to which a table names them
SHORT = 0.1  # of a score, by which what counts as near the best may fall short of it
NOTE = "<!-- Made from {name} by `make results`: change that file. -->\n"


class Archives:
    """The archives below a folder, each read once.

    One is named by its folder's name, or, where several have that, by its path there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places = {path.parent.relative_to(folder).as_posix(): path.parent for path in sorted(folder.rglob(INDEX))}
        self.read: dict[str, Data] = {}
        self.pictures: dict[str, bytes] = {}  # that pages ask for, by file name

    def __getitem__(self, name: str) -> Data:
        place = _only("archive", name, {place: path.name for place, path in self.places.items()})
        if place not in self.read:
            self.read[place] = collect(open_source(self.places[place]))
        return self.read[place]

    def scores(self, archive: str, world: str, series: str, number: str = PREFERRED) -> list[float]:
        """Give a number of each seed's summary."""
        data = self[archive]
        label, name = self.world(archive, world), check_known("series", series, data.series)
        runs = data.of(label, name)
        if not runs:
            raise UserError(f"{archive}: {series} has no finished run in {world}")
        if "/" in number:  # a metric, at its last evaluation
            return [math.nan if (found := run.last(number)) is None else found for run in runs]
        check_known("number", number, runs[0].summary)
        return [run.number(number) for run in runs]

    def world(self, archive: str, word: str) -> str:
        """Give an environment's label by its short name."""
        return _only("environment", word, {label: short_name(label) for label in self[archive].source.worlds})

    def notes(self, archive: str, words: str) -> dict[str, str]:
        """Give what is said of environments, by their labels: "CarFlag=30;Hallway=60"."""
        pairs = (word.partition("=") for word in words.split(";") if word)
        return {self.world(archive, name): note for name, _, note in pairs}


def _only(what: str, word: str, known: Mapping[str, str]) -> str:
    """Find what a word names, whole or by its short name; `known` are short names by whole ones.

    A UserError where there is none, or where several have that short name.
    """
    found = [word] if word in known else [whole for whole, short in known.items() if short == word]
    require(len(found) < 2, f"the {what} '{word}' may be {' or '.join(found)}: give one of these")
    check_known(what, word, [*known, *known.values()])
    return found[0]


# ---- fields ----------------------------------------------------------------------------------------------------
def mean(archives: Archives, archive: str, world: str, series: str, number: str = PREFERRED) -> str:
    """Average over seeds."""
    return f"{np.mean(archives.scores(archive, world, series, number)):.2f}"


def with_interval(archives: Archives, archive: str, world: str, series: str, number: str = PREFERRED) -> str:
    """Average over seeds, with the bootstrap interval."""
    return f"{interval(archives.scores(archive, world, series, number)):.2f}"


def each(archives: Archives, archive: str, world: str, series: str, number: str = PREFERRED) -> str:
    """List the seeds' scores."""
    return ", ".join(f"{score:.2f}" for score in archives.scores(archive, world, series, number))


def p_value(archives: Archives, archive: str, world: str, series: str, rival: str, number: str = PREFERRED) -> str:
    """Test two series by Welch's t-test."""
    asked = Question(archive=archive, worlds=(world,), number=number)
    ours, theirs = (Moments.of(_sample(archives, asked, name, world)) for name in (series, rival))
    return _p(welch(ours, theirs))


def lead(archives: Archives, archive: str, worlds: str, series: str, rival: str, number: str = PREFERRED) -> str:
    """Give the lead of one series over another, averaged over environments."""
    asked = Question(archive=archive, worlds=tuple(worlds.split(";")), number=number)
    return _lead(_contrast(archives, asked, series, rival))


def beats(archives: Archives, archive: str, series: str, rival: str) -> str:
    """Estimate the chance that a run of one series beats a run of another, over all environments."""
    found = matrices(archives[archive])[0]
    sides = [found[check_known("series", name, found)] for name in (series, rival)]
    return f"{statistics.estimate(statistics.probability_of_improvement, *sides):.2f}"


def won(archives: Archives, archive: str, worlds: str, series: str, level: str) -> str:
    """Count the runs of a series that reach a score in the end, over several environments."""
    found = [score for world in worlds.split(";") for score in archives.scores(archive, world, series)]
    return f"{sum(score >= float(level) for score in found)} of {len(found)}"


def times(archives: Archives, archive: str, series: str, rival: str) -> str:
    """Divide the processor seconds that a step of one series takes by those of another."""
    data = archives[archive]
    ours, theirs = (data.of(series=check_known("series", name, data.series)) for name in (series, rival))
    return f"{million_seconds(ours) / million_seconds(theirs):.1f}"


def iqm(archives: Archives, archive: str, series: str) -> str:
    """Give the IQM of a series over all environments."""
    found = matrices(archives[archive])[0]
    return f"{statistics.iqm(found[check_known('series', series, found)]):.2f}"


def runs(archives: Archives, archive: str) -> str:
    """Count finished runs."""
    data = archives[archive]
    return f"{len(data.entries)} of {len(data.source.runs)}"


def seeds(archives: Archives, archive: str) -> str:
    """Count the seeds that have a finished run: 4 of 10, or 2 to 4 of 10 where environments or series differ."""
    data = archives[archive]
    counts = [len(found) for _, _, found in data.groups()] or [0]
    own = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{own} of {len({run.seed for run in data.source.runs})}"


def hours(archives: Archives, names: str) -> str:
    """Add up the processor hours of finished runs; one that several archives hold (the same seconds) counts once."""
    named = archives.places if names == "*" else names.split(";")
    seconds = {run.last("time/processor") or 0.0 for name in named for run in archives[name].entries}
    return f"{sum(seconds) / 3600:.1f}"


def table(archives: Archives, archive: str, worlds: str, names: str, number: str = PREFERRED) -> str:
    """Tabulate means, environments down and series across; what has no finished run is left empty."""
    return _across(archives, archive, worlds, names, lambda run: run.number(number))


def within(archives: Archives, archive: str, worlds: str, names: str, seconds: str) -> str:
    """Tabulate the mean of each run's last evaluation within so many processor seconds."""

    def last(run: Entry) -> float:
        marks = [score for score, second in scores_and_seconds(run).values() if second <= float(seconds)]
        return marks[-1] if marks else math.nan

    return _across(archives, archive, worlds, names, last)


def _across(archives: Archives, archive: str, worlds: str, names: str, score: Callable[[Entry], float]) -> str:
    data, rows = archives[archive], []
    series = data.series if names == "*" else [check_known("series", name, data.series) for name in names.split(";")]
    for world in worlds.split(";"):
        groups = [data.of(archives.world(archive, world), name) for name in series]
        means = [float(np.mean([score(run) for run in runs])) if runs else None for runs in groups]
        rows.append([plain_name(world), *(show(number, ".2f") for number in means)])
    return Table(["", *series], rows).markdown()


def solved_table(archives: Archives, archive: str, aims: str = "") -> str:
    """Tabulate what each environment with finished runs came to, and when it was solved, beside what was aimed at."""
    data, rows, aimed = archives[archive], [], archives.notes(archive, aims)
    for world, series, found in data.groups():
        scale, score = data.scale(world), interval([run.score for run in found])
        row = {"environment": plain_name(world)} | ({"series": series} if len(data.series) > 1 else {})
        row |= {"seeds": str(len(found)), "final": str(score)}
        row |= {"best known": f"{scale.one:.2f}" if scale else "", "runs solved": _reached(data, world, series)}
        row |= mark.cells() if (mark := solved(data, world, found)) else {"steps": "", "processor seconds": ""}
        rows.append(row | ({"aimed at": aimed.get(world, "")} if aims else {}))
    return Table.from_records(rows).markdown()


def figure(archives: Archives, archive: str) -> str:
    """Draw scores by environment and series, and their mean over each cost; give the link to the picture."""
    data = archives[archive]
    shared = matrices(data)[1]
    require(bool(shared), f"{archive} has no environment that all series share")
    cells, whole, costs = {}, {}, {label: dict[str, float]() for label in COSTS}
    for name in [name for name in data.series if data.of(series=name)]:
        levels = [list(data.normalised(world, name).values()) for world in shared]
        for world, level in zip(shared, levels, strict=True):
            cells[name, world] = interval(list(data.scores(world, name).values())), float(np.mean(level))
        whole[name] = statistics.mean_over(levels)
        for label, cost in COSTS.items():
            costs[label][name] = cost([run for world in shared for run in data.of(world, name)])
    known = {label: found for label, found in costs.items() if not any(map(math.isnan, found.values()))}
    require(bool(known), f"{archive} has no processor times")
    scales = {world: scale for world in shared if (scale := data.scale(world))}
    name = f"{archive.replace('/', '-')}.png"
    archives.pictures[name] = png(answer_figure(cells, whole, known, scales))
    return f"![Final scores of {archive}, with 95 % intervals, and their mean over each cost.]({name})"


def curve(archives: Archives, archive: str, world: str) -> str:
    """Draw the learning curves in an environment; give the link to the picture."""
    data, label = archives[archive], archives.world(archive, world)
    series = {name: found for name in data.series if (found := data.of(label, name))}
    require(series, f"{archive} has no finished run in {world}")
    name = f"{archive.replace('/', '-')}-{slug(world)}.png"
    archives.pictures[name] = png(curves_figure(series, looks(data.series), label, data.scale(label)))
    return f"![Success over steps in {plain_name(world)}.]({name})"


def choices(archives: Archives, archive: str, tasks: str = "", control: str = "") -> str:
    """Tabulate what to take in each environment: of all near the best, what remembers the fewest bytes.

    `tasks` says what each environment is an example of, and orders them; `control` is the series without a memory.
    Where the best has only rivals that may be near, or is nearer to random play than to the best player, nothing is
    chosen. What takes longer beyond chance to solve the environment is not taken. Only series with two seeds count.
    """
    data, rows, examples = archives[archive], [], archives.notes(archive, tasks)
    uneven = len({len(found) for _, _, found in data.groups()}) > 1
    if control:
        check_known("series", control, data.series)
    for world in examples or data.worlds:
        found = {name: list(data.scores(world, name).values()) for name in data.series}
        scores = {name: values for name, values in found.items() if len(values) > 1}
        if not scores:
            continue
        good, maybe, worse = _ranked(scores)
        solvers = [name for name in good if solved(data, world, data.of(world, name))]
        soonest = _soonest(data, world, solvers) if solvers else good
        take, scale = min(soonest, key=lambda name: _remembered(data.of(world, name))), data.scale(world)
        if scale and scale(float(np.mean(scores[good[0]]))) < 0.5:
            take, doubt = good[0], "none yet"
        else:
            doubt = "undecided" if len(good) == 1 and maybe else ""  # about who is the best
        row = {"a task with": examples.get(world, "")} if tasks else {}
        lengths = [run.length for run in data.of(world, take) if run.length is not None]  # each a mean, in the end
        row |= {"environment": plain_name(world), "steps": f"{np.median(lengths):.0f}" if lengths else ""}
        row |= {"random play": f"{scale.zero:.2f}" if scale else ""}
        if control:
            row |= {control: f"{np.mean(scores[control]):.2f}" if control in scores else ""}
        row |= {"take": f"{doubt} (highest: {take})" if doubt else take}
        row |= {"score": f"{interval(scores[take]):.2f}"} | ({"seeds": str(len(scores[take]))} if uneven else {})
        row |= {"runs solved": _reached(data, world, take), "solved after": _after(data, world, take)}
        row |= {f"within {SHORT}": ", ".join(name for name in good if name != take)}
        rows.append(row | {"undecided": ", ".join(maybe), "worse": ", ".join(worse)})
    return Table.from_records(rows).markdown()


def _ranked(scores: Mapping[str, Sequence[float]]) -> tuple[list[str], list[str], list[str]]:
    """Name what is near the best mean, which comes first, what may be, and what is worse beyond chance.

    Near is what falls short by less than `SHORT`, the whole interval of the shortfall, even if beyond chance.
    """
    best = max(scores, key=lambda name: float(np.mean(scores[name])))
    short = {name: contrast([(scores[best], scores[name])]) for name in scores if name != best}
    good = [best, *(name for name, lack in short.items() if lack.effect + lack.margin(len(short)) < SHORT)]
    maybe = [name for name in _within_chance(short) if name not in good]
    return good, maybe, [name for name in scores if name not in (*good, *maybe)]


def _within_chance(leads: Mapping[str, Contrast]) -> list[str]:
    """Name the series whose difference is not beyond chance, with Holm's correction."""
    corrected = holm([lead.p for lead in leads.values()])
    return [name for name, p in zip(leads, corrected, strict=True) if p >= 1 - statistics.LEVEL]


def _soonest(data: Data, world: str, names: Sequence[str]) -> list[str]:
    """Name the series that solve an environment soonest, and those that take no longer beyond chance.

    A seed that never solves it counts with all its seconds.
    """
    seconds = {}
    for name in names:
        marks = [(solved(data, world, [run]), run.pace * run.curve.trained) for run in data.of(world, name)]
        seconds[name] = [mark.seconds if mark else whole for mark, whole in marks]
    if np.isnan(np.concatenate(list(seconds.values()))).any():
        return list(names)
    first = min(seconds, key=lambda name: float(np.mean(seconds[name])))
    return [first, *_within_chance({n: contrast([(seconds[n], seconds[first])]) for n in names if n != first})]


def costs(archives: Archives, archive: str) -> str:
    """Tabulate what each series costs."""
    data, rows = archives[archive], []
    for name in data.series:
        if runs := data.of(series=name):
            row = {"": name, "parameters": sizes_of(runs)}
            rows.append(row | {label: show(cost(runs), ",.0f") for label, cost in COSTS.items()})
    return Table.from_records(rows).markdown()


def reached(archives: Archives, archive: str, tasks: str = "") -> str:
    """Tabulate how many runs of each series end at the level that counts as solved; `tasks` is as in `choices`."""
    return _everywhere(archives, archive, _reached, tasks)


def _reached(data: Data, world: str, name: str) -> str:
    level = solved_level(data, world, runs := data.of(world, name))
    return f"{sum(run.score >= level for run in runs)} of {len(runs)}" if runs and math.isfinite(level) else ""


def solving(archives: Archives, archive: str) -> str:
    """Tabulate the processor seconds of one run until its series has solved an environment."""
    return _everywhere(archives, archive, lambda *about: _after(*about).removesuffix(" s"))


def _after(data: Data, world: str, name: str) -> str:
    """Give these seconds, or nothing where the mean does not stay there."""
    mark = solved(data, world, data.of(world, name))
    return "" if mark is None or math.isnan(mark.seconds) else f"{mark.seconds:,.0f} s"


def used(archives: Archives, archive: str) -> str:
    """Tabulate scores with and without the memory.

    Where more than `SHORT` is lost, brackets say how far back half of its influence reaches, in runs that lose as much.
    """
    return _everywhere(archives, archive, _used)


def _used(data: Data, world: str, name: str) -> str:
    if not (pairs := without_memory(runs := data.of(world, name))):
        return ""
    before, after = np.mean(pairs, axis=0)
    losing = [run for run in runs for with_it, without in without_memory([run]) if with_it - without > SHORT]
    distances = recall_distances(losing) if before - after > SHORT else []
    return f"{before:.2f} → {after:.2f}" + (f" ({np.mean(distances):.0f})" if len(distances) else "")


def _everywhere(archives: Archives, archive: str, cell: Callable[[Data, str, str], str], tasks: str = "") -> str:
    """Tabulate environments down and series across."""
    data, rows, examples = archives[archive], [], archives.notes(archive, tasks)
    for world in examples or data.worlds:
        row = {"a task with": examples[world], "environment": plain_name(world)} if tasks else {"": plain_name(world)}
        rows.append(row | {name: cell(data, world, name) for name in data.series})
    return Table.from_records(rows).markdown()


def _remembered(runs: Sequence[Entry]) -> float:
    """Give the bytes that acting remembers; what was not measured comes last."""
    return math.inf if math.isnan(number := COSTS[REMEMBERED](runs)) else number


def _lead(found: Contrast) -> str:
    margin = found.margin() if math.isfinite(found.margin()) else math.nan  # shown without an interval
    return f"{statistics.Estimate(found.effect, found.effect - margin, found.effect + margin):+.2f}"


def _p(value: float) -> str:
    return "no variance" if np.isnan(value) else "< 0.001" if value < 0.0005 else f"{value:.2g}"


# ---- questions -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Question:
    """Claims that one series is above another, tested together; `least` is the smallest lead that would matter.

    Where the questions of all archives are listed, only the first `shown` claims are, if it is given.
    """

    asks: str = ""
    archive: str = ""
    worlds: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    number: str = PREFERRED
    least: float = 0.05
    shown: int | None = None


@dataclass(frozen=True)
class Questions:
    """A file of questions."""

    question: tuple[Question, ...] = ()


def questions(archives: Archives, archive: str = "") -> str:
    """Tabulate each claim's lead, averaged over its environments, and the verdict on it."""
    path, rows = archives.folder / QUESTIONS, []
    for question in from_toml(Questions, read_text(path, "the questions in "), str(path)).question:
        if archive in ("", question.archive):
            rows += _verdicts(archives, question)[: None if archive else question.shown]
    return Table.from_records(rows).markdown()


def _verdicts(archives: Archives, question: Question) -> list[dict[str, str]]:
    """Make a row of each claim."""
    found, claims = [_contrast(archives, question, *claim) for claim in question.claims], len(question.claims)
    rows: list[dict[str, str]] = []
    corrected, worlds = holm([gain.p for gain in found]), question.worlds
    place = ", ".join(worlds) if len(worlds) <= NAMED else counted(len(worlds), "environment")
    for (first, second), gain, p in zip(question.claims, found, corrected, strict=True):
        least = gain.detectable(claims)
        rows.append({
            "question": "" if rows else question.asks, "claim": f"{first} above {second}", "by": question.number,
            "in": place, "lead": _lead(gain), "p": _p(p),
            "detectable": f"{least:.2f}" if least else "-", "verdict": gain.verdict(p, question.least, claims),
        })  # fmt: skip
    return rows


def _contrast(archives: Archives, question: Question, first: str, second: str) -> Contrast:
    return contrast(
        [[_sample(archives, question, side, world) for side in (first, second)] for world in question.worlds]
    )


def _sample(archives: Archives, question: Question, side: str, world: str) -> list[float]:
    """Give a side's numbers, one of each seed, two at least and none of them missing."""
    name, _, elsewhere = side.partition("@")
    if elsewhere and len(question.worlds) > 1:
        raise UserError(f"{side} would count once for each of {', '.join(question.worlds)}; give one environment")
    found = archives.scores(question.archive, elsewhere or world, name, question.number)
    if len(found) < 2:
        raise UserError(f"{question.archive}: {name} has one seed in {elsewhere or world}; a lead needs two")
    if np.isnan(found).any():
        raise UserError(f"{question.archive}: a run of {name} in {elsewhere or world} has no {question.number}")
    return found


# ---- pages -----------------------------------------------------------------------------------------------------------
WORDS: Mapping[str, Callable[..., str]] = {
    "mean": mean, "interval": with_interval, "each": each, "p": p_value, "lead": lead, "beats": beats,
    "won": won, "times": times, "iqm": iqm, "runs": runs, "seeds": seeds, "table": table, "within": within,
    "solved": solved_table, "curve": curve, "figure": figure, "choices": choices, "solving": solving,
    "reached": reached, "costs": costs, "used": used, "questions": questions, "hours": hours,
}  # fmt: skip


def filled_pages(folder: Path) -> dict[Path, bytes]:
    """Fill every template in a folder; give the pages, and the pictures that they show, by their paths.

    A UserError where a field names what is not there says in which template.
    """
    archives, pages = Archives(folder), {}
    for path in sorted(folder.glob(f"*{TEMPLATE}")):
        text = read_text(path, "the template ")
        parts = FIELD.split(text)  # text and fields in turn
        parts[1::2] = [_fill(archives, field, path.name) for field in parts[1::2]]
        page = NOTE.format(name=path.name) + "".join(parts)
        pages[path.with_name(path.name.replace(TEMPLATE, ".md"))] = page.encode()
    return pages | {folder / name: picture for name, picture in archives.pictures.items()}


def _fill(archives: Archives, field: str, name: str) -> str:
    try:
        word, *about = shlex.split(field)
        function = WORDS[check_known("word", word, list(WORDS))]
        wanted = list(signature(function).parameters.values())[1:]
        if not sum(each.default is Parameter.empty for each in wanted) <= len(about) <= len(wanted):
            raise UserError(f"{word} takes {', '.join(each.name for each in wanted) or 'nothing'}")
        return function(archives, *about)
    except (UserError, ValueError) as error:  # a quotation that is not closed is a ValueError
        raise UserError(f"{name}: {{{{{field}}}}}: {error}") from None
