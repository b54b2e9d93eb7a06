"""Features of torch with every memory and network: storing, checkpoints, shapes without numbers, transforms."""

import copy
import io
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import glam_models
import pytest
import torch
import unizero_models
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from dqn_memory.blocks import MEMORY, PRIORS, Attention, Prior, PriorConfig, build
from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec

BATCH, TIME, WIDTH = 2, 5, 8
OPTIONS = {"attention": {"heads": 2, "context": 3}, "shm": {"size": 4}, "gated_deltanet": {"heads": 1}}
EACH = pytest.mark.parametrize("name", MEMORY)
LONG = {"marks": pytest.mark.long}


def forms():
    """Run every memory by its sequence, or by `forward` if it has none; the other forms are marked long."""
    every = [(name, form) for name in MEMORY for form in ("forward", "sequence", "step")]
    stateful = {name: build(name, WIDTH).stateful for name in MEMORY}
    kept = [(name, form) for name, form in every if stateful[name] or form == "forward"]
    short = [(name, form) for name, form in kept if form == ("sequence" if stateful[name] else "forward")]
    return pytest.mark.parametrize(
        ("name", "form"), [pytest.param(*each, **({} if each in short else LONG)) for each in kept]
    )


def made(name, dtype=torch.float32, width=WIDTH):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = build(name, width, **OPTIONS.get(name, {}))
    return block if dtype == torch.float32 else block.to(dtype)


def drawn(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(dtype=torch.float32):
    return drawn(BATCH, TIME, WIDTH, dtype=dtype)


BEFORE = drawn(BATCH, 3, WIDTH, seed=3)


def function(block, form):
    """Make a function of x (B, T, D) in one of the three forms, after a state and with a reset inside."""
    reset = torch.zeros(BATCH, TIME, dtype=torch.bool)
    reset[1, 2] = True
    if form == "forward":
        return block
    with torch.no_grad():
        state = block.sequence(BEFORE.to(next(block.parameters()).dtype))[1]
    if form == "sequence":
        return lambda x: block.sequence(x, state, reset[:, : x.shape[1]])[0]

    def steps(x):
        after, outputs = state, []
        for t in range(x.shape[1]):
            y, after = block.step(x[:, t], after, reset[:, t])
            outputs.append(y)
        return torch.stack(outputs, 1)

    return steps


def gradients(block, apply, x):
    block.zero_grad()
    x = x.clone().requires_grad_()
    apply(x).square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in block.parameters())]


# ---- stored ----------------------------------------------------------------------------------------------------------
def q_network(architecture="dgfqn", prior="causal", context=8):
    config = PriorConfig(prior, mu=2.0, span=3.0, local_window=2)
    spec = ObservationSpec("continuous", (3,))
    return NetworkConfig(architecture, width=32, heads=2, context=context, prior=config).build(spec, 2)


OBSERVATION, ACTION = drawn(2, 8, 3), torch.zeros(2, 8, dtype=torch.int64)
NETWORKS = {f"{name}-causal": lambda name=name: q_network(name) for name in ARCHITECTURES}
NETWORKS |= {f"dgfqn-{prior}": lambda prior=prior: q_network(prior=prior) for prior in PRIORS}
OF_UNIZERO = {f"unizero-{prior}": lambda prior=prior: unizero_models.model(prior) for prior in PRIORS}


def stored(module):
    """Store and load a module by torch, pickle, the pickler of processes and deepcopy."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    yield torch.load(file, weights_only=False)
    yield pickle.loads(pickle.dumps(module))
    yield pickle.loads(ForkingPickler.dumps(module))
    yield copy.deepcopy(module)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_stored_network_is_equal(name):
    network = NETWORKS[name]()
    wanted = network(OBSERVATION, ACTION)
    wanted.sum().backward()
    for again in stored(network):
        assert torch.equal(again(OBSERVATION, ACTION), wanted)


@EACH
def test_a_stored_memory_is_equal(name):
    block = made(name)
    wanted = gradients(block, block, inputs())
    for again in stored(block):
        assert torch.equal(again(inputs()), block(inputs()))
        for ours, theirs in zip(gradients(again, again, inputs()), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize("name", [*OF_UNIZERO, "glam"])
def test_a_stored_world_model_is_equal(name):
    model = glam_models.model() if name == "glam" else OF_UNIZERO[name]()
    for again in stored(model):
        assert repr(again) == repr(model)
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key


LOADED = """
import sys, torch
for network, inputs, wanted in torch.load(sys.argv[1], weights_only=False):
    assert torch.equal(network(*inputs), wanted), network
"""


@pytest.mark.long
def test_another_process_reads_stored_networks(tmp_path):
    networks = [q_network(prior=prior) for prior in PRIORS] + [q_network("mamba"), q_network("attention")]
    whole = [(each, (OBSERVATION, ACTION), each(OBSERVATION, ACTION).detach()) for each in networks]
    torch.save(whole, tmp_path / "networks.pt")
    subprocess.run([sys.executable, "-c", LOADED, tmp_path / "networks.pt"], check=True)


# ---- a prior of one's own --------------------------------------------------------------------------------------------
class Own(Prior):
    """Has tables of its own."""

    def tables(self, length):
        return None, -self.distance[:length].float().expand(self.heads, length)


@pytest.mark.parametrize("base", PRIORS)
def test_a_derived_prior_keeps_its_own_tables(base):
    own = type("Derived", (PRIORS[base],), {"tables": Own.tables, "future_logit_zero": False})
    config, length = PriorConfig("causal", local_window=1), 200  # a window is far shorter than the sequence
    attention = Attention(WIDTH, 2, own(config, 2, length))
    plain = Attention(WIDTH, 2, Own(config, 2, length))
    plain.load_state_dict(attention.state_dict(), strict=False)
    index, x = torch.arange(2) + 150, drawn(2, length, WIDTH)
    torch.testing.assert_close(attention(x)[[0, 1], index], attention.at(x, None, index), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention(x), plain(x))


def test_a_stored_prior_of_a_plugin_is_equal(monkeypatch):
    monkeypatch.setitem(PRIORS, "own", Own)
    network = q_network(prior="own")
    for again in stored(network):
        assert torch.equal(again(OBSERVATION, ACTION), network(OBSERVATION, ACTION))


# ---- saved tensors ---------------------------------------------------------------------------------------------------
@forms()
def test_a_checkpointed_memory_has_the_same_gradients(name, form):
    block, x = made(name), inputs()
    apply = function(block, form)
    wanted = gradients(block, apply, x)
    for reentrant in (False, True):
        found = gradients(block, lambda x, r=reentrant: checkpoint(apply, x, use_reentrant=r), x)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
    with save_on_cpu():
        found = gradients(block, apply, x)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_checkpointed_network_has_the_same_gradients(name):
    network = NETWORKS[name]()
    wanted = gradients(network, lambda x: network(x, ACTION), OBSERVATION)
    found = gradients(network, lambda x: checkpoint(network, x, ACTION, use_reentrant=False), OBSERVATION)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


# ---- shapes without numbers ------------------------------------------------------------------------------------------
@EACH
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_shapes_go_through_without_numbers(name, kind):
    with FakeTensorMode() if kind == "fake" else torch.device("meta"):
        block, x = made(name), torch.empty(BATCH, TIME, WIDTH)
        block(x).sum().backward()
        assert block(x).shape == x.shape
        if block.stateful:
            known = [part.shape for part in block.initial_state(BATCH)]
            y, state = block.sequence(x, None, torch.zeros(BATCH, TIME, dtype=torch.bool))
            assert y.shape == x.shape and [part.shape for part in state] == known
            y, state = block.step(x[:, 0], state, torch.zeros(BATCH, dtype=torch.bool))
            assert y.shape == x[:, 0].shape and [part.shape for part in state] == known


@EACH
def test_a_memory_without_numbers_leaves_none_behind(name):
    with FakeTensorMode():
        made(name, width=36)  # a size that no other test has
    assert made(name, width=36)(drawn(BATCH, TIME, 36)).isfinite().all()


@pytest.mark.long
@EACH
def test_a_compiled_memory_computes_the_same(name):
    block, x = made(name), inputs()
    wanted = gradients(block, block, x)
    found = gradients(block, torch.compile(block, dynamic=False), x)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


# ---- derivatives -----------------------------------------------------------------------------------------------------
# torch's fused attention refuses second and forward derivatives; its plain form has both.
def plain():
    return sdpa_kernel(SDPBackend.MATH)


def double(name, form):
    block = made(name, torch.float64)
    return block, function(block, form), inputs(torch.float64)


@forms()
def test_second_derivatives_are_right(name, form):
    _, apply, x = double(name, form)
    with plain():
        assert torch.autograd.gradgradcheck(apply, x[:, :3].requires_grad_(), fast_mode=True)


def penalty(block, x):
    """Differentiate a sum over the gradients of a loss by x and by the parameters, as in meta-learning."""
    x = x.clone().requires_grad_()
    inputs = [x, *block.parameters()]
    first = torch.autograd.grad(block(x).square().sum(), inputs, create_graph=True, allow_unused=True)
    total = sum(each.sin().sum() for each in first if each is not None)
    return torch.autograd.grad(total, inputs, allow_unused=True)


@EACH
def test_second_derivatives_of_fast_forms_are_those_of_exact_ones(name):
    with plain():
        found, wanted = penalty(made(name), inputs()), penalty(made(name, torch.float64), inputs(torch.float64))
    for ours, theirs in zip(found, wanted, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, atol=2e-3 * float(1 + theirs.abs().max()), rtol=0)


@pytest.mark.parametrize("kind", ["attention", "gelu"])
def test_second_derivatives_of_fast_parts_are_those_of_exact_ones(kind):
    attention, x = Attention(32, 4, PriorConfig().build(4, 8)), drawn(8, 8, 32)  # sizes that the fast forms take
    block, x = (attention, x) if kind == "attention" else (Gelu(), drawn(8, 16, 256))
    with plain():
        found, wanted = penalty(block, x), penalty(copy.deepcopy(block).double(), x.double())
    for ours, theirs in zip(found, wanted, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, atol=1e-4 * float(1 + theirs.abs().max()), rtol=0)


def test_second_derivatives_of_fused_attention_are_refused():
    with pytest.raises(RuntimeError, match="not implemented"):
        penalty(made("attention"), inputs())


@forms()
def test_torch_func_sees_through_a_memory(name, form):
    block, apply, x = double(name, form)
    change, loss = drawn(BATCH, TIME, WIDTH, dtype=x.dtype, seed=5), lambda x: apply(x).square().sum()
    wanted = torch.autograd.functional.jacobian(lambda x: apply(x).sum(-1), x)
    exact = {"atol": 1e-9, "rtol": 1e-9}
    with plain():
        torch.testing.assert_close(jacrev(lambda x: apply(x).sum(-1))(x), wanted, **exact)
        torch.testing.assert_close(grad(loss)(x), gradients(block, apply, x)[0], **exact)
        value, forward = jvp(lambda x: apply(x).sum(-1), (x,), (change,))
        torch.testing.assert_close(value, apply(x).sum(-1), **exact)
        torch.testing.assert_close(forward, (wanted * change).flatten(2).sum(-1), **exact)
        twice = hessian(lambda z: loss(torch.cat((z, x[:, 1:]), 1)))(x[:, :1]).flatten(3).sum(-1)
        torch.testing.assert_close(twice, hessian_of(loss, x), **exact)


def hessian_of(loss, x):
    """Compute the row sums of the Hessian by the first position."""
    start = x[:, :1].clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(torch.cat((start, x[:, 1:]), 1)), start, create_graph=True)
    return torch.autograd.grad(first.sum(), start)[0]


class Called(torch.nn.Module):
    """A memory whose call is one of its forms."""

    def __init__(self, name, form, seed=1):
        super().__init__()
        self.block, self.form = made(name), form
        for parameter in self.block.parameters():
            parameter.data *= seed

    def forward(self, x):
        return function(self.block, self.form)(x)


@forms()
def test_many_memories_run_as_one(name, form):
    many, x = [Called(name, form, seed) for seed in (1, 2, 3)], drawn(3, BATCH, TIME, WIDTH)
    found = vmap(lambda *state: functional_call(many[0], state[:2], (state[2],)))(*stack_module_state(many), x)
    for ours, each, given in zip(found, many, x, strict=True):
        torch.testing.assert_close(ours, each(given), atol=1e-5, rtol=1e-5)
