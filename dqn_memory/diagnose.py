"""Tell which memory a task needs: `python -m dqn_memory.diagnose --env Gridverse/Memory-5x5-v0`.

Recurrent PPO trains networks without a memory and with one, each with several seeds and for as many steps as fit into
the time. Their scores answer five questions: can anything be learned, does the task need a memory, how far back, which
memory and at what cost, and what is odd about the environment. The runs are a study in FOLDER, and the report lies in
FOLDER/report. Stop the command anywhere and give it again: it goes on.

From top to bottom: the arguments, the plan, the answers, the report, the command.
"""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import tomli_w
import torch
import tyro

from dqn_memory.analysis import plots
from dqn_memory.analysis.environment_checks import STEPS, RandomPlay, oddities, play_randomly
from dqn_memory.analysis.episodes import play_in
from dqn_memory.analysis.recall import RecallConfig, recall
from dqn_memory.evaluate import EvalSetup, load_network
from dqn_memory.ppo import PPOTrainer
from dqn_memory.runs.errors import UserError, check_known, one_line_errors, require
from dqn_memory.runs.process import process_restored
from dqn_memory.runs.settings import Bounds, Repeatable, check_numbers, fields_of, parse
from dqn_memory.runs.toml import SCHEMA
from dqn_memory.study import run as study_run
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import Data, FinishedRun, collect
from dqn_memory.study.definition import Definition, expand, parse_definition, slug
from dqn_memory.study.diagnosis import MEMORIES, Diagnosis, Texts
from dqn_memory.study.page import Picture, Section, check_folder, write_report
from dqn_memory.study.runner import duration
from dqn_memory.study.sections import runs, scores
from dqn_memory.study.store import DEFINITION, STATE, Study, check_study_folder
from dqn_memory.study.verdict import CONTROLS, MARGIN, NEEDED, UNKNOWN, Judgement, judge
from envs.cli import load_plugins
from envs.console import say
from envs.files import parse_json, portable_name, read_text, write_atomic
from envs.markup import Markup, code
from envs.vector import make_vector

SIZE = "100k"  # parameters of each network
ROWS = 16  # copies of the environment in random play
ROLLOUT = 64  # steps of a rollout
CHOICES = (8, 16, 32, 64)  # copies of the environment in training
ITERATIONS = 60  # rollouts of a run, if there is time for them
LEAST = 20  # rollouts below which a run cannot learn
START = 14.0  # seconds of a run before its first and after its last step
REPORT = 30.0  # seconds for the answers and the report
SPARE = 0.75  # share of the time for training steps; the rest is for evaluations
CURVE = 10  # evaluations during a run
RANDOM_START = 8  # most random steps at the start of an episode: in short runs fewer than the default learn sooner
CONTEXT = (16, 64)  # fewest and most steps that attention sees
RANDOM = "random.json"  # how long random play was
TITLE = "Which memory does {env} need?"


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Args:
    """Tell which memory an environment needs, from short runs of recurrent PPO."""

    env: str
    """An environment of this suite, or any Gymnasium id."""
    minutes: Annotated[float, Bounds(above=0, below=100_000)] = 10.0
    """Time of the whole command, about."""
    seeds: Annotated[int, Bounds(1, 100)] = 3
    """Runs of each network."""
    workers: Annotated[int, Bounds(1, 10_000)] | None = None
    """Runs at once, each on one CPU thread (None: one for each CPU)."""
    first_seed: Annotated[int, Bounds(0, below=2**31)] = 1
    """Seed of the first run of each network."""
    config: Repeatable = ()
    """Settings of `ppo` for all runs: a preset's name or a TOML file."""
    plugin: Repeatable = ()
    """Import this module, which registers the environment."""
    folder: Path | None = None
    """Folder of the runs and the report (None: runs/diagnose/ENV)."""
    figure_width: float | None = None
    """Also write figures of this width in inches, tables and numbers for a paper (None: none)."""
    format: Literal["text", "json"] = "text"
    """Print the answers as text, or as one JSON object with progress on standard error."""

    @property
    def place(self) -> Path:
        """The folder of the runs."""
        return self.folder or Path("runs/diagnose") / portable_name(self.env)

    @property
    def at_once(self) -> int:
        """The number of runs at once."""
        return self.workers or os.cpu_count() or 1

    @property
    def about(self) -> str:
        """The plan in a sentence, by which a later call knows it."""
        return (
            f"Short runs of recurrent PPO by networks of {SIZE} parameters, without a memory ({', '.join(CONTROLS)}) "
            f"and with one ({', '.join(MEMORIES)}). Planned for {self.minutes:g} minutes, {self.seeds} seeds."
        )

    def settings(self) -> dict[str, Any]:
        """Give the settings of all runs that the user chose."""
        return {"env": self.env, "config": list(self.config), "plugin": list(self.plugin)}


# ---- the plan --------------------------------------------------------------------------------------------------------
def play_at_random(args: Args) -> RandomPlay:
    """Play the environment at random, as the networks see it; a UserError says that it raised an error.

    A later call in the same folder plays the same steps again.
    """
    steps = earlier_steps(args.place / RANDOM)
    try:
        return _play_at_random(args, steps)
    except UserError:
        raise
    except Exception as error:
        note = " ".join(getattr(error, "__notes__", ()))
        raise UserError(f"{args.env} raised {type(error).__name__}: {error}. {note}".strip()) from error


def earlier_steps(path: Path) -> int | None:
    """Read how many random steps an earlier call took; None if there was none, a UserError if the file is damaged."""
    if not os.path.lexists(path):
        return None
    try:
        steps = parse_json(read_text(path, follow=False).encode())["steps"]
    except (ValueError, LookupError, TypeError):
        steps = None
    if type(steps) is not int or not 0 < steps <= STEPS:
        raise UserError(f"{path} is damaged: delete it; the same command then plays at random anew")
    return steps


def _play_at_random(args: Args, steps: int | None) -> RandomPlay:
    environment = PPOTrainer.configure(args.settings()).environment
    require(len(environment.ids) == 1, "--config names several environments; diagnose one at a time")
    with closing(make_vector(environment.id, ROWS, 0, "cpu", environment.kwargs(), environment.interface)) as vector:
        return play_randomly(vector, args.first_seed, min(10.0, 3 * args.minutes), steps)


def given_settings(args: Args) -> dict[str, Any]:
    """Give the settings that --config changes."""
    usual, given = (
        {each.flag: each.value for each in fields_of(PPOTrainer.configure(settings))}
        for settings in ({**args.settings(), "config": []}, args.settings())
    )
    return {name: value for name, value in given.items() if value != usual[name]}


def chosen_settings(play: RandomPlay) -> dict[str, Any]:
    """Choose settings by what random play shows."""
    length = play.lengths.mean() if len(play.lengths) else float(len(play.reward))
    longest = int(play.lengths.max()) if len(play.lengths) else len(play.reward)
    return {
        "match": SIZE, "threads": 1, "rollout_steps": ROLLOUT, "track": ["none"], "log_every": 0,
        "context": min(max(longest, CONTEXT[0]), CONTEXT[1]),
        "random_start_steps": 0 if play.dense else min(RANDOM_START, int(length) // 2),
        "normalize_reward": True, "normalize_observation": bool(play.unscaled),
    }  # fmt: skip


def paces(args: Args, settings: Mapping[str, Any], names: Sequence[str], rows: int) -> dict[str, float]:
    """Measure the processor seconds of a training step of each network."""
    found = {}
    for name in names:
        trainer = PPOTrainer(
            PPOTrainer.configure({**args.settings(), **settings, "architecture": name, "num_envs": rows})
        )
        with closing(trainer.vector):
            trainer.begin()
            trainer.iterate()  # loads and compiles what the next ones use
            began = time.process_time()
            trainer.iterate()
            found[name] = (time.process_time() - began) / trainer.steps_per_iteration
    return found


def seconds_to_train(args: Args, began: float, runs: int) -> float:
    """Give the processor seconds for training steps of all runs, if the call `began` at this monotonic time."""
    left = 60 * args.minutes - (time.monotonic() - began) - REPORT
    return max(0.0, SPARE * (args.at_once * left - START * runs))


def make_plan(args: Args, play: RandomPlay, began: float) -> str:
    """Write the definition of the study: settings, and as many steps as fit into the time."""
    given, names = given_settings(args), [*CONTROLS, *MEMORIES]
    settings = {name: value for name, value in chosen_settings(play).items() if name not in given}
    rollout, rows = given.get("rollout_steps", ROLLOUT), given.get("num_envs")
    if rows is None:
        seconds = seconds_to_train(args, began, len(names) * args.seeds)
        affordable = seconds / (args.seeds * len(names) * paces(args, settings, ["gru"], CHOICES[2])["gru"])
        rows = max([count for count in CHOICES if count * rollout * ITERATIONS <= affordable], default=CHOICES[0])
    each = paces(args, settings, names, rows)
    seconds = seconds_to_train(args, began, len(names) * args.seeds)
    steps = int(seconds / (args.seeds * sum(each.values())))
    iterations = steps // (rows * rollout)
    if iterations < LEAST:
        work = args.seeds * (LEAST * rows * rollout * sum(each.values()) / SPARE + START * len(names))
        needed = (work / args.at_once + time.monotonic() - began + REPORT) / 60
        raise UserError(
            f"--minutes {args.minutes:g} leaves {steps:,} steps for each of {len(names) * args.seeds} runs, in "
            f"which nothing is learned; give at least --minutes {1.1 * needed + 0.1:.1f}"
        )
    steps, length = iterations * rows * rollout, play.lengths.mean() if len(play.lengths) else len(play.reward)
    settings |= {
        "num_envs": rows, "total_steps": steps, "evaluate_every": steps // CURVE, "checkpoint_every": steps // 4,
        "episodes": int(np.clip(0.03 * steps / CURVE / length, 10, 100)),
        "final_episodes": int(np.clip(0.1 * steps / length, 50, 400)),
    }  # fmt: skip
    own = args.settings()
    table = {
        "schema": SCHEMA, "title": TITLE.format(env=args.env), "kind": "ppo", "about": args.about,
        "base": {key: value for key, value in {**own, **settings}.items() if key != "env" and value not in ([], None)},
        "axes": {
            "world": [args.env], "architecture": names,
            "seed": list(range(args.first_seed, args.first_seed + args.seeds)),
        },
        "resources": {"cpus": 1, "steps_per_second": len(names) / sum(each.values()) * SPARE, "megabytes": 2.0},
    }  # fmt: skip
    return tomli_w.dumps(table)


def planned_study(args: Args, play: RandomPlay, began: float) -> Definition:
    """Read the plan of an earlier call in the folder, or make one for a call that `began` at this monotonic time."""
    path, name = args.place / DEFINITION, slug(args.place.name)
    if not (args.place / STATE).exists():
        return parse_definition(make_plan(args, play, began), str(path), name)
    definition = parse_definition(read_text(path), str(path), name)
    if (definition.title, definition.about) != (TITLE.format(env=args.env), args.about):
        raise UserError(f"{args.place} holds '{definition.title} {definition.about}'; give another --folder")
    return definition


# ---- the answers -----------------------------------------------------------------------------------------------------
def answer(args: Args, definition: Definition, data: Data, play: RandomPlay) -> Diagnosis:
    """Answer all questions from the finished runs."""
    by_series = {name: data.of(series=name) for name in data.series if data.of(series=name)}
    missing = [name for name in (*CONTROLS, *MEMORIES) if len(by_series.get(name, ())) < args.seeds]
    require(not missing, f"runs of {', '.join(missing)} have not finished; see {args.place}/logs")
    values = {name: [run.score for run in found] for name, found in by_series.items()}
    entry = by_series["gru"][0]
    measure, episodes = "success" if entry.success else "return", int(entry.config.evaluation.final_episodes)
    random = play.score
    judged = judge(values, random, episodes, ceiling(data))
    memory = advised(judged, by_series, float(random.mean())) if judged.verdict in (NEEDED, UNKNOWN) else None
    network = memory or next((name for name, words in CONTROLS.items() if words == judged.verdict), judged.best)
    command = final_command(args, definition, network)
    texts = Texts(args.minutes, data, values, float(random.mean()), judged, measure)
    answers = {
        "Can anything be learned in this time?": texts.learned(),
        "Does it need a memory?": texts.needed(),
        "How far back must it look?": texts.distance(memory),
        "Which one, and what does it cost?": texts.cost(memory, network),
    }
    return Diagnosis(
        args.env, judged.verdict, answers, oddities(play), values, float(random.mean()), measure, memory, command,
        str(args.place),
    )  # fmt: skip


def ceiling(data: Data) -> float | None:
    """Give the best known success or return; None if it is unknown."""
    scale = data.scale(data.worlds[0])
    return scale.one if scale is not None else 1.0 if data.entries[0].success else None


def advised(judged: Judgement, by_series: Mapping[str, Sequence[FinishedRun]], random: float) -> str:
    """Choose the memory that is cheapest to train among those whose mean is as good as the best one's."""
    means = {name: np.mean([run.score for run in found]) for name, found in by_series.items() if name in MEMORIES}
    reach = abs(means[judged.memory] - random)
    good = [name for name, mean in means.items() if means[judged.memory] - mean <= MARGIN * reach]
    return min(good, key=lambda name: by_series[name][0].pace)


def final_command(args: Args, definition: Definition, network: str) -> str:
    """Write the command that trains an agent with a network for three times as long."""
    kept = ("num_envs", "rollout_steps", "match", "context", "random_start_steps")
    flags: dict[str, Any] = {"env": args.env, "architecture": network}
    flags |= {name: definition.base[name] for name in kept if name in definition.base}
    flags["total_steps"] = 3 * definition.base["total_steps"]
    words = [word for name in args.config for word in ("--config", name)]
    words += [word for name in args.plugin for word in ("--plugin", name)]
    words += [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [
        f"--{name.replace('_', '-')}"
        for name in ("normalize_reward", "normalize_observation")
        if definition.base.get(name)
    ]
    return shlex.join(["python", "-m", "dqn_memory.ppo", *words])


# ---- the report ------------------------------------------------------------------------------------------------------
def recall_picture(data: Data, memory: str) -> Picture:
    """Draw how decisions of the advised memory's best run depend on past observations."""
    best = max(data.of(series=memory), key=lambda run: run.score)
    network, config, _ = load_network(best.run.folder)
    episodes = play_in(EvalSetup.of(config, torch.device("cpu")), network, 0, 8)
    found = recall(network, episodes, RecallConfig(), 0, config.acting_state)
    title = f"Influence of past observations on {memory}"
    figure = plots.plot_recall(found.curve("occlusion"), found.curve("flips"), found.decisions, title, "logits")
    return Picture(
        "recall", figure, f"How decisions of {memory} depend on past observations, {len(episodes)} episodes."
    )


def write_answers(args: Args, diagnosis: Diagnosis, data: Data) -> Path:
    """Write the report: the answers, then curves, scores and costs."""
    folder = args.place / "report"
    lead = [
        Markup("Made by {}: {}.").format(code(f"python -m dqn_memory.diagnose --env {args.env}"), diagnosis.verdict)
    ]
    answers = [Section(question, (text,)) for question, text in diagnosis.answers.items()]
    answers.append(Section("To train the agent", (code(diagnosis.command),)))
    odd = Section("What is odd here?", tuple(diagnosis.oddities or ["Nothing was found."]))
    pictures = [] if diagnosis.memory is None else [recall_picture(data, diagnosis.memory)]
    makers = scores.curves_section, scores.table_section, scores.memory_section, runs.runs_section, runs.cost_section
    rest = [made for make in makers if (made := make(data)) is not None]
    far = [Section("How far back, in a picture", tuple(pictures))] if pictures else []
    write_atomic(args.place / "diagnosis.json", json.dumps(asdict(diagnosis), indent=1).encode())
    sections = [*answers, odd, *far, *rest]
    return write_report(folder, TITLE.format(env=args.env), lead, sections, None, args.figure_width, web=True)


# ---- the command -----------------------------------------------------------------------------------------------------
@process_restored()
def diagnose(env: str | gymnasium.Env[Any, Any], **options: Any) -> Diagnosis:
    """Tell which memory an environment needs, as `python -m dqn_memory.diagnose` does.

    Args:
        env: an id, or an environment that `gymnasium.make` made without keywords; its id is then used.
        options: flags of that script by name, such as `minutes=30`, `seeds=5`, `plugin=("mine",)`.

    Raises:
        UserError: the environment breaks its contract, an option is wrong, or a run failed.
    """
    if not isinstance(env, str):
        require(
            env.spec is not None and not env.spec.kwargs, f"{env} has no id of its own; register it, and give its id"
        )
        assert env.spec is not None
        env = env.spec.id
    names = [field.name for field in fields(Args) if field.name not in ("env", "format")]
    for name in options:
        check_known("option", name, names)
    folder = options.pop("folder", None)
    args = parse(Args, {"env": env, **options})
    return diagnose_by(args if folder is None else replace(args, folder=Path(folder)))


def diagnose_by(args: Args) -> Diagnosis:
    """Plan, train, answer and report."""
    began = time.monotonic()
    check_numbers(args)
    check_folder(args.place / "report", args.figure_width)
    load_plugins(args.plugin)
    say(f"{args.env} at random ...")
    play = play_at_random(args)
    definition = planned_study(args, play, began)
    planned = expand(definition)
    check_study_folder(args.place, definition, planned)
    steps = definition.base["total_steps"]
    say(
        f"{len(planned)} runs of {steps:,} steps: {', '.join([*CONTROLS, *MEMORIES])}, {args.seeds} seeds each; about "
        f"{duration(60 * args.minutes)} on {args.at_once} CPUs, in {args.place}"
    )
    if not (args.place / RANDOM).exists():
        Study.create(args.place, definition, planned)
        write_atomic(args.place / RANDOM, json.dumps({"steps": len(play.reward)}).encode())
    call = study_run.Args(str(args.place), folder=args.place, backend="processes", workers=args.at_once)
    study = study_run.run_study(call, definition, args.place, planned, planned)
    failed = [each for each in study.runs() if each.state == "failed"]
    if failed:
        raise UserError(f"{failed[0].name} failed: {failed[0].error.splitlines()[-1]} ({failed[0].log} has the rest)")
    data = collect(open_source(args.place))
    diagnosis = answer(args, definition, data, play)
    say(f"wrote {write_answers(args, diagnosis, data)}")
    return diagnosis


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Diagnose and print the answers."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.diagnose")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a background job's shell may ignore SIGINT
    try:
        with redirect_stdout(sys.stderr) if args.format == "json" else nullcontext():
            diagnosis = diagnose_by(args)
    except KeyboardInterrupt:
        say("\nstopped; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
    say(json.dumps(asdict(diagnosis), indent=1) if args.format == "json" else str(diagnosis))


if __name__ == "__main__":
    main()
