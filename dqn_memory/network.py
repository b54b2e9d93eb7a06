"""The Q-network: embedding -> positions -> encoder layers -> LayerNorm -> head, at every position of a window."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from dqn_memory.blocks import GATES, MEMORY, POSITIONS, PRIORS
from dqn_memory.blocks.block import select
from dqn_memory.blocks.contract import build_memory
from dqn_memory.blocks.initialise import initialise
from dqn_memory.blocks.layer import EncoderLayer, LayerConfig
from dqn_memory.blocks.memory import BIDIRECTIONAL
from dqn_memory.blocks.priors import PriorConfig
from dqn_memory.runs.errors import UserError, near_names

HEADS = ("mlp", "linear")


@dataclass(frozen=True)
class NetworkConfig:
    """A named architecture, its size, and what to change in its row. None means: as the row says."""

    architecture: str = "dgfqn"
    """Row of the architecture table, such as dtqn4, dgfqn, dbgfqn or drqn."""
    width: int = 64
    """Model width D."""
    heads: int = 8
    """Attention heads H; must divide the width."""
    layers: int | None = None
    """Encoder layers."""
    context: int = 50
    """Context length K: the network never sees more than K observations."""
    form: Literal["paper", "paper_equations"] = "paper"
    """`paper` is Algorithm 1 with Table 3's counts; `paper_equations` is equations 10 and 20-22: no ReLU on the
    sublayer outputs, an output projection after the recurrence, one bias-free linear head, no last LayerNorm."""
    gate: str | None = None
    """Combine gate: residual or gru."""
    norm_order: Literal["post", "identity"] | None = None
    """Place of the LayerNorms: post (DTQN) or identity (GTrXL's identity-map reordering)."""
    position_encoding: str | None = None
    """Positions: learned, sinusoidal or none."""
    action_embedding: int | None = None
    """Features of D that hold the embedded previous action (0: no action input)."""
    head_width: int | None = None
    """Hidden width of the Q head (None: D, or no hidden layer where the row has a linear head)."""
    initialisation: Literal["paper", "torch"] = "paper"
    """`paper` draws linear and embedding weights from N(0, 0.02); `torch` keeps each module's own law, with which
    attention learns to compare tokens several times sooner."""
    token_width: int = 8
    """Width of the embedding of one discrete observation component."""
    dropout: float = 0.0
    """Dropout after the embedding and inside the sublayers."""
    prior: PriorConfig = field(default_factory=PriorConfig)

    def row(self) -> Architecture:
        """The architecture's row with this config's changes; a UserError names an unknown word."""
        _known("architecture", self.architecture, ARCHITECTURES)
        row: object = ARCHITECTURES[self.architecture]
        if not isinstance(row, Architecture):  # a plugin can put anything there
            kind = type(row).__name__
            raise UserError(f"architecture {self.architecture} is a {kind}; ARCHITECTURES takes Architecture(...) rows")
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
        """One sentence for every combination that cannot be built."""
        self._check_sizes()
        row = self.row()
        _known("gate", row.gate, GATES)
        _known("position encoding", row.positions, POSITIONS)
        _known("head", row.head, HEADS)
        _known("prior", self.prior.kind, PRIORS)
        if row.memory != "none":
            _known("memory", row.memory, MEMORY)
        elif row.layers and not row.attention:
            raise UserError(f"--layers {row.layers}: {self.architecture} has no memory, so it takes --layers 0 only")
        if row.attention and self.width % self.heads:
            raise UserError(f"--heads {self.heads} does not divide --width {self.width}; choose a divisor of it")
        if row.memory in BIDIRECTIONAL and self.width % 2:
            raise UserError(f"--width {self.width} is odd, but {row.memory} needs half of it for each direction")
        if row.action_embedding >= self.width:
            raise UserError(f"--action-embedding {row.action_embedding} leaves no room in --width {self.width}")
        if row.attention:
            self._check_prior()

    def _check_sizes(self) -> None:
        least = dict.fromkeys(("context", "width", "heads", "head_width", "token_width"), 1)
        for name, bound in (least | {"layers": 0, "action_embedding": 0}).items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UserError(f"--{name.replace('_', '-')} {value} must be at least {bound}")
        if self.prior.regulariser_weight < 0:
            raise UserError(
                f"--regulariser-weight {self.prior.regulariser_weight} of the prior's penalty must not be negative"
            )

    def _check_prior(self) -> None:
        prior = self.prior
        used: dict[str, float] = {"local-window": prior.local_window} if prior.kind == "local" else {}
        learns = getattr(PRIORS[prior.kind], "learns", ())  # an entry from outside may be any callable
        used |= {name: getattr(prior, name) for name in ("mu", "span") if name in learns}
        for name, value in used.items():
            if value >= self.context:
                raise UserError(
                    f"--{name} {value} of the {prior.kind} prior does not fit: it must be below --context "
                    f"{self.context}"
                )

    def build(self, spec: ObservationSpec, num_actions: int) -> QNetwork:
        """The network for one world, initialised from the global generator (fork and seed it outside)."""
        self.check()
        try:
            return QNetwork(self, spec, num_actions)
        except ValueError as error:  # the blocks know nothing of command lines; their sentence serves as it is
            raise UserError(str(error)) from error


def _known(what: str, name: str, table: Collection[str]) -> None:
    if name not in table:
        raise UserError(near_names(what, name, table))


class QNetwork(nn.Module):
    """Q-values of every position of a window (DTQN section 3; DBGFQN Algorithm 1).

    `forward(observation[B, T, ...], previous_action[B, T], lengths[B] | None) -> (B, T, A)`, T <= K.
    """

    def __init__(self, config: NetworkConfig, spec: ObservationSpec, num_actions: int) -> None:
        super().__init__()
        row = config.row()
        width = config.width
        self.config, self.spec, self.num_actions = config, spec, num_actions
        self.observation_embedding = observation_embedding(spec, width - row.action_embedding, config.token_width)
        self.action_embedding = (
            ActionHistoryEmbedding(num_actions, row.action_embedding) if row.action_embedding else None
        )
        self.positions = POSITIONS[row.positions](config.context, width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(_layer(config, row) for _ in range(row.layers))
        self.norm = nn.LayerNorm(width) if row.final_norm else nn.Identity()
        self.head = _head(config, row, num_actions)
        if config.initialisation == "paper":
            initialise(self)

    @property
    def causal(self) -> bool:
        """Whether Q at t depends on observations up to t alone."""
        return all(layer.causal for layer in self.layers)

    @property
    def supports_prefixes(self) -> bool:
        """Whether `at_every_prefix` works: all layers but the last are causal, and that one knows its ends."""
        return all(layer.causal for layer in self.layers[:-1]) and all(
            layer.supports_prefixes for layer in self.layers[-1:]
        )

    @property
    def stateful(self) -> bool:
        """Whether the network can act step by step from a carried state."""
        return all(layer.stateful for layer in self.layers)

    def embed(self, observation: Tensor, previous_action: Tensor) -> Tensor:
        """(B, T, ...), (B, T) -> (B, T, D), before positions."""
        x = self.observation_embedding(observation)  # (B, T, D - a)
        if self.action_embedding is not None:
            x = torch.cat([self.action_embedding(previous_action), x], -1)  # (B, T, D)
        return x

    def encode(self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What the head reads, (B, T, D)."""
        x = self.dropout(self.positions(self.embed(observation, previous_action)))  # (B, T, D)
        for layer in self.layers:
            x = layer(x, lengths)
        return self.norm(x)

    def forward(self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.head(self.encode(observation, previous_action, lengths))  # (B, T, A)

    def at_every_prefix(self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Every position as the newest of its own window, (B, T, A): what acting reads at each step of one episode.

        Of a causal network that is `forward`. Where the last layer alone is bidirectional it costs no more, as its
        backward direction has made one step only at a window's newest position (where `supports_prefixes`).
        """
        x = self.dropout(self.positions(self.embed(observation, previous_action)))  # (B, T, D)
        for layer in self.layers:
            x = layer.at_every_prefix(x, lengths)  # type: ignore[operator]
        return self.head(self.norm(x))

    def at(self, observation: Tensor, previous_action: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Q-values of one position a row, (B, A); `index` is (B,). The last layer computes no other position."""
        return self.at_embedded(self.embed(observation, previous_action), lengths, index)

    def at_embedded(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """`at`, from what `embed` gives, (B, T, D)."""
        x = self.dropout(self.positions(x))  # (B, T, D)
        if not len(self.layers):
            return self.head(self.norm(select(x, index)))
        for layer in self.layers[:-1]:
            x = layer(x, lengths)
        x = self.layers[-1].at(x, lengths, index)  # type: ignore[operator]  # (B, D)
        return self.head(self.norm(x))

    def initial_state(self, batch: int, device: torch.device) -> list[Any]:
        """Carried states of all layers for B fresh episodes (stateful networks only)."""
        dtype = next(self.parameters()).dtype
        return [layer.initial_state(batch, device, dtype) for layer in self.layers]  # type: ignore[operator]

    def step(
        self, observation: Tensor, previous_action: Tensor, state: list[Any], reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """One step of B episodes, (B, ...) -> Q (B, A); rows where `reset` is True start from a fresh state."""
        x = self.embed(observation.unsqueeze(1), previous_action.unsqueeze(1)).squeeze(1)  # (B, D)
        carried = []
        for layer, before in zip(self.layers, state, strict=True):
            x, after = layer.step(x, before, reset)  # type: ignore[operator]
            carried.append(after)
        return self.head(self.norm(x)), carried

    def regularisation(self) -> Tensor:
        """Sum of the blocks' penalties on learned spans, a scalar."""
        zero = next(self.parameters()).new_zeros(())
        return sum((layer.regularisation() for layer in self.layers), zero)  # type: ignore[operator]

    def project(self) -> None:
        """Pull learned spans back inside their bounds; call it after each optimiser step."""
        for layer in self.layers:
            layer.project()  # type: ignore[operator]

    def memory_scalars(self) -> dict[str, float]:
        """What each head's attention prior has learned: `memory/<layer>.<head>.<mu | sigma | span>`."""
        return {
            f"memory/{place}.{head}.{name}": value
            for place, layer in enumerate(self.layers)
            if isinstance(layer, EncoderLayer) and layer.attention is not None
            for name, values in layer.attention.prior.learned().items()
            for head, value in enumerate(values.detach().tolist())
        }

    def prior_parameters(self) -> list[nn.Parameter]:
        """The learned parameters of attention priors (they may have a learning rate of their own)."""
        return [p for name, p in self.named_parameters() if ".prior." in name]


def _layer(config: NetworkConfig, row: Architecture) -> nn.Module:
    projection = config.form == "paper_equations"
    if not row.wrapped:
        return build_memory(row.memory, config.width, config.dropout, projection)
    layer = LayerConfig(
        memory=row.memory, attention=row.attention, heads=config.heads, prior=config.prior, gate=row.gate,
        order=row.order, activation=row.activation, projection=projection, dropout=config.dropout,
    )  # fmt: skip
    return layer.build(config.width, config.context)


def _head(config: NetworkConfig, row: Architecture, num_actions: int) -> nn.Module:
    if config.form == "paper_equations":
        return nn.Linear(config.width, num_actions, bias=False)  # Eq. 22
    if row.head == "linear" and config.head_width is None:
        return nn.Linear(config.width, num_actions)
    hidden = config.head_width or config.width
    return nn.Sequential(nn.Linear(config.width, hidden), nn.ReLU(), nn.Linear(hidden, num_actions))


CONTINUOUS_PADDING = -5.0  # below every observation of the published worlds (specified by the reference)


@dataclass(frozen=True)
class ObservationSpec:
    """One observation's form. `vocabulary` counts the padding token; it is 0 unless `kind` is discrete."""

    kind: Literal["discrete", "continuous", "image"]
    shape: tuple[int, ...]
    vocabulary: int = 0
    dtype: torch.dtype = torch.float32  # as kept in the replay

    @property
    def padding(self) -> float:
        """The value that stands behind the last real observation of a window."""
        if self.kind == "discrete":
            return self.vocabulary - 1
        return CONTINUOUS_PADDING if self.kind == "continuous" else 0


def observation_spec(space: gymnasium.Space) -> ObservationSpec:
    """The spec of a Discrete, MultiDiscrete or Box space; a UserError names what else was given.

    Vocabularies follow the reference: Discrete(n) has n + 1 tokens, MultiDiscrete(nvec) max(nvec) + 2 (one row
    is never used), in both the last one being padding.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return _tokens(1, int(space.n) + 1)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return _tokens(int(np.prod(space.shape)), int(space.nvec.max()) + 2)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3:
        return ObservationSpec("image", tuple(space.shape), 0, torch.from_numpy(np.zeros(1, space.dtype)).dtype)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return ObservationSpec("continuous", tuple(space.shape))
    raise UserError(
        f"observation space {space} cannot be embedded; use Discrete, MultiDiscrete, a 1-D Box or an image Box"
    )


def _tokens(components: int, vocabulary: int) -> ObservationSpec:
    dtype = torch.uint8 if vocabulary <= 256 else torch.int32
    return ObservationSpec("discrete", (components,), vocabulary, dtype)


class TokenEmbedding(nn.Module):
    """d tokens through one shared table, flattened, then Linear(8 d, D): 8 V + 8 d D + D parameters."""

    def __init__(self, vocabulary: int, components: int, width: int, token_width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, token_width)
        self.linear = nn.Linear(components * token_width, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        tokens = self.table(observation.int())  # (B, T, d, 8)
        return self.linear(tokens.flatten(-2))


class VectorEmbedding(nn.Module):
    """A real vector through Linear(d, D)."""

    def __init__(self, components: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(components, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        return self.linear(observation.to(self.linear.weight.dtype))


class ImageEmbedding(nn.Module):
    """A convolutional encoder: two 3x3 layers below 36 pixels, the 8-4-3 stack of DQN (Mnih et al. 2015) above."""

    def __init__(self, shape: tuple[int, ...], width: int, integer: bool) -> None:
        super().__init__()
        self.channels_last = shape[-1] <= shape[0]
        height, wide, channels = shape if self.channels_last else (shape[1], shape[2], shape[0])
        self.scale = 1 / 255 if integer else 1.0
        self.convolutions = _convolutions(channels, min(height, wide))
        with torch.device("meta"):
            probe = _convolutions(channels, min(height, wide))(torch.empty(1, channels, height, wide))
        self.linear = nn.Linear(probe.numel(), width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, H, W, C) or (B, T, C, H, W) -> (B, T, D)
        frames = observation.flatten(0, 1).to(self.linear.weight.dtype) * self.scale
        if self.channels_last:
            frames = frames.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(frames).flatten(1)).unflatten(0, observation.shape[:2])


def _convolutions(channels: int, side: int) -> nn.Sequential:
    layers: list[nn.Module]
    if side < 36:
        layers = [nn.Conv2d(channels, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    else:
        layers = [nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        layers += [nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
    return nn.Sequential(*layers)


def observation_embedding(spec: ObservationSpec, width: int, token_width: int = 8) -> nn.Module:
    """The embedding that fits the observation's kind."""
    if spec.kind == "discrete":
        return TokenEmbedding(spec.vocabulary, spec.shape[0], width, token_width)
    if spec.kind == "continuous":
        return VectorEmbedding(spec.shape[0], width)
    return ImageEmbedding(spec.shape, width, integer=not spec.dtype.is_floating_point)


class ActionHistoryEmbedding(nn.Module):
    """The action that led to each observation, `a_{t-1}`, as a vector; index `num_actions` means "none" and is zero.

    Replay, acting and evaluation store the previous action beside its observation, so training and acting see the
    same pair (the reference rolled once too often when acting).
    """

    def __init__(self, num_actions: int, width: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.table = nn.Embedding(num_actions, width)

    def forward(self, previous_action: Tensor) -> Tensor:  # (B, T) -> (B, T, width)
        known = previous_action < self.num_actions
        vectors = self.table(previous_action.clamp(max=self.num_actions - 1).int())
        return vectors * known.unsqueeze(-1)


@dataclass(frozen=True)
class Architecture:
    """How a Q-network is put together; every field is a word of the grammar in `blocks` and `networks`.

    `wrapped` False means the bare memory block, without gate and LayerNorm around it (the recurrent baselines).
    `published` says that the paper or its reference prints a parameter count for this form.
    """

    memory: str = "feedforward_x4"
    attention: bool = True
    layers: int = 2
    wrapped: bool = True
    gate: str = "residual"
    order: Literal["post", "identity"] = "post"
    activation: Literal["relu", "none"] = "relu"
    positions: str = "learned"
    final_norm: bool = True
    head: Literal["mlp", "linear"] = "mlp"
    action_embedding: int = 0
    published: bool = False


def _paper(memory: str) -> Architecture:
    return Architecture(memory=memory, published=True)


def _recurrent_baseline(memory: str, action_embedding: int = 0, published: bool = False) -> Architecture:
    return Architecture(
        memory=memory, attention=False, layers=1, wrapped=False, positions="none", final_norm=False,
        action_embedding=action_embedding, published=published,
    )  # fmt: skip


ARCHITECTURES: dict[str, Architecture] = {
    # DTQN (Esslinger et al. 2022) with a feed-forward sublayer of k D hidden units, and the paper's recurrent ones
    "dtqn1": _paper("feedforward_x1"),
    "dtqn2": _paper("feedforward_x2"),
    "dtqn3": _paper("feedforward_x3"),
    "dtqn4": _paper("feedforward_x4"),
    "drfqn": _paper("rnn"),
    "dlfqn": _paper("lstm"),
    "dgfqn": _paper("gru"),
    "dbrfqn": _paper("birnn"),
    "dblfqn": _paper("bilstm"),
    "dbgfqn": _paper("bigru"),
    # the two controls that research question 1 asks for: one D-to-D layer, and attention alone
    "dtqn_linear": Architecture(memory="linear"),
    "dtqn_attention": Architecture(memory="none"),
    "dtqn_mamba": Architecture(memory="mamba"),
    # baselines
    "dqn": Architecture(memory="none", attention=False, layers=0, positions="none", final_norm=False),
    "drqn": _recurrent_baseline("lstm", published=True),
    "adrqn": _recurrent_baseline("lstm", action_embedding=16),
    "darqn": _recurrent_baseline("darqn"),
    "darqn_released": _recurrent_baseline("darqn_released"),
    "mamba": _recurrent_baseline("mamba"),
    "attn": Architecture(layers=1, positions="sinusoidal", final_norm=False, head="linear"),
    "gtrxl": Architecture(gate="gru", order="identity"),
}
