"""The command that says which memory a task needs: its plan, its answers, and what goes wrong."""

import json
import re
import time

import pytest

from dqn_memory import diagnose as module
from dqn_memory.diagnose import diagnose, main
from dqn_memory.runs.errors import UserError
from dqn_memory.study.store import Study
from dqn_memory.study.verdict import VERDICTS

HALLWAY = "POMDP/Hallway-v0"
BROKEN = """
import gymnasium, numpy as np
from gymnasium import spaces

class Broken(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, fault, after):
        self.fault, self.after, self.taken = fault, after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken += 1
        bad = self.taken > self.after
        if bad and self.fault == "raises":
            raise ZeroDivisionError("no floor here")
        size = 3 if bad and self.fault == "shape" else 2
        value = np.nan if bad and self.fault == "nan" else 0.0
        return np.full(size, value, np.float32), float(action), self.taken % 10 == 0, False, {}

for fault in ("raises", "nan", "shape"):
    gymnasium.register(f"Broken/{fault}-v0", Broken, kwargs={"fault": fault, "after": 100})
"""


def fast(patch):
    """Let plans be as short as possible."""
    for name, value in {"LEAST": 1, "START": 0.0, "ROLLOUT": 16, "CHOICES": (4, 4, 4), "ITERATIONS": 1}.items():
        patch.setattr(module, name, value)
    patch.setattr(module, "seconds_to_train", lambda *_: 4.0)


def test_the_plan_leaves_time_for_what_has_passed_and_for_the_report():
    args = module.Args(HALLWAY, minutes=5, workers=2)
    now = time.monotonic()
    early, late = (module.seconds_to_train(args, now - passed, 6) for passed in (0, 120))
    assert 0 < late < early < 2 * 5 * 60 - 2 * module.REPORT
    assert early - late == pytest.approx(module.SPARE * 2 * 120, abs=1)
    assert module.seconds_to_train(args, now - 300, 6) == 0


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
    [("raises", "ZeroDivisionError: no floor here"), ("nan", "nan"), ("shape", r"\(3,\)")],
)
def test_a_broken_environment_is_named_in_one_sentence(here, fault, sentence, capsys):
    (here / f"broken_{fault}.py").write_text(BROKEN)
    with pytest.raises(SystemExit) as end:
        main(["--env", f"Broken/{fault}-v0", "--plugin", f"broken_{fault}"])
    printed = capsys.readouterr().err.strip().splitlines()
    assert end.value.code not in (0, None)
    text = str(end.value.code) if not isinstance(end.value.code, int) else printed[-1]
    assert "Broken/" in text and "step" in text and "Traceback" not in "".join(printed)
    assert re.search(sentence, text)


@pytest.mark.parametrize("content", ["", "{}", '{"steps": -1}', '{"steps": "many"}', '{"steps": 1e99}', "[1]"])
def test_a_damaged_file_of_an_earlier_call_is_one_sentence(here, content):
    (here / "found").mkdir()
    (here / "found" / "random.json").write_text(content)
    with pytest.raises(UserError, match=r"random\.json is damaged: delete it"):
        diagnose(HALLWAY, folder="found")


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
    page = (here / "found/report/report.md").read_text()
    assert all(question in page for question in first["answers"]) and "What is odd here?" in page
    assert "What is odd here?" in (here / "found/report/report.html").read_text()

    before = {path: path.stat().st_mtime_ns for path in (here / "found/runs").rglob("metrics.jsonl")}
    main(flags)  # nothing is trained again
    assert json.loads(capsys.readouterr().out) == first
    assert before == {path: path.stat().st_mtime_ns for path in (here / "found/runs").rglob("metrics.jsonl")}
    with pytest.raises(UserError, match="give another --folder"):
        diagnose(HALLWAY, minutes=0.02, seeds=3, folder="found")
