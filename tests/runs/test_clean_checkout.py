"""Nothing is overwritten unasked: every script, as a reader would call it, leaves a checkout as it was."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLEETING = ("runs/", "__pycache__/")  # what a checkout may hold afterwards, and git ignores
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
TINY = "total_steps = 160\n[network]\nwidth = 8\nheads = 2\n[learner]\nbatch_size = 2\n[replay]\nlearning_starts = 32\n"
SHORT = "--total-steps 160 --evaluate-every 0 --final-episodes 2 --num-envs 4 --learning-starts 32 --batch-size 2"
RUN = "runs/Gridverse-Memory-5x5-v0/dgfqn/seed_1"
CHAINS = {  # scripts with the defaults of where things go, in budgets of seconds; a line needs those before it
    "core": f"""
        dqn_memory.train {SHORT}
        dqn_memory.evaluate {RUN} --episodes 2
        dqn_memory.inspect {RUN} --episodes 1 --moments 2
        dqn_memory.demo --config ../tiny.toml
        dqn_memory.parameters --env POMDP/CarFlag-v0 --architecture dqn dtqn4
        dqn_memory.benchmark --quick --only acting
        dqn_memory.memory_bench --quick --seeds 1 --task copy --memory gru""",
    "envs": """
        envs.baselines --env POMDP/CarFlag-v0 --episodes 10
        envs.memoryless --env POMDP/HeavenHell-v0 --restarts 1 --sweeps 1 --updates 1 --episodes 5 --fresh 5
        envs.benchmark --quick --env POMDP/CarFlag-v0""",
    "studies": """
        dqn_memory.study.run smoke --smoke --workers 2
        dqn_memory.study.run smoke --smoke --status
        dqn_memory.study.report runs/studies/smoke-smoke
        dqn_memory.study.report results/studies/smoke
        dqn_memory.study.claims""",
    "unizero": """
        world_models.unizero.train --config unizero/smoke --run runs/unizero
        dqn_memory.evaluate runs/unizero --num-eval-envs 1 --episodes-per-env 1 --simulations 2
        world_models.unizero.inspect runs/unizero --no-frames --max-episode-steps 8
        world_models.parameters unizero
        world_models.benchmark unizero --quick --device cpu --only acting""",
    "glam": """
        world_models.glam.train --config glam/smoke --run runs/glam
        world_models.glam.inspect runs/glam --episodes 1 --max-episode-steps 30 --imagined 2 --policy greedy
        world_models.parameters glam
        world_models.benchmark glam --quick --device cpu --only imagination""",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree as a fresh checkout of a repository of its own."""
    folder = tmp_path_factory.mktemp("clean") / "checkout"
    (folder.parent / "tiny.toml").write_text(TINY + "[evaluation]\nfinal_episodes = 2\n", encoding="utf-8")
    listed = subprocess.run(("git", "-C", str(ROOT), "ls-files", "-z"), capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run((*GIT, *command), cwd=folder, check=True)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("chain", CHAINS)
def test_every_script_leaves_the_checkout_clean(chain: str, checkout: Path) -> None:
    settings = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    for line in CHAINS[chain].split("\n"):
        if command := line.split():
            done = subprocess.run(
                (sys.executable, "-m", *command), cwd=checkout, env=settings, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line.strip()}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            assert done.stdout.strip(), line
            told = subprocess.run(
                ("git", "status", "--porcelain", "--ignored"), cwd=checkout, capture_output=True, text=True, check=True
            )
            left = [name for name in told.stdout.splitlines() if not name.endswith(FLEETING)]
            assert not left, f"{line.strip()} leaves {left}"
