"""Environments stepped in processes of their own are those of this process, and the processes end with it."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest
import torch
from foreign import Corridor, Failing, Odd, hang
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from run_folders import error_of
from world_keywords import roll, same

from envs import workers as module
from envs.actions import InterfaceConfig
from envs.errors import UserError
from envs.gymnasium import GymnasiumVector
from envs.vector import make_vector


@pytest.mark.parametrize(
    ("id", "limit"), [pytest.param("CartPole-v1", 12, marks=pytest.mark.long), ("FrozenLake-v1", 9)]
)
def test_steps_resets_and_saved_states_are_the_same(id, limit):
    limits = {"max_episode_steps": limit}
    here, apart = (make_vector(id, 5, seed=3, env_kwargs=limits, workers=workers) for workers in (None, 2))
    assert here.observation_space == apart.observation_space
    for _ in range(2):  # seeded, then not
        assert torch.equal(here.reset(), apart.reset())
        assert all(map(same, roll(here, 30), roll(apart, 30)))
    apart.load_state_dict(here.state_dict())
    assert all(map(same, roll(here, 10, seed=1), roll(apart, 10, seed=1)))
    for vector in (here, apart):
        vector.forget()
    assert torch.equal(here.reset(), apart.reset()) and here.seeds == apart.seeds
    assert here.state_dict()["observation_hash"] == apart.state_dict()["observation_hash"]


@pytest.mark.long
def test_pictures_come_from_the_process_of_their_row(monkeypatch):
    vector = make_vector("FrozenLake-v1", 3, 0, env_kwargs={"render_mode": "rgb_array"}, workers=2)
    single = make_vector("FrozenLake-v1", 3, 0, env_kwargs={"render_mode": "rgb_array"})
    for each in (vector, single):
        each.reset()
        each.step(torch.tensor([0, 1, 2]))
    assert all((vector.frame(row) == single.frame(row)).all() for row in range(3))
    assert "draws nothing" in error_of(make_vector("FrozenLake-v1", 3, 0, workers=9).frame, 2)
    monkeypatch.setattr(FrozenLakeEnv, "render", gymnasium.Env.render)  # which one that cannot draw inherits
    assert "draws nothing" in error_of(single.frame, 0)


@pytest.mark.usefixtures("own_id")
def test_what_only_this_process_has_registered_is_known_in_the_others():
    vector = make_vector("Mine/Corridor-v0", 2, 0, interface=InterfaceConfig("image"), workers=1)
    assert vector.reset().shape == (2, 4, 5, 3)


@pytest.fixture
def own_id():
    gymnasium.register("Mine/Corridor-v0", Corridor)
    yield
    del gymnasium.registry["Mine/Corridor-v0"]


@pytest.mark.parametrize(("action", "kind", "words"), [
    (0, UserError, "mind the gap"),
    (1, RuntimeError, "TwoArguments: here: because"),
])  # fmt: skip
def test_an_exception_is_raised_here_with_the_traceback_from_there(action, kind, words):
    vector = GymnasiumVector(Failing, 2, 0, workers=2)
    vector.reset()
    with pytest.raises(kind, match=words) as caught:
        vector.step(torch.tensor([3, action]))
    assert str(caught.value) == words and "in bad" in caught.value.__notes__[0]
    vector.step(torch.tensor([3, 3]))  # and no reply is taken for that of another request


def test_a_process_that_ends_by_itself_is_one_sentence():
    vector = GymnasiumVector(Failing, 2, 0, workers=2)
    vector.reset()
    assert "has ended by itself (exit code 3;" in error_of(vector.step, torch.tensor([3, 2]))
    assert "have ended; make new ones" in error_of(vector.step, torch.tensor([3, 3]))
    vector.forget()
    assert vector.reset().tolist() == [[0], [0]]


SCRIPT = """
import signal
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started without it
from envs.vector import make_vector
vector = make_vector("CartPole-v1", 4, 0, workers=2)
vector.reset()
print(*(each.pid for each in vector.rows.processes.processes), flush=True)
while True:
    vector.step(torch.zeros(4, dtype=torch.int64))
"""


def runs(process):
    """Whether it does, for a process that has ended may still be listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_processes_end_with_that_which_started_them(sent):
    """However that ends; Ctrl-C in a terminal reaches all that it shows, and only one of them answers."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], start_new_session=True, **pipes)
    try:
        workers = parent.stdout.readline().split()
        assert len(workers) == 2 and all(map(runs, workers))
        os.killpg(parent.pid, sent)
        said = parent.communicate(timeout=60)[1]
    finally:
        parent.kill()  # a failed test leaves nothing running
    end = time.monotonic() + 30
    while any(map(runs, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(runs, workers))
    assert said.count("Traceback") == 1 or sent == signal.SIGKILL


HANGS = """
import functools
import sys
import torch
sys.path.insert(0, {tests!r})
from foreign import Odd, hang
from envs.gymnasium import GymnasiumVector
vector = GymnasiumVector(functools.partial(Odd, after=hang), 2, 0, workers=2)
vector.reset()
print(*(each.pid for each in vector.rows.processes.processes), flush=True)
vector.step(torch.zeros(2, dtype=torch.int64))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_processes_whose_environments_hang_end_with_that_which_started_them(sent):
    script = HANGS.format(tests=str(Path(__file__).parent))
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        processes = parent.stdout.readline().split()
        assert len(processes) == 2 and all(map(runs, processes))
        time.sleep(0.3)  # until they hang
        parent.send_signal(sent)
        parent.wait(timeout=30)
    finally:
        parent.kill()
    end = time.monotonic() + 10
    while any(map(runs, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(runs, processes))


def test_a_process_that_hangs_is_given_up_in_the_end(monkeypatch):
    vector = GymnasiumVector(functools.partial(Odd, after=hang), 2, 0, workers=1)
    vector.reset()
    monkeypatch.setattr(module, "PATIENCE", 0.4)
    child = vector.rows.processes.processes[0]
    assert "one of its environments hangs" in error_of(vector.step, torch.zeros(2, dtype=torch.int64))
    assert not runs(child.pid)
