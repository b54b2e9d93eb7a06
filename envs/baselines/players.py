"""Play one episode per row, and scripted players, who know the rules of their environment.

Players see only the observation. Those of Car Flag and Blinking Catch remember one number. `way_out` is a player who
sees the state of memory rooms: an upper bound for all players who do not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.actions import action_form
from envs.baselines.reference import Level, Measure
from envs.core import State, World, where_state
from envs.errors import require
from envs.gridverse.objects import EXIT, blocks_movement, colours, kinds
from envs.gridverse.tasks import BAD_EXIT, GOOD_EXIT, LIVING
from envs.worlds.catch import BALL, PADDLE, BlinkingCatch

PUSH_LEFT, PUSH_RIGHT = 0, 2  # actions of Car Flag
STARTS = 2_001  # number of initial positions on a grid in Car Flag
Player = Callable[[Tensor, Tensor], Tensor]
"""Maps observations (N, d) and the running rows (N,) bool to actions (N,) int64 or (N, k) float32.
A player has its own state between calls, so each game needs a new player."""


@dataclass(frozen=True)
class Outcomes:
    """The results of N episodes."""

    success: Tensor  # (N,) bool, the World's verdict
    returns: Tensor  # (N,) float64, undiscounted
    lengths: Tensor  # (N,) int64


def mean_with_error(values: Tensor) -> Measure:
    """Compute the mean of sampled values (N,), N > 1, and its standard error."""
    sample = values.double()
    return Measure(float(sample.mean()), float(sample.std(correction=1)) / len(sample) ** 0.5)


def sampled_level(outcomes: Outcomes, kind: str) -> Level:
    """Measure the success and the return of sampled episodes."""
    return Level(mean_with_error(outcomes.success), mean_with_error(outcomes.returns), kind)


def exact_level(success: float, returns: float, kind: str) -> Level:
    """Make a level of exact numbers."""
    return Level(Measure(success), Measure(returns), kind)


def play_episodes(world: World[Any], player: Player, episodes: int, seed: int) -> Outcomes:
    """Play one episode in each of `episodes` rows.

    Every row counts once, so that short episodes are not counted more often than long ones.
    """
    generator = torch.Generator(world.device).manual_seed(seed)
    start = world.reset(draw_uniforms(generator, episodes, world.reset_draws))
    return finish(world, start, player, lambda: draw_uniforms(generator, episodes, world.step_draws))


def finish(world: World[Any], state: State, player: Player, chance: Callable[[], Tensor] | None = None) -> Outcomes:
    """Play all N rows of a state to their ends.

    `chance` gives the uniforms (N, step_draws) of the next step; without it the World's steps must be deterministic.
    """
    rows = len(state.steps)
    running = torch.ones(rows, dtype=torch.bool, device=world.device)
    success = torch.zeros_like(running)
    while running.any():
        u = no_chance(world, rows) if chance is None else chance()
        after, _, _, terminated, won = world.step(state, player(state.observation, running), u)
        success |= won & running
        state = where_state(running, after, state)  # an ended episode keeps its last state
        running = running & ~(terminated | world.truncated(after, terminated))
    return Outcomes(success, state.returns, state.steps)


def random_player(world: World[Any], seed: int) -> Player:
    """Choose uniformly random actions from a separate stream.

    Raises:
        UserError: the World masks actions, which no player here obeys.
    """
    require(not world.masks_actions, f"{type(world).__name__} masks its actions, which these players do not obey.")
    generator, rows = torch.Generator(world.device).manual_seed(seed), action_form(world.action_space, "clip")[0]

    def act(observation: Tensor, running: Tensor) -> Tensor:
        count = len(running)
        if world.num_actions:
            return torch.randint(world.num_actions, (count,), generator=generator, device=world.device)
        return rows.reals(rows.random(torch.rand(count, *rows.shape, generator=generator, device=world.device)))

    return act


def no_chance(world: World[Any], rows: int) -> Tensor:
    """Return uniforms (rows, step_draws) for a step of a deterministic World, where they have no effect."""
    return torch.zeros(rows, world.step_draws, dtype=torch.float64, device=world.device)


def draw_uniforms(generator: torch.Generator, rows: int, count: int) -> Tensor:
    """Draw uniforms (rows, count)."""
    return torch.rand(rows, count, dtype=torch.float64, generator=generator, device=generator.device)


def signpost_player() -> Player:
    """Push right until the observation (N, 3) shows a side, then push to that side."""
    known: Tensor | None = None  # (N,) float64, the side of heaven or 0

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        shown = observation[:, 2]
        known = shown if known is None else torch.where(known == 0, shown, known)
        return torch.where(known < 0, PUSH_LEFT, PUSH_RIGHT)

    return act


def signpost_outcomes(world: World[Any]) -> Outcomes:
    """Play the signpost player from a grid of starts, including both extreme positions, with both sides of heaven."""
    u = torch.linspace(0.0, 1.0, STARTS, dtype=torch.float64, device=world.device)
    starts = torch.cartesian_prod(torch.tensor([0.25, 0.75], dtype=u.dtype, device=u.device), u)  # (2 * STARTS, 2)
    return finish(world, world.reset(starts), signpost_player())


def read_picture(world: BlinkingCatch, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Read the paddle's column and the ball's row and column, -1 if invisible, from pictures; each (N,)."""
    edges = torch.tensor([world.edge(cell) for cell in range(world.grid)], device=observation.device)
    ball, paddle = observation[:, 0, edges][:, :, edges] == BALL[0], observation[:, 0, edges[-1], edges] == PADDLE[0]
    cell = ball.flatten(1).long().argmax(1)  # each cell is read at its first pixel
    visible = ball.flatten(1).any(1)
    rows, columns = (torch.where(visible, each, -1) for each in (cell // world.grid, cell % world.grid))
    return paddle.long().argmax(1), rows, columns


def catcher(world: BlinkingCatch) -> Player:
    """Remember the ball's last visible column, and go there."""
    known: Tensor | None = None  # (N,)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        paddle, _, column = read_picture(world, observation)
        known = torch.where(column >= 0, column, paddle if known is None else known)
        return 1 + (known - paddle).sign()

    return act


def way_out(world: World[Any], episodes: int, seed: int) -> Outcomes:
    """Take the shortest way to the good exit around the bad ones in newly drawn episodes of a memory task.

    If the bad exit blocks every way, or the good one is too far for the time limit, take the better of two outcomes:
    the bad exit, or staying until the time limit. `world` is a `GridWorld` of the memory task.
    """
    state = world.reset(draw_uniforms(torch.Generator(world.device).manual_seed(seed), episodes, world.reset_draws))
    cells = state.cells.long().view(episodes, world.height, world.width)  # type: ignore[attr-defined]
    start = torch.zeros_like(cells, dtype=torch.bool)
    start.view(episodes, -1)[torch.arange(episodes), state.position] = True
    good = (kinds(cells) == EXIT) & (colours(cells) == state.good[:, None, None])
    bad = (kinds(cells) == EXIT) & ~good
    free = ~blocks_movement(cells)
    to_good, to_bad = walk(free & ~bad, start, good), walk(free & ~good, start, bad)
    reached = (to_good >= 0) & (to_good <= world.time_limit)
    in_time = (to_bad >= 0) & (to_bad <= world.time_limit)
    leaving = in_time & (BAD_EXIT + LIVING * to_bad > LIVING * world.time_limit)
    lengths = torch.where(reached, to_good, torch.where(leaving, to_bad, world.time_limit))
    spent = torch.full((int(lengths.max()),), LIVING, dtype=torch.float64, device=lengths.device)
    spent = spent.cumsum(0)  # in float64 and step by step, as the World sums
    returns = spent[lengths - 1] + GOOD_EXIT * reached + BAD_EXIT * (leaving & ~reached)
    return Outcomes(reached & (returns > 0.0), returns, lengths)


def walk(free: Tensor, start: Tensor, goal: Tensor) -> Tensor:
    """Count the steps (N,) from start to goal over free cells, all (N, H, W) bool; -1 if there is no way."""
    steps = torch.full((len(free),), -1, dtype=torch.int64, device=free.device)
    reached, before = start, torch.zeros_like(start)
    for step in range(free[0].numel()):
        steps = torch.where((steps < 0) & (reached & goal).flatten(1).any(1), step, steps)
        if torch.equal(reached, before):
            break
        # `roll` wraps around, but the border of a grid is wall.
        ahead = reached.roll(1, 1) | reached.roll(-1, 1) | reached.roll(1, 2) | reached.roll(-1, 2)
        reached, before = (reached | ahead) & (free | start), reached
    return steps
