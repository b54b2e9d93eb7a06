"""Targets are those of a replay in plain Python; the bench writes rows, goes on where it stopped, and gru learns."""

import itertools
import json

import pytest
import torch
from run_folders import refused

from dqn_memory import memory_bench
from dqn_memory.analysis import remembering
from dqn_memory.analysis.remembering import FIRST, KEY, PAIR, PREVIOUS, RECALL, SYMBOLS, TASKS, fixed, mixed
from dqn_memory.analysis.size import match
from dqn_memory.blocks import build, names
from dqn_memory.memory_bench import Args, Results, Sizes, build_network, evaluate, main, network_config, updater
from dqn_memory.network import ARCHITECTURES
from dqn_memory.runs.seeding import generator

ALL = pytest.mark.parametrize("task", TASKS)
DUPLICATES = {"feedforward_x1", "feedforward_x2", "feedforward_x3", "feedforward_x4", "linear"}  # of the control mlp
PUBLISHED = {"darqn", "darqn_released"}  # an lstm in the form of one paper
QUICK = ("--quick", "--seeds", "1", "--task", "copy")


def answer(task, seen, token):
    """What `token` asks for after the tokens of its episode so far; None: nothing."""
    if task in ("copy", "selective_copy"):
        return [each for each in seen if each < SYMBOLS][seen.count(RECALL)] if token == RECALL else None
    if task == "count":
        return seen.count(0) if token == RECALL else None
    if task == "associative_recall":
        pairs = dict(divmod(each - PAIR, SYMBOLS) for each in seen if each >= PAIR)
        return pairs[token - KEY] if KEY <= token < PAIR else None
    return {FIRST: lambda: seen[0], PREVIOUS: lambda: seen[-1]}.get(token, lambda: None)()


def replay(task, batch, resets=True):
    """The answers to a batch, row by row and token by token, from the tokens since the last reset."""
    rows = []
    for tokens, reset in zip(batch.tokens.tolist(), batch.reset.tolist(), strict=True):
        seen, answers = [], []
        for token, begins in zip(tokens, reset, strict=True):
            seen = [] if begins and resets else seen
            answers.append(answer(task, seen, token))
            seen.append(token)
        rows.append(answers)
    return rows


@ALL
def test_targets_are_those_of_a_replay(task):
    batch = mixed(task, 30, 8, 160, generator(0))
    found = [
        [target if asked else None for target, asked in zip(*row, strict=True)]
        for row in zip(batch.targets.tolist(), batch.asked.tolist(), strict=True)
    ]
    assert found == replay(task, batch)
    assert batch.reset[:, 0].all() and int(batch.reset.sum()) > 3 * len(batch.reset)
    assert sum(each is not None for row in found for each in row) > 50


@pytest.mark.parametrize("task", ["count", "first_or_previous"])
def test_without_resets_the_answers_would_be_others(task):
    """In the other tasks what is newer stands before what is older."""
    batch = mixed(task, 30, 8, 160, generator(0))
    right, wrong = (itertools.chain.from_iterable(replay(task, batch, resets)) for resets in (True, False))
    changed = [a != b for a, b in zip(right, wrong, strict=True) if a is not None]
    assert sum(changed) > 0.2 * len(changed)


@ALL
def test_answers_of_every_class_are_asked_for(task):
    batch = mixed(task, 30, 64, 160, generator(0))
    share = batch.targets[batch.asked].bincount(minlength=SYMBOLS) / batch.asked.sum()
    assert len(share) == SYMBOLS and share.min() > 0.05 and share.max() < 0.25


@ALL
@pytest.mark.parametrize("delay", [1, 2, 37])
def test_an_evaluation_has_two_whole_episodes_of_its_delay(task, delay):
    batch, length = fixed(task, delay, 3, generator(0)), delay + TASKS[task][1]
    assert batch.reset.nonzero()[:, 1].tolist() == 3 * [0, length] and batch.tokens.shape == (3, 2 * length)
    assert batch.asked[:, :length].equal(batch.asked[:, length:])


def test_a_delay_is_what_lies_between():
    tokens = remembering.draw("copy", torch.full((1, 1), 5), 13, generator(0)).tokens[0].tolist()
    assert tokens[4:] == 5 * [remembering.BLANK] + 4 * [RECALL]


def test_delays_of_training_reach_the_longest():
    batch = mixed("first_or_previous", 16, 256, 64, generator(0))
    time = torch.arange(64).expand_as(batch.reset)
    began = time.where(batch.reset, 0).cummax(1).values
    delays = (time - began)[batch.asked]
    assert delays.min() == 1 and delays.max() == 16


def test_every_memory_that_goes_on_from_a_state_is_there():
    stateful = {name for name in names() if build(name, 16).stateful} - DUPLICATES - PUBLISHED
    there = {ARCHITECTURES[name].memory for name in memory_bench.memories()} | set(memory_bench.memories())
    assert stateful <= there


@pytest.mark.parametrize("name", memory_bench.memories())
def test_networks_have_as_many_parameters(name):
    cost = memory_bench.measure_cost(name, Args(quick=True))
    assert 98_000 <= cost["parameters"] <= 100_000
    assert min(cost["train_us"], cost["step_us"], cost["train_bytes"]) > 0


def test_cost_counts_the_state_of_a_row():
    assert memory_bench.measure_cost("mlp", Args(quick=True))["state_bytes"] == 0
    gru = memory_bench.measure_cost("gru", Args(quick=True))
    assert gru["state_bytes"] == 4 * gru["width"]


def test_evaluation_is_the_same_in_chunks():
    network = build_network(network_config("gru"), 0)
    update = updater(network, 1e-2, 20)
    for _ in range(20):
        update(mixed("first_or_previous", 4, 8, 32, generator(0)))
    whole, parts = (evaluate(network, "first_or_previous", 40, Sizes(length=n), generator(1)) for n in (100, 7))
    assert whole == parts


def test_gru_learns_to_copy_and_mlp_does_not():
    accuracy = {}
    for name in ("gru", "mlp"):
        network, draws = build_network(match("20k", network_config(name), memory_bench.SPEC, SYMBOLS), 0), generator(0)
        update = updater(network, 1e-2, 200)
        for _ in range(200):
            update(mixed("copy", 2, 16, 32, draws))
        accuracy[name] = evaluate(network, "copy", 2, Sizes(), generator(1))
    assert accuracy["gru"] > 0.5
    assert accuracy["mlp"] < 0.2


def rows(folder, title):
    tables = json.loads((folder / "memory_bench.json").read_text(encoding="utf-8"))["tables"]
    return next(table["rows"] for table in tables if table["title"] == title)


def test_the_script_writes_tables_and_a_figure(tmp_path, capsys):
    main([*QUICK, "--task", "count", "--memory", "gru", "--memory", "mlp", "--write", str(tmp_path)])
    assert "Accuracy: count" in capsys.readouterr().out
    assert {(row["task"], row["memory"]) for row in rows(tmp_path, "Trainings")} == {
        (task, memory) for task in ("copy", "count") for memory in ("gru", "mlp")
    }
    assert (tmp_path / "memory_bench.png").read_bytes().startswith(b"\x89PNG")
    assert "## Accuracy: copy" in (tmp_path / "memory_bench.md").read_text(encoding="utf-8")


def test_a_stopped_bench_goes_on(tmp_path, monkeypatch, capsys):
    train, made = memory_bench.train, []

    def stopped(task, name, *others):
        made.append(name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return train(task, name, *others)

    monkeypatch.setattr(memory_bench, "train", stopped)
    command = [*QUICK, "--memory", "gru", "--memory", "mlp", "--write", str(tmp_path)]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(command)
    before = rows(tmp_path, "Trainings")
    assert [row["memory"] for row in before] == ["gru"]
    main(command)
    assert made == ["gru", "mlp", "mlp"]
    assert rows(tmp_path, "Trainings")[:1] == before and len(rows(tmp_path, "Cost")) == 2
    main(command)
    assert len(made) == 3


def test_of_two_processes_the_first_row_stays(tmp_path):
    one, two = (Results(tmp_path, {}, Args().settings) for _ in range(2))
    one.add("cost", {"memory": "gru", "update_ms": 1.0})
    assert two.add("cost", {"memory": "gru", "update_ms": 2.0})["update_ms"] == 1.0
    two.add("cost", {"memory": "mlp", "update_ms": 3.0})
    assert [row["update_ms"] for row in rows(tmp_path, "Cost")] == [1.0, 3.0]


def test_the_number_of_updates_makes_a_row_again(tmp_path):
    for folder in ("a", "b"):
        main([*QUICK, "--memory", "gru", "--updates", "3", "--write", str(tmp_path / folder)])
    first, second = (rows(tmp_path / folder, "Trainings")[0] for folder in ("a", "b"))
    assert {**first, "cpu_s": 0} == {**second, "cpu_s": 0} and first["updates"] == 3


@pytest.mark.parametrize(("flags", "words"), [
    (("--memory", "gtu"), "unknown memory of --memory 'gtu'"),
    (("--task", "cop"), "unknown task of --task 'cop'"),
    (("--seconds", "0"), "--seconds 0.0 must be above 0"),
    (("--match", "ten"), "--match 'ten' is not a number"),
])  # fmt: skip
def test_a_wrong_flag_is_one_sentence(flags, words, capsys):
    assert words in refused(capsys, ["--quick", "--seeds", "1", *flags], main)


def test_rows_of_other_settings_are_not_mixed(tmp_path, capsys):
    main([*QUICK, "--memory", "mlp", "--write", str(tmp_path)])
    sentence = refused(capsys, [*QUICK, "--memory", "mlp", "--seconds", "5", "--write", str(tmp_path)], main)
    assert "holds rows of --seconds 60.0, not 5.0" in sentence
