"""An environment from tables of probabilities: the tables, exact draws from their rows, and the World."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import UserError, require
from envs.extras import extra
from envs.numpy_backend import integers, take, zeros


@dataclass
class TabularState(State):
    """N episodes of a finite POMDP."""

    hidden: Tensor  # (N,) int64, the state 0 .. S-1; S after the episode's end


class Tabular(World[TabularState]):
    """Any model of S states, A actions and Z observations, with the episodes of gym-pomdps.

    Observation Discrete(Z + 1): the first of an episode is always Z, without information. The episode ends with an
    action for which `reset` is True. That step draws a new start state, shows its observation and pays the reward of
    the transition to it; then the state is cleared (S). A model without such an action never terminates. Success is a
    positive return at the end. A model without such an action, or without positive rewards, defines no success.

    A transition is drawn as the index of a piece (see `Draw`). Three tables map this index to the next state, to the
    row from which the observation is drawn, and to the reward.
    """

    runs_on_numpy = True
    drawn_as_map = False  # whether `text` draws a map, see `paint`

    def __init__(self, tables: Tables, time_limit: int = 250, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        self.tables, self.num_actions, self.action_names = tables, tables.num_actions, tables.action_names
        self.defines_success = bool(tables.reset.any()) and float(tables.R.max()) > 0.0
        self.observation_space = gymnasium.spaces.Discrete(tables.num_observations + 1)
        states = tables.num_states
        self.state_space = gymnasium.spaces.Discrete(states + 1)
        self.transition, self.sight = Draw(_closed(tables.T)), Draw(_closed(tables.O))  # from rows a * (S + 1) + s
        start, move, sight = Draw(tables.start[None]), self.transition, self.sight
        self.reset_draws, self.step_draws = start.draws, move.draws + sight.draws
        self.start_cuts, self.move_cuts, self.sight_cuts = (
            tuple(map(self._tensor, (each.slots, each.first, each.cuts))) for each in (start, move, sight)
        )
        self.sight_column, self.by_observation = move.draws, tables.rewards_by_observation()
        # Tables by piece of a draw.
        self.start_state, self.seen = self._tensor(start.choices), self._tensor(sight.choices)
        over = np.pad(tables.reset, ((0, 0), (0, 1))).flatten()  # (A * (S + 1),); the cleared state stays cleared
        self.following = self._tensor(np.where(over[move.row], states, move.choices))
        self.sight_row = self._tensor(move.row // (states + 1) * (states + 1) + move.choices)
        self.rewards = self._tensor(_rewards(tables, move).flatten())
        self.ended, self.rows = self._tensor(np.array([states, states + 1])).unbind()
        self.unseen, self.width = self._tensor(tables.num_observations + np.arange(2)).unbind()

    def reset(self, u: Tensor) -> TabularState:
        """Draw a start state; the observation is Z."""
        steps, returns = self.counters(len(u))
        begin = piece(self.start_cuts, steps, u, 0)  # from row 0 of one
        hidden = take(self.start_state, begin)
        observation = zeros(self.one, len(u)) + self.unseen
        return TabularState(observation[:, None], steps, returns, hidden)

    def step(
        self, state: TabularState, action: Tensor, u: Tensor
    ) -> tuple[TabularState, Tensor, Tensor, Tensor, Tensor]:
        """Take one action; a cleared state stays cleared, with observation Z and reward 0."""
        row = action * self.rows + state.hidden
        move = piece(self.move_cuts, row, u, 0)  # (N,)
        row = take(self.sight_row, move)
        sight = piece(self.sight_cuts, row, u, self.sight_column)
        observation = take(self.seen, sight)
        hidden = take(self.following, move)
        reward = take(self.rewards, move * self.width + observation if self.by_observation else move)
        terminated = hidden == self.ended
        returns = state.returns + reward
        after = TabularState(observation[:, None], state.steps + self.one, returns, hidden)
        return after, after.observation, reward, terminated, terminated & (returns > self.nothing)

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, hidden = row
        move = plain_piece(self.move_cuts, action * self.rows + hidden, draw)
        sight = plain_piece(self.sight_cuts, self.sight_row.item(move), draw)
        observation, hidden = self.seen.item(sight), self.following.item(move)
        reward = self.rewards.item(move * self.width + observation if self.by_observation else move)
        returns += reward
        terminated = hidden == self.ended
        return ((observation,), steps + 1, returns, hidden), reward, terminated, terminated and returns > 0.0

    def observe_state(self, state: TabularState) -> Tensor:
        """Return the state's number, S after the end, (N, 1) int64."""
        return state.hidden[:, None]

    def initial_draws(self) -> Tensor | None:
        """List a draw (M, reset_draws) for each start state, if these are equally likely and steps draw nothing."""
        tables, draws = self.tables, Draw(self.tables.start[None])
        possible = tables.start.nonzero()[0]
        last = tables.R[..., : None if self.by_observation else 1][tables.reset]  # (M, S', Z or 1)
        moves, sights = (tables.T[~tables.reset] > 0).sum(1), (tables.O > 0).sum(2)
        certain = (moves == 1).all() and (sights == 1).all() and (last == last[:, :1, :1]).all()
        if not certain or len(set(tables.start[possible])) > 1:
            return None
        uniforms = [draws.uniform(0, state) for state in possible.tolist()]
        return self._tensor(np.array(uniforms)[:, None])[:, : self.reset_draws]

    def frame(self, state: TabularState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the result of `text`; a map becomes a picture of its cells."""
        text = self.text(state, row)
        if self.drawn_as_map:
            return paint(text)
        with extra("plots"):
            from PIL import Image, ImageDraw, ImageFont
        image = Image.new("RGB", (WIDTH, LINE * text.count("\n") + LINE + 2 * MARGIN), PAPER)
        ImageDraw.Draw(image).multiline_text((MARGIN, MARGIN), text, fill=INK, font=ImageFont.load_default())
        return np.array(image)

    def text(self, state: TabularState, row: int) -> str:
        """Write the names of the state and the observation, the step and the return."""
        tables, hidden, seen = self.tables, int(state.hidden[row]), int(state.observation[row, 0])
        lines = (
            ("state", (*tables.state_names, "ended")[hidden]),
            ("observation", (*tables.observation_names, "none yet")[seen]),
            ("step", f"{int(state.steps[row])}"),
            ("return", f"{float(state.returns[row]):g}"),
        )
        return "\n".join(f"{name:12}{value}" for name, value in lines)

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _closed(table: Floats) -> Floats:
    """Add the cleared state to T or O (A, S, C): it stays cleared and shows Z. Returns rows (A * (S + 1), C + 1)."""
    padded = np.pad(table, ((0, 0), (0, 1), (0, 1)))
    padded[:, -1, -1] = 1.0
    return padded.reshape(-1, padded.shape[2])


def _rewards(tables: Tables, move: Draw) -> Floats:
    """Compute the reward of each piece of a transition: (P, 1), or (P, Z + 1) if it depends on the observation."""
    action, state = np.divmod(move.row, tables.num_states + 1)  # (P,)
    last, columns = tables.num_states - 1, None if tables.rewards_by_observation() else 1
    paid = tables.R[..., :columns][action, state.clip(max=last), move.choices.clip(max=last)]
    paid = np.where(state[:, None] <= last, paid, 0.0)
    return paid if columns else np.pad(paid, ((0, 0), (0, 1)))


Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
TOLERANCE = 1e-5  # maximum difference of a row's sum from one: files round probabilities
MAX_ENTRIES = 2**26  # maximum entries of T and of O, half a gigabyte each
KINDS = ("state", "action", "observation")


def number_names(count: int) -> tuple[str, ...]:
    """Return the names "0", "1", "2", ... of unnamed states, actions or observations."""
    return tuple(map(str, range(count)))


@dataclass(frozen=True, eq=False)
class Tables:
    """A POMDP of S states, A actions and Z observations, with the episodes of gym-pomdps.

    A step from state s with action a leads to s' with probability T[a, s, s'], shows z with probability
    O[a, s', z] and pays R[a, s, s', z]. If reset[a, s] is True, that step is the last of the episode and s' is a
    start state; the row T[a, s] is then `start`. R may be a broadcast view, which costs no memory along axes that it
    does not depend on.

    Raises:
        UserError: shapes do not fit, a number is not finite, a row of T, O or start is negative or does not sum
            to one within 1e-5, the row of a reset is not `start`, or names are repeated.
    """

    T: Floats  # (A, S, S')
    O: Floats  # (A, S', Z)  # noqa: E741  (the symbol of every text on POMDPs)
    R: Floats  # (A, S, S', Z)
    start: Floats  # (S,)
    reset: Flags  # (A, S)
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    observation_names: tuple[str, ...]
    discount: float

    def __post_init__(self) -> None:
        self._check_form()
        for name, rows in (("T", self.T), ("O", self.O), ("start", self.start)):
            right = (np.abs(rows.sum(-1) - 1.0) <= TOLERANCE) & (rows >= 0.0).all(-1)
            if not right.all():
                wrong = tuple(np.argwhere(~right)[0])
                kinds = zip(("action", "state"), (self.action_names, self.state_names), wrong, strict=False)
                where = " and ".join(f"{kind} {names[index]!r}" for kind, names, index in kinds) or "the model"
                total = f"{rows[wrong].sum():g}"
                raise UserError(f"{name} of {where} sums to {total}, but probabilities sum to 1.")
        require((self.T[self.reset] == self.start).all(), "If reset is True, the row of T must be start.")

    @property
    def num_states(self) -> int:
        """Count the states, S."""
        return len(self.state_names)

    @property
    def num_actions(self) -> int:
        """Count the actions, A."""
        return len(self.action_names)

    @property
    def num_observations(self) -> int:
        """Count the observations, Z."""
        return len(self.observation_names)

    def rewards_by_observation(self) -> bool:
        """Tell whether R depends on the observation."""
        return self.R.strides[3] != 0 and bool((self.R[..., :1] != self.R).any())

    def _check_form(self) -> None:
        """Check shapes, names, rewards and the discount."""
        states, actions, observations = self.num_states, self.num_actions, self.num_observations
        require(
            states and actions and observations, "A model needs at least one state, one action and one observation."
        )
        shapes = {
            "T": (actions, states, states),
            "O": (actions, states, observations),
            "R": (actions, states, states, observations),
            "start": (states,),
            "reset": (actions, states),
        }
        for name, shape in shapes.items():
            given = getattr(self, name).shape
            require(given == shape, f"{name} must have shape {shape}, not {given}.")
        for kind in KINDS:
            names = getattr(self, f"{kind}_names")
            require(len(set(names)) == len(names), f"The {kind} names must differ from one another, not {names}.")
        finite = np.isfinite(self.R[..., :1] if self.R.strides[3] == 0 else self.R).all()
        require(finite, "R must hold finite numbers.")
        require(0 <= self.discount <= 1, f"discount must be from 0 to 1, not {self.discount}.")


def check_table_size(states: int, actions: int, observations: int, where: str) -> None:
    """Refuse a model whose tables are too large for the memory; `where` begins the sentence."""
    entries = actions * states * max(states, observations)
    sizes = f"{states} states, {actions} actions and {observations} observations"
    wanted = f"expected tables of at most {MAX_ENTRIES} entries, not {entries}"
    require(entries <= MAX_ENTRIES, f"{where}: found {sizes}, {wanted}.")


Integers = np.ndarray[Any, np.dtype[np.int64]]
Values = Any  # tensors, or numpy arrays in their position
UNITS = 2**53


class Draw:
    """Draw from R rows of probabilities by one uniform and a few look-ups, for rows of any length.

    This is Walker's alias method. For every row [0, 1) is divided into equal slots, a power of two, and every slot into
    two pieces, one of which may be empty. Each piece belongs to one outcome, and the total length of an outcome's
    pieces is its probability. A uniform finds its slot by its leading bits and its piece by one comparison. Lengths are
    multiples of 2**-53, the step of the uniforms. So every row sums to exactly one despite rounded probabilities, an
    outcome of probability 0 has no piece, and any other outcome has one.

    If every row has one possible outcome, nothing is drawn: there are no slots, and each row is one piece.

    Args:
        probabilities: rows (R, C), which need not sum to one exactly but are not all 0.
    """

    def __init__(self, probabilities: Floats) -> None:
        count = (probabilities > 0).sum(1)
        slots = 1 << np.ceil(np.log2(count)).astype(int)  # (R,)
        self.slots: Floats = slots.astype(float)  # (R,), number of slots per row, as factors of uniforms
        self.first: Integers = slots.cumsum() - slots  # (R,), the first slot of each row
        self.cuts: Floats = np.empty(0)  # (C,), the border between the two pieces of each slot
        self.choices: Integers = probabilities.argmax(1)  # (P,), the outcome of each piece; P is 2 * C, or R if C is 0
        if (count == 1).all():
            return
        self.cuts, choices = np.empty(slots.sum()), np.empty((slots.sum(), 2), np.int64)
        for width in np.unique(slots).tolist():
            rows = np.flatnonzero(slots == width)
            outcome, mass = support(probabilities[rows], width)
            order = mass.argsort(1, kind="stable")
            outcome, mass = (np.take_along_axis(table, order, 1) for table in (outcome, mass))
            own, other = pair(mass)
            position = self.first[rows][:, None] + np.arange(width)  # (rows, width)
            self.cuts[position] = (np.arange(width) * (UNITS // width) + own) / UNITS
            choices[position] = np.stack([outcome, np.take_along_axis(outcome, other, 1)], 2)
        self.choices = choices.flatten()

    @property
    def draws(self) -> int:
        """Count the uniforms of a draw."""
        return int(len(self.cuts) > 0)

    @property
    def row(self) -> Integers:
        """Return the row (P,) of each piece."""
        rows = np.arange(len(self.slots))
        return np.repeat(rows, 2 * self.slots.astype(int)) if self.draws else rows

    def uniform(self, row: int, outcome: int) -> float:
        """Find the minimum uniform that draws this outcome in this row.

        Raises:
            ValueError: the outcome has probability 0.
        """
        ours = self.row == row
        left = np.arange(self.slots[row]) / self.slots[row]
        cuts = self.cuts[int(self.first[row]) :][: len(left)] if self.draws else np.empty((1, 0))
        begin = np.column_stack([left, cuts]).flatten()
        fits = (self.choices[ours] == outcome) & (begin < np.append(begin[1:], 1.0))
        if not fits.any():
            raise ValueError(f"Row {row} never chooses outcome {outcome}.")
        return float(begin[fits][0])


def piece(cuts: tuple[Values, ...], row: Values, u: Values, column: int) -> Values:
    """Find the piece (N,) int64 of each row (N,) for the uniforms u[:, column], which are unused if nothing is drawn.

    `cuts` has slots, first and cuts of a `Draw`; u is (N, D) float64 from [0, 1).
    """
    slots, first, cut_at = cuts
    if len(cut_at) == 0:
        return row
    ours = u[:, column]
    slot = take(first, row) + integers(ours * take(slots, row))  # the product with a power of two is exact
    return slot + slot + (ours >= take(cut_at, slot))


def plain_piece(cuts: tuple[Values, ...], row: int, draw: Uniform) -> int:
    """Find the piece of one row as `piece` does; `draw` is called only if a uniform is needed."""
    slots, first, cut_at = cuts
    if len(cut_at) == 0:
        return row
    u = draw()
    slot = first.item(row) + int(u * slots.item(row))
    return 2 * slot + (u >= cut_at.item(slot))


def support(probabilities: Floats, width: int) -> tuple[Integers, Integers]:
    """List possible outcomes (R, width) and their units of probability, padded with the first outcome and 0 units."""
    rows, columns = (probabilities > 0).nonzero()
    count = np.bincount(rows)
    first = count.cumsum() - count
    position = np.arange(len(rows)) - first[rows]
    outcome = np.repeat(columns[first][:, None], width, 1)
    chance = np.zeros(outcome.shape)
    outcome[rows, position], chance[rows, position] = columns, probabilities[rows, columns]
    return outcome, units(chance)


def units(chance: Floats) -> Integers:
    """Turn probabilities (R, K) into whole numbers that sum to 2**53 in each row; only 0 becomes 0."""
    scaled = chance / chance.sum(1, keepdims=True) * UNITS
    mass = np.maximum(np.rint(scaled), chance > 0).astype(np.int64)
    # The largest gets the remainder of the rounding, a few units.
    mass[np.arange(len(mass)), mass.argmax(1)] += UNITS - mass.sum(1)
    return mass


def pair(mass: Integers) -> tuple[Integers, Integers]:
    """Fill K slots: slot k has own[k] units of outcome k, and the rest is of outcome other[k].

    This is Walker's and Vose's alias method. An outcome below 1/K gets a slot that a heavy outcome fills up. A heavy
    outcome whose rest falls below 1/K gets the next slot, which the next heavy outcome fills up. `mass` (R, K) ascends
    in each row and sums to 2**53.
    """
    slots, every = mass.shape[1], np.arange(len(mass))
    share = UNITS // slots
    lights = heavy = (mass < share).sum(1)  # (R,)
    light, rest = np.zeros_like(lights), mass[every, heavy]
    own, other = np.empty_like(mass), np.empty_like(mass)
    for _ in range(slots):
        small = (rest >= share) & (light < lights)
        slot = np.where(small, light, heavy)
        own[every, slot] = np.where(small, mass[every, slot], rest)
        heavy = np.where(small, heavy, np.minimum(heavy + 1, slots - 1))
        other[every, slot] = heavy
        rest = np.where(small, rest, mass[every, heavy]) - (share - own[every, slot])
        light = light + small
    return own, other


# Pictures

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Colour = tuple[int, int, int]

TILE = 24  # side of a map's cell in pixels
WIDTH, MARGIN, LINE = 350, 8, 16  # width, margin and line height of a text in pixels
PAPER, INK, AGENT = (245, 245, 245), (40, 40, 45), (40, 60, 110)
GROUND: dict[str, Colour] = {
    "#": (90, 90, 95),
    ".": PAPER,
    "+": (70, 160, 80),
    "-": (214, 66, 61),
    "?": (190, 205, 240),
}
TURNS = {"^": 0, "<": 1, "v": 2, ">": 3}  # quarter turns to the left of an arrow that points up


def paint(text: str) -> Picture:
    """Draw a map, one tile per character: # wall, . floor, + goal or heaven, - hell, ? signpost, ^ v < > @ agent."""
    return np.concatenate([np.concatenate([_tile(mark) for mark in line], 1) for line in text.split("\n")])


def put_agent(lines: list[str], y: int, x: int, agent: str) -> list[str]:
    """Put a character at row y, column x of a map."""
    changed = list(lines)
    changed[y] = lines[y][:x] + agent + lines[y][x + 1 :]
    return changed


def _tile(character: str) -> Picture:
    """Draw the picture (TILE, TILE, 3) of one character of a map."""
    tile = np.full((TILE, TILE, 3), GROUND.get(character, PAPER), np.uint8)
    y, x = np.mgrid[:TILE, :TILE] - (TILE - 1) / 2
    if character == "@":
        tile[y**2 + x**2 < (TILE / 3) ** 2] = AGENT
    elif character in TURNS:
        arrow = (y > 2 * abs(x) - TILE / 3) & (y < TILE / 3)  # points up
        tile[np.rot90(arrow, TURNS[character])] = AGENT
    return tile
