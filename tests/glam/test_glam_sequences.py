"""The six sequence forms: recorded runs of the released core, step = sequence, causality, what an opening forgets."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from glam_models import ACTIONS, PRESETS, TOLERANCE, close, config, model
from hypothesis import given, settings
from hypothesis import strategies as st

from dqn_memory.blocks.mamba import Mamba
from world_models.glam.config import FORMS, GlamModelConfig
from world_models.glam.layers import MambaLayer, last_of_window, mix
from world_models.glam.sequences import SequenceModel

GOLDEN = np.load(Path(__file__).parent.parent / "data" / "glam" / "glam_core.npz")
NAMES = {
    "stem.0": "stem.enter", "stem.1": "stem.leave.0", "stem.3": "stem.leave.2",
    "longlayers.0": "branches.0.stack.layers.0", "output_proj": "branches.0.project",
    "shortlayers.0": "branches.1.layers.0", "short_output_proj.0": "branches.1.project",
}  # fmt: skip
EVERY = [(name, layers) for name in FORMS for layers in (1, 2)]
Z = 12


def released(dtype):
    """The recorded core: stoch 16, 4 actions, width 32."""
    sizes = replace(PRESETS["code"], categoricals=4, classes=4, width=32)
    form = SequenceModel(sizes, 4).to(dtype).eval()
    state = {}
    for key in GOLDEN.files:
        if key.startswith("param."):
            old = next(name for name in NAMES if key[6:].startswith(name + "."))
            state[NAMES[old] + key[6 + len(old) :]] = torch.tensor(GOLDEN[key], dtype=dtype)
    form.load_state_dict(state, strict=True)
    z, action = (torch.tensor(GOLDEN[key], dtype=dtype) for key in ("z", "action_onehot"))
    return form, z, action.argmax(-1), torch.zeros(z.shape[:2], dtype=torch.bool)


def inputs(seed=0):
    """Four rows of twelve steps, with openings from never to always."""
    draws = torch.Generator().manual_seed(seed)
    sample = torch.rand(4, 12, Z, generator=draws, dtype=torch.float64)
    action = torch.randint(ACTIONS, (4, 12), generator=draws)
    return sample, action, torch.rand(4, 12, generator=draws) < torch.tensor([[0.0], [0.15], [0.5], [1.0]])


def form(name="glam", layers=1, preset="paper", **changes):
    return model(preset, sequence=name, global_layers=layers, local_layers=layers, **changes).sequence_model


def stepped(core, sample, action, first, state=None):
    state, said = core.start(len(sample)) if state is None else state, []
    for t in range(sample.shape[1]):
        one, state = core.push(sample[:, t], action[:, t], first[:, t], state)
        said.append(one)
    return torch.stack(said, 1), state


def same(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_released_core_in_training_on_prefixes_step_by_step_and_on_windows(dtype):
    core, *given = released(dtype)
    said, (steps, _) = core(*given)[0], stepped(core, *given)
    close(said.h[:, 4:], GOLDEN["dist_feat"], dtype)
    close(said.variation[:, 4:], GOLDEN["long_feat"], dtype)
    # With fewer than 4 frames the released inference gives LMamba the last frame alone; Algorithm 1 starts at the 4th.
    close(steps[:, 3:], GOLDEN["inference_prefix"][:, 3:], dtype)
    for t in range(3, 12):
        close(core(*(x[:, : t + 1] for x in given))[0].h[:, -1], GOLDEN["inference_prefix"][:, t], dtype)
    for t in range(7, 12):
        close(core(*(x[:, t - 7 : t + 1] for x in given))[0].h[:, -1], GOLDEN["inference_window8"][:, t - 7], dtype)


@pytest.mark.parametrize(("name", "layers"), EVERY)
@pytest.mark.parametrize("preset", ["paper", "code"])
def test_any_mixture_of_prefill_and_steps_equals_the_sequence(monkeypatch, preset, name, layers):
    monkeypatch.setattr(GlamModelConfig, "attention_window", 5)  # shorter than the sequence
    core, given = form(name, layers, preset), inputs()
    whole = core(*given)[0].h
    same(stepped(core, *given)[0], whole)
    for cut in (1, 2, 3, 4, 9):
        said, state = core(*(x[:, :cut] for x in given))
        same(said.h, whole[:, :cut])
        middle, state = core(*(x[:, cut : cut + 2] for x in given), state)
        same(middle.h, whole[:, cut : cut + 2])
        same(stepped(core, *(x[:, cut + 2 :] for x in given), state)[0], whole[:, cut + 2 :])


@pytest.mark.parametrize("opening", [0, 5])
@pytest.mark.parametrize(("name", "layers"), EVERY)
def test_gradients_reach_back_to_the_opening_and_nothing_behind(name, layers, opening):
    core, (sample, action, first) = form(name, layers), inputs()
    first[:] = torch.arange(12) == opening
    sample.requires_grad_()
    core(sample, action, first)[0].h[:, 6].square().sum().backward()
    reached = sample.grad.abs().sum((0, 2)) > 0
    oldest = max(opening, 3 if name == "lmamba" else 0)  # a window of 4 ends at position 6
    assert reached.tolist() == [oldest <= t <= 6 for t in range(12)]


@settings(max_examples=10, deadline=None)
@given(bits=st.lists(st.booleans(), min_size=12, max_size=12), name=st.sampled_from(FORMS))
def test_any_pattern_of_openings_is_its_episodes_one_by_one(bits, name):
    core, (sample, action, first) = form(name, 2), inputs()
    first[:] = torch.tensor(bits)
    starts = sorted({0, *(t for t, opens in enumerate(bits) if opens), 12})
    whole = core(sample, action, first)[0].h
    for begin, end in pairwise(starts):
        same(whole[:, begin:end], core(*(x[:, begin:end] for x in (sample, action, first)))[0].h)


def test_local_windows_are_separate_runs_over_zero_padded_features():
    for layers in (1, 2):
        core, (sample, action, _) = form("lmamba", layers), inputs()
        branch, e = core.branches[0], core.stem(sample, action)
        padded = torch.cat([e.new_zeros(4, 3, e.shape[-1]), e], 1)
        age = torch.arange(12).expand(4, 12)
        y, _ = branch(e, age, branch.initial_state(4, e))
        for t in range(12):
            window = padded[:, t : t + 4]
            for layer in branch.layers:
                window = layer.whole(window)
            same(branch.project(window[:, -1]), y[:, t])


def test_a_mixer_that_forgets_is_the_mixer_restarted_with_all_gradients():
    torch.manual_seed(0)
    mixer = Mamba(8, states=4).double()
    with torch.no_grad():
        mixer.A_log[:, 0] = -9.0  # a channel that would remember for ten thousand steps
    x = torch.randn(3, 9, 8, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn_like(part) for part in mixer.initial_state(3, dtype=torch.float64))
    age = torch.tensor([0, 1, 2, 3, 0, 0, 1, 2, 3]).expand(3, 9)
    ours, after = mix(mixer, x, age, state)
    pieces = [mixer.sequence(x[:, a:b]) for a, b in ((0, 4), (4, 5), (5, 9))]
    theirs = torch.cat([y for y, _ in pieces], 1)
    same(ours, theirs)
    same(after[1], pieces[-1][1][1])
    wanted = [*mixer.parameters(), x]
    same(*(torch.autograd.grad(y.square().sum(), wanted) for y in (ours, theirs)), 1e-10)


def test_last_of_window_uses_the_mixers_own_backend():
    mixer, calls = Mamba(8, states=4), []
    core = mixer.core
    mixer.core = lambda *args: calls.append(len(args)) or core(*args)
    last_of_window(mixer, torch.randn(2, 4, 16), torch.randn(2, 16))
    mix(mixer, torch.randn(2, 4, 8), torch.arange(4).expand(2, 4), mixer.initial_state(2))
    assert calls == [6, 6]


def test_the_way_out_of_a_window_stays_in_single_precision_under_autocast():
    torch.manual_seed(0)
    mixer, entered, gate, seen = Mamba(8, states=4), torch.randn(2, 4, 16), torch.randn(2, 16), []
    mixer.out_proj.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mixer.D.zero_()
        for height in (1.0, 1 + 2**-10):  # states that bfloat16 cannot tell apart
            mixer.core = lambda *args, height=height: (args[0], torch.full((2, 16, 4), height))
            last_of_window(mixer, entered, gate)
    torch.testing.assert_close(seen[1], seen[0] * (1 + 2**-10), rtol=1e-5, atol=0)


def test_post_norm_is_eq_6():
    layer = MambaLayer(config()).double()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    assert layer.norm.eps == layer.post_norm.eps == 1e-6
    same(layer.whole(x), x + torch.nn.functional.layer_norm(layer.mixer(layer.norm(x)), (8,), eps=1e-6))


@pytest.mark.parametrize("name", FORMS)
def test_single_precision_and_bfloat16_stay_close(name):
    core, (sample, action, first) = form(name), inputs()
    exact = core(sample, action, first)[0].h
    single = core.float()(sample.float(), action, first)[0].h
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        rough = core(sample.float(), action, first)[0].h
    assert (rough.double() - exact).abs().mean() < 0.05 * exact.abs().mean()
