"""The world model: encoder, dynamics, four heads, and the two functions that a search calls, `root` and `expand`."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dqn_memory.blocks import Attention, initialise
from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.blocks.initialise import DEVIATION
from dqn_memory.blocks.positions import Learned
from dqn_memory.blocks.priors import PENALTIES
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import UserError
from envs.packages import in_own_code
from world_models.distributions import simnorm, value_code
from world_models.unizero.config import GROUP, UniZeroModelConfig
from world_models.unizero.dynamics import DYNAMICS, History
from world_models.unizero.encoders import ENCODERS


@dataclass(frozen=True)
class UniZeroPredictions:
    """The outputs of the heads for a training sequence; R = 2 support + 1."""

    reward: Tensor  # (B, T, R) logits, at the actions
    next_latent: Tensor  # (B, T, D) probabilities in groups of 8, at the actions
    policy: Tensor  # (B, T, A) logits, at the latents
    value: Tensor  # (B, T, R) logits, at the latents


@dataclass(frozen=True)
class Expansion:
    """The predicted outcome of an action at B nodes; for K actions at each, (B,) becomes (B, K)."""

    reward: Tensor  # (B,)
    latent: Tensor  # (B, D)
    policy: Tensor  # (B, A) logits
    value: Tensor  # (B,)


class UniZeroModel(nn.Module):
    """UniZero (Pu et al. 2024) with temporal priors; see UniZeroModelConfig for the forms.

    Symbols: D latent width, A actions, W = `config.pairs` steps of history in a search window. `root` and `expand` read
    all tokens of a window at each call, so the result of a row depends on that row alone. The one exception is
    `encode` in training mode, because of batch normalisation.
    """

    def __init__(self, config: UniZeroModelConfig, spec: ObservationSpec, num_actions: int) -> None:
        super().__init__()
        self.config, self.spec, self.num_actions = config, spec, num_actions
        self.code = value_code(config.support)
        self.encoder = ENCODERS[spec.kind](spec, config.width, config.encoder)
        self.dynamics = DYNAMICS[config.dynamics](config, num_actions)
        self.causal = self.dynamics.causal  # if False, predictions of a training sequence depend on later tokens
        outputs = {"reward": self.code.bins, "latent": config.width, "policy": num_actions, "value": self.code.bins}
        self.heads = nn.ModuleDict({name: _head(config.width, size) for name, size in outputs.items()})
        self._initialise()

    def encode(self, observation: Tensor) -> Tensor:
        """Encode observations (B, ..., observation) as SimNorm'd latents (B, ..., D)."""
        return self.encoder(observation)

    def forward(self, latent: Tensor, action: Tensor, lengths: Tensor | None = None) -> UniZeroPredictions:
        """Predict for T <= horizon latents (B, T, D) and actions (B, T); steps from `lengths` (B,) on are padding."""
        at_latent, at_action = self.dynamics(latent, action, self.predict, lengths)
        return UniZeroPredictions(
            reward=self.heads["reward"](at_action),
            next_latent=self.predict(at_action),
            policy=self.heads["policy"](at_latent),
            value=self.heads["value"](at_latent),
        )

    def values(self, latent: Tensor, action: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Estimate values (B, T) of observed latents (B, T, D), each with the steps before it; T <= horizon."""
        return self.code.decode(self.heads["value"](self.dynamics.observe(latent, action, self.predict, lengths)))

    def root(self, history: History, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the current latent (B, D) with its history: policy logits (B, A) and value (B,)."""
        at_latent = self.dynamics.root(history, latent)
        return self.heads["policy"](at_latent), self.code.decode(self.heads["value"](at_latent))

    def expand(self, history: History, latent: Tensor, action: Tensor) -> Expansion:
        """Predict the outcome of action (B,) at a node with latent (B, D) and the history before it.

        With K alternative actions (B, K), results are (B, K, ...).
        """
        if action.dim() == 1:
            only = self.expand(history, latent, action[:, None])
            return Expansion(**{name: value[:, 0] for name, value in vars(only).items()})
        at_action, next_latent, at_latent = self.dynamics.imagine(history, latent, action, self.predict)
        logits = torch.stack((self.heads["reward"](at_action), self.heads["value"](at_latent)))  # decoded at once
        reward, value = self.code.decode(logits)
        return Expansion(reward, next_latent, self.heads["policy"](at_latent), value)

    def empty_history(self, batch: int) -> History:
        """Make an empty history of B rows."""
        like, pairs = next(self.parameters()), self.config.pairs
        dtype = torch.promote_types(like.dtype, torch.float32)
        action = torch.zeros(batch, pairs, dtype=torch.int64, device=like.device)
        return History(like.new_zeros(batch, pairs, self.config.width, dtype=dtype), action, action.new_zeros(batch))

    def predict(self, at_action: Tensor) -> Tensor:
        """Predict next latents (..., D) from features at actions (..., D)."""
        return simnorm(self.heads["latent"](at_action), GROUP)

    def attentions(self) -> list[Attention]:
        """List the attention blocks by layer; empty if the dynamics have none."""
        return [module for module in self.dynamics.modules() if isinstance(module, Attention)]

    def regularisation(self) -> Tensor:
        """Compute the penalty on the spans of all layers, a scalar."""
        prior = self.config.prior
        spans = [attention.prior.span() for attention in self.attentions() if "span" in attention.prior.learns]
        if spans and prior.regulariser != "none":
            return prior.regulariser_weight * PENALTIES[prior.regulariser](torch.stack(spans))
        return next(self.parameters()).new_zeros(())

    @torch.no_grad()
    def project(self) -> None:
        """Project spans and centres into their bounds; call it after each optimiser step."""
        for attention in self.attentions():
            attention.project()

    def memory_scalars(self) -> dict[str, float]:
        """Return the learned values of each head's prior, in tokens: `memory/<layer>.<head>.<mu | sigma | span>`."""
        return {
            f"memory/{layer}.{head}.{name}": value
            for layer, attention in enumerate(self.attentions())
            for name, values in attention.prior.learned().items()
            for head, value in enumerate(values.detach().tolist())
        }

    @torch.no_grad()
    def _initialise(self) -> None:
        """Draw weights by `initialisation`, positions from N(0, 0.02), convolutions by He's rule; last layers are 0."""
        if self.config.initialisation == "paper":
            initialise(self)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, Learned):
                nn.init.normal_(module.table, std=DEVIATION)
        for head in self.heads.values():
            for parameter in head[-1].parameters():  # type: ignore[index]
                nn.init.zeros_(parameter)


def _head(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), Gelu(), nn.Linear(width, outputs))


def build_unizero(config: UniZeroModelConfig, spec: ObservationSpec, num_actions: int) -> UniZeroModel:
    """Build the model for one environment; weights come from the global generator, which the caller forks and seeds."""
    config.check()
    try:
        return UniZeroModel(config, spec, num_actions)
    except ValueError as error:  # the blocks raise no UserError of their own
        if in_own_code(error):
            raise
        raise UserError(str(error)) from error
