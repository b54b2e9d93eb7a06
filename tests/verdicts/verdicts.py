"""Ask `dqn_memory.diagnose` about tasks whose answer is known, and count how often it is right.

    python tests/verdicts/verdicts.py                                  all tasks, five repetitions; about ten hours
    python tests/verdicts/verdicts.py --only CartPole-v1 --repetitions 1 --minutes 4 --seeds 2

Each repetition has seeds of its own. Results are kept in FOLDER, so that a stopped program goes on; `--write results`
makes the page `verdicts.md`. The exit status is 1 if an answer was wrong.
"""

import argparse
import os
import sys
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from dqn_memory.diagnose import diagnose
from dqn_memory.study.verdict import CONTROLS, NEEDED, NOTHING, UNKNOWN
from envs.machine import benchmark_facts, revision
from envs.tables import Table, read_tables, write_page

NONE, CLOCK, FEW = CONTROLS.values()


class Noise(gymnasium.Env):
    """Rewards are noise, whatever is done."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self._draw(), {}

    def step(self, action):
        self.taken += 1
        return self._draw(), float(self.np_random.normal()), False, self.taken == 20, {}

    def _draw(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Cue(Noise):
    """The first observation shows one of two actions; after six blank steps that action wins."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.taken, self.cue = 0, int(self.np_random.integers(2))
        return self.cue, {}

    def step(self, action):
        self.taken += 1
        done = self.taken == 6
        return 2, float(done and action == self.cue), done, False, {"success": bool(action == self.cue)} if done else {}


gymnasium.register("Verdict/Noise-v0", Noise)
gymnasium.register("Verdict/Cue-v0", Cue)

TASKS = {  # right answers; "cannot tell" counts by itself unless it is among them
    "CartPole-v1": (NONE,),
    "POMDP/Hallway-v0": (NONE,),
    "MiniGrid-Empty-5x5-v0": (NONE,),
    "POPGym/PositionOnlyCartPole-Easy-v0": (FEW,),
    "POPGym/CountRecall-Medium-v0": (CLOCK,),
    "POPGym/RepeatPrevious-Easy-v0": (NEEDED, FEW),  # the card of three steps ago is the oldest of the last four
    "POPGym/RepeatFirst-Easy-v0": (NEEDED,),
    "POMDP/CarFlag-v0": (NEEDED,),
    "Gridverse/Memory-5x5-v0": (NEEDED, NONE),  # fixed rules win, and networks without a memory can find them
    "Gridverse/Memory-7x7-v0": (NEEDED, UNKNOWN),
    "POMDP/HeavenHell-v0": (NEEDED, UNKNOWN),
    "Verdict/Noise-v0": (NOTHING,),
}
OTHERS = {"Verdict/Cue-v0": (NEEDED,)}
FIRST, BETWEEN = 101, 100  # the first seed of the first repetition, and between repetitions
EACH = "Each diagnosis"
NOTE = {
    "How often": "`right`: the verdict is one of the right ones; `cannot tell`: it is that, and is not among them. For "
    "Memory 5x5 only `needs a memory` was right at first. `no memory needed` was added after the first diagnosis, in "
    "which a network without a memory won.",
    EACH: "Scores are means over seeds. Seeds are the first and the two that follow it.",
}


def grade(verdict: str, right: tuple[str, ...]) -> str:
    return "right" if verdict in right else "cannot tell" if verdict == UNKNOWN else "wrong"


def asked(task: str, right: tuple[str, ...], number: int, args: argparse.Namespace) -> dict[str, object]:
    """Diagnose a task once: a row of the table."""
    seed, plan = FIRST + BETWEEN * number, {"minutes": args.minutes, "seeds": args.seeds}
    plugin = ("verdicts",) if task.startswith("Verdict/") else ()
    folder = args.folder / f"{task.replace('/', '-')}-{seed}"
    found = diagnose(task, **plan, first_seed=seed, plugin=plugin, folder=folder, workers=args.workers)
    scores = {name: float(np.mean(values)) for name, values in found.scores.items()}
    given = {"task": task, "first seed": seed, "verdict": found.verdict, "grade": grade(found.verdict, right)}
    return given | {"random": found.random, **scores, "memory": found.memory or "", **plan, "revision": revision()}


def tables(rows: list[dict[str, object]]) -> list[Table]:
    """Count the grades of each task, and list every diagnosis."""
    counts = []
    for task, right in TASKS.items():
        grades = [row["grade"] for row in rows if row["task"] == task]
        found = {name: grades.count(name) for name in ("right", "cannot tell", "wrong")}
        counts.append({"task": task, "right verdicts": " or ".join(right), "diagnoses": len(grades), **found})
    total = {name: sum(row[name] for row in counts) for name in ("diagnoses", "right", "cannot tell", "wrong")}
    counts.append({"task": "all", "right verdicts": "", **total})
    return [
        Table.from_records(each, title, NOTE[title]) for title, each in (("How often", counts), (EACH, rows)) if each
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=[*TASKS, *OTHERS])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--folder", type=Path, default=Path("runs/verdicts"))
    parser.add_argument("--write", type=Path, help="folder of the page")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # where runs find this plugin
    known = read_tables(args.write / "verdicts.json") if args.write else {}
    rows = known[EACH].records() if EACH in known else []
    for row in rows:  # what is right may have been written down anew
        row["grade"] = grade(row["verdict"], (TASKS | OTHERS)[row["task"]])
    tasks, wrong = {name: (TASKS | OTHERS)[name] for name in args.only or TASKS}, 0
    for number in range(args.repetitions):
        for task, right in tasks.items():
            if any((row["task"], row["first seed"]) == (task, FIRST + BETWEEN * number) for row in rows):
                continue
            rows.append(asked(task, right, number, args))
            wrong += rows[-1]["grade"] == "wrong"
            print(f"{task}: {rows[-1]['verdict']} ({rows[-1]['grade']})", flush=True)
            if args.write:
                command = "python tests/verdicts/verdicts.py --write results"
                title = "How often is `dqn_memory.diagnose` right?"
                write_page(args.write, "verdicts", title, {"command": command, **benchmark_facts()}, tables(rows))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
