"""The sections of a report in their order, and what stands above them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from dqn_memory.runs.kinds import script_of
from dqn_memory.study import report_scores as scores
from dqn_memory.study.report_attention import attention_section
from dqn_memory.study.report_data import HEADLINE, PREFERRED, Data, meaning
from dqn_memory.study.report_evenness import uneven_section
from dqn_memory.study.report_forgetting import forgetting_section
from dqn_memory.study.report_page import Grid, Section, Words, counted
from dqn_memory.study.report_priors import priors_section
from dqn_memory.study.report_published import published_section
from dqn_memory.study.report_spans import spans_section
from dqn_memory.study.report_worlds import hallucination_section, properties_section

COST = "Time and cost"


def lead(data: Data) -> list[Words]:
    """What the study asks, and how much of it is here."""
    source = data.source
    number = Counter(run.state for run in source.runs)
    states = ", ".join(f"{number[state]} {state}" for state in sorted(number))
    cut = " This is the study's smoke-size cut, too small to show anything but that it works." if source.smoke else ""
    seeds = len({run.seed for run in source.runs})
    return [
        Words(source.about + cut),
        Words(
            f"{len(source.runs)} runs of `{script_of(source.kind)}` ({states}): "
            f"{counted(len(source.worlds), 'world')}, {len(data.series)} series, {counted(seeds, 'seed')}; "
            f"{len(data.entries)} are in this report. Where one number stands for a run it is the "
            f"{HEADLINE} ({meaning(data, PREFERRED)}). All "
            f"but the section {COST} depends on what the runs learned alone, not on when or where."
        ),
        Words(f"Made by {_commands(data)}."),
    ]


def _commands(data: Data) -> str:
    """What trained the runs, by the definition kept with them (a shipped one may be newer), and what wrote this."""
    cut = " --smoke" if data.source.smoke else ""
    runs, report = f"python -m dqn_memory.study.run FOLDER/study.toml{cut}", "python -m dqn_memory.study.report FOLDER"
    return (
        f"`{runs} --folder FOLDER`, then `{report}`, of the study's own folder; a record goes on in a new one, with "
        "`--folder NEW --take-from FOLDER`"
    )


def sections(data: Data, attention: bool, published: bool) -> list[Section]:
    """All sections; those that cannot be filled say why."""
    forgetting, uneven = forgetting_section(data), uneven_section(data)
    found = [
        *([left_out_section(data)] if data.left_out else []),
        *([uneven] if uneven else []),
        scores.aggregate_section(data),
        scores.table_section(data),
        *([forgetting] if forgetting else []),
        scores.curves_section(data),
        scores.profile_section(data),
        scores.improvement_section(data),
        scores.parameters_section(data),
        *([published_section(data)] if published else []),
        priors_section(data),
        spans_section(data),
        attention_section(data, attention),
    ]
    if data.source.kind == "q_network":
        found += [hallucination_section(data), properties_section(data)]
    return [*found, cost_section(data)]


def left_out_section(data: Data) -> Section:
    """Runs that are not in the report, and why."""
    return Section("Left out", (Grid(("runs", "why"), left_out_rows(data.left_out)),))


def left_out_rows(left_out: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Runs and why they are left out; those that differ in their seed alone are one row."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, why in left_out:
        series, dash, seed = name.rpartition("seed-")
        seeds.setdefault((f"{series}{dash}" or seed, why), []).append(seed if dash else "")
    return tuple((f"{series}{', '.join(found)}", why) for (series, why), found in seeds.items())


def cost_section(data: Data) -> Section:
    """Wall-clock and processor time by series, and on what machines."""
    if not data.entries:
        return Section(COST, (scores.NOTHING,))
    header = ("series", "runs", "steps of all", "minutes of a run", "processor minutes of a run", "starts")
    rows = []
    for name in data.series:
        runs = data.of(series=name)
        if runs:
            walls = [run.run.seconds if run.run.seconds is not None else math.nan for run in runs]
            cores = [_processor(run.lines) for run in runs]
            steps, starts = sum(run.curve.trained for run in runs), sum(run.run.attempts for run in runs)
            rows.append((name, str(len(runs)), f"{steps:,}", _minutes(walls), _minutes(cores), str(starts)))
    machines = sorted({_machine(entry.environment) for entry in data.entries})
    words = (
        "Mean over runs. Minutes are on the wall, evaluations included; processor minutes leave out what other work on "
        f"the machine took. Machines and versions: {'; '.join(machines)}."
    )
    return Section(COST, (Words(words), Grid(header, tuple(rows))))


def _processor(lines: list[dict[str, float]]) -> float:
    return next((line["time/processor"] for line in reversed(lines) if "time/processor" in line), math.nan)


def _minutes(seconds: list[float]) -> str:
    known = [each for each in seconds if not math.isnan(each)]
    return f"{sum(known) / len(known) / 60:.2f}" if known else "-"


def _machine(environment: dict[str, object]) -> str:
    revision = str(environment.get("revision"))[:10] + ("+" if environment.get("dirty") else "")
    return (
        f"{environment.get('cpu')}, {environment.get('device')}, {environment.get('threads')} threads, "
        f"torch {environment.get('torch')}, revision {revision}"
    )
