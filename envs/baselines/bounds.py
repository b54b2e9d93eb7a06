"""Bounds on the best success and the best return of each environment, and the kinds of these bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from envs.baselines import players, search, tabular
from envs.baselines.best import BY_RULES, EXACT, Best, Budget
from envs.baselines.card_players import (
    autoencode_bounds,
    count_recall_bounds,
    higher_lower_bounds,
    pair_recall_bounds,
    repeat_first_bounds,
    repeat_previous_bounds,
)
from envs.baselines.control_players import cart_bounds, pendulum_bounds
from envs.baselines.game_players import bandit_bounds, battleship_bounds, concentration_bounds, mine_bounds
from envs.baselines.maze_players import labyrinth_bounds
from envs.baselines.plain_players import corridor_lines, heaven_hell_lines, memory_cards_lines
from envs.baselines.players import exact_level, play_episodes, sampled_level
from envs.baselines.reference import UNKNOWN, Level
from envs.core import World
from envs.errors import UserError
from envs.gridverse.layouts import LockedRoom, Scattered
from envs.gridverse.tasks import Memory, MemoryRooms
from envs.gridverse.world import GridWorld
from envs.popgym.bandit import MultiarmedBandit
from envs.popgym.boards import Battleship, MineSweeper
from envs.popgym.concentration import Concentration
from envs.popgym.control import HalfCartPole, PositionOnlyPendulum
from envs.popgym.counting import CountRecall, HigherLower
from envs.popgym.labyrinth import Labyrinth
from envs.popgym.recall import PairRecall
from envs.popgym.repeat import Autoencode, RepeatFirst, RepeatPrevious
from envs.worlds.car_flag import CarFlag
from envs.worlds.catch import BlinkingCatch
from envs.worlds.heaven_hell import HeavenHell
from envs.worlds.memory_cards import MemoryCards
from envs.worlds.tabular import Tabular

SCRIPTED, FULL_STATE = "lower by scripted player", "upper by full-state player"
POINT_BASED, BY_CHANCE = "lower by point-based player", "lower by random actions"
BELIEF_OPTIMAL, RETURN_OPTIMAL = "belief-optimal", "return belief-optimal, success at most 1"
ROUNDING = 1e-9


def bounds_of(world: World[Any], budget: Budget) -> Best:
    """Bound the best scores of a World by its class, see `BOUNDS`; a module may add to it."""
    for kind in type(world).__mro__:  # the nearest class first, so that a subclass may have its own player
        if kind in BOUNDS:
            return BOUNDS[kind](world, budget)
    name = type(world).__name__
    raise UserError(
        f"No player is known for {name}; give one with envs.baselines.bounds.BOUNDS[{name}] = f, where "
        "f(world, budget) returns a Best, or make it a subclass of envs.worlds.tabular.Tabular."
    )


def car_flag_bounds(world: CarFlag, budget: Budget) -> Best:
    """Play the signpost player, who wins from every start; 1 is the maximum of a return."""
    outcomes = players.signpost_outcomes(world)
    return _reached(exact_level(1.0, 1.0, EXACT), outcomes)


def catch_bounds(world: BlinkingCatch, budget: Budget) -> Best:
    """Play a player who remembers the ball's column: it catches every ball, the maximum."""
    outcomes = play_episodes(world, players.catcher(world), budget.episodes, budget.seed)
    return _reached(exact_level(1.0, float(world.balls), EXACT), outcomes)


def _reached(most: Level, outcomes: players.Outcomes) -> Best:
    """Return the most that the rules allow as the optimum if every episode reached it, else as an upper bound."""
    if bool(outcomes.success.all() & (outcomes.returns == most.returns.mean).all()):
        return Best(most, most)
    return Best(sampled_level(outcomes, SCRIPTED), replace(most, kind=BY_RULES))


def memory_cards_bounds(world: MemoryCards, budget: Budget) -> Best:
    """Play the lines alone; the optimum was computed by a program of an earlier revision, see the page."""
    return Best(None, UNKNOWN, lines=memory_cards_lines(world, budget))


def tabular_bounds(world: Tabular, budget: Budget) -> Best:
    """Play the policy of the discounted lower bound; the upper bound is the optimum of a player who sees the state.

    If only the initial state is random, the undiscounted optimum is computed exactly instead.
    """
    exact = world.initial_draws() is not None
    if exact and world.tables.discount == 1.0:
        return searched_bounds(world)
    model = tabular.Model.of(world.tables)
    bounds = tabular.bound_value(model, budget.gap, budget.size)
    discounted = {"discount": model.discount, "lower": bounds.lower, "upper": bounds.upper}
    if exact:
        return replace(searched_bounds(world), discounted=discounted)
    outcomes = play_episodes(world, tabular.belief_player(model, bounds), budget.episodes, budget.seed)
    return Best(
        sampled_level(outcomes, POINT_BASED),
        exact_level(1.0, tabular.full_state(model, world.time_limit), FULL_STATE),
        discounted,
    )


def heaven_hell_bounds(world: HeavenHell, budget: Budget) -> Best:
    """Search the optimum, and play the players with a clock and with one remembered step."""
    return replace(tabular_bounds(world, budget), lines=heaven_hell_lines(world))


def grid_bounds(world: GridWorld, budget: Budget) -> Best:
    """Search exactly if there are few initial states; for memory rooms return a full-state player's upper bound."""
    if not isinstance(world.task.layout, Scattered | LockedRoom):
        best = searched_bounds(world)
        return replace(best, lines=corridor_lines(world)) if isinstance(world, Memory) else best
    if not isinstance(world, MemoryRooms):
        raise UserError(f"No player is known for such rooms in {type(world).__name__}, only in MemoryRooms.")
    return Best(None, sampled_level(players.way_out(world, budget.episodes, budget.seed), FULL_STATE))


def searched_bounds(world: World[Any]) -> Best:
    """Play the optimal policy on beliefs from every initial state.

    Its return is optimal. Unless it always wins, another policy may win more often with a lower return.
    """
    plan = search.find_plan(search.explore_states(world), world.time_limit)
    outcomes = search.plan_outcomes(world, plan)
    success, returns = float(outcomes.success.double().mean()), float(outcomes.returns.mean())
    if abs(returns - plan.value) > ROUNDING * max(1.0, abs(plan.value)):
        raise RuntimeError(f"The plan promises a return of {plan.value} and gets {returns}.")
    upper = exact_level(1.0, returns, BELIEF_OPTIMAL if success == 1.0 else RETURN_OPTIMAL)
    return Best(exact_level(success, returns, BELIEF_OPTIMAL), upper)


BOUNDS: dict[type[Any], Callable[[Any, Budget], Best]] = {
    CarFlag: car_flag_bounds,
    BlinkingCatch: catch_bounds,
    MemoryCards: memory_cards_bounds,
    Tabular: tabular_bounds,
    HeavenHell: heaven_hell_bounds,
    GridWorld: grid_bounds,
    RepeatFirst: repeat_first_bounds,
    RepeatPrevious: repeat_previous_bounds,
    Autoencode: autoencode_bounds,
    CountRecall: count_recall_bounds,
    HigherLower: higher_lower_bounds,
    MultiarmedBandit: bandit_bounds,
    Concentration: concentration_bounds,
    Battleship: battleship_bounds,
    MineSweeper: mine_bounds,
    HalfCartPole: cart_bounds,
    PositionOnlyPendulum: pendulum_bounds,
    Labyrinth: labyrinth_bounds,
    PairRecall: pair_recall_bounds,
}
