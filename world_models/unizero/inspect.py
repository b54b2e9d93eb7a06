"""Look into a UniZero checkpoint, what it has learned and predicts: `python -m world_models.unizero.inspect RUN`.

Plays an episode without noise and writes into RUN/inspect: learned mu, sigma and span of each layer and head beside
their start ("Learning to Focus", Figure 5), attention maps over the tokens of one window (its thesis, Figures 5, 8-10),
the steps up to there in four rows (true and predicted reward, frames, policy before and after the search; Figures
11-12), and one head's map with the frames of its strongest link (Figure 6). Prediction errors over all steps are
printed, and stand with each step's numbers in trajectory.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from matplotlib.figure import Figure

from dqn_memory.analysis import plots
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import run_folder
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.files import disk_errors, write_atomic
from world_models.unizero import plots as model_plots
from world_models.unizero.analysis import Choice, Errors, Findings, Link, first_values, investigate, returns_to_go
from world_models.unizero.config import ComputeConfig


@dataclass(frozen=True)
class Args:
    """Draw what a run's latest checkpoint has learned, attends to and predicts, and measure its predictions."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    choice: tyro.conf.OmitArgPrefixes[Choice] = field(default_factory=Choice)
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: Annotated[int, Bounds(1)] | None = None
    """CPU threads of torch (None: torch's own choice)."""

    def check(self) -> None:
        """Raise UserError for a number that cannot work."""
        check_numbers(self)


def draw(folder: Path, found: Findings) -> list[Path]:
    """Draw all pictures; returns the files written."""
    figures: dict[str, Figure] = {"trajectory.png": _trajectory(found)}
    if found.values:
        figures["learned.png"] = _learned(found)
    tables, meaning = found.tables
    if tables:
        title = f"Attention priors by distance\n{found.about}"
        figures["priors.png"] = plots.prior_tables(tables, title, meaning, "tokens, two a step")
    if len(found.maps):
        title = f"Attention over steps {found.first} to {found.last}\n{found.about}"
        figures["attention.png"] = plots.token_maps(found.maps, title, found.first)
    if found.link is not None and found.seen.frames:
        figures["link.png"] = _link(found, found.link)
    return [plots.save(figure, folder / name) for name, figure in figures.items()]


def _learned(found: Findings) -> Figure:
    runs = len(next(iter(found.values.values())))
    over = f"\nmean and standard deviation of {runs} runs" if runs > 1 else ""
    title = f"Learned attention priors\n{found.about}{over}"
    return plots.learned_values(found.values, first_values(found.config.model), title)


def _trajectory(found: Findings) -> Figure:
    seen, part = found.seen, slice(found.shown, found.last + 1)
    steps = model_plots.Steps(
        reward=seen.reward[part], predicted=seen.predicted_reward[part], frames=seen.frames[part],
        prior=seen.prior[part], searched=seen.searched[part], action=seen.action[part], first=found.shown,
    )  # fmt: skip
    title = f"Steps {found.shown} to {found.last} of {len(seen)}\n{found.about}"
    caption = f"{reward_words(found.errors)}\n{latent_words(found.errors)}"
    return model_plots.trajectory(steps, title, caption, found.names)


def _link(found: Findings, link: Link) -> Figure:
    part = slice(found.first, found.last + 1)
    actions = [found.action_word(int(action)) for action in found.seen.action[part]]
    title = (
        f"Strongest link of layer {link.layer}, head {link.head}: weight {link.weight:.2f}, {link.lift:.1f} times an "
        f"even share, {abs(link.query - link.key)} tokens apart\n{found.about}"
    )
    maps, frames = found.maps[link.layer, link.head], found.seen.frames[part]
    return model_plots.link(maps, link.query, link.key, frames, title, actions, found.first)


def reward_words(found: Errors) -> str:
    """Describe the error of the predicted rewards."""
    return (
        f"reward: mean |error| {found.reward_mean_absolute:.3g}, largest {found.reward_largest:.3g} over all "
        f"{found.steps} steps (rewards spread by {found.reward_spread:.3g})"
    )


def latent_words(found: Errors) -> str:
    """Describe the error of the predicted latents."""
    return (
        f"next latent: {found.latent_divergence:.3g} nats a group from what was seen "
        f"({found.latent_divergence_unchanged:.3g} if nothing were to change)"
    )


def as_text(found: Findings) -> str:
    """Write all errors, a line each."""
    error = found.errors
    lines = [reward_words(error), latent_words(error)]
    if error.value_mean_absolute is None:
        lines.append("value: not measured, as the episode has no end among these steps")
    else:
        lines.append(
            f"value: mean |error| {error.value_mean_absolute:.3g} over {error.value_steps} steps "
            f"(returns spread by {error.value_spread:.3g})"
        )
    lines.append(
        f"search: {error.search_divergence:.3g} nats from the policy before it, "
        f"which prefers the same action at {error.search_agreement:.0%} of the steps"
    )
    return "\n".join(lines)


def facts(found: Findings, seed: int) -> dict[str, Any]:
    """Give the content of inspect.json."""
    model, seen = found.config.model, found.seen
    return {
        "step": found.step, "env": found.config.environment.env, "dynamics": model.dynamics, "prior": model.prior.kind,
        "seed": seed,
        "episode": {"steps": len(seen), "done": seen.done, "return": seen.episode_return},
        "window": {"first_step": found.first, "last_step": found.last},
        "errors": asdict(found.errors),
        "start": first_values(model),
        "learned": {name: values.tolist() for name, values in found.values.items()},
        "link": None if found.link is None else asdict(found.link),
    }  # fmt: skip


def steps(found: Findings) -> dict[str, Any]:
    """Give the content of trajectory.json: the errors, and the numbers of every step."""
    seen = found.seen
    returns = returns_to_go(seen.reward, seen.ended, found.config.learner.gamma)
    numbers = {
        name: getattr(seen, name).tolist()
        for name in ("action", "reward", "predicted_reward", "value", "prior", "searched", "latent_error",
                     "latent_change")
    }  # fmt: skip
    known = [None if value != value else value for value in returns.tolist()]
    return {"errors": asdict(found.errors), "gamma": found.config.learner.gamma} | numbers | {"return_to_go": known}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, measure, draw."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.unizero.inspect")
    args.check()
    run = run_folder(args.folder, args.run)
    found = investigate(run, ComputeConfig(args.device, args.threads).start(), args.choice)
    folder = run / "inspect"
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    written = draw(folder, found)
    report = facts(found, args.choice.seed) | {"pictures": [path.name for path in written]}
    for name, content in (("trajectory.json", steps(found)), ("inspect.json", report)):
        write_atomic(folder / name, json.dumps(content, indent=1).encode())
        written.append(folder / name)
    print(f"{run} at step {found.step:,}: {len(found.seen)} steps, return {found.seen.episode_return:.2f}")
    print(as_text(found))
    print("\n".join(f"wrote {path}" for path in written))


if __name__ == "__main__":
    main()
