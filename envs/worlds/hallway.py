"""Hallway: reach the goal of a corridor whose parts look alike, with noisy legs and noisy sensors.

Littman, Cassandra and Kaelbling (1995), as the table of 60 states, 5 actions and 21 observations that is in use.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch

from envs.worlds.tabular import Tables, Tabular, TabularState, put_agent

MAZE = ("***********", "..*.*.*.+..")  # * floor, + goal, . wall
NORTH, EAST, SOUTH, WEST = range(4)  # clockwise, so that adding turns to the right
AHEAD, RIGHT, BACK, LEFT = range(4)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # (y, x) by heading
CELLS = tuple((y, x) for y, line in enumerate(MAZE) for x, mark in enumerate(line) if mark != ".")
GOAL = next(cell for cell, (y, x) in enumerate(CELLS) if MAZE[y][x] == "+")
ACTIONS = ("stay", "forward", "turn_right", "turn_around", "turn_left")
DISCOUNT = 0.95
LANDMARK, AT_GOAL = 16, 20  # the first of the landmark observations, and the observation of the goal

# Per mille for each quarter turn to the right.
TURNING = {"turn_right": (100, 700, 100, 100), "turn_around": (100, 150, 600, 150), "turn_left": (100, 100, 100, 700)}

# Millionths for a reading, by (walls seen, walls missed, openings seen as wall, openings seen as open): the products
# of 0.90, 0.10, 0.05 and 0.95 as the model's file has them, cut off after six decimals and not always rounded alike.
READINGS: dict[tuple[int, ...], int] = {
    (0, 3, 0, 1): 949, (1, 2, 0, 1): 8549, (2, 1, 0, 1): 76949, (3, 0, 0, 1): 692550, (0, 3, 1, 0): 49,
    (1, 2, 1, 0): 449, (2, 1, 1, 0): 4049, (0, 2, 0, 2): 9024, (0, 2, 1, 1): 474, (0, 2, 2, 0): 24,
    (1, 1, 0, 2): 81225, (1, 1, 1, 1): 4275, (1, 1, 2, 0): 225, (2, 0, 0, 2): 731024, (2, 0, 1, 1): 38475,
    (0, 1, 0, 3): 85737, (0, 1, 1, 2): 4512, (0, 1, 2, 1): 237, (0, 1, 3, 0): 12, (1, 0, 0, 3): 771637,
    (1, 0, 1, 2): 40612, (1, 0, 2, 1): 2137,
}  # fmt: skip


class Hallway(Tabular):
    """Enter the goal for +1; the next action ends the episode. Moving, turning and the wall sensors are noisy.

    Observation Discrete(22): 0 to 15 the sum of the walls in front (8), right (4), behind (2) and left (1); 16 to 19
    the landmarks of the corridor's four side cells, visible when facing south; 20 the goal; 21 the first observation of
    an episode. Success is an episode that ends from the goal. An episode that is truncated on the step into the goal
    is no success.
    """

    drawn_as_map = True

    def __init__(self, time_limit: int = 250, device: str | torch.device = "cpu") -> None:
        super().__init__(hallway_tables(), time_limit, device)

    def text(self, state: TabularState, row: int) -> str:
        """Draw the maze with walls (#), the goal (+) and the agent as an arrow; an ended episode has no agent."""
        lines = [f"#{line.replace('.', '#').replace('*', '.')}#" for line in MAZE]
        lines = ["#" * len(lines[0]), *lines, "#" * len(lines[0])]
        hidden = int(state.hidden[row])
        if hidden < self.tables.num_states:
            y, x = CELLS[hidden // 4]
            lines = put_agent(lines, y + 1, x + 1, "^>v<"[hidden % 4])
        return "\n".join(lines)


@cache
def hallway_tables() -> Tables:
    """Make the model from the maze. State 4 * cell + heading, cells row by row, headings clockwise from north."""
    states = 4 * len(CELLS)
    goal = np.arange(states) // 4 == GOAL  # (S,)
    start = np.where(goal, 0, 17857)
    start[0] += 1_000_000 - start.sum()
    reset = np.tile(goal, (len(ACTIONS), 1))
    moves = np.zeros((len(ACTIONS), states, states))  # per mille, without resets
    for (action, name), state in itertools.product(enumerate(ACTIONS), range(states)):
        for part, to, facing in _outcomes(name, *divmod(state, 4)):
            moves[action, state, 4 * to + facing % 4] += part
    T = np.where(reset[:, :, None], start / 1e6, moves / 1e3)
    reading = np.array([_observation(cell, heading) for cell in range(len(CELLS)) for heading in range(4)]) / 1e6
    O = np.tile(reading, (len(ACTIONS), 1, 1))  # noqa: E741
    R = np.broadcast_to(goal[:, None].astype(float), (*T.shape, O.shape[2]))
    poses = tuple(f"{('top', 'bottom')[y]}(y={y},x={x}) facing {heading}" for y, x in CELLS for heading in "NESW")
    readings = [f"walls front/right/back/left={reading:04b}" for reading in range(LANDMARK)]
    sides = [(x, cell) for cell, (y, x) in enumerate(CELLS) if y == 1]
    seen = [f"at x={x} facing S (goal ahead)" if cell == GOAL else f"landmark at x={x} facing S" for x, cell in sides]
    return Tables(T, O, R, start / 1e6, reset, poses, ACTIONS, (*readings, *seen, "goal"), DISCOUNT)


def _outcomes(name: str, cell: int, heading: int) -> Iterator[tuple[int, int, int]]:
    """List the probability (per mille), cell and heading of an action's outcomes; a step against a wall stays."""
    if name in TURNING:
        yield from ((part, cell, heading + turn) for turn, part in enumerate(TURNING[name]))
        return
    yield 1000 if name == "stay" else 50, cell, heading
    if name == "forward":
        for part, side, turn in ((800, AHEAD, 0), (50, LEFT, LEFT), (50, RIGHT, RIGHT), (25, BACK, 0), (25, BACK, 2)):
            to = _neighbour(cell, heading + side)
            yield (part, cell, heading) if to is None else (part, to, heading + turn)


def _neighbour(cell: int, direction: int) -> int | None:
    """Return the cell next to this one, or None for a wall."""
    (y, x), (dy, dx) = CELLS[cell], MOVES[direction % 4]
    return CELLS.index((y + dy, x + dx)) if (y + dy, x + dx) in CELLS else None


def _observation(cell: int, heading: int) -> list[int]:
    """Compute the probabilities (Z,) of the observations at a pose, in millionths."""
    parts = [0] * (AT_GOAL + 1)
    below = _neighbour(cell, SOUTH)
    if cell == GOAL:
        parts[AT_GOAL] = 1_000_000
    elif heading == SOUTH and below is not None:
        parts[LANDMARK + below - len(MAZE[0])] = 1_000_000
    else:
        walls = [_neighbour(cell, heading + side) is None for side in (AHEAD, RIGHT, BACK, LEFT)]
        for reading in range(15):
            seen = zip(walls, [bool(reading >> bit & 1) for bit in (3, 2, 1, 0)], strict=True)
            counts = Counter[tuple[bool, ...]](seen)
            parts[reading] = READINGS[tuple(counts[each] for each in itertools.product((True, False), repeat=2))]
        parts[15] = 1_000_000 - sum(parts[:15])  # as in the file, the last reading gets the rest
    return parts
