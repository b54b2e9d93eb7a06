"""Trackers see each log line once, also where a run is killed and goes on."""

import csv
import json
import math
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import error_of
from trained import CARDS, training_flags

from dqn_memory.runs import trackers
from dqn_memory.runs.base_config import OutputConfig
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.toml import defaults
from dqn_memory.train import main

LINES = [(1, {"a": 1 / 3}), (2, {"a": math.nan, "late": 7}), (2, {"final/a, b": 0.5})]
NAMES = ("a", "late", "final/a, b")
OFFLINE = {"WANDB_MODE": "offline", "WANDB_PROJECT": "memory", "WANDB_SILENT": "true"}
OWN = """
from dqn_memory.runs.trackers import TRACKERS

class Told:
    def __init__(self, folder, resumed):
        self.file = (folder / "told.txt").open("a")
        self.file.write(f"opened {resumed}\\n")
    def log(self, step, scalars):
        self.file.write(f"{step} {'final/success_rate' in scalars}\\n")
    def close(self):
        self.file.write("closed\\n")
        self.file.close()

TRACKERS["told"] = Told
"""


def write(folder: Path, names: tuple[str, ...], killed_after: int) -> Run:
    """A run whose lines after the first, its checkpoint, are written once more where it was killed."""
    run = Run.create(folder, "seed = 3\n")
    run.track(names)
    run.log(*LINES[0])
    run.save(1, {}, {})
    for line in LINES[1:killed_after]:
        run.log(*line)
    run.close()
    run = Run.take_up(folder)
    assert getattr(run.resume(), "step", None) == 1
    run.track(names)
    for line in LINES[1:]:
        run.log(*line)
    run.close()
    return run


@pytest.mark.parametrize("killed_after", [1, 2, 3])
def test_csv_has_a_row_for_each_scalar_and_none_twice(tmp_path, killed_after):
    run = write(tmp_path / "run", ("csv",), killed_after)
    with (run.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[:3] == [["step", "name", "value"], ["1", "a", repr(1 / 3)], ["2", "a", ""]]
    assert rows[3:] == [["2", "late", "7"], ["2", "final/a, b", "0.5"]]
    assert not list(run.path.glob("events*"))  # who is not named is not told


def wandb_records(path: Path) -> list:
    """What W&B keeps of a run: records in blocks of 32 KiB, each part of one after its checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


@pytest.mark.long
def test_wandb_goes_on_with_its_run_over_environment_steps(tmp_path):
    code = "import sys; from test_trackers import *; write(Path(sys.argv[1]), ('wandb',), 2)"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    environment = inherited | OFFLINE | {"PYTHONPATH": paths}
    folder = tmp_path / "study" / "seed_1"
    subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=True, timeout=120)
    id, files = (folder / "wandb-run-id").read_text().strip(), sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{id}.wandb"] * 2
    runs = [wandb_records(file) for file in files]
    for each in runs:
        about = next(record.run for record in each if record.HasField("run"))
        assert (about.run_id, about.project, about.display_name[-12:]) == (id, "memory", "study/seed_1")
        assert {item.key: item.value_json for item in about.config.update}["seed"] == "3"
    rows = [[{item.nested_key[0]: item.value_json for item in each.history.item} for each in run] for run in runs]
    told = [[{name: row.get(name) for name in ("_step", *NAMES)} for row in run if row] for run in rows]
    first = dict(zip(("_step", *NAMES), ("1", "0.3333333333333333", None, None), strict=True))
    second = dict(zip(("_step", *NAMES), ("2", "NaN", "7", None), strict=True))
    assert told == [[first, second], [second | {NAMES[-1]: "0.5"}]]


def test_a_tracker_of_ones_own_is_kept_over_a_resume(tmp_path, monkeypatch):
    (tmp_path / "told_plugin.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers.TRACKERS, "told", None)  # the plugin's own, which goes afterwards
    run = tmp_path / "run"
    main(training_flags(run, "--env", CARDS, "--plugin", "told_plugin", "--track", "told", "csv", steps=200))
    main(["--resume", str(run), "--total-steps", "300"])
    told = (run / "told.txt").read_text().split("\n")
    assert told[:5] == ["opened None", "100 False", "200 False", "200 True", "closed"]
    assert told[5:] == ["opened 200", "300 False", "300 True", "closed", ""]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with (run / "metrics.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == 1 + sum(len(line) - 1 for line in lines)


@pytest.mark.parametrize(
    ("track", "words"),
    [
        (("tensorbord",), r"--track: unknown tracker 'tensorbord'; did you mean 'tensorboard'\? known: .*csv, none"),
        (("none", "csv"), "--track none csv: none excludes all others"),
        (("wandb",), "--track wandb needs the package .*missing: pip install wandb"),
    ],
)
@pytest.mark.parametrize("kind", ["q_network", "unizero", "glam"])
def test_a_tracker_that_cannot_be_had_is_refused_by_every_trainer(monkeypatch, kind, track, words):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    config = replace(defaults(trainer_class(kind).config_class), output=OutputConfig(track=track))
    assert re.search(words, error_of(config.check))
