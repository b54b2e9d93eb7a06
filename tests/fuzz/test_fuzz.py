"""Nothing that a file holds, and no moment at which a process dies, breaks more than the work since a checkpoint."""

import itertools
import re
import shutil
import subprocess
import sys

import pytest
from fuzz_crash import Crashes
from fuzz_foreign import TARGETS
from fuzz_limits import tried
from fuzz_targets import RUNS

from dqn_memory.runs.kinds import trainer_class
from envs.gridverse.yaml.world import stock_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures processes as Linux shows them")


@pytest.mark.long
@pytest.mark.parametrize(("first", "count"), [(0, 1), pytest.param(10_000, 30, marks=pytest.mark.long)])
def test_changed_files_of_every_kind_are_accepted_or_refused(tmp_path, first, count):
    broken = []
    for name, seed in itertools.product(TARGETS, range(first, first + count)):
        folder = tmp_path / f"{name}-{seed}"
        folder.mkdir()
        outcome = tried(TARGETS[name].case(seed, folder))
        shutil.rmtree(folder)
        if outcome.bad:
            broken.append(f"{name}, seed {seed}: {outcome.word} {outcome.detail}")
    assert not broken


SMALL = stock_files()["empty.4x4"].read_text()
SEEN, FAR = "  area: [[-6, 0], [-3, 3]]", "  area: [[-60, 60], [-60, 60]]"
TINY = "discount: 0.9 values: reward actions: 1 states: {} observations: {} T: * uniform O: * uniform"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghi")
)
FOUND = [  # by an earlier search: what is read, and what becomes of it
    ("pomdp", TINY.format(1, 20_000), "accepted"),
    ("pomdp", TINY.format(1, 65_536), "accepted"),
    ("pomdp", TINY.format(65_536, 1), "refused"),
    ("yaml", SMALL.replace("[4, 4]", "[255, 255]"), "accepted"),
    ("yaml", SMALL.replace("partially_occluded", "raytracing").replace(SEEN, FAR), "refused"),
    ("yaml", SMALL + "".join(f"key{number}: 1\n" for number in range(20_000)), "refused"),
    ("yaml", SMALL + "a: !!timestamp foo", "refused"),
    ("yaml", SMALL + "a: !!bool foo", "refused"),
    ("yaml", stock_files()["teleport.5x5"].read_text().replace("[5, 5]", "[5, 5]\n  random_agent: true"), "accepted"),
    ("config", ("q_network", f"seed = {'9' * 5_000}"), "refused"),
    ("config", ("q_network", f"seed = {'[' * 20_000}"), "refused"),
    ("config", ("q_network", "network.dropout = 1.0"), "refused"),
    ("config", ("q_network", f"{'.'.join('a' * 20_000)} = 1"), "refused"),
    ("yaml", BOMB + "state_space: *i", "refused"),
    ("yaml", BOMB + SMALL.replace("[4, 4]", "*i"), "refused"),
]


@pytest.mark.parametrize(("name", "text", "word"), FOUND, ids=range(len(FOUND)))
def test_what_a_search_has_found_stays_right(tmp_path, name, text, word):
    outcome = tried(TARGETS[name].use(text, tmp_path))
    assert outcome.word == word, outcome


@pytest.mark.long
def test_a_run_that_dies_while_it_is_made_can_be_started_again(tmp_path):
    crashes = Crashes("q_network", tmp_path)
    for moment, after in ((2, True), (4, False)):  # its lock is there, then half of its config
        crashes.die(moment, after)


@pytest.mark.long
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_that_dies_at_any_moment_of_writing_ends_as_if_it_had_not(tmp_path, kind):
    """`make fuzz` tries all moments."""
    crashes = Crashes(kind, tmp_path)
    for moment in range(1, crashes.moments + 1, 8):
        crashes.die(moment, moment % 2 == 0)


@pytest.mark.long
@pytest.mark.parametrize("resume", [False, True], ids=["fresh", "resume"])
@pytest.mark.parametrize("kind", ["q_network", "unizero", "glam"])
def test_of_two_processes_on_one_folder_one_works_and_the_other_says_who(tmp_path, kind, resume):
    run, module = tmp_path / "run", trainer_class(kind).__module__
    arguments = RUNS[kind](run)
    if resume:
        trainer_class(kind).main(arguments)
        arguments = ["--resume", str(run), "--total-steps", "240"]
    command = [sys.executable, "-m", module, *arguments]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **streams) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    refused = next(text for text, process in zip(said, both, strict=True) if process.returncode)
    assert codes == [0, 2], said
    assert refused.startswith("error: ") and refused.count("\n") == 1
    assert re.search("is being trained, by process|is not empty|is complete", refused)
    assert trainer_class(kind).start(["--resume", str(run), "--total-steps", "100000"])[1].close() is None
