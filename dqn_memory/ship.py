"""Make a small run folder of a finished one: `python -m dqn_memory.ship runs/demo-1 demo`.

It keeps what acting needs and what the run's numbers mean: the config, the weights that are evaluated (averaged ones
where the run averages), the machine and revision, and the metrics of its evaluations. `evaluate`, `inspect`, `watch`
and `Agent.load` read it as any other run; it cannot be resumed. The agents in the package were made by it.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from dqn_memory.config import TrainConfig
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import LOCK, Run
from dqn_memory.runs.metrics import FINAL, METRICS
from dqn_memory.runs.modules import modules_of, remember
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.settings import Repeatable
from dqn_memory.runs.toml import to_toml
from envs.cli import load_plugins
from envs.files import write_atomic
from envs.terminal import say

KEPT = ("step", "eval/", FINAL, "memory_ablation/")


@dataclass(frozen=True)
class Args:
    """Make a small run folder of a finished run of a Q-network, to be given to others."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """New folder, whose name is the agent's."""
    plugin: Repeatable = ()
    """Module that may be imported as the run names it; of a run that you started yourself none need be given."""


def ship(run: Path, folder: Path) -> None:
    """Write the small run folder.

    Raises:
        UserError: the run is not finished or of another kind, or there is something in the folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose another folder")
    others = "ship takes runs of dqn_memory.train alone; give this one as the folder that it is"
    checkpoint, config = read_run(run, TrainConfig, others)
    source = Run.open(run)
    metrics = [{name: line[name] for name in line if name.startswith(KEPT)} for line in source.metrics()]
    if not any(name.startswith(FINAL) for name in (metrics or [{}])[-1]):
        raise UserError(f"{run} is not finished: its metrics have no final evaluation; finish it with --resume {run}")
    part = "average" if checkpoint.part("average") else "network"
    weights = {f"{part}.{name}": weight for name, weight in checkpoint.part(part).items()}
    text = to_toml(replace(config, output=replace(config.output, run=None)))
    facts = source.environment  # empty where the run died before that was written
    words = shlex.split(facts.get("command", ""))
    kept = [word for before, word in zip(["", *words], words, strict=False)
            if "--run" not in (before, word) and not word.startswith("--run=")]  # fmt: skip
    command = shlex.join(kept)
    with Run.create(folder, text, facts=facts | {"command": command}) as made:
        lines = [json.dumps(line) + "\n" for line in metrics if len(line) > 1]
        write_atomic(folder / METRICS, "".join(lines).encode())
        made.save(checkpoint.step, weights, {}, header=checkpoint.header | {"config": text})
    (folder / LOCK).unlink(missing_ok=True)
    remember(made.config_file, modules_of(config))


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Write it and say how large it is."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.ship")
    folder = Path(args.folder)
    load_plugins(args.plugin)
    ship(Path(args.run), folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"wrote {folder}, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
