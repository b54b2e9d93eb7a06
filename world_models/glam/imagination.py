"""Imagine rollouts with the world model, from contexts of the replay (GLAM, section 3.4 and algorithm 1).

Nothing is decoded to pixels. All random numbers are uniforms. A memory is a window of the last K steps, or a carried
state. It stores nothing itself: the caller passes the state in and gets the next one. Acting uses the same memories.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from world_models.distributions import upcast
from world_models.glam.config import MemoryKind
from world_models.glam.encoder import gumbel, uniforms
from world_models.glam.model import GlamModel
from world_models.glam.sequences import SequenceModel

Policy = Callable[[Tensor], Tensor]  # features (B, Z + D) -> action logits (B, A)
StartFrom = Literal["posterior", "prior"]


@dataclass(frozen=True)
class StepWindow:
    """The last K steps of B rows, oldest first."""

    sample: Tensor  # (B, K, Z)
    action: Tensor  # (B, K) int64
    first: Tensor  # (B, K) bool


class WindowMemory:
    """The last K steps, all read again at each step, as in training.

    There is nothing before the window's first step, as at the start of a training sequence; `first` hides steps of the
    episode before. A row that opens an episode is filled with copies of its first step. Models that reset at episode
    starts do not read them; for the others (as released) all differences between them are 0.
    """

    def __init__(self, model: GlamModel, length: int) -> None:
        self.model, self.length = model, length

    def start(self, rows: int) -> Any:
        """Return the state of B rows without a step: a window of zeros."""
        like = next(self.model.parameters())
        flags = torch.zeros(rows, self.length, dtype=torch.bool, device=like.device)
        return StepWindow(like.new_zeros(rows, self.length, self.model.config.latent), flags.long(), flags)

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, Any]:
        """Read steps (B, T, Z), (B, T), (B, T): return the memory h (B, D) and the state after them.

        The window has the last K steps; nothing is before them if there are fewer.
        """
        window = self._filled(*(each[:, -self.length :] for each in (sample, action, first)))
        return self._read(window), window

    def push(self, sample: Tensor, action: Tensor, opens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Append a step (B, Z), (B,) and drop the oldest: return h (B, D) after it and the next state.

        `opens` (B,) bool marks the rows that forget everything before the step: all rows in the first step after
        `start`.
        """
        one = opens.unsqueeze(1)  # (B, 1)
        window = StepWindow(
            _appended(torch.where(one.unsqueeze(2), sample.unsqueeze(1), state.sample), sample),
            _appended(torch.where(one, action.unsqueeze(1), state.action), action),
            _appended(state.first, opens),
        )
        return self._read(window), window

    def _filled(self, sample: Tensor, action: Tensor, first: Tensor) -> StepWindow:
        """Fill up fewer than K steps with copies of the oldest before it; the oldest then opens the episode."""
        missing = self.length - action.shape[1]
        if not missing:
            return StepWindow(sample, action, first)
        opens = torch.cat((torch.ones_like(first[:, :1]), first[:, 1:]), 1)
        oldest = (each[:, :1].repeat_interleave(missing, 1) for each in (sample, action, torch.zeros_like(first)))
        return StepWindow(*(torch.cat(pair, 1) for pair in zip(oldest, (sample, action, opens), strict=True)))

    def _read(self, window: StepWindow) -> Tensor:
        return self.model.sequence(window.sample, window.action, window.first).h[:, -1]


Memory = WindowMemory | SequenceModel


def make_memory(model: GlamModel, kind: MemoryKind, length: int) -> Memory:
    """Make a memory: a window of K = `length` steps, or the state that the sequence model carries from step to step.

    A carried state depends on all steps since the start of the episode or of the context.
    """
    return WindowMemory(model, length) if kind == "window" else model.sequence_model


def _appended(old: Tensor, new: Tensor) -> Tensor:
    """Drop the oldest of (B, K, ...) and append (B, ...)."""
    return torch.cat((old[:, 1:], new.unsqueeze(1)), 1)


@dataclass(frozen=True)
class Context:
    """K real steps of B rows, and the newest frame after them, unless the rollout starts from the prior."""

    sample: Tensor  # (B, K, Z)
    action: Tensor  # (B, K) int64
    first: Tensor  # (B, K) bool, steps that open an episode
    newest: Tensor | None = None  # (B, Z); None: sample it from the prior
    opens: Tensor | None = None  # (B,) bool, True if `newest` opens an episode; None without `newest`


@dataclass(frozen=True)
class Noise:
    """Uniforms in [0, 1) for H steps."""

    latent: Tensor  # (H + 1, B, G, C); the first row is for a start from the prior
    action: Tensor  # (H, B, A)

    @classmethod
    def draw(cls, model: GlamModel, rows: int, horizon: int, generator: torch.Generator) -> Self:
        """Draw uniforms on the generator's device."""
        return cls(model.noise((horizon + 1, rows), generator), uniforms((horizon, rows, model.num_actions), generator))


@dataclass(frozen=True)
class Rollouts:
    """H imagined steps of B rows, with the states before each step and after the last."""

    sample: Tensor  # (H + 1, B, Z), z_t
    h: Tensor  # (H + 1, B, D), h_{t-1}: the memory of all steps before
    action: Tensor  # (H, B) int64
    reward: Tensor  # (H, B) float32 or wider
    terminated: Tensor  # (H, B) bool

    def features(self) -> Tensor:
        """Return the inputs of actor and critic, (H + 1, B, Z + D)."""
        return torch.cat((self.sample, self.h), -1)


@torch.no_grad()
def encode_context(
    model: GlamModel, frames: Tensor, action: Tensor, first: Tensor, noise: Tensor, start_from: StartFrom = "posterior"
) -> Context:
    """Encode windows of the replay; leaves the model in evaluation mode.

    Frames are (B, L, 3, S, S) uint8, actions and `first` (B, L), uniforms (B, L, G, C). With `posterior` the rollout
    starts from the last frame, so K = L - 1 and the last action is not used. With `prior` (as released) it starts from
    the model's prediction of the frame after all L = K.
    """
    model.eval()
    sample = model.sample(model.encode(frames), noise)  # (B, L, Z)
    if start_from == "prior":
        return Context(sample, action, first)
    opens = first[:, -1] & model.config.reset_at_episode_start
    return Context(sample[:, :-1], action[:, :-1], first[:, :-1], sample[:, -1], opens)


@torch.no_grad()
def imagine(model: GlamModel, policy: Policy, context: Context, noise: Noise, kind: MemoryKind = "window") -> Rollouts:
    """Let the policy act in the model for H steps.

    `window` reads the last K steps at every step (the paper); `carried` continues from the recurrent state after the
    context. Episodes that end in a rollout continue; their ends cut the returns. If the newest frame opens an episode,
    its memory is 0, as in acting. Leaves the model in evaluation mode.
    """
    model.eval()
    memory = make_memory(model, kind, context.action.shape[1])
    h, state = memory.prefill(context.sample, context.action, context.first)  # (B, D)
    sample, opens = context.newest, context.opens
    if sample is None or opens is None:
        sample, opens = model.sample(model.prior_head(h), noise.latent[0]), torch.zeros_like(context.first[:, 0])
    h = torch.where(opens.unsqueeze(1), 0, h)
    samples, memories, actions = [sample], [h], []
    for t in range(len(noise.action)):
        action = sample_action(policy(torch.cat((sample, h), -1)), noise.action[t])  # (B,)
        h, state = memory.push(sample, action, opens, state)
        sample = model.sample(model.prior_head(h), noise.latent[t + 1])
        opens = torch.zeros_like(opens)
        samples.append(sample)
        memories.append(h)
        actions.append(action)
    memory_before = torch.stack(memories)  # (H + 1, B, D)
    after = memory_before[1:]  # (H, B, D): the memory after a step predicts its reward and end
    return Rollouts(
        sample=torch.stack(samples),
        h=memory_before,
        action=torch.stack(actions),
        reward=model.reward(after),
        terminated=model.termination(after) > 0,
    )


def sample_action(logits: Tensor, noise: Tensor) -> Tensor:
    """Draw actions (...) from softmax(logits) with uniforms in [0, 1), both (..., A)."""
    return (upcast(logits) + gumbel(noise)).argmax(-1)
