"""The sizes and the forms of a GLAM world model; every point in which paper and released code differ is an option."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds

Form = Literal["storm", "lmamba", "double_transformer", "double_mamba", "glam", "glam_no_variation"]
FORMS: tuple[Form, ...] = get_args(Form)
MemoryKind = Literal["window", "carried"]
SMALLEST = 4  # pixels of the last feature map


@dataclass(frozen=True)
class LossConfig:
    """Weights and floors of the losses (the paper's Eq. 8-10, 12 and Table 3)."""

    reconstruction: Literal["squared", "norm"] = "squared"
    """`squared` sums squared errors over an image, as released; `norm` is the root of that sum, as Eq. 9 is written
    (its weight of 1 was tuned with the squares)."""
    reconstruction_weight: Annotated[float, Bounds(0)] = 1.0
    """Images."""
    reward_weight: Annotated[float, Bounds(0)] = 1.0
    """Rewards: cross-entropy with their symlog two-hot code."""
    termination_weight: Annotated[float, Bounds(0)] = 1.0
    """Terminations: binary cross-entropy (Eq. 9 lacks its minus sign)."""
    dynamics_weight: Annotated[float, Bounds(0)] = 0.5
    """KL of the prior from the stopped posterior."""
    representation_weight: Annotated[float, Bounds(0)] = 0.1
    """KL of the stopped prior from the posterior."""
    variation_weight: Annotated[float, Bounds(0)] = 0.1
    """KL of what the differences predict from the variation target."""
    free_bits: Annotated[float, Bounds(0)] = 1.0
    """The mean KL of dynamics and of representation has no gradient below this many nats."""
    variation_free_bits: Annotated[float, Bounds(0)] = 1.0
    """The same floor for the variation: 1 in the paper, 0.1 as released last."""


@dataclass(frozen=True)
class ModelConfig:
    """A world model. The defaults are the preset `paper` at its published size, but for the prior's head.

    Eq. 10's variation target, sg(z_{t+1} - z_t), is a difference of one-hot samples and hence no distribution, so its
    KL cannot be computed. Our named reading is `posterior`: from the differences alone, predict the unimixed, stopped
    posterior of o_{t+1}.
    """

    sequence: Form = "glam"
    """What reads the latents: GLAM or one of the five other rows of the paper's Table 2."""
    screen: int = 64
    """Pixels S of a square frame of three colours: a power of two, 8 or more."""
    channels: Annotated[int, Bounds(1)] = 32
    """Channels of the first convolution; each of the log2(S / 4) convolutions has twice as many as the one before."""
    categoricals: Annotated[int, Bounds(1)] = 32
    """Categorical variables G of a latent."""
    classes: Annotated[int, Bounds(2)] = 32
    """Classes C of each of them."""
    unimix: Annotated[float, Bounds(0, below=1)] = 0.01
    """Share of the uniform distribution in every predicted categorical."""
    width: Annotated[int, Bounds(1)] = 256
    """Width D of the features."""
    state_size: Annotated[int, Bounds(1)] = 16
    """States of each Mamba channel."""
    global_layers: Annotated[int, Bounds(1)] = 1
    """Mamba layers that read the differences."""
    local_layers: Annotated[int, Bounds(1)] = 1
    """Mamba layers that read the windows."""
    local_window: Annotated[int, Bounds(1)] = 4
    """Frames of a local window, whose last output counts."""
    post_norm: bool = True
    """LayerNorm between a mixer and its residual sum, as in Eq. 6 and 7; the released layers have none."""
    chained: bool = True
    """False, as released: every layer of GMamba reads the same differences, and all but the last are dead."""
    attention_layers: Annotated[int, Bounds(1)] = 2
    """Layers of a Transformer (`storm`, `double_transformer`)."""
    heads: Annotated[int, Bounds(1)] = 8
    """Its attention heads."""
    dropout: Annotated[float, Bounds(0, below=1)] = 0.1
    """Its dropout."""
    attention_window: Annotated[int, Bounds(1)] = 64
    """Positions that one attention layer can see, the current one included."""
    bins: Annotated[int, Bounds(2)] = 255
    """Points of the two-hot code of rewards on symlog [-20, 20]."""
    prior_head: Literal["linear", "mlp"] = "linear"
    """What predicts the next latent: `mlp` as in the paper, which gives no sizes, so it has those of the reward's head
    (two hidden layers as wide as the features); `linear` as released, and in runs whose config lacks this setting. The
    presets `paper` and `fast` have `mlp`."""
    variation_head: Literal["shared", "own"] = "shared"
    """`shared`: the prior's head predicts from the differences too (Eq. 10); `own`: a second head, as released."""
    variation_target: Literal["posterior", "random_projection"] = "posterior"
    """`posterior`: see above; `random_projection`, as released: a random linear map, which never learns, of the
    encoder's difference between two frames, read as logits."""
    reset_at_episode_start: bool = True
    """Forget everything before an episode's first frame; the released windows run across episodes."""
    burn_in: int = 3
    """Positions at the beginning of a training sequence that train no head because their past was cut off: 3 as in
    Algorithm 1, 4 as released. Positions after an episode's first frame have their whole past and always train."""
    batch_length: int = 64
    """Frames of a training sequence: 64 in Table 3, 68 as released (of which 64 train the heads)."""
    imagination_memory: MemoryKind = "window"
    """`window`: every imagined step reads exactly the last `context` frames anew; `carried`: the recurrent state
    goes on from the context, which sees more of the past and costs less."""
    context: Annotated[int, Bounds(1)] = 16
    """Frames before an imagined rollout: 16 in Table 3, 8 as released."""
    acting_context: Annotated[int, Bounds(1)] = 16
    """Frames that the acting agent's model sees where it works on windows."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Weights and floors."""

    @property
    def latent(self) -> int:
        """Width Z = G C of a flat sample."""
        return self.categoricals * self.classes

    @property
    def stages(self) -> int:
        """Number of convolutions."""
        return (self.screen // SMALLEST).bit_length() - 1

    @property
    def embedding(self) -> int:
        """Width of the flattened last feature map."""
        return self.channels * 2 ** (self.stages - 1) * SMALLEST**2

    def check(self) -> None:
        """Refuse every combination that cannot be built."""
        if self.screen < 2 * SMALLEST or self.screen & (self.screen - 1):
            raise UserError(f"--screen {self.screen} must be a power of two, 8 or more")
        if not 0 <= self.burn_in < self.batch_length - 1:
            raise UserError(
                f"--burn-in {self.burn_in} must be at least 0 and below --batch-length {self.batch_length} by 2 or more"
            )
        attention = "transformer" in self.sequence or self.sequence == "storm"
        if attention and (self.width % self.heads or self.width // self.heads % 2):
            raise UserError(f"--heads {self.heads} must divide --width {self.width} into heads of even width")
