"""User errors end on one line; everything else keeps its traceback."""

import errno

import numpy as np
import pytest
import torch
from run_folders import refused

from dqn_memory.runs.errors import UserError, near_names, one_line_errors

FULL = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 9 GiB of which 1 GiB is free"
ROOMS = [f"Gridverse/Room-{size}x{size}-v0" for size in range(60)]


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("foo", ["food", "bar"], "'foo'; did you mean 'food'? known: bar, food"),
        ("gausian", ["Gaussian", "local"], "'gausian'; did you mean 'Gaussian'? known: Gaussian, local"),
        ("zzz", ["gru"], "'zzz'; known: gru"),
        ("zzz", [], "'zzz'; known: none"),
        ("room-13x13", ROOMS, "'room-13x13'; did you mean 'Gridverse/Room-13x13-v0' or 'Gridverse/Room-"),
        ("zzz", ROOMS, "'zzz': none of the 60 known names is near it"),
    ],
)
def test_an_unknown_name_is_told_with_those_near_it(name, known, words):
    assert near_names("world", name, known).startswith(f"unknown world {words}")


def fails_with(error: Exception):
    @one_line_errors
    def main(arguments: object = None) -> None:
        raise error

    return main


def test_user_error_is_one_line_and_exit_code_two(capsys):
    with pytest.raises(SystemExit) as end:
        fails_with(UserError("--heads 3: must divide the width 64"))()
    assert end.value.code == 2
    assert end.value.__suppress_context__  # no traceback of the cause either
    assert capsys.readouterr().err == "error: --heads 3: must divide the width 64\n"


def test_what_nobody_would_read_to_its_end_is_shortened(capsys):
    for error, words in (
        (UserError(f"--run {'x' * 5000} is a file"), f"--run {'x' * 60}...{'x' * 60} is a file"),
        (OSError(errno.ENAMETOOLONG, "Too long", "y" * 5000), f"cannot use {'y' * 60}...{'y' * 59}: Too long"),
    ):
        assert refused(capsys, [], fails_with(error)) == f"error: {words}\n"


def test_defects_keep_their_traceback():
    error = RuntimeError("a defect")
    with pytest.raises(type(error)) as caught:
        fails_with(error)()
    assert caught.value is error


@pytest.mark.parametrize(
    ("ask", "size"),
    [
        (lambda: torch.empty(10**15), " for a tensor of 4000000000000000 bytes"),
        (lambda: torch.empty(10**9, 10**9, 10**9), ""),  # more bytes than 64 bits count
        (lambda: np.empty(10**15), " for a tensor of 7.11 PiB"),
        (lambda: bytearray(10**17), ""),
        (fails_with(torch.OutOfMemoryError(FULL)), " for a tensor of 20.00 GiB"),
    ],
)
def test_memory_that_no_machine_has_is_one_sentence(capsys, ask, size):
    said = refused(capsys, [], lambda arguments: one_line_errors(ask)())
    assert said.startswith(f"error: not enough memory{size}: sizes such as --capacity")
