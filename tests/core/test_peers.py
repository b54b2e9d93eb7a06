"""The benchmark beside other libraries: our side at a tiny size, and the talk with a peer."""

import json
import sys

import pytest
from run_folders import error_of, refused

from dqn_memory import benchmark, peers
from dqn_memory.peer_script import LIBRARIES
from dqn_memory.runs.settings import parse
from dqn_memory.size import gigaflop
from envs.timing import Timer

ANSWERING = """
import sys
if sys.argv[1:]:
    for _ in sys.stdin:
        print(2000.0, flush=True)
else:
    print('{"pqn": "fake 1", "ppo": "fake 2"}')
"""
DYING = ANSWERING.replace("print(2000.0, flush=True)", "raise SystemExit('no memory left')")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Takes the source of a script that stands for the peers'."""

    def replace(source):
        monkeypatch.setattr(peers, "SCRIPT", tmp_path / "script.py")
        peers.SCRIPT.write_text(source)
        return sys.executable

    return replace


def rows(*pythons):
    return list(peers.peer_rows(pythons, Timer(2, 1, "cpu"), quick=True))


def test_ours_stand_beside_a_peer(fake):
    made = rows(fake(ANSWERING))
    named = [(row["learner"], row["architecture"], row["prediction"], row["average"]) for row in made]
    assert named[:3] == [("pqn", "gru_bare", 0, False), ("pqn", "gru", 0, True), ("pqn", "gru", 1, True)]
    assert named[3:] == [("ppo", "lstm_bare", 0, False)]
    assert [row["peer"] for row in made] == ["fake 1"] * 3 + ["fake 2"]
    for row in made:
        assert row["peer_steps_s"] == 8 * 4 / 2 and row["peer_first_s"] == 4 and row["peer_spread"] == 0
        assert row["ratio"] == pytest.approx(row["steps_s"] / row["peer_steps_s"])
        assert 0 < row["reached"] < 1 and row["peer_reached"] > 0


def test_a_peer_that_dies_is_one_sentence(fake):
    assert "memorax of --peer-python" in error_of(rows, fake(DYING))


@pytest.mark.skipif(bool(peers.peers_of(sys.executable)), reason="a peer is installed here")
def test_without_a_peer_ours_stand_alone(tmp_path, capsys):
    flags = ["--quick", "--only", "peers", "--peer-python", sys.executable, "--write", str(tmp_path)]
    benchmark.main(flags)
    said = capsys.readouterr()
    assert all(f"{sys.executable} have no {library}" in said.err for library in LIBRARIES.values())
    (table,) = json.loads((tmp_path / "rollouts.json").read_text())["tables"]
    assert table["title"] == "Beside other libraries" and len(table["rows"]) == 4
    assert all(row["steps_s"] > 0 and "ratio" not in row for row in table["rows"])


@pytest.mark.parametrize(("flags", "sentence"), [
    (["--only", "peers"], "--only peers needs --peer-python"),
    (["--only", "peers", "--peer-python", "no/such/python"], "--peer-python no/such/python must be a Python"),
    (["--only", "peers", "--peer-python", "/bin/true"], "--peer-python /bin/true must be a Python"),
])  # fmt: skip
def test_wrong_pythons_are_one_sentence(flags, sentence, capsys):
    assert sentence in refused(capsys, flags, benchmark.main)


def test_rollouts_include_peers():
    wanted = lambda *flags: list(benchmark.CoreArgs(**dict(flags)).wanted)  # noqa: E731
    python = ("peer_python", ("python",))
    assert "peers" not in wanted() and wanted(("only", ("rollouts",))) == ["rollouts"]
    assert wanted(("only", ("rollouts",)), python) == ["rollouts", "peers"] and "peers" in wanted(python)
    assert wanted(("only", ("peers",)), python) == ["peers"] and wanted(("only", ("memories",)), python) == ["memories"]


def test_the_products_are_those_of_the_network():
    """Acting takes one forward pass, an update as much as three."""
    kind, (flags, *_) = peers.RUNS["pqn"]
    small = {"env": "Control/CartPole-v0", "device": "cpu", "num_envs": 8, "rollout_steps": 4, "width": 16}
    trainer = kind(parse(kind.config_class, {**small, **flags}))
    forward = 2 * 8 * 4 * (4 * 16 + 2 * 16 * 48 + 16 * 16 + 16 * 2)
    assert gigaflop(peers.products(trainer)) * 1e9 == pytest.approx(forward * (1 + 3 * trainer.config.learner.epochs))
