"""An exported step is what the agent does, and computes it with torch alone, or with onnxruntime and numpy alone."""

import itertools
import logging
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from run_folders import error_of

from dqn_memory.actors import NetworkPolicy, make_actor
from dqn_memory.agent import Agent
from dqn_memory.blocks import MEMORY, Memory
from dqn_memory.config import TrainConfig
from dqn_memory.evaluate import LoadedPolicy
from dqn_memory.interface import Interface
from dqn_memory.network import ARCHITECTURES, NetworkConfig, observation_spec
from envs.actions import Actions
from envs.spaces import encoder

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

STEPS, ROWS, ACTIONS, CPU = 30, 3, 4, torch.device("cpu")
CARDS, REAL, IMAGE = MultiDiscrete([5, 9]), Box(-1, 1, (3,)), Box(0, 255, (9, 9, 3), np.uint8)
STREAMED = [  # rows that act from the state of their memories
    name for name, row in ARCHITECTURES.items() if row.positions == "none" and (row.streamed or not row.attention)
]
SHORT = {"gru-episode": CARDS, "dtqn1-window-bool": Box(0, 1, (5, 5, 2), bool), "gru-episode-normalized": REAL}
OTHERS = {  # kinds of observations, for a window and for a state
    "discrete": Discrete(300), "binary": MultiBinary((2, 3)), "shifted": MultiDiscrete([3, 4], start=[-1, 2]),
    "float64": Box(-1, 1, (2,), np.float64), "int64": Box(-5, 5, (2,), np.int64), "matrix": Box(-1, 1, (2, 3)),
    "atari": Box(0, 255, (4, 84, 84), np.uint8), "real": Box(0, 1, (9, 9, 3), np.float32),
}  # fmt: skip
OTHERS |= {kind: Box(0, 1, (5, 5, 2), kind) for kind in ("bool", "int8", "uint8", "int16", "int32", "float16")}
SPACES = {"gtrxl_memory-episode": CARDS, "dtqn1-window": IMAGE, "dgfqn-window": Discrete(7, start=-3)}
LONG = {
    name: SPACES.get(name, REAL)
    for name in (*(f"{row}-episode" for row in STREAMED), *(f"{row}-window" for row in ARCHITECTURES))
    if name not in SHORT
} | {f"{row}-{kind}": space for kind, space in OTHERS.items() for row in ("gru-episode", "dtqn1-window")}


def agent(name, space, **changes):
    architecture, state, *_ = name.split("-")
    normalized = name.endswith("normalized")
    network = NetworkConfig(
        architecture, width=32, heads=2, context=4, initialisation="torch", normalize_observation=normalized
    )
    config = TrainConfig(network=network, acting_state=state, **changes)
    encoded, encode = encoder(space)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = network.build(observation_spec(encoded), ACTIONS).eval()
        built.observe(torch.randn(99, 3) / 9 + 0.5)  # a normalised one then clips numbers of the space

    def start(rows):
        return NetworkPolicy(make_actor(built, rows, CPU, state), rows)

    interface = Interface(space, encode, encoded, Actions(ACTIONS), lambda action: action)
    return Agent(LoadedPolicy(config, {}, 0, CPU, start), interface)


ALONE = """
import json, pathlib, sys
import numpy as np
sys.modules.update(dict.fromkeys(["dqn_memory", "envs", "torch", "onnx", "onnxscript"]))  # None: importing them fails
import onnxruntime

def play(step, about, seen, resets):
    inputs = json.loads(about)["inputs"].items()
    given = {name: np.zeros([len(resets[0]) if size == "batch" else size for size in shape], dtype)
             for name, (dtype, *shape) in inputs}
    played = []
    for observation, reset in zip(seen, resets):
        given |= {"observation": observation, "reset": reset}
        q, chosen, *after = step(given)
        given |= {"action": chosen} | {f"state_{index}": part for index, part in enumerate(after)}
        played.append((q, chosen))
    return [np.stack(part) for part in zip(*played)]

def onnx(path):
    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"))
    return lambda given: session.run(None, given), session.get_modelmeta().custom_metadata_map["interface"]

def pt2(path):
    files = {"interface": ""}
    program = torch.export.load(path.with_suffix(".pt2"), extra_files=files).module()
    return lambda given: [part.numpy() for part in program(*map(torch.from_numpy, given.values()))], files["interface"]

def write(load):
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pt2")):
        episode = np.load(path.with_suffix(".npz"))
        for rows in (slice(None), slice(1)):  # one row alone, too
            with open(f"{path.with_suffix('')}_{load.__name__}_{rows.stop}.npy", "wb") as file:
                for part in play(*load(path), episode["seen"][:, rows], episode["resets"][:, rows]):
                    np.save(file, part)

write(onnx)
del sys.modules["torch"]
import torch
write(pt2)
"""


def exported(folder, names):
    """Export agents, and let the files play what the agents saw, in one process that knows nothing of them."""
    played = {}
    for name, space in names.items():
        actor = agent(name, space)
        space.seed(0)
        resets = np.zeros((STEPS, ROWS), bool)
        resets[0] = resets[[3, 17], 1] = resets[[17, 18], 2] = True
        seen = np.stack([[space.sample() for _ in range(ROWS)] for _ in resets])
        q = [(actor.act(*given), actor.q)[1] for given in zip(seen, resets, strict=True)]
        with torch.no_grad():  # so that every action is chosen somewhere
            [*actor._loaded.start(1).actor.network.head.modules()][-1].bias -= torch.from_numpy(np.mean(q, (0, 1)))
        actor.export(folder / name)
        played[name] = [(actor.act(*given), actor.q) for given in zip(seen, resets, strict=True)]
        encoded = [[actor.interface.encode(each) for each in row] for row in seen]
        np.savez(folder / f"{name}.npz", seen=encoded, resets=resets)
    done = subprocess.run([sys.executable, "-I", "-c", ALONE, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return played


@pytest.mark.long
@pytest.mark.parametrize("names", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["one", "all others"])
def test_the_files_act_as_the_agent(tmp_path, names):
    level = logging.getLogger("torch.onnx").level
    played = exported(tmp_path, names)
    assert logging.getLogger("torch.onnx").level == level
    for name, kind, rows in itertools.product(names, ("pt2", "onnx"), (slice(None), slice(1))):
        actions, q = map(np.stack, zip(*played[name], strict=True))
        assert len(np.unique(actions)) > 1, name  # else any file would do
        with (tmp_path / f"{name}_{kind}_{rows.stop}.npy").open("rb") as file:
            np.testing.assert_allclose(np.load(file), q[:, rows], atol=1e-5, err_msg=file.name)
            chosen = np.load(file)
        assert chosen.dtype == np.int64
        np.testing.assert_array_equal(chosen, actions[:, rows], err_msg=file.name)


def refusal(actor, path):
    said = error_of(actor.export, path)
    assert not [*path.parent.glob(f"{path.name}.pt2*")]
    return said


def test_no_file_is_overwritten(tmp_path):
    (tmp_path / "a.onnx").touch()
    assert "a.onnx exists already" in refusal(agent("dqn-episode", REAL), tmp_path / "a")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install onnx onnxscript" in refusal(agent("dqn-episode", REAL), tmp_path / "a")


class FromRow(Memory):
    """A sum of inputs whose first state is a learned row, given to all rows as a view."""

    def __init__(self, width, dropout=0.0, projection=False):
        super().__init__()
        self.row = torch.nn.Parameter(torch.ones(width))

    def initial_state(self, batch, device=None, dtype=None):
        return (self.row.to(device).expand(batch, -1),)

    def advance(self, x, state, reset):
        (kept,) = state
        after = x + (kept if reset is None else torch.where(reset[:, None], self.row, kept))
        return after, (after,)


def test_a_state_that_is_a_view_is_exported(tmp_path, monkeypatch):
    monkeypatch.setitem(MEMORY, "from_row", FromRow)
    monkeypatch.setitem(ARCHITECTURES, "from_row", replace(ARCHITECTURES["gru"], memory="from_row"))
    agent("from_row-episode", REAL).export(tmp_path / "a")
    assert (tmp_path / "a.onnx").exists() and (tmp_path / "a.pt2").exists()


def test_what_plans_or_draws_is_not_exported(tmp_path):
    actor = agent("dqn-episode", REAL)
    actor._loaded = LoadedPolicy(actor.config, {}, 0, CPU, lambda rows: object())
    assert "only agents of one network" in refusal(actor, tmp_path / "a")


def test_an_episode_goes_on_after_an_export(tmp_path):
    actor, other, observation = agent("gru-episode", REAL), agent("gru-episode", REAL), np.ones(3, np.float32)
    for each in (actor, other):
        each.act(observation, True)
    actor.export(tmp_path / "a")
    for each in (actor, other):
        each.act(observation, False)
    np.testing.assert_array_equal(actor.q, other.q)
