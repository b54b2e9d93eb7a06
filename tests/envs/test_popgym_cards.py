"""POPGym's card games and bandits, step by step beside popgym itself, and the chances of what they draw."""

import re

import numpy as np
import popgym.envs
import pytest
import torch
from popgym.wrappers import PreviousAction
from run_folders import error_of
from scipy.stats import chi2, chi2_contingency
from world_keywords import uniforms

from envs.popgym.levels import LEVELS
from envs.popgym.shuffle import Piles, hashed
from envs.registry import make_world

FAMILIES = [
    "RepeatFirst", "RepeatPrevious", "Autoencode", "CountRecall", "HigherLower", "MultiarmedBandit", "Concentration"
]  # fmt: skip
IDS = [id for id in LEVELS if id.split("/")[1].split("-")[0] in FAMILIES]
RARE = 1e-5  # probability at which a test of chances fails
DIALS = [  # keywords of ours, and of popgym's class that all levels share
    ("RepeatFirst", {"decks": 2}, {"num_decks": 2}),
    ("RepeatPrevious", {"decks": 1, "k": 1}, {"num_decks": 1, "k": 1}),
    ("RepeatPrevious", {"decks": 1, "k": 51}, {"num_decks": 1, "k": 51}),
    ("CountRecall", {"decks": 3, "categories": 4}, {"num_decks": 3, "deck_type": "suits"}),
    ("MultiarmedBandit", {"arms": 2, "time_limit": 7}, {"num_bandits": 2, "episode_length": 7}),
    ("Concentration", {"cards": 104, "categories": 13}, {"num_decks": 2, "deck_type": "ranks"}),
]


def original(name, **kwargs):
    """An environment of popgym, with the previous action where popgym says that it is needed."""
    env = getattr(popgym.envs, name)(**kwargs)
    return PreviousAction(env) if env.obs_requires_prev_action else env


class Pile:
    """The uniforms that make our worlds draw given kinds of cards, from `copies` cards of each."""

    def __init__(self, kinds, copies):
        self.left = np.full(kinds, copies)

    def place(self, kind, beyond=0.5):
        if not self.left.any():
            return 0.0
        place = (self.left[:kind].sum() + beyond) / self.left.sum()
        self.left[kind] -= 1
        return place


class Cards:
    """A card game of popgym, and the uniforms for its shuffled deck."""

    def __init__(self, env):
        self.env, self.game = env, env.unwrapped

    def reset(self, seed):
        seen, _ = self.env.reset(seed=seed)
        deck = self.game.deck
        self.kinds = (deck.ranks_idx if "Higher" in type(self.game).__name__ else deck.suits_idx)[deck.idx[::-1]]
        self.pile, self.next = Pile(self.kinds.max() + 1, np.bincount(self.kinds)[0]), 0
        return seen

    def draw(self, action=None):
        self.next += 1
        return self.pile.place(self.kinds[self.next - 1]) if self.next <= len(self.kinds) else 0.0

    def hidden(self, state, row):
        """Put what no uniform decides into a state."""

    def answer(self):
        return None


class TwoDecks(Cards):
    def reset(self, seed):
        seen, _ = self.env.reset(seed=seed)
        game, decks = self.game, (self.game.value_deck, self.game.query_deck)
        self.kinds = np.stack([game.deck_idx_type[deck.idx[::-1]] for deck in decks], 1)
        self.piles, self.next = [Pile(game.num_distinct_cards, game.max_card_count) for _ in decks], 0
        return seen

    def draw(self, action=None):
        (value, query), (one, other) = self.kinds[self.next], self.piles
        self.next += 1
        return one.place(value, other.place(query))

    def answer(self):
        return int(self.game.counts[self.game.query])


class Table(Cards):
    def reset(self, seed):
        seen, _ = self.env.reset(seed=seed)
        self.kinds, self.known = self.game.state, set()
        self.pile = Pile(self.kinds.max() + 1, np.bincount(self.kinds)[0])
        return seen

    def draw(self, action=None):
        if action is None or action in self.known:
            return 0.5
        self.known.add(action)
        return self.pile.place(self.kinds[action])

    def answer(self):
        """The partner of a card that waits, or a card that lies face down."""
        deck, kinds = self.game.deck, self.kinds
        up, waiting = deck["face_up_idx"] + deck["in_play_idx"], deck["in_play_idx"]
        down = [card for card in range(len(kinds)) if card not in up]
        wanted = [card for card in down if waiting and kinds[card] == kinds[waiting[0]]]
        return (wanted or down)[0]


class Bandit(Cards):
    def reset(self, seed):
        return self.env.reset(seed=seed)[0]

    def draw(self, action=None):
        chance = np.random.Generator(type(self.game.np_random.bit_generator)())
        chance.bit_generator.state = self.game.np_random.bit_generator.state
        return chance.random()

    def hidden(self, state, row):
        state.arms[row] = torch.from_numpy(self.game.bandits)


TWINS = {"CountRecall": TwoDecks, "Concentration": Table, "MultiarmedBandit": Bandit}


def numbers(seen):
    """The numbers of an observation of popgym, in order."""
    return np.hstack([np.ravel(part) for part in (seen if isinstance(seen, tuple) else (seen,))])


def check_alike(world, originals, seed):
    """Play an episode of each row in both: every second row at random, the others with right answers in between."""
    episodes, family = len(originals), type(world).__name__
    twins = [TWINS.get(family, Cards)(env) for env in originals]
    choice, ends = np.random.default_rng(seed), []
    first = np.stack([numbers(twin.reset(seed * 1_000 + row)) for row, twin in enumerate(twins)])
    u = torch.tensor([[twin.draw()] * world.reset_draws for twin in twins], dtype=torch.float64)
    state, running = world.reset(u), np.ones(episodes, bool)
    for row, twin in enumerate(twins):
        twin.hidden(state, row)
    assert np.array_equal(state.observation, first)
    while running.any():
        action = choice.integers(world.num_actions, size=episodes)
        for row in range(1, episodes, 2):
            right = twins[row].answer() if running[row] and choice.random() < 0.9 else None
            action[row] = action[row] if right is None else right
        rows = np.flatnonzero(running)
        draws = torch.zeros(episodes, 1, dtype=torch.float64)
        draws[rows, 0] = torch.tensor([twins[row].draw(int(action[row])) for row in rows], dtype=torch.float64)
        state, observation, reward, terminated, success = world.step(state, torch.from_numpy(action), draws)
        seen, paid, ended, cut, _ = zip(*(twins[row].env.step(int(action[row])) for row in rows), strict=True)
        ended, cut = np.array(ended), np.array(cut)
        assert np.array_equal(observation[rows], np.stack([numbers(each) for each in seen]))
        assert np.abs(reward[rows].numpy() - paid).max() < 1e-12
        assert np.array_equal(terminated[rows], ended)
        assert np.array_equal(world.truncated(state, terminated)[rows], cut & ~ended)
        assert (state.returns.abs() < 1 + 1e-9).all() and not success.any()
        running[rows] = ~(ended | cut)
        ends += ended[ended | cut].tolist()
    return ends


def levels(id, episodes):
    name = id.removeprefix("POPGym/").removesuffix("-v0").replace("-", "")
    return [original(name) for _ in range(episodes)]


@pytest.mark.parametrize("id", IDS)
def test_every_step_is_that_of_popgym(id):
    ends = check_alike(make_world(id), levels(id, 5), 7)
    assert set(ends) == ({False} if "Bandit" in id else {True, False} if "Concentration" in id else {True})


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 2_003])
@pytest.mark.parametrize("id", IDS)
def test_every_step_of_many_episodes_is_that_of_popgym(id, seed):
    check_alike(make_world(id), levels(id, 100), seed)


@pytest.mark.parametrize(("family", "ours", "theirs"), DIALS)
def test_every_step_with_other_dials_is_that_of_popgym(family, ours, theirs):
    check_alike(make_world(f"POPGym/{family}-Easy-v0", **ours), [original(family, **theirs) for _ in range(4)], 19)


# ---- chances ---------------------------------------------------------------------------------------------------------
def check_same_chances(ours, theirs, cells):
    """Compare two samples of integers below `cells` by a test of homogeneity; rare ones are joined."""
    counts = np.stack([np.bincount(sample, minlength=cells) for sample in (ours, theirs)])
    common = counts.sum(0) >= 40
    counts = np.concatenate([counts[:, common], counts[:, ~common].sum(1, keepdims=True)], 1)
    assert chi2_contingency(counts[:, counts.sum(0) > 0]).pvalue > RARE


def check_uniform(sample, cells):
    counts = np.bincount(sample, minlength=cells)
    assert len(counts) == cells
    assert chi2.sf(((counts - counts.mean()) ** 2).sum() / counts.mean(), cells - 1) > RARE


def shown(id, rows, action=None, seed=0):
    """All observations (rows, steps + 1, d) of an episode of each row."""
    world, generator = make_world(id), torch.Generator().manual_seed(seed)
    state = world.reset(uniforms(rows, world.reset_draws, generator=generator))
    seen = [state.observation]
    for step in range(world.time_limit):
        chosen = torch.full((rows,), 0 if action is None else action(step))
        state, observation, *_ = world.step(state, chosen, uniforms(rows, world.step_draws, generator=generator))
        seen.append(observation)
    return torch.stack(seen, 1).numpy()


def decks_of(env, episodes, find, seed):
    """What `find` gives of the hidden decks of popgym after so many resets."""
    decks = []
    for episode in range(episodes):
        env.reset(seed=seed + episode)
        decks.append(find(env.unwrapped))
    return np.stack(decks)


FIND = {  # the order of cards in popgym
    "RepeatPreviousEasy": lambda game: game.deck.suits_idx[game.deck.idx[::-1]],
    "HigherLowerEasy": lambda game: game.deck.ranks_idx[game.deck.idx[::-1]],
    "CountRecallMedium": lambda game: np.stack(
        [game.deck_idx_type[deck.idx[::-1]] for deck in (game.value_deck, game.query_deck)], 1
    ).reshape(-1),
    "ConcentrationHard": lambda game: game.state,
}


@pytest.mark.parametrize("name", FIND)
def test_decks_have_the_chances_of_popgym(name):
    """Pairs of cards: neighbours at the start, in the middle and at the end, and the first with the last."""
    family, level = re.fullmatch("(.*)(Easy|Medium|Hard)", name).groups()
    seen = shown(f"POPGym/{family}-{level}-v0", 20_000, action=lambda step: min(step, 51))
    if family == "Concentration":
        ours = np.stack([seen[:, card + 1, card] for card in range(52)], 1)
    else:
        ours = seen.reshape(len(seen), -1)
    theirs = decks_of(original(name), 4_000, FIND[name], seed=31)
    kinds, last = theirs.max() + 1, theirs.shape[1] - 1
    assert ours.shape[1] == theirs.shape[1] and (np.sort(ours) == np.sort(theirs)[0]).all()
    for one, other in ((0, 1), (0, 3), (last // 2, last // 2 + 1), (last - 1, last), (0, last)):
        check_same_chances(*(deck[:, one] * kinds + deck[:, other] for deck in (ours, theirs)), kinds**2)


def test_arms_and_payments_have_the_chances_of_popgym():
    world = make_world("POPGym/MultiarmedBandit-Easy-v0")
    state = world.reset(uniforms(20_000, 1, seed=3))
    theirs = decks_of(original("MultiarmedBanditEasy"), 4_000, lambda game: game.bandits, seed=17)
    for one, other in ((0, 1), (3, 9), (0, 0)):
        cells = [(5 * np.asarray(a)).astype(int)[:, [one, other]] @ [5, 1] for a in (state.arms, theirs)]
        check_same_chances(*cells, 25)
    paid = [world.step(state, torch.full((20_000,), 4), uniforms(20_000, 1, seed=seed))[1][:, 0] for seed in range(20)]
    expected = state.arms[:, 4]
    error = ((torch.stack(paid).double().mean(0) - expected) / (expected * (1 - expected) / 20).sqrt()).mean()
    assert abs(float(error)) * len(expected) ** 0.5 < 5


@pytest.mark.parametrize("copies", [1, 3, 208])
def test_the_last_uniform_draws_the_last_card_and_a_whole_pile_is_drawn(copies):
    """Products of uniforms near 1 round to the number of cards itself at no height of a pile."""
    deck, last = Piles(13, copies, torch.device("cpu")), torch.tensor([1 - 2**-53], dtype=torch.float64)
    lowest, highest, pairs = deck.full(1), deck.full(1), deck.full(2)[None]
    for card in range(13 * copies):
        kind, lowest = deck.draw(lowest, last * 0)
        other, highest = deck.draw(highest, last)
        both, pairs = deck.draw_two(pairs, last)
        assert (int(kind), int(other)) == (card // copies, 12 - card // copies) and both.tolist() == [[int(other)] * 2]
    for piles, draw in ((lowest, deck.draw), (highest, deck.draw), (pairs, deck.draw_two)):
        kind, left = draw(piles, last)
        assert not piles.any() and not left.any() and not kind.any()


@pytest.mark.parametrize("keys", ["random", "neighbours", "two", "one of two"])
def test_hashed_numbers_are_uniform_and_independent(keys):
    """In each column, in neighbouring columns, and in the same column of neighbouring keys."""
    random, step = uniforms(30_000, 2, seed=5), torch.arange(30_000, dtype=torch.float64)[:, None] * 2.0**-53
    key = {
        "random": random[:, :1], "neighbours": step + 0.25, "two": random, "one of two": torch.cat([step, step * 0], 1)
    }[keys]  # fmt: skip
    values = hashed(key, 9)
    assert values.dtype == torch.float64 and values.shape == (30_000, 9) and values.min() >= 0 and values.max() < 1
    assert np.array_equal(hashed(key.numpy(), 9), values) and torch.equal(hashed(key, 4), values[:, :4])
    parts = (values * 16).long().numpy()
    for column in range(9):
        check_uniform(parts[:, column], 16)
        check_uniform((values[:, column] * 2**20).long().numpy() % 64, 64)  # the lower bits
        check_uniform(parts[:, column] * 16 + parts[:, (column + 1) % 9], 256)
        check_uniform(parts[:-1:2, column] * 16 + parts[1::2, column], 256)


@pytest.mark.parametrize(("family", "wrong", "words"), [
    ("RepeatFirst", {"decks": 0}, "decks of RepeatFirst must be from 1 to 630, not 0"),
    ("RepeatPrevious", {"decks": 10**6}, "decks of RepeatPrevious must be from 1 to 630"),
    ("RepeatPrevious", {"k": 52}, "k of RepeatPrevious must be from 1 to 51, its cards less one, not 52"),
    ("RepeatPrevious", {"k": 0}, "k of RepeatPrevious must be from 1 to 51"),
    ("Autoencode", {"decks": -1}, "decks of Autoencode must be from 1"),
    ("CountRecall", {"decks": 0}, "decks of CountRecall must be from 1"),
    ("CountRecall", {"categories": 5}, "categories of CountRecall must divide its 52 cards, not be 5"),
    ("CountRecall", {"categories": 0}, "categories of CountRecall must divide"),
    ("HigherLower", {"decks": 0}, "decks of HigherLower must be from 1"),
    ("MultiarmedBandit", {"arms": 1}, "arms of MultiarmedBandit must be from 2 to 1000, not 1"),
    ("Concentration", {"cards": 50}, "cards of Concentration must be a multiple of 4, which is twice its categories"),
    ("Concentration", {"categories": 0}, "categories of Concentration must be from 1 to 126, not 0"),
    ("Concentration", {"cards": 0}, "cards of Concentration must be"),
])  # fmt: skip
def test_a_wrong_dial_is_told(family, wrong, words):
    assert words in error_of(make_world, f"POPGym/{family}-Easy-v0", **wrong)
