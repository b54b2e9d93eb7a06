"""A run folder survives kills, full disks and damaged files, and resumes exactly."""

import errno
import json
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import assert_equal, error_of
from safetensors.torch import save as safetensors
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from dqn_memory.runs import ring
from dqn_memory.runs.checkpoint import unpack_tensors
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run

CONFIG = 'env = "Some/World-v0"\n'
HEADER = {"architecture": "dtqn", "config": CONFIG}


class Ring(ring.Ring):
    """Columns whose content tells their number."""

    def __init__(self, size: int, written: int = 0) -> None:
        super().__init__(size, 3, torch.device("cpu"))
        self.written = written
        self.asked: list[tuple[int, int]] = []

    def columns(self, start: int, stop: int) -> dict[str, Tensor]:
        assert self.oldest <= start < stop <= self.written
        self.asked.append((start, stop))
        number = torch.arange(start, stop)
        return {"number": number, "observation": number[:, None, None].expand(-1, 3, 2).float()}


def weights(step: int) -> dict[str, Tensor]:
    return {"head.weight": torch.full((4, 3), float(step)), "head.bias": torch.zeros(4, dtype=torch.float64)}


def trainer(step: int) -> dict[str, Any]:
    state = {0: {"exp_avg": torch.full((2,), step / 3), "step": torch.tensor(float(step))}}
    return {"optimiser": {"state": state, "groups": [{"lr": 3e-4, "params": [0]}]}, "step": step, "name": None}


def save(run: Run, step: int, ring: Ring | None = None) -> None:
    run.save(step, weights(step), trainer(step), ring, HEADER)


def check(run: Run, step: int, columns: tuple[int, int] | None = None) -> None:
    """The checkpoint is that of `step`, whole, with exactly these columns."""
    found = run.load()
    assert found.step == step and found.header == HEADER
    assert_equal(dict(sorted(found.weights.items())), dict(sorted(weights(step).items())))
    assert_equal(found.trainer, trainer(step))
    if columns is None:
        assert found.replay is None
        return
    assert found.replay.start == columns[0] and bool(found.replay.data) == (columns[0] < columns[1])
    if found.replay.data:
        assert found.replay.data["number"].tolist() == list(range(*columns))
        assert torch.equal(found.replay.data["observation"][:, 2, 1], torch.arange(*columns).float())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "run", CONFIG) as run:
        yield run


def files(run: Run) -> list[str]:
    folder = run.path / "checkpoints"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_create_writes_config_and_environment(run):
    assert Run.open(run.path).config_toml == CONFIG
    found = Run.open(run.path).environment
    assert found["torch"] == torch.__version__ and found["numpy"] == np.__version__
    assert found["threads"] == torch.get_num_threads() and found["device"] == "cpu"
    assert {"python", "gymnasium", "revision", "dirty", "cpu", "command"} <= found.keys()
    assert (found["revision"] is None) == (found["dirty"] is None) or found["dirty"] is True


def test_a_new_run_needs_an_empty_folder_and_an_old_one_its_own(run, tmp_path):
    before = run.config_toml
    for writer in (lambda: Run.create(run.path, "other = 1"), lambda: Run.take_up(run.path)):
        assert re.search(f"is being trained, by process {os.getpid()} on .* since 20", error_of(writer))
    run.close()
    assert "is not empty: choose another --run, or continue its run by --resume" in error_of(
        Run.create, run.path, "other = 1"
    )
    assert run.config_toml == before
    (tmp_path / "file").write_text("x")
    error_of(Run.create, tmp_path / "file", CONFIG)
    (tmp_path / "empty").mkdir()
    assert "nothing was written there yet" in error_of(Run.open, tmp_path / "empty")
    (tmp_path / "empty" / ".config.toml.0123abcd.tmp").write_text("half of a con")  # its writer was killed
    Run.create(tmp_path / "empty", CONFIG).close()
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {".lock", "config.toml", "environment.json"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert "is no run folder: it has no config.toml" in error_of(Run.open, tmp_path / "other")
    assert "holds no run (notes.txt is in it): choose another --run" in error_of(Run.create, tmp_path / "other", CONFIG)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_what_is_no_lock_and_what_is_not_ours_is_left_alone(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ".notes.tmp").write_text("precious")
    assert "holds no run (.notes.tmp is in it)" in error_of(Run.create, folder, CONFIG)
    assert (folder / ".notes.tmp").read_text() == "precious"
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / ".lock")
        words = ".lock should be a lock file, but it is something else: delete it"
        assert words in error_of(Run.create, tmp_path / name, CONFIG)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "is a link that leads nowhere" in error_of(Run.create, tmp_path / "link", CONFIG)


def test_metrics_are_json_numbers_and_nan_is_null(run):
    run.log(1, {"losses/td_loss": 1 / 3, "charts/episodes": 4})
    run.log(2, {"losses/td_loss": math.nan, "x": math.inf, "y": torch.tensor(0.5), "z": np.float32(0.25)})
    run.close()
    first, second = (run.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(first) == {"step": 1, "losses/td_loss": 1 / 3, "charts/episodes": 4}
    assert second == '{"step": 2, "losses/td_loss": null, "x": null, "y": 0.5, "z": 0.25}'
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "a"')  # a line cut short is left out of reading
    assert [line.get("z") for line in run.metrics()] == [None, 0.25]


def test_resume_cuts_metrics_to_the_checkpoint(run):
    def refuse(checkpoint):
        raise UserError("it does not fit")

    run.track(("tensorboard",))
    for step in (1, 2, 3):
        run.log(step, {"a": float(step)})
    save(run, 3)
    kept = (run.path / "metrics.jsonl").read_bytes()
    run.log(4, {"a": 4.0})
    run.log(5, {"a": 5.0})
    run.close()
    again = Run.open(run.path)
    assert len(again.metrics()) == 5  # opening and reading cut nothing
    error_of(again.resume, refuse)
    assert len(again.metrics()) == 5  # nor does what takes the checkpoint for another's
    checkpoint = again.resume()
    assert checkpoint is not None and checkpoint.step == 3
    assert (run.path / "metrics.jsonl").read_bytes() == kept
    again.track(("tensorboard",))
    again.log(4, {"a": 40.0})
    again.close()
    assert (run.path / "metrics.jsonl").read_bytes() == kept + b'{"step": 4, "a": 40.0}\n'
    events = EventAccumulator(str(run.path)).Reload().Scalars("a")
    assert {event.step: event.value for event in events} == {1: 1.0, 2: 2.0, 3: 3.0, 4: 40.0}


@pytest.mark.parametrize("before", ["total_steps = 90\n", ""])
def test_a_run_can_be_made_longer_or_shorter(run, before):
    (run.path / "config.toml").write_text(before)
    for steps in (90, 200, 96):
        run.lengthen(steps)
        assert run.config_toml == f"total_steps = {steps}\n"


def test_resume_before_the_first_checkpoint_starts_over(run):
    run.log(1, {"a": 1.0})
    run.close()
    again = Run.open(run.path)
    assert not again.has_checkpoint
    assert again.resume() is None
    assert again.metrics() == []
    assert "holds no checkpoint yet" in error_of(again.load)


def test_a_finished_run_that_was_kept_without_its_checkpoint_keeps_its_numbers(run):
    run.log(1, {"a": 1.0})
    run.log(2, {"final/success_rate": 0.5})
    run.close()
    kept = (run.path / "metrics.jsonl").read_bytes()
    said = error_of(Run.open(run.path).resume)
    assert re.search(r"is a finished run without its checkpoint.*config\.toml", said)
    assert (run.path / "metrics.jsonl").read_bytes() == kept
    save(run, 2)
    assert Run.open(run.path).resume().step == 2


def test_resume_refuses_metrics_that_lost_lines(run):
    run.log(1, {"a": 1.0})
    save(run, 1)
    run.close()
    whole = (run.path / "metrics.jsonl").read_bytes()
    for bytes_left, sentence in ((b"", "it has 0 bytes"), (bytes(len(whole)), f"its first {len(whole)} bytes")):
        (run.path / "metrics.jsonl").write_bytes(bytes_left)
        said = error_of(Run.open(run.path).resume)
        assert f"metrics.jsonl is damaged: {sentence}" in said and "train it anew with --config" in said


def test_save_and_load(run):
    save(run, 6, Ring(10, 6))
    assert run.load(with_replay=False).replay is None
    save(run, 7)  # without its replay
    check(Run.open(run.path), 7)
    assert files(run) == ["manifest.json", "step_000000007.pt", "step_000000007.safetensors"]
    manifest = json.loads((run.path / "checkpoints" / "manifest.json").read_text())
    assert manifest["content"]["replay"] == "none" and manifest["content"]["step"] == 7
    before = files(run)
    save(run, 7)  # the same step never overwrites the valid files
    assert set(before) & set(files(run)) == {"manifest.json"}
    check(run, 7)
    save(run, 8, Ring(10, 8))
    check(run, 8, (0, 8))


def test_tied_and_strided_weights(run):
    table = torch.arange(6.0).view(2, 3)
    run.save(0, {"a": table, "b": table, "c": table.T, "d": torch.nn.Parameter(table)}, {})
    found = run.load().weights
    assert torch.equal(found["c"], table.T) and torch.equal(found["a"], found["b"])
    assert not found["d"].requires_grad


def test_replay_is_appended_and_dead_chunks_go(run):
    ring, spans, held = Ring(10), [], []
    for written in (0, 4, 4, 9, 13, 15, 40):
        ring.written = written
        save(run, written, ring)
        spans.append(list(ring.asked))
        ring.asked.clear()
        held.append([name[13:-12] for name in files(run) if name.startswith("replay/")])
        check(Run.open(run.path), written, (max(0, written - 10), written))
    assert spans == [[], [(0, 4)], [], [(4, 9)], [(9, 13)], [(13, 15)], [(30, 40)]]
    assert held[-3:] == [["0_4", "4_9", "9_13"], ["13_15", "4_9", "9_13"], ["30_40"]]


@pytest.mark.parametrize(
    ("size", "written", "resumed", "asked", "held"),
    [
        (10, 8, True, [(6, 8)], (0, 8)),  # a resumed run goes on appending
        (10, 8, False, [(0, 8)], (0, 8)),  # another ring, whose columns were never read, is written whole
        (10, 3, True, [(0, 3)], (0, 3)),  # and so is one that is younger than what was saved
        (100, 9, True, [(6, 9)], (2, 9)),  # one that grew gives only what was held
    ],
)
def test_a_ring_goes_on_or_is_another(run, size, written, resumed, asked, held):
    save(run, 6, Ring(4, 6) if size == 100 else Ring(10, 6))
    again, ring = Run.open(run.path), Ring(size, written)
    if resumed:
        again.resume()
    save(again, written, ring)
    assert ring.asked == asked
    check(Run.open(run.path), written, held)


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
@pytest.mark.parametrize("name", ["step_000000006.safetensors", "step_000000006.pt", "replay/chunk_0_6.safetensors"])
def test_damaged_files_are_named(run, name, damage):
    save(run, 6, Ring(10, 6))
    path = run.path / "checkpoints" / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        path.write_bytes({"cut": data[:-5], "flip": flipped, "empty": b""}[damage])
    said = error_of(Run.open(run.path).resume)
    assert str(path) in said and ("cannot read" if damage == "gone" else "is damaged") in said


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:40],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"step": 6', '"step": 8'),
        lambda text: text.replace("checkpoint 1", "checkpoint 2"),
        lambda text: text.replace('"weights"', '"wheights"'),
    ],
)
def test_damaged_manifests_are_named(run, change):
    save(run, 6)
    path = run.path / "checkpoints" / "manifest.json"
    path.write_text(change(path.read_text()))
    before = files(run)
    for attempt in (run.load, run.resume, lambda: save(run, 7)):
        assert re.search(r"manifest\.json is (damaged|foreign)", error_of(attempt))
    assert files(run) == before  # nothing is swept away on the word of a bad manifest


def test_foreign_weights_are_named():
    other = safetensors({"a": torch.zeros(2)}, metadata={"format": "pt"})
    for data, words in ((other, "is foreign: its header says 'pt'"), (b"not safetensors", "is no safetensors file")):
        assert error_of(unpack_tensors, data, "weights", Path("model.safetensors")).startswith(
            f"model.safetensors {words}"
        )


def test_trainer_state_runs_no_code(run):
    run.save(1, weights(1), {"evil": Path("x")})  # a class that safe reading does not admit
    assert "step_000000001.pt is no trainer state" in error_of(run.load)


def fail_at(monkeypatch, call: int) -> list[int]:
    """Make the disk full from the given write to the end on; the list counts the writes."""
    calls: list[int] = []
    real = os.fsync

    def full(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            return real(descriptor)
        calls.append(descriptor)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    return calls


@pytest.mark.parametrize("call", range(5))
def test_a_full_disk_keeps_the_last_checkpoint(run, monkeypatch, call):
    ring = Ring(10, 6)
    run.log(6, {"a": 1.0})
    with monkeypatch.context() as patch:
        writes = fail_at(patch, 99)
        save(run, 6, ring)
    assert len(writes) == 5  # each of which fails below
    before = files(run)
    ring.written = 12
    with monkeypatch.context() as patch:
        fail_at(patch, call)  # 0 metrics, 1 weights, 2 trainer, 3 replay, 4 manifest
        assert re.search("cannot write .*: No space left on device;", error_of(save, run, 12, ring))
    assert files(run) == before  # nothing half-written takes up room
    check(Run.open(run.path), 6, (0, 6))
    save(run, 12, ring)  # there is room again
    check(Run.open(run.path), 12, (2, 12))


def test_a_disk_that_is_full_for_tensorboard_is_told_at_the_line_that_it_refuses(run, monkeypatch):
    threads = threading.active_count()
    run.track(("tensorboard",))
    run.log(1, {"a": 1.0})

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run._metrics._trackers[0]._records, "write", full)
    assert re.search(r"cannot write .*metrics\.jsonl: No space left on device", error_of(run.log, 2, {"a": 2.0}))
    assert threading.active_count() == threads


@contextmanager
def interrupted_after_the_rename(monkeypatch):
    real = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        done = real(self, target)
        if target.name == "manifest.json":
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", interrupted)
        yield


def test_an_interrupt_after_the_rename_keeps_the_new_checkpoint(run, monkeypatch):
    save(run, 1)
    with interrupted_after_the_rename(monkeypatch):
        save(run, 2)
    check(run, 2)


@pytest.mark.parametrize("second", [12, 6])
def test_a_save_without_replay_that_is_cut_off_loses_no_chunk_of_the_next_one(run, monkeypatch, second):
    ring = Ring(10, 6)
    save(run, 6, ring)
    with interrupted_after_the_rename(monkeypatch):
        save(run, 7)
    ring.written = second
    save(run, second, ring)
    check(Run.open(run.path), second, (max(0, second - 10), second))
