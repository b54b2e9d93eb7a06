"""Worlds of one's own in the scripts `envs.memoryless` and `envs.baselines`: plugins, options, no known player."""

import json
import re
import sys

import gymnasium
import own_worlds
import pytest
from run_folders import error_of
from world_keywords import DATA

from envs.baselines import bounds, reference
from envs.baselines.__main__ import main as baselines
from envs.cli import keywords
from envs.memoryless import main as memoryless
from envs.registry import WORLDS
from envs.tables import read_tables

ID, FILE, TIGER = "Mine/Cue-v0", "POMDP/File-v0", str(DATA / "pomdp" / "tiger.pomdp")
FEW = ("--restarts", "2", "--sweeps", "1", "--updates", "1", "--episodes", "10", "--fresh", "20")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The name of a module that registers ID; what it did is undone afterwards."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "cue_plugin.py").write_text(f"import envs\nenvs.register('{ID}', envs.Entry('own_worlds:Cue'))\n")
    monkeypatch.syspath_prepend(folder)
    yield "cue_plugin"
    sys.modules.pop("cue_plugin", None)
    WORLDS.pop(ID, None)
    gymnasium.registry.pop(ID, None)


def rows(folder):
    return json.loads((folder / "baselines.json").read_text())


def searched(folder):
    """How the rows of `envs.memoryless` were made, by name."""
    return {row["env"]: row for row in read_tables(folder / "memoryless.json")["How the rows were made"].records()}


def few(folder):
    return ["--episodes", "40", "--write", str(folder)]


@pytest.mark.parametrize("main", [memoryless, baselines], ids=["search", "lines"])
@pytest.mark.parametrize(("id", "flags", "words"), [
    (ID, [], r"unknown environment 'Mine/Cue-v0'; name the module .* with --plugin MODULE$"),
    (ID, ["--plugin", "no_such_plugin"], "--plugin no_such_plugin: no module of that name"),
    (ID, ["--plugin", "cue_plugin.py"], r"--plugin cue_plugin\.py: .*--plugin cue_plugin$"),
    (ID, ["--plugin", "./folder/my_module.py"], r"--plugin folder\.my_module$"),
    (ID, ["--plugin", "/far/away/my_module.py"], r"--plugin my_module, .* in /far/away"),
    (ID, ["--plugin", "../beside/my_module"], r"--plugin my_module, .* in \.\./beside"),
    (ID, ["--plugin", "cue_plugin.Cue.small"], "cue_plugin is a module, not a package"),
    (ID, ["--plugin", ".cue_plugin"], "give a module's full name"),
    ("Mine/Cu-v0", ["--plugin", "cue_plugin"], "did you mean 'Mine/Cue-v0'"),
    ("ladder/hold-8-v0", [], "did you mean 'Ladder/hold-8-v0'"),
    (FILE, ["--options", "path"], "--options takes pairs KEY VALUE, but 'path' has no value."),
    (FILE, ["--options", "path", "a", "path", "b"], "--options gives 'path' twice; give it once."),
    (FILE, ["--options", "path", "5"], "path of environment 'POMDP/File-v0' must be the name of a file, not 5."),
    (FILE, ["--options", "pth", "a"],
     "got an unexpected keyword argument 'pth'; did you mean 'path'. known: path, time_limit"),
    (FILE, ["--options", "time_limit", "x", "path", TIGER], "time_limit of .* must be a whole number, not 'x'."),
])  # fmt: skip
def test_wrong_plugins_and_options_are_one_sentence(main, id, flags, words, plugin, tmp_path):
    assert re.search(words, error_of(main, ["--env", id, *flags, "--write", str(tmp_path)]))
    assert not list(tmp_path.glob("*.json"))


def test_a_wrong_world_is_refused_before_the_work(plugin, tmp_path, monkeypatch):
    monkeypatch.setattr(own_worlds, "Cue", own_worlds.FourValues)
    words = "FourValues.step must return five values"
    assert words in error_of(memoryless, ["--env", ID, "--plugin", plugin, "--write", str(tmp_path)])
    monkeypatch.setattr(
        "envs.baselines.__main__.compute_reference", lambda *_: pytest.fail("the computation came first")
    )
    assert words in error_of(baselines, ["--env", "POMDP/CarFlag-v0", "--env", ID, "--plugin", plugin, *few(tmp_path)])


def test_a_world_without_a_player_keeps_its_random_row_and_those_behind_it(plugin, tmp_path, capsys, monkeypatch):
    shortened = {ID: None, "POMDP/CarFlag-v0": None}  # the world without a player first
    monkeypatch.setattr("envs.baselines.__main__.Args.ids", lambda args: list(shortened))
    baselines(["--env", ID, "--env", "POMDP/CarFlag-v0", "--plugin", plugin, *few(tmp_path)])
    memoryless(["--env", ID, "--plugin", plugin, *FEW, "--write", str(tmp_path)])
    assert searched(tmp_path)[ID]["command"].startswith(f"python -m envs.memoryless --env {ID} --plugin {plugin}")
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if "No player is known for Cue" in line)
    assert "envs.baselines.bounds.BOUNDS[Cue] = f" in line and "subclass of envs.worlds.tabular.Tabular" in line
    made = rows(tmp_path)
    assert set(made) == set(shortened) and 0.2 < made[ID]["random"]["success"]["mean"] < 0.8
    assert "lower" not in made[ID] and "upper" not in made[ID] and made["POMDP/CarFlag-v0"]["lower"]["kind"] == "exact"
    page = (tmp_path / "baselines.md").read_text()
    assert "nan" not in page
    row = next(line for line in page.splitlines() if line.startswith(f"| {ID} | 0."))
    assert row.split(" | ")[2] == row.split(" | ")[4] == "-"
    read = reference.read_references(tmp_path / "baselines.json")
    assert not read[ID].bounded and read[ID].words == f"random {read[ID].random.success.mean:.2f}"
    assert reference.references_json(read) == (tmp_path / "baselines.json").read_text()
    half = {name: value for name, value in reference.to_record(read["POMDP/CarFlag-v0"]).items() if name != "upper"}
    with pytest.raises(TypeError, match="upper"):  # a row that has lost one bound is a damaged one
        reference.from_record("POMDP/CarFlag-v0", half)


def test_a_player_of_ones_own_is_asked_before_that_of_a_base_class(plugin, tmp_path, monkeypatch):
    optimum = bounds.exact_level(1.0, 1.0, bounds.EXACT)
    monkeypatch.setitem(bounds.BOUNDS, own_worlds.World, lambda world, budget: pytest.fail("the base's was asked"))
    monkeypatch.setitem(bounds.BOUNDS, own_worlds.Cue, lambda world, budget: bounds.Best(optimum, optimum))
    baselines(["--env", ID, "--plugin", plugin, *few(tmp_path)])
    assert rows(tmp_path)[ID]["upper"]["success"]["mean"] == 1.0


def test_a_file_of_ones_own_has_a_search_and_a_row(tmp_path, capsys):
    options, name = ["--options", "path", TIGER, "time_limit", "4"], f"POMDP/File-v0 (path={TIGER}, time_limit=4)"
    memoryless(["--env", "POMDP/File-v0", *options, *FEW, "--write", str(tmp_path)])
    baselines(["--env", "POMDP/File-v0", *options, "--size", "20", *few(tmp_path)])
    baselines(["--env", "POMDP/CarFlag-v0", *few(tmp_path)])
    assert list(searched(tmp_path)) == [name] and name in capsys.readouterr().out
    assert list(rows(tmp_path)) == ["POMDP/CarFlag-v0", name]
    assert rows(tmp_path)[name]["time_limit"] == 4 and f"path {TIGER} time_limit 4" in rows(tmp_path)[name]["command"]
    assert f"| {name} | " in (tmp_path / "baselines.md").read_text()


def test_values_are_read_and_never_run():
    given = keywords(["a", "5", "b", "0.5", "c", "true", "d", "False", "e", "[3, 3]", "f", "x.pomdp", "g", '"5"'])
    assert given == {"a": 5, "b": 0.5, "c": True, "d": False, "e": [3, 3], "f": "x.pomdp", "g": "5"}
    strings = ["__import__('os')", "2024-01-01", "{a = 1}", "", "1 + 1", "a=b"]
    assert list(keywords([word for each in enumerate(strings) for word in map(str, each)]).values()) == strings
