"""Describe an environment's observations for networks and replays, and make the embedding of each kind."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal

import gymnasium
import numpy as np
import torch
from torch import nn

from dqn_memory.blocks.embeddings import (
    DiscreteEmbedding,
    ImageEmbedding,
    PixelBounds,
    RowEmbedding,
    VectorEmbedding,
    channels_last,
)
from dqn_memory.runs.errors import UserError, require
from envs.rows import RowSpace
from envs.spaces import ImageBox, image_bounds

MAX_TOKENS = 2**24  # an embedding table holds a vector for each
CONTINUOUS_PADDING = -5.0  # below every observation of the published environments, as in the published code


@dataclass(frozen=True)
class ObservationSpec:
    """Kind, shape and values of one observation."""

    kind: Literal["discrete", "continuous", "image", "row"]
    shape: tuple[int, ...]
    vocabulary: int = 0  # number of tokens, the padding token included; 0 unless the kind is discrete
    dtype: torch.dtype = torch.float32  # as stored in the replay
    bounds: PixelBounds | None = None  # of an image's values (None: 0 .. 255; of floats 0 .. 1)
    entries: tuple[tuple[str, "ObservationSpec"], ...] = ()  # of a row, by name
    flags: int = 0  # of legal choices at the end of a row
    channels_last: bool | None = None  # of an image (None: its sizes tell)
    sizes: tuple[int, ...] = ()  # numbers of values of discrete components, if they differ

    @property
    def padding(self) -> float:
        """Value of the padding after the last observation of a window."""
        if self.kind == "discrete":
            return self.vocabulary - 1
        return CONTINUOUS_PADDING if self.kind == "continuous" else 0

    @property
    def has_images(self) -> bool:
        """Whether it is an image, or a row with one."""
        return any(part.kind == "image" for _, part in self.parts)

    @property
    def parts(self) -> list[tuple[slice, "ObservationSpec"]]:
        """List the places and the specs of the entries in a flat observation; one without entries is all of it."""
        specs = [spec for _, spec in self.entries] or [self]
        ends = list(itertools.accumulate((math.prod(spec.shape) for spec in specs), initial=0))
        return [(slice(*place), spec) for place, spec in zip(itertools.pairwise(ends), specs, strict=True)]


def observation_spec(space: gymnasium.Space) -> ObservationSpec:
    """Describe the observations of a Discrete, MultiDiscrete, Box or row space.

    Vocabularies follow the published code. Discrete(n) has n + 1 tokens. MultiDiscrete(nvec) has max(nvec) + 2, one of
    which is never used. The last token is the padding.

    Raises:
        UserError: the space is of another kind, an image whose sizes do not say which axis holds its channels, an
            image without pixels, or has more tokens than a table can hold.
    """
    if isinstance(space, RowSpace):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        entries = tuple((name, observation_spec(entry)) for name, entry in space.entries.items())
        return ObservationSpec("row", space.shape, 0, dtype, None, entries, space.flags)
    if isinstance(space, gymnasium.spaces.Discrete):
        return _tokens(1, int(space.n) + 1)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        sizes: list[int] = space.nvec.flatten().tolist()
        spec = _tokens(len(sizes), max(sizes) + 2)
        return replace(spec, sizes=tuple(sizes)) if len(set(sizes)) > 1 else spec
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3:
        return _image(space)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return ObservationSpec("continuous", tuple(space.shape))
    raise UserError(
        f"observation space {space} cannot be embedded; use Discrete, MultiDiscrete, a 1-D Box or an image Box"
    )


def _image(space: gymnasium.spaces.Box) -> ObservationSpec:
    require(all(space.shape), f"an image of {' x '.join(map(str, space.shape))} holds no pixels")
    dtype = torch.tensor(np.zeros(1, space.dtype)).dtype
    if isinstance(space, ImageBox):
        return ObservationSpec("image", space.shape, 0, dtype, image_bounds(space), channels_last=False)
    try:
        channels_last(space.shape)
    except ValueError as error:
        raise UserError(str(error)) from None
    return ObservationSpec("image", space.shape, 0, dtype, image_bounds(space))


def _tokens(components: int, vocabulary: int) -> ObservationSpec:
    require(vocabulary <= MAX_TOKENS, f"an observation has {vocabulary} tokens; a network embeds up to {MAX_TOKENS}")
    dtype = torch.uint8 if vocabulary <= 256 else torch.int32
    return ObservationSpec("discrete", (components,), vocabulary, dtype)


def observation_embedding(
    spec: ObservationSpec, width: int, token_width: int = 8, normalized: bool = False
) -> nn.Module:
    """Make the embedding for a kind of observation; with `normalized` running statistics scale real numbers.

    Raises:
        UserError: there are no real numbers to normalise.
    """
    if normalized and all(part.kind != "continuous" for _, part in spec.parts):
        kind = "an image" if spec.kind == "image" else "tokens" if spec.kind == "discrete" else "of tokens and images"
        raise UserError(f"--normalize-observation is for real vectors, but an observation is {kind}; leave it out")
    if spec.kind == "row":
        entries = [
            (each.shape, observation_embedding(each, width, token_width, normalized and each.kind == "continuous"))
            for _, each in spec.entries
        ]
        return RowEmbedding(entries)
    if spec.kind == "discrete":
        return DiscreteEmbedding(spec.vocabulary, spec.shape[0], width, token_width)
    if spec.kind == "continuous":
        return VectorEmbedding(spec.shape[0], width, normalized)
    return ImageEmbedding(spec.shape, width, not spec.dtype.is_floating_point, spec.bounds, spec.channels_last)
