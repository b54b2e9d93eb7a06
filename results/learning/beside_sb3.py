"""Learners of this suite beside RecurrentPPO of sb3-contrib: steps and seconds until an environment is solved.

    pip install sb3-contrib==2.9.2        # beside this package, in an environment of its own
    pip install --no-deps popgym==1.0.7
    python results/learning/beside_sb3.py [WORD]    # in environments whose name has the word: popgym

Every run has one thread, and its seconds are those of the processor: ours with evaluations, theirs without. Ours:
`pqn` and `ppo` with their defaults (256 and 128 environments), `train` with the architecture below. RecurrentPPO: its
defaults but for an LSTM of 64 units and 32 environments, and once more with 1,024 steps in a minibatch in place of 128,
which is four minibatches a rollout, as ours has. All are evaluated greedily on 100 episodes; where an environment has
few initial states, ours on all of them. RecurrentPPO was not tuned; ours were, in environments of this suite, on other
seeds. In POPGym RecurrentPPO gets 150 processor seconds a run; there both draw their actions, and the score is the mean
return. Runs that are recorded already are not done again; the page beside this file is made from the tables.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from envs.machine import benchmark_facts, revision
from envs.tables import Table, Value, origin, tables_page

HERE = Path(__file__).parent
TABLE, PAGE, OURS = HERE / "beside_sb3.csv", HERE / "beside_sb3.md", HERE.parent / "studies" / "popgym"
COLUMNS = ("environment", "learner", "seed", "revision", "step", "seconds", "success")
SEEDS, SEEDS_POPGYM = (1, 2, 3), (1, 2, 3, 4, 5)
ENVIRONMENTS = ("Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0", "POMDP/Hallway-v0")
TASKS = ("RepeatPrevious", "RepeatFirst", "CountRecall")
POPGYM = tuple(f"popgym-{task}{level}-v0" for task in TASKS for level in ("Easy", "Medium"))
SOLVED, LONGEST = 0.95, 400.0  # success that counts as solved; processor seconds that RecurrentPPO gets
LONGEST_POPGYM = 150.0
Points = list[tuple[int, float, float]]  # environment steps, seconds, success or return
Runs = dict[tuple[str, str, int], Points]  # by environment, learner and seed
NOTE = """\
`solved`: seeds whose success stays at 0.95 or above to their end; `steps`, `seconds`: medians over these, to the first
evaluation from which it does; `at_the_end`: success of each seed at its last evaluation. Ours run to a fixed length,
RecurrentPPO until three evaluations in a row are at 0.95, or until the first one after 400 seconds, so that `solved`
may rest on its last one alone. RecurrentPPO was not tuned. Ours were tuned in environments of this suite, on other
seeds."""
RETURNS = """\
Mean return of sampled actions at the last evaluation, over seeds. `gru`: that of our GRU of 100,000 parameters at as
many steps (interpolated between its evaluations); `gru_end`: at the end of its million steps (`../studies/popgym/`).
At equal steps RecurrentPPO is ahead in RepeatPreviousEasy and CountRecallEasy. RecurrentPPO was not tuned: it has its
default settings but for an LSTM of 64 units, 32 environments and the batch. Two runs at a time, seeds 4 and 5 beside
other work, on an Intel Xeon with two cores, not on the machine named above."""
THEIRS = {"RecurrentPPO": 128, "RecurrentPPO, batch 1,024": 1024}  # steps in a minibatch
THEIRS_POPGYM = "RecurrentPPO, batch 1,024"


# ---- ours ------------------------------------------------------------------------------------------------------------
BUDGETS = {
    "pqn": ["--total-steps", "2000000", "--evaluate-every", "100000"],
    "ppo": ["--total-steps", "1500000", "--evaluate-every", "100000", "--policy", "greedy"],
    "train": ["--config", "short", "--architecture", "drqn"],
}


def ours(learner: str, env: str, seed: int) -> Points:
    """Train one run of this suite to its end."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [*BUDGETS[learner], "--env", env, "--seed", str(seed), "--threads", "1", "--run", str(run)]
        words += ["--episodes", "100", "--final-episodes", "100", "--no-memory-ablation"]
        subprocess.run([sys.executable, "-m", f"dqn_memory.{learner}", *words], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds, points = 0.0, []
    for row in rows:
        seconds = row.get("time/processor", seconds)
        if row.get("eval/success_rate") is not None:
            points.append((row["step"], seconds, row["eval/success_rate"]))
    return points


# ---- theirs ----------------------------------------------------------------------------------------------------------
def recurrent_ppo(env: str, seed: int, batch: int) -> Points:
    """Train RecurrentPPO until it has solved three evaluations in a row, or its time is up."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    import envs  # noqa: F401  registers ours with Gymnasium

    longest, wrapper = LONGEST, None
    if env in POPGYM:
        import popgym  # noqa: F401  registers its own
        from gymnasium.wrappers import FlattenObservation

        longest, wrapper = LONGEST_POPGYM, FlattenObservation  # one-hot; the sizes of its spaces are no int
    torch.set_num_threads(1)
    training = make_vec_env(env, 32, seed=seed, wrapper_class=wrapper)
    tried = make_vec_env(env, 20, seed=1000 + seed, wrapper_class=wrapper)
    policy = {"lstm_hidden_size": 64}
    model = RecurrentPPO("MlpLstmPolicy", training, seed=seed, policy_kwargs=policy, device="cpu", batch_size=batch)
    points: Points = []
    seconds = 0.0
    while seconds < longest and not (len(points) >= 3 and all(point[2] >= SOLVED for point in points[-3:])):
        began = time.process_time()
        model.learn(6 * model.n_steps * 32, reset_num_timesteps=False)
        seconds += time.process_time() - began
        points.append((model.num_timesteps, seconds, score(model, tried, greedy=env not in POPGYM)))
    return points


def score(model: Any, tried: Any, greedy: bool, episodes: int = 100) -> float:
    """Play episodes in all environments side by side; average success, or return where none is reported."""
    import numpy as np

    observation, state, start, ends = tried.reset(), None, np.ones(tried.num_envs, bool), []
    while len(ends) < episodes:
        action, state = model.predict(observation, state, start, deterministic=greedy)
        observation, _, start, told = tried.step(action)
        ends += [row.get("success", row["episode"]["r"]) for row, done in zip(told, start, strict=True) if done]
    return sum(ends) / len(ends)


# ---- the table and its page ------------------------------------------------------------------------------------------
def solved(points: Points) -> tuple[int, float] | None:
    """Find the first evaluation from which on success stays at `SOLVED` or above: its step and seconds."""
    found = None
    for step, seconds, success in points:
        found = None if success < SOLVED else found or (step, seconds)
    return found


def rows(runs: Runs) -> Iterator[dict[str, Value]]:
    """Make a row of each environment and learner."""
    for env, learner in sorted({key[:2] for key in runs if key[0] not in POPGYM}):
        each = [points for key, points in sorted(runs.items()) if key[:2] == (env, learner)]
        ends = [end for points in each if (end := solved(points)) is not None]
        yield {
            "environment": env, "learner": learner, "seeds": len(each), "solved": len(ends),
            "steps": median(end[0] for end in ends) if ends else None,
            "seconds": median(end[1] for end in ends) if ends else None,
            "steps_s": sum(points[-1][0] for points in each) / sum(points[-1][1] for points in each),
            "at_the_end": ", ".join(f"{points[-1][2]:.2f}" for points in each),
        }  # fmt: skip


def returns(runs: Runs) -> Iterator[dict[str, Value]]:
    """Make a row of each environment of POPGym."""
    for env in POPGYM:
        if each := [points[-1] for key, points in sorted(runs.items()) if key[0] == env]:
            steps, seconds, scores = zip(*each, strict=True)
            ours = list(gru_curves(env))
            yield {
                "environment": env, "learner": THEIRS_POPGYM, "seeds": len(each), "steps": mean(steps),
                "seconds": mean(seconds), "return": mean(scores),
                "gru": mean(at_step(curve, mean(steps)) for curve in ours), "gru_end": mean(c[-1][1] for c in ours),
                "each": ", ".join(f"{x:.2f}" for x in scores),
            }  # fmt: skip


def gru_curves(env: str) -> Iterator[list[tuple[int, float]]]:
    """Give the returns of our GRU's evaluations by step, the final one last, for each seed in an environment."""
    with (OURS / "runs.csv").open() as runs, (OURS / "metrics.csv").open() as metrics:
        rows, lines = list(csv.DictReader(runs)), list(csv.DictReader(metrics))
    for row in rows:
        if (row["axes.world"], row["axes.architecture"]) == (env, "gru"):
            found = [(line["step"], line["eval/episodic_return"] or line["final/episodic_return"])
                     for line in lines if line["run"] == row["run"]]  # fmt: skip
            yield [(int(step), float(value)) for step, value in found if value]


def at_step(curve: list[tuple[int, float]], step: float) -> float:
    """Interpolate between the evaluations before and after a step."""
    before, after = max(p for p in curve if p[0] <= step), min(p for p in curve if p[0] > step)
    return before[1] + (after[1] - before[1]) * (step - before[0]) / (after[0] - before[0])


def main() -> None:
    """Do every run that is not recorded yet, and write the page."""
    if not TABLE.exists():
        facts = origin("", (), **benchmark_facts()) | {"threads": 1, "command": "python results/learning/beside_sb3.py"}
        lines = [f"# {name}: {facts[name]}" for name in facts if facts[name] and name not in ("revision", "dirty")]
        TABLE.write_text("\n".join((*lines, ",".join(COLUMNS))) + "\n")
    text = TABLE.read_text().splitlines()
    facts = dict(line.removeprefix("# ").split(": ", 1) for line in text if line.startswith("#"))
    runs: Runs = {}
    for row in csv.DictReader(line for line in text if not line.startswith("#")):
        key = row["environment"], row["learner"], int(row["seed"])
        runs.setdefault(key, []).append((int(row["step"]), float(row["seconds"]), float(row["success"])))
    planned = list(product(SEEDS, ENVIRONMENTS, (*BUDGETS, *THEIRS)))
    for seed, env, learner in (*planned, *product(SEEDS_POPGYM, POPGYM, (THEIRS_POPGYM,))):
        if (env, learner, seed) not in runs and all(word in env for word in sys.argv[1:]):
            points = recurrent_ppo(env, seed, THEIRS[learner]) if learner in THEIRS else ours(learner, env, seed)
            runs[env, learner, seed] = points
            with TABLE.open("a") as file:
                writer, key = csv.writer(file, lineterminator="\n"), (env, learner, seed, revision())
                writer.writerows([*key, step, f"{seconds:.1f}", f"{won:.3f}"] for step, seconds, won in points)
            print(env, learner, seed, solved(points), flush=True)
    tables = [Table.from_records(rows(runs), "Solved", NOTE), Table.from_records(returns(runs), "POPGym", RETURNS)]
    PAGE.write_text(tables_page("Beside RecurrentPPO of sb3-contrib", facts, tables))


if __name__ == "__main__":
    main()
