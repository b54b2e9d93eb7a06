"""The best that is known of each world: a lower and an upper bound on success and on return, and of what kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from envs.baselines import cards, maps, players, search, shortest, tabular
from envs.baselines.known import Level
from envs.baselines.playing import crowd, exactly, level, play, random_player
from envs.baselines.tabular import full_state
from envs.core import World
from envs.errors import UserError
from envs.gridverse.layouts import LockedRoom, Scattered
from envs.gridverse.tasks import StockWorld
from envs.gridverse.world import GridWorld
from envs.worlds.car_flag import CarFlag
from envs.worlds.catch import BlinkingCatch
from envs.worlds.memory_cards import MemoryCards
from envs.worlds.tabular import Tabular

SCRIPTED, FULL_STATE = "lower by scripted player", "upper by full-state player"
POINT_BASED = "lower by point-based player"
EXACT, BELIEF_OPTIMAL, RETURN_OPTIMAL = "exact", "belief-optimal", "return belief-optimal, success at most 1"
ROUNDING = 1e-9


@dataclass(frozen=True)
class Effort:
    """How much is computed."""

    episodes: int  # of players that act on tensors
    scripted: int  # of players that are asked row by row
    seed: int
    gap: float  # between the bounds on a tabular world's discounted value
    size: int  # of the bounds, after which the search for it gives up


@dataclass(frozen=True)
class Best:
    """Bounds on the best success and the best return; of a tabular world also on the discounted value."""

    lower: Level
    upper: Level
    discounted: dict[str, float] | None = None


def random_level(world: World[Any], effort: Effort) -> Level:
    """A uniformly random policy, measured."""
    player = random_player(world.num_actions, effort.seed + 1, world.device)
    return level(play(world, player, effort.episodes, effort.seed), "measured")


def best(world: World[Any], effort: Effort) -> Best:
    """The best that is known of a world, found by what the world is made of: see `BOUNDS`, to which a module may add.

    Raises:
        UserError: nobody has written a player for such a world.
    """
    for kind in type(world).__mro__:  # the nearest class first, so that a subclass may have a player of its own
        if kind in BOUNDS:
            return BOUNDS[kind](world, effort)
    name = type(world).__name__
    raise UserError(
        f"No player is known for {name}; give one with envs.baselines.bounds.BOUNDS[{name}] = f, where "
        "f(world, effort) returns a Best, or make it a subclass of envs.worlds.tabular.Tabular."
    )


def of_car(world: CarFlag, effort: Effort) -> Best:
    """The signpost player wins from every start, and nobody gets more than 1."""
    outcomes = players.every_start(world)
    found = exactly(float(outcomes.success.double().mean()), float(outcomes.returns.mean()), EXACT)
    upper = exactly(1.0, 1.0, EXACT)
    return Best(found if found == upper else level(outcomes, SCRIPTED), upper)


def of_cards(world: MemoryCards, effort: Effort) -> Best:
    """The exact optimum with a perfect memory."""
    success, returns = cards.solve(world.pairs, world.time_limit).best(world.pairs)
    optimum = exactly(min(success, 1.0), returns, EXACT)
    return Best(optimum, optimum)


def of_catch(world: BlinkingCatch, effort: Effort) -> Best:
    """Whoever remembers catches every ball, and nobody gets more."""
    outcomes = play(world, players.catcher(world), effort.episodes, effort.seed)
    optimum = exactly(1.0, float(world.balls), EXACT)
    return Best(optimum if bool(outcomes.success.all()) else level(outcomes, SCRIPTED), optimum)


def of_tables(world: Tabular, effort: Effort) -> Best:
    """The policy of the discounted lower bound, played, below the undiscounted player who sees the state.

    Where chance ends with the start, the undiscounted optimum is found exactly instead.
    """
    model, found, discounted = tabular.solved(world.tables, effort.gap, effort.size)
    if world.initial_draws() is not None:
        return replace(of_few_starts(world), discounted=discounted)
    outcomes = play(world, tabular.belief_player(model, found), effort.episodes, effort.seed)
    return Best(level(outcomes, POINT_BASED), exactly(1.0, full_state(model, world.time_limit), FULL_STATE), discounted)


def of_grid(world: GridWorld, effort: Effort) -> Best:
    """By the layout: an exact search where there are few initial states, a scripted player elsewhere.

    Raises:
        UserError: a scripted player would have to read another observation than the published one, or other rewards
            than those of the registered worlds are paid.
    """
    layout = world.task.layout
    if isinstance(layout, Scattered | LockedRoom):
        if not isinstance(world, StockWorld):
            raise UserError(f"The players of such rooms know the registered worlds only, not {type(world).__name__}.")
        if not _published(world):
            raise UserError("The scripted players read the summed 2 x 3 window; give no other view or encoding.")
    if isinstance(layout, Scattered):
        return _scattered(world, layout, effort)
    if isinstance(layout, LockedRoom):
        return _keydoor(world, layout, effort)
    return of_few_starts(world)


def of_few_starts(world: World[Any]) -> Best:
    """The optimal policy on beliefs, played from every initial state.

    It is optimal in return; who gives some of it up may win more often, unless it always wins.
    """
    found = search.solve(search.explore(world), world.time_limit)
    outcomes = search.every_start(world, found)
    success, returns = float(outcomes.success.double().mean()), float(outcomes.returns.mean())
    if abs(returns - found.value) > ROUNDING:
        raise RuntimeError(f"The plan promises a return of {found.value} and gets {returns}.")
    upper = exactly(1.0, returns, BELIEF_OPTIMAL if success == 1.0 else RETURN_OPTIMAL)
    return Best(exactly(success, returns, BELIEF_OPTIMAL), upper)


def _published(world: GridWorld) -> bool:
    return world.encoding == "summed" and not world.dictionary and (world.view.rows, world.view.columns) == (2, 3)


def _scattered(world: GridWorld, layout: Scattered, effort: Effort) -> Best:
    """A gambler for the success, a patient seeker for the return."""
    drawn = maps.scattered(layout, world.phantoms)
    gambler, patient = (
        play(world, crowd(partial(players.Seeker, drawn, bold)), effort.scripted, effort.seed) for bold in (True, False)
    )
    lower = Level(level(gambler, "").success, level(patient, "").returns, SCRIPTED)
    return Best(lower, level(shortest.way_out(world, effort.episodes, effort.seed), FULL_STATE))


def _keydoor(world: GridWorld, layout: LockedRoom, effort: Effort) -> Best:
    drawn = maps.keydoor(layout)
    outcomes = play(world, crowd(partial(players.Opener, drawn)), effort.scripted, effort.seed)
    return Best(level(outcomes, SCRIPTED), exactly(*shortest.keydoor(world.height), FULL_STATE))


BOUNDS: dict[type[Any], Callable[[Any, Effort], Best]] = {
    CarFlag: of_car,
    MemoryCards: of_cards,
    BlinkingCatch: of_catch,
    Tabular: of_tables,
    GridWorld: of_grid,
}
