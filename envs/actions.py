"""What an agent chooses at each step: a number, or a row of choices, switches and real numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from envs.errors import UserError, require
from envs.spaces import Array, Decode, discrete_actions, integer_ranges

Form = Literal["numbered", "clip", "tanh"]  # one list of all actions; or rows of parts, how real ones meet bounds


@dataclass(frozen=True)
class InterfaceConfig:
    """What an agent reads of an environment (observations, masks of actions), and how it gives actions."""

    observation_key: str | None = None  # the entry of a dictionary that it reads; None: all entries
    form: Form = "numbered"
    masks: bool = False  # observations are rows that end with the flags of legal choices, see `envs.rows`


PLAIN = InterfaceConfig()


class Constants(NamedTuple):
    """Tensors of an action form."""

    sizes: Tensor  # (C,) float32, values of each choice
    low: Tensor  # (k,) float32, of each real number
    high: Tensor
    bounded: Tensor  # (k,), which real numbers have two bounds


@dataclass(frozen=True)
class Actions:
    """The form of an agent's actions.

    Numbered actions are 0 .. count - 1, tensors (N,) of int64. Other actions are rows (N, a) of float32: the choices,
    the switches (0 or 1), and the real numbers. A real number with two bounds is scaled: -1 and 1 stand for them.
    """

    count: int = 0  # of numbered actions; 0: actions are rows
    sizes: tuple[int, ...] = ()  # values of each choice
    switches: int = 0
    low: tuple[float, ...] = ()  # of each real number
    high: tuple[float, ...] = ()
    squash: Form = "clip"  # how real numbers are brought between two bounds

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action as a tensor."""
        return () if self.count else (len(self.sizes) + self.switches + len(self.low),)

    @property
    def outputs(self) -> int:
        """How many numbers describe a policy: logits, and of each real number the mean and the log of its spread."""
        return self.count or sum(self.sizes) + self.switches + 2 * len(self.low)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Name the numbers that describe a policy."""
        if self.count:
            return tuple(f"action {index}" for index in range(self.count))
        choices = [f"choice {part} = {value}" for part, size in enumerate(self.sizes) for value in range(size)]
        reals = [f"{what} {index}" for what in ("mean", "log spread") for index in range(len(self.low))]
        return *choices, *(f"switch {index}" for index in range(self.switches)), *reals

    @property
    def words(self) -> str:
        """Name the actions in a sentence."""
        if self.count:
            return f"{self.count} actions"
        bounds = "" if not self.low else f" from {min(self.low):g} to {max(self.high):g}"
        return (
            f"actions of {len(self.sizes)} choices, {self.switches} switches and {len(self.low)} real numbers{bounds}"
        )

    def constants(self, device: torch.device) -> Constants:
        """Give the numbers of the form as tensors; they are made once, as no CUDA graph can make them."""
        return _constants(self, device)

    def none(self, rows: int, device: torch.device | str | None = None) -> Tensor:
        """Make N times "no action yet": the number A, or rows of NaN."""
        if self.count:
            return torch.full((rows,), self.count, device=device)
        return torch.full((rows, *self.shape), math.nan, device=device)

    def without(self, action: Tensor, begins: Tensor) -> Tensor:
        """Replace actions (N, ...) by "no action yet" where an episode begins (N,)."""
        if self.count:
            return torch.where(begins, self.count, action)
        return torch.where(begins.unsqueeze(-1), math.nan, action)

    def random(self, u: Tensor, legal: Tensor | None = None) -> Tensor:
        """Turn uniforms into random actions: (N,) into numbers, (N, a) into rows.

        With `legal` (N, c), flags of all values of the choices, only legal values are drawn.
        """
        if self.count:
            return (u * self.count).long() if legal is None else _drawn(u, legal)
        choices, switches, reals = self.split(u)
        values = (choices * self.constants(u.device).sizes).floor()
        if legal is not None:
            parts = zip(choices.unbind(-1), legal.split(self.sizes, -1), strict=True)
            values = torch.stack([_drawn(*part) for part in parts], -1).to(u.dtype)
        return torch.cat((values, (switches < 0.5).to(u.dtype), 2 * reals - 1), -1)

    def allowed(self, action: Tensor, legal: Tensor) -> Tensor:
        """Tell which actions (N, ...) have legal values only, (N,), by the flags (N, c)."""
        if self.count:
            return legal.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        chosen = zip(self.split(action)[0].long().split(1, -1), legal.split(self.sizes, -1), strict=True)
        return torch.cat([flags.gather(-1, value) for value, flags in chosen], -1).all(-1)

    def all_legal(self, flags: Tensor) -> Tensor:
        """Replace the flags (..., c) of choices without a legal value, as padding has them, by true."""
        parts = (flags,) if self.count else flags.split(self.sizes, -1)
        return torch.cat([part | ~part.any(-1, keepdim=True) for part in parts], -1)

    def split(self, rows: Any) -> tuple[Any, Any, Any]:
        """Split rows (..., a) into choices, switches and real numbers."""
        first, second = len(self.sizes), len(self.sizes) + self.switches
        return rows[..., :first], rows[..., first:second], rows[..., second:]

    def reals(self, rows: Tensor) -> Tensor:
        """Give the real numbers of rows (N, a) in the environment's units, (N, k)."""
        given = self.split(rows)[2]
        _, low, high, bounded = self.constants(given.device)
        unit = given.tanh() if self.squash == "tanh" else given.clamp(-1, 1)
        half = torch.where(bounded, high, 0.0) / 2 - torch.where(bounded, low, 0.0) / 2
        scaled = torch.where(bounded, low, 0.0) + half * (unit + 1)
        return torch.where(bounded, scaled, given).clamp(low, high)

    def inside(self, real: Tensor) -> Tensor:
        """Give real numbers (..., k) as an agent reads them: between -1 and 1 if they have two bounds."""
        unit = real.tanh() if self.squash == "tanh" else real.clamp(-1, 1)
        return torch.where(self.constants(real.device).bounded, unit, real)


def _drawn(u: Tensor, legal: Tensor) -> Tensor:
    """Draw one of the legal values (N, n) by uniforms (N,)."""
    count = legal.sum(-1)
    place = (u * count).long().minimum(count - 1)
    return (legal.cumsum(-1) > place.unsqueeze(-1)).long().argmax(-1)


@cache
def _constants(actions: Actions, device: torch.device) -> Constants:
    sizes, low, high = (torch.tensor(each, device=device) for each in (actions.sizes, actions.low, actions.high))
    return Constants(sizes.float(), low.float(), high.float(), low.isfinite() & high.isfinite())


def action_form(space: gymnasium.Space[Any], form: Form = "numbered") -> tuple[Actions, Decode]:
    """Give the form of an agent's actions, and the function from them to the environment's actions.

    The function takes one action or a batch, as numbers or arrays.

    Raises:
        UserError: the space is of another kind, holds no number, or has too many combinations to be numbered.
    """
    if form == "numbered" or isinstance(space, spaces.Discrete):
        count, decode = discrete_actions(space)
        return Actions(count), decode
    leaves: list[tuple[gymnasium.Space[Any], Array]] = []
    build = _builder(space, leaves)
    sizes = [
        int(n) for leaf, _ in leaves if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for n in _sizes(leaf)
    ]
    switches = sum(math.prod(leaf.shape) for leaf, _ in leaves if isinstance(leaf, spaces.MultiBinary))
    boxes = [leaf for leaf, _ in leaves if isinstance(leaf, spaces.Box)]
    low, high = (tuple(float(x) for box in boxes for x in getattr(box, end).flatten()) for end in ("low", "high"))
    actions = Actions(0, tuple(sizes), switches, low, high, form)
    require(actions.shape[0] > 0, f"The actions {space} hold no number, so there is nothing to choose.")
    places = {"choice": 0, "switch": len(sizes), "real": len(sizes) + switches}
    for leaf, columns in leaves:
        kind = (
            "real" if isinstance(leaf, spaces.Box) else "switch" if isinstance(leaf, spaces.MultiBinary) else "choice"
        )
        columns += places[kind]
        places[kind] += len(columns)

    def decode_rows(action: Any) -> Any:
        rows = torch.as_tensor(np.asarray(action, np.float32))
        real = actions.reals(rows)
        return build(torch.cat((rows[..., : actions.shape[0] - real.shape[-1]], real), -1).numpy())

    return actions, decode_rows


def _builder(space: gymnasium.Space[Any], leaves: list[tuple[gymnasium.Space[Any], Array]]) -> Callable[[Array], Any]:
    """Make the function from rows (..., a) to actions of a space, and list the leaves of the space with their columns.

    The columns of each leaf count from 0 here; the caller moves them to their places, in these arrays.
    """
    if isinstance(space, spaces.Dict):
        named = {name: _builder(entry, leaves) for name, entry in space.items()}
        return lambda rows: {name: build(rows) for name, build in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = [_builder(entry, leaves) for entry in space]
        return lambda rows: tuple(build(rows) for build in parts)
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        raise UserError(
            f"The actions must be Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these, not {space}."
        )
    shape, dtype = space.shape or (), space.dtype
    count = math.prod(shape)
    columns = np.arange(count)
    leaves.append((space, columns))
    start: Any = space.start.flatten() if isinstance(space, spaces.MultiDiscrete) else getattr(space, "start", 0)
    whole = np.dtype(dtype).kind in "biu"

    def build(rows: Array) -> Any:
        values = rows[..., columns]
        values = (np.rint(values) if whole else values).astype(dtype) + np.asarray(start, dtype)
        return values.reshape((*rows.shape[:-1], *shape))[()]

    return build


def _sizes(space: Any) -> Array:
    ranges = integer_ranges(space)
    assert ranges is not None
    return ranges[0]
