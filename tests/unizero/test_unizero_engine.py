"""Engines compute the same function: searches and updates, eager, compiled and captured."""

import os
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
import unizero_models
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor.compile_fx import compile_fx

from dqn_memory.runs.base_config import set_tf32
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.settings import parse
from world_models.settings import WorldModelComputeConfig
from world_models.unizero import train
from world_models.unizero.acting import Planner
from world_models.unizero.config import SearchConfig, UniZeroConfig
from world_models.unizero.mcts import Functions, draw_numbers, make_functions
from world_models.unizero.train import make_adamw, make_learn, make_target

ROWS, SIMULATIONS = 3, 6
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def moved(part, device):
    return mapped(lambda value: value.to(device), part)


def updates(engine, kind="gaussian_adaptive", spec=unizero_models.VECTOR, device="cpu", count=3, layers=2, **options):
    """Losses, and the last weights and buffers of model and target, of a few updates on other sequences each.

    In float64: AdamW makes whole steps of gradients that are nothing but rounding.
    """
    model = unizero_models.model(kind, spec, noise=0.1, layers=layers).to(device)
    target = make_target(model)
    optimizer = make_adamw(model, unizero_models.LEARNER, capturable=device == "cuda")
    learn = make_learn(engine, model, target, optimizer, unizero_models.LEARNER, **options)
    metrics = [learn(moved(unizero_models.stored(spec, seed=seed), device)) for seed in range(count)]
    return moved((*metrics, dict(model.state_dict()), dict(target.state_dict())), "cpu")


def assert_same(ours, theirs, tolerance=1e-6):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def searches(engine, kind="gaussian", device="cpu", steps=3, layers=2, **options):
    """Visits, values and latents of three steps of three worlds, one of which begins a new episode."""
    model = unizero_models.model(kind, noise=1.0, layers=layers).to(device)
    config = SearchConfig(simulations=SIMULATIONS)
    planner = Planner(model, ROWS, config, 0.997, functions=make_functions(engine, model, **options))
    draws, results = torch.Generator().manual_seed(0), []
    for step in range(steps):
        numbers = moved(draw_numbers(config, ROWS, unizero_models.ACTIONS, draws), device)
        observation = torch.randn(ROWS, 4, generator=draws, dtype=torch.float64).to(device)
        found, latent = planner.plan(observation, numbers)
        planner.remember(latent, found.action, torch.tensor([step == 1, False, False], device=device))
        results.append([found.visits, found.policy, found.tree.value[:, 0], found.latent])
    return [[value.cpu() for value in result] for result in results]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


COMPILER = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")


@pytest.mark.long
@pytest.mark.parametrize(("kind", "spec", "code"), [
    pytest.param("gaussian_adaptive", unizero_models.VECTOR, aot_eager, id="vector"),
    pytest.param("causal", unizero_models.IMAGE, aot_eager, id="image"),
    pytest.param("gaussian_adaptive", unizero_models.VECTOR, compile_fx, id="machine-code", marks=COMPILER),
])  # fmt: skip
def test_compiled_updates_equal_eager_ones(kind, spec, code):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return code(graph, inputs)

    ours = updates("compile", kind, spec, count=2, layers=1, backend=backend)
    assert_same(ours, updates("eager", kind, spec, count=2, layers=1))
    assert len(graphs) == 1  # without a break, for all updates
    counted = [int(v) for net in ours[-2:] for name, v in net.items() if name.endswith("num_batches_tracked")]
    assert all(count == 2 for count in counted) and (len(counted) > 4) == (kind == "causal")  # of both encoders


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gaussian", "adaptive_gate"])
def test_compiled_searches_equal_eager_ones(kind):
    compiled = searches("compile", kind, layers=1, backend="aot_eager")
    assert_same(compiled, searches("eager", kind, layers=1), 1e-12)


@pytest.mark.parametrize("engine", ["compile", pytest.param("cudagraph", marks=CUDA)])
def test_functions_follow_the_weights_and_keep_their_results(engine):
    device = "cuda" if engine == "cudagraph" else "cpu"
    model = unizero_models.model().to(device)
    functions = make_functions(engine, model, "aot_eager")
    first, second = torch.randn(2, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        one = functions.encode(first)
        kept = one.clone()
        functions.encode(second)
        assert torch.equal(one, kept)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        after = functions.encode(first)
        assert not torch.allclose(after, kept)
        torch.testing.assert_close(after, model.encode(first), atol=1e-12, rtol=1e-12)


@pytest.mark.long
def test_compiling_takes_each_shape_once():
    """Acting, evaluating and searching anew have batches of their own size, and go through all history lengths."""
    model, compiled = unizero_models.model(layers=1), []

    def count(graph, inputs):
        compiled.append([tuple(value.shape) for value in inputs])
        return graph.forward

    config = SearchConfig(simulations=3)
    functions = make_functions("compile", model, count)
    for rows in (3, 5):
        planner = Planner(model, rows, config, 0.997, functions=functions)
        draws = torch.Generator().manual_seed(0)
        for _ in range(6):
            found, latent = planner.plan(torch.ones(rows, 4), draw_numbers(config, rows, unizero_models.ACTIONS, draws))
            planner.remember(latent, found.action, torch.zeros(rows, dtype=torch.bool))
    assert len(compiled) == 2 * 3  # encode, root, expand


def test_acting_learning_reanalysis_and_evaluation_all_run_under_the_engine(monkeypatch):
    calls, engines = Counter(), []

    def counted(name, function):
        return lambda *inputs: (calls.update([name]), function(*inputs))[1]

    def functions(engine, model):
        engines.append(engine)
        *made, shares = make_functions("eager", model)
        return Functions(*map(counted, ("encode", "root", "expand"), made), shares)

    def learning(engine, *parts):
        engines.append(engine)
        return counted("learn", make_learn("eager", *parts))

    monkeypatch.setattr(train, "make_functions", functions)
    monkeypatch.setattr(train, "make_learn", learning)
    config = parse(UniZeroConfig, ["--config", "unizero/smoke", "--reanalyse-fraction", "1"])
    compute = WorldModelComputeConfig(device="cpu", threads=torch.get_num_threads(), engine="compile")
    run = train.UniZeroTrainer(replace(config, compute=compute))
    while run.updates < 2:
        run.iterate()
    assert engines == ["compile", "compile"] and calls["learn"] == run.updates
    assert calls["encode"] == calls["root"] == run.iterations + run.updates  # one of reanalysis with every update
    assert calls["root"] < calls["expand"] < calls["root"] * config.search.simulations
    before = calls["encode"]
    run.evaluate()
    assert calls["encode"] > before


def test_tf32_is_set_and_unset():
    try:
        for tf32, expected in ((True, "high"), (False, "highest")):
            WorldModelComputeConfig(device="cpu", tf32=tf32).start()
            assert torch.get_float32_matmul_precision() == expected
            assert torch.backends.cudnn.allow_tf32 == tf32  # of convolutions and recurrent layers
    finally:
        set_tf32(False)


@CUDA
@pytest.mark.parametrize("count", [1, 5])  # a trace of the warm-up has not faded after the first
@pytest.mark.parametrize("kind", ["causal", "local", "gaussian_adaptive", "adaptive_gate"])
@pytest.mark.parametrize("spec", [unizero_models.VECTOR, unizero_models.IMAGE], ids=["vector", "image"])
def test_captured_updates_equal_eager_ones(kind, spec, count):
    eager, captured = (updates(engine, kind, spec, "cuda", count) for engine in ("eager", "cudagraph"))
    assert_same(captured, eager)
    assert_same(eager, updates("eager", kind, spec, "cpu", count), 1e-5)


@CUDA
@pytest.mark.parametrize("kind", ["causal", "gaussian", "adaptive_gate"])
def test_captured_searches_equal_eager_ones(kind):
    """In float64, where nothing but an error moves a decision."""
    eager, captured = (searches(engine, kind, "cuda", 5) for engine in ("eager", "cudagraph"))
    assert_same(captured, eager, 1e-12)
    assert_same(eager, searches("eager", kind, "cpu", 5), 1e-9)


@CUDA
def test_captured_dropout_draws_anew_in_every_update():
    model = unizero_models.model("causal", dropout=0.3).cuda()
    still = replace(unizero_models.LEARNER, learning_rate=1e-12, target_update_rate=1e-12)
    optimizer = make_adamw(model, still, capturable=True)
    learn = make_learn("cudagraph", model, make_target(model), optimizer, still)
    torch.cuda.manual_seed(0)
    totals = {
        float(learn(moved(unizero_models.stored(unizero_models.VECTOR), "cuda"))["losses/total"]) for _ in range(4)
    }
    assert len(totals) == 4
