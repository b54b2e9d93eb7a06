"""Both forms of imagination on the same real episodes: how far each is off, by the number of steps ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import generator
from world_models.distributions import wide
from world_models.glam.foresight import Array, Lived, latent_noise, past, stretch, walk
from world_models.glam.imagination import Context
from world_models.glam.loading import Trained
from world_models.glam.losses import kl
from world_models.glam.memory import Kind
from world_models.glam.model import WorldModel

FORMS: tuple[Kind, ...] = get_args(Kind)
MEASURES = {
    "reward": "squared error of the reward",
    "end": "squared error of the probability that the step ends the episode",
    "latent": "KL of the predicted latent from that of the real frame, in nats",
    "feature": "distance of the features from those that the same form has on the real frames, over their norm",
}
APART = "distance of the window's features from the carried ones, over their norm"


@dataclass(frozen=True)
class Comparison:
    """Means over all dreams, each an array over the steps ahead (H,)."""

    dreams: int
    errors: dict[Kind, dict[str, Array]]  # by form, then by MEASURES
    apart: Array  # see APART

    def numbers(self) -> dict[str, Any]:
        """What inspect.json says."""
        forms: dict[str, Any] = {
            form: {name: values.tolist() for name, values in measures.items()} for form, measures in self.errors.items()
        }
        return {"dreams": self.dreams, "measures": MEASURES | {"apart": APART}, **forms, "apart": self.apart.tolist()}

    def table(self) -> str:
        """A few lines for people: 1, 2, 4, ... steps ahead, and the last."""
        names = [f"{measure} {form}" for measure in MEASURES for form in FORMS]
        columns = [self.errors[form][measure] for measure in MEASURES for form in FORMS]
        header = " ".join(("ahead", *(f"{name:>15}" for name in names), f"{'apart':>8}"))
        lines = [
            " ".join((f"{step + 1:>5}", *(f"{c[step]:>15.3g}" for c in columns), f"{self.apart[step]:>8.3g}"))
            for step in _shown(len(self.apart))
        ]
        notes = [f"{name}: {about}" for name, about in (MEASURES | {"apart": APART}).items()]
        return "\n".join(
            [f"both forms of imagination, {self.dreams} dreams under real actions", header, *lines, *notes]
        )


def _shown(horizon: int) -> list[int]:
    return sorted({2**power - 1 for power in range(horizon.bit_length())} | {horizon - 1})


@torch.no_grad()
def compare(found: Trained, lives: Sequence[Lived], horizon: int, seed: int) -> Comparison:
    """Imagine `horizon` steps from every such stretch of the episodes, in both forms with the same chance.

    A stretch begins where the model's context is full, or, in an episode too short for that, as late as it can.
    """
    model, numbers = found.model.eval(), generator(seed, next(found.model.parameters()).device)
    rows = [row for lived in lives for row in _stretches(model, lived, horizon, numbers)]
    if not rows:
        raise UserError(f"no episode has the --imagined {horizon} steps in which both forms are compared")
    counts = np.array([count for count, _ in rows], float)
    means = {name: _mean([told[name] for _, told in rows], counts) for name in rows[0][1]}
    errors = {form: {name: means[f"{form}/{name}"] for name in MEASURES} for form in FORMS}
    return Comparison(int(counts.sum()), errors, means["apart"])


def _mean(values: Sequence[Array], counts: Array) -> Array:
    mean: Array = np.average(np.stack(values), axis=0, weights=counts)
    return mean


def starts(lived: Lived, context: int, horizon: int) -> range:
    """First imagined steps of an episode's dreams, none of which overlap."""
    first = min(context, len(lived) - horizon)
    return range(first, len(lived) - horizon + 1, horizon) if first >= 0 else range(0)


@dataclass(frozen=True)
class Truth:
    """What B dreams of one episode began with, and what was real."""

    begin: Context
    action: Tensor  # (B, H)
    reward: Tensor  # (H, B)
    end: Tensor  # (H, B)
    posterior: Tensor  # (H, B, G, C) of the frame behind each step
    sample: Tensor  # (B, H, Z), drawn from it


def _stretches(
    model: WorldModel, lived: Lived, horizon: int, numbers: torch.Generator
) -> Iterator[tuple[int, dict[str, Array]]]:
    """The number of an episode's dreams, and their mean errors (H,)."""
    begins = starts(lived, model.config.context, horizon)
    if begins:
        truth = _truth(model, lived, begins, horizon, numbers)
        noise = latent_noise(model, (horizon, len(begins)), numbers)
        yield len(begins), {name: _over_dreams(value) for name, value in _errors(model, truth, noise).items()}


def _truth(model: WorldModel, lived: Lived, begins: range, horizon: int, numbers: torch.Generator) -> Truth:
    begin = past(model, lived, begins, numbers).context
    frames = stretch(lived.frames[1:], begins, horizon).to(numbers.device)  # (B, H, 3, S, S)
    posterior = model.encode(frames)
    sample = model.sample(posterior, latent_noise(model, tuple(frames.shape[:2]), numbers))
    action, reward, end = (
        stretch(each, begins, horizon).to(numbers.device) for each in (lived.action, lived.reward, lived.terminated)
    )
    return Truth(begin, action, reward.mT, end.mT, posterior.transpose(0, 1), sample)


def _errors(model: WorldModel, truth: Truth, noise: Tensor) -> dict[str, Tensor]:
    """Every measure (H, B) of both forms, and how far apart these are."""
    dreams = {form: walk(model, truth.begin, truth.action, noise, form).h for form in FORMS}
    said: dict[str, Tensor] = {}
    for form, h in dreams.items():
        real = walk(model, truth.begin, truth.action, noise, form, truth.sample).h
        said |= {f"{form}/{name}": value for name, value in _measured(model, truth, h, real).items()}
    return said | {"apart": _distance(dreams["window"], dreams["carried"])}


def _measured(model: WorldModel, truth: Truth, h: Tensor, real: Tensor) -> dict[str, Tensor]:
    """The measures of features h (H, B, D); `real` are those on the real frames."""
    return {
        "reward": (model.reward_value(model.reward(h)) - truth.reward).square(),
        "end": (wide(model.termination(h)).sigmoid() - truth.end.to(h.dtype)).square(),
        "latent": kl(truth.posterior, model.prior(h)),
        "feature": _distance(h, real),
    }


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Norm of the difference over that of `theirs`, (H, B) of (H, B, D)."""
    return wide(ours - theirs).norm(dim=-1) / wide(theirs).norm(dim=-1).clamp(min=1e-12)


def _over_dreams(values: Tensor) -> Array:
    mean: Array = values.double().mean(1).cpu().numpy()
    return mean
