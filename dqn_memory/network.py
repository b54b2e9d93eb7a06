"""The Q-network: embedding -> position encoding -> encoder layers -> LayerNorm -> head, at every position of a window.

From top to bottom: the config and the network. Named architectures are in `architectures.py`. Embeddings, encoder
layers and all memories are in `dqn_memory.blocks`.

Shapes: B windows, T positions of a window (T <= K, the context length), D model width, A actions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dqn_memory.action_distributions import Spread, previous_action_embedding
from dqn_memory.architectures import ARCHITECTURES as ARCHITECTURES
from dqn_memory.architectures import SHIPPED
from dqn_memory.architectures import Architecture as Architecture
from dqn_memory.blocks import GATES, MEMORY, POSITIONS, PRIORS
from dqn_memory.blocks.block import by_position, constrained, last, penalty, select
from dqn_memory.blocks.finite import (
    contained_at,
    contained_layers,
    contained_rows,
    contained_window,
    run_checked,
    unshared,
)
from dqn_memory.blocks.initialise import initialise
from dqn_memory.blocks.layer import EncoderLayer, LayerConfig
from dqn_memory.blocks.priors import PriorConfig
from dqn_memory.blocks.registry import BIDIRECTIONAL, build
from dqn_memory.observations import ObservationSpec as ObservationSpec
from dqn_memory.observations import observation_embedding as observation_embedding
from dqn_memory.observations import observation_spec as observation_spec
from dqn_memory.runs.errors import UserError, check_known, require
from dqn_memory.runs.gradients import parts_of
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.actions import Actions
from envs.packages import in_own_code

HEADS = ("mlp", "linear")
PARTS = dict.fromkeys(("observation_embedding", "action_embedding", "positions"), "embedding") | {"norm": "head"}
WINDOW_LENGTHS = (8, 16, 24, 32)  # lengths that shorter windows are cut to; compiled runs have a graph for each


def trimmed_length(positions: int, context: int) -> int:
    """Give the smallest entry of WINDOW_LENGTHS below `context` that fits `positions`, else `context`."""
    return next((width for width in WINDOW_LENGTHS if positions <= width < context), context)


@dataclass(frozen=True)
class NetworkConfig:
    """A named architecture, its sizes, and changes to its row. None keeps the value of the row."""

    removed: ClassVar[dict[str, Any]] = {"bag": 0}
    architecture: str = "dgfqn"
    """Named architecture: for `train` any, such as dgfqn; for `ppo` and `pqn` one with a state, such as gru."""
    width: Annotated[int, Bounds(1)] = 64
    """Model width D."""
    heads: Annotated[int, Bounds(1)] = 8
    """Attention heads H; must divide the width."""
    layers: Annotated[int, Bounds(0)] | None = None
    """Encoder layers (None: the architecture's number)."""
    context: Annotated[int, Bounds(1)] = 50
    """Context length K: maximum observations of a window and of attention."""
    form: Literal["paper", "paper_equations"] = "paper"
    """Form of the DBGFQN paper: `paper` is Algorithm 1, `paper_equations` is equations 10 and 20-22."""
    gate: str | None = None
    """How a sublayer's output joins the residual stream: residual or gru (None: the architecture's)."""
    norm_order: Literal["post", "identity"] | None = None
    """Order of LayerNorm and sublayer: post (DTQN) or identity (GTrXL); None: the architecture's."""
    position_encoding: str | None = None
    """Position encoding: learned, sinusoidal or none (None: the architecture's)."""
    action_embedding: Annotated[int, Bounds(0)] | None = None
    """Number of the D features that show the previous action (0: none; None: the architecture's)."""
    head_width: Annotated[int, Bounds(1)] | None = None
    """Hidden width of the heads (None: D, or no hidden layer if the architecture has a linear head)."""
    initialisation: Literal["paper", "torch"] = "paper"
    """`paper`: linear and embedding weights from N(0, 0.02); `torch`: each module's default."""
    token_width: Annotated[int, Bounds(1)] = 8
    """Width of the embedding of one discrete observation component."""
    normalize_observation: bool = False
    """Shift and scale real observations by the mean and spread of all so far, and clip them to +-10."""
    dropout: Annotated[float, Bounds(0, below=1)] = 0.0
    """Dropout after the embedding and inside the sublayers."""
    prior: PriorConfig = field(default_factory=PriorConfig)

    def row(self) -> Architecture:
        """Give the architecture's row with this config's changes; raise a UserError for an unknown architecture."""
        check_known("architecture", self.architecture, ARCHITECTURES)
        row: object = ARCHITECTURES[self.architecture]
        if not isinstance(row, Architecture):  # a plugin can put anything there
            kind = type(row).__name__
            raise UserError(f"architecture {self.architecture} is a {kind}; ARCHITECTURES takes Architecture(...) rows")
        if row is not SHIPPED.get(self.architecture, row):
            raise UserError(
                f"architecture {self.architecture} of a plugin has a name of the suite's; give it another one"
            )
        if row.layers < 0 or row.action_embedding < 0:
            given = f"layers {row.layers} and action_embedding {row.action_embedding}"
            raise UserError(f"architecture {self.architecture} has {given}; neither may be negative")
        changes: dict[str, Any] = {
            "layers": self.layers,
            "gate": self.gate,
            "order": self.norm_order,
            "positions": self.position_encoding,
            "action_embedding": self.action_embedding,
        }
        row = replace(row, **{name: value for name, value in changes.items() if value is not None})
        if self.form == "paper_equations":
            row = replace(row, activation="none", final_norm=False, head="linear")
        return row

    def check(self) -> None:
        """Raise a UserError for a value or a combination that cannot be built."""
        check_numbers(self)
        row, prior = self.row(), self.prior
        check_known("gate", row.gate, GATES)
        check_known("position encoding", row.positions, POSITIONS)
        check_known("head", row.head, HEADS)
        check_known("prior", prior.kind, PRIORS)
        check_known("memory", row.memory, [*MEMORY, "none"])
        if row.memory == "none" and row.layers and not row.attention:
            raise UserError(f"--layers {row.layers}: {self.architecture} has no memory, so it takes --layers 0 only")
        if row.attention and self.width % self.heads:
            raise UserError(f"--heads {self.heads} does not divide --width {self.width}; choose a divisor of it")
        if row.memory in BIDIRECTIONAL and self.width % 2:
            raise UserError(f"--width {self.width} is odd, but {row.memory} needs half of it for each direction")
        if self.form == "paper_equations" and self.head_width is not None:
            raise UserError(f"--head-width {self.head_width} changes nothing: --form paper_equations has a linear head")
        if row.action_embedding >= self.width:
            raise UserError(f"--action-embedding {row.action_embedding} leaves no room in --width {self.width}")
        weight = prior.regulariser_weight
        require(weight >= 0, f"--regulariser-weight {weight} of the prior's penalty must not be negative")
        learns = (*getattr(PRIORS[prior.kind], "learns", ()), "local-window" if prior.kind == "local" else "")
        used = {"mu": prior.mu, "span": prior.span, "local-window": prior.local_window}
        for name, value in used.items():
            if row.attention and name in learns and value >= self.context:
                raise UserError(
                    f"--{name} {value} of the {prior.kind} prior does not fit: it must be below --context "
                    f"{self.context}"
                )

    def check_prior(self) -> None:
        """Raise a UserError for a prior without effect. Reports on many architectures skip this check."""
        if self.prior.kind != "causal" and not self.row().attention:
            raise UserError(f"--prior {self.prior.kind} changes nothing: {self.architecture} has no attention")
        if self.prior.regulariser != "none" and not self.prior.regulariser_weight:
            raise UserError(f"--regulariser {self.prior.regulariser} changes nothing without a --regulariser-weight")
        given = {"--regulariser": self.prior.regulariser != "none", "--max-norm": self.prior.max_norm is not None}
        if any(given.values()) and "span" not in getattr(PRIORS[self.prior.kind], "learns", ("span",)):
            flags = " and ".join(flag for flag in given if given[flag])
            raise UserError(f"{flags}: the {self.prior.kind} prior learns no span to act on; use --prior adaptive")

    def build(self, spec: ObservationSpec, actions: Actions | int) -> QNetwork:
        """Make the network, initialised from torch's global generator (fork and seed it outside).

        `actions` is the form of the actions, or their number.
        """
        self.check()
        try:
            return QNetwork(self, spec, actions if isinstance(actions, Actions) else Actions(actions))
        except ValueError as error:  # blocks raise ValueError, with a sentence for the user
            if in_own_code(error):
                raise
            raise UserError(str(error)) from error


class QNetwork(nn.Module):
    """Q-values at every position of a window (DTQN, section 3; DBGFQN, Algorithm 1).

    Methods take `observation` (B, T, ...), `previous_action` (B, T), the action that led to each observation, and
    `lengths` (B,), the number of real positions of each window. With lengths of None padding counts as real.
    """

    def __init__(self, config: NetworkConfig, spec: ObservationSpec, actions: Actions) -> None:
        super().__init__()
        row, width = config.row(), config.width
        self.config, self.spec, self.actions, self.num_actions = config, spec, actions, actions.count
        self.observation_embedding: Any = observation_embedding(
            spec, width - row.action_embedding, config.token_width, config.normalize_observation
        )
        self.action_embedding = (
            previous_action_embedding(actions, row.action_embedding) if row.action_embedding else None
        )
        self.positions = POSITIONS[row.positions](config.context, width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(_layer(config, row) for _ in range(row.layers))
        self.norm = nn.LayerNorm(width) if row.final_norm else nn.Identity()
        self.head = _head(config, row, actions)
        degrees: list[int] = [layer.degree for layer in self.layers]  # type: ignore[misc]
        self.degree = max((1 + row.final_norm, *degrees))  # a LayerNorm squares its input
        self.time_first = any(getattr(part, "time_first", False) for part in self.modules())
        if config.initialisation == "paper":
            initialise(self)

    def forward(self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute Q at every position, (B, T, A)."""
        return self.read(self.encode(observation, previous_action, lengths), observation)

    def encode(
        self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None, prefixes: bool = False
    ) -> Tensor:
        """Compute the head's input at every position, (B, T, D); with `prefixes` as if it were the newest one."""

        def run(observation: Tensor, lengths: Tensor | None) -> Tensor:
            x = self._tokens(self.embed(observation, previous_action))  # (B, T, D)
            for layer in self.layers:
                x = (layer.at_every_prefix if prefixes else layer)(x, lengths)  # type: ignore[operator]
            return self.norm(x)

        return contained_window(run, observation, lengths, self.causal, self.degree)

    def read(self, x: Tensor, observation: Tensor) -> Tensor:
        """Compute Q (..., A) of encodings (B, T, D) or (B, D); illegal actions by the observation have -inf."""
        outputs = contained_rows(lambda x: by_position(self.head, x), x)
        legal = self.legal(observation)
        if legal is None:
            return outputs
        if more := outputs.shape[-1] - legal.shape[-1]:  # numbers that are no choices
            legal = F.pad(legal, (0, more), value=True)
        return outputs.masked_fill(~legal, -math.inf)

    def legal(self, observation: Tensor) -> Tensor | None:
        """Read the flags (..., c) of legal choices from observations; None if the environment masks no actions."""
        if not self.spec.flags:
            return None
        return self.actions.all_legal(observation[..., -self.spec.flags :] > 0.5)

    def embed(self, observation: Tensor, previous_action: Tensor) -> Tensor:
        """Embed observations and previous actions, (B, T, D), without their positions."""
        return by_position(self._embed, observation, previous_action)

    def observe(self, observation: Tensor) -> None:
        """Add observations (N, ...) to the running statistics by which they are normalised, if they are."""
        for place, norm in self._norms():
            norm.observe(observation[..., place])

    def normalized(self, observation: Tensor) -> Tensor:
        """Normalise real observations (B, T, ...) if the network does so; return others unchanged."""
        if norms := self._norms():
            observation = observation.clone()
        for place, norm in norms:
            observation[..., place] = norm(observation[..., place])
        return observation

    def _norms(self) -> list[tuple[slice, Any]]:
        """List the places of the real vectors in an observation, and what normalises each; none if nothing does."""
        if not self.config.normalize_observation:
            return []
        embeddings = getattr(self.observation_embedding, "entries", [self.observation_embedding])
        parts = zip(self.spec.parts, embeddings, strict=True)
        return [(place, embedding.norm) for (place, part), embedding in parts if part.kind == "continuous"]

    def _embed(self, observation: Tensor, previous_action: Tensor) -> Tensor:
        x = self.observation_embedding(observation)  # (B, T, D - a)
        if self.action_embedding is not None:
            x = torch.cat([self.action_embedding(previous_action), x], -1)  # (B, T, D)
        return x

    def _tokens(self, embedded: Tensor) -> Tensor:
        return self.dropout(self.positions(embedded))  # (B, T, D)

    def at(
        self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None, index: Tensor | None = None
    ) -> Tensor:
        """Compute Q at position `index` (B,) of each window, (B, A); the last layer computes only that position.

        None stands for the last real position. A network that reads ahead then computes less.
        """

        def run(observation: Tensor, lengths: Tensor | None, _: Tensor) -> Tensor:
            x = self.encode_embedded(self.embed(observation, previous_action), lengths, index)
            return self.read(x, select(observation, place) if self.spec.flags else observation)

        place = last(observation, lengths) if index is None else index
        return contained_at(run, observation, lengths, place, self.causal, self.degree)

    def encode_embedded(self, embedded: Tensor, lengths: Tensor | None, index: Tensor | None) -> Tensor:
        """Compute the head's input (B, D) at a position, as `at` takes it, from the result of `embed`, (B, T, D)."""
        x = self._tokens(embedded)
        if not len(self.layers):
            return self.norm(select(x, last(x, lengths) if index is None else index))
        for layer in self.layers[:-1]:
            x = layer(x, lengths)
        final: Any = self.layers[-1]
        x = final.newest(x, lengths) if index is None else final.at(x, lengths, index)  # (B, D)
        return self.norm(x)

    def at_every_prefix(self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute Q at every position as if it were the newest of its window, as in acting, (B, T, A).

        For a causal network this equals `forward`. If only the last layer is bidirectional (`supports_prefixes`), it
        costs no more: the backward direction takes one step at the newest position of a window.
        """
        return self.read(self.encode(observation, previous_action, lengths, prefixes=True), observation)

    def step(
        self, observation: Tensor, previous_action: Tensor, state: list[Any] | None, reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute Q (B, A) of one step of B episodes from carried states; rows with `reset` start afresh."""
        x, after = self._encode_step(observation, previous_action, state, reset)
        return self.read(x, observation), after

    def encode_step(
        self, observation: Tensor, previous_action: Tensor, state: list[Any] | None, reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute the head's input for one step, (B, D), and the state after it."""
        x, after = self._encode_step(observation, previous_action, state, reset)
        return unshared(observation, x, tuple(itertools.chain.from_iterable(after)))[0], after

    def _encode_step(
        self, observation: Tensor, previous_action: Tensor, state: list[Any] | None, reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute `encode_step`; the encoding may share memory with the state."""
        previous_action = self._actions_before(previous_action, reset)

        def run(observation: Tensor, state: list[Any] | None, reset: Tensor | None) -> tuple[Tensor, list[Any]]:
            x = self.embed(observation.unsqueeze(1), previous_action.unsqueeze(1)).squeeze(1)  # (B, D)
            return self._run_layers("step", x, state, reset)

        if torch.is_grad_enabled():
            return contained_layers(run, observation, state, reset, self.degree)
        return run_checked(run, observation, state, reset)  # rows do not mix, and there is no gradient to spoil

    def sequence(
        self, observation: Tensor, previous_action: Tensor, state: list[Any] | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        """Compute Q (B, T, A) of T steps that follow `state`, and the state after them.

        `reset` (B, T) is true where a step begins an episode.
        """
        x, after = self.encode_sequence(observation, previous_action, state, reset)
        return self.read(x, observation), after

    def encode_sequence(
        self, observation: Tensor, previous_action: Tensor, state: list[Any] | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, list[Any]]:
        """Compute the head's input for T steps, (B, T, D), and the state after them."""
        previous_action = self._actions_before(previous_action, reset)

        def run(observation: Tensor, state: list[Any] | None, reset: Tensor | None) -> tuple[Tensor, list[Any]]:
            if self.time_first:
                observation = observation.transpose(0, 1).contiguous().transpose(0, 1)
            return self._run_layers("sequence", self.embed(observation, previous_action), state, reset)

        return contained_layers(run, observation, state, reset, self.degree)

    def _actions_before(self, previous_action: Tensor, reset: Tensor | None) -> Tensor:
        """Replace the previous action by "none yet" where an episode begins."""
        if self.action_embedding is None or reset is None:
            return previous_action
        shape = previous_action.shape[: previous_action.dim() - len(self.actions.shape)]
        if reset.dtype != torch.bool or reset.shape != shape:
            raise UserError(f"reset is {reset.dtype} {tuple(reset.shape)}; it must be bool {tuple(shape)}")
        return self.actions.without(previous_action, reset)

    def _run_layers(
        self, form: Literal["step", "sequence"], x: Tensor, state: list[Any] | None, reset: Tensor | None
    ) -> tuple[Tensor, list[Any]]:
        """Call `form` of each layer in turn, and collect the states after them."""
        states = []
        for layer, before in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, after = getattr(layer, form)(x, before, reset)
            states.append(after)
        return by_position(self.norm, x), states

    def initial_state(self, batch: int, device: torch.device) -> list[Any]:
        """Make the carried states of all layers for B fresh episodes (stateful networks only)."""
        dtype = next(self.parameters()).dtype
        return [layer.initial_state(batch, device, dtype) for layer in self.layers]  # type: ignore[operator]

    @property
    def causal(self) -> bool:
        """Whether Q at a position depends on no later observation."""
        return all(layer.causal for layer in self.layers)

    @property
    def supports_prefixes(self) -> bool:
        """Whether `at_every_prefix` works: all layers but the last are causal, and the last one supports it."""
        before, last = self.layers[:-1], self.layers[-1:]
        return all(layer.causal for layer in before) and all(layer.supports_prefixes for layer in last)

    @property
    def stateful(self) -> bool:
        """Whether the network can act step by step from a carried state."""
        return all(layer.stateful for layer in self.layers)

    def regularisation(self) -> Tensor:
        """Sum the penalties on learned spans, a scalar."""
        return penalty(self)

    def project(self) -> None:
        """Clamp learned spans to their bounds; call it after each step of the optimiser."""
        for part in constrained(self):
            part.project()

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """List the trained parameters of embedding, layers and head, whose gradients are measured."""
        return parts_of(self, PARTS)

    def memory_scalars(self) -> dict[str, float]:
        """Give the learned values of each head's attention prior, as `memory/<layer>.<head>.<mu | sigma | span>`."""
        return {
            f"memory/{index}.{head}.{name}": value
            for index, layer in enumerate(self.layers)
            if isinstance(layer, EncoderLayer) and layer.attention is not None
            for name, values in layer.attention.prior.learned().items()
            for head, value in enumerate(values.detach().tolist())
        }

    def prior_parameters(self) -> list[nn.Parameter]:
        """List the learned parameters of attention priors, which may have their own learning rate."""
        return [parameter for name, parameter in self.named_parameters() if ".prior." in name]


def _layer(config: NetworkConfig, row: Architecture) -> nn.Module:
    """Make one encoder layer, or the bare memory block of a recurrent baseline."""
    projection = config.form == "paper_equations"
    if not row.wrapped:
        return build(row.memory, config.width, config.dropout, projection)
    layer = LayerConfig(
        memory=row.memory, attention=row.attention, streamed=row.streamed, heads=config.heads, prior=config.prior,
        gate=row.gate, order=row.order, activation=row.activation, projection=projection, dropout=config.dropout,
    )  # fmt: skip
    return layer.build(config.width, config.context)


def _head(config: NetworkConfig, row: Architecture, actions: Actions) -> nn.Module:
    """Make the head: from the last encoding (..., D) to Q-values (..., A), or to the outputs of another policy."""
    inputs, reals = config.width, len(actions.low)
    num_actions = actions.outputs - reals  # the spreads of real numbers do not depend on the encoding
    if reals:
        hidden = config.head_width or config.width
        layers = nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_actions)
        return nn.Sequential(*layers, Spread(reals))
    if config.form == "paper_equations":
        return nn.Linear(inputs, num_actions, bias=False)  # Eq. 22
    if row.head == "linear" and config.head_width is None:
        return nn.Linear(inputs, num_actions)
    hidden = config.head_width or config.width
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))
