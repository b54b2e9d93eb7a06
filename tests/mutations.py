"""Plant small faults one at a time and see whether the tests notice.

    python tests/mutations.py --check           every fault of tests/data/mutations.toml has its place in this checkout
    python tests/mutations.py                   plant all of them, about a quarter of an hour
    python tests/mutations.py --only 'priors.*' some of them
    python tests/mutations.py --tree FOLDER     in another checkout, such as a worktree of 070d15f

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
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
LONGEST = 900  # seconds after which tests count as failed


class Fault(NamedTuple):
    """A fault and where it goes."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def read(tree: Path, patterns: list[str]) -> list[Fault]:
    """The faults whose names match, with the places that they have in a checkout."""
    table = tomllib.loads((HERE / "data" / "mutations.toml").read_text())
    renamed: dict[str, Any] = table.pop("tests_now")
    entries = {f"{room}.{name}": entry for room, several in table.items() for name, entry in several.items()}
    wanted = {name: entry for name, entry in entries.items() if any(fnmatch.fnmatch(name, p) for p in patterns)}
    sources = {name: (tree / name).read_text() for name in tracked(tree) if is_source(name)}
    return [placed(name, entry, tree, sources, renamed) for name, entry in wanted.items()]


def placed(name: str, entry: dict[str, Any], tree: Path, sources: dict[str, str], renamed: dict[str, Any]) -> Fault:
    """Find a fault's file and tests, in the form of revision 070d15f or in that of now."""
    tests = [new for old in entry["tests"] for new in here(old, tree, renamed)]
    forms = [(entry["file"], entry["old"], entry["new"])]
    if "old_now" in entry or "moved" in entry:
        now = entry.get("old_now", entry["old"]), entry.get("new_now", entry["new"])
        forms.append((entry.get("moved", entry["file"]), *now))
    for file, old, new in reversed(forms):
        found = [file] if old in sources.get(file, "") else [other for other, text in sources.items() if old in text]
        if len(found) == 1 and sources[found[0]].count(old) == 1:
            return Fault(name, found[0], old, new, list(dict.fromkeys(tests)))
    places = ", ".join(found) or "nowhere"
    raise SystemExit(
        f"{name}: {old.strip()!r} must occur once, but it is in: {places}; give moved, old_now and new_now"
    )


def here(test: str, tree: Path, renamed: dict[str, Any]) -> list[str]:
    """Where a test file of revision 070d15f is in a checkout: there, in another folder, or as [tests_now] says."""
    if (tree / test).exists():
        return [test]
    found = renamed.get(test) or [str(path.relative_to(tree)) for path in (tree / "tests").rglob(Path(test).name)]
    if (len(found) != 1 and test not in renamed) or not all((tree / name).exists() for name in found):
        raise SystemExit(f"{test} is not in {tree}; say in [tests_now] which files hold its tests, as a list")
    return found


def tracked(tree: Path) -> list[str]:
    """The files of a checkout that git knows or would add."""
    command = ["git", "-C", str(tree), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if (tree / name).is_file()]


def is_source(name: str) -> bool:
    return name.endswith(".py") and not name.startswith(("tests/", "results/"))


def tests_pass(copy: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether tests pass in a copy, and the last line that pytest printed."""
    # Without bytecode, which is not renewed when a file changes within a second and keeps its length.
    settings = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=os.environ | settings, capture_output=True, text=True, timeout=LONGEST
        )
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
    print(
        f"{fault.name:<52}{'SURVIVED' if passed else 'caught':<10}{time.monotonic() - began:>6.0f} s  {last}",
        flush=True,
    )
    return not passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", default=str(HERE.parent), help="checkout to plant faults in (default: this one)")
    parser.add_argument("--only", action="append", metavar="GLOB", help="faults whose name matches; repeatable")
    parser.add_argument("--check", action="store_true", help="only say whether every fault has its place")
    parser.add_argument("--skip-clean", action="store_true", help="do not run the tests without a fault first")
    args = parser.parse_args()
    tree = Path(args.tree).resolve()
    faults = read(tree, args.only or ["*"])
    if args.check:
        return print(f"{len(faults)} faults have their place")
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder)
        for name in tracked(tree):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, copy / name)
        tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
        if not args.skip_clean and not (result := tests_pass(copy, tests))[0]:
            raise SystemExit(f"without any fault tests fail already: {result[1]}")
        caught = sum(plant(copy, fault) for fault in faults)
    print(f"{caught} of {len(faults)} faults caught")
    sys.exit(0 if caught == len(faults) else 1)


if __name__ == "__main__":
    main()
