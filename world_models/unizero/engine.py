"""How planning and learning are executed: eagerly (the tested reference), compiled, or as captured CUDA graphs.

All execute the same: for a search, encoding, evaluating the root and expanding a node; for the learner, all of an
update from stored sequences to changed weights. A search's loop over simulations, and the choices inside its
trees, stay where `SearchConfig.backend` puts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.settings import Engine
from world_models.unizero.config import LearnerConfig
from world_models.unizero.learner import Metrics, learn, losses
from world_models.unizero.networks import WorldModel
from world_models.unizero.replay import Sequences
from world_models.unizero.search import Functions, outcome

BACKEND = "inductor"  # of torch.compile

Learn = Callable[[Sequences], Metrics]


class Planning(NamedTuple):
    """A model's functions for acting, in evaluation mode: encoding of observations, and the queries of a search."""

    encode: Callable[[Tensor], Tensor]
    functions: Functions


def make_planning(engine: Engine, model: WorldModel, backend: str = BACKEND) -> Planning:
    """Give a model's functions under the chosen engine; they follow its weights. `cudagraph` needs a CUDA device."""
    ask = partial(outcome, model)
    if engine == "cudagraph":
        return Planning(Captured(model.encode), Functions(Captured(model.root), Captured(ask), model.causal))
    if engine == "compile":
        compiled = partial(torch.compile, dynamic=False, backend=backend)
        asked = partial(compiled(outcome), model)
        return Planning(compiled(model.encode), Functions(compiled(model.root), asked, model.causal))
    return Planning(model.encode, Functions(model.root, ask, model.causal))


def make_learn(
    engine: Engine, model: WorldModel, target: WorldModel, optimizer: torch.optim.Optimizer, config: LearnerConfig,
    backend: str = BACKEND,
) -> Learn:  # fmt: skip
    """One update, `sequences -> metrics`, under the chosen engine; `cudagraph` needs a capturable optimiser."""
    loss = torch.compile(losses, dynamic=False, backend=backend) if engine == "compile" else losses

    def work(sequences: Sequences) -> Metrics:
        return learn(model, target, optimizer, sequences, config, loss)

    return Captured(work, (model, target), optimizer) if engine == "cudagraph" else work
