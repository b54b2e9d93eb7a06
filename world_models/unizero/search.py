"""Tree search in the latent space of a world model, for a batch of roots (MuZero's, as UniZero uses it).

No node keeps a cache of keys and values: an expansion hands the model the exact window of its node, gathered from the
latents of the tree and of the history before the root. One function serves acting, evaluation and reanalysis. All
randomness enters as tensors, one row per root, so a root's tree depends on nothing but its own row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from world_models.run_config import check_not_negative
from world_models.unizero.gumbel import GumbelConfig, Halving
from world_models.unizero.simulations import Functions, SearchModel, Simulations
from world_models.unizero.tree import Tree, TreeConfig, init_tree, root_children
from world_models.unizero.window import Window

MANY = 96  # branches, for which a CPU takes so much longer than for one a root that asking less often hardly pays
FEW = 64  # roots that one CPU walks sooner than an accelerator starts the operations of the tensor form


@dataclass(frozen=True)
class SearchConfig:
    """A search. The defaults are UniZero's for Atari."""

    simulations: int = 50
    """Expansions per root."""
    root: Literal["puct", "gumbel"] = "puct"
    """How the root's actions are tried: by pUCT as everywhere in the tree, or by sequential halving of Gumbel-perturbed
    actions (Danihelka et al. 2022), which improves the policy at 16 simulations and fewer."""
    tree: TreeConfig = field(default_factory=TreeConfig)
    gumbel: GumbelConfig = field(default_factory=GumbelConfig)
    dirichlet_fraction: float = 0.25
    """Share of Dirichlet noise in the root's prior (pUCT only; none in evaluation)."""
    dirichlet_alpha: float = 0.3
    """Concentration of that noise."""
    backend: Literal["auto", "torch", "compiled"] = "auto"
    """Who walks the tree: `torch` on the model's device, some hundred small operations per simulation; `compiled` loops
    on the CPU, with two small copies per simulation if the model is elsewhere. `auto` is compiled on a CPU and for few
    roots, else torch. The trees are the same."""
    query_per: Literal["auto", "node", "action"] = "auto"
    """What the model is asked about at a time: all actions of a `node`, whose answers are kept, or the one `action`
    that is tried. Trees differ by rounding alone. `auto` is node where trees are compiled, the dynamics read what lies
    before the actions once, and actions times roots are few (96 on a CPU); else action."""

    def check(self) -> None:
        """One sentence for each value that cannot be searched with."""
        if self.simulations < 1:
            raise UserError(f"--simulations {self.simulations} must be at least 1")
        if not 0 <= self.dirichlet_fraction <= 1:
            raise UserError(f"--dirichlet-fraction {self.dirichlet_fraction} must lie between 0 and 1")
        if self.dirichlet_alpha <= 0:
            raise UserError(f"--dirichlet-alpha {self.dirichlet_alpha} must be above 0")
        if not 0 < self.tree.discount <= 1:
            raise UserError(f"--discount {self.tree.discount} must be above 0 and at most 1")
        if self.tree.c2 <= 0:
            raise UserError(f"--c2 {self.tree.c2} must be above 0")
        check_not_negative(self.tree, ("c1",))
        if self.backend == "torch" and self.query_per == "node":
            raise UserError("--query-per node needs trees that are walked on the CPU: --backend compiled or auto")
        self.gumbel.check()


@dataclass(frozen=True)
class SearchNumbers:
    """Every number that chance gives to one search; B rows, each one root's."""

    ties: Tensor  # (B, S, S) uniforms in [0, 1): which of the tied is taken, by simulation and depth
    noise: Tensor | None  # (B, A) Dirichlet for pUCT or Gumbel for Gumbel roots; None = evaluation: none of either
    action: Tensor  # (B,) uniforms: which action is played

    def rows(self, index: Tensor) -> SearchNumbers:
        """The numbers of some of the roots."""
        return SearchNumbers(self.ties[index], None if self.noise is None else self.noise[index], self.action[index])

    def to(self, device: torch.device) -> SearchNumbers:
        """The same numbers on another device."""
        noise = None if self.noise is None else self.noise.to(device)
        return SearchNumbers(self.ties.to(device), noise, self.action.to(device))


@dataclass(frozen=True)
class SearchResult:
    """What a search found, for B roots."""

    visits: Tensor  # (B, A) int64
    policy: Tensor  # (B, A) float64: the training target, visits / sum, or the improved policy of a Gumbel root
    value: Tensor  # (B,) float64: the root's total over simulations + 1 visits, as the reference reports it
    action: Tensor  # (B,) int64: the most visited one; for a Gumbel root the best of the last ones standing
    predicted: Tensor  # (B,): the network's value of the root
    tree: Tree
    latent: Tensor  # (B, W + S + 1, D): of the history, the root and the nodes


def draw(
    config: SearchConfig, batch: int, actions: int, generator: torch.Generator, evaluation: bool = False
) -> SearchNumbers:
    """All numbers for one search from a generator, on its device."""
    device, size = generator.device, config.simulations

    def uniform(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=generator, dtype=torch.float64, device=device)

    ties, action = uniform(size, size), uniform()
    if evaluation:
        return SearchNumbers(ties, None, action)
    if config.root == "gumbel":
        smallest = torch.finfo(torch.float64).tiny
        return SearchNumbers(ties, -(-uniform(actions).clamp(min=smallest).log()).log(), action)
    alpha = torch.full((batch, actions), config.dirichlet_alpha, dtype=torch.float64, device=device)
    gamma = torch._standard_gamma(alpha, generator=generator).clamp(min=torch.finfo(torch.float64).tiny)
    return SearchNumbers(ties, gamma / gamma.sum(1, keepdim=True), action)


@torch.no_grad()
def search(
    model: SearchModel | Functions, history: Window, latent: Tensor, numbers: SearchNumbers, config: SearchConfig
) -> SearchResult:
    """Plan from the latents (B, D) of B current observations, each behind its own history.

    Static shapes, and with the torch backend nothing is read back.
    """
    functions = model if isinstance(model, Functions) else Functions.of(model)
    logits, predicted = functions.root(history, latent)
    on_host = _on_host(config, latent)
    place = torch.device("cpu") if on_host else latent.device  # where the trees are
    prior = _root_prior(logits, numbers, config)
    grown = init_tree(prior.to(place), config.simulations, history.action.to(place), history.count.to(place))
    halving = _halving(logits, numbers, config, place)
    work = Simulations(grown, config.tree, numbers.ties.to(place), halving, history.latent, latent)
    if on_host and _asks_nodes(config, functions, prior):
        latents = work.by_node(functions)
    else:
        latents = work.by_action(functions, on_host)
    return _result(grown, latents, predicted, halving, config)


def probabilities(visits: Tensor, temperature: float) -> Tensor:
    """Visits (B, A) to the power 1 / temperature, normalised, in float64; at temperature 0 all on the first best."""
    if temperature == 0:
        return torch.nn.functional.one_hot(visits.argmax(1), visits.shape[1]).double()
    share = visits.double() / visits.amax(1, keepdim=True)
    power = share ** (1.0 / temperature)
    return power / power.sum(1, keepdim=True)


def play(result: SearchResult, numbers: SearchNumbers, config: SearchConfig, temperature: float) -> Tensor:
    """The action to take, (B,): sampled by visits at a temperature; the best one at temperature 0 (evaluation).

    A Gumbel root has sampled already: its action is the best of the last ones standing.
    """
    if config.root == "gumbel":
        return result.action
    reached = probabilities(result.visits, temperature).cumsum(1)
    number = numbers.action.unsqueeze(1) * reached[:, -1:]  # below the last one, as the uniform is below 1
    return (reached <= number).sum(1)


def _root_prior(logits: Tensor, numbers: SearchNumbers, config: SearchConfig) -> Tensor:
    prior = logits.double().softmax(-1)
    if numbers.noise is None or config.root == "gumbel":
        return prior
    return (1.0 - config.dirichlet_fraction) * prior + config.dirichlet_fraction * numbers.noise


def _on_host(config: SearchConfig, latent: Tensor) -> bool:
    """Whether the trees of roots (B, D) are walked by compiled loops on the CPU."""
    few = latent.device.type == "cpu" or len(latent) <= FEW or config.query_per == "node"
    return config.backend == "compiled" or (config.backend == "auto" and few)


def _asks_nodes(config: SearchConfig, functions: Functions, prior: Tensor) -> bool:
    """Whether the model is asked about all actions of a node at once; prior (B, A)."""
    few = prior.device.type != "cpu" or prior.numel() <= MANY
    return config.query_per == "node" or (config.query_per == "auto" and functions.shares and few)


def _halving(logits: Tensor, numbers: SearchNumbers, config: SearchConfig, place: torch.device) -> Halving | None:
    if config.root == "puct":
        return None
    noise = None if numbers.noise is None else numbers.noise.to(place)
    return Halving(logits.to(place), noise, config.simulations, config.gumbel)


def _result(
    grown: Tree, latents: Tensor, predicted: Tensor, halving: Halving | None, config: SearchConfig
) -> SearchResult:
    visits, _ = root_children(grown, config.tree.discount)
    if halving is None:
        policy, action = visits / visits.sum(1, keepdim=True).double(), visits.argmax(1)
    else:
        policy = halving.improved(grown, predicted.to(visits.device).double(), config.tree)
        action = halving.best(grown, config.tree)
    return SearchResult(
        visits=visits.to(latents.device), policy=policy.to(latents.device),
        value=grown.value[:, 0].to(latents.device), action=action.to(latents.device),
        predicted=predicted, tree=grown, latent=latents,
    )  # fmt: skip
