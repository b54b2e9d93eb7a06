"""A run folder that a stranger made is read and continued with care: nothing outside it changes, nothing hangs."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import KINDS, make_outside, put, seen, within
from run_folders import error_of
from trained import CARDS, training_flags

from dqn_memory import evaluate, inspect, train, watch
from dqn_memory.agent import Agent
from dqn_memory.api import load_run
from dqn_memory.runs import checkpoint
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.optimizers import restore_optimizer
from dqn_memory.study.run_record import final_metrics, read_run
from envs.files import sha256

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes and sockets among its files")
LONG = 10.0  # seconds that no command comes near to
BIG = 10**400


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "mine"
    train.main(
        [*training_flags(run, "--track", "csv", "--env", CARDS, "--episodes", 2, "--final-episodes", 2, steps=80)]
    )
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "theirs"))


def resume(run: Path) -> None:
    trainer, opened = train.QTrainer.start(["--resume", str(run), "--total-steps", "5000"])
    with opened:
        opened.track(["csv"])
        trainer.iterate()
        opened.save(trainer.steps, trainer.weights(), trainer.state_dict())


COMMANDS: dict[str, Callable[[Path], Any]] = {
    "evaluate": lambda run: evaluate.main([str(run), "--episodes", "1"]),
    "inspect": lambda run: inspect.main([str(run), "--episodes", "1", "--no-frames"]),
    "watch": lambda run: watch.main([str(run), "--on", "terminal", "--delay", "0"]),
    "resume": resume,
    "report": lambda run: (final_metrics(run), read_run(run)),
    "load_run": load_run,
    "Agent.load": Agent.load,
}
STATE = ("checkpoints", "checkpoints/manifest.json", "weights", "trainer")
READ = {  # by command, what of a run it reads or writes
    "evaluate": STATE,
    "inspect": (*STATE, "inspect"),
    "watch": STATE,
    "resume": (*STATE, "replay", "checkpoints/replay", ".lock", "config.toml", "environment.json", "metrics.jsonl"),
    "report": ("config.toml", "environment.json", "metrics.jsonl", "checkpoints", "checkpoints/manifest.json"),
    "load_run": ("config.toml", "environment.json", "metrics.jsonl"),
    "Agent.load": STATE,
}
RIGHT = {(name, "folder") for name in ("checkpoints", "checkpoints/replay", "inspect")} | {(".lock", "endless file")}
CASES = [(command, name) for command, names in READ.items() for name in names]


def place(run: Path, name: str) -> Path:
    """Where a file of a run is; those of its checkpoint are named by what they hold."""
    content = json.loads((run / "checkpoints" / "manifest.json").read_text())["content"]
    files = {"weights": content["weights"], "trainer": content["trainer"], "replay": content["replay"]["chunks"][0]}
    return run / "checkpoints" / files[name]["file"] if name in files else run / name


def said(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """The one sentence by which a command refuses a run; None where it takes it."""
    capsys.readouterr()
    try:
        with within(LONG):
            COMMANDS[command](run)
        return None
    except UserError as error:
        sentence = str(error)
    except SystemExit as stopped:
        sentence = capsys.readouterr().err
        assert (stopped.code == 2 and sentence.startswith("error: ")) or command == "report", sentence
    except OSError as error:  # which every script's main turns into a sentence
        assert error.filename is not None and command not in ("evaluate", "inspect", "watch", "report")
        sentence = f"{error.filename}: {error.strerror}"
    assert sentence.count("\n") <= 1 and "Traceback" not in sentence, sentence
    return sentence


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sound_run_is_taken_also_through_a_link_to_it(run: Path, command: str, capsys: Any) -> None:
    (run.parent / "link").symlink_to(run)
    assert said(command, run.parent / "link", capsys) is None


@pytest.mark.parametrize(("command", "name"), CASES)
def test_what_is_no_regular_file_is_refused_and_leads_nowhere(
    made: Path, tmp_path: Path, command: str, name: str, capsys: Any
) -> None:
    taken = []
    for number, kind in enumerate(KINDS):
        if (name, kind) in RIGHT:
            continue
        run, outside = tmp_path / f"run-{number}", make_outside(tmp_path / f"outside-{number}")
        shutil.copytree(made, run)
        put(path := place(run, name), kind, outside)
        before = seen(outside)
        sentence = said(command, run, capsys)
        assert seen(outside) == before, kind
        if sentence is None or (path.name not in sentence and str(run) not in sentence):
            taken.append((kind, sentence))
    assert not taken


NUMBERS: tuple[Any, ...] = (
    BIG,
    -1,
    None,
    [1],
    {"a": 1},
    "1",
    True,
    float("nan"),
    float("inf"),
    1e999,
    2**63,
    0.5,
    [[]],
)


@pytest.mark.parametrize("command", ["load_run", "resume", "report"])
def test_numbers_of_another_type_in_metrics_are_one_sentence(run: Path, command: str, capsys: Any) -> None:
    path = run / "metrics.jsonl"
    whole = path.read_text()
    first, rest = whole.split("\n", 1)
    values = [json.dumps(value) for value in NUMBERS]
    lines = [json.dumps(json.loads(first) | {"step": value}) for value in NUMBERS]
    lines += [f'{first[:-1]}, "losses/x": {value}}}' for value in values if value not in ("-1", "0.5", "null")]
    lines += [f'{first[:-1]}, "step": 1}}', "[" * 100_000, "[]", "1", '"a"', "null", "9" * 5000, "\0", "é"]
    lines += [f'{first[:-1]}, "losses/x": {"[" * 50_000}', f'{first[:-1]}, "losses/x": {"9" * 5000}}}']
    taken = []
    for line in lines:
        path.write_text(f"{line}\n{rest}", encoding="utf-8")
        sentence = said(command, run, capsys)
        if sentence is None or "metrics.jsonl" not in sentence:
            taken.append((line[:60], sentence))
    assert not taken


@pytest.mark.parametrize("command", ["load_run", "resume", "report"])
def test_facts_of_another_type_in_environment_are_one_sentence(run: Path, command: str, capsys: Any) -> None:
    path = run / "environment.json"
    known = json.loads(path.read_text())
    wrong = [json.dumps(value) for value in (None, [], [1], "a", 1, [["a", 1]], known | {"command": 5})]
    for name in ("command", "torch", "mamba_backend", "threads", "new"):
        wrong += [json.dumps(known | {name: value}) for value in (BIG, [1], {"a": []}, float("nan"), float("inf"))]
    wrong += ["", "{", "[" * 100_000, "\0", '{"torch": "a", "torch": "b"}', '{"a": ' + "9" * 5000 + "}"]
    taken = []
    for text in wrong:
        path.write_text(text)
        sentence = said(command, run, capsys)
        if sentence is None or "environment.json" not in sentence:
            taken.append((text[:60], sentence))
    assert not taken


@pytest.mark.parametrize("command", ["load_run", "resume", "report"])
def test_a_config_that_cannot_be_read_is_one_sentence(run: Path, command: str, capsys: Any) -> None:
    path = run / "config.toml"
    taken = []
    for text in ("a", "a = " + "[" * 50_000, "a = " + "9" * 5000, ".".join("a" * 9_000) + " = 1", "\0", "a = 1\na = 2"):
        path.write_text(text)
        sentence = said(command, run, capsys)
        if sentence is None or "config.toml" not in sentence:
            taken.append((text[:60], sentence))
    path.write_bytes(b"\xff\xfe")
    assert not taken and "config.toml" in (said(command, run, capsys) or "")


def forge(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and seal it anew."""
    path = run / "checkpoints" / "manifest.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    path.write_bytes(checkpoint._seal(content))


@pytest.mark.parametrize("command", ["evaluate", "inspect", "watch", "resume", "Agent.load"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named(run: Path, command: str, value: float, capsys: Any) -> None:
    path = place(run, "weights")
    weights, header = checkpoint.unpack_tensors(path.read_bytes(), "weights", path)
    name = next(name for name in weights if name.startswith("network.") and weights[name].is_floating_point())
    weights[name].view(-1)[-1] = value
    data = checkpoint.pack_tensors(weights, "weights", header)
    path.write_bytes(data)
    forge(run, lambda content: content["weights"].update(size=len(data), sha256=sha256(data)))
    sentence = said(command, run, capsys)
    assert sentence is not None and path.name in sentence and name in sentence


MINE = ("notes.txt", "best.pt", "step_000000007.pt", "step_000000007.safetensors", "replay/mine.safetensors",
        "replay/chunk_0_1.safetensors", "replay/notes/a.txt", "keep/step_000000001.pt", ".notes.tmp")  # fmt: skip


@pytest.mark.parametrize("before", [True, False], ids=["with a checkpoint", "without one"])
def test_files_of_others_in_checkpoints_stay(run: Path, before: bool, capsys: Any) -> None:
    folder = run / "checkpoints"
    if not before:
        shutil.rmtree(folder)
        (run / "metrics.jsonl").unlink()
    for name in MINE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "elsewhere").symlink_to(run.parent)
    assert said("resume", run, capsys) is None
    assert all((folder / name).read_text() == "mine" for name in MINE) and (folder / "elsewhere").is_symlink()
    assert (folder / "manifest.json").exists()


def test_a_save_that_was_cut_off_leaves_nothing_once_another_ends(run: Path, monkeypatch: Any) -> None:
    state: dict[str, Any] = {"a": 1}
    weights = {"network.a": torch.zeros(2)}
    with Run.take_up(run) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "_seal", lambda content: os._exit(3))
            child = os.fork()
            if not child:
                try:
                    opened.save(777, weights, state)
                finally:
                    os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert (run / "checkpoints" / "step_000000777.pt").exists()
        opened.save(778, weights, state)
    left = {path.name for path in (run / "checkpoints").iterdir() if path.is_file()}
    assert left == {"manifest.json", "step_000000778.pt", "step_000000778.safetensors"}


def test_weights_that_fit_into_no_memory_are_not_read(run: Path) -> None:
    manifest = run / "checkpoints" / checkpoint.MANIFEST
    content = json.loads(manifest.read_bytes())["content"]
    file = manifest.with_name(content["weights"]["file"])
    os.truncate(file, 1 << 42)  # a file with holes: it takes no room on the disk
    content["weights"]["size"] = 1 << 42
    manifest.write_bytes(checkpoint._seal(content))
    with within(LONG):
        assert file.name in error_of(Agent.load, run)


def test_a_buffer_that_is_infinite_in_every_network_is_no_damage() -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))
            self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    network = Masked()
    weights = {f"network.{name}": value.clone() for name, value in network.state_dict().items()}
    checkpoint.Checkpoint(0, weights, {}, None, {}).fill(network, "network")
    weights["network.mask"][1, 0] = torch.inf
    assert "network.mask" in error_of(checkpoint.Checkpoint(0, weights, {}, None, {}).fill, network, "network")


@pytest.mark.parametrize("value", [None, "x", [1], BIG, float("nan")])
@pytest.mark.parametrize("name", ["eps", "betas", "weight_decay", "amsgrad", "lr"])
def test_a_setting_of_the_optimiser_of_another_type_is_refused(name: str, value: Any) -> None:
    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.Adam([torch.nn.Parameter(torch.ones(3))], lr=1e-3)

    state = optimizer().state_dict()
    restore_optimizer(optimizer(), state)
    del (lacking := {**state["param_groups"][0]})["eps"]
    restore_optimizer(optimizer(), {"state": {}, "param_groups": [lacking]})  # as another version of torch wrote it
    state["param_groups"][0][name] = value
    if name != "lr" or value == value:  # a rate that is NaN stops the run at its first update
        with pytest.raises((TypeError, OverflowError)):
            restore_optimizer(optimizer(), state)


@pytest.mark.parametrize("value", [-1, 1_000])
def test_a_saved_action_that_the_environment_does_not_have_is_refused(run: Path, value: int) -> None:
    manifest = run / "checkpoints" / checkpoint.MANIFEST
    content = json.loads(manifest.read_bytes())["content"]
    file = manifest.with_name(content["trainer"]["file"])
    state = torch.load(file, weights_only=True)
    state["previous_action"].fill_(value)
    data = checkpoint.pack_trainer(state)
    file.write_bytes(data)
    content["trainer"] |= {"size": len(data), "sha256": sha256(data)}
    manifest.write_bytes(checkpoint._seal(content))
    assert "previous_action" in error_of(resume, run)
