"""How far back a network remembers: what its Q-values owe to the observation d steps ago.

Two measurements of the same decisions. The gradient says how Q would change with a small change of an observation's
embedding, and is large where a network is steep although nothing it meets is steep. Occlusion replaces one past
observation and looks at the difference, so it sees what the replacements differ in and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dqn_memory.acting import ActingMode, ActingState
from dqn_memory.analysis.attention import with_gradients
from dqn_memory.analysis.episodes import Episode, Windows, in_parts, known_lengths, q_values, reach, windows
from dqn_memory.network import QNetwork
from dqn_memory.runs.score import Measure, mean_interval
from dqn_memory.runs.settings import Bounds

Array = np.ndarray[Any, np.dtype[Any]]
Occlusion = Literal["resampled", "neutral"]


@dataclass(frozen=True)
class RecallConfig:
    """How a recall profile is measured."""

    moments: Annotated[int, Bounds(1)] = 12
    """Decisions of each episode, evenly spaced over its steps."""
    occlusion: Occlusion = "resampled"
    """What stands in for an observation: others of the same episodes, or the most usual one (the mean, of numbers)."""
    resamples: Annotated[int, Bounds(1)] = 2
    """Replacements tried for each decision and distance, where they are drawn."""


@dataclass(frozen=True)
class Recall:
    """Means by episode and distance in steps, (E, D); not a number where an episode has no decision that old."""

    gradient: Array  # norm of the Jacobian of all Q-values with respect to the observation's embedding
    occlusion: Array  # mean |change of Q| over actions
    flips: Array  # share of changed greedy actions
    decisions: Array  # (D,) how many decisions have an observation that old
    spread: float  # standard deviation of the Q-values of all decisions, for scale

    def curve(self, name: str) -> list[Measure]:
        """Mean over episodes of one measurement, with its 95 % interval, by distance."""
        return [mean_interval(column[~np.isnan(column)], False) for column in getattr(self, name).T]

    def plain(self) -> dict[str, Any]:
        """Give lists by distance, for a JSON file."""
        facts: dict[str, Any] = {"distance": list(range(len(self.decisions))), "decisions": self.decisions.tolist()}
        facts["episodes"] = (~np.isnan(self.gradient)).sum(0).tolist()
        for name in ("gradient", "occlusion", "flips"):
            for part, values in zip(("", "_low", "_high"), zip(*self.curve(name), strict=True), strict=True):
                facts[name + part] = list(values)
        return facts | {"q_spread": self.spread}

    def words(self) -> str:
        """One sentence about occlusion."""
        newest, *past = (mean for mean, _, _ in self.curve("occlusion"))
        if not sum(past):
            return "recall: Q is the same whichever observation of these episodes replaces a past one"
        half = 1 + int(np.searchsorted(np.cumsum(past), sum(past) / 2))
        return (
            f"recall: replacing the newest observation moves Q by {newest:.3g}, the one before by {past[0]:.3g}; "
            f"half of what the past moves lies within {half} step{'s' if half > 1 else ''} of {len(past)}"
        )


def recall(
    network: QNetwork,
    episodes: Sequence[Episode],
    config: RecallConfig,
    seed: int,
    acting: ActingMode = "prefix",
    state: ActingState = "window",
) -> Recall:
    """Measure a network's recall on episodes it has played; the replacements are drawn from `seed`."""
    device = next(network.parameters()).device
    substitutes = Substitutes(episodes, config, torch.Generator().manual_seed(seed), device)
    rows: list[tuple[Array, Array, Array]] = []
    values, lengths = [], []
    for episode in episodes:
        given = _decisions(network, episode, config.moments, acting, state, device)
        changes = occlusions(network, given, substitutes, acting)  # each (B, S)
        rows.append((_by_age(gradients(network, given, acting), given), *changes))
        values.append(q_values(network, given, acting).double().cpu().numpy())
        lengths.append(given.lengths.cpu().numpy())
    oldest = max(int(each.max()) for each in lengths)
    gradient, occlusion, flips = (_means([row[i] for row in rows], oldest) for i in range(3))
    decisions = (np.concatenate(lengths)[:, None] > np.arange(oldest)).sum(0)
    return Recall(gradient, occlusion, flips, decisions, float(np.concatenate(values).std()))


def gradients(network: QNetwork, given: Windows, acting: ActingMode) -> Tensor:
    """Norm of dQ/de at every position e of each window, over all actions and features, (B, S).

    Of a network that also sees previous actions, the observation's features alone.
    """
    first = network.config.row().action_embedding

    def norms(part: Windows) -> Tensor:
        with with_gradients():
            inputs = network.embed(part.observation, part.previous_action).detach().requires_grad_()
            q = network.at_embedded(inputs, known_lengths(part, acting), part.position)  # (B, A)
            squares = torch.zeros_like(inputs[..., 0])  # (B, S)
            for column in q.sum(0):  # the windows do not mix, so a sum over them gives each its own gradient
                (gradient,) = torch.autograd.grad(column, inputs, retain_graph=True)  # (B, S, D)
                squares = squares + gradient[..., first:].square().sum(-1)
        return squares.sqrt()

    return in_parts(given, norms)


class Substitutes:
    """What takes the place of an observation, from the observations of some episodes."""

    def __init__(
        self, episodes: Sequence[Episode], config: RecallConfig, generator: torch.Generator, device: torch.device
    ) -> None:
        self.pool = torch.cat([episode.observation for episode in episodes]).to(device)  # (M, ...)
        self.generator = generator
        self.count = config.resamples if config.occlusion == "resampled" else 1
        self.fixed = usual(self.pool) if config.occlusion == "neutral" else None

    def draw(self, rows: int) -> Iterator[Tensor]:
        """Yield replacements (B, ...), as many times as the config says."""
        for _ in range(self.count):
            if self.fixed is not None:
                yield self.fixed.expand(rows, *self.fixed.shape)
            else:
                yield self.pool[torch.randint(len(self.pool), (rows,), generator=self.generator).to(self.pool.device)]


def usual(pool: Tensor) -> Tensor:
    """Find the neutral observation of (M, ...): each component's most frequent number, or the mean of real numbers."""
    return pool.mean(0) if pool.dtype.is_floating_point else pool.mode(0).values


@torch.no_grad()
def occlusions(network: QNetwork, given: Windows, substitutes: Substitutes, acting: ActingMode) -> tuple[Array, Array]:
    """Mean |change of Q| and share of changed greedy actions by age of the replaced observation, both (B, S)."""
    before = q_values(network, given, acting)  # (B, A)
    changes, flips = [], []
    for age in range(int(given.lengths.max())):
        index = (given.position - age).clamp(min=0)
        after = torch.stack([q_values(network, _replaced(given, index, new), acting)
                             for new in substitutes.draw(len(given))])  # (R, B, A)  # fmt: skip
        changes.append((after - before).abs().mean((0, 2)))
        flips.append((after.argmax(2) != before.argmax(1)).double().mean(0))
    return _known(changes, given), _known(flips, given)


def _replaced(given: Windows, index: Tensor, new: Tensor) -> Windows:
    observation = given.observation.clone()
    observation[torch.arange(len(given), device=index.device), index] = new.to(observation.dtype)
    return replace(given, observation=observation)


def _known(columns: list[Tensor], given: Windows) -> Array:
    """Columns (B,) by age, (B, S), not a number beyond a window's beginning."""
    table = torch.stack(columns, 1).double()
    ages = torch.arange(table.shape[1], device=table.device)
    return table.masked_fill(ages >= given.lengths[:, None], torch.nan).cpu().numpy()


def _by_age(values: Tensor, given: Windows) -> Array:
    """Values (B, S) by position as values by age, (B, S)."""
    ages = torch.arange(int(given.lengths.max()), device=values.device)
    columns = values.gather(1, (given.position[:, None] - ages).clamp(min=0))
    return _known(list(columns.unbind(1)), given)


def _decisions(
    network: QNetwork, episode: Episode, moments: int, acting: ActingMode, state: ActingState, device: torch.device
) -> Windows:
    """Cut the windows of evenly spaced steps, the first and the last among them."""
    count = min(moments, len(episode))
    steps = torch.linspace(0, len(episode) - 1, count, dtype=torch.float64).round().long().to(device)
    observation, previous = episode.observation.to(device), episode.previous_action.to(device)
    return windows(network, observation, previous, steps, reach(network, len(episode), state), acting)


def _means(tables: list[Array], oldest: int) -> Array:
    """Mean over each episode's decisions, (E, D)."""
    means = [np.nanmean(table, 0) for table in tables]  # every age up to a table's last is one of some decision
    return np.stack([np.pad(mean, (0, oldest - len(mean)), constant_values=np.nan) for mean in means])
