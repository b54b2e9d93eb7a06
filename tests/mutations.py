"""Plant small faults one at a time and see whether the tests notice.

    python tests/mutations.py --check           every fault of tests/data/mutations.toml has its place in this checkout
    python tests/mutations.py                   plant all of them, about a quarter of an hour
    python tests/mutations.py --only 'priors.*' some of them

Each fault is planted in a temporary copy of the tracked files, where the tests that should notice it run until the
first failure. The same tests must pass without a fault, which is tried first. The exit status is 1 if a fault survives.
"""

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parents[1]
LONGEST = 900  # seconds after which tests count as failed


class Fault(NamedTuple):
    """A fault and where it goes."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def read(patterns: list[str]) -> list[Fault]:
    """The faults whose names match, each of which must have its place in this checkout."""
    table = tomllib.loads((TREE / "tests" / "data" / "mutations.toml").read_text())
    faults = [Fault(f"{room}.{name}", **entry) for room, several in table.items() for name, entry in several.items()]
    wanted = [fault for fault in faults if any(fnmatch.fnmatch(fault.name, pattern) for pattern in patterns)]
    for fault in wanted:
        if (count := (TREE / fault.file).read_text().count(fault.old)) != 1:
            raise SystemExit(f"{fault.name}: {fault.old.strip()!r} must occur once in {fault.file}, not {count} times")
        if missing := [test for test in fault.tests if not (TREE / test).exists()]:
            raise SystemExit(f"{fault.name}: there is no {missing[0]}")
    return wanted


def copy_tracked(folder: Path) -> None:
    """Copy the files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=TREE, text=True).split("\0")
    for name in names:
        if name and (TREE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, folder / name)


def tests_pass(copy: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether tests pass in a copy, and the last line that pytest printed."""
    # Without bytecode, which is not renewed when a file changes within a second and keeps its length.
    settings = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=settings, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return False, f"not done after {LONGEST} seconds"
    if done.returncode not in (0, 1, 2):  # passed, failed, or a file could not even be imported
        raise SystemExit(f"pytest could not run: {(done.stdout + done.stderr)[-1000:]}")
    return done.returncode == 0, (done.stdout.strip().splitlines() or ["no output"])[-1]


def plant(copy: Path, fault: Fault) -> bool:
    """Try one fault; return whether the tests noticed."""
    path, began = copy / fault.file, time.monotonic()
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        passed, last = tests_pass(copy, fault.tests)
    finally:
        path.write_text(text)
    end = "SURVIVED" if passed else "caught"
    print(f"{fault.name:<52}{end:<10}{time.monotonic() - began:>6.0f} s  {last}", flush=True)
    return not passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="GLOB", help="faults whose name matches; repeatable")
    parser.add_argument("--check", action="store_true", help="only say whether every fault has its place")
    parser.add_argument("--skip-clean", action="store_true", help="do not run the tests without a fault first")
    args = parser.parse_args()
    faults = read(args.only or ["*"])
    if args.check:
        return print(f"{len(faults)} faults have their place")
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder)
        copy_tracked(copy)
        tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
        if not args.skip_clean and not (result := tests_pass(copy, tests))[0]:
            raise SystemExit(f"without any fault tests fail already: {result[1]}")
        caught = sum(plant(copy, fault) for fault in faults)
    print(f"{caught} of {len(faults)} faults caught")
    sys.exit(0 if caught == len(faults) else 1)


if __name__ == "__main__":
    main()
