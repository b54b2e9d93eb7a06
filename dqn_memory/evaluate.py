"""How well a checkpoint of any kind does: `python -m dqn_memory.evaluate runs/demo-1`.

Plays episodes and prints success, return and length. A Q-network takes its best actions, UniZero the most visited ones
of a search without noise; agents of PPO and GLAM play twice, with drawn actions, as in training, and with the most
probable ones. By best actions an environment with finitely many initial states is tried from each of them once, which
leaves no interval to give. Else episodes are drawn: 95 % intervals, Wilson's of success, normal ones of means. Success
is what the environment says; where it defines none, the return comes first and no success is printed (JSON:
success_told is false, and the fields of success hold the share of episodes with a return above 0).
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import tyro

from dqn_memory.runs.backend import log_backend
from dqn_memory.runs.common import ComputeConfig
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run, RunArgument
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.modules import module_of
from dqn_memory.runs.score import Evaluation, EvaluationOptions, lines
from dqn_memory.runs.score import fields as measures
from dqn_memory.runs.settings import check_numbers
from envs.baselines import baseline_summary
from envs.cli import load_plugins
from envs.terminal import say


@dataclass(frozen=True)
class Args(EvaluationOptions, RunArgument):
    """Play a run's latest checkpoint without learning and say how well it does, with 95 % intervals."""

    format: Literal["text", "json"] = "text"
    """What is printed; with json, messages go to standard error."""


# Options that not every kind of run has; the trainers name theirs.
OWN = ("episodes", "num_eval_envs", "episodes_per_env", "simulations", "policy", "video", "video_episodes", "overwrite")


def evaluate_folder(folder: Path, args: Args) -> Evaluation:
    """Let the trainer that a run's checkpoint names evaluate its agent.

    Raises:
        UserError: nobody knows the run's kind, or an option is not for it.
    """
    load_plugins([*args.plugin, *module_of(args.env)])
    kind = kind_of(Run.open(folder).load(with_replay=False))
    trainer = trainer_class(kind)
    given = [option.name for option in fields(EvaluationOptions) if getattr(args, option.name) != option.default]
    wrong = [name for name in given if name in OWN and name not in trainer.evaluation_flags]
    if wrong:
        flag, *known = (f"--{name.replace('_', '-')}" for name in (wrong[0], *trainer.evaluation_flags))
        raise UserError(f"{flag} is not for runs of the kind '{kind}'; its own are {', '.join(known)}")
    for name in ("video_episodes", "overwrite"):
        if args.video is None and name in given:
            raise UserError(f"--{name.replace('_', '-')} is about the video; give --video too, such as episode.gif")
    return trainer.evaluate_run(folder, args)


def as_text(folder: Path, args: Args, found: Evaluation) -> str:
    """Write a few lines for people; what others reach in this environment stands beside the success rate."""
    blind = ", forgetting everything before each step" if args.reset_memory else ""
    text = [f"{folder} at step {found.step:,}: {found.agent} in {found.env}{blind}"]
    for policy, score in found.scores.items():
        how = f"{policy} actions, " if policy else ""
        if score.exhaustive:
            how += f"exhaustive: each of the {score.episodes:,} initial states of the deterministic environment once"
        else:
            how += f"{score.episodes:,} episodes with seed {args.seed}, 95 % intervals"
        first, *others = lines(score)
        if score.env_reports_success:
            what = " initial states" if score.exhaustive else ""
            known = baseline_summary(float(score.success.mean()), found.env, found.env_kwargs)
            first += f"   {int(score.success.sum()):,} of {score.episodes:,}{what}{known}"
        indent = "  " if policy else ""
        text += [how, *(f"{indent}{line}" for line in (first, *others))]
    return "\n".join(text)


def as_json(folder: Path, args: Args, found: Evaluation) -> str:
    """One object for programs; where there are several policies, an object for each inside it."""
    facts = {"run": str(folder), "step": found.step, "env": found.env, "seed": args.seed}
    facts |= {"reset_memory": args.reset_memory} | found.facts
    parts = {
        policy: {
            "episodes": score.episodes,
            "exhaustive": score.exhaustive,
            "success_told": score.env_reports_success,
        }
        | measures(score)
        for policy, score in found.scores.items()
    }
    return json.dumps(facts | parts.pop("", {}) | parts, indent=1)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, print."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.evaluate")
    check_numbers(args)
    folder = args.chosen_run()
    found = evaluate_folder(folder, args)
    device = ComputeConfig(args.device).torch_device()
    log_backend(found.backend, device, to=sys.stderr if args.format == "json" else None)
    say(as_json(folder, args, found) if args.format == "json" else as_text(folder, args, found))


if __name__ == "__main__":
    main()
