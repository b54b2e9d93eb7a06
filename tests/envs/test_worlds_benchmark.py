"""The benchmark of the worlds: its bars, its tables and what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from world_keywords import IDS

from envs.benchmark import NEED_A_FILE, Args, main
from envs.benchmark_cuda import RandomPlay, capture
from envs.benchmark_measures import Effort, world_row
from envs.benchmark_originals import ORIGINALS, bars
from envs.benchmark_pages import Table, cell, markdown, write
from envs.errors import UserError
from envs.fleet import advance
from envs.registry import make_world

ROOT = Path(__file__).parents[2]
IDS_OF_TWO_KINDS = ["POMDP/MemoryCards-v0", "Gridverse/Memory-5x5-v0"]


def test_bars():
    assert bars("Gridverse/Memory-5x5-v0").single == pytest.approx(1e6 / 214)
    assert bars("Gridverse/Memory-13x13-v0").single == pytest.approx(3e6 / 636)
    assert bars("Gridverse/Keydoor-9x9-v0").single == pytest.approx(1e6 / 488)
    assert bars("Gridverse/Memory-FourRooms-7x7-v0").many == pytest.approx(300e6 / 269)
    assert bars("POMDP/CarFlag-v0").many == 5e6
    assert bars("POMDP/CarFlag-v0").single is None
    assert bars("Gridverse/Memory-Empty-13x13-v0").many is None


def test_every_original_is_a_world_of_ours():
    assert set(ORIGINALS) <= set(IDS)
    assert len(ORIGINALS) == 24
    without = set(IDS) - set(ORIGINALS) - set(NEED_A_FILE)
    assert without == {"Gridverse/Memory-Empty-13x13-v0", "Pixel/BlinkingCatch-v0"}


def test_a_row_says_whether_the_bars_hold():
    effort = Effort(repetitions=2, single_steps=50, many=8, many_steps=4, warm_up=4)
    row = world_row("Gridverse/Memory-5x5-v0", effort)
    assert row["one"] > 0
    assert row["one_ratio"] == pytest.approx(row["one"] / row["original"])
    assert row["many_holds"] == (row["many"] >= row["many_bar"])


def test_the_script_prints_a_table_and_writes_two_files(tmp_path, capsys):
    main(["--quick", "--folder", str(tmp_path), "--only", *IDS_OF_TWO_KINDS, "--threads", "1"])
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "worlds.json").read_text())
    page = (tmp_path / "worlds.md").read_text()
    assert [row["world"] for row in report["tables"][0]["rows"]] == IDS_OF_TWO_KINDS
    assert report["machine"]["command"].startswith("python -m envs.benchmark --quick")
    assert {"cpu", "cores", "torch", "revision", "dirty", "threads"} <= set(report["machine"])
    for id in IDS_OF_TWO_KINDS:
        assert id in printed
        assert f"| {id} |" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worlds.json", "worlds.md"]


def test_cells():
    values = (None, True, False, 4672.9, 0.59712, "name")
    assert [cell(value) for value in values] == ["", "yes", "NO", "4,673", "0.597", "name"]


def test_a_page_has_every_column_of_every_row():
    page = markdown({"cpu": "x"}, [Table("T", "note", [{"world": "a", "one": 1.0}, {"world": "b", "many": 2.5}])])
    assert page.splitlines()[-4:] == [
        "| world | one | many |",
        "| --- | ---: | ---: |",
        "| a | 1 |  |",
        "| b |  | 2.5 |",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "POMDP/CarFlg-v0"], "POMDP/CarFlag-v0"),
        (["--only", "Gridverse/Yaml-v0"], "its file decides"),
        (["--threads", "0"], "--threads must be at least 1"),
    ],
)
def test_misuse_is_one_line(words, told, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert told in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what is said without a CUDA device; there is one here")
def test_without_a_cuda_device_it_says_so():
    with pytest.raises(UserError, match="no CUDA device"):
        Args(device="cuda").check()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "file", {}, [])


def test_the_package_of_the_worlds_imports_nothing_of_the_core():
    code = "import sys, envs.benchmark, envs.checker, envs.wrappers; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    names = done.stdout.split()
    assert "envs.benchmark" in names, done.stderr
    assert not [name for name in names if name.startswith(("dqn_memory", "world_models"))]


def by_hand(id, count, steps):
    """What RandomPlay should do, from its stream of random numbers."""
    world, stream = make_world(id, time_limit=9), torch.Generator().manual_seed(3)

    def rand(draws):
        return torch.rand(count, draws, dtype=torch.float64, generator=stream)

    state, finished = world.reset(rand(world.reset_draws)), 0
    for _ in range(steps):
        u = rand(1 + world.step_draws + world.reset_draws)
        state, step = advance(world, state, (u[:, 0] * world.num_actions).long(), u[:, 1:])
        finished += int(step.done.sum())
    return state, finished


@pytest.mark.parametrize("id", [*IDS_OF_TWO_KINDS, "Gridverse/Memory-NineRooms-13x13-v0"])
def test_random_play_keeps_its_tensors_and_counts_episodes(id):
    play = RandomPlay(make_world(id, time_limit=9), 16, seed=3)
    places = [value.data_ptr() for value in vars(play.state).values()]
    for _ in range(25):
        play.step()
    state, finished = by_hand(id, 16, 25)
    assert all(torch.equal(vars(play.state)[name], vars(state)[name]) for name in vars(state))
    assert int(play.finished) == finished > 0
    assert [value.data_ptr() for value in vars(play.state).values()] == places


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph; no CUDA device is here")
@pytest.mark.parametrize("id", IDS_OF_TWO_KINDS)
def test_a_captured_cuda_graph_plays_episodes_that_end(id):
    play = RandomPlay(make_world(id, "cuda", time_limit=9), 64)
    graph = capture(play, 5)
    before = int(play.finished)
    for _ in range(8):
        graph.replay()
    torch.cuda.synchronize()
    assert int(play.finished) >= before + 64 * 3
    assert int(play.state.steps.max()) < 9
