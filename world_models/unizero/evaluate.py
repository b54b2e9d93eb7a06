"""How well a UniZero checkpoint plays: `python -m world_models.unizero.evaluate RUN`.

Plays without noise, always the most visited action, and prints return, success and length with 95 % intervals (Wilson's
for the success rate, the normal one for the means).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import tyro

from dqn_memory.agent import run_folder
from dqn_memory.network import observation_spec
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.score import Score, fields, lines, place
from world_models.unizero.acting import Arena, evaluate, load_model
from world_models.unizero.config import ComputeConfig, TrainConfig
from world_models.unizero.networks import WorldModel


@dataclass(frozen=True)
class Args:
    """Play a run's latest checkpoint without noise and say how well it does, with 95 % intervals."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    rows: int = 20
    """Worlds played in at once."""
    quota: int = 5
    """Episodes of each world."""
    seed: int = 0
    """Seed of the worlds and of the searches' ties."""
    simulations: int | None = None
    """Expansions of each search (None: as in training)."""
    env: str | None = None
    """Another world with the same observations and actions (None: the one trained in)."""
    forget: bool = False
    """Forget everything before each step: what the agent does without its memory."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""
    format: Literal["text", "json"] = "text"
    """What is printed."""

    def check(self) -> None:
        """One sentence for numbers that make no sense."""
        for name in ("rows", "quota", "simulations", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} must be at least 1")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative")


def make_arena(args: Args, config: TrainConfig, model: WorldModel) -> Arena:
    """Where to evaluate; a UserError says why the model cannot act in another world."""
    device = ComputeConfig(args.device).torch_device()
    arena = replace(Arena.of(config, device).with_simulations(args.simulations), forget=args.forget)
    if args.env is None:
        return arena
    there = replace(config, environment=replace(config.environment, env=args.env, path=None))
    arena = replace(arena, env=args.env, env_kwargs=there.env_kwargs(training=False))
    other = arena.fleet(1, 0)
    spec, actions = observation_spec(other.observation_space), other.num_actions
    if (spec, actions) != (model.spec, model.num_actions):
        raise UserError(
            f"--env {args.env} has {spec.kind} observations of shape {spec.shape} and {actions} actions, but the model "
            f"was trained in {config.environment.env} with {model.spec.kind} ones of {model.spec.shape} and "
            f"{model.num_actions}"
        )
    return arena


def as_text(where: str, score: Score) -> str:
    """A few lines for people."""
    return "\n".join([where, f"{score.episodes} episodes, 95 % intervals", *lines(score)])


def as_json(facts: dict[str, Any], score: Score) -> str:
    """One object for programs."""
    return json.dumps(facts | {"episodes": score.episodes, "success_told": score.told} | fields(score), indent=1)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, print."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.unizero.evaluate")
    args.check()
    folder, device = run_folder(args.folder, args.run), ComputeConfig(args.device, args.threads).start()
    model, config, step = load_model(folder, device)
    arena = make_arena(args, config, model)
    score = evaluate(model, arena, args.rows, args.quota, args.seed)
    form, prior, simulations = config.model.dynamics, config.model.prior.kind, arena.search.simulations
    if args.format == "json":
        facts = {
            "run": str(folder), "step": step, "env": arena.env, "dynamics": form, "prior": prior,
            "simulations": simulations, "seed": args.seed, "forget": arena.forget,
        }  # fmt: skip
        print(as_json(facts, score))
    else:
        about = f"{form} dynamics, {prior} prior, {simulations} simulations"
        print(as_text(f"{folder} at step {step:,}: {about}, in {place(arena.env, arena.forget)}", score))


if __name__ == "__main__":
    main()
