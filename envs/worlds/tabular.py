"""A world from tables of probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import State, World
from envs.numpy_backend import take, zeros
from envs.worlds.pictures import strip, writing
from envs.worlds.sampling import Draw, Integers, draw, piece
from envs.worlds.tables import Floats, Tables

__all__ = ["Tables", "Tabular", "TabularState"]


@dataclass
class TabularState(State):
    """N episodes of a finite POMDP."""

    hidden: Tensor  # (N,) int64, the state 0 .. S-1; S when the episode has ended


class Tabular(World[TabularState]):
    """Plays a model of S states, A actions and Z observations with the episodes of gym-pomdps.

    Observation Discrete(Z + 1): the first of an episode is always Z, which tells nothing. The episode ends with an
    action for which `reset` holds. That step draws a new start state, shows its observation and pays the reward of
    getting there; then the state is cleared. A model without such an action never terminates. Success is a
    positive return at the end.

    Three look-up tables stand beside the pieces of the transition's draw (see `envs.worlds.sampling`), so that one
    index gives the next state, the row of the observation and the reward.
    """

    runs_on_numpy = True

    def __init__(self, tables: Tables, time_limit: int = 250, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        self.tables, self.num_actions, self.action_names = tables, tables.num_actions, tables.action_names
        self.observation_space = gymnasium.spaces.Discrete(tables.num_observations + 1)
        states = tables.num_states
        self.state_space = gymnasium.spaces.Discrete(states + 1)
        self.transition, self.sight = draw(_closed(tables.T)), draw(_closed(tables.O))  # from rows a * (S + 1) + s
        start, move, look = draw(tables.start[None]), self.transition, self.sight
        self.reset_draws, self.step_draws = start.draws, move.draws + look.draws
        self.start_slots, self.start_first, self.start_cuts = self._on_device(start)
        self.move_slots, self.move_first, self.move_cuts = self._on_device(move)
        self.look_slots, self.look_first, self.look_cuts = self._on_device(look)
        self.look_column, self.by_observation = move.draws, tables.rewards_by_observation()
        # By piece of a draw: what it leads to.
        self.start_state, self.seen = self._tensor(start.choices), self._tensor(look.choices)
        self.following = self._tensor(_following(tables, move))
        self.look_row = self._tensor(move.row // (states + 1) * (states + 1) + move.choices)
        self.rewards = self._tensor(_rewards(tables, move).flatten())
        self.ended, self.rows = self._tensor(np.array([states, states + 1])).unbind()
        self.unseen, self.width = self._tensor(tables.num_observations + np.arange(2)).unbind()

    def reset(self, u: Tensor) -> TabularState:
        """A start state, not seen yet."""
        steps, returns = self.counters(len(u))
        begin = piece(self.start_slots, self.start_first, self.start_cuts, steps, u, 0)  # from row 0 of one
        hidden = take(self.start_state, begin)
        observation = zeros(self.one, len(u)) + self.unseen
        return TabularState(observation[:, None], steps, returns, hidden)

    def step(
        self, state: TabularState, action: Tensor, u: Tensor
    ) -> tuple[TabularState, Tensor, Tensor, Tensor, Tensor]:
        """One action; a cleared state stays cleared, unseen and unpaid."""
        row = action * self.rows + state.hidden
        move = piece(self.move_slots, self.move_first, self.move_cuts, row, u, 0)  # (N,)
        row = take(self.look_row, move)
        look = piece(self.look_slots, self.look_first, self.look_cuts, row, u, self.look_column)
        observation = take(self.seen, look)
        hidden = take(self.following, move)
        reward = take(self.rewards, move * self.width + observation if self.by_observation else move)
        terminated = hidden == self.ended
        returns = state.returns + reward
        after = TabularState(observation[:, None], state.steps + self.one, returns, hidden)
        return after, after.observation, reward, terminated, terminated & (returns > self.nothing)

    def observe_state(self, state: TabularState) -> Tensor:
        """The number of the state, S after the end, (N, 1) int64."""
        return state.hidden[:, None]

    def initial_draws(self) -> Tensor | None:
        """One draw (M, reset_draws) for each start state, if they are equally likely and chance ends with the start."""
        possible, draws = self.tables.start.nonzero()[0], draw(self.tables.start[None])
        if not (_certain(self.tables) and len(set(self.tables.start[possible])) == 1):
            return None
        uniforms = [draws.uniform(0, state) for state in possible.tolist()]
        return self._tensor(np.array(uniforms)[:, None])[:, : self.reset_draws]

    def frame(self, state: TabularState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A square for every state and one for every observation, the present ones filled, above their names."""
        tables, hidden, seen = self.tables, int(state.hidden[row]), int(state.observation[row, 0])
        strips = [strip(tables.num_states, hidden), strip(tables.num_observations, seen)]
        return np.concatenate([*strips, writing(self.text(state, row).split("\n"), strips[0].shape[1])])

    def text(self, state: TabularState, row: int) -> str:
        """The names of the state and the observation, the step and the return."""
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

    def _on_device(self, drawn: Draw) -> tuple[Tensor, Tensor, Tensor]:
        return self._tensor(drawn.slots), self._tensor(drawn.first), self._tensor(drawn.cuts)


def _closed(table: Floats) -> Floats:
    """Rows (A * (S + 1), C + 1) of T or O (A, S, C) with one more state: the cleared one, which stays and is unseen."""
    padded = np.pad(table, ((0, 0), (0, 1), (0, 1)))
    padded[:, -1, -1] = 1.0
    return padded.reshape(-1, padded.shape[2])


def _certain(tables: Tables) -> bool:
    """Whether nothing that matters is drawn after the start."""
    last = tables.R[..., : None if tables.rewards_by_observation() else 1][tables.reset]  # (M, S', Z or 1)
    moves, looks = (tables.T[~tables.reset] > 0).sum(1), (tables.O > 0).sum(2)
    return bool((moves == 1).all() and (looks == 1).all() and (last == last[:, :1, :1]).all())


def _following(tables: Tables, move: Draw) -> Integers:
    """The state (P,) after each piece of a transition."""
    over = np.pad(tables.reset, ((0, 0), (0, 1))).flatten()  # (A * (S + 1),); the cleared state leads to itself anyway
    return np.where(over[move.row], tables.num_states, move.choices)


def _rewards(tables: Tables, move: Draw) -> Floats:
    """What each piece of a transition pays: (P, 1), or (P, Z + 1) if the observation matters."""
    action, state = np.divmod(move.row, tables.num_states + 1)  # (P,)
    last, kept = tables.num_states - 1, None if tables.rewards_by_observation() else 1
    paid = tables.R[..., :kept][action, state.clip(max=last), move.choices.clip(max=last)]
    paid = np.where(state[:, None] <= last, paid, 0.0)
    return paid if kept else np.pad(paid, ((0, 0), (0, 1)))
