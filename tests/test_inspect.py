"""Attention maps, sensitivity and hindsight are what they say; the script writes them and changes nothing else."""

import json

import numpy as np
import pytest
import torch
from helpers import NUM_ACTIONS, TOKENS, network
from PIL import Image
from trained import CAR, MEMORY, contents, one_line, trained

from dqn_memory.blocks import Attention, PriorConfig
from dqn_memory.context import Context
from dqn_memory.inspect import Window, main, prior_tables
from dqn_memory.introspection import attention_maps, hindsight, prefix_q_values, sensitivity
from dqn_memory.playing import Episode

ARCHITECTURES = ("dtqn4", "dgfqn", "dbgfqn", "gtrxl", "drqn", "adrqn", "dqn", "dtqn_attention")


def make(architecture, **changes):
    """A small network for acting."""
    return network(architecture, action_embedding=3 if architecture == "adrqn" else None, **changes).eval()


def window(length=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randint(TOKENS.vocabulary - 1, (length, 2), generator=generator)
    previous = torch.randint(NUM_ACTIONS, (length,), generator=generator)
    previous[0] = NUM_ACTIONS
    return observation, previous


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_maps_are_those_of_the_forward_pass(architecture):
    net, inputs = make(architecture), []
    blocks = [module for module in net.modules() if isinstance(module, Attention)]
    hooks = [block.register_forward_pre_hook(lambda _, x: inputs.append(x[0].clone())) for block in blocks]
    net(*(each[None] for each in window()))
    for hook in hooks:
        hook.remove()
    maps = attention_maps(net, *window())
    assert len(maps) == len(blocks) == len(inputs)
    for block, x, drawn in zip(blocks, inputs, maps.values(), strict=True):
        torch.testing.assert_close(drawn, block.weights(x)[0], rtol=0, atol=1e-14)
        torch.testing.assert_close(drawn.sum(-1), torch.ones(2, 6, dtype=torch.float64))
        assert (drawn.triu(1) == 0).all()


@pytest.mark.parametrize("acting", ["prefix", "padded"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prefixes_are_what_acting_sees(architecture, acting):
    net = make(architecture)
    observation, previous = window(4)
    context = Context(net.spec, net.num_actions, 1, net.config.context, torch.device("cpu"))
    found = prefix_q_values(net, observation, previous, acting)
    for t in range(4):
        context.push(observation[t : t + 1], previous[t : t + 1], torch.tensor([t == 0]))
        lengths = None if acting == "padded" else context.lengths
        acted = net.at(context.observation, context.previous_action, lengths, context.lengths - 1)
        torch.testing.assert_close(found[t], acted[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hindsight_is_nothing_for_causal_networks_and_something_for_others(architecture):
    net = make(architecture)
    found = hindsight(net, *window())
    assert found.positions == 5 and found.spread > 0
    if net.causal:
        assert found.largest < 1e-12 and found.flips == 0
    else:
        assert found.largest >= found.gap > found.spread / 50
    assert hindsight(net, *window(1)).positions == 0


def test_hindsight_counts_flips_against_the_prefix():
    net = make("dbgfqn", seed=3)
    observation, previous = window(6, seed=1)
    with torch.no_grad():
        inside = net(observation[None], previous[None])[0]
        alone = torch.stack(
            [net(observation[None, : t + 1], previous[None, : t + 1])[0, -1] for t in range(len(observation))]
        )
    found = hindsight(net, observation, previous)
    assert found.gap == pytest.approx(float((inside - alone)[:5].abs().mean()), rel=1e-9)
    assert found.flips == pytest.approx(float((inside.argmax(1) != alone.argmax(1))[:5].double().mean()))


def test_sensitivity_lies_where_a_network_can_look():
    memoryless = sensitivity(network("dqn"), *window())
    torch.testing.assert_close(memoryless, torch.tensor([0, 0, 0, 0, 0, 1.0], dtype=torch.float64))
    recurrent = sensitivity(network("drqn"), *window())
    assert recurrent.sum() == pytest.approx(1) and (recurrent > 0).all()
    local = network("dtqn_attention", prior=PriorConfig(kind="local", window=1), layers=1)
    assert (sensitivity(local, *window())[:4] == 0).all() and sensitivity(local, *window())[4] > 0


def test_prior_tables_tell_weights_from_factors():
    assert prior_tables(network("dgfqn")) == {} and prior_tables(network("drqn")) == {}
    gaussian = prior_tables(network("dgfqn", prior=PriorConfig(kind="gaussian", mu=2.0, sigma=1.0)))
    kind, table = gaussian["layer 1"]
    assert kind == "bias" and len(gaussian) == 2
    np.testing.assert_allclose(table[0], np.exp(-((np.arange(6) - 2.0) ** 2) / 2), rtol=1e-5)
    kind, table = prior_tables(network("dgfqn", prior=PriorConfig(kind="adaptive_gate", span=4.0)))["layer 0"]
    assert kind == "scale"
    np.testing.assert_allclose(table[1], np.maximum(0, 1 - np.arange(6) / 4), rtol=1e-5, atol=1e-6)


def test_the_window_is_the_last_k_steps():
    observation, previous = window(9)
    zeros = np.zeros(9)
    episode = Episode(observation, previous, zeros.astype(int), np.zeros((9, 3)), zeros, (), False)
    last = Window.last(episode, 6, torch.device("cpu"))
    assert last.first == 3 and torch.equal(last.observation, observation[3:])
    assert Window.last(episode, 20, torch.device("cpu")).first == 0


def inspected(capsys, run, *argv):
    main([str(run), *argv])
    return capsys.readouterr().out, json.loads((run / "inspect" / "inspect.json").read_text())


def test_the_script_on_a_bidirectional_network_with_priors(tmp_path, capsys):
    run = trained(
        tmp_path / "run", "--architecture", "dbgfqn", "--layers", "2", "--prior", "gaussian_adaptive",
        "--mu", "3", "--span", "5", env=CAR,
    )  # fmt: skip
    before = contents(run)
    text, facts = inspected(capsys, run)
    assert "hindsight (not causal)" in text and facts["causal"] is False
    assert facts["hindsight"]["gap"] > 1e-6 and facts["hindsight"]["positions"] == 7
    assert facts["window"]["last_step"] - facts["window"]["first_step"] == 7
    names = ["attention_layer_0.png", "attention_layer_1.png", "priors.png", "q_values.png"]
    assert facts["pictures"] == names and len(facts["learned"]) == 2 * 2 * 3
    for name in names:
        assert np.asarray(Image.open(run / "inspect" / name).convert("L")).std() > 5
    after = contents(run)
    assert {name: after[name] for name in before} == before
    assert inspected(capsys, run)[1] == facts  # the same episode again


def test_the_script_on_causal_networks_and_chosen_starts(tmp_path, capsys):
    run = trained(tmp_path / "run", env=MEMORY)
    text, facts = inspected(capsys, run, "--initial", "5")
    assert "hindsight (causal)" in text and facts["hindsight"]["largest"] < 1e-5
    assert facts["initial"] == 5 and facts["pictures"] == ["attention_layer_0.png", "q_values.png"]
    for wrong in ("24", "-1"):
        with pytest.raises(SystemExit) as stop:
            main([str(run), "--initial", wrong])
        assert stop.value.code == 2 and "0 .. 23" in one_line(capsys.readouterr().err)


def test_wrong_input_is_one_line_and_writes_nothing(tmp_path, capsys):
    run = trained(tmp_path / "run", "--architecture", "drqn", env=CAR)
    capsys.readouterr()
    before = contents(tmp_path)
    for argv in ([str(run), "--initial", "0"], [str(tmp_path)], [], [str(run), "--device", "abacus"]):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 2 and one_line(capsys.readouterr().err)
    assert contents(tmp_path) == before
    assert inspected(capsys, run)[1]["pictures"] == ["q_values.png"]  # nothing to attend with
