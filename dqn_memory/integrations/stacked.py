"""Memories between a linear map and a learner's heads, in the form in which other libraries take a recurrence."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from dqn_memory.blocks import State, build
from dqn_memory.blocks.block import Device
from dqn_memory.runs.errors import require


class StackedMemory(nn.Module):
    """A linear map to `width`, then `layers` memories; the output of each is added to its input.

    `memory` is a name of `dqn_memory.blocks.MEMORY`, and `options` are the keywords of `dqn_memory.blocks.build`.

    Raises:
        UserError: there is no layer, or the memory keeps no state.
        ValueError: the name or an option is unknown or invalid.
    """

    def __init__(
        self, features: int, width: int, memory: str, layers: int = 1, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        require(layers >= 1, f"{layers} layers of memory '{memory}' were asked for; give 1 or more")
        blocks = [build(memory, width, **(options or {})) for _ in range(layers)]
        require(blocks[0].stateful, f"memory '{memory}' reads whole windows and cannot act step by step; take 'gru'")
        self.features, self.width = features, width
        self.enter, self.memories = nn.Linear(features, width), nn.ModuleList(blocks)
        self.parts = len(blocks[0].initial_state(1, "meta"))  # of the state of one memory

    def initial_state(self, batch: int, device: Device = None) -> State:
        """Make the states of all memories, one after the other."""
        states: list[State] = [block.initial_state(batch, device) for block in self.memories]  # type: ignore[operator]
        return tuple(part for state in states for part in state)

    def sequence(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """Encode x (B, T, features) that follows `state`: outputs (B, T, width), and the state after them.

        A position begins an episode where `reset` (B, T) is true.
        """
        return self._go_on("sequence", x, state, reset)

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """Encode one position x (B, features), as `sequence`: the output (B, width)."""
        return self._go_on("step", x, state, reset)

    def _go_on(self, form: Literal["sequence", "step"], x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        x, after = self.enter(x), []
        for index, block in enumerate(self.memories):
            before = state[index * self.parts : (index + 1) * self.parts]
            y, own = getattr(block, form)(x, before, reset)
            x = x + y
            after.extend(own)
        return x, tuple(after)
