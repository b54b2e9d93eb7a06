"""Properties of worlds that might decide where recurrence pays (DBGFQN paper, research questions 3 and 4).

All are computed from the worlds themselves with fixed seeds; `definitions` in words.toml says what each number is.
None: the world has nothing of the kind.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from scipy.sparse import csgraph
from torch import Tensor

from envs import baselines
from envs.baselines.players import signpost_player, walk
from envs.core import World, where
from envs.errors import UserError
from envs.gridverse.layouts import Scattered
from envs.gridverse.objects import BEACON, DOOR, EXIT, KEY, WALL, blocks_movement, colours, kinds
from envs.gridverse.world import GridState, GridWorld
from envs.registry import WORLDS, make_world
from envs.spaces import Array
from envs.worlds.car_flag import CarFlag
from envs.worlds.memory_cards import MemoryCards
from envs.worlds.tabular import Tables, Tabular

SCENES = 1_024  # initial states drawn
EPISODES = 128  # of the random player
SEED = 0


@cache
def properties(id: str) -> Mapping[str, float | None]:
    """Compute the properties of an environment with its default options, by the names of `definitions`.

    A UserError names an unknown environment.
    """
    world, lines = make_world(id), baselines.lines(id)
    walls = kinds(_scenes(world)[:, 1:-1, 1:-1]) == WALL if isinstance(world, GridWorld) else None
    return {
        "wall density": None if walls is None else float(walls.double().mean()),
        "rooms": rooms(world) if isinstance(world, GridWorld) else None,
        "aliasing": aliasing(world),
        "delay": delay(world),
        "gap": None if lines is None else lines.lower.success.mean - lines.random.success.mean,
    }


def control_twin(id: str) -> str | None:
    """Name the same environment without its phantom rooms; None where it has none or no such one is registered."""
    name = id.removeprefix("envs:")
    entry = WORLDS.get(name)
    if entry is None or "phantom_rooms" not in entry.kwargs:
        return None
    kept = {key: value for key, value in entry.kwargs.items() if not key.startswith("phantom_")}
    return next((other for other, it in WORLDS.items() if it.entry == entry.entry and dict(it.kwargs) == kept), None)


def rooms(world: GridWorld) -> float:
    """Count connected regions of the floor with doors shut and openings closed, mean over drawn scenes."""
    layout = world.task.layout
    if isinstance(layout, Scattered):
        return float(regions(kinds(layout.base.view(world.height, world.width)) != WALL))
    kind = kinds(_scenes(world)[:64])
    return float(np.mean([regions(scene) for scene in (kind != WALL) & (kind != DOOR)]))


def regions(free: Tensor) -> int:
    """Count regions of free cells (H, W) bool that are connected over their sides."""
    return int(ndimage.label(free.numpy())[1])


def aliasing(world: World[Any]) -> float | None:
    """Count states per observation within an episode of random actions; None where a world does not say its state."""
    try:
        observed, states, alive = _random_moments(world)
    except UserError:
        return None
    ratios = []
    for seen, state, on in zip(observed.T, states.T, alive.T, strict=True):  # an episode each
        pairs = np.unique(np.stack([seen[on], state[on]]), axis=1)
        ratios.append(pairs.shape[1] / len(np.unique(seen[on])))
    return float(np.mean(ratios))


def _random_moments(world: World[Any]) -> tuple[Array, Array, Array]:
    """Give observations and states numbers, and tell whether the episode still ran, each (T, EPISODES)."""
    generator = torch.Generator().manual_seed(SEED)
    start = world.reset(_uniforms(EPISODES, world.reset_draws, generator))

    def random(observation: Tensor, alive: Tensor) -> Tensor:
        return torch.randint(world.num_actions, (len(observation),), generator=generator)

    found = [
        (_numbered(state.observation), _numbered(world.observe_state(state)), alive.numpy())
        for state, alive in _played(world, start, random, generator)
    ]
    observed, states, on = (np.stack(column) for column in zip(*found, strict=True))
    return observed, states, on


def _played(
    world: World[Any], state: Any, player: Callable[[Tensor, Tensor], Tensor], generator: torch.Generator
) -> Iterator[tuple[Any, Tensor]]:
    """Play an episode a row; give each state, and which episodes still ran in it (N,)."""
    alive = torch.ones(len(state.observation), dtype=torch.bool)
    while alive.any():
        yield state, alive
        action = player(state.observation, alive)
        after, _, _, terminated, _ = world.step(state, action, _uniforms(len(alive), world.step_draws, generator))
        state = where(alive, after, state)
        alive = alive & ~terminated & ~world.truncated(state, terminated)


def _numbered(rows: Tensor) -> Array:
    """Give a number (N,) to each row, the same to equal rows only (64 bits of BLAKE2)."""
    plain = np.ascontiguousarray(rows.flatten(1).numpy())
    return np.array([int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest()) for row in plain], np.uint64)


def delay(world: World[Any]) -> float | None:
    """Count steps from the cue to the decision that needs it; None where no single cue decides."""
    if isinstance(world, GridWorld):
        return _grid_delay(world)
    if isinstance(world, Tabular):
        return tabular_delay(world.tables)
    if isinstance(world, CarFlag):
        return _car_delay(world)
    return _card_delay(world) if isinstance(world, MemoryCards) else None


def _grid_delay(world: GridWorld) -> float | None:
    """Measure the way from the nearest beacon to the good exit around the bad ones, or from the key to the door."""
    state = _initial(world)
    cells = state.cells.long().view(-1, world.height, world.width)
    kind = kinds(cells)
    good = (kind == EXIT) & (colours(cells) == state.good[:, None, None])
    if (kind == BEACON).any():
        free, start, goal = ~blocks_movement(cells) & ~((kind == EXIT) & ~good), kind == BEACON, good
    else:
        free, start, goal = ~blocks_movement(cells) | (kind == DOOR), kind == KEY, kind == DOOR
    steps = walk(free, start, goal)
    reached = steps[steps >= 0]
    return float(reached.double().mean()) if len(reached) else None


def tabular_delay(tables: Tables) -> float | None:
    """Measure the shortest way from a state that tells which fact holds to one with a rewarded last action.

    A fact is what chance draws once: the parts of the states between which no action leads. A state tells it if one
    of its observations is never seen in another part.
    """
    follows: Array = np.any((tables.T > 0) & ~tables.reset[..., None], axis=0)  # (S, S')
    _, part = csgraph.connected_components(follows, directed=False)  # (S,)
    if len(np.unique(part[tables.start > 0])) < 2:
        return None
    seen: Array = np.any(tables.O > 0, axis=0)  # (S', Z)
    parts_of_observation = np.array([len(np.unique(part[states])) for states in seen.T])
    tells = (seen & (parts_of_observation == 1)).any(1)  # (S,)
    expected = (tables.T * (tables.O[:, None] * tables.R).sum(-1)).sum(-1)  # (A, S)
    goal: Array = np.any(tables.reset & (expected > 0), axis=0)  # (S,)
    steps = []
    for each in np.unique(part[tables.start > 0]):
        cues = np.flatnonzero(tells & (part == each))
        if len(cues):
            ways = csgraph.dijkstra(follows, indices=cues, unweighted=True, min_only=True)  # (S,), inf where is none
            steps.append(ways[goal].min(initial=np.inf))
    known = [step for step in steps if np.isfinite(step)]
    return float(np.mean(known)) if known else None


def _car_delay(world: CarFlag) -> float:
    """Count steps from the first observation that names the side to the end of the road, by the player who obeys it."""
    known, count = torch.zeros(SCENES, dtype=torch.bool), torch.zeros(SCENES)
    for state, alive in _played(world, _initial(world), signpost_player(), torch.Generator()):
        known = known | (state.observation[:, 2] != 0)
        count += (alive & known).float()
    return float(count.double().mean())


def _card_delay(world: MemoryCards) -> float:
    """Count steps from a card's last showing to its partner's, for a player who names every partner it has seen.

    Of unseen cards the first is guessed.
    """
    generator, delays = torch.Generator().manual_seed(SEED), list[int]()
    for _ in range(EPISODES):
        state, shown = world.reset(_uniforms(1, world.reset_draws, generator)), dict[int, tuple[int, int]]()
        for step in range(world.time_limit):
            row, current = state.observation[0].tolist(), int(state.current[0])
            partner = next((i for i, (value, _) in shown.items() if i != current and value == row[current]), None)
            if partner is not None:
                delays.append(step - shown.pop(partner)[1])
                shown.pop(current, None)
            else:
                shown[current] = row[current], step
            unseen = (i for i, value in enumerate(row) if value != world.pairs + 1 and i not in shown and i != current)
            guess = torch.tensor([next(unseen) if partner is None else partner])
            state, _, _, terminated, _ = world.step(state, guess, _uniforms(1, world.step_draws, generator))
            shown = {i: seen for i, seen in shown.items() if int(state.observation[0, i]) != world.pairs + 1}
            if terminated[0]:
                break
    return float(np.mean(delays))


def _initial(world: World[Any]) -> Any:
    return world.reset(_uniforms(SCENES, world.reset_draws, torch.Generator().manual_seed(SEED)))


def _scenes(world: GridWorld) -> Tensor:
    """Draw initial grids (SCENES, H, W)."""
    state: GridState = _initial(world)
    return state.cells.long().view(-1, world.height, world.width)


def _uniforms(rows: int, draws: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, draws, dtype=torch.float64, generator=generator)
