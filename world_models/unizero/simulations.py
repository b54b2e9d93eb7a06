"""A search's simulations: the model is asked for every tried action, or once for all actions of every judged node.

Both grow the same trees. Half of the nodes of a tree and more are leaves, so asking by nodes asks less often; it also
lets trees go on by themselves, each as far as it can, so the number of questions is the largest number of inner nodes
of a tree. The answers share what lies before the actions, so one costs little more than an answer about one action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from world_models.unizero import compiled_tree, tree
from world_models.unizero.gumbel import Halving
from world_models.unizero.networks import Expansion
from world_models.unizero.tree import Tree, TreeConfig, read_order
from world_models.unizero.window import Window


class SearchModel(Protocol):
    """What a search needs of a world model; see WorldModel. It must be in evaluation mode."""

    def root(self, history: Window, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Policy logits (B, A) and value (B,)."""
        ...

    def expand(self, history: Window, latent: Tensor, action: Tensor) -> Expansion:
        """The outcome of an action (B,) at latents (B, D) behind their history."""
        ...


Outcome = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # of latents, order and action, see `outcome`


class Functions(NamedTuple):
    """What a search asks a model, as functions of tensors: `root` of it, and `outcome` with it as first argument."""

    root: Callable[[Window, Tensor], tuple[Tensor, Tensor]]
    outcome: Outcome
    shares: bool = False  # whether alternative actions (B, K) are answered together, reading what is before them once

    @classmethod
    def of(cls, model: SearchModel) -> Functions:
        """Executed eagerly; `engine` has others."""
        return cls(model.root, partial(outcome, model))


def outcome(model: SearchModel, latents: Tensor, order: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """What the model says to an order (B, 2 W + 3), whose windows are places in `latents` (B, W + 1 + N, D).

    Returns reward, value and policy of the action (B,), (B, 2 + A) float64, and the new latent (B, D). Of alternatives
    (B, K) it returns (B, K, 2 + A) and (B, K, D).
    """
    places, node, _ = read_order(order)
    pairs = places.action.shape[1]
    before = _take(latents, places.latent.squeeze(-1))
    here = _take(latents, node.unsqueeze(1) + pairs).squeeze(1)
    new = model.expand(Window(before, places.action, places.count), here, action)
    scalars = torch.stack((new.reward, new.value), -1).double()
    return torch.cat((scalars, new.policy.double().softmax(-1)), -1), new.latent.to(latents.dtype)


class Simulations(NamedTuple):
    """Trees to grow from their roots, S nodes each."""

    tree: Tree  # on the device where it is walked
    config: TreeConfig
    ties: Tensor  # (B, S, S), beside the tree
    halving: Halving | None
    history: Tensor  # (B, W, D) latents before the root
    latent: Tensor  # (B, D)

    def phases(self) -> Iterator[tuple[int, Tensor]]:
        """A first simulation and the root's actions (B, n) from it on, -1 = free; the next when these are made."""
        size, begin = self.ties.shape[1], 0
        while begin < size:
            if self.halving is None:
                forced = torch.full((len(self.latent), size), -1, device=self.ties.device)
            else:
                forced = self.halving.phase(begin, self.tree, self.config)
            yield begin, forced
            begin += forced.shape[1]

    def by_action(self, functions: Functions, compiled: bool) -> Tensor:
        """Ask for one action of each tree at a time; latents (B, W + 1 + S, D) of history, root and nodes.

        With trees of tensors nothing is read back, and all shapes are static.
        """
        walker = (compiled_tree if compiled else tree).Walker(self.tree, self.config)
        latents = _room(self.history, self.latent, self.ties.shape[1])
        first = latents.shape[1] - self.ties.shape[1]  # place of the first node's latent
        for begin, forced in self.phases():
            for simulation in range(begin, begin + forced.shape[1]):
                order = walker.select(simulation, self.ties[:, simulation], forced[:, simulation - begin])
                asked = order.to(latents.device)
                found, latents[:, first + simulation] = functions.outcome(latents, asked, asked[:, -1])
                walker.expand(simulation, order, found.to(order.device))
        return latents

    def by_node(self, functions: Functions) -> Tensor:
        """Ask for all actions of a node of each tree at a time; trees on the CPU. Returns the same latents."""
        actions, size = self.tree.prior.shape[2], self.ties.shape[1]
        runner = compiled_tree.Runner(self.tree, self.config, self.ties)
        latents = _room(self.history, self.latent, size * actions)
        place = latents.shape[1] - size * actions
        every = torch.arange(actions, device=latents.device).repeat(len(latents), 1)
        for begin, forced in self.phases():
            while (order := runner.advance(begin, forced)) is not None:
                found, latents[:, place : place + actions] = functions.outcome(latents, order.to(latents.device), every)
                runner.learn(found.cpu())
                place += actions
        pairs = self.history.shape[1]
        return torch.cat((latents[:, :pairs], _take(latents, runner.number.to(latents.device) + pairs)), 1)


def _room(history: Tensor, latent: Tensor, more: int) -> Tensor:
    """A row of latents: the history's (B, W, D), the root's (B, D) and room for those to come."""
    dtype = torch.promote_types(history.dtype, latent.dtype)
    empty = latent.new_zeros(latent.shape[0], more, latent.shape[1])
    return torch.cat((history.to(dtype), latent.unsqueeze(1).to(dtype), empty.to(dtype)), 1)


def _take(latents: Tensor, place: Tensor) -> Tensor:
    """Latents (B, P, D) at places (B, K): (B, K, D)."""
    return latents.gather(1, place.unsqueeze(-1).expand(-1, -1, latents.shape[-1]))
