"""The base installation learns and evaluates; what an extra brings is asked for in one sentence."""

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from envs.extras import EXTRAS

BLOCK = """
import sys
from importlib.machinery import PathFinder

class Base(PathFinder):
    missing = {missing!r}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.missing else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Base
"""
MISSING = {module for modules in EXTRAS.values() for module in modules}
SMALL = ["--env", "POMDP/CarFlag-v0", "--architecture", "gru", "--width", "8", "--evaluate-every", "0"]
SMALL += ["--final-episodes", "2", "--no-memory-ablation"]


def base(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a module where no package of an extra can be imported."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(missing=MISSING))
    root = str(Path(__file__).resolve().parents[2])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": f"{folder}:{root}"}
    environment["OMP_NUM_THREADS"] = "1"  # tests run beside others
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("dqn_memory.train", ["--total-steps", "200", "--learning-starts", "64", "--num-envs", "8", "--context", "8"]),
        ("dqn_memory.ppo", ["--total-steps", "64", "--num-envs", "8", "--rollout-steps", "4"]),
        pytest.param(  # it shares ppo's code
            "dqn_memory.pqn", ["--total-steps", "64", "--num-envs", "8", "--rollout-steps", "4"], marks=pytest.mark.long
        ),
    ],
)
def test_the_base_trains_and_evaluates(script, flags, tmp_path):
    trained = base(tmp_path, script, *SMALL, *flags, "--run", "run")
    assert trained.returncode == 0, trained.stderr
    assert "'tensorboard'" in trained.stderr and (tmp_path / "run" / "metrics.jsonl").is_file()
    evaluated = base(tmp_path, "dqn_memory.evaluate", "run", "--episodes", "2")
    assert evaluated.returncode == 0, evaluated.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["dqn_memory.inspect", "demo"], "plots"),
        pytest.param(["dqn_memory.watch", "demo"], "plots", marks=pytest.mark.long),
        pytest.param(["dqn_memory.study.report", "smoke"], "plots", marks=pytest.mark.long),
        (["world_models.unizero.train", "--env", "Pixel/BlinkingCatch-v0"], "fast"),
        (["world_models.glam.train", "--env", "ALE/Pong-v5"], "atari"),
        (["dqn_memory.train", "--track", "tensorboard", "csv"], "tensorboard"),
        (["dqn_memory.integrations.sb3"], "sb3"),
        (["dqn_memory.integrations.torchrl"], "torchrl"),
    ],
)
def test_what_is_missing_is_one_sentence_with_the_extras_name(arguments, extra, tmp_path):
    found = base(tmp_path, *arguments)
    assert found.returncode == 2, found.stderr
    assert f"'.[{extra}]'" in found.stderr and found.stderr.count("\n") == 1


def test_the_extras_are_those_of_the_package():
    named = {line.rpartition("extra == ")[2].strip("\"' ") for line in requires("dqn-memory") or [] if "extra" in line}
    assert {*EXTRAS, "all"} <= named
