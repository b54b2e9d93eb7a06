"""The memories inside TorchRL: a collector acts by steps, a loss reads whole sequences, and both compute the same."""

import pytest
import torch
from torch import nn

from dqn_memory.blocks import MEMORY, build

pytest.importorskip("torchrl")
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from dqn_memory.integrations.torchrl import MemoryModule

STREAMING = [name for name in MEMORY if build(name, 8).stateful]
EACH = pytest.mark.parametrize("memory", STREAMING)


def module(memory, layers=1, **settings):
    return MemoryModule(4, 8, memory, layers, in_key="observation", out_key="hidden", **settings)


def actor_and_critic(memory):
    body = module(memory)
    logits = TensorDictModule(nn.Linear(8, 2), ["hidden"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(body, logits), ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )
    return body, actor, TensorDictSequential(body, ValueOperator(nn.Linear(8, 1), in_keys=["hidden"]))


def collected(body, actor, batches=2):
    """Batches (3, 40) of CartPole under a new policy: episodes of some twenty steps."""
    env = TransformedEnv(
        SerialEnv(3, lambda: GymEnv("CartPole-v1")), Compose(InitTracker(), body.make_tensordict_primer())
    )
    collector = Collector(env, actor, frames_per_batch=120, total_frames=batches * 120)
    yield from collector
    collector.shutdown()


def sequences(rows=2, time=10):
    begins = torch.zeros(rows, time, 1, dtype=torch.bool)
    begins[:, 0] = begins[:, 4] = True
    return TensorDict({"observation": torch.randn(rows, time, 4), "is_init": begins}, [rows, time])


@EACH
def test_a_sequence_computes_what_a_collector_did_by_steps(memory):
    torch.manual_seed(1)
    body, actor, _ = actor_and_critic(memory)
    for data in collected(body, actor):  # the second batch begins inside of episodes
        assert data.shape == (3, 40) and data["is_init"][:, 1:].any()
        with torch.no_grad(), set_recurrent_mode(True):
            again = actor(data.exclude("logits", "hidden"))
        torch.testing.assert_close(again["logits"], data["logits"], atol=1e-5, rtol=1e-4)


@EACH
def test_the_past_of_an_episode_never_reaches_the_next(memory):
    body, data = module(memory, default_recurrent_mode=True), sequences()
    other = data.clone()
    other["observation"][:, :4] += 1
    with torch.no_grad():
        before, after = body(data)["hidden"], body(other)["hidden"]
    torch.testing.assert_close(before[:, 4:], after[:, 4:])
    assert (before[:, :4] != after[:, :4]).any()


@EACH
def test_ppo_trains_every_part(memory):
    torch.manual_seed(1)
    body, actor, critic = actor_and_critic(memory)
    loss, advantage = ClipPPOLoss(actor, critic), GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    (data,) = collected(body, actor, batches=1)
    with torch.no_grad():
        advantage(data)
    sum(value for key, value in loss(data).items() if key.startswith("loss_")).backward()
    gradients = [parameter.grad for parameter in loss.parameters()]
    assert len(gradients) > 6
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_a_step_takes_any_batch(batch):
    body = module("attention", layers=2)
    first = TensorDict({"observation": torch.randn(*batch, 4), "is_init": torch.ones(*batch, 1, dtype=bool)}, batch)
    after = body(first)
    assert after["hidden"].shape == (*batch, 8)
    assert after["next", "memory_state_3"].dtype == torch.int64 and (after["next", "memory_state_3"] == 1).all()


def test_a_sequence_goes_on_from_the_state_before_its_first_step():
    body, data = module("gru"), sequences()
    with torch.no_grad(), set_recurrent_mode(True):
        whole = body(data.clone())["hidden"]
    step = data[:, 0].clone()
    for t in range(6):
        step.update(data[:, t])
        after = body(step)
        step = TensorDict({"memory_state_0": after["next", "memory_state_0"]}, [2])
    rest = data[:, 6:].clone()
    rest["memory_state_0"] = step["memory_state_0"][:, None].expand(2, 4, 8)
    with torch.no_grad(), set_recurrent_mode(True):
        torch.testing.assert_close(body(rest)["hidden"], whole[:, 6:])
        torch.testing.assert_close(body(data[0].clone())["hidden"], whole[0])


@pytest.mark.parametrize(("memory", "layers"), [("bigru", 1), ("gru", 0), ("gro", 1)])
def test_what_cannot_act_is_refused(memory, layers):
    with pytest.raises(ValueError, match=memory if memory != "gro" else "gru"):
        module(memory, layers)


def test_a_sequence_without_a_time_axis_is_refused():
    alone = TensorDict({"observation": torch.randn(4), "is_init": torch.ones(1, dtype=bool)}, [])
    with pytest.raises(ValueError, match="time"):
        module("gru", default_recurrent_mode=True)(alone)
