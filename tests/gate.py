"""Compare two checkouts: the numbers must be the same, and the speed must not be lower.

    python tests/gate.py                        numbers of revision 070d15f, before the redesign, against this checkout
    python tests/gate.py --quick                some cases of each family, about a minute a side
    python tests/gate.py --only 'dqn/arch/*'    the cases whose names match
    python tests/gate.py --part speed           paired timings

Numbers: each case is one or several commands, which both sides run on the CPU with one thread. All metrics (but those
of the clock), all saved weights and everything printed as JSON or CSV must be equal to the last bit. Speed: both sides
run the same command by turns; the processor time between its first and its last log line counts.

The cases stand in tests/data/gate.toml, in the flags of the old side, beside the names that the new side has changed.
The script uses nothing of the packages but their commands and `gymnasium.make_vec`.
Where the new side finds code through entry points, reinstall it first (`pip install -e .`): both sides share an
interpreter. The exit status is 1 if any number differs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fnmatch
import hashlib
import importlib
import io
import json
import os
import platform
import queue
import re
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = tomllib.loads((HERE / "data" / "gate.toml").read_text())
OLD = "070d15f"  # the revision before the redesign

# ---- what is not compared, and why -----------------------------------------------------------------------------------
IGNORED = re.compile(r"^(time/.*|charts/SPS)$")  # the clock's
IGNORED_FIELDS = {"run", "ms_per_update", "seconds"}  # a temporary path; measured times
# The trainer state and the replay chunks of a checkpoint are not read: their form may change, and what they hold shows
# in the metrics and weights that follow a resume.


def cases(part: str) -> dict[str, list[str]]:
    """The names and commands of one part of gate.toml."""

    def whole(text: str) -> str:
        while (longer := re.sub(r"\{(\w+)\}", lambda found: TABLE["words"].get(found[1], found[0]), text)) != text:
            text = longer
        return " ".join(text.split())

    given = {name: [value] if isinstance(value, str) else value for name, value in TABLE[part].items()}
    return {name: [whole(command) for command in commands] for name, commands in given.items()}


def selected(part: str, args: argparse.Namespace) -> dict[str, list[str]]:
    """The cases that the flags ask for."""
    patterns = args.only or (TABLE["quick"] if args.quick and part == "numbers" else ["*"])
    return {name: given for name, given in cases(part).items() if any(fnmatch.fnmatch(name, p) for p in patterns)}


def renamed(command: str) -> str:
    """A command in the new side's words."""
    module, *flags = re.split(r" (?=--)", command)
    new = TABLE["flags"]
    words = [new.get(module, module)]
    for said in flags:
        flag, _, values = said.partition(" ")
        whole = new.get(f"{module}: {said}", new.get(said))
        words += [whole] if whole else [new.get(f"{module}: {flag}", new.get(flag, flag)), values]
    return " ".join(" ".join(words).split())


def renamed_key(key: str) -> str:
    """The new side's key of a number, such as "metric losses/td_loss"."""
    *kind, name = key.split(" ")
    for old, new in TABLE["metrics"].items():
        if name == old or (old.endswith("/") and name.startswith(old)):
            name = new + name.removeprefix(old)
    return " ".join([*kind, name])


def renamed_value(value: list[Any]) -> list[Any]:
    """A hash and a value as the new side would give them; numbers stay as they are."""
    new = TABLE["values"].get(value[1]) if isinstance(value[1], str) else None
    return [digest(repr(new).encode()), new] if new else value


# ---- the process of a side: `gate.py --serve FOLDER` -----------------------------------------------------------------
def serve(root: Path) -> None:
    """Answer requests, lines of JSON, each command in a fork of this process, which has imported torch already."""
    import torch

    torch.set_num_threads(1)
    for name in ("torch._dynamo", "torch.utils.tensorboard", "numba", "gymnasium", "tyro", "safetensors.torch", "rich"):
        importlib.import_module(name)
    for line in sys.stdin:
        request, began = json.loads(line), time.monotonic()
        try:
            answer = {"result": speed(root, request) if request["kind"] == "speed" else numbers(root, request)}
        except Exception as error:
            answer = {"error": str(error) or repr(error)}
        print(json.dumps(answer | {"seconds": time.monotonic() - began}), flush=True)


def forked(log: Path, work: Callable[[], object]) -> str:
    """Do work in a process of its own; return what it printed."""
    errors = log.with_suffix(".err")
    process = os.fork()
    if process == 0:
        code: Any = 1
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            work()
            code = 0
        except SystemExit as stop:
            code = int(stop.code not in (None, 0))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if os.waitpid(process, 0)[1]:
        raise RuntimeError((errors.read_text() or log.read_text()).strip()[-800:])
    return log.read_text()


def run_command(root: Path, request: dict[str, Any], number: int) -> str:
    """Run a command of a request as `python -m` would."""
    folder = Path(request["folder"])
    words = shlex.split(request["commands"][number].format(run=folder / "run", data=HERE / "data"))

    def work() -> None:
        sys.argv = words
        package = importlib.import_module(words[0].split(".")[0]).__file__
        if not Path(str(package)).is_relative_to(root):
            raise RuntimeError(f"{package} is not in {root}")
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)

    return forked(folder / f"{number}.out", work)


def numbers(root: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Every number of a case: its hash, and a value to show."""
    found: dict[str, Any] = {}
    for index, command in enumerate(request["commands"]):
        printed = run_command(root, request, index)
        if "--format json" in command:
            found |= dict(flat(json.loads(printed), f"printed {index}"))
        elif "--format csv" in command:
            found |= dict(flat(list(csv.DictReader(io.StringIO(printed))), f"printed {index}"))
    folder = Path(request["folder"], "run")
    if (written := folder / "baselines.json").exists():
        leaves = flat(json.loads(written.read_text()), "written")
        found |= {key: value for key, value in leaves if isinstance(value[1], int | float)}  # no command, no revision
    series: dict[str, list[Any]] = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            for name in line.keys() - {"step"}:
                if not IGNORED.match(name):
                    series.setdefault(f"metric {name}", []).append([line["step"], line[name]])
    found |= {key: [digest(repr(values).encode()), values[-1][1]] for key, values in series.items()}
    for path in sorted(folder.rglob("*.safetensors")):
        if path.parent.name != "replay":
            found |= {f"weight {path.stem} {name}": value for name, value in tensors(path)}
    return found


def tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """The name, hash and sum of every saved tensor."""
    import torch
    from safetensors.torch import load_file

    for name, tensor in load_file(path).items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        yield name, [digest(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + raw), float(tensor.double().sum())]


def flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a nested value."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            if name not in IGNORED_FIELDS:
                yield from flat(part, f"{key} {name}")
    else:
        yield key, [digest(repr(value).encode()), value]


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:16]


def speed(root: Path, request: dict[str, Any]) -> float:
    """Processor milliseconds of an environment step in a run's steady part, or of a step of 64 bare environments."""
    command, folder = request["commands"][0], Path(request["folder"])
    if "--run" not in command:
        return float(forked(folder / "0.out", lambda: step_environments(command)))
    run_command(root, request, 0)
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    timed = [line for line in lines if "charts/SPS" in line]
    learned = [line for line in timed if any(name.startswith(("losses/", "grad/")) for name in line)]
    first, *_, last = learned if request["name"].startswith("update") else timed
    return 1_000 * float(last["time/processor"] - first["time/processor"]) / (last["step"] - first["step"])


def step_environments(env_id: str) -> None:
    """Print the milliseconds of a step of 64 environments."""
    importlib.import_module("envs")
    import gymnasium
    import numpy as np

    envs = gymnasium.make_vec(env_id, num_envs=64)
    envs.reset(seed=1)
    actions = np.random.default_rng(1).integers(envs.single_action_space.n, size=(5_100, 64))
    for action in actions[:100]:
        envs.step(action)
    began = time.process_time()
    for action in actions[100:]:
        envs.step(action)
    print((time.process_time() - began) / 5)


# ---- the comparing process -------------------------------------------------------------------------------------------
class Side:
    """A process that runs commands with the code of one checkout."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.scratch = scratch
        settings = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120"}
        settings |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--serve", str(root)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=root, env=os.environ | settings, stdin=pipe, stdout=pipe, text=True
        )

    def ask(self, kind: str, name: str, commands: list[str]) -> dict[str, Any]:
        """The result of some commands, or the error that ended them."""
        assert self.process.stdin and self.process.stdout
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            request = {"kind": kind, "name": name, "commands": commands, "folder": folder}
            print(json.dumps(request), file=self.process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"error": "died", "seconds": 0}')
        return answer


@contextlib.contextmanager
def started(root: Path, scratch: Path, count: int = 1) -> Iterator[list[Side]]:
    """Processes of one side, ended on leaving."""
    sides = [Side(root, scratch) for _ in range(count)]
    try:
        yield sides
    finally:
        for side in sides:
            side.process.communicate()


@contextlib.contextmanager
def old_checkout(given: str | None) -> Iterator[Path]:
    """The old side's folder: the one that was given, or a temporary worktree."""
    if given:
        yield Path(given).resolve()
        return
    git = ["git", "-C", str(HERE.parent), "worktree"]
    with tempfile.TemporaryDirectory(prefix="gate-old-") as folder:
        subprocess.run([*git, "add", "--quiet", "--detach", f"{folder}/tree", OLD], check=True)
        try:
            yield Path(folder, "tree").resolve()
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/tree"], check=True)


def run_all(root: Path, wanted: dict[str, list[str]], scratch: Path, workers: int, label: str) -> dict[str, Any]:
    """The answers to all cases, from several processes; the slowest cases come first."""
    free: queue.Queue[Side] = queue.Queue()

    def one(name: str) -> tuple[str, dict[str, Any]]:
        side = free.get()
        answer = side.ask("numbers", name, wanted[name])
        free.put(side)
        print(f"  {label} {name}: {answer['seconds']:.1f} s{' ERROR' * ('error' in answer)}", file=sys.stderr)
        return name, answer

    slow_first = sorted(wanted, key=lambda name: "compile" not in name)
    with started(root, scratch, workers) as sides, ThreadPoolExecutor(workers) as pool:
        for side in sides:
            free.put(side)
        return dict(pool.map(one, slow_first))


def machine() -> str:
    """What numbers depend on besides the code."""
    import torch

    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return f"{model[1] if model else platform.processor()}, torch {torch.__version__}, {platform.python_version()}"


def old_results(args: argparse.Namespace, wanted: dict[str, list[str]], scratch: Path) -> dict[str, Any]:
    """The old side's answers, from the cache where it has them."""
    path = Path(args.cache) if args.cache else None
    cache = json.loads(path.read_text()) if path and path.exists() else {}
    kept = cache.setdefault(machine(), {})
    missing = {name: commands for name, commands in wanted.items() if kept.get(name, {}).get("commands") != commands}
    if missing:
        with old_checkout(args.old) as root:
            answers = run_all(root, missing, scratch, args.workers, "old")
        kept |= {name: answer | {"commands": wanted[name]} for name, answer in answers.items()}
    if missing and path:
        cache[machine()] = {name: answer for name, answer in kept.items() if "error" not in answer}
        path.write_text(json.dumps(cache))
    return kept


def compare_numbers(args: argparse.Namespace, scratch: Path) -> bool:
    """Print the table of numbers; return whether all are the same."""
    wanted = selected("numbers", args)
    before = old_results(args, wanted, scratch)
    in_new_words = {name: [renamed(command) for command in commands] for name, commands in wanted.items()}
    after = run_all(Path(args.new).resolve(), in_new_words, scratch, args.workers, "new")
    print(f"\n{'case':<34}{'metrics':>8}{'weights':>8}{'printed':>8}{'old s':>8}{'new s':>8}  result")
    wrong = 0
    for name in wanted:
        old, new = before[name], after[name]
        keys = [key.split(" ")[0] for key in old.get("result", ())]
        lines = [f"{side}: {answer['error']}" for side, answer in (("old", old), ("new", new)) if "error" in answer]
        lines = lines or differences(old["result"], new["result"]) or (["no numbers at all"] if not keys else [])
        counts = (keys.count("metric"), keys.count("weight"), keys.count("printed") + keys.count("written"))
        shown = "".join(f"{count:>8}" for count in counts) + f"{old['seconds']:>8.1f}{new['seconds']:>8.1f}"
        print("\n    ".join([f"{name:<34}{shown}  {'DIFFERS' if lines else 'same'}", *lines[:12]]))
        if len(lines) > 12:
            print(f"    and {len(lines) - 12} more")
        wrong += bool(lines)
    print(f"\n{len(wanted) - wrong} of {len(wanted)} cases have the same numbers on both sides")
    return wrong == 0


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line for every number that is not the same."""
    old = {renamed_key(key): renamed_value(value) for key, value in old.items()}
    lines = [f"{key} is missing on the new side" for key in old.keys() - new.keys()]
    lines += [f"{key} is on the new side only" for key in new.keys() - old.keys()]
    other = [key for key in old if key in new and old[key][0] != new[key][0]]
    return sorted(lines) + [f"{key}: old {old[key][1]!r}, new {new[key][1]!r} (last value or sum)" for key in other]


def compare_speed(args: argparse.Namespace, scratch: Path) -> None:
    """Print the table of paired timings."""
    print(f"{'case':<20}{'old ms':>10}{'new ms':>10}  speed of new/old: median, least and most of {args.pairs} pairs")
    with (
        old_checkout(args.old) as root,
        started(root, scratch) as (old,),
        started(Path(args.new).resolve(), scratch) as (new,),
    ):
        for name, (command,) in selected("speed", args).items():
            pairs: list[tuple[float, float]] = []
            timed_pair(old, new, name, command)  # fills caches
            for limit in (args.pairs, 2 * args.pairs):  # what seems slower is measured for longer
                if not pairs or statistics.median(before / after for before, after in pairs) < 0.95:
                    pairs += [timed_pair(old, new, name, command, bool(i % 2)) for i in range(limit)]
            ratios = sorted(before / after for before, after in pairs)
            ratio, (old_ms, new_ms) = statistics.median(ratios), map(statistics.median, zip(*pairs, strict=True))
            spread = f"{ratio:.3f} [{ratios[0]:.3f} .. {ratios[-1]:.3f}]"
            print(f"{name:<20}{old_ms:>10.3f}{new_ms:>10.3f}  {spread}{'  SLOWER' * (ratio < 0.95)}", flush=True)


def timed_pair(old: Side, new: Side, name: str, command: str, flip: bool = False) -> tuple[float, float]:
    """The milliseconds of both sides, one after the other."""
    found: dict[str, float] = {}
    for side in (new, old) if flip else (old, new):
        answer = side.ask("speed", name, [renamed(command) if side is new else command])
        if "error" in answer:
            raise SystemExit(f"{name}, {'new' if side is new else 'old'} side: {answer['error']}")
        found["new" if side is new else "old"] = answer["result"]
    return found["old"], found["new"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("numbers", "speed", "both"), default="numbers")
    parser.add_argument("--old", help=f"checkout to compare with (default: a temporary worktree of {OLD})")
    parser.add_argument("--new", default=str(HERE.parent), help="checkout to judge (default: this one)")
    parser.add_argument("--cache", help="file that keeps the old side's numbers, so that they are computed once")
    parser.add_argument("--quick", action="store_true", help="a third of the cases, some of each family")
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases whose name matches; repeatable")
    parser.add_argument("--workers", type=int, default=2, help="processes at once (numbers)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of timings of each case (speed)")
    parser.add_argument("--list", action="store_true", help="print the cases and their commands, and stop")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(Path(args.serve))
    if args.list:
        for name, commands in (cases("numbers") | cases("speed")).items():
            print(f"{name}: {'; '.join(map(renamed, commands))}")
        return None
    with tempfile.TemporaryDirectory(prefix="gate-") as scratch:
        same = args.part == "speed" or compare_numbers(args, Path(scratch))
        if args.part != "numbers":
            compare_speed(args, Path(scratch))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
