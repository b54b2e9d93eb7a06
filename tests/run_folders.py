"""What tests of every training script ask of its run folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run

VOLATILE = ("charts/SPS", "time/")
Capture = pytest.CaptureFixture[str]
Script = Callable[[list[str]], None]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(VOLATILE)} for line in lines]


def assert_equal(ours: Any, theirs: Any, path: str = "") -> None:
    """Bit for bit, through nested containers."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, path
        # bytes, so that equal NaN patterns in never-written memory do not count as a difference
        assert ours.cpu().numpy().tobytes() == theirs.cpu().numpy().tobytes(), path
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for key in ours:
            assert_equal(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), path
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_equal(a, b, f"{path}/{index}")
    else:
        assert ours == theirs, path


def assert_same_run(first: Path, second: Path) -> None:
    """Two checkpoints hold the same bits."""
    ours, theirs = Run.open(first).load(), Run.open(second).load()
    assert_equal(ours.weights, theirs.weights, "weights")
    assert_equal(ours.trainer, theirs.trainer, "trainer")
    assert (ours.replay is None) == (theirs.replay is None)
    if ours.replay is None or theirs.replay is None:
        return
    assert (ours.step, ours.replay.start) == (theirs.step, theirs.replay.start)
    assert_equal(ours.replay.data, theirs.replay.data, "replay")


def refused(capsys: Capture, arguments: list[str], script: Script) -> str:
    """The one sentence of a script that refuses."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        script(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: ") and error.count("\n") == 1 and "Traceback" not in error, error
    return error


def error_of(refuses: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """The one sentence of a call that refuses."""
    with pytest.raises(UserError) as caught:
        refuses(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def printed(capsys: Capture, script: Script, *arguments: object) -> str:
    """What a script prints."""
    capsys.readouterr()
    script([str(word) for word in arguments])
    return capsys.readouterr().out
