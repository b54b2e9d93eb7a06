"""Targets are those of a replay in plain Python; the bench writes rows, goes on where it stopped, and gru learns."""

import json

import pytest
import torch
from run_folders import refused

from dqn_memory import memory_bench
from dqn_memory.blocks import build, names
from dqn_memory.memory_bench import (
    BLANK,
    ITEMS,
    KEY,
    PAIR,
    RECALL,
    SYMBOLS,
    TASKS,
    BenchSizes,
    MemoryBenchArgs,
    accuracy_at,
    build_network,
    draw_sequences,
    evaluation_batch,
    main,
    network_config,
    training_batch,
    updater,
)
from dqn_memory.network import ARCHITECTURES
from dqn_memory.runs.seeding import generator
from dqn_memory.size import count, match

ALL = pytest.mark.parametrize("task", TASKS)
DUPLICATES = {"feedforward_x1", "feedforward_x2", "feedforward_x3", "feedforward_x4", "linear"}  # of the control mlp
PUBLISHED = {"darqn", "darqn_released"}  # an lstm in the form of one paper
QUICK = ("--quick", "--seeds", "1", "--task", "copy")


def answer(task, seen, token):
    """What `token` asks for after the tokens of its episode so far; None: nothing."""
    if task == "copy":
        return [each for each in seen if each < SYMBOLS][seen.count(RECALL)] if token == RECALL else None
    pairs = dict(divmod(each - PAIR, SYMBOLS) for each in seen if each >= PAIR)
    return pairs[token - KEY] if KEY <= token < PAIR else None


def replay(task, batch):
    """The answers to a batch, row by row and token by token, from the tokens since the last reset."""
    rows = []
    for tokens, reset in zip(batch.tokens.tolist(), batch.reset.tolist(), strict=True):
        seen, answers = [], []
        for token, begins in zip(tokens, reset, strict=True):
            seen = [] if begins else seen
            answers.append(answer(task, seen, token))
            seen.append(token)
        rows.append(answers)
    return rows


@ALL
def test_targets_are_those_of_a_replay(task):
    batch = training_batch(task, 30, 8, 160, generator(0))
    found = [
        [target if asked else None for target, asked in zip(*row, strict=True)]
        for row in zip(batch.targets.tolist(), batch.asked.tolist(), strict=True)
    ]
    assert found == replay(task, batch)
    assert batch.reset[:, 0].all() and int(batch.reset.sum()) > 3 * len(batch.reset)
    assert sum(each is not None for row in found for each in row) > 50


@ALL
def test_answers_of_every_class_are_asked_for(task):
    batch = training_batch(task, 30, 64, 160, generator(0))
    share = batch.targets[batch.asked].bincount(minlength=SYMBOLS) / batch.asked.sum()
    assert len(share) == SYMBOLS and share.min() > 0.05 and share.max() < 0.25


@ALL
@pytest.mark.parametrize("delay", [1, 2, 37])
def test_an_evaluation_has_two_whole_episodes_of_its_delay(task, delay):
    batch, length = evaluation_batch(task, delay, 3, generator(0)), delay + 2 * ITEMS
    assert batch.reset.nonzero()[:, 1].tolist() == 3 * [0, length] and batch.tokens.shape == (3, 2 * length)
    assert batch.asked[:, :length].equal(batch.asked[:, length:])


def test_a_delay_is_what_lies_between():
    tokens = draw_sequences("copy", torch.full((1, 1), 5), 13, generator(0)).tokens[0].tolist()
    assert tokens[4:] == 5 * [BLANK] + 4 * [RECALL]


def test_delays_of_training_reach_the_longest():
    batch = training_batch("copy", 16, 256, 64, generator(0))
    time = torch.arange(64).expand_as(batch.reset)
    began = time.where(batch.reset, 0).cummax(1).values
    before = torch.nn.functional.pad(batch.asked, (1, 0))[:, :-1]
    delays = (time - began)[batch.asked & ~before] - ITEMS  # at the first of an episode's queries
    assert delays.min() == 1 and delays.max() == 16


def test_every_memory_that_goes_on_from_a_state_is_there():
    stateful = {name for name in names() if build(name, 16).stateful} - DUPLICATES - PUBLISHED
    there = {ARCHITECTURES[name].memory for name in memory_bench.compared_memories()} | set(
        memory_bench.compared_memories()
    )
    assert stateful <= there


@pytest.mark.parametrize("name", memory_bench.compared_memories())
def test_networks_have_as_many_parameters(name):
    assert 98_000 <= count(build_network(MemoryBenchArgs(quick=True).config(name), 0)).trainable <= 100_000


def test_more_seconds_allow_more_updates(monkeypatch):
    monkeypatch.setattr(memory_bench, "BenchSizes", lambda: BenchSizes(2, 48, 16, (2, 32), 2))
    few, many = (memory_bench.affordable_updates("mlp", MemoryBenchArgs(seconds=seconds)) for seconds in (1e-9, 100))
    assert few == 1 < 1_000 < many


def test_evaluation_is_the_same_in_chunks():
    network = build_network(network_config("gru"), 0)
    update = updater(network, 1e-2, 20)
    for _ in range(20):
        update(training_batch("associative_recall", 4, 8, 32, generator(0)))
    whole, parts = (
        accuracy_at(network, "associative_recall", 40, BenchSizes(length=n), generator(1)) for n in (100, 7)
    )
    assert whole == parts


def test_gru_learns_to_copy_and_mlp_does_not():
    accuracy = {}
    for name in ("gru", "mlp"):
        network, draws = build_network(match("20k", network_config(name), memory_bench.SPEC, SYMBOLS), 0), generator(0)
        update = updater(network, 1e-2, 200)
        for _ in range(200):
            update(training_batch("copy", 2, 16, 32, draws))
        accuracy[name] = accuracy_at(network, "copy", 2, BenchSizes(), generator(1))
    assert accuracy["gru"] > 0.5
    assert accuracy["mlp"] < 0.2


def rows(folder, title):
    tables = json.loads((folder / "memory_bench.json").read_text(encoding="utf-8"))["tables"]
    return next(table["rows"] for table in tables if table["title"] == title)


def test_the_script_writes_tables_and_a_figure(tmp_path, capsys):
    main([*QUICK, "--task", "associative_recall", "--memory", "gru", "--memory", "mlp", "--write", str(tmp_path)])
    assert "Accuracy: associative_recall" in capsys.readouterr().out
    assert {(row["task"], row["memory"]) for row in rows(tmp_path, "Trainings")} == {
        (task, memory) for task in ("copy", "associative_recall") for memory in ("gru", "mlp")
    }
    assert (tmp_path / "memory_bench.png").read_bytes().startswith(b"\x89PNG")
    assert "## Accuracy: copy" in (tmp_path / "memory_bench.md").read_text(encoding="utf-8")


def test_a_stopped_bench_goes_on(tmp_path, monkeypatch, capsys):
    train, made = memory_bench.train_network, []

    def stopped(task, name, *others):
        made.append(name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return train(task, name, *others)

    monkeypatch.setattr(memory_bench, "train_network", stopped)
    command = [*QUICK, "--memory", "gru", "--memory", "mlp", "--write", str(tmp_path)]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(command)
    before = rows(tmp_path, "Trainings")
    assert [row["memory"] for row in before] == ["gru"]
    main(command)
    assert made == ["gru", "mlp", "mlp"]
    assert rows(tmp_path, "Trainings")[:1] == before
    main(command)
    assert len(made) == 3


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


def test_rows_of_other_settings_are_not_training_batch(tmp_path, capsys):
    main([*QUICK, "--memory", "mlp", "--write", str(tmp_path)])
    sentence = refused(capsys, [*QUICK, "--memory", "mlp", "--seconds", "5", "--write", str(tmp_path)], main)
    assert "holds rows of --seconds 60.0, not 5.0" in sentence
