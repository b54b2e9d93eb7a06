"""Environments as games for policies without a memory, which choose an action by the newest observation alone.

A game scores many deterministic policies (tables with an action for each observation) at once. Where only the initial
state is random, and initial states are few, it scores them exactly, by following all states of the world. Elsewhere it
plays the batched world from the same initial states, with the same random numbers, for every table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.baselines.playing import draws, finish
from envs.baselines.search import PAID, WON, Array, Graph, explore
from envs.core import State, World, where

BINS = 8  # of each component of a continuous observation

Identify = Callable[[Tensor], Tensor]
"""From observations (N, ...) to their numbers (N,)."""


class ExactGame:
    """A deterministic world with a list of initial states: exact scores by following its S states.

    Each of the E ways to end, by verdict and reward, is one more state, in which nothing happens any more.
    """

    exact = True

    def __init__(self, world: World[Any], graph: Graph) -> None:
        self.states, self.actions = graph.follower.shape
        self.observations, self.limit = len(graph.observation_ids), world.time_limit
        ended = graph.follower < 0
        kinds = np.stack((graph.verdict[ended], graph.reward[ended]), 1)
        endings, number = np.unique(kinds, axis=0, return_inverse=True)  # (E, 2)
        follower = graph.follower.copy()
        follower[ended] = self.states + number.ravel()
        self.wins = torch.from_numpy(successes(endings, step_reward(graph), self.limit)).double()  # (E, limit)
        self.follower, self.reward = torch.from_numpy(follower), torch.from_numpy(graph.reward)  # (S, A)
        self.observation, self.initial = torch.from_numpy(graph.observation), torch.from_numpy(graph.initial)

    def score(self, tables: Tensor) -> Tensor:
        """Return mean success and mean return (2, K) of tables (K, O) int64, an action for each observation.

        By doubling: where 2 t steps lead, what they bring and how many they are, follows from what t steps do.
        """
        action = tables[:, self.observation]  # (K, S)
        ends = self.states + torch.arange(len(self.wins)).expand(len(tables), -1)  # (K, E)
        leads = torch.cat((self.follower.gather(1, action.T).T, ends), 1)  # (K, S + E)
        brings = torch.cat((self.reward.gather(1, action.T).T, torch.zeros(ends.shape, dtype=torch.float64)), 1)
        takes = torch.cat((torch.ones_like(action), torch.zeros_like(ends)), 1)
        state = self.initial.expand(len(tables), -1)  # (K, M)
        total, steps = torch.zeros(state.shape, dtype=torch.float64), torch.zeros_like(state)
        left = self.limit
        while left:
            if left & 1:
                total, steps = total + brings.gather(1, state), steps + takes.gather(1, state)
                state = leads.gather(1, state)
            brings, takes = brings + brings.gather(1, leads), takes + takes.gather(1, leads)
            leads = leads.gather(1, leads)
            left >>= 1
        won = self.wins[(state - self.states).clamp(min=0), steps - 1] * (state >= self.states)
        return torch.stack((won.mean(1), total.mean(1)))

    def expect(self, policy: Tensor) -> Tensor:
        """Score one stochastic policy (O, A), (2,), in a form whose gradient leads to a better one.

        By as many steps of dynamic programming as an episode has, from its last one back.
        """
        chance = policy[self.observation]  # (S, A)
        gain = (chance * self.reward).sum(1)
        value = torch.zeros(2, self.states, dtype=torch.float64)
        for step in reversed(range(self.limit)):
            tail = torch.stack((self.wins[:, step], torch.zeros(len(self.wins), dtype=torch.float64)))
            after = torch.cat((value, tail), 1)  # (2, S + E)
            value = (chance * after[:, self.follower]).sum(2) + torch.stack((torch.zeros_like(gain), gain))
        return value[:, self.initial].mean(1)

    @torch.no_grad()
    def judge(self, policy: Tensor) -> Tensor:
        """Score without gradient, (2,)."""
        return self.expect(policy)

    def first_tables(self, count: int, generator: torch.Generator) -> Tensor:
        """Return tables (count, O) of uniformly random actions to begin searches with."""
        return torch.randint(self.actions, (count, self.observations), generator=generator)


class SampledGame:
    """Any world, played with the same random numbers for every table: `episodes` initial states and what follows."""

    exact = False

    def __init__(self, world: World[Any], episodes: int, seed: int, fresh: int) -> None:
        self.world, self.actions, self.fresh = world, world.num_actions, fresh
        self.generator = torch.Generator().manual_seed(seed)
        self.start = draws(self.generator, episodes, world.reset_draws)
        self.chance = [draws(self.generator, episodes, world.step_draws) for _ in range(world.time_limit)]
        self.identify, self.points = identifier(world, self.generator)
        self.observations = len(self.points)

    def score(self, tables: Tensor) -> Tensor:
        """Play all tables at once, from the same initial states; see `ExactGame.score`."""
        count = len(tables)
        row = torch.arange(count).repeat_interleave(len(self.start))

        chance = (u.repeat(count, 1) for u in self.chance)
        outcome = self._play(self.start.repeat(count, 1), lambda seen: tables[row, seen], chance.__next__)
        return outcome.unflatten(1, (count, -1)).mean(2)

    def expect(self, policy: Tensor) -> Tensor:
        """Estimate by the score function on new episodes: right in value and, in expectation, in gradient."""
        logs = policy.log()
        score = torch.zeros(len(self.start), dtype=torch.float64)

        def act(seen: Tensor) -> Tensor:
            nonlocal score
            action = self._draw(policy, seen)
            score = score + logs[seen, action]
            return action

        outcome = self._play(draws(self.generator, len(self.start), self.world.reset_draws), act)
        apart = outcome - outcome.mean(1, keepdim=True)
        return outcome.mean(1) + (apart * (score - score.detach())).mean(1)

    @torch.no_grad()
    def judge(self, policy: Tensor) -> Tensor:
        """Score without gradient, (2,), on episodes that no search has seen."""
        start = draws(self.generator, self.fresh, self.world.reset_draws)
        return self._play(start, lambda seen: self._draw(policy, seen)).mean(1)

    def first_tables(self, count: int, generator: torch.Generator) -> Tensor:
        """Choose actions by random linear rules of what an observation shows; an even row is uniformly random."""
        rules = torch.randn(count, self.points.shape[1] + 1, self.actions, generator=generator, dtype=torch.float64)
        ones = torch.ones(self.observations, 1, dtype=torch.float64)
        tables = (torch.cat((self.points, ones), 1) @ rules).argmax(2)  # (count, O)
        tables[::2] = torch.randint(self.actions, tables[::2].shape, generator=generator)
        return tables

    def _play(self, start: Tensor, act: Identify, chance: Callable[[], Tensor] | None = None) -> Tensor:
        """Return success and return (2, N) of one episode a row; without numbers of chance, new ones are drawn."""
        chance = chance or (lambda: draws(self.generator, len(start), self.world.step_draws))
        state = self.world.reset(start)
        outcomes = finish(self.world, state, lambda observation, _: act(self.identify(observation)), chance)
        return torch.stack((outcomes.success.double(), outcomes.returns))

    def _draw(self, policy: Tensor, seen: Tensor) -> Tensor:
        total = policy.detach().cumsum(1)[seen]
        return (draws(self.generator, len(seen), 1) > total).sum(1).clamp(max=self.actions - 1)


Game = ExactGame | SampledGame


def make_game(world: World[Any], episodes: int, seed: int, fresh: int) -> Game:
    """Choose the exact game where the world has a list of initial states, and an ending alone tells its success."""
    if world.initial_draws() is not None:
        graph = explore(world)
        if step_reward(graph) is not None or not (graph.verdict == PAID).any():
            return ExactGame(world, graph)
    return SampledGame(world, episodes, seed, fresh)


def step_reward(graph: Graph) -> float | None:
    """Give the reward of every step that does not end an episode; None where they differ."""
    rewards = np.unique(graph.reward[graph.follower >= 0])
    return None if len(rewards) > 1 else float(rewards.sum())


def successes(endings: Array, reward: float | None, limit: int) -> Array:
    """Tell which of these (verdict, reward) endings (E, 2) are a success with the first, second ... step: (E, limit).

    Rewards are added in the order in which a world adds them, so that a return of nearly 0 has the world's own sign.
    """
    verdict, last = endings.T[:, :, None]  # (E, 1) each
    before = np.cumsum(np.r_[0.0, np.full(limit - 1, reward or 0.0)])  # (limit,)
    return (verdict == WON) | ((verdict == PAID) & (before + last > 0.0))


# Observations: how they are told apart


def identifier(world: World[Any], generator: torch.Generator) -> tuple[Identify, Tensor]:
    """Assign numbers to a world's observations; the last number is for all that random play did not meet.

    Returns:
        The function that gives the numbers, and what each number shows, in -1 .. 1 (O, d).
    """
    space = world.observation_space
    if isinstance(space, gymnasium.spaces.Box) and np.dtype(space.dtype).kind == "f":
        return grid_cells(world, space, generator)
    weights = torch.randint(2**40, (int(np.prod(space.shape or (1,))),), generator=generator)

    def hashed(observation: Tensor) -> Tensor:
        return (observation.flatten(1).long() * weights).sum(1)

    known = visited(world, hashed, generator)
    return index_among(hashed, known), torch.zeros(len(known) + 1, 1, dtype=torch.float64)


def grid_cells(world: World[Any], space: gymnasium.spaces.Box, generator: torch.Generator) -> tuple[Identify, Tensor]:
    """Assign numbers to the cells of a grid: BINS over each component, and one more for 0 alone."""
    high = torch.from_numpy(np.asarray(space.high, np.float64))
    power = (BINS + 1) ** torch.arange(len(high))

    def cell(observation: Tensor) -> Tensor:
        share = observation / high  # (N, d) in -1 .. 1
        index = (share.abs() * (BINS // 2)).ceil().clamp(max=BINS // 2) * share.sign() + BINS // 2
        return (index.long() * power).sum(1)

    known = visited(world, cell, generator)
    shown = (known[:, None] // power % (BINS + 1) - BINS // 2).double() / (BINS // 2)
    return index_among(cell, known), torch.cat((shown, torch.zeros(1, len(high), dtype=torch.float64)))


def visited(world: World[Any], key: Identify, generator: torch.Generator, episodes: int = 2_000) -> Tensor:
    """Collect all keys, sorted, that random play meets; half of the episodes repeat an action for about 20 steps."""
    keys = []
    state: State = world.reset(torch.rand(episodes, world.reset_draws, dtype=torch.float64, generator=generator))
    action = torch.randint(world.num_actions, (episodes,), generator=generator)
    steady = torch.arange(episodes) % 2 * 0.95
    for _ in range(world.time_limit):
        keys.append(key(state.observation).unique())
        drawn = torch.randint(world.num_actions, (episodes,), generator=generator)
        action = torch.where(torch.rand(episodes, generator=generator) < steady, action, drawn)
        u = torch.rand(episodes, world.step_draws, dtype=torch.float64, generator=generator)
        after, _, _, terminated, _ = world.step(state, action, u)
        state = where(~terminated, after, state)
    return torch.cat(keys).unique()


def index_among(key: Identify, known: Tensor) -> Identify:
    """Assign numbers to observations by where their keys stand among the known ones; all others get one more number."""

    def identify(observation: Tensor) -> Tensor:
        found = key(observation)
        index = torch.searchsorted(known, found).clamp(max=len(known) - 1)
        return torch.where(known[index] == found, index, len(known))

    return identify
