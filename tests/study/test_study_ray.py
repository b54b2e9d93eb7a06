"""The same studies on Ray: this machine without a server, and two nodes whose workers are killed at random."""

import os
import random
import signal

import pytest
from studies import TINY, at_work, carry_out, environment, kill_trainers, logged, results, start, wait_for_lines

from dqn_memory.study import store
from dqn_memory.study.store import Study

pytest.importorskip("ray", reason="Ray is not installed (pip install 'dqn-memory[cluster]')")


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "tiny.toml").write_text(TINY.replace("0.02", "0.0"))
    carry_out(folder / "tiny.toml", folder / "study", "--workers", "4")
    return results(folder / "study")


@pytest.fixture(scope="module")
def cluster():
    """Two Ray nodes on this machine, each with room for two runs; a list of their daemons."""
    from ray.cluster_utils import Cluster

    before = os.environ.copy()
    os.environ.update(environment())  # what the nodes' workers start from
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


def kill_workers(folder, most):
    """End up to `most` of Ray's workers that carry out a run: who holds a run's lock is one."""
    held = [store.lock_holder(folder / "locks" / name) for name in at_work(folder)]
    for who in [who for who in held if who and who["pid"]][:most]:
        os.kill(who["pid"], signal.SIGKILL)


def test_this_machine_needs_no_server(study, tmp_path, undisturbed):
    study.write_text(TINY.replace("0.02", "0.0"))
    said = carry_out(study, tmp_path / "study", "--workers", "2", backend="ray")
    assert "backend ray: Ray on this machine, 1 node(s), 2 runs at once" in said
    assert results(tmp_path / "study") == undisturbed
    assert "threads 1 devices ''" in Study.open(tmp_path / "study").runs()[0].log.read_text()


def test_workers_and_a_node_are_killed_and_the_results_are_the_same(study, tmp_path, undisturbed, cluster):
    study.write_text(TINY.replace("0.02", "0.1"))
    folder, chance = tmp_path / "study", random.Random(1)
    process = start(study, folder, "--address", cluster.address, backend="ray")
    for turn in range(5):
        wait_for_lines(folder, logged(folder) + chance.randrange(15, 60), process)
        if turn == 2:
            cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)  # a machine is lost
            cluster.add_node(num_cpus=2)
        elif turn == 3:
            kill_trainers(folder, most=2)
        else:
            kill_workers(folder, most=chance.randrange(1, 3))
    said = process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    assert "2 node(s), 4 runs at once" in said and "its worker was lost" in said and "ended by SIGKILL" in said
    runs = Study.open(folder).runs()
    assert results(folder) == undisturbed and [run.state for run in runs] == ["finished"] * 8
    assert any("--resume" in run.log.read_text() for run in runs)


def test_ctrl_c_on_a_cluster_leaves_all_resumable(study, tmp_path, undisturbed, cluster):
    folder = tmp_path / "study"
    process = start(study, folder, "--address", cluster.address, backend="ray")
    wait_for_lines(folder, 40, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "stopped; the same command continues" in said
    assert {run.state for run in Study.open(folder).runs()} <= {"stopped", "waiting", "finished"}
    carry_out(study, folder, "--address", cluster.address, backend="ray")
    assert results(folder) == undisturbed


def test_a_failed_run_stops_nothing_else(study, tmp_path, cluster):
    study.write_text(TINY.replace("0.02", "0.0").replace('"bb"', '{ name = "bad", fails_at = 25 }'))
    said = carry_out(study, tmp_path / "study", "--address", cluster.address, backend="ray", code=1)
    states = [run.state for run in Study.open(tmp_path / "study").runs()]
    assert states.count("failed") == 4 and states.count("finished") == 4
    assert "error: step 25 cannot be taken" in said


def test_what_the_cluster_cannot_do_is_told(study, tmp_path, cluster):
    said = carry_out(study, tmp_path / "study", "--address", cluster.address, "--gpus", "0.5", backend="ray", code=2)
    assert "no node of the cluster has the 1 CPUs and 0.5 GPUs" in said
