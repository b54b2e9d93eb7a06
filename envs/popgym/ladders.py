"""Ladders of difficulty: for each ability of a memory one family of tasks, in levels that get harder evenly.

`envs.ladders` lists them. The number of a rung is about 1.4 times that of the one before it, so two rungs double it.
Only "count" doubles at once from 2 to 4, because decks are whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rung:
    """One level of a ladder."""

    id: str  # of `gymnasium.make` and `--env`
    kwargs: Mapping[str, Any]  # of the environment's class
    steps: int  # of an episode; of filter the most


@dataclass(frozen=True)
class Ladder:
    """Levels of one ability, the easiest first."""

    name: str
    asks: str  # what a task asks of a memory, in one sentence
    entry: str  # "module:Class", as in `envs.registry.Entry`
    rungs: tuple[Rung, ...]


def _halves(first: int, last: int) -> list[int]:
    """Double and halve: the whole numbers next to powers of the root of 2, from 2**first to 2**last."""
    return list(dict.fromkeys(round(2 ** (half / 2)) for half in range(2 * first, 2 * last + 1)))


def _ladder(name: str, asks: str, entry: str, levels: Mapping[float, tuple[dict[str, Any], int]]) -> Ladder:
    rungs = (Rung(f"Ladder/{name}-{dial}-v0", *level) for dial, level in levels.items())
    return Ladder(name, asks, f"envs.popgym.{entry}", tuple(rungs))


# Hold, shift and reverse have the same decks on all rungs, so that guessing and counting cards help as much on each.
LADDERS: dict[str, Ladder] = {ladder.name: ladder for ladder in (
    _ladder(
        "hold", "Keep one card for as many steps as the number says.", "repeat:RepeatFirst",
        {steps: ({"decks": 20, "cards": steps + 1}, steps) for steps in _halves(3, 10)},
    ),
    _ladder(
        "shift", "Name the k-th newest card at every step; k is the number.", "repeat:RepeatPrevious",
        {k: ({"decks": 3, "k": k}, 155) for k in _halves(1, 6)},
    ),
    _ladder(
        "count", "Count the cards of as many categories as the number says, 26 of each.", "counting:CountRecall",
        {2 * decks: ({"decks": decks, "categories": 2 * decks}, 52 * decks - 1) for decks in _halves(0, 4)},
    ),
    _ladder(
        "reverse", "Play back as many cards as the number says, the last one first.", "repeat:Autoencode",
        {cards: ({"decks": 3, "cards": cards}, 2 * cards - 1) for cards in _halves(2, 7)},
    ),
    _ladder(
        "bind", "Name the value of each of as many keys as the number says, asked for in a random order.",
        "recall:PairRecall", {pairs: ({"pairs": pairs}, 2 * pairs) for pairs in _halves(1, 5)},
    ),
    _ladder(
        "filter", "Balance a pole by positions with normal noise of the deviation that the number says.",
        "control:NoisyPositionOnlyCartPole",
        {noise: ({"noise": noise}, 200) for noise in (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8)},
    ),
)}  # fmt: skip
RUNGS: dict[str, tuple[str, Mapping[str, Any]]] = {
    rung.id: (ladder.entry, rung.kwargs) for ladder in LADDERS.values() for rung in ladder.rungs
}
