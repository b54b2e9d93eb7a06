"""Save and load the changing parts of objects in a checkpoint, by the names of their attributes.

A part is a tensor, a list or tuple of tensors, a random generator, or an object that has a `state_dict` itself.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map

from envs.seeding import restore_generator


class Stateful:
    """An object whose state is the attributes that its class lists as `state_names`."""

    state_names: ClassVar[tuple[str, ...]]
    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        """Give the state by name."""
        return save_parts(self, self.state_names)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`, perhaps on another device."""
        load_parts(self, state, self.device)


def save_parts(owner: object, names: Iterable[str]) -> dict[str, Any]:
    """Give the state of the attributes `names` of an object."""
    return {name: _saved(getattr(owner, name)) for name in names}


def load_parts(owner: object, state: Mapping[str, Any], device: torch.device) -> None:
    """Put the parts of a state back into the attributes of an object; tensors move to `device`."""
    for name, value in state.items():
        part: Any = getattr(owner, name, None)
        if isinstance(part, torch.Generator):
            restore_generator(part, value)
        elif hasattr(part, "load_state_dict"):
            part.load_state_dict(value)
        else:
            setattr(owner, name, tree_map(lambda tensor: tensor.to(device), value))


def _saved(part: Any) -> Any:
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.state_dict() if hasattr(part, "state_dict") else part
