"""Search for the best table: coordinate ascent from many starts, then chances instead of certain actions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from envs.memoryless.games import Game

MEASURES = ("success", "return")  # rows of a score
SAME = 1e-9
SURE = 3.0  # logit of a table's own action where chances begin; all others begin at 0


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    restarts: int
    sweeps: int  # most passes over all looks
    patience: int  # passes without a gain after which a search ends
    updates: int  # of chances
    seed: int


@dataclass(frozen=True)
class Climbed:
    """The tables that all restarts ended with, and their scores on what they were chosen by."""

    tables: Tensor  # (R, L)
    values: Tensor  # (R,)

    @property
    def best(self) -> Tensor:
        """(L,)."""
        return self.tables[int(self.values.argmax())]

    @property
    def reached(self) -> int:
        """Restarts that are as good as the best."""
        return int((self.values >= self.values.max() - SAME).sum())


@torch.no_grad()
def climb(game: Game, measure: int, effort: Effort, before: Climbed | None = None) -> Climbed:
    """All restarts side by side: for one look after another, in random order, the action with the best score.

    Among equals an action is drawn, so that a search drifts over plains instead of ending there. One half of the
    restarts begins with the best tables of a search `before`.
    """
    draws = torch.Generator().manual_seed(effort.seed)
    tables = game.starts(effort.restarts, draws)
    if before is not None:
        best = before.values.argsort(descending=True)[: (effort.restarts + 1) // 2]
        tables[: len(best)] = before.tables[best]
    values, idle = game.score(tables)[measure], 0
    for _ in range(effort.sweeps):
        last = values.clone()
        for look in torch.randperm(game.looks, generator=draws).tolist():
            values = _improve(game, measure, tables, look, draws)
        idle = 0 if bool((values > last + SAME).any()) else idle + 1
        if idle == effort.patience:
            break
    return Climbed(tables, values)


def _improve(game: Game, measure: int, tables: Tensor, look: int, draws: torch.Generator) -> Tensor:
    """Put the best action for one look into each of R tables; returns their scores (R,)."""
    tried = tables.repeat_interleave(game.actions, 0)  # (R A, L)
    tried[:, look] = torch.arange(game.actions).repeat(len(tables))
    scores = game.score(tried)[measure].unflatten(0, (-1, game.actions))  # (R, A)
    best = scores.amax(1)
    among = torch.rand(scores.shape, generator=draws) * (scores >= best[:, None] - SAME)
    tables[:, look] = among.argmax(1)
    return best


def certain(table: Tensor, actions: int) -> Tensor:
    """A table (L,) as chances (L, A)."""
    return torch.nn.functional.one_hot(table, actions).double()


def soften(game: Game, measure: int, table: Tensor, effort: Effort, rate: float = 0.05) -> Tensor:
    """Chances (L, A) that Adam finds from a table's; the best met where scores are exact, else the last."""
    logits = (SURE * certain(table, game.actions)).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=rate)
    best, best_value = logits.detach().softmax(1), -float("inf")
    for _ in range(effort.updates):
        chances = logits.softmax(1)
        value = game.expect(chances)[measure]
        if not game.exact or value.item() > best_value:
            best, best_value = chances.detach(), value.item()
        optimizer.zero_grad()
        (-value).backward()
        optimizer.step()
    return best
