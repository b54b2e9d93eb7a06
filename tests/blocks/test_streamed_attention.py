"""Streamed attention where its kernels run: against float64, and what steps keep from one to the next."""

import copy
import pickle

import pytest
import torch
from scans import on_threads
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from dqn_memory.blocks.attention import StreamedAttention

BATCH, WIDTH, CONTEXT = 9, 32, 5


def made(context=CONTEXT, heads=4):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return StreamedAttention(WIDTH, heads=heads, context=context)


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def begun(context=CONTEXT):
    """Make a state in which rows have held 0 to K - 1 inputs."""
    count = torch.arange(BATCH) % context
    held = torch.arange(context - 1) >= context - 1 - count[:, None]
    return drawn(BATCH, context - 1, WIDTH, seed=2) * held[..., None], count


def resets(time):
    return drawn(BATCH, time, seed=3) > 1.5


@torch.no_grad()
def in_steps(block, x, state, reset):
    outputs = []
    for t in range(x.shape[1]):
        y, state = block.step(x[:, t], state, reset[:, t])
        outputs.append(y)
    return torch.stack(outputs, 1), state


def exact(block, x, state, reset):
    """Compute in float64, where torch's operators run."""
    wide = copy.deepcopy(block).double()
    return wide.sequence(x.double(), (state[0].double(), state[1]), reset)


@pytest.mark.parametrize(("context", "heads", "time"), [(5, 4, 300), (40, 2, 90), (2, 1, 70), (1, 4, 9), (7, 4, 5)])
def test_steps_and_sequences_are_those_of_float64(context, heads, time):
    """With 300 steps what is kept is full once."""
    block, x, state, reset = made(context, heads), drawn(BATCH, time, WIDTH), begun(context), resets(time)
    (y, (inputs, count)) = exact(block, x, state, reset)
    for found, after in (block.sequence(x, state, reset), in_steps(block, x, state, reset)):
        torch.testing.assert_close(found.double(), y, atol=2e-6, rtol=2e-6)
        assert torch.equal(after[0].double(), inputs) and torch.equal(after[1], count)


def test_a_step_leaves_the_state_that_it_is_given():
    block, x, reset = made(), drawn(BATCH, 8, WIDTH), torch.ones(BATCH, dtype=torch.bool)
    _, state = in_steps(block, x[:, :7], begun(), resets(7))
    before = [part.clone() for part in state]
    with torch.no_grad():
        block.step(x[:, 7], state, reset)
    assert all(map(torch.equal, state, before))


def test_steps_may_go_on_from_an_older_state():
    block, x, reset = made(), drawn(BATCH, 9, WIDTH), resets(9)
    _, older = in_steps(block, x[:, :4], begun(), reset[:, :4])
    in_steps(block, drawn(BATCH, 3, WIDTH, seed=5), older, reset[:, :3])
    found, _ = in_steps(block, x[:, 4:], older, reset[:, 4:])
    torch.testing.assert_close(found.double(), exact(block, x, begun(), reset)[0][:, 4:], atol=2e-6, rtol=2e-6)


def test_two_actors_may_step_by_turns():
    block, x, reset = made(), drawn(2, BATCH, 7, WIDTH), resets(7)
    states, outputs = [begun(), begun()], ([], [])
    with torch.no_grad():
        for t in range(7):
            for actor in range(2):
                y, states[actor] = block.step(x[actor, :, t], states[actor], reset[:, t])
                outputs[actor].append(y)
    for own, found in zip(x, outputs, strict=True):
        known = exact(block, own, begun(), reset)[0]
        torch.testing.assert_close(torch.stack(found, 1).double(), known, atol=2e-6, rtol=2e-6)


def change_weights(block, state):
    block.attention.project_in.weight.data[WIDTH:] *= 2  # which counts as no change of the parameter


def change_inputs(block, state):
    state[0].mul_(3)


def change_count(block, state):
    state[1].zero_()


def replace_count(block, state):
    return state[0], torch.zeros_like(state[1])


@pytest.mark.parametrize("change", [change_weights, change_inputs, change_count, replace_count])
def test_a_step_notices_what_changed_since_the_last_one(change):
    block, x, nothing = made(), drawn(BATCH, 7, WIDTH), torch.zeros(BATCH, 1, dtype=torch.bool)
    _, state = in_steps(block, x[:, :6], begun(), resets(6))
    with torch.no_grad():
        state = change(block, state) or state
        y, _ = block.step(x[:, 6], state, nothing[:, 0])
    torch.testing.assert_close(y.double(), exact(block, x[:, 6:], state, nothing)[0][:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block))])
def test_what_steps_keep_is_not_copied(copied):
    block, x = made(), drawn(BATCH, 7, WIDTH)
    block.sequence(x)
    names = set(vars(block))
    in_steps(block, x, begun(), resets(7))
    assert set(vars(block)) != names  # else this test says nothing
    assert set(vars(copied(block))) == names and list(block.state_dict()) == list(made().state_dict())


def test_steps_after_an_update_are_those_of_a_resumed_run():
    """To the bit, even if the update changed no weight."""
    block, x, reset = made(), drawn(BATCH, 20, WIDTH), resets(20)
    _, state = in_steps(block, x[:, :10], begun(), reset[:, :10])
    resumed = made()
    block.sequence(x[:, :10], begun(), reset[:, :10])[0].sum().backward()
    ours, theirs = (in_steps(each, x[:, 10:], state, reset[:, 10:])[0] for each in (block, resumed))
    assert torch.equal(ours, theirs)


@torch.no_grad()
def test_steps_after_a_save_are_those_of_a_run_resumed_from_it():
    block, x = made(), drawn(BATCH, 30, WIDTH)
    _, state = in_steps(block, x[:, :20], begun(), resets(20))
    again = made()
    again.load_state_dict(block.state_dict())
    ours, theirs = (in_steps(each, x[:, 20:], state, resets(10))[0] for each in (block, again))
    assert torch.equal(ours, theirs)


def test_numbers_that_are_not_finite_stay_in_their_episode():
    block, x, reset = made(), drawn(BATCH, 12, WIDTH), torch.zeros(BATCH, 12, dtype=torch.bool)
    reset[2, 6] = True
    x[2, 4], x[5, 4] = torch.inf, torch.nan
    known = torch.zeros(BATCH, 12, dtype=torch.bool)
    known[2, 4:6] = known[5, 4 : 4 + CONTEXT] = True
    for y, _ in (block.sequence(x, begun(), reset), in_steps(block, x, begun(), reset)):
        assert torch.equal(~y.isfinite().all(-1), known)
    y, _ = block.sequence(x, begun(), reset)
    found = torch.autograd.grad(y[~known].sum(), list(block.parameters()))
    assert all(each.isfinite().all() for each in found)


def test_steps_do_not_depend_on_the_threads():
    block, x, reset = made(), drawn(BATCH, 12, WIDTH), resets(12)
    first, *others = on_threads(lambda: in_steps(copy.deepcopy(block), x, begun(), reset)[0])
    for other in others:
        torch.testing.assert_close(other, first, atol=1e-6, rtol=1e-6)  # torch's products depend on its threads


def penalty(block, x, state, reset):
    """Compute the gradient by the weights of a penalty on gradients, as torch differentiates twice."""
    x = x.clone().requires_grad_()
    (change,) = torch.autograd.grad(block.sequence(x, state, reset)[0].square().sum(), x, create_graph=True)
    return torch.autograd.grad(change.square().sum(), block.attention.project_in.weight)[0]


@sdpa_kernel(SDPBackend.MATH)
def test_second_derivatives_are_those_of_float64():
    block, x, (inputs, count), reset = made(), drawn(BATCH, 7, WIDTH), begun(), resets(7)
    known = penalty(copy.deepcopy(block).double(), x.double(), (inputs.double(), count), reset)
    found = penalty(block, x, (inputs, count), reset).double()
    assert (found - known).abs().max() <= 1e-5 * known.abs().max()


@sdpa_kernel(SDPBackend.MATH)
def test_forward_derivatives_are_those_of_float64():
    def along(block, x, tangent, state):
        return jvp(lambda x: block.sequence(x, state)[0], (x,), (tangent,))[1]

    block, x, tangent, (inputs, count) = made(), drawn(BATCH, 7, WIDTH), drawn(BATCH, 7, WIDTH, seed=6), begun()
    known = along(copy.deepcopy(block).double(), x.double(), tangent.double(), (inputs.double(), count))
    torch.testing.assert_close(along(block, x, tangent, (inputs, count)).double(), known, atol=1e-5, rtol=1e-5)
