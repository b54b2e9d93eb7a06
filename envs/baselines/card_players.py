"""Lines of POPGym's card games: most are sums over what can be in the deck, as no action changes what is shown.

A player with one remembered step also knows its last action, which is a memory if the player chooses it as one.
"""

from math import comb
from typing import Any

import torch
from torch import Tensor

from envs.baselines.best import Best, Budget, Played, exact_return, lined
from envs.baselines.players import Player
from envs.errors import require
from envs.popgym.cards import CardGame
from envs.popgym.counting import CountRecall, HigherLower
from envs.popgym.recall import VALUES, PairRecall
from envs.popgym.repeat import Autoencode, RepeatFirst, RepeatPrevious

WHOLE = exact_return(1.0)
KEPT_FOUR = "1200333320112222201112003333202233331200120022223313011101110122"  # found by annealing
RISES = {2: (0.25, 0.75), 4: (0.1, 0.75)}  # of an answer about another category: of another card than asked for, or it


def _check_whole(world: CardGame[Any] | PairRecall) -> None:
    """Refuse a time limit that cuts episodes: the sums below are over whole ones."""
    known, last = f"Lines of {type(world).__name__} are known for whole episodes", int(world.last)
    require(world.time_limit >= last, f"{known}: time_limit must be at least {last}, not {world.time_limit}.")


def repeat_first_bounds(world: RepeatFirst, budget: Budget) -> Best:
    """Name the first card at the first step; later every other suit is a bit more likely than the newest.

    Who remembers one step knows which step is the first, and then repeats its own last answer.
    """
    _check_whole(world)
    steps, cards, suit = int(world.last), world.in_decks, world.in_decks // world.kinds
    newest, other = ((1 + (steps - 1) * left / (cards - 1)) / steps for left in (suit - 1, suit))
    return lined(exact_return(2 * newest - 1), exact_return(2 * other - 1), WHOLE, WHOLE)


def repeat_previous_bounds(world: RepeatPrevious, budget: Budget) -> Best:
    """Name any suit but the newest; who remembers one step stores a card in its action for a while.

    With k = 1 the newest card is asked for, and with k = 2 the one before.
    """
    _check_whole(world)
    k, cards = int(world.k), world.in_decks
    other = exact_return(2 * (cards // world.kinds) / (cards - 1) - 1) if k > 1 else WHOLE
    generator = torch.Generator(world.device).manual_seed(budget.seed + 2)
    kept = Played(world, budget)("a card kept in the action", keeper(k, generator)) if k > 2 else WHOLE
    return lined(other, other, kept, WHOLE)


def keeper(k: int, generator: torch.Generator) -> Player:
    """Repeat the last action, which is right k - 2 steps after it was set to the previous card, and set it at times.

    Times are random, 1 in k - 1. For k = 4 a table tells the action by the previous card, the last action and the
    newest card.
    """
    table = torch.tensor([int(digit) for digit in KEPT_FOUR], device=generator.device).view(4, 4, 4)
    before: Tensor | None = None
    action: Tensor | None = None

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before, action
        newest = observation[:, 0]
        if before is None or action is None:
            action = newest
        else:
            now = torch.rand(len(newest), generator=generator, device=newest.device) < 1 / (k - 1)
            kept = torch.where(now, before, action)
            action = table[before, action, newest] if k == 4 else kept
        before = newest
        return action

    return act


def autoencode_bounds(world: Autoencode, budget: Budget) -> Best:
    """Name the last card, which is in view when it is asked for; then one suit is as likely as another.

    Who remembers one step names any other suit, and repeats that.
    """
    _check_whole(world)
    shown, cards, suit = world.cards, world.in_decks, world.in_decks // world.kinds
    now, kept = (2 * (1 + suit * (shown - 1) / among) / shown - 1 for among in (cards, cards - 1))
    in_view = exact_return(now)
    return lined(in_view, in_view, exact_return(kept, "lower by any other suit than the last"), WHOLE)


def pair_recall_bounds(world: PairRecall, budget: Budget) -> Best:
    """Guess; who remembers one step can keep the value of one key in its action, and give another answer meanwhile.

    Any other key has a given other value with the chance below.
    """
    _check_whole(world)
    guess = exact_return(2 / VALUES - 1)
    other = world.copies / (VALUES * world.copies - 1)
    right = 1 + (world.pairs - 1) * other
    kept = exact_return(2 * right / world.pairs - 1, "lower by one value kept in the action")
    return lined(guess, guess, kept, WHOLE)


# ---- games of counting -----------------------------------------------------------------------------------------------
def count_recall_bounds(world: CountRecall, budget: Budget) -> Best:
    """Sum over the number of cards of the category asked for, whether the newest card is of it or not."""
    _check_whole(world)
    cards, copies, asked = world.in_decks, world.num_actions - 1, 1 / world.kinds
    by_step = 0.0
    tables = torch.zeros(2, copies + 1, dtype=torch.float64)  # of all steps: newest of another category, of this one
    for shown in range(1, cards):  # cards shown before the answer
        counts = torch.tensor([
            [(1 - asked) * chance(count, shown - 1, copies, cards - 1) for count in range(copies + 1)],
            [asked * chance(count - 1, shown - 1, copies - 1, cards - 1) for count in range(copies + 1)],
        ], dtype=torch.float64)  # fmt: skip
        by_step += float(counts.amax(1).sum())
        tables += counts
    seen, timed = float(tables.amax(1).sum()), by_step
    observation, clock = (exact_return(2 * right / (cards - 1) - 1) for right in (seen, timed))
    generator = torch.Generator(world.device).manual_seed(budget.seed + 2)
    one_step = Played(world, budget)("adding to the last answer", adder(world, generator))
    return lined(observation, clock, one_step, WHOLE)


def adder(world: CountRecall, generator: torch.Generator) -> Player:
    """Add the newest card to the last answer if the same category is asked for again, else at a venture."""
    chances = torch.tensor(RISES.get(world.kinds, (0.0, 1.0)), device=world.device)
    before: tuple[Tensor, Tensor] | None = None  # (N,) each: category asked for, and answer

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        newest, asked = observation[:, 0], observation[:, 1]
        fits = (newest == asked).long()
        answer = fits
        if before is not None:
            drawn = torch.rand(len(asked), generator=generator, device=asked.device)
            rises = torch.where(asked == before[0], fits, drawn < chances[fits])
            answer = (before[1] + rises).clamp(max=world.num_actions - 1)
        before = asked, answer
        return answer

    return act


def chance(count: int, drawn: int, wanted: int, cards: int) -> float:
    """Return the probability of `count` wanted cards among some drawn of all cards; 0 if they cannot be."""
    if not 0 <= count <= drawn or wanted > cards:
        return 0.0
    return comb(wanted, count) * comb(cards - wanted, drawn - count) / comb(cards, drawn)


def higher_lower_bounds(world: HigherLower, budget: Budget) -> Best:
    """Guess the side on which more cards are left, of all cards, of all but two, or of those not yet seen."""
    _check_whole(world)
    ranks, cards = world.kinds, world.in_decks
    copies = cards // ranks
    sides = sum(abs(ranks - 1 - 2 * rank) * copies for rank in range(ranks)) / ranks
    after_one = sides / (cards - 1)  # expected gain of a guess
    after_two = 0.0
    for rank in range(ranks):
        for before in range(ranks):
            likely = (copies - (rank == before)) / (ranks * (cards - 1))
            higher, lower = (ranks - 1 - rank) * copies - (before > rank), rank * copies - (before < rank)
            after_two += likely * abs(higher - lower) / (cards - 2)
    observation = exact_return((cards - 1) * after_one / cards)
    one_step = exact_return((after_one + (cards - 2) * after_two) / cards, "lower by the two newest cards")
    perfect = Played(world, budget).level("optimal player", counter(ranks, copies))
    return lined(observation, observation, one_step, perfect)


def counter(ranks: int, copies: int) -> Player:
    """Count the cards of each rank that are left; no player of Higher Lower can do better."""
    left: Tensor | None = None  # (N, ranks)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal left
        rows = torch.arange(len(observation), device=observation.device)
        newest = observation[:, 0]
        if left is None:
            left = torch.full((len(rows), ranks), copies, device=observation.device)
        left[rows, newest] -= 1
        upto = left.cumsum(1)
        higher = upto[:, -1] - upto[rows, newest]
        return (higher < upto[rows, newest] - left[rows, newest]).long()

    return act
