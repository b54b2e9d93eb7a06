"""Inspect attention and predictions of a UniZero checkpoint: `python -m world_models.unizero.inspect RUN`.

Plays an episode without noise and writes into RUN/inspect:

- learned.png: learned mu, sigma and span of each layer and head, and their first values ("Learning to Focus", Figure 5)
- priors.png, attention.png: attention priors by distance, and attention maps over the tokens of one window
- trajectory.png: reward, frames, and policy before and after the search, step by step (the thesis, Figures 11-12)
- inspect.json, trajectory.json: the prediction errors over all steps, which are also printed, and each step's numbers
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import prior_tables
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import RunArgument
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.extras import extra
from envs.files import check_inside, make_inside, write_atomic
from envs.registry import WORLDS, make_world
from envs.spaces import Array
from envs.terminal import say
from world_models.settings import WorldModelComputeConfig
from world_models.trainer import EvalEnvironments
from world_models.unizero import analysis
from world_models.unizero import plots as model_plots
from world_models.unizero.acting import UniZeroAgent
from world_models.unizero.analysis import Trajectory
from world_models.unizero.config import UniZeroConfig
from world_models.unizero.networks import UniZeroModel

with extra("plots"):
    from matplotlib.figure import Figure

COLUMNS = 10  # steps in trajectory.png


@dataclass(frozen=True)
class Args(RunArgument):
    """Draw attention and predictions of a run's latest checkpoint, and measure the predictions.

    Older files in RUN/inspect are replaced.
    """

    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the environment and of the search's ties."""
    max_episode_steps: Annotated[int, Bounds(1)] = analysis.MAX_STEPS
    """Maximum number of steps of the episode."""
    simulations: Annotated[int, Bounds(1)] | None = None
    """Expansions of each search (None: as in training)."""
    frames: bool = True
    """Show the environment's images; use --no-frames if the environment draws none."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""


@dataclass(frozen=True)
class InspectedRun:
    """The results for one checkpoint, to be drawn and written."""

    model: UniZeroModel
    config: UniZeroConfig
    step: int  # the checkpoint's
    seen: Trajectory
    errors: dict[str, Any]
    values: dict[str, Array]  # (1, L, H) learned, by name
    window: slice  # steps whose attention is drawn
    maps: Array  # (L, H, 2T, 2T) of these
    shown: slice  # steps in trajectory.png
    names: list[str]  # of the actions


def investigate(run: Path, args: Args) -> InspectedRun:
    """Load, play and measure; nothing is written."""
    device = WorldModelComputeConfig(args.device, args.threads).start()
    agent = UniZeroAgent.load(run, device)
    model, config, step = agent.model, agent.config, agent.step
    setup, searched = EvalEnvironments.of(config, device), agent.with_simulations(args.simulations).config
    ours = setup.env.removeprefix("envs:") in WORLDS
    names = make_world(setup.env, **setup.env_kwargs).action_names if ours else ()
    if args.frames and not ours and not setup.env.startswith("ALE/"):  # others render only on request
        setup = replace(setup, env_kwargs=setup.env_kwargs | {"render_mode": "rgb_array"})
    seen = analysis.play_trajectory(model, setup, searched, args.seed, args.max_episode_steps, args.frames)
    window = analysis.chosen_window(seen, config.model.horizon)
    maps = analysis.window_attention(model, seen.latent[window], torch.from_numpy(seen.action[window]))
    return InspectedRun(
        model=model, config=config, step=step, seen=seen, errors=analysis.errors(seen, config.learner.gamma),
        values={name: values[None] for name, values in analysis.learned_prior_values(model).items()},
        window=window, maps=maps, shown=slice(max(0, window.stop - COLUMNS), window.stop),
        names=[*names, *(f"action {number}" for number in range(len(names), model.num_actions))],
    )  # fmt: skip


def draw_pictures(folder: Path, found: InspectedRun) -> list[Path]:
    """Draw all figures; return the files written."""
    figures, seen, first, model = dict[str, Figure](), found.seen, found.window.start, found.config.model
    form = f"{model.prior.kind} prior" if model.dynamics == "transformer" else f"{model.dynamics} dynamics"
    about = f"{found.config.environment.env}, {form}, checkpoint of step {found.step:,}"
    title = f"Steps {found.shown.start} to {found.shown.stop - 1} of {len(seen)}\n{about}"
    error = found.errors["reward_mean_absolute"]
    caption = f"reward: mean |error| {error:.3g} over all steps (rewards spread by {found.errors['reward_spread']:.3g})"
    steps = seen[found.shown]
    figures["trajectory.png"] = model_plots.trajectory(steps, title, found.names, caption, found.shown.start)
    if found.values:
        title = f"Learned attention priors\n{about}"
        figures["learned.png"] = plots.plot_learned_values(found.values, analysis.first_prior_values(model), title)
    priors = {layer: attention.prior for layer, attention in enumerate(found.model.attentions())}
    tables, meaning = prior_tables(priors, 2 * model.horizon)
    if tables:
        title = f"Attention priors by distance\n{about}"
        figures["priors.png"] = plots.plot_prior_tables(tables, title, meaning, "tokens, two a step")
    if len(found.maps):
        title = f"Attention over steps {first} to {found.window.stop - 1}\n{about}"
        figures["attention.png"] = plots.plot_token_maps(found.maps, title, first)
    return [plots.save(figure, folder / name) for name, figure in figures.items()]


def report_facts(found: InspectedRun, seed: int, pictures: list[str]) -> dict[str, Any]:
    """Return the content of inspect.json."""
    model, seen = found.config.model, found.seen
    return {
        "step": found.step, "env": found.config.environment.env, "dynamics": model.dynamics, "prior": model.prior.kind,
        "seed": seed,
        "episode": {"steps": len(seen), "done": bool(seen.done[-1]), "return": float(seen.episode_return[-1])},
        "window": {"first_step": found.window.start, "last_step": found.window.stop - 1},
        "errors": found.errors,
        "start": analysis.first_prior_values(model),
        "learned": {name: values.tolist() for name, values in found.values.items()},
        "pictures": pictures,
    }  # fmt: skip


def steps(found: InspectedRun) -> dict[str, Any]:
    """Return the content of trajectory.json: the errors, and the numbers of every step."""
    seen, gamma = found.seen, found.config.learner.gamma
    names = ("action", "reward", "predicted_reward", "value", "prior", "searched", "latent_error", "latent_change")
    returns = analysis.returns_to_go(seen.reward, seen.ended, gamma).tolist()
    finite = [None if value != value else value for value in returns]
    numbers = {name: getattr(seen, name).tolist() for name in names}
    return {"errors": found.errors, "gamma": gamma} | numbers | {"return_to_go": finite}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, measure, draw."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.unizero.inspect")
    check_numbers(args)
    run = args.chosen_run()
    check_inside(run, "inspect")
    found = investigate(run, args)
    folder = make_inside(run, "inspect")
    written = draw_pictures(folder, found)
    report = report_facts(found, args.seed, [path.name for path in written])
    for name, content in (("trajectory.json", steps(found)), ("inspect.json", report)):
        write_atomic(folder / name, json.dumps(content, indent=1).encode())
        written.append(folder / name)
    say(f"{run} at step {found.step:,}: {len(found.seen)} steps, return {found.seen.episode_return[-1]:.2f}")
    say("\n".join(f"{name}: {value:.3g}" for name, value in found.errors.items() if value is not None))
    say("\n".join(f"wrote {path}" for path in written))


if __name__ == "__main__":
    main()
