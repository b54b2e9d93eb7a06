"""Trackers see each log line once, also where a run is killed and goes on."""

import math
import re
from dataclasses import replace

import pytest
from run_folders import error_of
from trained import CARDS, training_flags

from dqn_memory.runs import trackers
from dqn_memory.runs.common import OutputConfig
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


def test_a_tracker_of_ones_own_is_kept_over_a_resume(tmp_path, monkeypatch):
    (tmp_path / "told_plugin.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers.TRACKERS, "told", None)  # the plugin's own, which goes afterwards
    run = tmp_path / "run"
    main(training_flags(run, "--env", CARDS, "--plugin", "told_plugin", "--track", "told", steps=200))
    main(["--resume", str(run), "--total-steps", "300"])
    told = (run / "told.txt").read_text().split("\n")
    assert told[:5] == ["opened None", "100 False", "200 False", "200 True", "closed"]
    assert told[5:] == ["opened 200", "300 False", "300 True", "closed", ""]


@pytest.mark.parametrize(
    ("track", "words"),
    [
        (
            ("tensorbord",),
            r"--track: unknown tracker 'tensorbord'; did you mean 'tensorboard'\? known: none, tensorboard",
        ),
        (("none", "tensorboard"), "--track none tensorboard: none excludes all others"),
    ],
)
@pytest.mark.parametrize("kind", ["q_network", "unizero", "glam"])
def test_a_tracker_that_cannot_be_had_is_refused_by_every_trainer(kind, track, words):
    config = replace(defaults(trainer_class(kind).config_class), output=OutputConfig(track=track))
    assert re.search(words, error_of(config.check))
