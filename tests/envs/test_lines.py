"""What a score must beat: lines of POPGym's tasks, and plain players that reach them in popgym itself."""

import numpy as np
import popgym.envs
import pytest
from popgym.wrappers import PreviousAction
from run_folders import error_of

from envs import baselines
from envs.baselines.best import Budget, exact_return, lined
from envs.baselines.bounds import bounds_of
from envs.baselines.reference import LESS, shipped_references
from envs.gymnasium import WorldEnv
from envs.popgym.levels import LEVELS
from envs.registry import make_world

LINED = {id: reference for id, reference in shipped_references().items() if reference.lines}


@pytest.mark.parametrize("id", LEVELS)
def test_who_remembers_more_gets_more(id):
    reference = LINED[id]
    assert tuple(reference.lines) == tuple(LESS)
    returns = {name: level.returns for name, level in reference.lines.items()}
    returns |= {"random": reference.random.returns, "perfect": reference.lower.returns, "most": reference.upper.returns}
    for less, more in (
        ("random", "observation"), ("observation", "clock"), ("observation", "one step"), ("clock", "perfect"),
        ("one step", "perfect"), ("perfect", "most"),
    ):  # fmt: skip
        one, other = returns[less], returns[more]
        assert one.mean <= other.mean + 3 * np.hypot(one.error, other.error) + 1e-9, (less, more)


def test_every_task_has_lines():
    assert set(LEVELS) <= set(LINED)


# ---- plain players see the observation, the last action and the number of the step, and may keep notes ---------------
def first_suit(seen, last, step, notes):
    return seen if step == 0 else last


def first_if_shown(seen, last, step, notes):
    return seen if step == 0 else (seen + 1) % 4


def other_suit(seen, last, step, notes):
    return (seen + 1) % 4


def suit_shown(seen, last, step, notes):
    return seen[1] if seen[0] == 0 else 0


def likely_count(seen, last, step, notes):
    """Add the newest card to the mode of a hypergeometric distribution: `step` of the 51 other cards were shown."""
    fits = int(seen[0] == seen[1])
    return fits + (step + 1) * (27 - fits) // 53


def middle_rank(seen, last, step, notes):
    return int(seen > 6)


def cards_left(seen, last, step, notes):
    left = notes.setdefault("left", np.full(13, 4))
    left[seen] -= 1
    return int(left[seen + 1 :].sum() < left[:seen].sum())


def one_loss(seen, last, step, notes):
    paid, arm = seen
    return arm if paid else (arm + 1) % 10


def two_losses(seen, last, step, notes):
    paid, arm = seen
    before, notes["before"] = notes.get("before"), (paid, arm)
    if step == 0:
        return 0
    return arm if paid or (step > 1 and before == (1, arm)) else (arm + 1) % 10


def three_first_cards(seen, last, step, notes):
    *cards, last = seen
    down = [place for place, card in enumerate(cards) if card == 2]
    below = [place for place in down if place < last]
    waits = (len(cards) - len(down)) % 2 == 1
    return next(place for place in down if place > last) if waits and len(below) < 2 else down[0]


def all_ranks(seen, last, step, notes):
    cards, known, gone = seen[:-1], notes.setdefault("known", {}), notes.setdefault("gone", set())
    known |= {place: card for place, card in enumerate(cards) if card != 13}
    pair, first = notes.get("pair", ()), step % 2 == 0
    if first and pair and known[pair[0]] == known[pair[1]]:
        gone |= set(pair)
    there = {place: card for place, card in known.items() if place not in gone}
    new = next((place for place in range(len(cards)) if place not in known), None)
    if first:
        doubled = [place for place, card in there.items() if list(there.values()).count(card) > 1]
        notes["pair"] = (doubled[0] if doubled else new,)
    else:
        equal = [place for place, card in there.items() if card == known[pair[0]] and place != pair[0]]
        others = [place for place in there if place != pair[0]]
        notes["pair"] = (pair[0], equal[0] if equal else others[0] if new is None else new)
    return notes["pair"][-1]


def sweep(seen, last, step, notes):
    _, row, column = seen
    return divmod((8 * row + column - 1) % 64, 8)


def by_number(seen, last, step, notes):
    shown, row, column = seen
    return divmod((4 * row + column - (1, 3, 2)[shown]) % 16, 4)


def leaning(seen, last, step, notes):
    return int(seen[1] > 0.42 * seen[0])


def moving(seen, last, step, notes):
    return int(seen[1] + 0.1 * seen[0] > 0)


def falling(seen, last, step, notes):
    """The angle's change is the spin, and the position's is the speed."""
    change = seen - notes.get("before", seen)
    notes["before"] = seen
    return int(0.004 * seen[0] + 0.05 * seen[1] + 0.1 * change[0] + change[1] > 0)


PLAYERS = [  # task, line, player, episodes
    ("RepeatFirst-Easy", "one step", first_suit, 20),
    ("RepeatFirst-Easy", "clock", first_if_shown, 200),
    ("RepeatPrevious-Easy", "observation", other_suit, 300),
    ("Autoencode-Easy", "observation", suit_shown, 200),
    ("CountRecall-Easy", "clock", likely_count, 200),
    ("HigherLower-Easy", "observation", middle_rank, 300),
    ("HigherLower-Easy", "perfect", cards_left, 200),
    ("MultiarmedBandit-Easy", "observation", one_loss, 100),
    ("MultiarmedBandit-Easy", "one step", two_losses, 100),
    ("Concentration-Easy", "observation", three_first_cards, 20),
    ("Concentration-Hard", "perfect", all_ranks, 20),
    ("Battleship-Easy", "observation", sweep, 200),
    ("MineSweeper-Easy", "observation", by_number, 300),
    ("PositionOnlyCartPole-Easy", "observation", leaning, 100),
    ("PositionOnlyCartPole-Medium", "one step", falling, 5),
    ("VelocityOnlyCartPole-Easy", "observation", moving, 10),
]


def play(task, player, episodes):
    """Play whole episodes of popgym's environment."""
    env = getattr(popgym.envs, task.replace("-", ""))()
    return play_env(PreviousAction(env) if env.obs_requires_prev_action else env, player, episodes)


def play_env(env, player, episodes):
    """Play whole episodes of an environment."""
    returns = []
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        total, step, last, notes, ended = 0.0, 0, None, {}, False
        while not ended:
            last = player(flat(seen) if isinstance(seen, tuple) else seen, last, step, notes)
            seen, reward, terminated, truncated, _ = env.step(np.array(last) if isinstance(last, tuple) else last)
            total, step, ended = total + reward, step + 1, terminated or truncated
        returns.append(total)
    return np.array(returns)


def flat(seen):
    """Join the parts of an observation."""
    return tuple(int(number) for part in seen for number in np.ravel(part))


@pytest.mark.parametrize(("task", "line", "player", "episodes"), PLAYERS)
def test_a_plain_player_on_popgyms_own_environment_reaches_the_line(task, line, player, episodes):
    reference = LINED[f"POPGym/{task}-v0"]
    level = reference.lower if line == "perfect" else reference.lines[line]
    returns = play(task, player, episodes)
    error = np.hypot(returns.std(ddof=1) / np.sqrt(episodes), level.returns.error)
    assert abs(returns.mean() - level.returns.mean) < 4 * error + 1e-9


def test_scores_stand_beside_their_lines():
    words = (
        "random -0.50, newest observation alone -0.50, observation and clock -0.46, "
        "one remembered step 1.00, perfect memory 1.00"
    )
    assert baselines.reference_summary(0.0, 0.3, "POPGym/RepeatFirst-Easy-v0") == f" ({words})"
    assert baselines.reference_summary(0.0, -0.5, "POPGym/RepeatFirst-Easy-v0") == f" ({words}: not above random)"


# ---- other dials -----------------------------------------------------------------------------------------------------
BUDGET = Budget(episodes=400)
ENDS = [
    ("POPGym/RepeatFirst-Easy-v0", 51), ("POPGym/RepeatPrevious-Easy-v0", 51), ("POPGym/Autoencode-Easy-v0", 103),
    ("POPGym/CountRecall-Easy-v0", 51), ("POPGym/HigherLower-Easy-v0", 51), ("Ladder/bind-8-v0", 16),
    ("Ladder/hold-16-v0", 16), ("Ladder/reverse-4-v0", 7),
]  # fmt: skip


def lines_of(id, **dials):
    """The returns of all lines of a world."""
    best = bounds_of(make_world(id, **dials), BUDGET)
    return {name: level.returns for name, level in {**best.lines, "perfect": best.lower, "most": best.upper}.items()}


@pytest.mark.parametrize(("id", "last"), ENDS)
def test_sums_over_whole_episodes_are_refused_for_cut_ones(id, last):
    assert lines_of(id, time_limit=last) == lines_of(id, time_limit=2 * last)
    assert f"time_limit must be at least {last}, not {last - 1}" in error_of(lines_of, id, time_limit=last - 1)


def suit_kept(seen, last, step, notes):
    """Any other suit than the last card's, from its second answer on."""
    if seen[0] == 0 and notes.get("before") == 0:
        notes.setdefault("answer", (last + 1) % 4)
    notes["before"] = seen[0]
    return notes.get("answer", seen[1])


def suit_before(seen, last, step, notes):
    before, notes["before"] = notes.get("before", 0), seen
    return before


def suit_now(seen, last, step, notes):
    return seen


@pytest.mark.parametrize(("id", "line", "player"), [
    ("Ladder/hold-8-v0", "observation", suit_now), ("Ladder/hold-8-v0", "clock", first_if_shown),
    ("Ladder/hold-45-v0", "one step", first_suit), ("Ladder/reverse-4-v0", "clock", suit_shown),
    ("Ladder/reverse-6-v0", "one step", suit_kept), ("Ladder/shift-2-v0", "observation", other_suit),
    ("Ladder/shift-2-v0", "one step", suit_before), ("Ladder/shift-2-v0 (k=1)", "observation", suit_now),
])  # fmt: skip
def test_a_plain_player_reaches_the_line_of_a_rung(id, line, player):
    id, dials = id.split()[0], {"k": 1} if "k=1" in id else {}
    returns = play_env(WorldEnv(id, **dials), player, 400)
    error = returns.std(ddof=1) / 400**0.5
    assert abs(returns.mean() - lines_of(id, **dials)[line].mean) < 4 * error + 1e-9


def test_who_counts_cards_of_one_kind_needs_no_memory_but_a_clock():
    assert {name: level.mean for name, level in lines_of("POPGym/CountRecall-Easy-v0", categories=1).items()} == (
        pytest.approx({"observation": 2 / 51 - 1, "clock": 1, "one step": 1, "perfect": 1, "most": 1})
    )


@pytest.mark.parametrize("family", ["LabyrinthEscape", "LabyrinthExplore"])
def test_no_lines_are_known_for_a_view_that_moves(family):
    assert "leave out as_released" in error_of(lines_of, f"POPGym/{family}-Easy-v0", as_released=True)


def test_less_noise_is_no_harder():
    lines = [lines_of(f"Ladder/filter-{noise}-v0")["one step"].mean for noise in (0.05, 0.07, 0.1)]
    assert lines_of("Ladder/filter-0.05-v0", noise=0.001)["one step"].mean > 0.95 and lines == sorted(lines)[::-1]


def test_who_knows_more_plays_as_well_as_who_knows_less():
    best = lined(*(exact_return(value) for value in (0.5, 0.4, 0.3, 0.2, 1.0)))
    assert {level.returns.mean for level in (*best.lines.values(), best.lower)} == {0.5}
