"""The best players known: what they reach is what was promised, and no more than can be."""

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cards_player import memory_player
from test_baselines import apart

from envs.baselines import cards, maps, players, playing, search, tabular
from envs.errors import UserError
from envs.gridverse.tasks import Keydoor
from envs.registry import make_world
from envs.worlds.memory_cards import MemoryCards

# Car Flag and Memory Cards


def test_the_signpost_player_wins_from_every_start():
    world = make_world("POMDP/CarFlag-v0")
    outcomes = players.every_start(world)
    assert outcomes.success.all() and (outcomes.returns == 1.0).all() and outcomes.lengths.max() < world.time_limit


def cards_by_force(pairs, horizon, success):
    """The optimum over all policies, among sets of decks and with every guess allowed, however useless."""
    decks = set(itertools.permutations(sorted([*range(pairs)] * 2)))

    @functools.cache
    def value(possible, left, steps):
        if not left:
            return 1.0 if success else 0.0
        if steps == 0:
            return 0.0
        total = 0.0
        for current in left:
            for number in range(pairs):
                fitting = frozenset(deck for deck in possible if deck[current] == number)
                if fitting:
                    total += len(fitting) / len(possible) * best(fitting, left, current, steps) / len(left)
        return total

    def best(possible, left, current, steps):
        return max(guessed(possible, left, current, guess, steps) for guess in range(2 * pairs))

    def guessed(possible, left, current, guess, steps):
        right = frozenset(d for d in possible if guess != current and guess in left and d[guess] == d[current])
        wrong = possible - right
        kept = tuple(card for card in left if card not in (current, guess))
        worth = len(right) * value(right, kept, steps - 1) if right else 0.0
        worth += len(wrong) * (value(wrong, left, steps - 1) - (not success)) if wrong else 0.0
        return worth / len(possible)

    return value(frozenset(decks), tuple(range(2 * pairs)), horizon)


@pytest.mark.parametrize(("pairs", "horizon"), [(2, 3), (2, 6), (3, 3)])
def test_the_memory_perfect_optimum_is_that_of_brute_force(pairs, horizon):
    success, returns = cards.solve(pairs, horizon).best(pairs)
    assert success == pytest.approx(cards_by_force(pairs, horizon, success=True), abs=1e-12)
    assert returns == pytest.approx(cards_by_force(pairs, horizon, success=False), abs=1e-12)


def test_the_memory_perfect_player_reaches_the_optimum():
    solution = cards.solve(4, 50)
    outcomes = playing.play(MemoryCards(pairs=4), memory_player(solution, 4), 1_000, 0)
    measure = playing.measure(outcomes.returns)
    assert outcomes.success.all()
    assert abs(measure.mean - solution.best(4)[1]) < 4 * measure.error


# Memory corridors


def by_force(world, horizon):
    """The greatest expected return from all initial states, by trying every action after everything seen."""
    draws = world.initial_draws()

    def value(state, steps):
        if steps == 0 or len(state.steps) == 0:
            return 0.0
        return max(after(state, action, steps) for action in range(world.num_actions))

    def after(state, action, steps):
        actions = torch.full((len(state.steps),), action)
        state, seen, reward, ended, _ = world.step(state, actions, torch.empty(len(actions), 0))
        total = float(reward.sum())
        for look in torch.unique(seen[~ended], dim=0):
            total += value(search._pick(state, np.flatnonzero((~ended & (seen == look).all(1)).numpy())), steps - 1)
        return total

    start = world.reset(draws)
    looks = torch.unique(start.observation, dim=0)
    parts = [np.flatnonzero((start.observation == look).all(1).numpy()) for look in looks]
    return sum(value(search._pick(start, part), horizon) for part in parts) / len(draws)


def test_the_search_among_beliefs_is_that_of_brute_force():
    world = make_world("Gridverse/Memory-5x5-v0")
    graph = search.explore(world)
    assert search.solve(graph, 3).value == pytest.approx(by_force(world, 3), abs=1e-12)
    assert search.solve(graph, 2).value == pytest.approx(by_force(world, 2), abs=1e-12)


@pytest.mark.parametrize(("size", "steps"), [(5, 3), (7, 11)])
def test_the_plan_keeps_its_promise(size, steps):
    world = make_world(f"Gridverse/Memory-{size}x{size}-v0")
    found = search.solve(search.explore(world), world.time_limit)
    outcomes = search.every_start(world, found)
    assert outcomes.success.all()
    assert float(outcomes.returns.mean()) == pytest.approx(found.value, abs=1e-9)
    assert found.value == pytest.approx(5 - 0.05 * steps, abs=1e-9)


def test_only_a_world_with_few_starts_can_be_searched():
    with pytest.raises(UserError, match="CarFlag is not deterministic with a list of initial states"):
        search.explore(make_world("POMDP/CarFlag-v0"))


# Tabular worlds


def tiger():
    """Kaelbling, Littman and Cassandra (1998): listen, open left, open right."""
    stay, anew = np.eye(2), np.full((2, 2), 0.5)
    R = np.zeros((3, 2, 2, 2))
    R[0], R[1, 0], R[1, 1], R[2, 0], R[2, 1] = -1, -100, 10, 10, -100
    looks = np.stack([[[0.85, 0.15], [0.15, 0.85]], anew, anew])
    moves, reset = np.stack([stay, anew, anew]), np.zeros((3, 2), bool)
    return SimpleNamespace(T=moves, O=looks, R=R, start=np.full(2, 0.5), reset=reset, discount=0.95)


def test_the_value_of_tiger():
    found = tabular.solve(tabular.Model.of(tiger()), gap=0.01)
    assert found.lower <= 19.3714 + 1e-4 and found.upper >= 19.3713 - 1e-4
    assert 0 <= found.gap <= 0.01


def test_heaven_hell_takes_fifteen_steps():
    world = make_world("POMDP/HeavenHell-v0")
    described = tabular.Model.of(world.tables)
    found = tabular.solve(described, gap=1e-6)
    assert found.lower == pytest.approx(0.99**14) and found.upper == pytest.approx(0.99**14)
    player = tabular.belief_player(described, found)
    outcomes = playing.play(world, player, 50, 0)
    assert outcomes.success.all() and (outcomes.lengths == 15).all() and (outcomes.returns == 1.0).all()
    assert search.every_start(world, search.solve(search.explore(world), 250)).success.all()


def test_the_bounds_of_hallway_enclose_what_its_policy_gets():
    world = make_world("POMDP/Hallway-v0")
    described = tabular.Model.of(world.tables)
    found = tabular.solve(described, gap=0.01, size=700)
    outcomes = playing.play(world, tabular.belief_player(described, found), 1_000, 0)
    # The goal is reached one step before the end, and pays in that step.
    paid = playing.measure(torch.where(outcomes.success, 0.95 ** (outcomes.lengths - 2).double(), 0.0))
    assert found.lower - 4 * paid.error < paid.mean < found.upper + 4 * paid.error
    assert found.gap < 0.1 and outcomes.success.double().mean() > 0.97
    assert tabular.full_state(described, 250) >= float(outcomes.returns.mean())


def test_the_upper_bound_is_above_the_lower_everywhere():
    described = tabular.Model.of(make_world("POMDP/Hallway-v0").tables)
    lower, upper = tabular.Lower(described), tabular.Upper(described)
    for _ in range(2):
        tabular._trial(described, lower, upper, 0.01)
    beliefs = np.concatenate([np.random.default_rng(0).dirichlet(np.full(60, 0.05), 200), upper.points])
    planes = (beliefs @ upper.planes.T).max(1)
    assert (upper(beliefs) >= lower(beliefs)).all()
    assert (upper(beliefs) <= planes + 1e-12).all()
    assert (upper(upper.points) < planes[200:] - 1e-9).all()  # the sawtooth is felt
    assert upper(3.0 * beliefs) == pytest.approx(3.0 * upper(beliefs))


def test_a_model_without_a_discount_is_refused():
    endless = tiger()
    endless.discount = 1.0
    with pytest.raises(UserError, match=r"discount above 0 and below 1, not 1\.0"):
        tabular.Model.of(endless)


# Rooms


def seekers(id, episodes, gambler=True, seed=0):
    world = make_world(id)
    drawn = maps.room_maps(world.task.layout, world.phantoms)
    outcomes = playing.play(world, playing.crowd(lambda: players.Seeker(drawn, gambler)), episodes, seed)
    return world, outcomes


@pytest.mark.parametrize(
    ("id", "least"),
    [
        ("Gridverse/Memory-FourRooms-7x7-v0", 0.90),
        ("Gridverse/Memory-NineRooms-13x13-v0", 0.95),
        ("Gridverse/Memory-Empty-13x13-v0", 0.95),
        ("Gridverse/Memory-13x13-Hallucinated-v0", 0.95),
    ],
)
def test_the_scripted_seeker_finds_the_good_exit(id, least):
    world, outcomes = seekers(id, 60)
    above = players.way_out(world, 1_000, 0)
    assert least <= outcomes.success.double().mean() <= 1.0
    assert outcomes.returns.mean() < above.returns.mean()
    assert outcomes.lengths.double().mean() > above.lengths.double().mean()


def test_a_gambler_wins_more_often_and_a_patient_seeker_gets_more():
    id = "Gridverse/Memory-SixteenRooms-17x17-v0"
    (_, bold), (_, patient) = (seekers(id, 80, gambler) for gambler in (True, False))
    assert bold.success.sum() > patient.success.sum()
    assert bold.returns.mean() < patient.returns.mean()


def test_where_the_seeker_may_stand_always_holds_the_truth():
    world = make_world("Gridverse/Memory-SixteenRooms-15x15-v0")
    drawn = maps.room_maps(world.task.layout, world.phantoms)
    state = world.reset(
        torch.rand(20, world.reset_draws, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    )
    first = [
        (int(p) // 15, int(p) % 15, (0, 2, 3, 1)[int(h)]) for p, h in zip(state.position, state.heading, strict=True)
    ]
    seekers = [players.Seeker(drawn, False) for _ in range(20)]
    for _ in range(25):
        actions = [player(row) for player, row in zip(seekers, state.observation.tolist(), strict=True)]
        state = world.step(state, torch.tensor(actions), torch.empty(20, 0))[0]
    for player, truth in zip(seekers, first, strict=True):
        y, x = (each - 15 for each in divmod(player.whereabouts.origin, 45))
        assert truth in set(zip(y.tolist(), x.tolist(), player.whereabouts.turn.tolist(), strict=True))
        assert len(y) < 4 * int(drawn.start.sum())


def test_the_full_state_player_takes_the_shortest_way():
    outcomes = players.way_out(make_world("Gridverse/Memory-FourRooms-13x13-v0"), 3_000, 0)
    lengths = playing.measure(outcomes.lengths[outcomes.success])
    assert abs(lengths.mean - 9.0) < 0.05 + 4 * lengths.error  # the originals' mean, to one decimal
    small = players.way_out(make_world("Gridverse/Memory-FourRooms-7x7-v0"), 4_000, 0)
    assert apart(float((~small.success).double().mean()), 4_000, 0.0146, 10_000) < 4  # resets nobody can win


def test_walking_goes_around_walls():
    free = torch.tensor([[0, 0, 0, 0, 0], [0, 1, 0, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)[None]

    def at(y, x):
        cell = torch.zeros_like(free)
        cell[0, y, x] = True
        return cell

    assert players.walk(free, at(1, 1), at(1, 3)).tolist() == [4]
    assert players.walk(free, at(1, 1), at(1, 1)).tolist() == [0]
    assert players.walk(free & ~at(2, 2), at(1, 1), at(1, 3)).tolist() == [-1]


# Keydoor


class EveryKeydoor(Keydoor):
    """Keydoor 5x5 with the list of its 108 initial states, each equally likely."""

    def initial_draws(self):
        choices = [(0.5,), *([[(i + 0.5) / n for i in range(n)] for n in (3, 3, 1, 3, 1, 4)])]
        return torch.tensor(list(itertools.product(*choices)), dtype=torch.float64)


def test_the_full_state_keydoor_player_is_the_best_of_all():
    graph = search.explore(EveryKeydoor(5))
    values = np.zeros(len(graph.follower))
    for _ in range(40):  # no good way is longer
        after = np.where(graph.follower >= 0, values[graph.follower], 0.0)
        values = (graph.reward + after).max(1)
    success, returns = players.keydoor(5)
    assert len(graph.initial) == 108 and success == pytest.approx(1.0)
    assert returns == pytest.approx(float(values[graph.initial].mean()), abs=1e-9)


@pytest.mark.parametrize("size", [5, 9])
def test_the_scripted_opener_always_gets_out(size):
    world = make_world(f"Gridverse/Keydoor-{size}x{size}-v0")
    drawn = maps.keydoor_maps(world.task.layout)
    outcomes = playing.play(world, playing.crowd(lambda: players.Opener(drawn)), 100, 0)
    above = players.keydoor(size)[1]
    measure = playing.measure(outcomes.returns)
    assert outcomes.success.all()
    assert 0.9 * above < measure.mean < above + 4 * measure.error
