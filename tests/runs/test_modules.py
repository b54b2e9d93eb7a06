"""Modules that a run, a preset, a study or an archive names run only where the user names them too."""

import importlib
import json
import os
import shutil
import site
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoints
from pathlib import Path

import gymnasium
import pytest
import torch
from reported import MEMORY, make_study
from reported import report as write_report
from run_folders import error_of, refused
from trained import training_flags

from dqn_memory import api, evaluate, inspect, train, watch
from dqn_memory.agent import Agent
from dqn_memory.blocks import MEMORY as MEMORIES
from dqn_memory.network import ARCHITECTURES
from dqn_memory.runs import kinds
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import installed_trainers, script_of, trainer_class
from dqn_memory.runs.toml import defaults, to_toml
from dqn_memory.study import report
from dqn_memory.study import run as study_run
from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import collect
from envs.files import sha256
from envs.packages import PACKAGES, make_env
from envs.registry import WORLDS
from world_models.glam import inspect as glam_inspect
from world_models.unizero import inspect as unizero_inspect

KINDS = sorted(installed_trainers().names)
INSPECT = {"unizero": unizero_inspect.main, "glam": glam_inspect.main}
EVIL = "from pathlib import Path\nPath({marker!r}).write_text(__name__)\n"
FILES = (  # all run where Python imports any of the names below
    "evil.py", "space/evil.py", "pack/__init__.py", "pack/evil.py", "runs/foreign/evil.py", "configs/studies/evil.py",
    *(f"{package.module}/__init__.py" for package in PACKAGES), "ale_py/roms.py", "this_one/__init__.py",
    "numpy/__init__.py", "tensorboard/__init__.py", "wandb/__init__.py",
)  # fmt: skip
NAMES = ("evil", "space.evil", "pack.evil", "runs.foreign.evil", "configs.studies.evil", "this_one", "antigravity")
IDS = ("evil:X-v0", "space.evil:X-v0", "runs.foreign.evil:X-v0", "this_one:envs:X-v0")


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """The file that appears where a stranger's code runs; the working directory is full of that, and leads the path."""
    marker = tmp_path / "it ran"
    here = tmp_path / "here"
    for name in FILES:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(EVIL.format(marker=str(marker)))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(here), *filter(None, sys.path)])
    importlib.invalidate_caches()
    yield marker
    for name in set(sys.modules) & set(NAMES):
        del sys.modules[name]
    assert not marker.exists()


def settings(kind, plugin=(), env=None):
    """The config of a run that names modules."""
    config = defaults(trainer_class(kind).config_class)
    environment = config.environment if env is None else replace(config.environment, env=env)
    return to_toml(replace(config, plugin=tuple(plugin), environment=environment))


def foreign(kind="q_network", plugin=(), env=None):
    """A run from elsewhere that names modules."""
    text, folder = settings(kind, plugin, env), Path("runs/foreign")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.move(folder / "evil.py", "kept.py")  # a run begins in an empty folder
    with Run.create(folder, text) as run:
        run.save(1, {"network.x": torch.zeros(1)}, {"x": 1}, header={"kind": kind, "config": text})
    shutil.move("kept.py", folder / "evil.py")
    return folder


def resumed(kind, run):
    trainer_class(kind).main(["--resume", str(run)])


READERS = {
    "evaluate": lambda kind, run: evaluate.main([str(run)]),
    "inspect": lambda kind, run: INSPECT.get(kind, inspect.main)([str(run)]),
    "watch": lambda kind, run: watch.main([str(run), "--on", "terminal"]),
    "resume": resumed,
}


@pytest.mark.parametrize(("command", "kind"), [
    *((command, kind) for command in ("evaluate", "inspect", "resume") for kind in KINDS),
    ("watch", "q_network"),
])  # fmt: skip
@pytest.mark.parametrize(("plugin", "env", "module"), [
    (["evil"], None, "evil"),
    (["runs.foreign.evil"], None, "runs.foreign.evil"),
    ([], "runs.foreign.evil:X-v0", "runs.foreign.evil"),
])  # fmt: skip
def test_no_command_imports_what_somebody_elses_run_names(command, kind, plugin, env, module, marker, capsys):
    said = refused(capsys, [], lambda _: READERS[command](kind, foreign(kind, plugin, env)))
    assert repr(module) in said and f"--plugin {module}" in said


@pytest.mark.parametrize("plugin", NAMES)
def test_wherever_the_module_lies(plugin, marker, capsys):
    assert f"--plugin {plugin}" in refused(capsys, [str(foreign(plugin=[plugin]))], evaluate.main)


@pytest.mark.parametrize("plugin", ["", "a\nb\x1b[31m", "x" * 9_999])
def test_a_name_that_no_module_has_is_one_clean_sentence(plugin, marker, capsys):
    said = refused(capsys, [str(foreign(plugin=[plugin]))], evaluate.main)
    assert said[:-1].isprintable() and len(said) < 600


@pytest.mark.parametrize("env", IDS)
@pytest.mark.parametrize("read", [
    api.evaluate, Agent.load, lambda run: api.train(resume=run), lambda run: api.train(config=run / "config.toml"),
])  # fmt: skip
def test_python_imports_none_either(read, env, marker):
    assert repr(env.rpartition(":")[0]) in error_of(read, foreign(env=env))


@pytest.mark.parametrize("kind", KINDS)
def test_a_preset_imports_none(kind, marker, capsys):
    for number, text in enumerate((settings(kind, ["evil"]), settings(kind, env="space.evil:X-v0"))):
        Path("preset.toml").write_text(text)
        said = refused(capsys, ["--config", "preset.toml", "--run", "new"], trainer_class(kind).main)
        assert f"--plugin {('evil', 'space.evil')[number]}" in said
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "env",
    [
        "MiniGrid-MemoryS7-v0",
        "popgym-RepeatPreviousEasy-v0",
        "MortarMayhem-v0",
        *(f"{package.module}:X-v0" for package in PACKAGES),
    ],
)
def test_a_known_package_is_not_taken_from_the_working_directory(env, marker, monkeypatch):
    for package in PACKAGES:
        monkeypatch.delitem(sys.modules, package.module, raising=False)
    error_of(
        api.evaluate, foreign(env=env)
    )  # whatever is installed has no such environment, or is none of this network's


@pytest.mark.parametrize("module", [package.module for package in PACKAGES])
def test_nor_is_one_that_a_plugin_names(module, marker, monkeypatch):
    monkeypatch.delitem(sys.modules, module, raising=False)
    error_of(api.evaluate, foreign(plugin=[module]))


def test_gymnasiums_own_environments_find_what_they_need_nowhere_else(marker, monkeypatch):
    Path("Box2D").mkdir()
    Path("Box2D/__init__.py").write_text(Path("evil.py").read_text())
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    error_of(api.evaluate, foreign(env="LunarLander-v3"))


def archived(folder):
    study = make_study(folder / "made", [MEMORY], '["dtqn4"]', [1])
    write_report(study.folder, "--archive", str(folder / "kept"))
    return folder / "kept"


def renamed(folder, old, new):
    """Change an archive as a stranger may, who makes its checksums fit."""
    path = folder / "config.toml"
    path.write_text(path.read_text().replace(old, new))
    index = json.loads((folder / "archive.json").read_text())
    index["files"]["config.toml"] = sha256(path.read_bytes())
    (folder / "archive.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("old", "new"), [
    ("plugin = []", 'plugin = ["evil", "runs.foreign.evil"]'),
    (f'env = "{MEMORY}"', 'env = "runs.foreign.evil:X-v0"'),
])  # fmt: skip
def test_reports_import_none(old, new, marker, capsys):
    kept = archived(Path("."))
    renamed(kept, old, new)
    text = (kept / "runs.csv").read_text()
    (kept / "runs.csv").write_text(text.replace("summary.", "other."))  # so that it must be computed
    module = new.split('"')[-2].partition(":")[0]
    index = json.loads((kept / "archive.json").read_text())
    index["files"]["runs.csv"] = sha256((kept / "runs.csv").read_bytes())
    (kept / "archive.json").write_text(json.dumps(index))
    data = collect(open_source(kept))
    assert data.left_out and not data.entries
    study = Path("made/runs")
    config = next(study.glob("*/config.toml"))
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(SystemExit):
        report.main(["made", "--no-attention", "--write", "written"])
    said = capsys.readouterr().err
    assert "--plugin " in said and "Traceback" not in said, module


def test_a_study_imports_what_its_command_names_and_remembers_it(marker, capsys):
    text = 'title = "T"\nkind = "q_network"\n[base]\nplugin = ["{module}"]\n[axes]\nworld = ["{world}"]\n'
    text += 'architecture = ["gru"]\nseed = [1]\n'
    for module, world, wanted in (("evil", MEMORY, "evil"), ("envs", "space.evil:X-v0", "space.evil")):
        Path("my.toml").write_text(text.format(module=module, world=world))
        for flags in ([], ["--dry-run"]):
            assert f"--plugin {wanted}" in refused(capsys, ["my.toml", *flags], study_run.main)
    Path("harmless.py").write_text("")
    Path("my.toml").write_text(text.format(module="harmless", world=MEMORY))
    study_run.main(["my.toml", "--dry-run", "--plugin", "harmless"])
    del sys.modules["harmless"]
    refused(capsys, ["my.toml", "--dry-run"], study_run.main)  # nothing was started


def test_the_shipped_studies_go_on_working(marker, monkeypatch):
    monkeypatch.delitem(sys.modules, "configs.studies.phantom_rooms", raising=False)
    Path("configs/studies/phantom_rooms.py").write_text(Path("evil.py").read_text())
    study_run.main(["rq5_learned", "--dry-run", "--smoke"])


def test_distributions_in_the_working_directory_bring_no_trainers(marker):
    Path("evil-1.dist-info").mkdir()
    Path("evil-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    points = "[dqn_memory.trainers]\nevil = evil:Trainer\nq_network = evil:Trainer\n"
    Path("evil-1.dist-info/entry_points.txt").write_text(points)
    installed_trainers.cache_clear()
    assert "evil" not in installed_trainers().names
    assert trainer_class("q_network").__module__ == "dqn_memory.train"


def test_shipped_trainers_are_found_without_metadata(monkeypatch):
    monkeypatch.setattr(kinds, "entry_points", lambda **_: EntryPoints())
    installed_trainers.cache_clear()
    assert sorted(trainer_class(kind).kind for kind in installed_trainers().names) == KINDS
    assert script_of("ppo") == "dqn_memory.ppo"
    installed_trainers.cache_clear()


def test_what_is_installed_says_the_same_as_the_table():
    text = (Path(train.__file__).parents[1] / "pyproject.toml").read_text()
    assert all(f'{kind} = "{place}"' in text for kind, place in kinds.SHIPPED.items())


# ---- runs of one's own -----------------------------------------------------------------------------------------------
OWN = """
import gymnasium, envs
envs.register("Own/Hall-v0", envs.Entry("envs.worlds.hallway:Hallway"))
gymnasium.register("MyPole-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""


BROKEN = """
from dqn_memory.blocks import MEMORY
from dqn_memory.network import ARCHITECTURES, Architecture
def broken(*_, **__):
    raise ValueError("mine")
MEMORY["broken"] = broken
ARCHITECTURES["broken"] = Architecture(memory="broken", attention=False, layers=1)
"""


def forget():
    """Be another process, which has imported no module of the user's."""
    for name in ("mine.own", "mine"):
        sys.modules.pop(name, None)
    for known, id in ((gymnasium.registry, "MyPole-v0"), (gymnasium.registry, "Own/Hall-v0"), (WORLDS, "Own/Hall-v0")):
        known.pop(id, None)
    importlib.invalidate_caches()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder whose module `mine.own` is the user's."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *filter(None, sys.path)])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path
    forget()


def started(flags=("--env", "Own/Hall-v0", "--plugin", "mine.own"), steps=80):
    train.main(training_flags("mine/run", *flags, steps=steps))
    forget()
    return Path("mine/run")


def test_a_world_in_gymnasiums_slower_form_is_named_with_the_faster_flags(own, capsys):
    started(flags=("--env", "mine.own:Own/Hall-v0"))
    assert "--plugin mine.own --env Own/Hall-v0" in capsys.readouterr().err
    started(flags=("--env", "mine.own:MyPole-v0", "--run", "mine/other"))
    assert "--plugin" not in capsys.readouterr().err


def test_runs_of_ones_own_need_no_flag_and_a_copy_does(own, capsys):
    run = started()
    evaluate.main([str(run), "--episodes", "2"])
    forget()
    train.main(["--resume", str(run), "--total-steps", "120"])
    forget()
    link = Path("link")
    link.symlink_to(run)
    assert Agent.load(link).step == 120
    forget()
    copied = Path(shutil.copytree(run, "copied"))
    assert "--plugin mine.own" in refused(capsys, [str(copied)], evaluate.main)
    assert "--plugin mine.own" in refused(capsys, ["--resume", str(copied)], train.main)
    assert api.evaluate(copied, plugins=["mine.own"], episodes=2).step == 120


@pytest.mark.parametrize("change", ["config", "module", "forgotten"])
def test_what_was_changed_since_is_asked_for(change, own, capsys):
    run = started()
    if change == "config":
        with (run / "config.toml").open("a") as file:
            file.write("\n# another\n")
    elif change == "module":  # in another working directory is another one of that name
        (own / "other" / "mine").mkdir(parents=True)
        (own / "other" / "mine" / "__init__.py").write_text("raise RuntimeError('it ran')")
        (own / "other" / "mine" / "own.py").write_text("raise RuntimeError('it ran')")
        os.chdir(own / "other")
        run = own / run
    else:
        shutil.rmtree(own / "state")
    assert "--plugin mine.own" in refused(capsys, [str(run)], evaluate.main)


def test_an_environment_of_a_module_is_remembered_too(own, capsys):
    run = started(("--env", "mine.own:MyPole-v0"))
    evaluate.main([str(run), "--episodes", "2"])
    forget()
    copied = Path(shutil.copytree(run, "copied"))
    assert "--plugin mine.own" in refused(capsys, [str(copied)], evaluate.main)
    evaluate.main([str(copied), "--plugin", "mine.own", "--episodes", "2"])


@pytest.mark.parametrize("kind", ["a file", "protected", "relative", "damaged"])
def test_a_state_home_that_cannot_be_used_breaks_no_training(kind, own, capsys, monkeypatch):
    state = own / "state"
    if kind == "a file":
        state.write_text("")
    elif kind == "protected":
        state.symlink_to("/proc")
    elif kind == "relative":
        monkeypatch.setenv("XDG_STATE_HOME", "state")
        monkeypatch.setenv("HOME", str(own / "home"))
    run = started()
    said = capsys.readouterr().err
    assert ("remember" in said) == (kind in ("a file", "protected")) and "Traceback" not in said
    if kind == "damaged":
        for file in state.rglob("*.json"):
            file.write_text("[1")
    if kind == "relative":
        assert not state.exists() and (own / "home" / ".local" / "state" / "dqn-memory").is_dir()
        evaluate.main([str(run), "--episodes", "2"])
    else:
        assert "--plugin mine.own" in refused(capsys, [str(run)], evaluate.main)


def test_a_preset_and_a_flag_that_name_one_module_make_it_one(own):
    Path("preset.toml").write_text('schema = 2\nplugin = ["mine.own"]\n[environment]\nenv = "Own/Hall-v0"\n')
    run = started(("--config", "preset.toml", "--plugin", "mine.own"))
    assert api.load_run(run).config["plugin"] == ["mine.own"]


@pytest.mark.long
def test_the_runs_of_a_study_are_told_its_modules(own, capsys):
    smoke = "width = 16\nheads = 2\nlayers = 1\ncontext = 8\nlearning_starts = 64\ntotal_steps = 80\nnum_envs = 4\n"
    smoke += "evaluate_every = 0\nepisodes = 2\nfinal_episodes = 2\nmemory_ablation = false\nlog_every = 40\n"
    text = f'title = "T"\nkind = "q_network"\n[base]\nplugin = ["mine.own"]\nbatch_size = 8\n{smoke}'
    text += '[axes]\nworld = ["mine.own:MyPole-v0"]\narchitecture = ["gru"]\nseed = [1]\n'
    Path("my.toml").write_text(text)
    assert "--plugin mine.own" in refused(capsys, ["my.toml"], study_run.main)
    flags = ["my.toml", "--folder", "study", "--backend", "processes", "--workers", "1"]
    study_run.main([*flags, "--plugin", "mine.own"])
    run = next(Path("study/runs").iterdir())
    assert api.load_run(run).config["plugin"] == ["mine.own"]
    forget()
    study_run.main(flags)  # this user has begun it
    forget()
    report.main(["study", "--no-attention"])
    forget()
    shutil.copytree("study", "copied")
    assert "--plugin mine.own" in refused(capsys, ["copied/study.toml", "--folder", "copied"], study_run.main)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        report.main(["copied", "--no-attention"])
    assert "--plugin mine.own" in capsys.readouterr().err
    report.main(["copied", "--no-attention", "--plugin", "mine.own"])


def test_a_process_of_its_own_imports_none(marker):
    run = foreign(plugin=["runs.foreign.evil"], env="evil:X-v0")
    places = [str(Path(train.__file__).parents[1]), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, places))  # an empty entry would stand for the working directory
    call = partial(subprocess.run, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
    done = call([sys.executable, "-m", "dqn_memory.evaluate", str(run)])
    assert done.returncode == 2 and "--plugin runs.foreign.evil" in done.stderr and done.stderr.count("\n") == 1


def test_a_plugins_value_error_keeps_its_traceback(own, monkeypatch):
    for table in (MEMORIES, ARCHITECTURES):
        monkeypatch.setitem(table, "broken", None)  # the plugin's own, which goes afterwards
    (own / "mine" / "own.py").write_text(BROKEN)
    with pytest.raises(ValueError, match="mine") as caught:
        train.main(training_flags("run", "--plugin", "mine.own", "--architecture", "broken", "--env", MEMORY))
    assert not isinstance(caught.value, api.UserError)


INSTALLED = "import gymnasium\ngymnasium.register('MiniGrid-Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"


@pytest.mark.parametrize("how", ["files", "folder", "added"])
def test_packages_are_known_wherever_uv_installs_them(how, tmp_path, monkeypatch):
    cache, place = tmp_path / "cache" / "minigrid", tmp_path / "env" / "site-packages"
    cache.mkdir(parents=True)
    (cache / "__init__.py").write_text(INSTALLED)
    place.mkdir(parents=True)
    if how == "folder":
        (place / "minigrid").symlink_to(cache)
    elif how == "files":
        (place / "minigrid").mkdir()
        (place / "minigrid" / "__init__.py").symlink_to(cache / "__init__.py")
    else:
        shutil.copytree(cache, place / "minigrid")
    if how != "added":  # what `uv run --with` adds to the path is none of Python's own places
        monkeypatch.setattr(site, "getsitepackages", lambda: [str(place)])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "minigrid"}
    try:
        assert make_env("MiniGrid-Mine-v0").spec.id == "MiniGrid-Mine-v0"
    finally:
        sys.modules.pop("minigrid", None)
        sys.modules.update(kept)
        gymnasium.registry.pop("MiniGrid-Mine-v0", None)


@pytest.mark.long
def test_settings_of_numba_in_the_working_directory_are_not_read(tmp_path):
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: theirs\n")
    code = "import torch; from dqn_memory.blocks import build; build('gru', 8).sequence(torch.zeros(2, 3, 8))"
    path = str(Path(train.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, check=True)
    assert [each.name for each in tmp_path.iterdir()] == [".numba_config.yaml"]
