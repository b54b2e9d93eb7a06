"""Attention maps and sensitivity are what they say; the script writes all it measures and changes nothing else."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from delayed import episode
from helpers import attended, network
from PIL import Image
from run_folders import refused
from test_agent import Three
from trained import contents, trained

from dqn_memory.analysis import attention
from dqn_memory.analysis.attention import carried_states, episode_attention, sensitivity, window_attention
from dqn_memory.blocks import PriorConfig
from dqn_memory.blocks.attention import StreamedAttention
from dqn_memory.evaluate import load_network
from dqn_memory.inspect import InspectArgs, inspect_network, main

ARCHITECTURES = ("dtqn4", "dgfqn", "dbgfqn", "gtrxl", "drqn", "adrqn", "dqn", "dtqn_attention")


def make(architecture, **changes):
    """A small network for acting."""
    return network(architecture, action_embedding=3 if architecture == "adrqn" else None, **changes).eval()


def window(length=6):
    played = episode(length)
    return played.observation, played.previous_action


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_maps_are_those_of_the_forward_pass(architecture):
    net = make(architecture)
    blocks, inputs = attended(net, *(each[None] for each in window()))
    maps = window_attention(net, *window())
    assert len(maps) == len(blocks) == len(inputs)
    for block, x, drawn in zip(blocks, inputs, maps.values(), strict=True):
        torch.testing.assert_close(drawn, block.weights(x)[0], rtol=0, atol=1e-14)
        torch.testing.assert_close(drawn.sum(-1), torch.ones(2, 6, dtype=torch.float64))
        assert (drawn.triu(1) == 0).all()


@pytest.mark.parametrize("kind", ["causal", "adaptive_gate"])
@pytest.mark.parametrize("architecture", ["dgfqn", "gtrxl", "dbgfqn"])
def test_an_episode_is_what_each_decision_attended_to(architecture, kind):
    """Row t of an episode of 9 steps is the newest row of the window of 6 that acting has at step t."""
    net = make(architecture, prior=PriorConfig(kind=kind, span=4.0))
    observation, previous = window(9)
    found = episode_attention(net, observation, previous)
    assert [maps.shape for maps in found.values()] == [(2, 9, 9)] * 2
    for t in range(9):
        first = max(0, t - 5)
        for layer, maps in window_attention(net, observation[first : t + 1], previous[first : t + 1]).items():
            expected = torch.zeros(2, 9, dtype=torch.float64)
            expected[:, first : t + 1] = maps[:, t - first, : t + 1 - first]
            torch.testing.assert_close(found[layer][:, t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("architecture", ["attention", "gtrxl_memory"])
def test_a_decision_that_goes_on_from_a_state_attended_to_what_that_holds(architecture, monkeypatch):
    """Of every step the newest row over the inputs that each layer's state holds, and its own."""
    net, (observation, previous), seen = make(architecture, layers=2), window(9), []
    run, draws = StreamedAttention.run, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.layers.parameters():
            parameter.normal_(generator=draws)  # so that weights are far from even

    def watched(block, x, state, reset):
        count = int(state[1])
        inputs = torch.cat((state[0][:, block.context - 1 - count :], x), 1)
        seen.append(block.attention.weights(inputs)[0, :, -1])  # (H, count + 1)
        return run(block, x, state, reset)

    with monkeypatch.context() as patched:
        patched.setattr(StreamedAttention, "run", watched)
        carried_states(net, observation, previous)
    found = episode_attention(net, observation, previous, state="episode")
    assert list(found) == [0, 1] and len(seen) == 2 * 9
    for number, weights in enumerate(seen):
        (t, layer), count = divmod(number, 2), weights.shape[1]
        expected = torch.zeros(2, 9, dtype=torch.float64)
        expected[:, t + 1 - count : t + 1] = weights
        torch.testing.assert_close(found[layer][:, t], expected, rtol=0, atol=1e-12)
    windowed = episode_attention(net, observation, previous)
    assert torch.allclose(windowed[0], found[0]) and (windowed[1] - found[1]).abs().max() > 0.01


@pytest.mark.parametrize("architecture", ["gru", "attention", "gtrxl_memory", "lstm_bare"])
def test_what_is_carried_is_the_state_of_each_step(architecture):
    net, (observation, previous) = make(architecture), window(9)
    states = carried_states(net, observation, previous)
    for length in (1, 5, 9):
        _, state = net.sequence(observation[None, :length], previous[None, :length])
        for layer, parts in enumerate(state):
            numbers = [part.flatten() for part in parts if part.is_floating_point()]
            np.testing.assert_allclose(states[layer][length - 1], torch.cat(numbers).detach(), atol=1e-12)


def test_sensitivity_lies_where_a_network_can_look():
    memoryless = sensitivity(network("dqn"), *window())
    torch.testing.assert_close(memoryless, torch.tensor([0, 0, 0, 0, 0, 1.0], dtype=torch.float64))
    recurrent = sensitivity(network("drqn"), *window())
    assert recurrent.sum() == pytest.approx(1) and (recurrent > 0).all()
    local = network("dtqn_attention", prior=PriorConfig(kind="local", local_window=1), layers=1)
    assert (sensitivity(local, *window())[:4] == 0).all() and sensitivity(local, *window())[4] > 0


def test_prior_tables_tell_weights_from_factors():
    def tables(architecture, **changes):
        return attention.prior_tables(attention.attention_priors(network(architecture, **changes)), 6)

    assert tables("dgfqn")[0] == {} and tables("drqn")[0] == {}
    gaussian, meaning = tables("dgfqn", prior=PriorConfig(kind="gaussian", mu=2.0, sigma=1.0))
    assert meaning == "prior weight" and len(gaussian) == 2
    np.testing.assert_allclose(gaussian["layer 1"][0], np.exp(-((np.arange(6) - 2.0) ** 2) / 2), rtol=1e-5)
    gate, meaning = tables("dgfqn", prior=PriorConfig(kind="adaptive_gate", span=4.0))
    assert meaning == "factor on the scores"
    np.testing.assert_allclose(gate["layer 0"][1], np.maximum(0, 1 - np.arange(6) / 4), rtol=1e-5, atol=1e-6)


def inspected(capsys, run, *argv, episodes=3):
    main([str(run), "--episodes", str(episodes), "--moments", "4", *argv])
    return capsys.readouterr().out, json.loads((run / "inspect" / "inspect.json").read_text())


@pytest.mark.long
def test_the_script_on_a_bidirectional_network_with_priors(tmp_path, capsys):
    run = trained(
        tmp_path / "run", "--architecture", "dbgfqn", "--layers", "2", "--prior", "gaussian_adaptive",
        "--mu", "3", "--span", "5",
    )  # fmt: skip
    before = contents(run)
    text, facts = inspected(capsys, run)
    length = facts["episode"]["length"]
    assert "hindsight (not causal, but trained on prefixes alone)" in text and "recall: replacing" in text
    assert facts["causal"] is False and facts["trained_on_whole_windows"] is False
    assert facts["hindsight"]["gap"] > 1e-6 and facts["hindsight"]["positions"] >= length * 7 // 8
    assert len(facts["discrepancy"]["gap"]) == len(facts["discrepancy"]["q_window"]) == length
    assert facts["recall"]["distance"] == list(range(8)) and facts["recall"]["decisions"][0] == 12
    assert facts["recall"]["occlusion"][0] > 0
    pictures = ["attention_layer_0.png", "attention_layer_1.png", "priors.png", "recall.png"]
    assert facts["pictures"] == [*pictures, "episode.gif"]
    assert len(facts["learned"]) == 2 * 2 * 3
    for name in facts["pictures"]:
        assert np.asarray(Image.open(run / "inspect" / name).convert("L")).std() > 5
    assert Image.open(run / "inspect" / "episode.gif").n_frames == length + 1
    after = contents(run)
    assert {name: after[name] for name in before} == before
    again = inspected(capsys, run, "--no-frames")[1]
    assert again == facts | {"pictures": pictures}  # the same episodes again


@pytest.mark.long
def test_the_script_on_causal_networks_and_chosen_starts(tmp_path, capsys):
    run = trained(tmp_path / "run", "--time-limit", "20", env="POMDP/HeavenHell-v0")
    text, facts = inspected(capsys, run, "--initial", "1", "--no-frames", episodes=1)
    assert "hindsight (causal)" in text and facts["hindsight"]["largest"] == 0
    assert set(facts["discrepancy"]["gap"]) == {0.0}
    assert facts["initial"] == 1 and facts["recall"]["config"] == {"moments": 4, "resamples": 2}
    assert facts["pictures"] == ["attention_layer_0.png", "recall.png"]
    for wrong in ("2", "-1"):
        assert "0 .. 1" in refused(capsys, [str(run), "--initial", wrong], main)
    run = trained(tmp_path / "gru", "--architecture", "gru", "--time-limit", "20", env="POMDP/HeavenHell-v0")
    _, facts = inspected(capsys, run, "--no-frames", episodes=1)
    assert facts["pictures"] == ["states_layer_0.png", "recall.png"]
    network, config, _ = load_network(run, torch.device("cpu"))
    for state, shown in ("window", 8), ("episode", facts["episode"]["length"]):  # windows of 8 begin anew at each step
        changed = replace(config, acting_state=state)
        found = inspect_network(
            InspectArgs(episodes=1, frames=False), changed, network, changed.eval_setup(torch.device("cpu"))
        )
        assert len(found.states[0]) == shown and facts["episode"]["length"] > 8


def test_an_environment_without_pictures_is_inspected_without_them(tmp_path, capsys):
    gymnasium.register("Blank-v0", Three, max_episode_steps=5)  # takes no keywords
    run = trained(tmp_path / "run", env="Blank-v0")
    main([str(run), "--episodes", "1", "--moments", "2"])
    said = capsys.readouterr()
    assert "'Blank-v0' draws nothing" in said.err and "episode.gif" not in said.out and "recall.png" in said.out
    (line,) = (line for line in said.out.splitlines() if line.startswith(f"{run} at step"))
    assert line.count("return ") == 1  # the environment tells no success


def test_wrong_input_is_one_line_and_writes_nothing(tmp_path, capsys):
    run = trained(tmp_path / "run", "--architecture", "drqn")
    capsys.readouterr()
    before = contents(tmp_path)
    wrong = (
        ["--initial", "0"], ["--device", "abacus"], ["--episodes", "0"], ["--moments", "0"], ["--resamples", "0"],
        ["--seed", "-1"],
    )  # fmt: skip
    for argv in ([str(tmp_path)], [], *([str(run), *each] for each in wrong)):
        refused(capsys, argv, main)
    assert contents(tmp_path) == before
    pictures = inspected(capsys, run)[1]["pictures"]
    assert pictures == ["states_layer_0.png", "recall.png", "episode.gif"]  # no attention
