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

from envs.baselines.search import PAID, WON, Array, Graph, explore
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
    """A deterministic world with a list of starts: exact scores by following its S states.

    Each of the E ways to end, by verdict and reward, is one more state, in which nothing happens any more.
    """

    exact = True

    def __init__(self, world: World[Any], graph: Graph) -> None:
        self.states, self.actions = graph.follower.shape
        self.looks, self.limit = len(graph.looks), world.time_limit
        ended = graph.follower < 0
        kinds = np.stack((graph.verdict[ended], graph.reward[ended]), 1)
        endings, number = np.unique(kinds, axis=0, return_inverse=True)  # (E, 2)
        follower = graph.follower.copy()
        follower[ended] = self.states + number.ravel()
        self.wins = torch.from_numpy(wins(endings, living(graph), self.limit)).double()  # (E, limit)
        self.follower, self.reward = torch.from_numpy(follower), torch.from_numpy(graph.reward)  # (S, A)
        self.observation, self.initial = torch.from_numpy(graph.observation), torch.from_numpy(graph.initial)

    def score(self, tables: Tensor) -> Tensor:
        """By doubling: where 2 t steps lead, what they bring and how many they are, follows from what t steps do."""
        action = tables[:, self.observation]  # (K, S)
        ends = self.states + torch.arange(len(self.wins)).expand(len(tables), -1)  # (K, E)
        leads = torch.cat((self.follower.gather(1, action.T).T, ends), 1)  # (K, S + E)
        brings = torch.cat((self.reward.gather(1, action.T).T, torch.zeros(ends.shape, dtype=torch.float64)), 1)
        takes = torch.cat((torch.ones_like(action), torch.zeros_like(ends)), 1)
        place = self.initial.expand(len(tables), -1)  # (K, M)
        total, steps = torch.zeros(place.shape, dtype=torch.float64), torch.zeros_like(place)
        left = self.limit
        while left:
            if left & 1:
                total, steps = total + brings.gather(1, place), steps + takes.gather(1, place)
                place = leads.gather(1, place)
            brings, takes = brings + brings.gather(1, leads), takes + takes.gather(1, leads)
            leads = leads.gather(1, leads)
            left >>= 1
        won = self.wins[(place - self.states).clamp(min=0), steps - 1] * (place >= self.states)
        return torch.stack((won.mean(1), total.mean(1)))

    def expect(self, chances: Tensor) -> Tensor:
        """By as many steps of dynamic programming as an episode has, from its last one back."""
        chance = chances[self.observation]  # (S, A)
        gain = (chance * self.reward).sum(1)
        worth = torch.zeros(2, self.states, dtype=torch.float64)
        for step in reversed(range(self.limit)):
            tail = torch.stack((self.wins[:, step], torch.zeros(len(self.wins), dtype=torch.float64)))
            after = torch.cat((worth, tail), 1)  # (2, S + E)
            worth = (chance * after[:, self.follower]).sum(2) + torch.stack((torch.zeros_like(gain), gain))
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
    """Exact where the world has a list of starts, and a success that can be told at an episode's end."""
    if world.initial_draws() is not None:
        graph = explore(world)
        if living(graph) is not None or not (graph.verdict == PAID).any():
            return Followed(world, graph)
    return Played(world, episodes, seed, fresh)


def living(graph: Graph) -> float | None:
    """The reward of every step that does not end an episode; None where they differ."""
    rewards = np.unique(graph.reward[graph.follower >= 0])
    return None if len(rewards) > 1 else float(rewards.sum())


def wins(endings: Array, living: float | None, limit: int) -> Array:
    """Which of these (verdict, reward) endings (E, 2) are a success with the first, second ... step: (E, limit) bool.

    Rewards are added in the order in which a world adds them, so that a return of nearly 0 has the world's own sign.
    """
    verdict, reward = endings.T[:, :, None]  # (E, 1) each
    before = np.cumsum(np.r_[0.0, np.full(limit - 1, living or 0.0)])  # (limit,)
    return (verdict == WON) | ((verdict == PAID) & (before + reward > 0.0))


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
