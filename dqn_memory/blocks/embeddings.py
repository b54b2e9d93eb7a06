"""Embeddings of observations and actions: B sequences of T steps, model width D."""

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

PixelBounds = tuple[tuple[float, ...], tuple[float, ...]]  # min and max value, of all entries or of each
UNBOUNDED = 2.0**31  # bounds that lie so far apart count as none
COLOURS = (1, 3, 4)  # channels of pictures
CLIP = 10.0  # bound of normalised numbers
EPSILON = 1e-8  # added to variances


class DiscreteEmbedding(nn.Module):
    """Embed d tokens by one shared table, concatenate, then Linear(8 d, D): 8 V + 8 d D + D parameters."""

    def __init__(self, vocabulary: int, components: int, width: int, token_width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, token_width)
        self.linear = nn.Linear(components * token_width, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        tokens = self.table(observation.int())  # (B, T, d, 8)
        return self.linear(tokens.flatten(-2))


class RunningNorm(nn.Module):
    """Shift and scale real vectors by the mean and the spread of all that were observed so far; clip them to +-10.

    The statistics are buffers, so they are saved and exported with a network. Only `observe` changes them, in place.
    Before it they change no vector, except by the clipping.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, components: int) -> None:
        super().__init__()
        # sums over millions of steps need float64
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(components, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(components, dtype=torch.float64))

    def forward(self, observation: Tensor) -> Tensor:  # (..., d) -> (..., d)
        shift, scale = self.mean.to(observation.dtype), (self.variance + EPSILON).rsqrt().to(observation.dtype)
        return ((observation - shift) * scale).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def observe(self, observation: Tensor) -> None:
        """Add observations (N, d) to the statistics."""
        new = observation.to(self.mean.dtype)
        variance, mean = torch.var_mean(new, 0, correction=0)  # (d,)
        self.count += len(new)
        share, change = len(new) / self.count, mean - self.mean
        self.variance.lerp_(variance, share).add_(share * (1 - share) * change.square())
        self.mean += share * change


class VectorEmbedding(nn.Module):
    """Embed a real vector by Linear(d, D), with `normalized` after a `RunningNorm`."""

    def __init__(self, components: int, width: int, normalized: bool = False) -> None:
        super().__init__()
        self.norm = RunningNorm(components) if normalized else nn.Identity()
        self.linear = nn.Linear(components, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        return self.linear(self.norm(observation.to(self.linear.weight.dtype)))


def channels_last(shape: tuple[int, ...]) -> bool:
    """Tell whether an image's channels are its last axis; else they are its first.

    The channels are the end axis that is shorter than both other axes. If neither end is, they are the end axis with
    1, 3 or 4 entries; and if that is none or both, the end axis without which the image is a square.

    Raises:
        ValueError: both ends may be the channels.
    """
    first, middle, last = shape
    shorter, colours = (first < min(middle, last), last < min(first, middle)), (first in COLOURS, last in COLOURS)
    for settled in (shorter, colours, (middle == last, first == middle)):
        if settled[0] != settled[1]:
            return settled[1]
    raise ValueError(
        f"the channels of an image of {first} x {middle} x {last} may be its first or its last axis; tell it by "
        "--image-axes chw or hwc, or pad or transpose it, so that one end axis is shorter than both others"
    )


class UnitScale(nn.Module):
    """Scale the values of images from their bounds to 0 .. 1, without parameters.

    Args:
        shape: of one image.
        integer: whether values are integers.
        bounds: min and max value, of all entries or of each; None: 0 .. 255 for integers, else 0 .. 1. An entry
            without finite bounds is not scaled.
    """

    low: Tensor | float
    factor: Tensor | float

    def __init__(self, shape: tuple[int, ...], integer: bool, bounds: PixelBounds | None = None) -> None:
        super().__init__()
        self.low, self.factor = 0.0, 1 / 255 if integer else 1.0
        if bounds is None:
            return
        low, high = (torch.tensor(each, dtype=torch.float64) for each in bounds)
        span = high - low
        bounded = (span > 0) & (span < UNBOUNDED)
        low, factor = torch.where(bounded | (span == 0), low, 0.0), torch.where(bounded, 1 / span, 1.0)
        if len(low) == 1:
            self.low, self.factor = float(low), float(factor)
            return
        del self.low, self.factor
        self.register_buffer("low", low.float().reshape(shape), persistent=False)
        self.register_buffer("factor", factor.float().reshape(shape), persistent=False)

    def forward(self, images: Tensor, dtype: torch.dtype) -> Tensor:  # (N, ...) -> (N, ...)
        if isinstance(self.low, float) and self.low == 0.0:
            return images.to(dtype) * self.factor
        wide = images.to(torch.promote_types(dtype, torch.float32))  # in half precision large numbers would be infinite
        return ((wide - self.low) * self.factor).to(dtype)


class ImageEmbedding(nn.Module):
    """Embed an image: two 3x3 convolutions below 36 pixels, else the 8-4-3 stack of DQN (Mnih et al. 2015).

    Values are scaled from their `bounds` to 0 .. 1, see `UnitScale`. `last` tells whether the channels are the last
    axis (None: by the sizes, see `channels_last`).
    """

    def __init__(
        self, shape: tuple[int, ...], width: int, integer: bool, bounds: PixelBounds | None = None,
        last: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.channels_last = channels_last(shape) if last is None else last
        height, image_width, channels = shape if self.channels_last else (shape[1], shape[2], shape[0])
        self.scale = UnitScale(shape, integer, bounds)
        # channels, kernel, stride, padding
        small, large = ((32, 3, 1, 1), (64, 3, 2, 1)), ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
        layers: list[nn.Module] = []
        inputs = channels
        for outputs, kernel, stride, padding in small if min(height, image_width) < 36 else large:
            layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU()]
            inputs = outputs
        self.convolutions = nn.Sequential(*layers)
        flat = deepcopy(self.convolutions).to("meta")(torch.empty(1, channels, height, image_width, device="meta"))
        self.linear = nn.Linear(flat.numel(), width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, H, W, C) or (B, T, C, H, W) -> (B, T, D)
        frames = self.scale(observation.flatten(0, 1), self.linear.weight.dtype)
        if self.channels_last:
            frames = frames.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(frames).flatten(1)).unflatten(0, observation.shape[:2])


class RowEmbedding(nn.Module):
    """Embed a row of several entries, each by its own embedding, and sum them.

    The sum equals one linear map of the joined features of all entries. Numbers after the entries are not embedded.

    Args:
        entries: the shape and the embedding of each entry, in the order of the row.
    """

    def __init__(self, entries: Sequence[tuple[tuple[int, ...], nn.Module]]) -> None:
        super().__init__()
        self.shapes = [shape for shape, _ in entries]
        self.entries = nn.ModuleList(embedding for _, embedding in entries)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, n) -> (B, T, D)
        first, total = 0, None
        for shape, embedding in zip(self.shapes, self.entries, strict=True):
            last = first + math.prod(shape)
            embedded = embedding(observation[..., first:last].unflatten(-1, shape))
            first, total = last, embedded if total is None else total + embedded
        assert total is not None
        return total


class ActionHistoryEmbedding(nn.Module):
    """Embed the action that led to each observation, a_{t-1}; index A means "no action yet" and gives zeros.

    Replay and acting both store the previous action beside its observation, so that training and acting see the same
    pairs (the published code shifts them once too often when acting).
    """

    def __init__(self, num_actions: int, width: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.table = nn.Embedding(num_actions, width)

    def forward(self, previous_action: Tensor) -> Tensor:  # (B, T) -> (B, T, width)
        known = previous_action < self.num_actions
        vectors = self.table(previous_action.clamp(max=self.num_actions - 1).int())
        return vectors * known.unsqueeze(-1)
