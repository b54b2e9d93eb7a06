"""Files, names and errors are printed without characters that steer a terminal, a sentence on one line."""

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_text import CONTROL, STEERING, shown, toml
from rich.console import Console
from rich.text import Text

from dqn_memory import evaluate, inspect, ppo, train, watch
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.progress import Progress
from dqn_memory.study import report, run
from envs.console import say
from envs.tables import Table

Command = Callable[[list[str]], object]
ALL = "".join(STEERING)
STUDY = """
title = {0}
kind = {1}
[base]
{2} = {3}
[axes]
world = [{4}]
architecture = [{5}]
seed = [1]
[[skip]]
{6} = "x"
"""
GOOD = (ALL, "q_network", "total_steps", 9_000, "POMDP/CarFlag-v0", "dtqn4", "world")  # but for its title


def printed(capfd: pytest.CaptureFixture[str], command: Command, arguments: list[str]) -> tuple[object, str, str]:
    """The exit code and what was printed, none of which steers the terminal."""
    capfd.readouterr()
    code: object = 0
    try:
        command(arguments)
    except SystemExit as ended:
        code = ended.code
    out, err = capfd.readouterr()
    assert not CONTROL.search(out + err), ascii(out + err)
    return code, out, err


def refused(capfd: pytest.CaptureFixture[str], command: Command, arguments: list[str]) -> str:
    """The one line of a refusal."""
    code, _, err = printed(capfd, command, arguments)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("place", ["key", "value", "table", "architecture", "prior", "env", "plugin", "syntax"])
@pytest.mark.parametrize("command", [train.main, ppo.main])
def test_a_config_of_hostile_keys_and_values_is_one_line(tmp_path: Path, capfd, command: Command, place: str) -> None:
    lines = {
        "key": f"{toml(ALL)} = 1", "value": f"seed = {toml(ALL)}", "table": f"[{toml(ALL)}]\nx = 1",
        "architecture": f"[network]\narchitecture = {toml(ALL)}", "prior": f"[network.prior]\nkind = {toml(ALL)}",
        "env": f"[environment]\nenv = {toml(ALL)}", "plugin": f"plugin = [{toml(ALL)}]", "syntax": "\x1b[31m = 1",
    }  # fmt: skip
    path = tmp_path / "config.toml"
    path.write_text(f"schema = 2\n{lines[place]}\n")
    refused(capfd, command, ["--config", str(path), "--run", str(tmp_path / "run")])


@pytest.mark.parametrize("command", [train.main, evaluate.main, inspect.main, watch.main, report.main])
def test_a_run_with_hostile_files_is_one_line(tmp_path: Path, capfd, command: Command) -> None:
    for place in ("config.toml", "environment.json"):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "config.toml").write_text(f"schema = 2\n{toml(ALL)} = {toml(ALL)}\n")
        (folder / "environment.json").write_text(json.dumps({ALL: ALL}))
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, ALL: 1}) + "\n")
        flags = ["--resume"] if command == train.main else []
        refused(capfd, command, [*flags, str(folder)])


@pytest.mark.parametrize("text", STEERING)
def test_arguments_that_steer_a_terminal_are_one_line(capfd, text: str) -> None:
    if CONTROL.search(text):
        for command in (train.main, evaluate.main, run.main, report.main):
            assert shown(text).split("\\u")[0] in refused(capfd, command, [f"--{text}"])


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_a_study_of_hostile_names_steers_nothing(tmp_path: Path, capfd, place: int) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(*(toml(ALL if number == place else each) for number, each in enumerate(GOOD))))
    code, out, err = printed(capfd, run.main, [str(path), "--dry-run", "--folder", str(tmp_path / "new")])
    assert (out or err) and (code != 2 or err.count("\n") == 1)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("text", STEERING)
def test_progress_shows_a_name_as_it_is(text: str, terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=terminal, color_system="standard" if terminal else None)
    with Progress(10, title=text, console=console) as progress:
        progress.update(5, "training", success=0.5)
    plain = "".join(Text.from_ansi(line).plain for line in out.getvalue().splitlines())
    assert shown(text).strip() in plain and not CONTROL.search(plain)
    assert "evil.test" not in "".join(part for part in out.getvalue().split("\x1b]8;")[1:])


def test_tables_and_lines_show_what_they_hold(capfd) -> None:
    say(Table((ALL, "b"), [(ALL, "1"), ("x", ALL)]).text())
    out = capfd.readouterr().out
    assert out.count("\n") == 3 and out.count(shown(ALL)) == 3 and not CONTROL.search(out)


def test_an_error_is_one_line_wherever_it_is_printed(capfd) -> None:
    error = UserError(f"a sentence of {ALL}\nand another line")
    assert str(error) == f"a sentence of {shown(ALL)} and another line"

    @one_line_errors
    def main(arguments: list[str]) -> None:
        raise FileNotFoundError(2, "No such file", f"a\n{ALL}")

    assert shown(ALL) in refused(capfd, main, [])


def test_warnings_and_tracebacks_of_others_steer_nothing() -> None:
    code = (
        "import sys, warnings\nfrom dqn_memory.runs.errors import one_line_errors\n"
        "@one_line_errors\ndef main():\n    warnings.warn('\\x1b[33mcareful\\x1b[0m \\x9b2J')\n"
        "    raise KeyError and LookupError('\\x1b]0;title\\x07')\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "careful" in done.stderr and "Traceback" in done.stderr and "title" in done.stderr
    assert not CONTROL.search(done.stderr), ascii(done.stderr)
    assert warnings.formatwarning.__module__ == "warnings"
