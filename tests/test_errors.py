"""User errors end on one line; everything else keeps its traceback."""

import sys
import types

import pytest

from dqn_memory.errors import UserError, near_names, one_line_errors


def test_near_names_suggests_the_nearest_and_lists_all():
    assert near_names("world", "foo", ["food", "bar"]) == "unknown world 'foo'; did you mean 'food'? known: bar, food"


def test_near_names_ignores_case():
    assert "did you mean 'Gaussian'?" in near_names("prior", "gausian", ["Gaussian", "local"])


def test_near_names_without_anything_near():
    assert near_names("gate", "zzz", ["gru"]) == "unknown gate 'zzz'; known: gru"
    assert near_names("gate", "zzz", []) == "unknown gate 'zzz'; known: none"


def fails_with(error: Exception):
    @one_line_errors
    def main() -> None:
        raise error

    return main


def test_user_error_is_one_line_and_exit_code_two(capsys):
    with pytest.raises(SystemExit) as end:
        fails_with(UserError("--heads 3: must divide the width 64"))()
    assert end.value.code == 2
    assert end.value.__suppress_context__  # no traceback of the cause either
    assert capsys.readouterr().err == "error: --heads 3: must divide the width 64\n"


def test_the_worlds_own_user_error_counts_too(monkeypatch, capsys):
    core = types.ModuleType("envs.core")
    core.UserError = type("UserError", (ValueError,), {})
    monkeypatch.setitem(sys.modules, "envs.core", core)
    with pytest.raises(SystemExit):
        fails_with(core.UserError("unknown world 'x'"))()
    assert capsys.readouterr().err == "error: unknown world 'x'\n"


@pytest.mark.parametrize("error", [ValueError("a defect"), RuntimeError("a defect"), KeyError("a defect")])
def test_defects_keep_their_traceback(error):
    with pytest.raises(type(error)) as caught:
        fails_with(error)()
    assert caught.value is error


def test_results_pass_through():
    @one_line_errors
    def main(a: int, b: int = 1) -> int:
        return a + b

    assert main(2, b=3) == 5
    assert main.__name__ == "main"
