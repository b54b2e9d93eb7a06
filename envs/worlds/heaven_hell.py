"""HeavenHell: ask the priest on which side heaven lies, and go there.

Geffner and Bonet (1998), with arms of any length.
"""

import numpy as np
import torch

from envs.errors import require
from envs.worlds.tabular import Tables, Tabular, TabularState, check_table_size, put_agent

ACTIONS = ("N", "S", "E", "W")
MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))  # (y, x) by action
DISCOUNT = 0.99
LEFT, RIGHT = range(2)  # the side of heaven


class HeavenHell(Tabular):
    """Walk to the end of the left or the right arm; any action there ends the episode, +1 in heaven, -1 in hell.

    Nothing is noisy. Observation Discrete(4n + 4): the agent's cell, whose number does not depend on heaven's side. At
    the priest it is 4n + 1 for heaven on the left and 4n + 2 for the right; the first observation of an episode is
    4n + 3. Success is heaven.

    Args:
        n: length of the arms and of the priest's corridor.
    """

    drawn_as_map = True

    def __init__(self, n: int = 3, time_limit: int = 250, device: str | torch.device = "cpu") -> None:
        super().__init__(heaven_hell_tables(n), time_limit, device)
        self.n = n

    def text(self, state: TabularState, row: int) -> str:
        """Draw the map with walls (#), heaven (+, green), hell (-, red), the priest (?, blue) and the agent (@).

        An ended episode shows neither the agent nor heaven and hell.
        """
        positions, n = cells(self.n), self.n
        side, cell = divmod(int(state.hidden[row]), len(positions))
        lines = ["#" * (2 * n + 3)] * (n + 4)
        marks = [(position, ".") for position in positions] + [(positions[-1], "?")]
        if side in (LEFT, RIGHT):
            ends = (positions[2 * n], positions[3 * n])
            marks += [(ends[side], "+"), (ends[1 - side], "-"), (positions[cell], "@")]
        for (y, x), mark in marks:
            lines = put_agent(lines, y + n + 1, x + n + 1, mark)
        return "\n".join(lines)


def cells(n: int) -> list[tuple[int, int]]:
    """List the 4n + 2 cells (y, x): the start, the corridor north, the left arm, the right arm, the south part."""
    north = [(-i, 0) for i in range(n + 1)]
    arms = [(-n, side * i) for side in (-1, 1) for i in range(1, n + 1)]
    return north + arms + [(1, i) for i in range(n + 1)]


def heaven_hell_tables(n: int = 3) -> Tables:
    """Make the model from the map. A state is side * (4n + 2) + cell, with side 0 for heaven left, 1 for right."""
    require(n >= 1, f"n of HeavenHell must be at least 1 cell, not {n}.")
    count, states = 4 * n + 2, 2 * (4 * n + 2)
    check_table_size(states, len(ACTIONS), count + 1, f"HeavenHell with n={n}")
    positions = cells(n)
    cell = np.arange(states) % count  # (S,)
    ends = (cell == 2 * n) | (cell == 3 * n)
    start = np.where(cell == 0, 0.5, 0.0)
    reset = np.tile(ends, (len(ACTIONS), 1))
    seen = np.where(cell < count - 1, cell, count - 1 + np.arange(states) // count)
    cell_at = {position: index for index, position in enumerate(positions)}
    to = [[cell_at.get((y + dy, x + dx), index) for index, (y, x) in enumerate(positions)] for dy, dx in MOVES]
    targets = np.concatenate([np.array(to), np.array(to) + count], 1)  # (A, S); a blocked action stays
    T = np.where(reset[:, :, None], start, np.eye(states)[targets])
    O = np.tile(np.eye(count + 1)[seen], (len(ACTIONS), 1, 1))  # noqa: E741
    heaven = cell == np.where(np.arange(states) < count, 2 * n, 3 * n)  # the left end or the right one
    paid = np.where(ends, np.where(heaven, 1.0, -1.0), 0.0)
    R = np.broadcast_to(paid[:, None, None], (*T.shape, count + 1))
    state_names = tuple(f"heaven_{side}:cell{index}" for side in ("left", "right") for index in range(count))
    observations = (*(f"o{i}" for i in range(count - 1)), "left", "right")
    return Tables(T, O, R, start, reset, state_names, ACTIONS, observations, DISCOUNT)
