"""Evaluate a checkpoint of any kind: `python -m dqn_memory.evaluate runs/demo-1`.

This is the command; `evaluation.py` plays the episodes, `intervals.py` computes the intervals. It prints success,
return and length. A Q-network takes its best actions; UniZero takes the most
visited ones of a search without noise. Agents of PPO and GLAM play twice: with drawn actions, as in training, and with
the most probable ones.

If an environment has finitely many initial states, an agent that draws no actions plays from each of them once, and
there are no intervals. Otherwise initial states are drawn, and intervals are 95 %: Wilson's for success, normal ones
for means. The environment defines success. If it defines none, the return comes first and no success is printed; the
JSON output then says success_told: false, and its success is the share of episodes with a return above 0.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import tyro

from dqn_memory.analysis.episodes import action_names, play_in
from dqn_memory.evaluation import Evaluation, EvaluationOptions, evaluation_setups, lines, load_network
from dqn_memory.evaluation import fields as measures
from dqn_memory.runs.backend import log_backend
from dqn_memory.runs.common import ComputeConfig
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run, RunArgument
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.modules import module_of
from dqn_memory.runs.settings import check_numbers
from envs.baselines import reference_summary
from envs.cli import load_plugins
from envs.terminal import say


@dataclass(frozen=True)
class Args(EvaluationOptions, RunArgument):
    """Play a run's latest checkpoint without learning, and print its scores with 95 % intervals."""

    format: Literal["text", "json"] = "text"
    """Form of the printed scores; with json, messages go to standard error."""


# Options of some kinds of run only; each trainer lists its own.
OPTIONAL = (
    "episodes", "num_eval_envs", "episodes_per_env", "simulations", "policy", "video", "video_episodes", "overwrite",
)  # fmt: skip


def evaluate_folder(folder: Path, args: Args) -> Evaluation:
    """Evaluate the agent of a run of any kind.

    Raises:
        UserError: no trainer has the run's kind, or an option is not for that kind.
    """
    load_plugins([*args.plugin, *module_of(args.env)])
    kind = kind_of(Run.open(folder).load(with_replay=False))
    trainer = trainer_class(kind)
    given = [option.name for option in fields(EvaluationOptions) if getattr(args, option.name) != option.default]
    wrong = [name for name in given if name in OPTIONAL and name not in trainer.evaluation_flags]
    if wrong:
        flag, *known = (f"--{name.replace('_', '-')}" for name in (wrong[0], *trainer.evaluation_flags))
        raise UserError(f"{flag} is not for runs of the kind '{kind}'; its own are {', '.join(known)}")
    for name in ("video_episodes", "overwrite"):
        if args.video is None and name in given:
            raise UserError(f"--{name.replace('_', '-')} needs --video too, such as --video episode.gif")
    if args.video is not None:
        record_video(folder, args, args.video)
    return trainer.evaluate_run(folder, args)


def record_video(folder: Path, args: Args, file: str) -> None:
    """Write a video of the first episodes that the network of a run plays.

    With --reset-memory the video shows no attention.
    """
    from dqn_memory.analysis.video import Looks, check_target, save_video  # needs the extra `plots`

    device = ComputeConfig(args.device, args.threads).start()
    check_target(Path(file), args.overwrite)
    network, config, _ = load_network(folder, device)
    setup = next(iter(evaluation_setups(args, config, network, device).values()))
    episodes = play_in(setup, network, args.seed, args.video_episodes, draw=True)
    seen = [] if args.reset_memory else episodes
    looks = [Looks.of_episode(network, episode, config.acting_state) for episode in seen]
    save_video(Path(file), episodes, action_names(setup), looks)
    say(f"wrote {file}", file=sys.stderr)


def as_text(folder: Path, args: Args, evaluation: Evaluation) -> str:
    """Write a few lines for people, with the environment's reference scores beside the success rate."""
    blind = ", forgetting everything before each step" if args.reset_memory else ""
    text = [f"{folder} at step {evaluation.step:,}: {evaluation.agent} in {evaluation.env}{blind}"]
    for policy, score in evaluation.scores.items():
        how = f"{policy} actions, " if policy else ""
        if score.exhaustive:
            how += f"exhaustive: each of the {score.episodes:,} initial states of the deterministic environment once"
        else:
            how += f"{score.episodes:,} episodes with seed {args.seed}, 95 % intervals"
        first, *others = lines(score)
        if score.env_reports_success:
            what = " initial states" if score.exhaustive else ""
            known = reference_summary(float(score.success.mean()), evaluation.env, evaluation.env_kwargs)
            first += f"   {int(score.success.sum()):,} of {score.episodes:,}{what}{known}"
        indent = "  " if policy else ""
        text += [how, *(f"{indent}{line}" for line in (first, *others))]
    return "\n".join(text)


def as_json(folder: Path, args: Args, evaluation: Evaluation) -> str:
    """Write one JSON object for programs; it holds an object for each policy, if there are several."""
    facts = {"run": str(folder), "step": evaluation.step, "env": evaluation.env, "seed": args.seed}
    facts |= {"reset_memory": args.reset_memory} | evaluation.facts
    parts = {
        policy: {
            "episodes": score.episodes,
            "exhaustive": score.exhaustive,
            "success_told": score.env_reports_success,
        }
        | measures(score)
        for policy, score in evaluation.scores.items()
    }
    return json.dumps(facts | parts.pop("", {}) | parts, indent=1)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, print."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.evaluate")
    check_numbers(args)
    folder = args.chosen_run()
    evaluation = evaluate_folder(folder, args)
    device = ComputeConfig(args.device).torch_device()
    log_backend(evaluation.backend, device, to=sys.stderr if args.format == "json" else None)
    say(as_json(folder, args, evaluation) if args.format == "json" else as_text(folder, args, evaluation))


if __name__ == "__main__":
    main()
