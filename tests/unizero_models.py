"""Small world models with nothing at zero, and random windows, for the tests of world_models/unizero."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dqn_memory.blocks import PRIORS, PriorConfig
from dqn_memory.network import ObservationSpec
from world_models.unizero.config import EncoderConfig, UniZeroLearnerConfig, UniZeroModelConfig
from world_models.unizero.dynamics import History
from world_models.unizero.networks import UniZeroModel, build_unizero
from world_models.unizero.replay import Sequences

VECTOR = ObservationSpec("continuous", (4,))
TOKENS = ObservationSpec("discrete", (3,), 6, torch.uint8)
IMAGE = ObservationSpec("image", (64, 64, 3), 0, torch.uint8)
ACTIONS = 3
LEARNER = UniZeroLearnerConfig(batch_size=4, n_step=2, learning_rate=1e-2)
PRIOR = PriorConfig(mu=1.6, sigma=1.3, span=2.3, ramp=1.5, local_window=2)
DEEP = {"layers": 3, "context": 10, "noise": 0.2}
CLOSE = {"rtol": 0, "atol": 1e-12}
FORMS = [  # of dynamics that know a history
    *(pytest.param(prior, {}, id=prior) for prior in PRIORS),
    pytest.param("causal", {"dynamics": "gru"}, id="gru"),
    pytest.param("gaussian", DEEP, id="deep"),
]
MUZERO = pytest.param("causal", {"dynamics": "recurrent"}, id="muzero")


def config(prior: str | PriorConfig = "causal", **changes: Any) -> UniZeroModelConfig:
    """Sixteen wide, two heads; every prior has something to hide in seven tokens."""
    chosen = prior if isinstance(prior, PriorConfig) else replace(PRIOR, kind=prior)
    small = UniZeroModelConfig(
        width=16, heads=2, layers=2, horizon=5, support=10, dropout=0.0, prior=chosen,
        encoder=EncoderConfig(channels=4, hidden=12),
    )  # fmt: skip
    return replace(small, **changes)


def model(
    prior: str | PriorConfig = "causal",
    spec: ObservationSpec = VECTOR,
    seed: int = 0,
    noise: float = 0.4,
    **changes: Any,
) -> UniZeroModel:
    """In float64 and eval mode, all parameters but the priors' disturbed: zero heads would hide every error."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = build_unizero(config(prior, **changes), spec, ACTIONS).double()
        with torch.no_grad():
            for name, parameter in built.named_parameters():
                if ".prior." in name:
                    parameter += 0.1 * torch.arange(parameter.numel())  # heads that differ
                else:
                    parameter += noise * torch.randn_like(parameter)
    return built.eval()


def simplex(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random latents (*shape, 16)."""
    x = 2 * torch.randn(*shape, 2, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.softmax(-1).flatten(-2)


def actions(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(ACTIONS, shape, generator=torch.Generator().manual_seed(seed))


def windows(pairs: int, seed: int = 1) -> History:
    """One row for each count 0 .. W; the padding is full of impossible values."""
    count = torch.arange(pairs + 1)
    padding = torch.arange(pairs) >= count[:, None]
    latent = torch.where(padding[..., None], torch.nan, simplex(pairs + 1, pairs, seed=seed))
    return History(latent, torch.where(padding, 10**9, actions(pairs + 1, pairs, seed=seed)), count)


def stored(spec, horizon=5, n=2, rows=4, seed=0):
    """Sequences of an endless episode, one that ends, one that is cut, and one that is cut by its segment."""
    draws = torch.Generator().manual_seed(seed)
    reach = horizon + n
    left = torch.tensor([reach, 3, 4, reach])[:rows]
    size = (rows, reach, *spec.shape)
    whole = torch.randint(256 if spec.kind == "image" else 2, size, generator=draws)
    return Sequences(
        observation=whole.to(spec.dtype),
        action=torch.randint(ACTIONS, (rows, reach), generator=draws),
        reward=torch.randn(rows, reach, generator=draws),
        policy=torch.rand(rows, horizon, ACTIONS, generator=draws).softmax(-1),
        mask=torch.arange(horizon) < torch.tensor([horizon, 3, 4, 2])[:rows, None],
        left=left,
        truncated=torch.tensor([False, False, True, False])[:rows],
    )


def flags(run, *more, steps=200):
    """The command line of a tiny run."""
    return ["--config", "unizero/smoke", "--run", str(run), "--total-steps", str(steps), "--num-eval-envs", "1", *more]
