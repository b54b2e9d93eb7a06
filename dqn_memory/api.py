"""Use the suite from Python: train, evaluate, read a run's metrics, and act with a trained agent.

    from dqn_memory.api import Agent, evaluate, load_run, train

    run, score = train(config="demo", seed=1)  # or train("ppo", env="POMDP/CarFlag-v0", total_steps=600_000)
    print(score.success_rate, evaluate(run).score.returns.mean())
    step, success = load_run(run).metrics["eval/success_rate"]
    score = Agent.load(run).play(gymnasium.make("Gridverse/Memory-5x5-v0"), episodes=50)

Wrong arguments and damaged runs raise a `UserError`, a ValueError of one sentence. The caller's global random states,
number of threads and precisions stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dqn_memory.agent import Agent
from dqn_memory.evaluate import Args, Evaluation, evaluate_folder
from dqn_memory.play import Score
from dqn_memory.runs.callbacks import Callback, check_callbacks
from dqn_memory.runs.errors import UserError, check_known, near_names
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.process import process_restored
from dqn_memory.runs.settings import check_numbers, parse
from dqn_memory.runs.toml import parse_toml
from envs.cli import load_plugins
from envs.spaces import Array

__all__ = ["Agent", "Callback", "RunData", "Series", "UserError", "evaluate", "load_run", "train"]


@process_restored()
def train(
    kind: str = "q_network", *, plugins: Sequence[str] = (), callbacks: Sequence[Callback] = (), **settings: Any
) -> tuple[Path, Score]:
    """Train an agent to the end of its run, or resume a run.

    Args:
        kind: the trainer: "q_network", "pqn", "ppo", "unizero", "glam", or one of another package.
        settings: the trainer's flags by name, with underscores: `total_steps=5_000`, `prior="local"`. `config` names
            one or several presets or TOML files; the other settings override them. `resume="runs/mine"` resumes a run,
            with the flags of `--resume`.
        plugins: modules to import, as `--plugin` does; a preset or a run that names others is refused.
        callbacks: objects that are called at log lines, evaluations and checkpoints, and that can stop the run.

    Returns:
        The run's folder, and the score of its last evaluation.

    Raises:
        UserError: a setting is unknown or cannot work, or the folder holds a run already.
        Exception: what a callback raises; a checkpoint is written first.
    """
    check_callbacks(callbacks)
    if plugins:
        settings["plugin"] = [*settings.get("plugin", ()), *plugins]
    trainer, run = trainer_class(kind).start(settings)
    with run:
        score = trainer.train(run, callbacks)
    return run.path, score


@process_restored()
def evaluate(run: Path | str, *, plugins: Sequence[str] = (), **options: Any) -> Evaluation:
    """Play a run's latest checkpoint without learning, as `python -m dqn_memory.evaluate` does.

    Args:
        run: the run's folder.
        plugins: modules named by the run that may be imported. A run that you started yourself needs none.
        options: flags of that script by name, such as `episodes=200`, `reset_memory=True`, `seed=3`.

    Returns:
        The checkpoint's step and its scores; `.score` is that of the policy used in training.

    Raises:
        UserError: there is no such run, or an option is unknown or not for runs of its kind.
    """
    known = [option.name for option in fields(Args) if option.name not in ("folder", "run", "plugin", "format")]
    for name in options:
        check_known("option", name, known)
    args = parse(Args, options | {"plugin": plugins})
    check_numbers(args)
    return evaluate_folder(Path(run), args)


class Series(NamedTuple):
    """A scalar over the environment steps at which it was recorded; NaN where it was not finite."""

    step: Array  # (L,) int64
    value: Array  # (L,) float64


class Metrics(dict[str, Series]):
    """Scalars by name. An unknown name raises a UserError with similar names."""

    def __missing__(self, name: str) -> Series:
        raise UserError(near_names("metric", name, self))


@dataclass(frozen=True)
class RunData:
    """Config, environment and metrics of a run.

    Attributes:
        path: the folder.
        config: its config.toml, as nested dictionaries.
        environment: versions, revision and device at the start of the run.
        metrics: every recorded scalar by name.
    """

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, Series]

    def frame(self) -> Any:
        """Make a pandas DataFrame, a row an environment step and a column a scalar.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise UserError("frame() needs pandas, which is not installed here: pip install pandas") from None
        columns = {name: pandas.Series(series.value, series.step) for name, series in self.metrics.items()}
        columns = {name: column[~column.index.duplicated(keep="last")] for name, column in columns.items()}
        return pandas.DataFrame(columns).rename_axis("step")


def load_run(path: Path | str, *, plugins: Sequence[str] = ()) -> RunData:
    """Read the config and all metrics of a run, finished or not; nothing is written.

    `plugins` are imported. No other module that the run names is imported.

    Raises:
        UserError: there is no run, or a file of it is damaged.
    """
    load_plugins(plugins)
    run = Run.open(path)
    lines = run.metrics()
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    metrics = Metrics()
    for name in names:
        step, value = zip(*((line["step"], line[name]) for line in lines if name in line), strict=True)
        metrics[name] = Series(np.array(step, np.int64), np.array(value, np.float64))
    return RunData(run.path, parse_toml(run.config_toml, str(run.config_file)), run.environment, metrics)
