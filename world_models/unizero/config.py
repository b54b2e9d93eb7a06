"""The sizes and the forms of a UniZero world model.

Where "Learning to Focus" and the code released with it disagree, the help of a flag names both values; where neither is
an error, the paper's is the default. These points have no flag:

- Heads: two in the paper's text, four in the code. The paper's own count of 20.77 million parameters has four; two
  would make 19.59.
- SimNorm's temperature: learnable in the paper's text, 1 in its table and in the code. The linear map before each
  SimNorm can learn any temperature.
- First values of priors: "sampled" in the paper's text; its figure and the code start all heads at one value.
- A warm-up of the span's penalty over the first 3 updates, in the code alone: 3 of 25,000.
- Gymnasium 0.28 in the paper, gym 0.25 in the code: games are those of ale-py here, every setting of theirs a flag.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from dqn_memory.blocks import GATES, PRIORS, PriorConfig
from dqn_memory.runs.errors import UserError, near_names
from world_models.run_config import check_counts, check_not_negative

GROUP = 8  # probabilities of one SimNorm group
FIRST_SPAN = {"gaussian_adaptive": 10.0}  # where a paper's span starts, by the beginning of its prior's name
OTHER_SPAN = 6.0


@dataclass(frozen=True)
class EncoderConfig:
    """How an observation becomes a latent. Images take `channels` and `norm`, everything else the other two."""

    channels: int = 32
    """Channels of the first convolutions of an image encoder; later ones have twice as many."""
    norm: Literal["batch", "group"] = "batch"
    """`batch` as in the published encoder (then training and search normalise differently); `group` does not depend
    on the rest of the batch."""
    activation: Literal["leaky_relu", "gelu"] = "leaky_relu"
    """Between an encoder's layers: `leaky_relu` in the paper, which is the default; `gelu` in the released code.
    Everything behind the encoder has gelu in both."""
    hidden: int = 256
    """Hidden width of the encoder of vectors and tokens."""
    token_width: int = 16
    """Width of the embedding of one discrete observation component."""


@dataclass(frozen=True)
class ModelConfig:
    """A world model. The defaults are the published Atari model, in the paper's equations.

    Distances of the prior are tokens, two for each environment step.
    """

    dynamics: Literal["transformer", "recurrent", "gru"] = "transformer"
    """`transformer` is UniZero; `recurrent` is MuZero's, whose next state depends on state and action alone and which
    is unrolled from the first observation; `gru` reads the transformer's tokens with a recurrence in its place."""
    width: int = 768
    """Width D of latents and tokens."""
    heads: int = 8
    """Attention heads H; must divide the width."""
    layers: int = 2
    """Layers of the dynamics."""
    horizon: int = 10
    """Environment steps T of a training sequence, two tokens each."""
    context: int = 8
    """Tokens of the search window: a latent is judged from at most context - 1 tokens, an action from context - 2."""
    dropout: float = 0.1
    """Dropout of tokens, attention weights and sublayer outputs."""
    gate: str = "residual"
    """How a sublayer joins the stream: residual or gru."""
    rotary: bool = False
    """Rotary positions in place of the learned table."""
    initialisation: Literal["paper", "torch"] = "paper"
    """`paper` draws linear and embedding weights from N(0, 0.02); `torch` keeps each module's own law, under which
    small models start with more signal. The heads' last layers are zero in both."""
    support: int = 50
    """Rewards and values are distributions over the integers -support .. support, after the value transform."""
    prior: PriorConfig = field(default_factory=lambda: PriorConfig(span=OTHER_SPAN, weight=0.025))
    """Temporal prior of the attention."""
    span_diversity: float = 0.0
    """Factor on the likeness of the heads' learned mu, sigma and span within a layer, which is added to the loss (the
    thesis names such a coefficient, sets it to 0 and gives no formula; see `WorldModel.likeness` for ours)."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    @property
    def pairs(self) -> int:
        """Steps W of history before the current one that a search window can hold."""
        return (self.context - 2) // 2

    def with_prior(self, kind: str) -> ModelConfig:
        """The same model under another prior, whose span starts where the paper starts it."""
        span = next((value for name, value in FIRST_SPAN.items() if kind.startswith(name)), OTHER_SPAN)
        return replace(self, prior=replace(self.prior, kind=kind, span=span))

    def check(self) -> None:
        """One sentence for every combination that cannot be built."""
        for what, name, table in (("gate", self.gate, GATES), ("prior", self.prior.kind, PRIORS)):
            if name not in table:
                raise UserError(near_names(what, name, table))
        if self.dynamics not in ("transformer", "recurrent", "gru"):
            raise UserError(near_names("dynamics", self.dynamics, ("transformer", "recurrent", "gru")))
        check_counts(self, ("width", "heads", "layers", "horizon", "support"))
        check_counts(self.encoder, ("channels", "hidden", "token_width"))
        check_not_negative(self, ("span_diversity",))
        if self.width % GROUP:
            raise UserError(f"--width {self.width} must be a multiple of {GROUP}, the size of a SimNorm group")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout} must be at least 0 and below 1")
        self._check_context()
        if self.dynamics == "transformer":
            self._check_attention()

    def check_used(self) -> None:
        """One sentence for an option that these dynamics never read.

        Details of a prior may stand there all the same: presets set them for whatever prior is chosen.
        """
        if self.dynamics == "transformer":
            return
        where, remedy = f"changes nothing in --dynamics {self.dynamics}", "leave it out, or use --dynamics transformer"
        unused = {
            f"--prior {self.prior.kind}": self.prior.kind != PriorConfig.kind,
            "--rotary": self.rotary,
            f"--span-diversity {self.span_diversity}": self.span_diversity > 0,
        }
        for option, given in unused.items():
            if given:
                raise UserError(f"{option} {where}, which has no attention; {remedy}")
        if self.dynamics == "recurrent" and self.gate != ModelConfig.gate:
            raise UserError(f"--gate {self.gate} {where}, whose layers have no gates; {remedy} or gru")

    def _check_context(self) -> None:
        if self.context < 4 or self.context % 2:
            raise UserError(f"--context {self.context} must be an even number of tokens, 4 or more")
        if self.context > 2 * self.horizon:
            raise UserError(
                f"--context {self.context} tokens do not fit: training sequences of --horizon {self.horizon} steps "
                f"have {2 * self.horizon} tokens, and later positions would be untrained"
            )

    def _check_attention(self) -> None:
        if self.width % self.heads:
            raise UserError(f"--heads {self.heads} does not divide --width {self.width}; choose a divisor of it")
        if self.rotary and self.width // self.heads % 2:
            raise UserError(f"--rotary needs heads of even width, but --width / --heads is {self.width // self.heads}")
        prior, tokens = self.prior, 2 * self.horizon
        check_not_negative(prior, ("weight",))
        used: dict[str, float] = {"window": prior.window} if prior.kind == "local" else {}
        used |= {"mu": prior.mu} if "gaussian" in prior.kind else {}
        used |= {"span": prior.span} if "adaptive" in prior.kind else {}
        for name, value in used.items():
            if value >= tokens:
                raise UserError(
                    f"--{name} {value} of the {prior.kind} prior does not fit: it must be below the {tokens} tokens "
                    f"of --horizon {self.horizon} steps"
                )
