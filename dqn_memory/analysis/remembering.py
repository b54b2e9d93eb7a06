"""Draw supervised tasks of remembering: tokens in, the symbol that is asked for out, several episodes in a sequence.

Symbols: B sequences, T positions, E episodes that a sequence has room for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

SYMBOLS = 8  # tokens 0 ... 7, and the classes of the output
BLANK, RECALL, FIRST, PREVIOUS = range(SYMBOLS, SYMBOLS + 4)
KEY = PREVIOUS + 1  # of SYMBOLS keys the first
PAIR = KEY + SYMBOLS  # of a key and a symbol: PAIR + SYMBOLS * key + symbol
VOCABULARY = PAIR + SYMBOLS**2
ITEMS = 4  # symbols of an episode that are to be copied, or pairs that are to be recalled


@dataclass(frozen=True)
class Batch:
    """Sequences of several episodes, all (B, T)."""

    tokens: Tensor
    targets: Tensor  # the symbol that is asked for
    asked: Tensor  # where there is one; elsewhere a target means nothing
    reset: Tensor  # where an episode begins


@dataclass(frozen=True)
class Places:
    """Where each position of a batch (B, T) stands; rows hold up to E episodes."""

    episode: Tensor  # (B, T), its number in the row
    offset: Tensor  # (B, T), positions since its episode began
    delay: Tensor  # (B, T), of its episode
    drawn: tuple[int, int]  # (B, E)
    draws: torch.Generator

    def symbols(self, number: int) -> Tensor:
        """Draw so many symbols for each episode, with repetition (B, T, number)."""
        return self.of_episode(torch.randint(SYMBOLS, (*self.drawn, number), generator=self.draws))

    def order(self, items: int, number: int) -> Tensor:
        """Draw `number` different ones of 0 ... items - 1 for each episode, in random order (B, T, number)."""
        return self.of_episode(torch.rand(*self.drawn, items, generator=self.draws).argsort(-1)[..., :number])

    def moments(self, number: int) -> Tensor:
        """Draw different offsets below delay + number for each episode, in the order of time (B, T, number)."""
        drawn = torch.rand(*self.drawn, number, generator=self.draws, dtype=torch.float64).sort(-1).values
        return (self.of_episode(drawn) * (self.delay + 1)[..., None]).long() + torch.arange(number)

    def of_episode(self, drawn: Tensor) -> Tensor:
        """Bring what was drawn for episodes (B, E, n) to their positions (B, T, n)."""
        return drawn.gather(1, self.episode[..., None].expand(-1, -1, drawn.shape[-1]))


Drawn = tuple[Tensor, Tensor, Tensor]  # tokens, targets, asked


def copy(at: Places) -> Drawn:
    """Four symbols, `delay` blanks, then four times the token that asks for them, in their order."""
    symbols, since = at.symbols(ITEMS), at.offset - ITEMS - at.delay  # (B, T, 4), (B, T)
    shown = pick(symbols, at.offset)
    tokens = torch.where(at.offset < ITEMS, shown, torch.where(since < 0, BLANK, RECALL))
    return tokens, pick(symbols, since), since >= 0


def selective_copy(at: Places) -> Drawn:
    """As `copy`, but the symbols stand anywhere among the blanks."""
    symbols, moments, since = at.symbols(ITEMS), at.moments(ITEMS), at.offset - ITEMS - at.delay
    here = at.offset[..., None] == moments  # (B, T, 4)
    tokens = torch.where(here.any(-1), pick(symbols, here.int().argmax(-1)), torch.where(since < 0, BLANK, RECALL))
    return tokens, pick(symbols, since), since >= 0


def count_ticks(at: Places) -> Drawn:
    """`delay` + 7 tokens, 0 to 7 of which are a tick and the others blank; then their number is asked for."""
    most = SYMBOLS - 1
    number, moments, rank = at.symbols(1), at.moments(most), at.order(most, most)
    tick = ((at.offset[..., None] == moments) & (rank < number)).any(-1)
    asked = at.offset == at.delay + most
    return torch.where(tick, 0, torch.where(asked, RECALL, BLANK)), number[..., 0], asked


def associative_recall(at: Places) -> Drawn:
    """Four tokens that each pair a key with a symbol, `delay` blanks, then each key alone, which asks for its symbol.

    A pair is one token, so that a single layer can keep it without looking at neighbours.
    """
    keys, symbols, order = at.order(SYMBOLS, ITEMS), at.symbols(ITEMS), at.order(ITEMS, ITEMS)
    since = at.offset - ITEMS - at.delay
    pair, query = PAIR + SYMBOLS * pick(keys, at.offset) + pick(symbols, at.offset), pick(order, since)
    tokens = torch.where(at.offset < ITEMS, pair, torch.where(since < 0, BLANK, KEY + pick(keys, query)))
    return tokens, pick(symbols, query), since >= 0


def first_or_previous(at: Places) -> Drawn:
    """`delay` symbols, then one of two tokens, which ask for the first or for the newest of them."""
    stream = torch.randint(SYMBOLS, at.offset.shape, generator=at.draws)
    first, asked = at.symbols(1)[..., 0] % 2 == 0, at.offset == at.delay
    now = torch.arange(at.offset.shape[1])
    targets = stream.gather(1, torch.where(first, now - at.offset, now - 1).clamp(min=0))
    return torch.where(asked, torch.where(first, FIRST, PREVIOUS), stream), targets, asked


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Take one of n values (B, T, n) at each position by its index (B, T), the nearest one where it lies outside."""
    return values.gather(-1, index.clamp(0, values.shape[-1] - 1)[..., None])[..., 0]


# A task and the positions of its episodes beyond the delay.
TASKS: dict[str, tuple[Callable[[Places], Drawn], int]] = {
    "copy": (copy, 2 * ITEMS),
    "selective_copy": (selective_copy, 2 * ITEMS),
    "count": (count_ticks, SYMBOLS),
    "associative_recall": (associative_recall, 2 * ITEMS),
    "first_or_previous": (first_or_previous, 1),
}


def draw(task: str, delays: Tensor, length: int, draws: torch.Generator) -> Batch:
    """Draw sequences of `length` positions, filled with episodes of these delays (B, E); the last one may be cut."""
    make, extra = TASKS[task]
    ends = (delays + extra).cumsum(1)  # (B, E)
    time = torch.arange(length).expand(len(delays), -1).contiguous()  # (B, T)
    episode = torch.searchsorted(ends, time, right=True)
    offset = time - F.pad(ends, (1, 0)).gather(1, episode)
    places = Places(episode, offset, delays.gather(1, episode), (delays.shape[0], delays.shape[1]), draws)
    return Batch(*make(places), reset=offset == 0)


def mixed(task: str, longest: int, rows: int, length: int, draws: torch.Generator) -> Batch:
    """Draw a batch of training, whose delays are 1 ... `longest`, log-uniform."""
    share = torch.rand(rows, math.ceil(length / (1 + TASKS[task][1])), generator=draws, dtype=torch.float64)
    return draw(task, ((longest + 1.0) ** share).long(), length, draws)


def fixed(task: str, delay: int, rows: int, draws: torch.Generator) -> Batch:
    """Draw a batch of evaluation: two whole episodes of this delay."""
    return draw(task, torch.full((rows, 2), delay), 2 * (delay + TASKS[task][1]), draws)
