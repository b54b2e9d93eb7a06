"""Export a trained actor as files that do not need this package: a torch.export archive and an ONNX file."""

import io
import json
import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from dqn_memory.action_distributions import best
from dqn_memory.actors import Actor
from envs.spaces import Array


class GreedyStep(nn.Module):
    """One step of an actor as a function: the state is an argument and a result."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor, self.network = actor, actor.network

    def forward(self, observation: Tensor, action: Tensor, reset: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Compute outputs (N, O), the best action (N, ...) and the next state."""
        q, after = self.actor.step(observation, action, reset, state)
        return q, best(self.network.actions, q), *after


def export_actor(actor: Actor, observations: Array) -> tuple[bytes, bytes]:
    """Make the torch.export archive and the ONNX file of an actor, for observations like the given ones (2, ...)."""
    observation = torch.from_numpy(observations)
    state = [tensor.clone() for tensor in actor.state_tensors]  # a view, such as of an expanded row, cannot be exported
    arguments = observation, torch.zeros_like(actor.network.actions.none(2)), torch.zeros(2, dtype=torch.bool), *state
    names = "observation", "action", "reset", *(f"state_{index}" for index in range(len(state)))
    results = "q", "chosen", *(f"{name}_after" for name in names[3:])
    rows = {0: torch.export.Dim("batch")}
    dynamic = rows, rows, rows, *([(rows,) * len(state)] if state else [])
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that torchvision is missing, which no agent needs
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code
            program = torch.export.export(GreedyStep(actor), arguments, dynamic_shapes=dynamic)
            model = torch.onnx.export(program, input_names=names, output_names=results, verbose=False)
    finally:
        logger.setLevel(level)
    inputs = {
        name: [str(each.dtype)[6:], "batch", *each.shape[1:]] for name, each in zip(names, arguments, strict=True)
    }
    facts: dict[str, Any] = {"inputs": inputs, "outputs": results}
    spec = actor.network.spec
    if spec.entries:  # the columns of each entry in an observation, and the number of flags of legal actions after them
        places = zip(spec.entries, spec.parts, strict=True)
        facts["observation"] = {name: [place.start, place.stop] for (name, _), (place, _) in places}
        facts["flags"] = spec.flags
    interface, archive = json.dumps(facts), io.BytesIO()
    torch.export.save(program, archive, extra_files={"interface": interface})
    assert model is not None
    model.model.metadata_props["interface"] = interface
    return archive.getvalue(), model.model_proto.SerializeToString()
