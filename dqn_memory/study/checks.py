"""Check the content of files of runs and archives, which somebody else may have written.

Each function raises a ValueError, a TypeError or a LookupError, which `store.read_file` turns into one sentence.
"""

from typing import Any

from dqn_memory.runs.metrics import RAW, checked_facts, is_count, is_number
from envs.files import parse_json

Tree = dict[str, Any]


def parse_facts(data: bytes) -> Tree:
    """Read environment.json."""
    return checked_facts(parse_json(data))


def parse_machines(data: bytes) -> dict[str, Tree]:
    """Read machines.json."""
    return {number: checked_facts(facts) for number, facts in parse_json(data).items()}


def parse_hashes(data: bytes) -> dict[str, str]:
    """Read hashes.json."""
    found = parse_json(data)
    if not set(RAW).issuperset(found) or not all(isinstance(digest, str) for digest in found.values()):
        raise TypeError("it does not hold the SHA-256 of a run's files")
    return dict(found)


def checked_summary(found: Any) -> Tree | None:
    """Check the summary of a run, which may be None."""
    if found is None:
        return None
    if found["measure"] not in ("success", "return"):
        raise TypeError("its summary measures neither success nor return")
    if not all(found.get(name) is None or is_count(found[name]) for name in ("parameters", "budget")):
        raise TypeError("its parameters and its budget are not whole numbers")
    return dict(found)


def checked_maps(found: Any) -> Any:
    """Check the attention maps of a run, which have the form of `analysis.attention.Maps.plain`."""
    heads = [head for layer in found["layers"].values() for head in layer]
    numbers = all(is_number(each) for head in heads for row in head for each in row)
    if not numbers or not all(layer.isdecimal() for layer in found["layers"]):
        raise TypeError("its attention maps are not numbers by layer")
    facts = [found.get(name) for name in ("success", "total", "first")]
    plain = all(fact is None or isinstance(fact, bool) or is_number(fact) for fact in facts)
    if not plain or not is_count(found["length"]) or any(len(row) > len(head) for head in heads for row in head):
        raise TypeError("its attention maps have another form")
    return found


def checked_all_maps(found: Any) -> Any:
    """Check the attention maps of several runs by name."""
    for maps in found.values():
        checked_maps(maps)
    return found
