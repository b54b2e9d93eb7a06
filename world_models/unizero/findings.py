"""Everything that is drawn and written about one checkpoint, before any of it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Repeatable
from dqn_memory.study.report_attention import Maps
from envs.registry import WORLDS, make_world
from world_models.unizero.agent import load_model
from world_models.unizero.evaluation import Arena
from world_models.unizero.introspection import Link, attention_maps, learned_values, prior_tables, strongest_link
from world_models.unizero.networks import WorldModel
from world_models.unizero.train_config import TrainConfig
from world_models.unizero.trajectory import Errors, Trajectory, errors, play

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Choice:
    """What of a run is looked at."""

    also: Repeatable = ()
    """Further runs of the same model, such as other seeds: bars of learned values are then means over all of them."""
    seed: int = 0
    """Seed of the world and of the search's ties."""
    most_steps: int = 200
    """Steps after which the episode is left."""
    last_step: int | None = None
    """Step at which the drawn window ends (None: the last one whose reward is not 0, or else the last one)."""
    columns: int = 10
    """Steps in the picture of the trajectory; maps show as many as a training sequence has."""
    layer: int | None = None
    """Layer of the map that is linked to its frames, counted from 0 (None: where the strongest link is)."""
    head: int | None = None
    """Head of that map, counted from 0 (None: where the strongest link is)."""
    simulations: int | None = None
    """Expansions of each search (None: as in training)."""
    frames: bool = True
    """Show the world's pictures; --no-frames is for worlds that draw none."""

    def check(self) -> None:
        """One sentence for each number that makes no sense."""
        for name in ("most_steps", "columns", "simulations"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative")


@dataclass(frozen=True)
class Findings:
    """All that is drawn and written about one checkpoint."""

    config: TrainConfig
    step: int  # the checkpoint's
    seen: Trajectory
    errors: Errors
    values: dict[str, Array]  # (R, L, H) learned, by name
    maps: Array  # (L, H, 2T, 2T) of the steps first .. last
    first: int
    last: int
    shown: int  # step at which the picture of the trajectory begins, which ends at `last`
    link: Link | None
    tables: tuple[dict[str, Array], str]
    names: tuple[str, ...]  # words for the actions

    @property
    def about(self) -> str:
        """One line for the head of a picture."""
        model = self.config.model
        form = f"{model.prior.kind} prior" if model.dynamics == "transformer" else f"{model.dynamics} dynamics"
        return f"{self.config.world.env}, {form}, checkpoint of step {self.step:,}"

    def action_word(self, action: int) -> str:
        """What an action is called."""
        return self.names[action] if action < len(self.names) else f"action {action}"


def investigate(run: Path, device: torch.device, choice: Choice) -> Findings:
    """Load, play, measure; nothing is written. Raises UserError for whatever of it cannot be done."""
    model, config, step = load_model(run, device)
    values = pooled(run, model, config, choice.also)
    arena = Arena.of(config, device).with_simulations(choice.simulations)
    arena, names = visible(arena) if choice.frames else arena, action_names(arena)
    seen = play(model, arena, config.collection, choice.seed, choice.most_steps, choice.frames)
    last = chosen_step(seen, choice.last_step)
    first = max(0, last + 1 - config.model.horizon)
    window = slice(first, last + 1)
    maps = attention_maps(model, seen.latent[window], torch.from_numpy(seen.action[window]))
    return Findings(
        config=config, step=step, seen=seen, errors=errors(seen, config.learner.gamma), values=values, maps=maps,
        first=first, last=last, shown=max(0, last + 1 - choice.columns),
        link=strongest_link(maps, model.causal, choice.layer, choice.head), tables=prior_tables(model), names=names,
    )  # fmt: skip


def report_maps(run: Path, seed: int) -> Maps | None:
    """What a study's report shows of a run's attention; None where its dynamics has none."""
    found = investigate(run, torch.device("cpu"), Choice(seed=seed, frames=False))
    if not len(found.maps):
        return None
    return Maps(dict(enumerate(found.maps)), len(found.seen), total=found.seen.episode_return, first=found.first)


def pooled(run: Path, model: WorldModel, config: TrainConfig, also: Sequence[str]) -> dict[str, Array]:
    """Learned values (R, L, H) of a run and of further ones; a UserError where one is of another model."""
    found = [learned_values(model)]
    for other in also:
        their_model, theirs, _ = load_model(other)
        if theirs.model != config.model:
            raise UserError(f"--also {other} is a run of another model than {run}: its values cannot be averaged")
        found.append(learned_values(their_model))
    return {name: np.stack([each[name] for each in found]) for name in found[0]}


def visible(arena: Arena) -> Arena:
    """The same world, asked for pictures where it needs to be asked."""
    if arena.env.startswith("ALE/") or arena.env.removeprefix("envs:") in WORLDS:
        return arena
    return replace(arena, env_kwargs=arena.env_kwargs | {"render_mode": "rgb_array"})


def action_names(arena: Arena) -> tuple[str, ...]:
    """Words for the action numbers, where the world has them."""
    ours = arena.env.removeprefix("envs:") in WORLDS
    return make_world(arena.env, **arena.env_kwargs).action_names if ours else ()


def chosen_step(seen: Trajectory, wanted: int | None) -> int:
    """The last step of the drawn window."""
    if wanted is None:
        paid = np.flatnonzero(seen.reward)
        return int(paid[-1]) if len(paid) else len(seen) - 1
    if not 0 <= wanted < len(seen):
        raise UserError(f"--last-step {wanted} is not within 0 .. {len(seen) - 1}, the steps that were played")
    return wanted
