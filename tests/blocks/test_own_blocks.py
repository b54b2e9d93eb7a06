"""Memories and priors from outside: those that keep the contract are built, others are refused in one sentence."""

import re

import pytest
import torch
from run_folders import error_of
from torch import nn

from dqn_memory.blocks import MEMORY, PRIORS, Block, Memory, Prior, PriorConfig, build, fresh
from dqn_memory.blocks.contract import check_memory, check_prior
from dqn_memory.network import ARCHITECTURES, Architecture, NetworkConfig, ObservationSpec

SPEC = ObservationSpec("discrete", (2,), 5, torch.uint8)


class Mine(Block):
    """A decaying sum h_t = h_(t-1) / 2 + W x_t, with every method of a block."""

    stateful = True

    def __init__(self, width, dropout=0.0, projection=False):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, lengths=None):
        time = torch.arange(x.shape[1])
        decay = 0.5 ** (time[:, None] - time).clamp(min=0) * (time[:, None] >= time)  # (T, T)
        return decay @ self.linear(x)

    def initial_state(self, batch, device=None, dtype=None):
        return (torch.zeros(batch, self.linear.out_features, device=device, dtype=dtype),)

    def step(self, x, state, reset):
        h = state[0].masked_fill(reset[:, None], 0) / 2 + self.linear(x)
        return h, (h,)


def variant(base=Mine, **members):
    return type("Variant", (base,), members)


def ahead(self, x, lengths=None):
    real = torch.ones(x.shape[:2]) if lengths is None else (torch.arange(x.shape[1]) < lengths[:, None]).float()
    return x + (x * real[..., None]).sum(1, keepdim=True) / real.sum(1)[:, None, None]


class Silent(variant(stateful=False)):
    """Its initial outputs are 0, as in many residual branches."""

    def __init__(self, width, dropout=0.0, projection=False):
        super().__init__(width)
        self.scale = nn.Parameter(torch.zeros(width))

    def forward(self, x, lengths=None):
        return self.scale * ahead(self, x, lengths)


Ahead = variant(stateful=False, forward=ahead)
Labelled = variant(Ahead, causal=False)
Narrow = variant(forward=lambda self, x, lengths=None: Mine.forward(self, x, lengths)[..., :1])
Pair = variant(forward=lambda self, x, lengths=None: (Mine.forward(self, x, lengths), None))
Padded = variant(Labelled, forward=lambda self, x, lengths=None: x + x.mean(1, keepdim=True))
Neighbour = variant(stateful=False, forward=lambda self, x, lengths=None: x + x.mean(0, keepdim=True))
Pointwise = variant(pointwise=True)
Forgetful = variant(step=lambda self, x, state, reset: Mine.step(self, x, state, torch.zeros_like(reset)))
Product = variant(
    step=lambda self, x, state, reset: Mine.step(self, x, (state[0] * ~reset[:, None],), torch.zeros_like(reset))
)
WrongAt = variant(at=lambda self, x, lengths, index: Mine.at(self, x, lengths, index) + 1)
WrongNewest = variant(newest=lambda self, x, lengths=None: Mine.newest(self, x, lengths) + 1)
Ends = variant(Labelled, supports_prefixes=True, at_every_prefix=lambda self, x, lengths=None: x)


class Stepped(Memory):
    """The same sum by `advance` alone."""

    def __init__(self, width, dropout=0.0, projection=False):
        super().__init__()
        self.linear = nn.Linear(width, width)

    initial_state = Mine.initial_state

    def advance(self, x, state, reset):
        h = fresh(state, reset)[0] / 2 + self.linear(x)
        return h, (h,)


def run_deaf(self, x, state, reset):
    return Memory.run(self, x, self.initial_state(len(x)), None)


def run_in_chunks(self, x, state, reset):
    parts = zip(x.split(64, 1), [None] * x.shape[1] if reset is None else reset.split(64, 1), strict=False)
    outputs = [
        Memory.run(self, chunk, state, begins)[0] for chunk, begins in parts
    ]  # each goes on from the first state
    return torch.cat(outputs, 1), Memory.run(self, x, state, reset)[1]


Deaf = variant(Stepped, run=run_deaf)
Chunked = variant(Stepped, run=run_in_chunks)
Stuck = variant(Stepped, run=lambda self, x, state, reset: (Memory.run(self, x, state, reset)[0], state))
FarAhead = variant(stateful=False, forward=lambda self, x, lengths=None: x + x.roll(-20, 1))
Broken = variant(forward=lambda self, x, lengths=None: x.log())
Noisy = variant(stateful=False, forward=lambda self, x, lengths=None: x + torch.randn_like(x))
Bare = variant(initial_state=lambda self, batch, device=None, dtype=None: torch.zeros(batch, 8))
Scalar = variant(initial_state=lambda self, batch, device=None, dtype=None: (torch.zeros(()),))
Alone = variant(step=lambda self, x, state, reset: Mine.step(self, x, state, reset)[0])
Widened = variant(step=lambda self, x, state, reset: (x, (state[0].double(),)))


@pytest.mark.parametrize("kind", [Mine, Stepped])
def test_steps_alone_give_sequences_too(kind):
    torch.manual_seed(0)
    block, x, reset = kind(4), torch.randn(2, 6, 4), torch.zeros(2, 6).bool()
    reset[1, 3] = True
    y, (state,) = block.sequence(x[:, 2:], block.sequence(x[:, :2])[1], reset[:, 2:])
    expected = block(x)[:, 2:]
    expected[1, 1:] = block(x[1:, 3:])[0]
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state, expected[:, -1])


@pytest.mark.parametrize(
    ("given", "said"),
    [("initial_state", "neither run nor advance; a memory needs one of them"), ("run", "no initial_state")],
)
def test_a_memory_without_a_form_is_refused(given, said):
    with pytest.raises(TypeError, match=f"Half has {said}"):
        type("Half", (Memory,), {given: Mine.initial_state})


KEPT = {**MEMORY, "mine": Mine, "labelled": Labelled}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("projection", [False, True])
def test_memories_that_keep_the_contract_pass(name, projection):
    before = torch.get_rng_state()
    check_memory(name, KEPT[name], 8, projection)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", PRIORS)
def test_the_projects_own_priors_pass(kind):
    for heads in (1, 2):
        check_prior(kind, lambda count=heads: PriorConfig(kind=kind).build(count, 5), Prior, heads, 5)


@pytest.mark.parametrize(("builder", "words"), [
    (lambda width: Mine(width), r"must be a builder\(width, dropout, projection\) -> Block; .* too many positional"),
    (lambda width, *_: nn.Linear(width, width), "builds a Linear; it must build a dqn_memory.blocks.Block"),
    (Narrow, r"x \(3, 48, 8\) must return that shape, not \(3, 48, 1\)"),
    (Pair, r"must return that shape, not tuple"),
    (Ahead, "says that it is causal, but outputs depend on later inputs"),
    (Silent, "says that it is causal, but outputs depend on later inputs"),
    (FarAhead, "says that it is causal, but outputs depend on later inputs"),
    (Padded, "an output depends on padding"),
    (Neighbour, "an output depends on other rows of the batch"),
    (Broken, "an output of forward is not finite"),
    (Noisy, "other outputs for equal inputs"),
    (Pointwise, "says that it is pointwise"),
    (Forgetful, "a reset row does not begin anew"),
    (Product, "a reset does not clear NaN from the state of step"),
    (WrongAt, r"at\(\) differs from forward"),
    (WrongNewest, r"newest\(\) differs from forward"),
    (Ends, "at_every_prefix differs from forward of each prefix"),
    (Bare, "initial_state must return a tuple of tensors"),
    (Scalar, "initial_state must return a tuple of tensors"),
    (Alone, "a step must return the output and a tuple of tensors"),
    (Widened, "a step changes the form of the state"),
    (Deaf, "sequence from a state, with resets inside, differs from its steps"),
    (Chunked, "sequence from a state, with resets inside, differs from its steps"),
    (Stuck, "the state that sequence returns is not that of its steps"),
])  # fmt: skip
def test_a_memory_that_breaks_the_contract_is_one_sentence(builder, words):
    with pytest.raises(ValueError, match=f"memory 'mine'.*{words}") as caught:
        check_memory("mine", builder)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_blocks_own_code_keeps_its_traceback(monkeypatch):
    def forward(self, x, lengths=None):
        _batch, _time = x.shape

    monkeypatch.setitem(MEMORY, "x", variant(forward=forward))
    monkeypatch.setitem(ARCHITECTURES, "x", Architecture(memory="x"))
    config = NetworkConfig(architecture="x", width=16, heads=2, context=4)
    with pytest.raises(RuntimeError, match=r"memory 'x' fails on random sequences x \(3, 48, 16\)") as caught:
        config.build(SPEC, 3)
    assert "too many values to unpack" in str(caught.value.__cause__)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_network_checks_memories_of_plugins(monkeypatch, wrapped):
    row = Architecture(memory="x", attention=wrapped, wrapped=wrapped, positions="none", layers=1)
    monkeypatch.setitem(ARCHITECTURES, "x", row)
    config = NetworkConfig(architecture="x", width=16, heads=2, context=4)
    monkeypatch.setitem(MEMORY, "x", Mine)
    config.build(SPEC, 3)
    monkeypatch.setitem(MEMORY, "x", Ahead)
    assert "memory 'x': it says that it is causal" in error_of(config.build, SPEC, 3)


def test_a_plugin_cannot_replace_a_name_of_the_suite(monkeypatch):
    config = NetworkConfig(architecture="dgfqn", width=16, heads=2, context=4)
    monkeypatch.setitem(MEMORY, "gru", Mine)
    assert "memory 'gru' has the name of one of the suite's" in error_of(config.build, SPEC, 3)
    monkeypatch.undo()
    monkeypatch.setitem(PRIORS, "causal", prior())
    assert "prior 'causal' has the name" in error_of(config.build, SPEC, 3)
    monkeypatch.undo()
    monkeypatch.setitem(ARCHITECTURES, "dgfqn", Architecture(memory="lstm"))
    assert "architecture dgfqn of a plugin has a name of the suite" in error_of(config.build, SPEC, 3)


def test_a_network_on_meta_checks_its_parts_with_values(monkeypatch):
    """The size report builds networks on meta."""
    monkeypatch.setitem(MEMORY, "x", Mine)
    monkeypatch.setitem(PRIORS, "own", prior(zeros(2, None)))
    monkeypatch.setitem(ARCHITECTURES, "x", Architecture(memory="x"))
    config = NetworkConfig(architecture="x", width=16, heads=2, context=4, prior=PriorConfig("own"))
    with torch.device("meta"):
        assert next(config.build(SPEC, 3).parameters()).is_meta
        monkeypatch.setitem(MEMORY, "x", Ahead)
        assert "says that it is causal" in error_of(config.build, SPEC, 3)


def prior(tables=None, **members):
    members = {"learns": (), **members}
    return type("Own", (Prior,), {**members, "tables": tables or (lambda self, length: (None, None))})


def zeros(*shape):
    return lambda self, length: (None, torch.zeros(*(length if n is None else n for n in shape)))


@pytest.mark.parametrize(("own", "words"), [
    (prior(zeros(None)), r"the bias of tables\(\d\) must be None or .* = \(2, \d\), not torch.float32 \(\d,\)"),
    (prior(zeros(2, 3)), r"not torch.float32 \(2, 3\)"),
    (prior(lambda self, length: (None, torch.zeros(2, length).long())), "not torch.int64"),
    (prior(lambda self, length: (None, torch.full((2, length), -torch.inf))), "finite at distance 0"),
    (prior(lambda self, length: (torch.full((2, length), torch.nan), None)), "the scale .* finite at distance 0"),
    (prior(lambda self, length: torch.zeros(2, length)), r"must return \(scale, bias\), not Tensor"),
    (prior(future_logit_zero=True), "must give a scale and no bias"),
    (prior(learns=("slope",)), r"learns slope, but `learns` names mu, sigma and span alone"),
    (lambda config, heads, length: None, "builds a NoneType; it must build a dqn_memory.blocks.Prior"),
])  # fmt: skip
def test_a_prior_that_breaks_the_contract_is_one_sentence(monkeypatch, own, words):
    monkeypatch.setitem(PRIORS, "own", own)
    config = NetworkConfig(width=16, heads=2, context=6, prior=PriorConfig(kind="own"))
    assert re.search(f"prior 'own'.*{words}", error_of(config.build, SPEC, 3))


def test_a_prior_with_a_value_of_its_own_is_built_and_shown(monkeypatch):
    class Slope(Prior):
        def __init__(self, config, heads, max_length):
            super().__init__(config, heads, max_length)
            self.slope = nn.Parameter(torch.ones(heads))

        def tables(self, length):
            return None, -self.slope[:, None] * self._distances(length)

        def learned(self):
            return {"slope": self.slope}

    monkeypatch.setitem(PRIORS, "slope", Slope)
    network = NetworkConfig(width=16, heads=2, context=6, prior=PriorConfig(kind="slope")).build(SPEC, 3)
    assert network.memory_scalars()["memory/0.1.slope"] == 1
    assert len(network.prior_parameters()) == 2  # one a layer


def test_wrong_rows_of_architectures_are_one_sentence(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "x", "gru")
    words = "architecture x is a str; ARCHITECTURES takes Architecture(...) rows"
    assert words in error_of(NetworkConfig(architecture="x").build, SPEC, 3)
    monkeypatch.setitem(ARCHITECTURES, "x", Architecture(layers=-1))
    assert "architecture x has layers -1" in error_of(NetworkConfig(architecture="x").build, SPEC, 3)
    monkeypatch.setitem(ARCHITECTURES, "x", Architecture(head="dueling"))
    assert "unknown head 'dueling'" in error_of(NetworkConfig(architecture="x").build, SPEC, 3)


def test_checks_do_not_depend_on_names(monkeypatch):
    """Only half-width directions need an even width, and only learned values must fit the context."""
    monkeypatch.setitem(MEMORY, "bilinear", Mine)
    monkeypatch.setitem(PRIORS, "my_gaussian_adaptive", prior())
    monkeypatch.setitem(ARCHITECTURES, "x", Architecture(memory="bilinear"))
    config = NetworkConfig(architecture="x", width=15, heads=3, context=4, prior=PriorConfig("my_gaussian_adaptive"))
    config.build(SPEC, 3)


class Around(Memory):
    """A memory of ours behind a logarithm, whose outputs are changed in place."""

    def __init__(self, width, dropout=0.0, projection=False):
        super().__init__()
        self.inner = build("gru", width)

    def initial_state(self, batch, device=None, dtype=None):
        return self.inner.initial_state(batch, device, dtype)

    def run(self, x, state, reset):
        y, after = self.inner.sequence(x.clamp(min=0).log(), state, reset)
        return y.add_(1), after

    def advance(self, x, state, reset):
        y, after = self.inner.step(x.clamp(min=0).log(), state, reset)
        return y.add_(1), after


def test_a_memory_of_ours_keeps_its_promises_inside_one_of_others():
    block, x, reset = Around(8), torch.rand(1, 6, 8) + 0.1, torch.zeros(1, 6, dtype=torch.bool)
    state, outputs = None, []
    for t in range(6):
        y, state = block.step(x[:, t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), block.sequence(x)[0])
    fresh = block.sequence(x[:, 3:])[0]
    x[0, 1, 2], reset[0, 3] = -1, True
    y = block.sequence(x, None, reset)[0]
    torch.testing.assert_close(y[:, 3:], fresh)
    assert not y[:, 1].isfinite().any()
    for change in torch.autograd.grad(y[:, 3:].sum(), [*block.parameters()]):
        assert change.isfinite().all()
