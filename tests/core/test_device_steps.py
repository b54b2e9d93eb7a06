"""A step on a device reads nothing back and mixes no devices: it runs on tensors that have no values.

Any read of a value raises there, and so do most operations that take a tensor of the CPU by mistake, so a step that
passes can be captured in a CUDA graph. Optimisers are torch's own; they know no such tensors.
"""

import contextlib
from dataclasses import fields, replace

import glam_models
import pytest
import test_learner
import torch
import unizero_models
from helpers import filled_replay, network

from dqn_memory.blocks import PRIORS
from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec
from dqn_memory.size import on_meta
from dqn_memory.train import make_optimizer, make_update, sample
from world_models.glam.sequences import SEQUENCES
from world_models.unizero.train import make_adamw as unizero_optimizer
from world_models.unizero.train import make_learn, make_target

NOWHERE = torch.device("meta")


@pytest.fixture(autouse=True)
def meta_step(monkeypatch):
    """Without what torch refuses to do there, whatever its inputs are."""
    autocast = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *a, **k: contextlib.nullcontext() if kind == "meta" else autocast(kind, *a, **k)
    )


def still(optimizer):
    optimizer.step = lambda *_, **__: None
    return optimizer


def moved(record):
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: value.to(NOWHERE) for name, value in values.items() if value is not None})


def stays(metrics):
    return {value.device.type for value in metrics.values()} == {"meta"}


def test_such_a_tensor_notices_a_read_and_another_device():
    there = torch.zeros(3, device=NOWHERE)
    for wrong in (lambda: there.sum().item(), lambda: bool(there.any()), there.nonzero, lambda: there + torch.ones(3)):
        with pytest.raises(RuntimeError):
            wrong()


@pytest.mark.parametrize("tails", [pytest.param(1.0, marks=pytest.mark.long), 0.125])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_an_update_of_the_core(architecture, tails):
    net, target = (network(architecture, seed, width=32).float().to(NOWHERE) for seed in (0, 1))
    config = replace(test_learner.CONFIG, n_step=2, tail_fraction=tails)
    update = make_update("eager", net, target, still(make_optimizer(net, config)), config)
    batch = sample(filled_replay([[9, 7], [4, 12]]), config, 6, config.contexts_per_window(net), torch.Generator())
    assert stays(update(moved(batch)))


VECTOR = ObservationSpec("continuous", (3,))
STREAMS = {name: on_meta(NetworkConfig(name, width=32), VECTOR, 4) for name in sorted(ARCHITECTURES)}


@pytest.mark.parametrize("architecture", [name for name, network in STREAMS.items() if network.stateful])
def test_steps_and_sequences_from_a_carried_state(architecture):
    """So every memory can act and learn within the graph of an iteration."""
    net, sizes = STREAMS[architecture], (8, 16)
    state = net.initial_state(8, NOWHERE)
    observation, action = torch.zeros(*sizes, 3, device=NOWHERE), torch.zeros(sizes, dtype=torch.int64, device=NOWHERE)
    _, state = net.encode_step(observation[:, 0], action[:, 0], state, action[:, 0] == 0)
    x, _ = net.encode_sequence(observation, action, state, action == 0)
    net.read(x, observation).sum().backward()
    assert stays({name: each.grad for name, each in net.named_parameters() if each.grad is not None})


SPECS = {"vector": unizero_models.VECTOR, "image": unizero_models.IMAGE, "tokens": unizero_models.TOKENS}


@pytest.mark.parametrize(
    ("prior", "kind"), [*((prior, "vector") for prior in sorted(PRIORS)), ("causal", "image"), ("causal", "tokens")]
)
def test_an_update_of_unizero(prior, kind):
    spec = SPECS[kind]
    model = unizero_models.model(prior, spec, noise=0.1, layers=2).to(NOWHERE)
    config = unizero_models.LEARNER
    learn = make_learn("eager", model, make_target(model), still(unizero_optimizer(model, config)), config)
    assert stays(learn(moved(unizero_models.stored(spec))))


@pytest.mark.parametrize(("sequence", "imagination"), [
    ("glam", "window"), *((sequence, "carried") for sequence in sorted(SEQUENCES)),
    *(pytest.param(name, "window", marks=pytest.mark.long) for name in sorted(SEQUENCES) if name != "glam"),
])  # fmt: skip
def test_updates_and_dreams_of_glam(sequence, imagination):
    _, _, optimizers, execution = glam_models.parts(device="meta", sequence=sequence, imagination_memory=imagination)
    for optimizer in optimizers:
        still(optimizer)
    assert stays(execution.learn_model(*glam_models.model_batch(device="meta")))
    assert stays(execution.learn_agent(execution.imagine(*glam_models.rollout_inputs(device="meta"))))
