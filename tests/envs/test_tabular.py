"""Worlds made from tables: exact draws, the episodes of gym-pomdps, Hallway and HeavenHell."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import error_of
from world_keywords import DATA, random_model, uniforms

from envs.registry import make_world
from envs.worlds.tabular import UNITS, Draw, Tables, Tabular, TabularState, number_names, piece

CASES = [("POMDP/Hallway-v0", "hallway"), ("POMDP/HeavenHell-v0", "heavenhell_3")]
LAST = 1.0 - 2.0**-53  # the largest uniform


@functools.cache
def example(id):
    return make_world(id)


def lengths(chosen, shape):
    """Units of [0, 1) that lead to each outcome of each row, of this shape."""
    found = np.zeros(shape, np.int64)
    if not chosen.draws:
        found[np.arange(len(found)), chosen.choices] = UNITS
        return found
    for row, (first, count) in enumerate(zip(chosen.first, chosen.slots.astype(int), strict=True)):
        cuts = (chosen.cuts[first : first + count] * UNITS).astype(np.int64)
        edges = np.append(np.column_stack([np.arange(count) * (UNITS // count), cuts]), UNITS)
        assert (np.diff(edges) >= 0).all()
        np.add.at(found[row], chosen.choices[2 * first : 2 * (first + count)], np.diff(edges))
    return found


def choose(chosen, rows, u):
    """Outcomes for uniforms u (len(rows),)."""
    u = torch.as_tensor(u, dtype=torch.float64)[:, None]
    cuts = tuple(torch.from_numpy(table) for table in (chosen.slots, chosen.first, chosen.cuts))
    return chosen.choices[piece(cuts, torch.as_tensor(rows), u, 0).numpy()]


weights = st.lists(st.sampled_from([0.0, 1e-300]) | st.floats(1e-12, 1.0), min_size=1, max_size=21).filter(any)


@given(st.lists(weights, min_size=1, max_size=4))
def test_every_outcome_has_its_share_and_an_impossible_one_none(lists):
    table = np.zeros((len(lists), max(map(len, lists))))
    for row, values in enumerate(lists):
        table[row, : len(values)] = np.array(values) / sum(values)
    found = lengths(Draw(table), table.shape)
    assert [sum(row) for row in found.tolist()] == [UNITS] * len(table)
    assert ((found > 0) == (table > 0)).all()
    assert np.abs(found.astype(float) / UNITS - table).max() < 1e-14


@given(weights, st.lists(st.floats(0.0, LAST), max_size=20))
def test_no_uniform_chooses_an_impossible_outcome(values, others):
    table = np.array([values]) / sum(values)
    chosen = Draw(table)
    edges = np.concatenate([chosen.cuts, np.arange(chosen.slots[0]) / chosen.slots[0], [0.0, LAST], others])
    u = np.concatenate([edges, np.nextafter(edges, 0.0), np.nextafter(edges, 1.0)]).clip(0.0, LAST)
    assert (table[0, choose(chosen, np.zeros(len(u), int), u)] > 0).all()


def test_a_uniform_can_be_found_for_every_possible_outcome():
    table = random_model(5, (9, 3, 3)).T.reshape(27, 9)
    chosen = Draw(table)
    rows, outcomes = table.nonzero()
    u = [chosen.uniform(row, outcome) for row, outcome in zip(rows.tolist(), outcomes.tolist(), strict=True)]
    assert np.array_equal(choose(chosen, rows, u), outcomes)
    impossible = np.argwhere(table == 0)[0]
    with pytest.raises(ValueError, match="never chooses"):
        chosen.uniform(*impossible.tolist())


@pytest.mark.parametrize(("id", "name"), CASES)
def test_tables_are_the_originals_without_a_difference(id, name):
    tables, theirs = example(id).tables, traces.load(name)
    for key in ("T", "O", "R", "start", "reset"):
        assert np.array_equal(getattr(tables, key), theirs[key]), key
    for kind, key in (("state", "state_names"), ("action", "action_names"), ("observation", "obs_names")):
        assert getattr(tables, f"{kind}_names") == tuple(theirs[key].tolist())
    assert f'"discount": {tables.discount},' in str(theirs["meta_json"])


def follow(world, state, actions):
    """Take a list of actions in every row; gives what the last of them does."""
    for action in actions:
        state, _, *rest = world.step(state, torch.full_like(state.steps, action), uniforms(2, world.step_draws))
    return state, *rest


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_heaven_can_be_reached_after_asking_in_any_size(n):
    world = make_world("POMDP/HeavenHell-v0", n=n)
    state = world.reset(world.initial_draws())
    assert sorted(state.hidden.tolist()) == [0, 4 * n + 2]
    north, south, east, west = range(4)
    told = follow(world, state, [south, *[east] * n])[0]
    assert sorted(told.observation[:, 0].tolist()) == [4 * n + 1, 4 * n + 2]
    assert world.observation_space.n == 4 * n + 4
    for side, observation in ((west, 4 * n + 1), (east, 4 * n + 2)):
        actions = [*[west] * n, *[north] * (n + 1), *[side] * n, north]
        after, reward, terminated, success = follow(world, told, actions)
        right = told.observation[:, 0] == observation
        assert terminated.all() and after.steps.tolist() == [4 * n + 3] * 2
        assert torch.equal(reward, torch.where(right, 1.0, -1.0).double())
        assert torch.equal(success, right)


def corridor(**changes):
    """Three states that lead to one another; only the start is a matter of chance, and the third action ends it."""
    T = np.stack([np.eye(3), np.eye(3)[[1, 2, 0]], np.full((3, 3), 1 / 3)])
    arrays = {"T": T, "O": np.stack([np.eye(3)] * 3), "R": np.ones((3, 3, 3, 3)), "start": np.full(3, 1 / 3)}
    reset = np.arange(3)[:, None].repeat(3, 1) == 2
    return Tables(**(arrays | changes), reset=reset, **dict.fromkeys(NAMES, number_names(3)), discount=0.9)


NAMES = ("state_names", "action_names", "observation_names")


def test_worlds_of_pure_chance_at_the_start_list_their_initial_states_and_others_none():
    world = Tabular(corridor())
    assert sorted(world.reset(world.initial_draws()).hidden.tolist()) == [0, 1, 2]
    tables = corridor()
    moves, looks, pay = tables.T.copy(), tables.O.copy(), tables.R.copy()
    moves[0, 0], looks[1, 1], pay[2, 0, 1] = [0.5, 0.5, 0.0], [0.0, 0.5, 0.5], 2.0  # the last step's pay is drawn
    uneven = np.array([0.5, 0.25, 0.25])
    ends = np.where(tables.reset[:, :, None], uneven, tables.T)
    certain = Tabular(replace(tables, T=tables.T[[0, 1, 1]], reset=np.zeros((3, 3), bool)))
    assert certain.step_draws == 0
    state = certain.reset(certain.initial_draws())
    after = certain.step(state, torch.ones(3, dtype=torch.int64), uniforms(3, 0))[0]
    assert torch.equal(after.hidden, (state.hidden + 1) % 3) and torch.equal(after.observation[:, 0], after.hidden)
    for changes in ({"T": moves}, {"O": looks}, {"R": pay}, {"T": ends, "start": uneven}):
        assert Tabular(corridor(**changes)).initial_draws() is None
    assert example("POMDP/Hallway-v0").initial_draws() is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 0.1, 1.0]))
def test_steps_pay_and_end_as_the_tables_say(seed, by_observation, resets):
    tables = random_model(seed, resets=resets, whole=(True, by_observation))
    world, n = Tabular(tables, time_limit=5), 64
    state, generator = world.reset(uniforms(n, world.reset_draws, seed=seed)), torch.Generator().manual_seed(seed)
    assert (tables.start[state.hidden] > 0).all()
    total = torch.zeros(n, dtype=torch.float64)
    for _ in range(6):
        action = torch.randint(world.num_actions, (n,), generator=generator)
        u = torch.rand(n, world.step_draws, dtype=torch.float64, generator=generator)
        after, observation, reward, terminated, success = world.step(state, action, u)
        total += reward
        check_step(tables, state, action, after, observation[:, 0], reward, terminated)
        assert torch.equal(success, terminated & (total > 0))
        assert torch.equal(after.returns, total)
        assert torch.equal(world.truncated(after, terminated), (after.steps >= 5) & ~terminated)
        state = after


def check_step(tables, state, action, after, z, reward, terminated):
    cleared = state.hidden == tables.num_states
    assert (after.hidden[cleared] == tables.num_states).all() and (z[cleared] == tables.num_observations).all()
    assert terminated[cleared].all() and not reward[cleared].any()
    a, s, to, z, reward, over = (
        x[~cleared].numpy() for x in (action, state.hidden, after.hidden, z, reward, terminated)
    )
    assert np.array_equal(over, tables.reset[a, s])
    assert np.array_equal(to == tables.num_states, over)
    to = np.where(over, 0, to)
    assert (over | ((tables.T[a, s, to] > 0) & (tables.O[a, to, z] > 0))).all()
    assert np.array_equal(reward[~over], tables.R[a, s, to, z][~over])
    anywhere = (tables.R[a, s, :, z] == reward[:, None]) & (tables.start > 0) & (tables.O[a, :, z] > 0)
    assert anywhere.any(1)[over].all()


@pytest.mark.parametrize(("change", "said"), [
    ({"O": np.tile([1.5, -0.5, 0.0], (3, 4, 1))}, "O of action '0' and state '0' sums to 1, but probabilities"),
    ({"start": np.ones(3)}, "start must have shape (4,), not (3,)"),
    ({"R": np.full((3, 4, 4, 3), np.nan)}, "R must hold finite numbers"),
    ({"discount": 1.5}, "discount must be from 0 to 1, not 1.5"),
    ({"state_names": ("a", "b", "a", "c")}, "The state names must differ"),
    ({"reset": np.ones((3, 4), bool)}, "If reset is True, the row of T must be start"),
])  # fmt: skip
def test_wrong_tables_are_refused_in_a_sentence(change, said):
    assert said in error_of(Tables, **(vars(random_model(1)) | change))


def at(world, hidden):
    hidden = torch.tensor([hidden])
    return TabularState(hidden[:, None] * 0, *world.counters(1), hidden)


def test_models_are_drawn_as_maps_or_as_names():
    world = example("POMDP/Hallway-v0")
    assert world.text(at(world, 60), 0) == "#############\n#...........#\n###.#.#.#+###\n#############"
    for hidden, line, drawn in ((0, 1, "#^..........#"), (41, 1, "#..........>#"), (50, 2, "###.#v#.#+###")):
        assert world.text(at(world, hidden), 0).split("\n")[line] == drawn
    assert len({world.frame(at(world, hidden), 0).tobytes() for hidden in range(61)}) == 61
    world = make_world("POMDP/HeavenHell-v0", n=1)
    assert world.text(at(world, 0), 0) == "#####\n#+.-#\n##@##\n##.?#\n#####"
    assert world.text(at(world, 6 + 5), 0) == "#####\n#-.+#\n##.##\n##.@#\n#####"
    assert world.text(at(world, 12), 0) == "#####\n#...#\n##.##\n##.?#\n#####"
    world = make_world("POMDP/File-v0", path=str(DATA / "pomdp" / "tiger.pomdp"))
    start = world.reset(torch.tensor([[0.0], [LAST]], dtype=torch.float64))
    lines = [world.text(start, row).split("\n") for row in (0, 1)]
    assert [line[0][12:] for line in lines] == ["tiger-left", "tiger-right"]
    assert lines[0][1:] == ["observation none yet", "step        0", "return      0"]
    heard = world.step(start, torch.tensor([0, 0]), torch.tensor([[0.0, 0.0]] * 2, dtype=torch.float64))[0]
    assert world.text(heard, 0).split("\n")[1:] == ["observation hear-right", "step        1", "return      -1"]
    assert world.frame(start, 0).tobytes() != world.frame(heard, 0).tobytes()
