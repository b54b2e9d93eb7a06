"""Inspect attention and predictions of a UniZero checkpoint: `python -m world_models.unizero.inspect RUN`.

Plays an episode without noise and writes into RUN/inspect:

- learned.png: learned mu, sigma and span of each layer and head, and their first values ("Learning to Focus", Figure 5)
- priors.png, attention.png: attention priors by distance, and attention maps over the tokens of one window
- inspect.json, trajectory.json: the prediction errors over all steps, which are also printed, and each step's numbers
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from dqn_memory.analysis import plots
from dqn_memory.analysis.attention import prior_tables
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.folder import RunArgument
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.console import say
from envs.extras import extra
from envs.files import check_inside, make_inside, write_atomic
from envs.spaces import Array
from world_models.settings import WorldModelComputeConfig
from world_models.trainer import EvalEnvironments
from world_models.unizero import analysis
from world_models.unizero.acting import UniZeroAgent
from world_models.unizero.analysis import Trajectory

with extra("plots"):
    from matplotlib.figure import Figure


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
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""


def draw_pictures(
    folder: Path, agent: UniZeroAgent, learned: Mapping[str, Array], maps: Array, first: int
) -> list[str]:
    """Draw the learned values (L, H), the priors, and maps (L, H, 2T, 2T) from step `first` on; return file names."""
    figures, model = dict[str, Figure](), agent.config.model
    form = f"{model.prior.kind} prior" if model.dynamics == "transformer" else f"{model.dynamics} dynamics"
    about = f"{agent.config.environment.id}, {form}, checkpoint of step {agent.step:,}"
    if learned:
        values = {name: each[None] for name, each in learned.items()}
        title = f"Learned attention priors\n{about}"
        figures["learned.png"] = plots.plot_learned_values(values, analysis.initial_prior_values(model), title)
    priors = {layer: attention.prior for layer, attention in enumerate(agent.model.attentions())}
    tables, meaning = prior_tables(priors, 2 * model.horizon)
    if tables:
        title = f"Attention priors by distance\n{about}"
        figures["priors.png"] = plots.plot_prior_tables(tables, title, meaning, "tokens, two a step")
    if len(maps):
        title = f"Attention over steps {first} to {first + maps.shape[-1] // 2 - 1}\n{about}"
        figures["attention.png"] = plots.plot_token_maps(maps, title, first)
    for name, figure in figures.items():
        plots.save(figure, folder / name)
    return list(figures)


def steps(seen: Trajectory, errors: dict[str, Any], gamma: float) -> dict[str, Any]:
    """Return the content of trajectory.json: the errors, and the numbers of every step."""
    names = ("action", "reward", "predicted_reward", "value", "prior", "searched", "latent_error", "latent_change")
    returns = analysis.returns_to_go(seen.reward, seen.ended, gamma).tolist()
    finite = [None if value != value else value for value in returns]
    numbers = {name: getattr(seen, name).tolist() for name in names}
    return {"errors": errors, "gamma": gamma} | numbers | {"return_to_go": finite}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, measure, draw."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.unizero.inspect")
    check_numbers(args)
    run = args.chosen_run()
    check_inside(run, "inspect")
    device = WorldModelComputeConfig(args.device, args.threads).start()
    agent = UniZeroAgent.load(run, device)
    model, config = agent.model, agent.config
    searched = agent.with_simulations(args.simulations).config
    setup = EvalEnvironments.of(config, device)
    seen = analysis.play_trajectory(model, setup, searched, args.seed, args.max_episode_steps)
    window = analysis.chosen_window(seen, config.model.horizon)
    maps = analysis.window_attention(model, seen.latent[window], torch.from_numpy(seen.action[window]))
    errors, learned = analysis.errors(seen, config.learner.gamma), analysis.learned_prior_values(model)
    folder = make_inside(run, "inspect")
    pictures = draw_pictures(folder, agent, learned, maps, window.start)
    report = {
        "step": agent.step, "env": config.environment.id, "dynamics": config.model.dynamics,
        "prior": config.model.prior.kind, "seed": args.seed,
        "episode": {"steps": len(seen), "done": bool(seen.done[-1]), "return": float(seen.episode_return[-1])},
        "window": {"first_step": window.start, "last_step": window.stop - 1},
        "errors": errors, "start": analysis.initial_prior_values(config.model),
        "learned": {name: [values.tolist()] for name, values in learned.items()}, "pictures": pictures,
    }  # fmt: skip
    files = {"trajectory.json": steps(seen, errors, config.learner.gamma), "inspect.json": report}
    for name, content in files.items():
        write_atomic(folder / name, json.dumps(content, indent=1).encode())
    say(f"{run} at step {agent.step:,}: {len(seen)} steps, return {seen.episode_return[-1]:.2f}")
    say("\n".join(f"{name}: {value:.3g}" for name, value in errors.items() if value is not None))
    say("\n".join(f"wrote {folder / name}" for name in (*pictures, *files)))


if __name__ == "__main__":
    main()
