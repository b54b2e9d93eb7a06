"""Monte Carlo tree search (MCTS) in the latent space of a world model, for a batch of roots, as UniZero uses it.

Nodes have no cache of keys and values. The model gets the exact window of the node that it expands, gathered from the
latents of the tree and of the history before the root. Acting, evaluation and reanalysis call the same function. Random
numbers are tensors with one row per root, so a root's tree depends on its own row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dqn_memory.runs.base_config import Engine
from dqn_memory.runs.cuda_graph import Captured
from envs.extras import extra
from world_models.unizero.config import SearchConfig
from world_models.unizero.dynamics import History
from world_models.unizero.gumbel import Halving
from world_models.unizero.networks import UniZeroModel
from world_models.unizero.tree import Tree, init_tree, read_order, root_children

MANY = 96  # actions times roots; above, a CPU gains hardly anything from a query with all actions of a node
DIRICHLET_FRACTION, DIRICHLET_ALPHA = 0.25, 0.3  # share of noise in the root's prior, concentration of the noise


@dataclass(frozen=True)
class SearchNumbers:
    """All random numbers of one search, with a row for each of B roots."""

    ties: Tensor  # (B, S, S) uniforms in [0, 1) that break ties, by simulation and depth
    noise: Tensor | None  # (B, A) Dirichlet for pUCT roots, Gumbel for Gumbel roots; None in evaluation
    action: Tensor  # (B,) uniforms that choose the played action


@dataclass(frozen=True)
class SearchResult:
    """The result of a search at B roots."""

    visits: Tensor  # (B, A) int64
    policy: Tensor  # (B, A) float64: the training target, visits / sum, or the improved policy of a Gumbel root
    action: Tensor  # (B,) int64: the most visited one; at a Gumbel root the winner of the halving
    tree: Tree
    latent: Tensor  # (B, W + S + 1, D): of the history, the root and the nodes


def draw_numbers(
    config: SearchConfig, batch: int, actions: int, generator: torch.Generator, evaluation: bool = False
) -> SearchNumbers:
    """Draw all random numbers of one search, on the generator's device."""
    device, size, tiny = generator.device, config.simulations, torch.finfo(torch.float64).tiny

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=generator, dtype=torch.float64, device=device)

    ties, action = uniform(size, size), uniform()
    if evaluation:
        return SearchNumbers(ties, None, action)
    if config.root == "gumbel":
        return SearchNumbers(ties, -(-uniform(actions).clamp(min=tiny).log()).log(), action)
    alpha = torch.full((batch, actions), DIRICHLET_ALPHA, dtype=torch.float64, device=device)
    gamma = torch._standard_gamma(alpha, generator=generator).clamp(min=tiny)
    return SearchNumbers(ties, gamma / gamma.sum(1, keepdim=True), action)


@torch.no_grad()
def tree_search(
    functions: Functions, history: History, latent: Tensor, numbers: SearchNumbers, config: SearchConfig,
    discount: float,
) -> SearchResult:  # fmt: skip
    """Search from the latents (B, D) of B current observations, each with its own history.

    The model runs on its device, the trees on the CPU.
    """
    logits, predicted = functions.root(history, latent)
    tree, halving = make_trees(logits, history, numbers, config, discount)
    actions = logits.shape[1]
    many = logits.device.type == "cpu" and logits.numel() > MANY
    alternatives = actions if functions.shares and not many else 1
    latents = run_simulations(
        functions, tree, numbers.ties.cpu(), halving, history.latent, latent, discount, alternatives
    )
    return read_result(tree, latents, predicted, halving, discount)


def make_trees(
    logits: Tensor, history: History, numbers: SearchNumbers, config: SearchConfig, discount: float
) -> tuple[Tree, Halving | None]:
    """Make trees with only a root, on the CPU, and the halving of Gumbel roots."""
    prior = logits.double().softmax(-1)
    if numbers.noise is not None and config.root == "puct":
        prior = (1.0 - DIRICHLET_FRACTION) * prior + DIRICHLET_FRACTION * numbers.noise
    tree = init_tree(prior.cpu(), config.simulations, history.action.cpu(), history.count.cpu())
    if config.root == "puct":
        return tree, None
    noise = None if numbers.noise is None else numbers.noise.cpu()
    return tree, Halving(tree, logits.cpu(), noise, discount)


def forced_actions(ties: Tensor, halving: Halving | None) -> Iterator[tuple[int, Tensor]]:
    """Yield (s, actions): the root's actions (B, n) in the simulations s to s + n - 1; -1 lets the tree choose.

    `ties` are (B, S, S). The caller runs these n simulations before the next actions.
    """
    batch, size, _ = ties.shape
    begin, free = 0, torch.full((batch, size), -1)
    while begin < size:
        forced = free if halving is None else halving.phase(begin)
        yield begin, forced
        begin += forced.shape[1]


def run_simulations(
    functions: Functions, tree: Tree, ties: Tensor, halving: Halving | None, history: Tensor, latent: Tensor,
    discount: float, alternatives: int,
) -> Tensor:  # fmt: skip
    """Run all S simulations, which add S nodes to each of B trees.

    A query of the model covers one action of a node (`alternatives` 1) or all A. Both give the same trees. Queries with
    all actions are fewer, as at least half of a tree's nodes are leaves. Their actions share the tokens before them,
    so that such a query costs little more than one action.

    `history` (B, W, D) are the latents before the root, `latent` (B, D) is the root's. Returns the latents of history,
    root and nodes (B, W + 1 + S, D).
    """
    from world_models.unizero.compiled_tree import Runner  # needs numba

    size, pairs = ties.shape[1], history.shape[1]
    runner = Runner(tree, discount, ties, alternatives)
    latents = allocate(history, latent, size * alternatives)
    free = pairs + 1  # index after the last latent so far
    every = torch.arange(alternatives, device=latents.device).repeat(len(latents), 1)
    for begin, forced in forced_actions(ties, halving):
        while (order := runner.advance(begin, forced)) is not None:
            query = order.to(latents.device)
            outputs, new = functions.expand(latents, query, every if runner.whole else query[:, -1])
            latents[:, free : free + alternatives] = new.view(len(new), alternatives, -1)
            runner.record(outputs.cpu())
            free += alternatives
    return torch.cat((latents[:, :pairs], _take(latents, runner.number.to(latents.device) + pairs)), 1)


def read_result(
    tree: Tree, latents: Tensor, predicted: Tensor, halving: Halving | None, discount: float
) -> SearchResult:
    """Read the result of a search from its trees."""
    visits, _ = root_children(tree, discount)
    if halving is None:
        policy, action = visits / visits.sum(1, keepdim=True).double(), visits.argmax(1)
    else:
        policy, action = halving.improved(predicted.cpu().double()), halving.best()
    return SearchResult(
        visits=visits.to(latents.device), policy=policy.to(latents.device), action=action.to(latents.device),
        tree=tree, latent=latents,
    )  # fmt: skip


def probabilities(visits: Tensor, temperature: float) -> Tensor:
    """Normalise visits^(1 / temperature) (B, A), in float64; at temperature 0 the first maximum has probability 1."""
    if temperature == 0:
        return torch.nn.functional.one_hot(visits.argmax(1), visits.shape[1]).double()
    share = visits.double() / visits.amax(1, keepdim=True)
    power = share ** (1.0 / temperature)
    return power / power.sum(1, keepdim=True)


def choose_actions(result: SearchResult, numbers: SearchNumbers, config: SearchConfig, temperature: float) -> Tensor:
    """Choose actions (B,): sampled by visits at a temperature, the most visited at temperature 0.

    At a Gumbel root the action is the winner of the halving, which has sampled already.
    """
    if config.root == "gumbel":
        return result.action
    reached = probabilities(result.visits, temperature).cumsum(1)
    number = numbers.action.unsqueeze(1) * reached[:, -1:]  # below the last: uniforms are below 1
    return (reached <= number).sum(1)


class Functions(NamedTuple):
    """The functions of a model in evaluation mode that a search calls; all take tensors."""

    encode: Callable[[Tensor], Tensor]  # observations (B, ...) -> latents (B, D)
    root: Callable[[History, Tensor], tuple[Tensor, Tensor]]  # histories, latents -> logits (B, A) and values (B,)
    expand: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # latents, order, action: see `expand_nodes`
    shares: bool  # True if a query with K actions (B, K) reads their common history once


def make_functions(engine: Engine, model: UniZeroModel, backend: str = "inductor") -> Functions:
    """Execute a model's functions eagerly, compiled or as captured CUDA graphs; they read its current weights.

    The loop over simulations is never part of a graph: numba walks the trees on the CPU.
    """
    with extra("fast"):
        import_module("numba")

    def expand(latents: Tensor, order: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return expand_nodes(model, latents, order, action)

    compiled = partial(torch.compile, dynamic=False, backend=backend)
    wrap: Any = {"eager": lambda function: function, "compile": compiled, "cudagraph": Captured}[engine]
    return Functions(wrap(model.encode), wrap(model.root), wrap(expand), model.causal)


def expand_nodes(model: UniZeroModel, latents: Tensor, order: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Expand the nodes of an order (B, 2 W + 3), see `read_order`; its histories index `latents` (B, W + 1 + N, D).

    Returns reward, value and policy of the action (B,) as (B, 2 + A) float64, and the new latent (B, D). For K
    alternative actions (B, K) they are (B, K, 2 + A) and (B, K, D).
    """
    history, node, _ = read_order(order)
    pairs = history.action.shape[1]
    before = _take(latents, history.latent.squeeze(-1))
    here = _take(latents, node.unsqueeze(1) + pairs).squeeze(1)
    new = model.expand(History(before, history.action, history.count), here, action)
    scalars = torch.stack((new.reward, new.value), -1).double()
    return torch.cat((scalars, new.policy.double().softmax(-1)), -1), new.latent.to(latents.dtype)


def allocate(history: Tensor, latent: Tensor, more: int) -> Tensor:
    """Join the history's latents (B, W, D), the root's (B, D) and zeros for `more` nodes."""
    dtype = torch.promote_types(history.dtype, latent.dtype)
    empty = latent.new_zeros(latent.shape[0], more, latent.shape[1])
    return torch.cat((history.to(dtype), latent.unsqueeze(1).to(dtype), empty.to(dtype)), 1)


def _take(latents: Tensor, index: Tensor) -> Tensor:
    """Gather latents (B, P, D) at indices (B, K): (B, K, D)."""
    return latents.gather(1, index.unsqueeze(-1).expand(-1, -1, latents.shape[-1]))
