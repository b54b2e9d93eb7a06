"""Compute the exact optimum of a deterministic World with few initial states by a search over beliefs.

Such a World hides only its initial state. The belief of a player with perfect memory is the set of states that agree
with all observations so far. The best expected return is then a finite AND-OR search over such sets.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.baselines.players import Outcomes, Player, finish, no_chance
from envs.core import State, World
from envs.errors import UserError
from envs.spaces import Array

Belief = tuple[int, ...]  # sorted numbers of states, all equally likely
COUNTERS = ("steps", "returns")  # fields that are not compared between states
MAX_STATES = 200_000
SAME = 1e-12  # values with a smaller difference, relative for large ones, count as equal
LOST, WON, PAID = 0, 1, 2  # verdicts on an ending: never a success, always, if the return is above 0
FAR, NEAR = 1e9, 1e-6  # returns far from 0 and close to 0, to test a verdict


@dataclass(frozen=True)
class Graph:
    """All reachable states of a deterministic World, numbered from 0."""

    initial: Array  # (M,) int64
    observation: Array  # (S,) int64, equal if two states show the same observation
    follower: Array  # (S, A) int64, -1 if the episode ends
    reward: Array  # (S, A) float64
    verdict: Array  # (S, A) int64: LOST, WON or PAID
    observation_ids: Mapping[bytes, int]  # the observation's number by its bytes


@dataclass(frozen=True)
class Plan:
    """The best policy on beliefs: (expected return, action) of each, and its successor by action and observation.

    The best action depends on the number of remaining steps. `best` has a table for each number, from 0 to the number
    after which the values do not change any more.
    """

    graph: Graph
    horizon: int
    start: Mapping[int, Belief]  # by first observation
    best: Sequence[Mapping[Belief, tuple[float, int]]]
    following: Mapping[tuple[Belief, int], Mapping[int, Belief]]
    value: float


def explore_states(world: World[Any]) -> Graph:
    """Assign a number to every state that can be reached from `world.initial_draws()`.

    Raises:
        UserError: the World has no list of initial draws, as only a deterministic one has; or it has too many states;
            or its success depends on the return other than by its sign; or its dynamics depend on the step.
    """
    draws = world.initial_draws()
    if draws is None:
        raise UserError(f"{type(world).__name__} is not deterministic with a list of initial states to search from.")
    wave = world.reset(draws)
    numbers: dict[bytes, int] = {}
    observation_ids: dict[bytes, int] = {}
    initial = _number(_standing(wave), numbers)
    observation = [_number(wave.observation.cpu().numpy(), observation_ids)]
    columns: tuple[list[Array], ...] = ([], [], [])  # followers, rewards, verdicts of each wave
    while len(wave.steps):
        known = len(numbers)
        after, reward, ended, verdict = _every_action(world, wave)
        names = _number(_standing(after), numbers, ~ended)
        for column, each in zip(columns, (names, reward, verdict), strict=True):
            column.append(each.reshape(len(wave.steps), -1))
        distinct, first = np.unique(names, return_index=True)
        wave = _pick(after, first[distinct >= known])  # new states, in the order of their numbers
        observation.append(_number(wave.observation.cpu().numpy(), observation_ids))
        if len(numbers) > MAX_STATES:
            raise UserError(f"{type(world).__name__} has more than {MAX_STATES:,} states, too many to search.")
    seen, follower, reward, verdict = map(np.concatenate, (observation, *columns))
    return Graph(initial, seen, follower, reward, verdict, observation_ids)


def find_plan(graph: Graph, horizon: int) -> Plan:
    """Find the maximum expected undiscounted return within `horizon` steps; initial states are equally likely."""
    start = _split(graph, graph.initial.tolist())
    following = _reachable(graph, start.values())
    best: list[dict[Belief, tuple[float, int]]] = [{belief: (0.0, 0) for belief, action in following if action == 0}]
    for _ in range(horizon):
        last = best[-1]
        best.append({belief: _backup(graph, belief, following, last) for belief in last})
        if all(best[-1][belief][0] == last[belief][0] for belief in last):
            break
    share = {belief: len(belief) / len(graph.initial) for belief in start.values()}
    value = sum(share[belief] * best[-1][belief][0] for belief in start.values())
    return Plan(graph, horizon, start, best, following, value)


def planned_player(plan: Plan) -> Player:
    """Act by the plan; every row updates its belief by the observations."""
    beliefs: list[Belief] = []
    actions: list[int] = []
    steps_left = itertools.count(plan.horizon, -1)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        best = plan.best[min(next(steps_left), len(plan.best) - 1)]
        beliefs.extend([()] * (len(observation) - len(beliefs)))
        actions.extend([0] * (len(observation) - len(actions)))
        rows = np.ascontiguousarray(observation.cpu().numpy())
        for row in np.flatnonzero(running.cpu().numpy()).tolist():
            seen = plan.graph.observation_ids[rows[row].tobytes()]
            last = beliefs[row]
            beliefs[row] = plan.following[last, actions[row]][seen] if last else plan.start[seen]
            actions[row] = best[beliefs[row]][1]
        return torch.tensor(actions, device=observation.device)

    return act


def plan_outcomes(world: World[Any], plan: Plan) -> Outcomes:
    """Play the plan from every initial state."""
    draws = world.initial_draws()
    assert draws is not None, "explore_states refuses a World without initial draws"
    return finish(world, world.reset(draws), planned_player(plan))


def _every_action(world: World[Any], wave: State) -> tuple[State, Array, Array, Array]:
    """Take all A actions in M states: return followers, rewards, endings and verdicts, M*A rows, state by state."""
    rows = len(wave.steps)
    repeated = _pick(wave, np.arange(rows).repeat(world.num_actions))
    action = torch.arange(world.num_actions, device=world.device).repeat(rows)
    after, _, reward, terminated, _ = world.step(repeated, action, no_chance(world, len(action)))
    _check_steps(world, repeated, action)
    verdict = _verdict(world, repeated, action, reward)
    return after, reward.cpu().numpy(), terminated.cpu().numpy(), verdict.cpu().numpy()


def _check_steps(world: World[Any], state: State, action: Tensor) -> None:
    """Check that N steps do not depend on the step count, which is no part of a state's number."""
    rows = torch.arange(max(len(action), min(4 * world.time_limit, 10_000))) % len(action)
    early = _pick(state, rows.numpy())
    steps = torch.randint(world.time_limit, rows.shape, generator=torch.Generator().manual_seed(0))
    late = dataclasses.replace(early, steps=steps.to(early.steps))
    results = (world.step(each, action[rows], no_chance(world, len(rows))) for each in (early, late))
    shown = [[_standing(after), *(x.cpu().numpy() for x in (reward, *ends))] for after, _, reward, *ends in results]
    if not all(map(np.array_equal, *shown)):
        name = type(world).__name__
        raise UserError(f"The dynamics of {name} depend on the step: let its initial_draws return None.")


def _verdict(world: World[Any], state: State, action: Tensor, reward: Tensor) -> Tensor:
    """Return the verdicts (N,) on these steps.

    A state's number ignores its return, so the success may differ between two ways to the same state. The step is
    therefore tried with several returns.
    """

    def won(total: float) -> Tensor:
        before = dataclasses.replace(state, returns=total - reward)
        return world.step(before, action, no_chance(world, len(action)))[4]

    paid = won(FAR) & ~won(-FAR)
    if bool((paid & (won(-NEAR) | ~won(NEAR))).any()) or bool((won(-FAR) & ~won(FAR)).any()):
        raise UserError(f"The success of {type(world).__name__} depends on the return, but not on its sign.")
    return torch.where(paid, PAID, won(FAR).long())


def _number(rows: Array, numbers: dict[bytes, int], wanted: Array | None = None) -> Array:
    """Return the numbers (M,) of rows (M, ...), new ones for new rows; -1 for rows that are not wanted."""
    chosen = [True] * len(rows) if wanted is None else wanted.tolist()
    keyed = zip(np.ascontiguousarray(rows), chosen, strict=True)
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) if use else -1 for row, use in keyed], np.int64)


def _standing(state: State) -> Array:
    """Return all fields of a state except the counters as bytes (M, K)."""
    rows = len(state.steps)
    parts = [value.cpu().numpy().reshape(rows, -1) for name, value in vars(state).items() if name not in COUNTERS]
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], 1)


def _pick(state: State, rows: Array) -> State:
    chosen = torch.from_numpy(rows).to(state.steps.device)
    return type(state)(**{name: value[chosen] for name, value in vars(state).items()})


def _split(graph: Graph, states: Iterable[int]) -> dict[int, Belief]:
    """Group states by their observation."""
    groups: dict[int, list[int]] = {}
    for state in states:
        groups.setdefault(int(graph.observation[state]), []).append(state)
    return {seen: tuple(sorted(group)) for seen, group in groups.items()}


def _reachable(graph: Graph, start: Iterable[Belief]) -> dict[tuple[Belief, int], dict[int, Belief]]:
    """Find the successors of every reachable belief by action and next observation."""
    waiting, followers = list(start), graph.follower.tolist()
    following: dict[tuple[Belief, int], dict[int, Belief]] = {}
    while waiting:
        belief = waiting.pop()
        if (belief, 0) in following:
            continue
        for action in range(graph.follower.shape[1]):
            going_on = [name for state in belief if (name := followers[state][action]) >= 0]
            following[belief, action] = _split(graph, going_on)
            waiting.extend(following[belief, action].values())
    return following


def _backup(
    graph: Graph,
    belief: Belief,
    following: Mapping[tuple[Belief, int], Mapping[int, Belief]],
    best: Mapping[Belief, tuple[float, int]],
) -> tuple[float, int]:
    """Return the best expected return and its action, with one more remaining step.

    If the value does not change, the action of the smaller horizon stays, as long as it still reaches that value. So
    among actions of equal value the one that gains the return soonest is chosen, and a gain is not postponed for ever.
    """
    gains = graph.reward[list(belief)].sum(0)  # (A,)
    for action in range(len(gains)):
        gains[action] += sum(len(b) * best[b][0] for b in following[belief, action].values())
    gains /= len(belief)
    known, earlier = best[belief]
    value, action = float(gains.max()), int(gains.argmax())
    if not math.isclose(value, known, rel_tol=SAME, abs_tol=SAME):
        return value, action
    stays = math.isclose(float(gains[earlier]), known, rel_tol=SAME, abs_tol=SAME)
    return known, earlier if stays else action
