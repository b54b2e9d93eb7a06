"""Ladders of difficulty: their rungs, the finer dials of card games, and the command that lists them."""

from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import error_of, printed, refused
from world_keywords import uniforms

import envs
from envs.baselines import __main__ as baselines
from envs.baselines.best import Budget
from envs.baselines.bounds import bounds_of
from envs.baselines.players import play_episodes, random_player
from envs.baselines.reference import shipped_references
from envs.ladders import LADDERS, main
from envs.registry import WORLDS, Entry, make_world

RUNGS = [(ladder, rung) for ladder in LADDERS.values() for rung in ladder.rungs]
EACH = pytest.mark.parametrize(("ladder", "rung"), RUNGS, ids=[rung.id for _, rung in RUNGS])


def number(rung):
    return float(rung.id.rsplit("-", 2)[1])


@EACH
def test_every_rung_ends_after_its_steps(ladder, rung):
    world = make_world(rung.id)
    lengths = play_episodes(world, random_player(world, 1), 32, 0).lengths
    assert world.time_limit == rung.steps
    assert lengths.max() == rung.steps or ladder.name == "filter"  # a pole falls sooner


@EACH
def test_gymnasium_makes_every_rung_by_its_id(ladder, rung):
    env = gymnasium.make(rung.id)
    assert env.spec.id == rung.id
    assert ladder.entry == f"{type(env.unwrapped.world).__module__}:{type(env.unwrapped.world).__name__}"
    seen, _ = env.reset(seed=3)
    rows, _ = gymnasium.make_vec(f"envs:{rung.id}", num_envs=2).reset(seed=3)
    assert np.array_equal(rows[0], seen)


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=list(LADDERS))
def test_rungs_get_harder_evenly(ladder):
    numbers = [number(rung) for rung in ladder.rungs]
    ratios = [after / before for before, after in pairwise(numbers)]
    assert all(1.3 < ratio < 1.51 for ratio in ratios[ladder.name == "count" :])
    assert numbers[-1] / numbers[0] >= 16


def test_rungs_are_found_but_not_listed():
    ids = {rung.id for _, rung in RUNGS}
    assert len(ids) == len(RUNGS) and all(id in WORLDS for id in ids) and ids.isdisjoint([*WORLDS])
    assert "did you mean 'Ladder/hold-64-v0'" in error_of(make_world, "Ladder/hold-63-v0")
    assert "is an environment 'Ladder/hold-64-v0' already" in error_of(envs.register, "Ladder/hold-64-v0", Entry("a:B"))


def played(world, player, rows=50):
    """The returns and all observations (rows, steps + 1, d) of a player who sees the observations so far."""
    generator = torch.Generator().manual_seed(5)
    state = world.reset(uniforms(rows, 1, generator=generator))
    seen, ended = [state.observation], torch.zeros(rows, dtype=torch.bool)
    while not ended.any():
        state, shown, _, ended, _ = world.step(state, player(seen), uniforms(rows, 1, generator=generator))
        seen.append(shown)
    assert ended.all()
    return state.returns, torch.stack(seen, 1)


@pytest.mark.parametrize("cards", [2, 9, 52])
def test_the_first_card_is_kept_for_as_many_cards_as_are_asked_for(cards):
    returns, seen = played(make_world("POPGym/RepeatFirst-Easy-v0", cards=cards), lambda seen: seen[0][:, 0])
    _, whole = played(make_world("POPGym/RepeatFirst-Easy-v0"), lambda seen: seen[0][:, 0])
    assert torch.allclose(returns, torch.ones(50).double())
    assert torch.equal(seen, whole[:, :cards])


@pytest.mark.parametrize("cards", [2, 9, 52])
def test_as_many_cards_as_are_asked_for_are_played_back(cards):
    def backwards(seen):
        return seen[min(len(seen), 2 * cards - len(seen)) - 1][:, 1]

    returns, seen = played(make_world("POPGym/Autoencode-Easy-v0", cards=cards), backwards)
    _, whole = played(make_world("POPGym/Autoencode-Easy-v0"), backwards)
    assert torch.allclose(returns, torch.ones(50).double())
    assert torch.equal(seen[:, :cards, 1], whole[:, :cards, 1])
    assert seen[:, : cards - 1, 0].all() and not seen[:, cards - 1 :, 0].any() and not seen[:, cards:].any()


@pytest.mark.parametrize(("id", "wrong", "words"), [
    ("POPGym/RepeatFirst-Easy-v0", {"cards": 1}, "cards of RepeatFirst must be from 2 to 52, those of its decks, not"),
    ("POPGym/RepeatFirst-Medium-v0", {"cards": 417}, "cards of RepeatFirst must be from 2 to 416"),
    ("POPGym/RepeatFirst-Easy-v0", {"cards": 2.5}, "cards of environment 'POPGym/RepeatFirst-Easy-v0' must be a whole"),
    ("POPGym/Autoencode-Easy-v0", {"cards": 53}, "cards of Autoencode must be from 2 to 52"),
    ("POPGym/Autoencode-Easy-v0", {"cards": 4, "decks": 0}, "decks of Autoencode must be from 1"),
])  # fmt: skip
def test_a_wrong_number_of_cards_is_told(id, wrong, words):
    assert words in error_of(make_world, id, **wrong)


def test_the_script_lists_the_named_ladders_with_reference_scores(capsys):
    text = printed(capsys, main, "--ladder", "reverse", "--ladder", "filter")
    assert all((rung.id in text) == (ladder.name in ("reverse", "filter")) for ladder, rung in RUNGS)
    cells = next(line for line in text.splitlines() if "Ladder/reverse-32-v0" in line).split()
    assert cells[-6] == "63" and float(cells[-5]) == pytest.approx(-0.5, abs=0.01) and float(cells[-1]) == 1


@EACH
def test_who_knows_more_of_a_rung_scores_as_much_or_more(ladder, rung):
    """Up to five errors of the difference."""
    scores = shipped_references()[rung.id]
    returns = [level.returns for level in (scores.random, *scores.lines.values(), scores.lower)]
    assert list(scores.lines) == ["observation", "clock", "one step"]
    for less, more in (*pairwise(returns[:3]), (returns[1], returns[3]), *((each, returns[4]) for each in returns)):
        assert less.mean <= more.mean + 5 * (less.error + more.error) + 1e-9


@pytest.mark.parametrize("rung", ["hold-16", "shift-2", "reverse-8", "filter-0.05"])
def test_the_shipped_scores_of_rungs_are_those_of_the_players(rung):
    id = f"Ladder/{rung}-v0"
    found, shipped = bounds_of(make_world(id), Budget(episodes=500)), shipped_references()[id]
    for name, level in {**found.lines, "perfect": found.lower}.items():
        recorded = shipped.lines.get(name, shipped.lower)
        assert recorded.kind == level.kind
        assert recorded.returns.mean == pytest.approx(level.returns.mean, abs=5 * level.returns.error + 1e-9)


@pytest.mark.parametrize(("wanted", "ids"), [
    ("envs:Ladder/bind-2-v0", ["Ladder/bind-2-v0"]), ("Ladder/bind-[23]-v0", ["Ladder/bind-2-v0", "Ladder/bind-3-v0"]),
])  # fmt: skip
def test_reference_scores_are_computed_on_rungs(wanted, ids, capsys):
    text = printed(capsys, baselines.main, "--env", wanted, "--episodes", 40)
    assert [line.split()[0] for line in text.splitlines()] == ids


@pytest.mark.parametrize(("words", "sentence"), [
    (["--ladder", "hodl"], "--ladder: unknown ladder 'hodl'; did you mean 'hold'?"),
])  # fmt: skip
def test_misuse_of_the_script_is_one_line(words, sentence, capsys):
    assert sentence in refused(capsys, words, main)
