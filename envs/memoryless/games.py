"""Worlds as games for tables: one entry for every look of an observation, which says what to do whenever it looks so.

A game scores many tables at once. Where chance ends with the start and starts are few, it scores them exactly, by
following all states of the world; elsewhere it plays the batched world from the same starts, with the same numbers
of chance, for every table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.baselines.search import explore
from envs.core import State, World, where

Looks = Callable[[Tensor], Tensor]
"""From observations (N, ...) to the numbers (N,) of how they look."""

BINS = 8  # of each component of a continuous observation


class Game(Protocol):
    """What a search for tables needs to know."""

    looks: int
    actions: int
    exact: bool

    def score(self, tables: Tensor) -> Tensor:
        """Mean success and mean return (2, K) of tables (K, L) int64."""

    def expect(self, chances: Tensor) -> Tensor:
        """The same (2,) of one table of chances (L, A), in a form whose gradient leads to better chances."""

    def judge(self, chances: Tensor) -> Tensor:
        """The same (2,) without gradient: exactly, or on episodes that no search has seen."""

    def starts(self, count: int, draws: torch.Generator) -> Tensor:
        """First tables (count, L) of a search."""


class Followed:
    """A deterministic world with a list of starts: exact scores by following its S states."""

    exact = True

    def __init__(self, world: World[Any]) -> None:
        graph = explore(world)
        count, self.actions = graph.follower.shape
        self.looks, self.limit = len(graph.looks), world.time_limit
        self.lost, self.won = count, count + 1  # two more states, in which nothing happens any more
        follower = np.where(graph.follower >= 0, graph.follower, np.where(graph.success, self.won, self.lost))
        self.follower, self.reward = torch.from_numpy(follower), torch.from_numpy(graph.reward)  # (S, A)
        self.observation, self.initial = torch.from_numpy(graph.observation), torch.from_numpy(graph.initial)

    def score(self, tables: Tensor) -> Tensor:
        """By doubling: where 2 t steps lead, and what they bring, follows from what t steps do."""
        action = tables[:, self.observation]  # (K, S)
        ends = torch.tensor([self.lost, self.won]).expand(len(tables), 2)
        leads = torch.cat((self.follower.gather(1, action.T).T, ends), 1)  # (K, S + 2)
        brings = torch.cat((self.reward.gather(1, action.T).T, torch.zeros(ends.shape, dtype=torch.float64)), 1)
        place = self.initial.expand(len(tables), -1)  # (K, M)
        total = torch.zeros(place.shape, dtype=torch.float64)
        left = self.limit
        while left:
            if left & 1:
                total, place = total + brings.gather(1, place), leads.gather(1, place)
            brings, leads = brings + brings.gather(1, leads), leads.gather(1, leads)
            left >>= 1
        return torch.stack(((place == self.won).double().mean(1), total.mean(1)))

    def expect(self, chances: Tensor) -> Tensor:
        """By as many steps of dynamic programming as an episode has."""
        chance = chances[self.observation]  # (S, A)
        gain = (chance * self.reward).sum(1)
        worth = torch.zeros(2, self.won + 1, dtype=torch.float64)
        worth[0, self.won] = 1.0
        tail = worth[:, self.lost :]
        for _ in range(self.limit):
            inner = (chance * worth[:, self.follower]).sum(2) + torch.stack((torch.zeros_like(gain), gain))
            worth = torch.cat((inner, tail), 1)
        return worth[:, self.initial].mean(1)

    @torch.no_grad()
    def judge(self, chances: Tensor) -> Tensor:
        """Exactly."""
        return self.expect(chances)

    def starts(self, count: int, draws: torch.Generator) -> Tensor:
        """Uniformly random actions."""
        return torch.randint(self.actions, (count, self.looks), generator=draws)


class Played:
    """Any world, played from `episodes` starts that stay the same."""

    exact = False

    def __init__(self, world: World[Any], episodes: int, seed: int, fresh: int) -> None:
        self.world, self.actions, self.fresh = world, world.num_actions, fresh
        self.draws = torch.Generator().manual_seed(seed)
        self.start = self._uniforms(episodes, world.reset_draws)
        self.chance = [self._uniforms(episodes, world.step_draws) for _ in range(world.time_limit)]
        self.look, self.looks, self.points = make_looks(world, self.draws)

    def score(self, tables: Tensor) -> Tensor:
        """All tables at once, from the same starts."""
        count = len(tables)
        row = torch.arange(count).repeat_interleave(len(self.start))

        def act(looks: Tensor) -> Tensor:
            return tables[row, looks]

        success, returns = self._play(self.start.repeat(count, 1), act, [u.repeat(count, 1) for u in self.chance])
        return torch.stack((success, returns)).unflatten(1, (count, -1)).mean(2)

    def expect(self, chances: Tensor) -> Tensor:
        """The score function's estimate on new episodes: right in value and, in expectation, in gradient."""
        logs = chances.log()
        score = torch.zeros(len(self.start), dtype=torch.float64)

        def act(looks: Tensor) -> Tensor:
            nonlocal score
            action = self._draw(chances, looks)
            score = score + logs[looks, action]
            return action

        start = self._uniforms(len(self.start), self.world.reset_draws)
        outcome = torch.stack(self._play(start, act))
        apart = outcome - outcome.mean(1, keepdim=True)
        return outcome.mean(1) + (apart * (score - score.detach())).mean(1)

    @torch.no_grad()
    def judge(self, chances: Tensor) -> Tensor:
        """On new episodes."""
        start = self._uniforms(self.fresh, self.world.reset_draws)
        return torch.stack(self._play(start, lambda looks: self._draw(chances, looks))).mean(1)

    def starts(self, count: int, draws: torch.Generator) -> Tensor:
        """The best action by random linear rules of what an observation shows; an even row is uniformly random."""
        rules = torch.randn(count, self.points.shape[1] + 1, self.actions, generator=draws, dtype=torch.float64)
        ones = torch.ones(self.looks, 1, dtype=torch.float64)
        tables = (torch.cat((self.points, ones), 1) @ rules).argmax(2)  # (count, L)
        tables[::2] = torch.randint(self.actions, tables[::2].shape, generator=draws)
        return tables

    def _play(self, start: Tensor, act: Looks, chance: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Success and return (N,) of one episode a row; without numbers of chance, new ones."""
        state: State = self.world.reset(start)
        running = torch.ones(len(start), dtype=torch.bool)
        success = torch.zeros_like(running)
        for step in range(self.world.time_limit):
            u = self._uniforms(len(start), self.world.step_draws) if chance is None else chance[step]
            after, _, _, terminated, won = self.world.step(state, act(self.look(state.observation)), u)
            success |= won & running
            state = where(running, after, state)  # an ended episode stands still
            running = running & ~(terminated | self.world.truncated(after, terminated))
            if not running.any():
                break
        return success.double(), state.returns

    def _draw(self, chances: Tensor, looks: Tensor) -> Tensor:
        total = chances.detach().cumsum(1)[looks]
        return (self._uniforms(len(looks), 1) > total).sum(1).clamp(max=self.actions - 1)

    def _uniforms(self, rows: int, count: int) -> Tensor:
        return torch.rand(rows, count, dtype=torch.float64, generator=self.draws)


def make_game(world: World[Any], episodes: int, seed: int, fresh: int) -> Game:
    """Exact where the world has a list of starts."""
    return Played(world, episodes, seed, fresh) if world.initial_draws() is None else Followed(world)


Looking = tuple[Looks, int, Tensor]
"""A number for each look; how many there are; and what each shows, in -1 .. 1 (L, d)."""


def make_looks(world: World[Any], draws: torch.Generator) -> Looking:
    """How a world's observations are told apart."""
    space = world.observation_space
    if isinstance(space, gymnasium.spaces.Box) and np.dtype(space.dtype).kind == "f":
        return in_cells(world, space, draws)
    weights = torch.randint(2**40, (int(np.prod(space.shape or (1,))),), generator=draws)

    def hashed(observation: Tensor) -> Tensor:
        return (observation.flatten(1).long() * weights).sum(1)

    known = met(world, hashed, draws)
    return numbered(hashed, known), len(known) + 1, torch.zeros(len(known) + 1, 1, dtype=torch.float64)


def in_cells(world: World[Any], space: gymnasium.spaces.Box, draws: torch.Generator) -> Looking:
    """A grid of BINS cells over each component, and one more for 0 alone, so that signs are told apart."""
    high = torch.from_numpy(np.asarray(space.high, np.float64))
    power = (BINS + 1) ** torch.arange(len(high))

    def cell(observation: Tensor) -> Tensor:
        share = observation / high  # (N, d) in -1 .. 1
        place = (share.abs() * (BINS // 2)).ceil().clamp(max=BINS // 2) * share.sign() + BINS // 2
        return (place.long() * power).sum(1)

    known = met(world, cell, draws)
    shown = (known[:, None] // power % (BINS + 1) - BINS // 2).double() / (BINS // 2)
    return numbered(cell, known), len(known) + 1, torch.cat((shown, torch.zeros(1, len(high), dtype=torch.float64)))


def met(world: World[Any], key: Looks, draws: torch.Generator, episodes: int = 2_000) -> Tensor:
    """All keys, sorted, that random actions meet; half of the episodes keeps to an action for 20 steps or so."""
    keys = []
    state: State = world.reset(torch.rand(episodes, world.reset_draws, dtype=torch.float64, generator=draws))
    action = torch.randint(world.num_actions, (episodes,), generator=draws)
    steady = torch.arange(episodes) % 2 * 0.95
    for _ in range(world.time_limit):
        keys.append(key(state.observation).unique())
        drawn = torch.randint(world.num_actions, (episodes,), generator=draws)
        action = torch.where(torch.rand(episodes, generator=draws) < steady, action, drawn)
        u = torch.rand(episodes, world.step_draws, dtype=torch.float64, generator=draws)
        after, _, _, terminated, _ = world.step(state, action, u)
        state = where(~terminated, after, state)
    return torch.cat(keys).unique()


def numbered(key: Looks, known: Tensor) -> Looks:
    """Places among the known keys; one more for all others."""

    def look(observation: Tensor) -> Tensor:
        found = key(observation)
        place = torch.searchsorted(known, found).clamp(max=len(known) - 1)
        return torch.where(known[place] == found, place, len(known))

    return look
