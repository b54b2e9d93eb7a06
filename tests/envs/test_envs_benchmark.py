"""The benchmark of the worlds: its bars, its tables and what it writes."""

import json

import pytest
import torch
from run_folders import refused
from world_keywords import IDS

from envs.benchmark import ORIGINALS, RandomPlay, bars, capture, main
from envs.fleet import advance
from envs.registry import FROM_FILES, make_world

IDS_OF_TWO_KINDS = ["POMDP/MemoryCards-v0", "Gridverse/Memory-5x5-v0"]


@pytest.mark.parametrize(("id", "single", "vector"), [
    ("Gridverse/Memory-11x11-v0", 1e6 / 466, 300e6 / 466),
    ("Gridverse/Memory-13x13-v0", 3e6 / 636, 300e6 / 636),
    ("Gridverse/Memory-FourRooms-7x7-v0", 1e6 / 269, 300e6 / 269),
    ("POMDP/CarFlag-v0", None, 5e6),
    ("Gridverse/Memory-Empty-13x13-v0", None, None),
])  # fmt: skip
def test_bars(id, single, vector):
    assert bars(id) == pytest.approx({"single": single, "vector": vector})


def test_every_original_is_a_world_of_ours():
    assert set(ORIGINALS) <= set(IDS)
    assert len(ORIGINALS) == 24
    without = set(IDS) - set(ORIGINALS) - set(FROM_FILES)
    assert without == {"Gridverse/Memory-Empty-13x13-v0", "Pixel/BlinkingCatch-v0"}


def test_the_script_prints_a_table_and_writes_two_files(tmp_path, capsys):
    asked = [f"--env={id}" for id in IDS_OF_TWO_KINDS]
    main(["--quick", "--write", str(tmp_path), *asked, "--threads", "1"])
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "environments.json").read_text())
    page = (tmp_path / "environments.md").read_text()
    rows = report["tables"][0]["rows"]
    assert [row["env"] for row in rows] == IDS_OF_TWO_KINDS
    assert all(f"| {id} |" in page and id in printed for id in IDS_OF_TWO_KINDS)
    for row in rows:
        assert row["single"] > 0 and row["single_ratio"] == pytest.approx(row["single"] / row["original"])
        assert row["vector_holds"] == (row["vector"] >= row["vector_bar"])
    assert report["machine"]["command"].startswith("python -m envs.benchmark --quick")
    assert {"cpu", "cores", "torch", "revision", "dirty", "threads"} <= set(report["machine"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environments.json", "environments.md"]


@pytest.mark.parametrize(("words", "sentence"), [
    (["--env", "POMDP/CarFlg-v0"], "POMDP/CarFlag-v0"),
    (["--env", "Gridverse/Yaml-v0"], "its file decides"),
    (["--threads", "0"], "--threads 0 must be from 1 to 1,024"),
    (["--device", "cuda"], "no CUDA device"),
    (["--write", __file__], "cannot write"),
])  # fmt: skip
def test_misuse_is_one_line(words, sentence, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sentence in refused(capsys, words, main)


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
