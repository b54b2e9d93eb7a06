"""What is not the same everywhere: modules of POSIX, names of files, and what else is called `envs`."""

import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from trained import CARDS, training_flags

import dqn_memory
from dqn_memory.train import QTrainer
from envs.files import portable_name

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys
# what looks for itself where it is: others' packages, and parts of the standard library
import asyncio, concurrent.futures, filelock, gymnasium, matplotlib.pyplot, multiprocessing, numba, scipy.stats
import subprocess, tensorboard.summary.writer.record_writer, torch._dynamo, tyro

HIDDEN = ("fcntl", "grp", "posix", "pwd", "resource", "termios", "tty")
sys.modules.update(dict.fromkeys(HIDDEN))
for name in ("fork", "forkpty", "getpgid", "getuid", "killpg", "setsid", "uname"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGALRM"):
    delattr(signal, name)
import dqn_memory, envs, world_models
from envs.extras import MissingExtra
for package in (dqn_memory, envs, world_models):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # Ray, Triton and Mamba's kernels are optional
            assert error.name in ("mamba_ssm", "ray", "selective_scan_cuda", "triton"), error
        except MissingExtra:  # so are the libraries of the integrations
            assert found.name.startswith("dqn_memory.integrations."), found.name
from dqn_memory import evaluate, train
train.main(sys.argv[2:])
evaluate.main([sys.argv[1], "--episodes", "4"])
"""


@pytest.mark.long
def test_nothing_needs_a_module_of_posix(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", WITHOUT_POSIX, str(run), *training_flags(run, "--env", CARDS, steps=80)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (run / "checkpoints" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Gridverse/Memory-5x5-v0", "Gridverse-Memory-5x5-v0"),
        ("envs:POMDP/CarFlag-v0", "envs-POMDP-CarFlag-v0"),
        ('a<b>c"d\\e|f?g*h\n', "a-b-c-d-e-f-g-h-"),
        ("ends. .", "ends"),
        ("...", "-"),
        ("NUL", "_NUL"),
        ("com1.tar", "_com1.tar"),
        ("console", "console"),
    ],
)
def test_a_name_is_made_one_that_every_system_allows(text, name):
    assert portable_name(text) == name == portable_name(name)


def test_a_run_folder_has_such_a_name():
    config = QTrainer.config_class()
    ours = replace(config, environment=replace(config.environment, env="envs:POMDP/CarFlag-v0"))
    assert QTrainer.folder(ours) == Path("runs/envs-POMDP-CarFlag-v0") / config.network.architecture / "seed_1"


@pytest.mark.parametrize("other", ["envs.py", "envs/__init__.py"])
@pytest.mark.parametrize("script", ["dqn_memory.train", "dqn_memory.study.run", "world_models.glam.train", None])
def test_who_hides_envs_is_told_in_one_sentence(tmp_path, other, script):
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_text("")
    command = ["-m", script, "--help"] if script else ["-c", "import dqn_memory.api"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (2 if script else 1) and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert f"has a package envs of its own, but Python finds {tmp_path / other} by that name: rename or move" in last
    assert last.startswith("error: ") == (done.stderr.count("\n") == 1) == bool(script)


BESIDE = """
import importlib, sys
sys.path.insert(0, "")
from dqn_memory.blocks import build, names
import envs, torch
assert envs.own == 1
for name in names():
    build(name, 8)(torch.zeros(1, 2, 8))
print(*(name for name in sys.modules if name.split(".")[0] in ("gymnasium", "matplotlib", "tensorboard", "tyro")))
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert "has a package envs of its own, but Python finds" in str(error), (name, error)
    else:
        raise AssertionError(f"{name} was imported")
"""


@pytest.mark.long
@pytest.mark.parametrize("other", ["envs.py", pytest.param("envs/__init__.py", marks=pytest.mark.long)])
def test_blocks_are_used_beside_another_envs_and_all_else_names_it(tmp_path, other):
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_text("own = 1")
    root, kept = Path(dqn_memory.__file__).parents[1], ("__init__", "__main__")
    paths = [path for package in ("dqn_memory", "world_models") for path in (root / package).rglob("*.py")]
    modules = [path.relative_to(root).with_suffix("") for path in paths if path.stem not in kept]
    free = ("architectures", "blocks", "intervals", "peer_script")  # they need nothing of envs
    others = [".".join(module.parts) for module in modules if not {*module.parts} & {*free}]
    done = subprocess.run([sys.executable, "-c", BESIDE, *others], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "\n")


def test_a_bare_folder_hides_envs_where_the_install_is_editable(monkeypatch):
    spec = ModuleSpec("envs", None, is_package=True)
    spec.submodule_search_locations = ["/mine/envs"]
    monkeypatch.setattr(dqn_memory, "find_spec", lambda name: spec)
    with pytest.raises(ImportError, match="Python finds /mine/envs by that name"):
        dqn_memory._check_envs()
