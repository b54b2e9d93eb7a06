"""Seeded changes of text, of nested plain values, and of bytes, such as a slip of the hand or a bad disk makes them."""

import copy
import random
import re
from collections.abc import Iterator
from typing import Any

import torch

WORD = re.compile(r"[^\W_]+|[^\w\s]")
STRANGE = (
    "", "0", "-1", "1e308", "nan", "999999999", "65536", "20000", "0.333", "true", "*", "~", "identity", "uniform",
    "reset", "[", "]", "{", "}", ":", "#", '"', "!!timestamp foo", "!!bool foo", "&a", "*a", "\t", "\0", "é",
    "9" * 5000, "[" * 20000, "x" * 5000, "[255, 255]", "[[-60, 60], [-60, 60]]", "- ", "states: 4000", "OO: 0",
    "../../x", "kind",
)  # fmt: skip
VALUES = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**70), 0.5, float("nan"), float("inf"), "", "none", "x" * 5000, [], {}, [[]],
    ["a"], [0] * 50, {"a": 1}, b"a",
)  # fmt: skip


def text(source: str, draw: random.Random) -> str:
    """Change one to four places of a text: words, lines, or where it ends."""
    for _ in range(draw.randint(1, 4)):
        change = draw.choice((_word, _word, _word, _line, _line, None))
        source = change(source, draw) if change else source[: draw.randrange(len(source) + 1)]
    return source


def _word(source: str, draw: random.Random) -> str:
    words = list(WORD.finditer(source))
    if not words:
        return draw.choice(STRANGE)
    here, other = draw.choice(words), draw.choice(words)[0]
    new = draw.choice((draw.choice(STRANGE), draw.choice(STRANGE), other, here[0] * 2, here[0][:-1]))
    return source[: here.start()] + new + source[here.end() :]


def _line(source: str, draw: random.Random) -> str:
    lines = source.splitlines(keepends=True) or [""]
    here = draw.randrange(len(lines))
    change = draw.randrange(4)
    if change == 0:
        del lines[here]
    elif change == 1:
        lines[here:here] = [draw.choice(lines)] * draw.choice((1, 1, 2, 500))
    elif change == 2:
        draw.shuffle(lines)
    else:
        lines[here] = draw.choice((" ", "  ", "- ")) + lines[here]
    return "".join(lines)


def data(source: bytes, draw: random.Random) -> bytes:
    """Flip, zero, remove, insert or cut off bytes."""
    changed, here = bytearray(source), draw.randrange(len(source) + 1)
    width = draw.choice((1, 1, 4, 64))
    change = draw.randrange(5)
    if change == 0 and here < len(source):
        changed[here] ^= 1 << draw.randrange(8)
    elif change == 1:
        changed[here : here + width] = bytes(len(changed[here : here + width]))
    elif change == 2:
        del changed[here : here + width]
    elif change == 3:
        changed[here:here] = draw.randbytes(width)
    else:
        del changed[here:]
    return bytes(changed)


def tree(source: Any, draw: random.Random) -> Any:
    """Change one or two places of a copy of nested plain values and tensors: another value, a key more or less."""
    changed = copy.deepcopy(source)
    for _ in range(draw.randint(1, 2)):
        places = list(_places(changed))
        if not places:
            return draw.choice(VALUES)
        holder, key = draw.choice(places)
        change = draw.choice((_replace, _replace, None, _add))
        if change:
            change(holder, key, draw)
        else:
            holder.pop(key)
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replace(holder: Any, key: Any, draw: random.Random) -> None:
    old = holder[key]
    if isinstance(old, torch.Tensor) and draw.random() < 0.7:
        shorter = old[:0] if old.dim() else old[None]
        holder[key] = draw.choice((old.flatten(), old[..., None], old.double(), old.bool(), shorter, -old.long()))
    else:
        holder[key] = copy.deepcopy(draw.choice(VALUES))


def _add(holder: Any, key: Any, draw: random.Random) -> None:
    value = copy.deepcopy(holder[key])
    if isinstance(holder, dict):
        holder[draw.choice(("x", "file", "step", "format", f"{key}x"))] = value
    else:
        holder.insert(key, value)
