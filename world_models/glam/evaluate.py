"""How well a GLAM checkpoint plays: `python -m world_models.glam.evaluate RUN`.

Plays the same worlds with drawn actions, as in training, and with the most probable ones, and prints return, success
and length of both with 95 % intervals (Wilson's for the success rate, the normal one for the means).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import tyro

from dqn_memory.agent import run_folder
from dqn_memory.runs import backend
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.score import Score, fields, lines, place
from world_models.glam.config import ComputeConfig
from world_models.glam.evaluation import Arena, PolicyScore, evaluate
from world_models.glam.loading import Trained, check_frames, load


@dataclass(frozen=True)
class Args:
    """Play a run's latest checkpoint and say how well it does, with 95 % intervals."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    policy: Literal["both", "sampled", "greedy"] = "both"
    """`sampled` draws actions as in training, `greedy` takes the most probable ones."""
    rows: int = 20
    """Worlds played in at once."""
    quota: int = 5
    """Episodes of each world."""
    seed: int = 0
    """Seed of the worlds and of what is drawn."""
    env: str | None = None
    """Another world with frames of the same size and as many actions (None: the one trained in)."""
    forget: bool = False
    """Forget everything before each step: what the agent does without its memory."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""
    format: Literal["text", "json"] = "text"
    """What is printed; with json, messages go to standard error."""

    def check(self) -> None:
        """One sentence for numbers that make no sense."""
        for name in ("rows", "quota", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} must be at least 1")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative")


def chosen(args: Args, found: Trained) -> Trained:
    """What was trained, with the policies and the world that the flags say; a UserError where it cannot act there."""
    config = replace(found.config, evaluation=replace(found.config.evaluation, policy=args.policy))
    if args.env is None:
        return replace(found, config=config)
    config = replace(config, environment=replace(config.environment, env=args.env, path=None))
    fleet = Arena.of(config, next(found.model.parameters()).device).fleet(1, 0)
    check_frames(fleet, config)
    if fleet.num_actions != found.model.actions:
        raise UserError(
            f"--env {args.env} has {fleet.num_actions} actions, but the agent was trained with {found.model.actions}"
        )
    return replace(found, config=config)


def by_policy(score: PolicyScore, policy: str) -> dict[str, Score]:
    """The scores by the policies' names."""
    if policy != "both" or score.greedy is None:
        return {policy: score}
    return {"sampled": score, "greedy": score.greedy}


def as_text(where: str, scores: dict[str, Score]) -> str:
    """A few lines for people."""
    text = [where]
    for policy, score in scores.items():
        text.append(f"{policy} actions, {score.episodes} episodes, 95 % intervals")
        text += [f"  {line}" for line in lines(score)]
    return "\n".join(text)


def as_json(facts: dict[str, Any], scores: dict[str, Score]) -> str:
    """One object for programs."""
    return json.dumps(facts | {policy: _measures(score) for policy, score in scores.items()}, indent=1)


def _measures(score: Score) -> dict[str, Any]:
    return {"episodes": score.episodes, "success_told": score.told} | fields(score)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, print."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.glam.evaluate")
    args.check()
    folder, device = run_folder(args.folder, args.run), ComputeConfig(args.device, args.threads).start()
    found = chosen(args, load(folder, device))
    backend.log_backend(found.backend, device, to=sys.stderr if args.format == "json" else None)
    config = found.config
    arena = replace(Arena.of(config, device), forget=args.forget)
    score = evaluate(found.model, found.agent, arena, config, args.rows, args.quota, args.seed)
    scores = by_policy(score, args.policy)
    if args.format == "json":
        facts = {
            "run": str(folder), "step": found.step, "env": arena.env, "sequence": config.model.sequence,
            "seed": args.seed, "forget": arena.forget, **backend.facts(found.backend),
        }  # fmt: skip
        print(as_json(facts, scores))
    else:
        where = f"{config.model.sequence} in {place(arena.env, arena.forget)}"
        print(as_text(f"{folder} at step {found.step:,}: {where}", scores))


if __name__ == "__main__":
    main()
