"""Tell which memory a task needs: `python -m dqn_memory.diagnose --env Gridverse/Memory-5x5-v0`.

Recurrent PPO trains networks without a memory and with one, each with several seeds and for as many steps as fit into
the time. Their scores answer five questions: can anything be learned, does the task need a memory, how far back, which
memory and at what cost, and what is odd about the environment. The runs are a study in FOLDER, and the report lies in
FOLDER/report. Stop the command anywhere and give it again: it goes on.

From top to bottom: the arguments, the plan, the answers, the report, the command.
"""

import json
import math
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import tomli_w
import torch
import tyro

from dqn_memory.analysis import plots
from dqn_memory.analysis.environment_checks import RandomPlay, oddities, play_randomly
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
from dqn_memory.study.page import Picture, Section, check_folder, counted, write_report
from dqn_memory.study.runner import duration
from dqn_memory.study.sections import runs, scores
from dqn_memory.study.statistics import below_best
from dqn_memory.study.store import DEFINITION, STATE, check_study_folder
from dqn_memory.study.verdict import CONTROLS, MARGIN, NEEDED, UNKNOWN, Judgement, judge
from envs.cli import load_plugins
from envs.console import say
from envs.files import portable_name, read_text, write_atomic
from envs.markup import Markup, code
from envs.packages import in_own_code, is_known
from envs.tables import Table
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
EVALUATED = 200  # fewest episodes in which a run is evaluated
LIMIT = 256  # steps of an episode that nothing else ends
CURVE = 10  # evaluations during a run
RANDOM_START = 8  # most random steps at the start of an episode: in short runs fewer than the default learn sooner
CONTEXT = (16, 64)  # fewest and most steps that attention sees
NUMBERS = "scores.csv"  # of all runs, in the report's folder
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
    figure_width: float | None = 3.3
    """Width in inches of the figures for a paper, beside which its tables and numbers lie (None: none)."""
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
    def command(self) -> str:
        """The command with the flags that change the runs."""
        named = ("env", "minutes", "seeds", "first_seed", "config", "plugin")
        usual = {field.name: field.default for field in fields(self)}
        flags = {name: value for name in named if (value := getattr(self, name)) != usual[name]}
        return shlex.join(["python", "-m", "dqn_memory.diagnose", *words_of(flags)])

    @property
    def about(self) -> str:
        """The title and the plan, by which a later call knows them."""
        return (
            f"{TITLE.format(env=self.env)}\nShort runs of recurrent PPO by networks of {SIZE} parameters, without a "
            f"memory ({', '.join(CONTROLS)}) and with one ({', '.join(MEMORIES)}), made by: {self.command}"
        )

    def settings(self) -> dict[str, Any]:
        """Give the settings of all runs that the user chose."""
        return {"env": self.env, "config": list(self.config), "plugin": list(self.plugin)}


def words_of(flags: Mapping[str, Any]) -> list[str]:
    """Write flags as words of a command; None and False are left out."""
    words = []
    for name, value in flags.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is not None and each is not False:
                number = f"{each:g}" if isinstance(each, float) else str(each)
                words += [f"--{name.replace('_', '-')}", *([] if each is True else [number])]
    return words


# ---- the plan --------------------------------------------------------------------------------------------------------
@contextmanager
def faults_named(env: str) -> Iterator[None]:
    """Turn an error that an environment raises into a UserError that names it."""
    try:
        yield
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        if isinstance(error, UserError) or not (notes or in_own_code(error)):
            raise
        raise UserError(" ".join([f"{env} raised {type(error).__name__}: {error}.", *notes])) from error


def play_at_random(args: Args, steps: int | None = None) -> RandomPlay:
    """Play the episodes of evaluations at random; cut them after LIMIT steps if nothing ends them."""
    environment = PPOTrainer.configure(args.settings()).environment
    require(len(environment.ids) == 1, "--config names several environments; diagnose one at a time")
    for limit in (None, LIMIT):
        made = replace(environment, time_limit=limit or environment.time_limit)
        with closing(make_vector(made.id, ROWS, 0, "cpu", made.kwargs(training=False), made.interface)) as vector:
            play = play_randomly(vector, args.first_seed, min(10.0, 3 * args.minutes), steps, limit)
        if len(play.lengths):
            return play
    raise UserError(
        f"{args.env}: no episode ended within {len(play.reward):,} random steps, so no score can be compared with "
        "chance; give it a lower limit, max_episode_steps at its registration, or make its steps faster"
    )


def given_settings(args: Args) -> dict[str, Any]:
    """Give the settings that --config changes."""
    usual, given = (
        {each.flag: each.value for each in fields_of(PPOTrainer.configure(settings))}
        for settings in ({**args.settings(), "config": []}, args.settings())
    )
    return {name: value for name, value in given.items() if value != usual[name]}


def chosen_settings(play: RandomPlay) -> dict[str, Any]:
    """Choose settings by what random play shows."""
    return {
        "match": SIZE, "threads": 1, "rollout_steps": ROLLOUT, "track": ["none"], "log_every": 0,
        "context": int(np.clip(play.lengths.max(), *CONTEXT)), "time_limit": play.limit,
        "random_start_steps": 0 if play.dense else min(RANDOM_START, int(play.lengths.mean()) // 2),
        "normalize_reward": True, "normalize_observation": bool(play.unscaled),
    }  # fmt: skip


def paces(args: Args, settings: Mapping[str, Any], names: Sequence[str], rows: int) -> dict[str, float]:
    """Measure the seconds of a training step of each network; a step of an environment may wait without computing."""
    found = {}
    for name in names:
        trainer = PPOTrainer(
            PPOTrainer.configure({**args.settings(), **settings, "architecture": name, "num_envs": rows})
        )
        with closing(trainer.vector):
            trainer.begin()
            trainer.iterate()  # loads and compiles what the next ones use
            began = time.monotonic()
            trainer.iterate()
            found[name] = (time.monotonic() - began) / trainer.steps_per_iteration
    return found


def in_parallel(args: Args, runs: int) -> float:
    """Give the mean number of runs at once: of 18 runs on 16 CPUs two wait for all others."""
    return runs / math.ceil(runs / min(args.at_once, os.cpu_count() or 1))


def seconds_to_train(args: Args, began: float, runs: int, start: float = START) -> float:
    """Give the seconds for training steps of all runs, if the call `began` at this monotonic time.

    `start` is the seconds of a run that its training steps do not take.
    """
    left = 60 * args.minutes - (time.monotonic() - began) - REPORT
    return max(0.0, SPARE * (in_parallel(args, runs) * left - start * runs))


def make_plan(args: Args, play: RandomPlay, began: float) -> str:
    """Write the definition of the study: settings, and as many steps as fit into the time."""
    given, names = given_settings(args), [*CONTROLS, *MEMORIES]
    runs, length = len(names) * args.seeds, float(play.lengths.mean())
    start = START + EVALUATED * length * (time.monotonic() - began) / play.reward.size
    settings = {name: value for name, value in chosen_settings(play).items() if name not in given}
    rollout, rows = given.get("rollout_steps", ROLLOUT), given.get("num_envs")
    if rows is None:
        pace = paces(args, settings, ["gru"], CHOICES[2])["gru"]
        affordable = seconds_to_train(args, began, runs, start) / (runs * pace)
        rows = max([count for count in CHOICES if count * rollout * ITERATIONS <= affordable], default=CHOICES[0])
    each = paces(args, settings, names, rows)
    steps = int(seconds_to_train(args, began, runs, start) / (args.seeds * sum(each.values())))
    iterations = steps // (rows * rollout)
    if iterations < LEAST:
        work = args.seeds * LEAST * rows * rollout * sum(each.values()) / SPARE + start * runs
        needed = (work / in_parallel(args, runs) + time.monotonic() - began + REPORT) / 60
        raise UserError(
            f"--minutes {args.minutes:g} leaves {steps:,} steps for each of {runs} runs, in which nothing is learned; "
            f"give at least --minutes {1.1 * needed + 0.1:.1f}"
        )
    steps = iterations * rows * rollout
    settings |= {
        "num_envs": rows, "total_steps": steps, "evaluate_every": steps // CURVE, "checkpoint_every": steps // 4,
        "episodes": int(np.clip(0.03 * steps / CURVE / length, 10, 100)),
        "final_episodes": int(np.clip(0.1 * steps / length, 50, 400)),
    }  # fmt: skip
    own, (title, about) = args.settings(), args.about.split("\n")
    table = {
        "schema": SCHEMA, "title": title, "kind": "ppo", "about": f"{about} ({len(play.reward)} random steps)",
        "base": {key: value for key, value in {**own, **settings}.items() if key != "env" and value not in ([], None)},
        "axes": {
            "world": [args.env], "architecture": names,
            "seed": list(range(args.first_seed, args.first_seed + args.seeds)),
        },
        "resources": {"cpus": 1, "steps_per_second": len(names) / sum(each.values()) * SPARE, "megabytes": 2.0},
    }  # fmt: skip
    return tomli_w.dumps(table)


def planned_study(args: Args, began: float) -> tuple[Definition, RandomPlay]:
    """Read the plan of an earlier call in the folder and play as many random steps, or make a plan."""
    path, name = args.place / DEFINITION, slug(args.place.name)
    if not (args.place / STATE).exists():
        play = play_at_random(args)
        return parse_definition(make_plan(args, play, began), str(path), name), play
    definition = parse_definition(read_text(path), str(path), name)
    found = f"{definition.title}\n{definition.about}"
    if (steps := re.fullmatch(re.escape(args.about) + r" \((\d{1,4}) random steps\)", found)) is None:
        plan = " ".join(found.split())
        raise UserError(f"{args.place} holds '{plan}', not the plan of these flags; give another --folder")
    return definition, play_at_random(args, int(steps[1]))


# ---- the answers -----------------------------------------------------------------------------------------------------
def measured(args: Args, play: RandomPlay) -> tuple[Data, RandomPlay]:
    """Read the finished runs; random play and all runs count by return unless all of them report success."""
    source = open_source(args.place)
    data = collect(source)
    if play.reports_success and all(run.success for run in data.entries):
        return data, play
    return collect(replace(source, shown={"returns": True})), replace(play, reports_success=False)


def answer(args: Args, definition: Definition, data: Data, play: RandomPlay) -> Diagnosis:
    """Answer all questions from the finished runs."""
    by_series = {name: data.of(series=name) for name in data.series if data.of(series=name)}
    missing = [name for name in (*CONTROLS, *MEMORIES) if len(by_series.get(name, ())) < args.seeds]
    require(not missing, f"runs of {', '.join(missing)} have not finished; see {args.place}/logs")
    values = {name: [run.score for run in found] for name, found in by_series.items()}
    measure, episodes = "success" if play.reports_success else "return", definition.base["final_episodes"]
    random, won = play.score, [(run.score, run.last("final/success_rate")) for run in data.entries]
    win = max([float(random.max()), *(score / share for score, share in won if share)])
    scale = data.scale(data.worlds[0])
    best = scale.one if scale is not None else 1.0 if play.reports_success else None
    judged = judge(values, random, episodes, best, win)
    memory = advised(judged, by_series, float(random.mean())) if judged.verdict in (NEEDED, UNKNOWN) else None
    network = memory or next((name for name, words in CONTROLS.items() if words == judged.verdict), judged.best)
    texts = Texts(args.minutes, data, values, float(random.mean()), judged, measure)
    answers = {
        "Can anything be learned in this time?": texts.learned(),
        "Does it need a memory?": texts.needed(),
        "How far back must it look?": texts.distance(memory),
        "Which one, and what does it cost?": texts.cost(memory, network),
    }
    return Diagnosis(
        args.env, judged.verdict, answers, oddities(play), values, float(random.mean()), measure, memory,
        final_command(args, definition, network), str(args.place),
    )  # fmt: skip


def advised(judged: Judgement, by_series: Mapping[str, Sequence[FinishedRun]], random: float) -> str:
    """Choose the memory that is cheapest to train among those that score as well as the best one.

    Their mean is within MARGIN of the best memory's, and not significantly below it.
    """
    values = {name: [run.score for run in found] for name, found in by_series.items() if name in MEMORIES}
    least = float(np.mean(values[judged.memory])) * (1 - MARGIN) + MARGIN * random
    below = below_best(values)
    good = [name for name, each in values.items() if name not in below and np.mean(each) >= least]
    return min([judged.memory, *good], key=lambda name: by_series[name][0].pace)


def final_command(args: Args, definition: Definition, network: str) -> str:
    """Write the command that trains an agent with a network for three times as long."""
    kept = ("num_envs", "rollout_steps", "match", "context", "time_limit", "random_start_steps")
    scaled = ("normalize_reward", "normalize_observation")
    base, chosen = definition.base, {"env": args.env, "architecture": network}
    flags = {"config": args.config, "plugin": args.plugin, **chosen, **{name: base.get(name) for name in kept}}
    flags |= {"total_steps": 3 * base["total_steps"], **{name: base.get(name) for name in scaled}}
    return shlex.join(["python", "-m", "dqn_memory.ppo", *words_of(flags)])


# ---- the report ------------------------------------------------------------------------------------------------------
def recall_picture(data: Data, memory: str) -> Picture:
    """Draw how decisions of the advised memory's best run depend on past observations."""
    best = max(data.of(series=memory), key=lambda run: run.score)
    network, config, _ = load_network(best.run.folder)
    episodes = play_in(EvalSetup.of(config, torch.device("cpu")), network, 0, 8)
    found = recall(network, episodes, RecallConfig(), 0, config.acting_state)
    title, words = f"Influence of past observations on {memory}", "How decisions of {} depend on past observations"
    figure = plots.plot_recall(found.curve("occlusion"), found.curve("flips"), found.decisions, title, "logits")
    return Picture("recall", figure, f"{words.format(memory)}, {len(episodes)} episodes.")


def write_answers(args: Args, diagnosis: Diagnosis, data: Data) -> Path:
    """Write the report: the answers, then curves, scores and costs."""
    folder = args.place / "report"
    lead = [Markup("Made by {}: {}.").format(code(args.command), diagnosis.verdict)]
    answers = [Section(question, (text,)) for question, text in diagnosis.answers.items()]
    answers.append(Section("To train the agent", (code(diagnosis.command),)))
    odd = Section("What is odd here?", tuple(diagnosis.oddities or ["Nothing was found."]))
    makers = scores.curves_section, scores.table_section, scores.memory_section, runs.runs_section, runs.cost_section
    rest = [made for make in makers if (made := make(data)) is not None]
    memory = diagnosis.memory
    far = [Section("How far back, in a picture", (recall_picture(data, memory),))] if memory else []
    write_atomic(args.place / "diagnosis.json", json.dumps(asdict(diagnosis), indent=1).encode())
    numbers = Section("Numbers", (Markup(f"The score of each run: [{NUMBERS}]({NUMBERS})"),))
    sections = [*answers, odd, *far, *rest, numbers]
    page = write_report(folder, TITLE.format(env=args.env), lead, sections, None, args.figure_width, web=True)
    each = [(run.series, run.run.seed, run.score) for run in data.entries]
    write_atomic(folder / NUMBERS, Table(("network", "seed", diagnosis.measure), each).csv().encode())
    return page


# ---- the command -----------------------------------------------------------------------------------------------------
@process_restored()
def diagnose(env: str | gymnasium.Env[Any, Any], **options: Any) -> Diagnosis:
    """Tell which memory an environment needs, as `python -m dqn_memory.diagnose` does.

    Args:
        env: an id, or an environment that `gymnasium.make` made from an id alone; its id is then used.
        options: flags of that script by name, such as `minutes=30`, `seeds=5`, `plugin=("mine",)`. The runs train in
            processes of their own, so they import the module of an environment's class unless `plugin` is given.

    Raises:
        UserError: the environment breaks its contract, an option is wrong, or a run failed.
    """
    given = None if isinstance(env, str) else env.spec
    id = env if isinstance(env, str) else "" if given is None else given.id
    spec = gymnasium.registry.get(id)
    same = isinstance(env, str) or (spec is not None and spec == given)
    require(same, f"{env} is not as an id makes it: register it with its keywords and wrappers, and give that id")
    if spec is not None and not options.get("plugin"):
        entry = spec.entry_point
        module = entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))
        require(module != "__main__", f"{id} is of the running script, which no run imports: move it, and give plugin=")
        if not is_known(package := module.partition(".")[0]) and package != "gymnasium":
            options["plugin"] = (module,)
    names = [field.name for field in fields(Args) if field.name not in ("env", "format")]
    for name in options:
        check_known("option", name, names)
    folder = options.pop("folder", None)
    args = parse(Args, {"env": id, **options})
    return diagnose_by(args if folder is None else replace(args, folder=Path(folder)))


def diagnose_by(args: Args) -> Diagnosis:
    """Plan, train, answer and report."""
    began = time.monotonic()
    check_numbers(args)
    check_folder(args.place / "report", args.figure_width)
    load_plugins(args.plugin)
    say(f"plays {args.env} at random, and plans runs of {args.minutes:g} minutes in all")
    with faults_named(args.env):
        definition, play = planned_study(args, began)
    planned = expand(definition)
    check_study_folder(args.place, definition, planned)
    steps = definition.base["total_steps"]
    say(
        f"{len(planned)} runs of {steps:,} steps: {', '.join([*CONTROLS, *MEMORIES])}, {counted(args.seeds, 'seed')} "
        f"each, {args.at_once} at once; about {duration(60 * args.minutes)} in all, in {args.place}"
    )
    call = study_run.Args(str(args.place), folder=args.place, backend="processes", workers=args.at_once)
    study = study_run.run_study(call, definition, args.place, planned, planned)
    failed = [each for each in study.runs() if each.state == "failed"]
    if failed:
        raise UserError(f"{failed[0].name} failed: {reason(failed[0].error)} ({failed[0].log} has the rest)")
    data, play = measured(args, play)
    diagnosis = answer(args, definition, data, play)
    say(f"wrote {write_answers(args, diagnosis, data)}")
    return diagnosis


def reason(error: str) -> str:
    """Give what the last lines of a log say: its line of error, or a traceback's error with its note."""
    lines = error.splitlines()
    begins = [place for place, line in enumerate(lines) if line.startswith("error: ")]
    inside = [place + 1 for place, line in enumerate(lines[:-1]) if line.startswith("  ")]
    return "; ".join(lines[(begins or inside or [len(lines) - 1])[-1] :]).removeprefix("error: ")


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
