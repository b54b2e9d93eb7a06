"""The command that says which memory a task needs: its plan, its answers, and what goes wrong."""

import csv
import json
import re
import sys
import time

import gymnasium
import pytest

from dqn_memory import diagnose as module
from dqn_memory.analysis import environment_checks
from dqn_memory.diagnose import diagnose, main
from dqn_memory.runs.errors import UserError
from dqn_memory.study.definition import expand
from dqn_memory.study.store import Study
from dqn_memory.study.verdict import VERDICTS

HALLWAY = "POMDP/Hallway-v0"
BROKEN = """
import sys, time
import gymnasium, numpy as np
from gymnasium import spaces

class Broken(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    of_all = 0

    def __init__(self, fault, after):
        self.fault, self.after, self.taken = fault, after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken, Broken.of_all = self.taken + 1, Broken.of_all + 1
        bad = self.taken > self.after
        late = self.fault == "late" and Broken.of_all > 16 * 512 + 100  # while a plan is made
        trains = self.fault == "trains" and "ppo" in sys.argv[0]
        if bad and (self.fault == "raises" or late or trains):
            raise ZeroDivisionError("no floor here")
        time.sleep(0.001 if self.fault == "waits" else 0)
        size = 3 if bad and self.fault == "shape" else 2
        value = np.nan if bad and self.fault == "nan" else 0.0
        done = self.taken % 10 == 0 and self.fault != "endless"
        info = {"success": True} if self.fault == "wins" and done and action else {}
        return np.full(size, value, np.float32), float(action), done, False, info

for fault in ("raises", "nan", "shape", "late", "trains", "waits", "endless", "wins"):
    gymnasium.register(f"Broken/{fault}-v0", Broken, kwargs={"fault": fault, "after": 100})
gymnasium.register("Broken/far-v0", Broken, max_episode_steps=50_000, kwargs={"fault": "endless", "after": 0})
"""


def fast(patch):
    """Let plans be as short as possible."""
    for name, value in {"LEAST": 1, "START": 0.0, "ROLLOUT": 16, "CHOICES": (4, 4, 4), "ITERATIONS": 1}.items():
        patch.setattr(module, name, value)
    patch.setattr(module, "seconds_to_train", lambda *_: 4.0)
    patch.setattr(module, "paces", lambda args, settings, names, rows: dict.fromkeys(names, 1e-3))


@pytest.fixture
def broken(here, monkeypatch):
    """The plugin with environments that have one fault each."""
    (here / "broken_envs.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.setattr(environment_checks, "STEPS", 512)
    module.load_plugins(["broken_envs"])
    yield "broken_envs"
    del sys.modules["broken_envs"]
    for id in [each for each in gymnasium.registry if each.startswith("Broken/")]:
        del gymnasium.registry[id]


def test_the_plan_leaves_time_for_what_has_passed_and_for_the_report():
    args = module.Args(HALLWAY, minutes=5, workers=2)
    now = time.monotonic()
    early, late = (module.seconds_to_train(args, now - passed, 6) for passed in (0, 120))
    assert 0 < late < early < 2 * 5 * 60 - 2 * module.REPORT
    assert early - late == pytest.approx(module.SPARE * 2 * 120, abs=1)
    assert module.seconds_to_train(args, now - 300, 6) == 0


def test_more_cpus_than_runs_give_no_run_more_time(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 64)
    args, now = module.Args(HALLWAY, minutes=5, workers=64), time.monotonic()
    assert module.seconds_to_train(args, now, 18) / 18 < 5 * 60
    assert module.seconds_to_train(module.Args(HALLWAY, minutes=5, workers=16), now, 18) / 18 < 5 * 60 / 2


def test_a_pace_counts_steps_that_only_wait(broken):
    args = module.Args("Broken/waits-v0", plugin=(broken,))
    settings = {"match": "100k", "rollout_steps": 16, "threads": 1}
    assert module.paces(args, settings, ["mlp"], 4)["mlp"] > 0.001


def test_episodes_that_nothing_ends_are_cut_and_named(broken):
    play = module.play_at_random(module.Args("Broken/endless-v0", plugin=(broken,)))
    assert set(play.lengths) == {play.limit} and not play.reports_success
    assert play.score.mean() == pytest.approx(play.limit / 2, rel=0.05)
    assert any("hardly ever end" in each for each in module.oddities(play))
    assert module.chosen_settings(play)["time_limit"] == play.limit
    with pytest.raises(UserError, match="no episode ended"):  # its own limit is out of reach
        module.play_at_random(module.Args("Broken/far-v0", plugin=(broken,)))


def test_too_little_time_says_how_much_is_needed(here):
    with pytest.raises(UserError, match=r"--minutes 0.1 leaves 0 steps .* give at least --minutes \d"):
        diagnose(HALLWAY, minutes=0.1, seeds=2, workers=1)
    assert not list(here.iterdir())


def test_wrong_options_are_one_sentence(here):
    for options, sentence in (
        ({"minute": 3}, "minute"), ({"seeds": 0}, "--seeds 0"), ({"minutes": -1}, "--minutes -1"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=sentence):
            diagnose(HALLWAY, **options)
    with pytest.raises(UserError, match="Hallway"):
        diagnose("POMDP/Halway-v0")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("raises", "no floor here"), ("nan", "nan"), ("shape", r"\(3,\)"), ("late", "no floor here")],
)
def test_a_broken_environment_is_named_in_one_sentence(broken, fault, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--env", f"Broken/{fault}-v0", "--plugin", broken])
    printed = capsys.readouterr().err.strip().splitlines()
    assert end.value.code not in (0, None)
    text = str(end.value.code) if not isinstance(end.value.code, int) else printed[-1]
    assert "Broken/" in text and "step" in text and "Traceback" not in "".join(printed)
    assert re.search(sentence, text)


def test_an_environment_that_no_id_makes_is_refused(here):
    made = gymnasium.make("CartPole-v1")
    for env in (gymnasium.wrappers.TimeLimit(made, 9), gymnasium.make("CartPole-v1", max_episode_steps=9)):
        with pytest.raises(UserError, match="register"):
            diagnose(env)
    gymnasium.register("Script/Own-v0", type("Own", (gymnasium.Env,), {"__module__": "__main__"}))
    with pytest.raises(UserError, match="plugin"):
        diagnose("Script/Own-v0")


def test_a_folder_of_other_flags_is_refused(here, monkeypatch):
    fast(monkeypatch)
    args = module.Args(HALLWAY, minutes=0.02, seeds=2, folder=here / "found")
    definition, play = module.planned_study(args, time.monotonic())
    Study.create(here / "found", definition, expand(definition))
    again, same = module.planned_study(args, time.monotonic())
    assert again.text == definition.text and (same.reward == play.reward).all()
    (here / "other.toml").write_text("[learner]\ngamma = 0.9\n")
    for other in ({"seeds": 3}, {"minutes": 0.03}, {"first_seed": 5}, {"config": ("other.toml",)}):
        with pytest.raises(UserError, match="another --folder"):
            diagnose(HALLWAY, **{"minutes": 0.02, "seeds": 2, "folder": "found"} | other)


@pytest.mark.long
def test_it_trains_answers_and_goes_on(here, monkeypatch, capsys):
    fast(monkeypatch)
    flags = ["--env", HALLWAY, "--minutes", "0.02", "--seeds", "2", "--folder", "found", "--format", "json"]
    main(flags)
    first = json.loads(capsys.readouterr().out)
    study = Study.open(here / "found")
    assert [run.state for run in study.runs()] == ["finished"] * 12
    assert first["verdict"] in VERDICTS and set(first["scores"]) == {*module.CONTROLS, *module.MEMORIES}
    assert "python -m dqn_memory.ppo --env POMDP/Hallway-v0" in first["command"]
    report = here / "found/report"
    page = (report / "report.md").read_text()
    assert all(question in page for question in first["answers"]) and "What is odd here?" in page
    assert f"--env {HALLWAY} --minutes 0.02 --seeds 2" in page
    assert "What is odd here?" in (report / "report.html").read_text()
    assert {path.suffix for path in report.rglob("*.*")} == {".md", ".html", ".png", ".pdf", ".csv", ".tex"}
    with (report / "scores.csv").open() as file:
        rows = [(row["network"], float(row[first["measure"]])) for row in csv.DictReader(file)]
    assert sorted(rows) == sorted((name, score) for name, values in first["scores"].items() for score in values)

    before = {path: path.stat().st_mtime_ns for path in (here / "found/runs").rglob("metrics.jsonl")}
    main(flags)  # nothing is trained again
    assert json.loads(capsys.readouterr().out) == first
    assert before == {path: path.stat().st_mtime_ns for path in (here / "found/runs").rglob("metrics.jsonl")}


@pytest.mark.long
def test_a_fault_that_only_training_shows_is_named(broken, monkeypatch):
    fast(monkeypatch)
    with pytest.raises(UserError, match=r"ZeroDivisionError: no floor here.* of an episode"):
        diagnose("Broken/trains-v0", minutes=0.02, seeds=1, plugin=(broken,))


@pytest.mark.long
def test_success_that_only_winners_tell_is_no_measure(broken, monkeypatch):
    fast(monkeypatch)
    found = diagnose("Broken/wins-v0", minutes=0.02, seeds=1)  # its plugin is that of its class
    assert found.measure == "return" and found.random == pytest.approx(5, abs=0.3)
    assert max(max(values) for values in found.scores.values()) > 1
