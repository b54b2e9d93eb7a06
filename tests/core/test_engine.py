"""The engines compute the same function."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import filled_replay, network

from dqn_memory.config import LearnerConfig
from dqn_memory.runs.settings import set_tf32
from dqn_memory.train import QTrainer, make_optimizer, make_update, sample, td_loss

CONFIG = LearnerConfig(batch_size=8, gamma=0.9, learning_rate=1e-2)


def steps(engine, architecture, device="cpu", updates=3, **changes):
    """Losses and last parameters of a few updates on the same batches."""
    net, target = (network(architecture, seed, **changes).float().to(device) for seed in (0, 1))
    config = replace(CONFIG, n_step=2)
    optimizer = make_optimizer(net, config, capturable=device == "cuda")
    update = make_update(engine, net, target, optimizer, config)
    replay, generator = filled_replay([[9, 7], [4, 12]]), torch.Generator().manual_seed(0)
    losses = []
    for _ in range(updates):
        batch = sample(replay, config, 6, config.contexts_per_window(net), generator)
        moved = {name: value.to(device) for name, value in vars(batch).items()}
        losses.append(float(update(replace(copy.copy(batch), **moved))["losses/td_loss"]))
    return losses, [p.detach().cpu() for p in net.parameters()]


def assert_same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.long
def test_compiled_updates_equal_eager_ones():
    assert_same(steps("compile", "dtqn4", layers=1), steps("eager", "dtqn4", layers=1))


@pytest.mark.parametrize("architecture", ["dtqn4", "gtrxl"])
def test_the_compiler_sees_the_loss_in_one_piece(architecture):
    net, target = (network(architecture, seed).float() for seed in (0, 1))
    batch = sample(
        filled_replay([[9, 7], [4, 12]]), CONFIG, 6, CONFIG.contexts_per_window(net), torch.Generator().manual_seed(0)
    )
    whole = torch.compile(td_loss, backend="eager", fullgraph=True)  # a break would raise
    assert torch.equal(whole(net, target, batch, CONFIG)[0], td_loss(net, target, batch, CONFIG)[0])


def test_training_computes_in_full_float32():
    torch.backends.cudnn.allow_tf32 = True  # torch's own choice for recurrent layers and convolutions
    QTrainer.configure(["--env", "POMDP/CarFlag-v0"]).compute.start()
    assert not torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("architecture", ["dtqn4", "dgfqn", "dbgfqn", "drqn", "gtrxl"])
def test_captured_updates_equal_eager_ones(architecture):
    set_tf32(False)  # as training does
    eager, captured = (steps(engine, architecture, "cuda", 6) for engine in ("eager", "cudagraph"))
    assert_same(captured, eager)
    assert_same(eager, steps("eager", architecture, "cpu", 6))
