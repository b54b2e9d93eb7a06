"""Small GLAM models with lively weights, random inputs, and tiny runs, for the tests of world_models/glam."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.settings import read_config
from world_models.glam.agent import ActorCritic
from world_models.glam.config import ActorCriticConfig, Engine, GlamConfig, GlamLearnerConfig, GlamModelConfig
from world_models.glam.imagination import Noise
from world_models.glam.model import GlamModel
from world_models.glam.replay import FrameBatch
from world_models.glam.train import adam, main, make_execution, model_losses

ACTIONS, SCREEN = 3, 8
PRESETS = {name: read_config(GlamConfig, f"glam/{name}").model for name in ("paper", "code", "fast")}
ENV = "--env Pixel/BlinkingCatch-v0 "
TINY = (
    f"--config glam/smoke {ENV}--grid 4 --balls 2 --screen 8 --num-envs 2 --width 8 --hidden 8 "
    "--learning-starts 32 --num-eval-envs 1 --evaluate-every 0 --log-every 16 --max-episode-steps 12"
)
GOLDEN = np.load(Path(__file__).parent / "data" / "glam" / "glam_losses.npz")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6}  # of recorded numbers, relative to the largest


def golden(name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A recorded array."""
    return torch.tensor(GOLDEN[name], dtype=dtype)


def close(ours: torch.Tensor, theirs: Any, dtype: torch.dtype) -> None:
    """Compare with recorded numbers."""
    wanted = torch.as_tensor(theirs)
    assert (ours.detach().double() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


def config(preset: str = "paper", **changes: Any) -> GlamModelConfig:
    """Eight wide, latents 3 x 4, frames of 8 x 8."""
    small = replace(
        PRESETS[preset], screen=SCREEN, channels=4, categoricals=3, classes=4, width=8, state_size=4, heads=2,
        bins=21, batch_length=12,
    )  # fmt: skip
    return replace(small, **changes)


def model(preset: str = "paper", seed: int = 0, **changes: Any) -> GlamModel:
    """In float64 and evaluation mode, with all weights disturbed, so that no term is too small to be missed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = GlamModel(config(preset, **changes), ACTIONS).double()
        with torch.no_grad():
            for parameter in built.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    return built.eval()


def agent(seed: int = 0, features: int = 20, **changes: Any) -> ActorCritic:
    """An agent on features of 3 x 4 + 8 numbers, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(ActorCriticConfig(**{"hidden": 16, "bins": 41, **changes}), features, ACTIONS).double()


def steps(rows: int, length: int, seed: int = 0, opens: float = 0.15) -> tuple[torch.Tensor, ...]:
    """Frames (B, T, 3, S, S), actions and openings (B, T), uniforms (B, T, G, C)."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randint(256, (rows, length, 3, SCREEN, SCREEN), dtype=torch.uint8, generator=generator)
    action = torch.randint(ACTIONS, (rows, length), generator=generator)
    first = torch.rand(rows, length, generator=generator) < opens
    noise = torch.rand(rows, length, 3, 4, generator=generator, dtype=torch.float64)
    return frames, action, first, noise


def parts(engine: Engine = "eager", device: str = "cpu", **changes: Any) -> tuple[Any, ...]:
    """Model, agent, optimisers and execution, in float32."""
    net, actor = model(**changes).float().to(device), agent().float().to(device)
    config = GlamLearnerConfig(learning_rate=1e-3)
    optimizers = [adam(net, config, engine == "cudagraph"), adam(actor, actor.config, engine == "cudagraph")]
    return net, actor, optimizers, make_execution(engine, net, actor, optimizers, config, "posterior")


def batch(rows: int = 3, time: int = 12, seed: int = 0) -> tuple[FrameBatch, torch.Tensor]:
    """What an update of the world model takes: a batch and uniforms (B, T, G, C) in float64."""
    frames, action, first, noise = steps(rows, time, seed)
    draws = torch.Generator().manual_seed(seed)
    reward, ended = torch.randn(rows, time, generator=draws) * 3, torch.rand(rows, time, generator=draws) < 0.2
    return FrameBatch(frames, action, reward, ended, first), noise


def loss(net: GlamModel, data: FrameBatch, noise: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a batch, and its parts."""
    return model_losses(net.predictions(data, noise), data, net.config)


def model_batch(seed: int = 0, device: str = "cpu") -> Any:
    """The same in float32 on a device."""
    data, noise = batch(seed=seed)
    return mapped(lambda x: x.to(device), (data, noise.float()))


def rollout_inputs(horizon: int = 4, seed: int = 0, device: str = "cpu") -> Any:
    """What imagining takes: windows of the replay, uniforms for their latents, and those of H steps."""
    data, noise = batch(5, 7, seed)
    drawn = torch.Generator().manual_seed(seed)
    latent, choice = torch.rand(horizon + 1, 5, 3, 4, generator=drawn), torch.rand(horizon, 5, 3, generator=drawn)
    return mapped(lambda x: x.to(device), (data, noise.float(), Noise(latent, choice)))


def flags(run: Path, *more: str, steps: int = 64) -> list[str]:
    """A command line of the training script."""
    tiny = TINY.replace(ENV, "") if "--env" in more else TINY
    return [*tiny.split(), "--run", str(run), "--total-steps", str(steps), *more]


def trained(folder: Path, *more: str, steps: int = 64) -> Path:
    """A run that has ended."""
    main(flags(folder, *more, steps=steps))
    return folder
