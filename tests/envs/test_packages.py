"""Ids of other packages: the package is imported when such an id is asked for, and named where it is missing."""

import re
import site
import sys

import gymnasium
import pytest
from run_folders import error_of

from envs import packages
from envs.packages import PACKAGES, Package, make_env

REGISTERS = """
import gymnasium
gymnasium.register("Other-Corridor-v0", "foreign:Corridor")
"""


@pytest.fixture
def other(tmp_path, monkeypatch):
    """An installed package whose module a test writes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(packages, "PACKAGES", (Package("Other-", "other_package", "other-package"),))
    yield tmp_path / "other_package.py"
    sys.modules.pop("other_package", None)
    gymnasium.registry.pop("Other-Corridor-v0", None)


def test_the_package_of_an_unknown_id_is_imported_and_no_other(other):
    other.write_text(REGISTERS)
    make_env("CartPole-v1")
    assert "other_package" not in sys.modules
    for id in ("Other-Corridor-v0", "other_package:Other-Corridor-v0"):
        assert make_env(id, key="won").unwrapped.key == "won"
    assert "did you mean 'Other-Corridor-v0'" in error_of(make_env, "Other-Coridor-v0")


def test_closing_one_leaves_the_others_open_where_they_share_a_display(other, monkeypatch):
    other.write_text(REGISTERS)
    for shared in (False, True):
        monkeypatch.setattr(packages, "PACKAGES", (Package("Other-", "other_package", "", closes_all=shared),))
        env = make_env("other_package:Other-Corridor-v0")
        env.close()
        assert env.unwrapped.open == shared


@pytest.mark.parametrize(("code", "words"), [
    (None, "^Environment 'Other-Corridor-v0' is of another package; install it with `pip install other-package`.$"),
    ("import not_there", "needs other_package, which cannot be imported .*No module named 'not_there'.*try `pip inst"),
    ("import gymnasium; gymnasium.old", r"beside Gymnasium \d.* .AttributeError: module 'gymnasium' has no attribute"),
])  # fmt: skip
def test_a_package_that_cannot_be_had_is_one_sentence(other, code, words):
    if code is not None:
        other.write_text(code)
    assert re.search(words, error_of(make_env, "Other-Corridor-v0"))


@pytest.mark.parametrize(("id", "module"), [
    ("MiniGrid-MemoryS7-v0", "minigrid"),
    ("BabyAI-GoToLocal-v0", "minigrid"),
    ("popgym-RepeatPreviousEasy-v0", "popgym"),
    ("MortarMayhem-v0", "memory_gym"),
    ("MortarMayhemB-Grid-v0", "memory_gym"),
    ("Endless-SearingSpotlights-v0", "memory_gym"),
    ("MysteryPath-Grid-v0", "memory_gym"),
])  # fmt: skip
def test_ids_of_known_packages(id, module):
    assert next(each.module for each in PACKAGES if packages.re.match(each.ids, id)) == module
    if module in sys.modules or packages.importlib.util.find_spec(module):
        assert make_env(id).spec.id == id
