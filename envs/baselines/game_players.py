"""Lines of POPGym's bandits, of Concentration and of its boards.

Their observations name the last action, so that a sweep over all cells needs no memory, nor does a winning arm.
"""

import math

import torch
from torch import Tensor

from envs.baselines.best import BY_RULES, Best, Budget, Played, exact_return, lined
from envs.baselines.players import Player
from envs.popgym.bandit import MultiarmedBandit
from envs.popgym.boards import Battleship, Board, MineSweeper
from envs.popgym.concentration import Concentration

MOST = exact_return(1.0, BY_RULES)


# ---- bandits ---------------------------------------------------------------------------------------------------------
def bandit_bounds(world: MultiarmedBandit, budget: Budget) -> Best:
    """Keep to an arm while it pays, or while one of its last two pulls paid, or pull by the highest upper bound."""
    play, arms = Played(world, budget), world.num_actions
    stay = play("win-stay, lose-shift", stayer(arms, 1))
    twice = play("a shift after two losses", stayer(arms, 2))
    perfect = play("an index of means and errors", indexer(world))
    return lined(stay, stay, twice, perfect, exact_return(2 * arms / (arms + 1) - 1, "upper by the best arm known"))


def stayer(arms: int, losses: int) -> Player:
    """Keep to an arm as long as one of its last `losses` pulls paid, 1 or 2, then pull the next arm."""
    before: Tensor | None = None  # (N, 2)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        paid, arm = observation[:, 0] > 0, observation[:, 1]
        if before is not None and losses == 2:
            paid = paid | ((before[:, 0] > 0) & (before[:, 1] == arm))
        before = observation
        return torch.where(paid, arm, (arm + 1) % arms)

    return act


def indexer(world: MultiarmedBandit) -> Player:
    """Pull the arm whose mean plus a multiple of its error is highest; the multiple shrinks with the pulls left."""
    wins: Tensor | None = None  # (N, arms)
    pulls = torch.empty(0)  # (N, arms); both begin with one win of two pulls
    left = world.time_limit + 1

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal wins, pulls, left
        if wins is None:
            wins = torch.ones(len(observation), world.num_actions, device=observation.device)
            pulls = 2 * wins
        else:
            rows = torch.arange(len(observation), device=observation.device)
            wins[rows, observation[:, 1]] += observation[:, 0]
            pulls[rows, observation[:, 1]] += 1
        left -= 1
        means = wins / pulls
        multiple = (0.6 * torch.log(1 + 0.25 * (left - 1) / pulls)).sqrt()
        return (means + multiple * (means * (1 - means) / (pulls + 1)).sqrt()).argmax(1)

    return act


# ---- Concentration ---------------------------------------------------------------------------------------------------
def concentration_bounds(world: Concentration, budget: Budget) -> Best:
    """Turn up cards that lie face down: at random, or so that their places tell what two categories must be."""
    play = Played(world, budget)
    generator = torch.Generator(world.device).manual_seed(budget.seed + 2)
    rules = {"face-down cards at random": flipper(world, generator, False)}
    if world.categories == 2:
        rules["the three first cards in turn"] = three_cards(world)
    seen = play.best(rules)
    one_step = play("the cards just turned down", flipper(world, generator, True))
    return lined(seen, seen, one_step, play("all cards seen", rememberer(world)), MOST)


def three_cards(world: Concentration) -> Player:
    """Try the three first cards without a partner: first with second, third with first, second with third.

    Of two categories, one of these three is a pair. The place of the card that waits tells which is next.
    """

    def act(observation: Tensor, running: Tensor) -> Tensor:
        shown, last = observation[:, :-1], observation[:, -1:].long()
        down = shown == world.categories  # (N, cards)
        waits = (~down).sum(1, keepdim=True) % 2 == 1
        places = torch.arange(shown.shape[1], device=shown.device)
        beyond = waits & (places <= last) & ((down & (places < last)).sum(1, keepdim=True) < 2)
        return (down & ~beyond).int().argmax(1)

    return act


def flipper(world: Concentration, generator: torch.Generator, remembers: bool) -> Player:
    """Turn up a random card that lies face down; who remembers a step prefers an equal card that was just shown."""
    before: Tensor | None = None  # (N, cards)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        shown, last = observation[:, :-1], observation[:, -1:].long()
        down = shown == world.categories
        worth = torch.rand(shown.shape, generator=generator, device=shown.device) * down
        if remembers and before is not None:
            waits = (~down).sum(1, keepdim=True) % 2 == 1
            equal = (before == shown.gather(1, last)) & down & waits
            fresh = down & (before == world.categories) & ~waits
            worth = worth + equal + fresh
        before = shown
        return worth.argmax(1)

    return act


def rememberer(world: Concentration) -> Player:
    """Remember all cards seen: take a pair that is known, else turn up cards never seen."""
    known: Tensor | None = None  # (N, cards) category + 1, 0 for a card never seen, -1 for one that has its partner
    picked: list[Tensor] = []  # (N,) each, of the pair that is being turned up

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        shown = observation[:, :-1].long()
        rows = torch.arange(len(shown), device=shown.device)
        known = torch.zeros_like(shown) if known is None else known
        known = torch.where((shown < world.categories) & (known == 0), shown + 1, known)
        if len(picked) == 2:
            first, second = picked
            match = known[rows, first] == known[rows, second]
            for card in picked:
                known[rows, card] = torch.where(match, -1, known[rows, card])
            picked.clear()
        numbers = known.clamp(min=0)
        if picked:
            wanted = numbers == numbers[rows, picked[0], None]
            wanted[rows, picked[0]] = False
        else:
            counts = torch.zeros(len(rows), world.categories + 1, dtype=torch.int64, device=shown.device)
            wanted = counts.scatter_add(1, numbers, torch.ones_like(numbers)).gather(1, numbers) > 1
        worth = 2 * (wanted & (known > 0)) + (known == 0).long() - 2 * (known < 0).long()
        if picked:
            worth[rows, picked[0]] = -2
        choice = worth.argmax(1)
        picked.append(choice)
        return choice

    return act


# ---- boards ----------------------------------------------------------------------------------------------------------
def battleship_bounds(world: Battleship, budget: Budget) -> Best:
    """Sweep over the cells row by row, or look where most ships may lie."""
    play = Played(world, budget)
    sweep = play("a sweep of the rows", stepper(world, [[1] * 2]))
    return lined(sweep, sweep, sweep, play("the places that fit all shots", hunter(world)), MOST)


def stepper(world: Board, offsets: list[list[int]]) -> Player:
    """Begin in the last cell, and go back by a number of cells that depends on what the newest cell showed.

    `offsets` may have a second row, for what follows if the cell before the newest one showed more than 0. What is seen
    before the first look is a 0 in the first cell, so the last cell follows whenever that is seen.
    """
    table = torch.tensor(offsets, device=world.device)
    before: Tensor | int = 0  # (N,) row of the table

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        shown, at = observation[:, 0], observation[:, 1] * world.side + observation[:, 2]
        begins = (shown == 0) & (at == 0)
        target = torch.where(begins, world.num_actions - 1, (at - table[before, shown]) % world.num_actions)
        before = (begins | (shown > 0)).long() * (len(table) - 1)
        return target

    return act


def hunter(world: Battleship) -> Player:
    """Look at the cell that most places of ships without a known miss cover; a place counts more with every hit."""
    looked: Tensor | None = None  # (N, 2, cells): misses and hits

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal looked
        rows = torch.arange(len(observation), device=world.device)
        if looked is None:
            looked = torch.zeros(len(rows), 2, world.num_actions, device=world.device)
        else:
            looked[rows, observation[:, 0], observation[:, 1] * world.side + observation[:, 2]] = 1
        misses, hits = looked.unbind(1)
        heat = torch.zeros_like(misses)
        for places in world.ships:
            heat += ((misses @ places.T == 0) * 5 ** (hits @ places.T)) @ places
        return (heat - heat.max() * (misses + hits).clamp(max=1) - (misses + hits)).argmax(1)

    return act


def mine_bounds(world: MineSweeper, budget: Budget) -> Best:
    """Step by what the last cells showed, or look where a mine is least likely."""
    play = Played(world, budget)
    # by size and mines, for one cell and for two; found by coordinate ascent
    one, two = STEPS.get((world.side, world.mines), ([[1] * len(world.kinds)], [[1] * len(world.kinds)]))
    seen = play("steps by the number shown", stepper(world, one))
    one_step = play("steps by the last two numbers", stepper(world, two))
    return lined(seen, seen, one_step, play("probabilities of mines", solver(world)), MOST)


STEPS = {
    (4, 2): ([[1, 3, 2]], [[1, 3, 2], [1, 6, 2]]),
    (6, 6): ([[6, 31, 19, 13, 13, 1, 1]], [[6, 31, 31, 19, 26, 1, 1], [6, 30, 20, 20, 19, 1, 1]]),
    (8, 10): (
        [[8, 49, 41, 41, 26, 18, 34, 1, 1, 1]],
        [[8, 49, 49, 41, 18, 18, 34, 1, 1, 1], [8, 8, 17, 34, 25, 53, 34, 1, 1, 1]],
    ),
}


def solver(world: MineSweeper, rounds: int = 40, rate: float = 0.7) -> Player:
    """Look where a mine is least likely, if mines are independent and their expected numbers are those shown.

    The logarithms of their odds are a sum over the numbers shown nearby, whose weights are found by gradient steps.
    """
    near, cells = world.near, world.num_actions
    seen: Tensor | None = None  # (N, cells), as the next two
    shown, weights, whole = torch.empty(0), torch.empty(0), torch.empty(0)
    start = math.log(world.mines / (cells - world.mines))

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal seen, shown, weights, whole
        if seen is None:
            seen = torch.zeros(len(observation), cells, device=world.device)
            shown, weights, whole = seen.clone(), seen.clone(), seen[:, :1].clone()
        else:
            at = (torch.arange(len(seen), device=world.device), observation[:, 1] * world.side + observation[:, 2])
            seen[at], shown[at] = 1.0, observation[:, 0].float()
        mines = seen
        for _ in range(rounds):
            mines = torch.sigmoid(start + whole + (weights * seen) @ near) * (1 - seen)
            weights = (weights + rate * (shown - mines @ near) * seen).clamp(-30, 30)
            whole = (whole + rate / 4 * (world.mines - mines.sum(1, keepdim=True))).clamp(-10, 10)
        return (mines + 2 * seen).argmin(1)

    return act
