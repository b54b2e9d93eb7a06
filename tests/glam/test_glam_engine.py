"""Both ways of executing GLAM's updates and dreams compute the same function."""

import glam_models
import pytest
import torch

from dqn_memory.runs import cuda_graph
from dqn_memory.runs.cuda_graph import Captured
from world_models.glam.config import LearnerConfig
from world_models.glam.imagination import encode_context, imagine
from world_models.glam.learner import adam, update

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


def test_eager_execution_is_the_tested_functions():
    model, agent, _, execution = glam_models.parts()
    seen, encoding, noise = glam_models.rollout_inputs()
    begin = encode_context(model, seen.frames, seen.action, seen.first, encoding)
    wanted, found = imagine(model, agent.policy, begin, noise, "window"), execution.imagine(seen, encoding, noise)
    assert all(torch.equal(getattr(found, name), value) for name, value in vars(wanted).items())
    other, _, optimizers, _ = glam_models.parts()
    said = update(other, optimizers[0], LearnerConfig(learning_rate=1e-3), *glam_models.model_batch())
    assert execution.learn_model(*glam_models.model_batch()) == said
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_an_update_moves_what_it_should_and_nothing_else():
    model, agent, _, execution = glam_models.parts()

    def moved(before, net):
        return not all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))

    first, actor = ([p.clone() for p in net.parameters()] for net in (model, agent))
    metrics = execution.learn_model(*glam_models.model_batch())
    assert float(metrics["grad/norm"]) > 0 and model.training and moved(first, model) and not moved(actor, agent)
    now = [p.clone() for p in model.parameters()]
    execution.learn_agent(execution.imagine(*glam_models.rollout_inputs()))
    assert not moved(now, model) and not model.training and moved(actor, agent)


def test_the_gradient_is_clipped_and_frozen_weights_stay():
    model = glam_models.model("code").float()
    config = LearnerConfig(learning_rate=1e-3, max_grad_norm=1e-9, epsilon=1.0)
    optimizer = adam(model, config)
    before = {name: p.clone() for name, p in model.named_parameters()}
    update(model, optimizer, config, *glam_models.model_batch())
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, before[name], atol=1e-10), name  # Adam's epsilon hides such small gradients
    assert not model.random_projection.weight.requires_grad


class Still:
    """A graph that launches nothing."""

    def replay(self):
        pass


@pytest.mark.parametrize("form", ["window", "carried"])
def test_only_the_graphs_of_the_newest_horizon_are_kept(monkeypatch, form):
    monkeypatch.setattr(cuda_graph, "capture", lambda work: (Still(), work()))
    execution = glam_models.parts("cudagraph", imagination_memory=form)[3]
    for horizon in (4, 5, 6):
        dreamt = execution.imagine(*glam_models.rollout_inputs(horizon))
        execution.learn_agent(dreamt)
        execution.learn_model(*glam_models.model_batch())
        assert dreamt.reward.shape[0] == horizon
        assert [len(work.graphs) for work in execution] == [1, 1, 1]


@CUDA
@pytest.mark.parametrize("form", ["window", "carried"])
def test_captured_execution_equals_eager(form):
    eager, graphed = (glam_models.parts(engine, "cuda", imagination_memory=form) for engine in ("eager", "cudagraph"))
    for round in range(4):
        told, dreamt = glam_models.model_batch(round, "cuda"), glam_models.rollout_inputs(4 + round // 2, round, "cuda")
        for execution in (eager[3], graphed[3]):
            execution.learn_model(*told)
            execution.learn_agent(execution.imagine(*dreamt))
    assert isinstance(graphed[3].imagine, Captured) and len(graphed[3].imagine.graphs) == 1
    for ours, theirs in zip(graphed[:2], eager[:2], strict=True):
        for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-5), name
