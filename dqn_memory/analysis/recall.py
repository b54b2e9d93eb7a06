"""Measure how far back a network remembers: the influence of the observation d steps ago on its Q-values.

Occlusion replaces one past observation by others and compares the Q-values; it sees only differences between the
observation and its replacements.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.actors import ActingState
from dqn_memory.analysis.episodes import Episode, Windows, q_values, remembered_steps, windows
from dqn_memory.intervals import Measure, mean_interval
from dqn_memory.network import QNetwork
from dqn_memory.runs.settings import Bounds
from envs.spaces import Array

ROUNDING = 1e-6  # changes of Q up to this share of its spread count as 0
COPIED = 2**13  # maximum observations at once in copies of windows, each with one replaced


@dataclass(frozen=True)
class RecallConfig:
    """How a recall profile is measured."""

    moments: Annotated[int, Bounds(1)] = 12
    """Decisions of each episode, evenly spaced over its steps."""
    resamples: Annotated[int, Bounds(1)] = 2
    """Replacements of an observation that are drawn for each decision and distance."""


@dataclass(frozen=True)
class Recall:
    """Means by episode and distance in steps, (E, D); NaN if no decision of an episode has an observation that old."""

    occlusion: Array  # mean |change of Q| over actions
    flips: Array  # share of changed greedy actions
    decisions: Array  # (D,) number of decisions that have an observation that old
    spread: float  # standard deviation of the Q-values of all decisions, for scale

    def curve(self, name: str) -> list[Measure]:
        """Average one measurement over episodes, with the 95 % interval, by distance."""
        return [mean_interval(column[~np.isnan(column)], False) for column in getattr(self, name).T]

    def plain(self) -> dict[str, Any]:
        """Give lists by distance, for a JSON file."""
        facts: dict[str, Any] = {"distance": list(range(len(self.decisions))), "decisions": self.decisions.tolist()}
        facts["episodes"] = (~np.isnan(self.occlusion)).sum(0).tolist()
        for name in ("occlusion", "flips"):
            for part, values in zip(("", "_low", "_high"), zip(*self.curve(name), strict=True), strict=True):
                facts[name + part] = list(values)
        return facts | {"q_spread": self.spread}

    @property
    def distance(self) -> int:
        """Count the newest past steps that carry half of the past's influence on Q, by occlusion; 0 if it has none."""
        _, *past = (mean if mean > ROUNDING * self.spread else 0.0 for mean, _, _ in self.curve("occlusion"))
        return 1 + int(np.searchsorted(np.cumsum(past), sum(past) / 2)) if sum(past) else 0

    def words(self, outputs: str = "Q") -> str:
        """Describe occlusion in one sentence; `outputs` is Q or logits."""
        newest, *past = (mean for mean, _, _ in self.curve("occlusion"))
        if not self.distance:
            return f"recall: replacing past observations by others of these episodes does not change {outputs}"
        return (
            f"recall: replacing the newest observation moves {outputs} by {newest:.3g}, "
            f"the one before by {past[0]:.3g}; half of the past's influence on {outputs} comes from the last "
            f"{self.distance} of {len(past)} past steps"
        )


def recall(
    network: QNetwork,
    episodes: Sequence[Episode],
    config: RecallConfig,
    seed: int,
    state: ActingState = "window",
    progress: Callable[[int], None] = lambda done: None,
) -> Recall:
    """Measure a network's recall on episodes it has played; the replacements are drawn from `seed`."""
    device = next(network.parameters()).device
    pool = torch.cat([episode.observation for episode in episodes]).to(device)
    draws = torch.Generator().manual_seed(seed)
    tables: list[tuple[Array, ...]] = []
    values, lengths = [], []
    for number, episode in enumerate(episodes):
        progress(number)
        count, size = min(config.moments, len(episode)), remembered_steps(network, len(episode), state)
        steps = torch.linspace(0, len(episode) - 1, count, dtype=torch.float64).round().long().to(device)
        observation, previous = episode.observation.to(device), episode.previous_action.to(device)
        given = windows(network, observation, previous, steps, size)
        tables.append(occlusions(network, given, partial(substitutes, pool, config, draws)))  # each (B, S)
        values.append(q_values(network, given).double().cpu().numpy())
        lengths.append(given.lengths.cpu().numpy())
    decisions = (np.concatenate(lengths)[:, None] > np.arange(max(each.max() for each in lengths))).sum(0)  # (D,)
    occlusion, flips = (_profile(each, len(decisions)) for each in zip(*tables, strict=True))
    return Recall(occlusion, flips, decisions, _spread(np.concatenate(values)))


def _spread(values: Array) -> float:
    """Compute the standard deviation of Q; illegal actions have -inf."""
    return float(values[np.isfinite(values)].std())


def _profile(tables: Sequence[Array], oldest: int) -> Array:
    """Average over each episode's decisions, (E, D)."""
    means = [np.nanmean(table, 0) for table in tables]  # no column is all NaN: some decision has every age in a table
    return np.stack([np.pad(mean, (0, oldest - len(mean)), constant_values=np.nan) for mean in means])


def substitutes(pool: Tensor, config: RecallConfig, draws: torch.Generator, rows: int) -> Iterator[Tensor]:
    """Draw replacements (B, ...) of observations from a pool (M, ...), as many times as the config says."""
    for _ in range(config.resamples):
        yield pool[torch.randint(len(pool), (rows,), generator=draws).to(pool.device)]


@torch.no_grad()
def occlusions(
    network: QNetwork, given: Windows, replacements: Callable[[int], Iterable[Tensor]]
) -> tuple[Array, Array]:
    """Compute mean |change of Q| and share of changed greedy actions by age of the replaced observation, (B, S)."""
    before, rows = q_values(network, given), len(given)  # (B, A)
    ages = torch.arange(int(given.lengths.max()), device=given.lengths.device)
    changes, flips = [], []
    for part in ages.split(max(1, COPIED // given.previous_action.numel())):  # N ages at once
        new = [torch.stack(list(replacements(rows))) for _ in part]  # each (R, B, ...)
        tried = torch.stack(new, 1).flatten(0, 2)  # (R N B, ...)
        copies = len(tried) // rows
        index = (given.position - part[:, None]).clamp(min=0).flatten().repeat(copies // len(part))
        observation = given.observation.repeat(copies, *[1] * (given.observation.dim() - 1))
        if flags := network.spec.flags:  # the replacement leaves the same actions legal
            own = observation[torch.arange(len(tried), device=index.device), index]
            tried = torch.cat((tried[:, :-flags], own[:, -flags:].to(tried.dtype)), 1)
        observation[torch.arange(len(tried), device=index.device), index] = tried.to(observation.dtype)
        before_each = given.previous_action
        previous, lengths = before_each.repeat(copies, *[1] * (before_each.dim() - 1)), given.lengths.repeat(copies)
        after = q_values(network, Windows(observation, previous, lengths, given.position.repeat(copies)))
        moved = after.unflatten(0, (-1, len(part), rows))  # (R, N, B, A)
        illegal = moved.isneginf() & before.isneginf()
        change = torch.where(illegal, 0.0, (moved - before).abs())
        changes.append(change.sum((0, 3)) / (~illegal).sum((0, 3)))
        flips.append((moved.argmax(3) != before.argmax(1)).double().mean(0))
    return _known(torch.cat(changes).T, given), _known(torch.cat(flips).T, given)


def _known(table: Tensor, given: Windows) -> Array:
    """Set values by age (B, S) to NaN before a window's beginning."""
    ages = torch.arange(table.shape[1], device=table.device)
    return table.double().masked_fill(ages >= given.lengths[:, None], torch.nan).cpu().numpy()
