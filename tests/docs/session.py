"""Run the blocks of one page in order, in the working directory: Python in one session, shell lines as commands.

`python session.py STEPS.json` reads [steps, budget]: each step is a place, a language, a title and a text; `budget` is
what `dqn_memory.api.train` gets where a call does not say otherwise.
"""

import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path


def limit(budget):
    """Let `dqn_memory.api.train` take the budget of a test for what its callers do not name."""
    import dqn_memory.api as api

    train = api.train

    def train_shortly(*args, kind="q_network", **settings):
        shortly = budget | settings if kind == "q_network" else settings | {"config": f"{kind}/smoke"}
        return train(*args, kind=kind, **shortly)

    api.train = train_shortly


def run(place, language, title, text, session):
    if title:
        Path(title).write_text(text)
    elif language == "toml":
        tomllib.loads(text)
    elif language == "python":
        exec(compile(text, place, "exec"), session)
    else:
        code = subprocess.run(["bash", "-xeuo", "pipefail", "-c", text]).returncode
        if code:
            sys.exit(f"{place}: a command ended with {code}")


def main(path):
    steps, budget = json.loads(Path(path).read_text())
    sys.path.insert(0, "")
    session = {"__name__": "__main__"}
    if any(language == "python" and "dqn_memory.api" in text for _, language, _, text in steps):
        limit(budget)
    for step in steps:
        began = time.monotonic()
        run(*step, session)
        print(f"--- {step[0]} ran, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
