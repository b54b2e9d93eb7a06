"""Players with less than a memory in the suite's own environments: a clock, or one remembered step.

Both players of the memory corridor carry the beacons' colour in what they do. The one with a clock leaves the beacon
the later the higher its number is, and reads the number from the time at which it comes to the exits. The other one
faces north or east, and its last action tells which. In Heaven Hell the player with a clock stays at the priest for
one step if heaven is on the right, and the time at which it comes to the fork tells the side. The one with one
remembered step leaves the priest for heaven on the left, and stays there for ever if it is on the right.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from envs.baselines.best import EXACT, Budget, Played
from envs.baselines.players import Player, exact_level, finish
from envs.baselines.reference import Level
from envs.gridverse.objects import BEACON, EXIT, FLOOR, RED
from envs.gridverse.tasks import Memory
from envs.worlds.heaven_hell import HeavenHell
from envs.worlds.memory_cards import HIDDEN, MemoryCards

FORWARD, BACKWARD, LEFT, RIGHT, TURN_RIGHT = 0, 1, 2, 3, 5
Sight = tuple[int, int, int]  # numbers of the cells ahead, to the left and to the right
Rule = Callable[[Sight, int | None, int], int]  # from sight, last action and time to an action


def corridor_lines(world: Memory) -> dict[str, Level]:
    """Play both players from every start; none if they cannot read the view or the corridor is too short."""
    draws = world.initial_draws()
    standard = world.observation_space == Memory(world.height).observation_space and world.phantoms is None
    if draws is None or not standard or world.height < 7:
        return {}
    rules = {"clock": ("leaving at a time", by_time(world.height)), "one step": ("two headings", by_heading)}
    lines = {}
    for name, (words, rule) in rules.items():
        outcomes = finish(world, world.reset(draws), player_by(rule))
        success, returns = outcomes.success.double().mean(), outcomes.returns.mean()
        lines[name] = exact_level(float(success), float(returns), f"lower by {words}")
    return lines


def heaven_hell_lines(world: HeavenHell) -> dict[str, Level]:
    """Play both players from both starts; one remembered step is exact unless the time limit is too short for it.

    Who comes to the second cell from the priest remembers the first one and the move from there, whatever he said. So
    each way from there to an end or back is as likely with heaven on the left as on the right, and so is each way from
    the start. Let both sides draw the same ways: then both can only come to the same end, which is heaven on one side
    and hell on the other, so at most one of them succeeds. So no rule gets more than 0.5, in success or return, not
    even one that draws numbers.
    """
    draws = world.initial_draws()
    assert draws is not None  # only the side of heaven is random
    rules = {
        "clock": ("leaving at a time", fork_by_time(world.n)),
        "one step": ("leaving for the left alone", left_or_nowhere(world.n)),
    }
    lines = {}
    for name, (words, player) in rules.items():
        outcomes = finish(world, world.reset(draws), player)
        success, returns = outcomes.success.double().mean(), outcomes.returns.mean()
        lines[name] = exact_level(float(success), float(returns), f"lower by {words}")
    most = exact_level(0.5, 0.5, EXACT)
    return {**lines, "one step": most} if lines["one step"].returns == most.returns else lines


def fork_by_time(n: int) -> Player:
    """Ask the priest, leave at once if heaven is on the left and one step later if on the right, and go there."""
    north, south, east, west = range(4)
    priest, time = 4 * n + 1, -1  # the priest's answers are numbers 4n + 1 and 4n + 2

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal time
        time, observation = time + 1, observation.flatten()
        beside = observation - (3 * n + 1)  # steps east of the start's southern neighbour
        action = torch.full_like(observation, north)
        action[(beside >= 0) & (beside < n)] = east if time <= n else west
        action[(beside == 0) & (time > n)] = north
        action[(observation == priest) | ((observation == priest + 1) & (time > n + 1))] = west
        action[observation == n] = west if time == 3 * n + 2 else east
        action[(observation > n) & (observation <= 2 * n)] = west
        action[(observation > 2 * n) & (observation <= 3 * n)] = east
        action[observation == priest + 2] = south  # the first step
        return action

    return act


def left_or_nowhere(n: int) -> Player:
    """Ask the priest, go to heaven if it is on the left, else stay; the last move tells coming from leaving."""
    north, south, east, west = range(4)
    priest = 4 * n + 1  # the priest's answers are numbers 4n + 1 and 4n + 2
    last = torch.tensor(south)  # (N,) from the second step on

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal last
        observation = observation.flatten()
        beside = observation - (3 * n + 1)  # steps east of the start's southern neighbour
        action = torch.full_like(observation, north)  # at the priest that is a wall
        action[(beside >= 0) & (beside < n)] = east
        action[(beside > 0) & (beside < n) & (last == west)] = west
        action[(beside == 0) & (last == west)] = north
        action[(observation == priest) | ((observation >= n) & (observation <= 2 * n))] = west
        action[observation == priest + 2] = south  # the first step
        last = action
        return action

    return act


def player_by(rule: Rule) -> Player:
    """Act by a rule in every row."""
    last: list[int] | list[None] = []
    time = -1

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal last, time
        last, time = last or [None] * len(observation), time + 1
        sights = observation[:, [1, 3, 5]].tolist()
        last = [rule(tuple(sight), before, time) for sight, before in zip(sights, last, strict=True)]
        return torch.tensor(last, device=observation.device)

    return act


def colour_of(kind: int, number: int) -> int | None:
    """Return the number of an object's colour from 0, or None if the cell has another kind of object."""
    colour = number - kind - RED
    return colour if 0 <= colour < 4 else None


def by_time(side: int) -> Rule:
    """Go to the eastern beacon, wait as many steps as its colour says, then go to the western exit, facing north.

    If that has another colour than the time says, turn east and go to the other one.
    """
    down, across = side // 2 - 1, side // 2 - 2
    arrival = down + 3 * across + side - 3  # at the western exit without waiting

    def act(sight: Sight, last: int | None, time: int) -> int:
        ahead, left, right = sight
        beacon, here = colour_of(BEACON, right), colour_of(EXIT, left)
        if time < down + across:
            return BACKWARD if time < down else RIGHT
        if beacon is not None:
            return FORWARD if time < down + across + beacon else LEFT  # a wall is ahead
        if here is not None:
            return LEFT if here == time - arrival else TURN_RIGHT
        return FORWARD if ahead == FLOOR or colour_of(EXIT, ahead) is not None else LEFT

    return act


def by_heading(sight: Sight, last: int | None, time: int) -> int:
    """Face north with the first two colours and look at the western exit, else face east and look at the other one.

    An exit of one of the other two colours is left for the opposite one.
    """
    ahead, left, right = sight
    if (beacon := colour_of(BEACON, right)) is not None:
        return LEFT if beacon < 2 else TURN_RIGHT
    if (seen := colour_of(EXIT, left)) is not None:
        return LEFT if seen < 2 else RIGHT
    if (seen := colour_of(EXIT, ahead)) is not None:
        return FORWARD if seen >= 2 else BACKWARD
    crossing = ahead == FLOOR, left == FLOOR, right == FLOOR
    turns = {
        ((True, True, True), BACKWARD): RIGHT,  # in the lower corridor, facing north
        ((True, True, True), LEFT): FORWARD,
        ((True, True, False), BACKWARD): LEFT,  # there, facing east
        ((False, True, True), FORWARD): LEFT,  # in the upper corridor, facing north
        ((True, False, True), LEFT): FORWARD,  # there, facing east
    }
    if last is None or last == TURN_RIGHT:
        return BACKWARD
    return turns.get((crossing, last), last)


# ---- Memory Cards ----------------------------------------------------------------------------------------------------
def memory_cards_lines(world: MemoryCards, budget: Budget) -> dict[str, Level]:
    """Play who guesses, who takes the cards in turn by the clock, and who remembers one card and one guess."""
    played = Played(world, budget)
    guess, remember = (guesser(world, budget.seed + 2, remembers) for remembers in (False, True))
    return {
        "observation": played("guessing", guess),
        "clock": played("cards in turn", in_turn(world)),
        "one step": played("the card before", remember),
    }


def face_up(world: MemoryCards, observation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place and the value (N,) of the card that lies face up."""
    place = ((observation > HIDDEN) & (observation <= world.pairs)).long().argmax(1)
    return place, observation.gather(1, place[:, None])[:, 0]


def in_turn(world: MemoryCards) -> Player:
    """Choose the next card behind the one face up, at the next step the one behind that, and so on."""
    places = torch.arange(2 * world.pairs, device=world.device)
    time = -1

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal time
        time += 1
        hidden, (place, _) = observation == HIDDEN, face_up(world, observation)
        order = ((places - place[:, None]) % len(places)).masked_fill(~hidden, len(places)).argsort(1)
        return order.gather(1, time % hidden.sum(1, keepdim=True).clamp(min=1))[:, 0]

    return act


def guesser(world: MemoryCards, seed: int, remembers: bool) -> Player:
    """Choose any card that lies face down, but none that is wrong by the card and the guess before."""
    places, generator = torch.arange(2 * world.pairs, device=world.device), torch.Generator(world.device)
    generator.manual_seed(seed)
    before: tuple[Tensor, Tensor, Tensor] | None = None  # (N,) each: place, value and guess

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal before
        hidden, (place, value) = observation == HIDDEN, face_up(world, observation)
        weight = hidden * (1 + torch.rand(hidden.shape, generator=generator, device=world.device))
        if before is not None and remembers:
            old, known, guess = before
            equal, again = (known == value) & (old != place), old == place
            weight[places == torch.where(again, guess, old)[:, None]] *= 0.5  # below any other
            weight += 2 * (equal[:, None] & hidden & (places == old[:, None]))
        action = weight.argmax(1)
        before = place, value, action
        return action

    return act
