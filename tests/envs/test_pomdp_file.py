"""The .pomdp format: every form of its entries, wrong files, and models written back."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pomdp_writer import numbered, write
from run_folders import error_of
from world_keywords import DATA, random_model

from envs.errors import UserError
from envs.worlds import hallway, heaven_hell
from envs.worlds.pomdp import parse_pomdp, read_pomdp
from envs.worlds.tabular import Tables

FILES = sorted((DATA / "pomdp").glob("*.pomdp"))
TIGER = (DATA / "pomdp" / "tiger.pomdp").read_text()
ARRAYS = ("T", "O", "R", "start", "reset")

# Three states, two actions, two observations; every row is given.
HEAD = "discount: 0.9 values: reward states: a b c actions: x y observations: p q\n"
BODY = "T: * identity O: * uniform\n"


def same(ours, theirs, names=True):
    """Whether two models are equal to the last bit."""
    keys = ("state_names", "action_names", "observation_names", "discount")
    arrays = all(getattr(ours, key).tobytes() == getattr(theirs, key).tobytes() for key in ARRAYS)
    return arrays and (not names or all(getattr(ours, key) == getattr(theirs, key) for key in keys))


def table(text, name="T"):
    return getattr(parse_pomdp(HEAD + text), name).tolist()


def tiger():
    half, ear = np.full((2, 2), 0.5), np.array([[0.85, 0.15], [0.15, 0.85]])
    pay = np.array([[-1.0, -1.0], [-100.0, 10.0], [10.0, -100.0]])
    R = np.broadcast_to(pay[:, :, None, None], (3, 2, 2, 2))
    reset = np.zeros((3, 2), bool)
    names = ("tiger-left", "tiger-right"), ("listen", "open-left", "open-right"), ("hear-left", "hear-right")
    return Tables(np.stack([np.eye(2), half, half]), np.stack([ear, half, half]), R, half[0], reset, *names, 0.95)


def test_the_tiger_is_read_in_rewards_and_in_costs_and_other_forms():
    rewards, costs, ours = (read_pomdp(DATA / "pomdp" / f"tiger{form}.pomdp") for form in ("", "_costs", "_episodic"))
    assert same(rewards, tiger()) and same(costs, numbered(tiger()))
    assert ours.reset.tolist() == [[False, False], [True, True], [True, True]]  # the only difference
    assert same(replace(ours, reset=tiger().reset), tiger())


# Forms of entries

EYE = np.eye(3).tolist()


TRANSITIONS = [
    ("T: * identity", [EYE, EYE]),
    ("T: x identity T: y uniform", [EYE, [[1 / 3] * 3] * 3]),
    ("T:*:*:* 0 T:*:*:c 1", [[[0, 0, 1]] * 3] * 2),
    ("T : 0 : a 0 1 0\nT: 0:1 0 0 1\nT: x : 2 : 0 1 T: y : * uniform", [[EYE[1], EYE[2], EYE[0]], [[1 / 3] * 3] * 3]),
    ("T: * : * : a 1.0 T: y : b 0 .5 5e-1", [[[1, 0, 0]] * 3, [[1, 0, 0], [0, 0.5, 0.5], [1, 0, 0]]]),
    ("T: * uniform T: 1 : a : * 0 T: 1 : a : b 1", [[[1 / 3] * 3] * 3, [[0, 1, 0], [1 / 3] * 3, [1 / 3] * 3]]),
    ("T:\n*\n:\n* :\nb # to b\n+1.0", [[[0, 1, 0]] * 3] * 2),
    ("T: * : * 0.333333 0.333333 0.333333", [[[0.333333] * 3] * 3] * 2),  # need not sum to 1 more exactly
]
OBSERVATIONS = [
    ("O: * uniform", [[[0.5, 0.5]] * 3] * 2),
    ("O: * 1 0 0 1 0.25 0.75", [[[1, 0], [0, 1], [0.25, 0.75]]] * 2),
    ("O: * : * : p 1 O: x : c uniform", [[[1, 0], [1, 0], [0.5, 0.5]], [[1, 0]] * 3]),
    ("O: 0 : * 0 1 O: 1 : a : q 1 O: y : b : 0 1 O: y : 2 0.5 0.5", [[[0, 1]] * 3, [[0, 1], [1, 0], [0.5, 0.5]]]),
]


@pytest.mark.parametrize(("text", "expected"), [*TRANSITIONS, *OBSERVATIONS])
def test_forms_of_probabilities(text, expected):
    assert table(text + ("\nO: * uniform" if text[0] == "T" else " T: * identity"), text[0]) == expected


def test_forms_of_rewards():
    text = """
    R: x : a : b : q 3
    R: x : b : * : * -1.5
    R: x : b : 0 1 2          # a row takes the place of the wildcard
    R: x : c
      1 2
      3 4
      5 6
    R: y : * : * : p -2
    R: 1 : 0 : c : * +7"""
    expected = np.zeros((2, 3, 3, 2))
    expected[0, 0, 1, 1] = 3
    expected[0, 1] = -1.5
    expected[0, 1, 0] = [1, 2]
    expected[0, 2] = [[1, 2], [3, 4], [5, 6]]
    expected[1, :, :, 0] = -2
    expected[1, 0, 2] = 7
    assert table(BODY + text, "R") == expected.tolist()
    costs = parse_pomdp((HEAD + BODY + text).replace("reward", "cost"))
    assert costs.R.tobytes() == (0.0 - expected).tobytes()  # no -0.0


@pytest.mark.parametrize(
    "text", ["R: x : * : * : * 1", "R: x : a : * : * 1", "R: * : * : b : * 1", "R: * : * : * : q 1"]
)
def test_rewards_take_memory_only_for_what_they_depend_on(text):
    ours = parse_pomdp(HEAD + BODY + text).R
    assert ours.shape == (2, 3, 3, 2) and ours.max() == 1
    assert [stride == 0 for stride in ours.strides[2:]] == [": b" not in text, ": q" not in text]


@pytest.mark.parametrize(("text", "expected"), [
    ("", [1 / 3] * 3),
    ("start: uniform", [1 / 3] * 3),
    ("start: 0.2 0.3 0.5", [0.2, 0.3, 0.5]),
    ("start: b", [0, 1, 0]),
    ("start: 2", [0, 0, 1]),
    ("start include: a 2", [0.5, 0, 0.5]),
    ("start include\n:\nb", [0, 1, 0]),
    ("start exclude: 0 c", [0, 1, 0]),
])  # fmt: skip
def test_forms_of_start(text, expected):
    assert table(text + "\n" + BODY, "start") == expected
    assert parse_pomdp(text + "\n" + HEAD + BODY).start.tolist() == expected  # its place does not matter
    one = "discount: 1 values: reward states: only actions: 1 observations: 1 T: 0 identity O: 0 uniform start: "
    assert all(parse_pomdp(one + start).start.tolist() == [1] for start in ("0", "1", "1.0", "only"))


def test_resets():
    ours = parse_pomdp(HEAD + "start: 0.2 0.3 0.5\n" + BODY + "T: x : a reset T: * : c reset T: y : c 1 0 0")
    assert ours.reset.tolist() == [[True, False, True], [False, False, False]]
    assert ours.T[0, 0].tolist() == ours.T[0, 2].tolist() == [0.2, 0.3, 0.5]
    assert ours.T[1, 2].tolist() == [1, 0, 0]  # a later entry takes the reset back


def test_the_preamble_may_stand_in_any_order():
    parts = re.sub(" (values|states|actions|observations)", r"\n\1", HEAD).strip().split("\n")
    assert same(parse_pomdp("\n".join([*reversed(parts), BODY])), parse_pomdp(HEAD + BODY))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_of_all_systems(tmp_path, newline):
    (tmp_path / "model.pomdp").write_bytes(b"\xef\xbb\xbf" + TIGER.replace("\n", newline).encode())
    assert same(read_pomdp(tmp_path / "model.pomdp"), tiger())


@pytest.mark.parametrize(("text", "line", "said"), [
    ("", 1, "the end of the file, expected one of discount, values, states, actions, observations."),
    ("discount: 0.9\nvalues: reward\nstates: 2\nT: 0 identity", 4, "'T' without 'actions', expected all of discount"),
    ("discount: 0.9\nvalues: reward\n", 2, "the end of the file without 'states', expected all of"),
    ("discount 0.9" + HEAD[13:], 1, "'0.9', expected ':' after 'discount'."),
    ("discount: 1.5" + HEAD[13:], 1, "'1.5', expected a discount from 0 to 1."),
    ("discount: 0.9 0.9" + HEAD[13:], 1, "'0.9', expected the end of 'discount'."),
    (HEAD.replace("reward", "rewards"), 1, "'rewards', expected 'reward' or 'cost'."),
    (HEAD.replace("a b c", "0"), 1, "'0', expected a number of states up to 65536, or names that"),
    (HEAD.replace("a b c", "60000"), 1, "60000 states, 2 actions and 2 observations, expected"),
    (HEAD.replace("a b c", "a b a"), 1, "'a', expected a number of states up to"),
    (HEAD + "states: d e", 2, "'states' a second time, expected it once."),
    (HEAD + "start: 0.5 0.4 0\n" + BODY, 0, "start of the model sums to 0.9, but probabilities sum to 1."),
    (HEAD + "start: d\n" + BODY, 2, "'d', expected a state: a name or a number from 0 to 2; known"),
    (HEAD + "start include:\n" + BODY, 3, "'T', expected a state: a name or a number from 0 to 2."),
    (HEAD + "start exclude: a b c\n" + BODY, 3, "'T', expected a state that is not excluded."),
    (HEAD + "T: z identity", 2, "'z', expected an action: a name or a number from 0 to 1; known: x, y"),
    (HEAD + "T x : a uniform", 2, "'x', expected ':' and an action."),
    (HEAD + "T: x :\nuniform", 3, "'uniform', expected a state"),
    (HEAD + "T: x : a identity", 2, "'identity', expected 3 numbers from 0 to 1 or 'uniform' or 'reset'."),
    (HEAD + "T: x reset", 2, "'reset', expected 9 numbers from 0 to 1 or 'uniform' or 'identity'."),
    (HEAD + "T: x : a : b 1.5", 2, "'1.5', expected 1 number from 0 to 1."),
    (HEAD + "R: x 1", 2, "'1', expected ':' and a state."),
    (HEAD + BODY + "OO: x : a : b : p 1", 3, "'OO', expected the end of 'O'; observations that depend on"),
    (HEAD + "R: x : a : b : q 1e999", 2, "'1e999', expected 1 number."),
    (HEAD + "R: x : a : b 1", 2, "the end of the file, expected 2 numbers."),
    (HEAD + "R: x : a : b : q __import__('os')", 2, "\"__import__('os')\", expected 1 number."),
    (HEAD + "T: x identity T: y : * uniform", 0, "O of action 'x' and state 'a' sums to 0, but"),
    (HEAD + BODY + "T: x : a 0.33333 0.33333 0.33332", 0, "T of action 'x' and state 'a' sums to 0.99998, but"),
    (TIGER.replace("R: listen", "R: lisen"), 29, "'lisen', expected an action.*; did you mean 'listen'"),
])  # fmt: skip
def test_wrong_text_is_one_sentence_with_its_place(text, line, said):
    start, found = f"m:{line}: found {said}" if line else f"m: {said}", error_of(parse_pomdp, text, "m")
    assert found.startswith(start) or re.match(start, found)


@pytest.mark.parametrize(("data", "said"), [
    (b"", ":1: found the end of the file, expected one of discount"),
    (b"discount: 0.9\n\x89PNG\r\n", ":2: found bytes that are no text in UTF-8, expected a .pomdp file"),
    (b"discount: 0.9\n\n# \0\n", ":3: found bytes that are no text"),
    (None, ": found no readable file .*, expected a .pomdp file"),
])  # fmt: skip
def test_what_is_no_text_is_refused(tmp_path, data, said):
    path = tmp_path / "model.pomdp"
    if data is not None:
        path.write_bytes(data)
    assert re.search("model.pomdp" + said, error_of(read_pomdp, path))
    assert "found no readable file" in error_of(read_pomdp, tmp_path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_cut_off_anywhere_is_a_model_or_a_sentence(path):
    text, whole = path.read_text(), 0
    for end in range(0, len(text), 7):
        try:
            parse_pomdp(text[:end], "m")
            whole += 1
        except UserError as error:
            assert str(error).startswith("m:") and "\n" not in str(error)
    assert whole < len(text) / 7 / 2


# Written models

models = st.builds(
    random_model,
    st.integers(0, 2**32),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.sampled_from([0.0, 0.3]),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(["", "s", "long-name_", "é(1,2)="]),
)


@settings(max_examples=150, deadline=None)
@given(models)
def test_a_written_model_is_read_back_to_the_last_bit(model):
    assert same(parse_pomdp(write(model)), model)


@pytest.mark.parametrize(
    "model", [hallway.hallway_tables(), heaven_hell.heaven_hell_tables(), heaven_hell.heaven_hell_tables(1)]
)
def test_our_worlds_survive_being_written(model):
    assert "A .pomdp file has no place for the state" in error_of(write, model)
    keyword = replace(tiger(), state_names=("reset", "b"))
    assert "no place for the state 'reset'" in error_of(write, keyword)
    assert same(parse_pomdp(write(numbered(model))), model, names=False)
