"""Read a run, or continue it; a few settings may change."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from dqn_memory.runs.backend import FACT, Backend
from dqn_memory.runs.base_config import EngineSetting
from dqn_memory.runs.checkpoint import Checkpoint, foreign_state
from dqn_memory.runs.errors import UserError, train_anew
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import check_kind
from dqn_memory.runs.modules import load_modules
from dqn_memory.runs.settings import Repeatable, Settings, flag_names, parse
from dqn_memory.runs.toml import defaults, flat, from_toml, to_toml
from envs.cli import load_plugins

C = TypeVar("C", bound=Any)


@dataclass(frozen=True)
class ResumeConfig:
    """Continue a run; the settings that define it cannot change."""

    resume: str
    """Run folder to continue."""
    total_steps: int | None = None
    """New length of the run in environment steps."""
    device: str | None = None
    """Another device (the resume is then not exact)."""
    engine: EngineSetting | None = None
    """Another engine (the resume is then not exact)."""
    backend: Backend | None = None
    """Another backend of mamba (the resume is then not exact)."""
    log_every: int | None = None
    """Environment steps between log lines."""
    checkpoint_every: int | None = None
    """Environment steps between checkpoints."""
    plugin: Repeatable = ()
    """Import this module, which the run names (not needed for a run that you started)."""


def read_run(run: Path, config_class: type[C]) -> tuple[Checkpoint, C]:
    """Read a run's latest checkpoint, without its replay, and the config in it; nothing is written.

    Raises:
        UserError: there is no run or no checkpoint, or it is damaged, or it has another kind.
    """
    opened = Run.open(run)
    checkpoint = opened.load(with_replay=False)
    check_kind(run, checkpoint, config_class.trainer)
    with foreign_state(run):
        text = checkpoint.header["config"]
    config = from_toml(config_class, text, f"the config in the checkpoint of {run}")
    load_modules(config, f"the run {run}", opened.config_file)
    return checkpoint, config


def reopened(argv: Settings, config_class: type[C]) -> tuple[C, Run]:
    """Open the run of --resume; give its config with the other flags laid over it, and the run."""
    _check_changes(argv, config_class)
    flags = parse(ResumeConfig, argv)
    run = Run.take_up(Path(flags.resume))
    try:
        checkpoint = run.load(with_replay=False) if run.has_checkpoint else None
        if checkpoint is not None:  # first, because each kind of run has its own form of config
            check_kind(run.path, checkpoint, config_class.trainer)
        config = from_toml(config_class, run.config_toml, str(run.path / "config.toml"))
        if checkpoint is not None:
            check_unchanged(run.path, config, checkpoint)
            if not checkpoint.trainer:
                raise UserError(f"{run.path} holds only the files for acting: {train_anew(run.path)}")
            if flags.total_steps not in (None, config.total_steps) and flags.total_steps < checkpoint.step:
                few = f"--total-steps {flags.total_steps} is below the {checkpoint.step} steps"
                raise UserError(f"{few} that {run.path} has taken")
        load_plugins(flags.plugin)
        load_modules(config, f"the run {run.path}", run.config_file)
        config, began = changed(config, flags), run.environment.get(FACT)
        if began is not None and flags.backend is None:  # the backend of mamba at the run's start
            config = replace(config, compute=replace(config.compute, backend=began))
        return config, run
    except BaseException:
        run.close()
        raise


def _check_changes(argv: Settings, config_class: type[Any]) -> None:
    """Raise a UserError for a flag of the trainer that a resume does not have."""
    words = argv if isinstance(argv, Mapping) else [word[2:].split("=")[0] for word in argv if word[:2] == "--"]
    given = [word.replace("-", "_").removeprefix("no_") for word in words]
    allowed, known = flag_names(ResumeConfig("")).values(), {"config", *flag_names(defaults(config_class)).values()}
    for name in given:
        if name in known and name not in allowed:
            listed = ", ".join(f"--{flag.replace('_', '-')}" for flag in allowed if flag != "resume")
            raise UserError(f"--{name.replace('_', '-')} cannot change in a resume; --resume takes {listed}")


def check_unchanged(run: Path, config: Any, checkpoint: Checkpoint) -> None:
    """Check that config.toml still holds the settings of the checkpoint.

    Raises:
        UserError: a setting differs; the error names the first one.
    """
    with foreign_state(run):
        saved = from_toml(type(config), checkpoint.header["config"], f"the config in the checkpoint of {run}")
    ours, theirs = (flat(tomllib.loads(to_toml(each))) for each in (config, saved))
    for path in ours.keys() | theirs.keys():
        part = path.partition(".")[0]
        if part not in ("compute", "output", "total_steps") and ours.get(path) != theirs.get(path):
            raise UserError(
                f"{run / 'config.toml'} says {path} = {ours.get(path)!r}, but the checkpoint was made with "
                f"{theirs.get(path)!r}: put that back, or {train_anew(run)}"
            )


def changed(config: C, flags: ResumeConfig) -> C:
    """Lay the flags of a resume over a trainer's config."""
    if flags.backend is not None and not hasattr(config.compute, "backend"):
        raise UserError(f"--backend {flags.backend}: this kind of run has no mamba; leave the flag out")
    engines = get_args(get_type_hints(type(config.compute))["engine"])
    if flags.engine is not None and flags.engine not in engines:
        raise UserError(f"--engine {flags.engine}: this kind of run has {' and '.join(engines)}")
    output = replace(config.output, **_given(flags, "log_every", "checkpoint_every"))
    compute = replace(config.compute, **_given(flags, "device", "engine", "backend"))
    steps = config.total_steps if flags.total_steps is None else flags.total_steps
    return replace(config, output=output, compute=compute, total_steps=steps)


def _given(flags: ResumeConfig, *names: str) -> dict[str, Any]:
    values = {name: getattr(flags, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def check_unfinished(run: Run, config: Any, steps: int, solved: bool) -> None:
    """Raise a UserError if the run is complete: all steps and the final evaluation are done."""
    last = (run.metrics() or [{}])[-1]
    if last.get("step") != steps or not any(name.startswith("final/") for name in last):
        return  # it was killed between its last step and its final checkpoint
    if solved:
        goals = {name: value for name, value in vars(config.evaluation).items() if name.startswith("stop_at")}
        flag, goal = next((name.replace("_", "-"), value) for name, value in goals.items())
        raise UserError(f"{run.path} is complete: it reached --{flag} {goal}")
    if steps >= config.total_steps:
        raise UserError(f"{run.path} is complete at {steps} steps; give a larger --total-steps to continue it")


def resumes(argv: Settings) -> bool:
    """Tell whether a command line, or settings by name, continue a run."""
    if isinstance(argv, Mapping):
        return "resume" in argv
    return any(word == "--resume" or word.startswith("--resume=") for word in argv)
