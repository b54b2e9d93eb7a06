"""Bounds on the best success and the best return of each environment, and the kinds of these bounds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from envs.baselines import players, search, tabular
from envs.baselines.players import exact_level, play_episodes, sampled_level
from envs.baselines.reference import Level
from envs.core import World
from envs.errors import UserError
from envs.gridverse.layouts import LockedRoom, Scattered
from envs.gridverse.tasks import MemoryRooms
from envs.gridverse.world import GridWorld
from envs.worlds.car_flag import CarFlag
from envs.worlds.catch import BlinkingCatch
from envs.worlds.tabular import Tabular

SCRIPTED, FULL_STATE = "lower by scripted player", "upper by full-state player"
POINT_BASED, BY_CHANCE = "lower by point-based player", "lower by random actions"
EXACT, BELIEF_OPTIMAL, RETURN_OPTIMAL = "exact", "belief-optimal", "return belief-optimal, success at most 1"
ROUNDING = 1e-9


@dataclass(frozen=True)
class Budget:
    """The amount of computation."""

    episodes: int = 4_000
    """Episodes of random actions and of players."""
    seed: int = 0
    """Seed of environments and players."""
    gap: float = 0.01
    """Difference of the bounds on a tabular environment's discounted value at which their search ends."""
    size: int = 2_500
    """Maximum of the vectors and points in these bounds; Hallway's gap closes slowly."""


@dataclass(frozen=True)
class Best:
    """Bounds on the best success and the best return; of a tabular environment also on the discounted value."""

    lower: Level | None  # None: no player is known, and random actions or what is recorded stand for it
    upper: Level
    discounted: dict[str, float] | None = None


def bounds_of(world: World[Any], budget: Budget) -> Best:
    """Find the best that is known of a world by its class: see `BOUNDS`, to which a module may add."""
    for kind in type(world).__mro__:  # the nearest class first, so that a subclass may have a player of its own
        if kind in BOUNDS:
            return BOUNDS[kind](world, budget)
    name = type(world).__name__
    raise UserError(
        f"No player is known for {name}; give one with envs.baselines.bounds.BOUNDS[{name}] = f, where "
        "f(world, budget) returns a Best, or make it a subclass of envs.worlds.tabular.Tabular."
    )


def car_flag_bounds(world: CarFlag, budget: Budget) -> Best:
    """Play the signpost player, who wins from every start; nobody gets more than 1."""
    outcomes = players.signpost_outcomes(world)
    found = exact_level(float(outcomes.success.double().mean()), float(outcomes.returns.mean()), EXACT)
    upper = exact_level(1.0, 1.0, EXACT)
    return Best(found if found == upper else sampled_level(outcomes, SCRIPTED), upper)


def catch_bounds(world: BlinkingCatch, budget: Budget) -> Best:
    """Play whoever remembers: it catches every ball, and nobody gets more."""
    outcomes = play_episodes(world, players.catcher(world), budget.episodes, budget.seed)
    optimum = exact_level(1.0, float(world.balls), EXACT)
    return Best(optimum if bool(outcomes.success.all()) else sampled_level(outcomes, SCRIPTED), optimum)


def tabular_bounds(world: Tabular, budget: Budget) -> Best:
    """Play the policy of the discounted lower bound; above it is the undiscounted player who sees the state.

    Where chance ends with the start, the undiscounted optimum is found exactly instead.
    """
    exact = world.initial_draws() is not None
    if exact and world.tables.discount == 1.0:
        return searched_bounds(world)
    model = tabular.Model.of(world.tables)
    found = tabular.bound_value(model, budget.gap, budget.size)
    discounted = {"discount": model.discount, "lower": found.lower, "upper": found.upper}
    if exact:
        return replace(searched_bounds(world), discounted=discounted)
    outcomes = play_episodes(world, tabular.belief_player(model, found), budget.episodes, budget.seed)
    return Best(
        sampled_level(outcomes, POINT_BASED),
        exact_level(1.0, tabular.full_state(model, world.time_limit), FULL_STATE),
        discounted,
    )


def grid_bounds(world: GridWorld, budget: Budget) -> Best:
    """Search exactly where there are few initial states; of memory rooms the player who sees the state is known."""
    if not isinstance(world.task.layout, Scattered | LockedRoom):
        return searched_bounds(world)
    if not isinstance(world, MemoryRooms):
        raise UserError(f"No player is known for such rooms but of the registered worlds, not {type(world).__name__}.")
    return Best(None, sampled_level(players.way_out(world, budget.episodes, budget.seed), FULL_STATE))


def searched_bounds(world: World[Any]) -> Best:
    """Play the optimal policy on beliefs from every initial state.

    It is optimal in return; who gives some of it up may win more often, unless it always wins.
    """
    found = search.find_plan(search.explore_states(world), world.time_limit)
    outcomes = search.plan_outcomes(world, found)
    success, returns = float(outcomes.success.double().mean()), float(outcomes.returns.mean())
    if abs(returns - found.value) > ROUNDING * max(1.0, abs(found.value)):
        raise RuntimeError(f"The plan promises a return of {found.value} and gets {returns}.")
    upper = exact_level(1.0, returns, BELIEF_OPTIMAL if success == 1.0 else RETURN_OPTIMAL)
    return Best(exact_level(success, returns, BELIEF_OPTIMAL), upper)


BOUNDS: dict[type[Any], Callable[[Any, Budget], Best]] = {
    CarFlag: car_flag_bounds,
    BlinkingCatch: catch_bounds,
    Tabular: tabular_bounds,
    GridWorld: grid_bounds,
}
