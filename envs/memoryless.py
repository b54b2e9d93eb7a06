"""Search the best policy without a memory: `python -m envs.memoryless --env ENV_ID`.

Two kinds of reactive policies are searched: deterministic ones, a table from the newest observation to an action, and
stochastic ones, a table of action probabilities. Each result is the score of a policy, so it is a lower bound on the
best policy of its kind. It is the firmer the more restarts of the search end with it. Observations of integers and
pictures are told apart as they are, the components of a continuous observation by the cells of a grid (`BINS`).

Prints the results; --write FOLDER adds them to memoryless.json and memoryless.md.
"""

import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from envs.baselines.players import draw_uniforms, finish
from envs.baselines.search import PAID, WON, Graph, explore_states
from envs.checker import probe
from envs.cli import Options, Plugins, WriteArgs, check_id, keywords, load_plugins, row_name
from envs.core import State, World, where_state
from envs.errors import one_line_errors, require
from envs.files import make_folder
from envs.machine import cpu, revision
from envs.registry import make_world
from envs.spaces import entry_bounds
from envs.tables import Table, origin, read_tables, write_page
from envs.terminal import say

TITLE = "How far one gets without a memory"
TEXTS: dict[str, tuple[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MEASURES = ("success", "return")  # rows of a score
FORMATS = {f"{kind}_{measure}": ".3f" for kind in ("table", "stochastic") for measure in MEASURES}
POLICIES = Table((), (), *TEXTS["policies"], FORMATS)
ORIGINS = Table((), (), *TEXTS["origins"])

SAME = 1e-9  # difference of two scores that is taken for rounding
SURE = 3.0  # logit of a table's own action where a stochastic policy begins; all others begin at 0
BINS = 8  # of each component of a continuous observation
MAX_FRACTIONS = 20  # components: more powers of BINS + 1 do not fit into 63 bits
Row = dict[str, Any]  # of a table of results
Found = tuple[Tensor, Tensor]  # the tables (R, O) that all restarts ended with, and their scores (R,)
Identify = Callable[[Tensor], Tensor]  # from observations (N, ...) to their numbers (N,)


@dataclass(frozen=True)
class Args(WriteArgs):
    """Search the best policy without a memory in one environment."""

    env: str
    """The environment."""
    options: Options = ()
    """Keywords of the environment and their values, such as grid 5 blink 4, or path my.pomdp."""
    plugin: Plugins = ()
    """A module that registers environments of your own, by its name without .py; repeatable."""
    restarts: int = 16
    """Number of searches, each from a table of its own."""
    sweeps: int = 8
    """Maximum of passes of a search over all observations."""
    patience: int = 2
    """Passes without a gain after which a search ends."""
    updates: int = 100
    """Updates of the stochastic policy, which begins at the best table."""
    episodes: int = 200
    """Episodes that score a policy during the search, if exact scores are out of reach."""
    fresh: int = 10_000
    """Other episodes that score the result of such a search."""
    seed: int = 0
    """Seed of the searches."""

    def check(self) -> None:
        check_id(self.env, self.plugin)
        keywords(self.options)
        for name in ("restarts", "sweeps", "patience", "updates", "episodes", "fresh", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            require(value >= least, f"--{name} {value} must be at least {least}.")


# Games: a game scores many tables at once. Where only the initial state is random, and initial states are few, scores
# are exact; elsewhere it plays every table from the same initial states, with the same random numbers.


class ExactGame:
    """A deterministic world with a list of initial states: exact scores by following its S states.

    Each of the E ways to end, by verdict and reward, is one more state, in which nothing happens any more.
    """

    exact = True

    def __init__(self, world: World[Any], graph: Graph, step_reward: float) -> None:
        self.states, self.actions = graph.follower.shape
        self.observations, self.limit = len(graph.observation_ids), world.time_limit
        ended = graph.follower < 0
        kinds = np.stack((graph.verdict[ended], graph.reward[ended]), 1)
        kinds = kinds if len(kinds) else np.zeros((1, 2))  # no episode ends by itself: one that nothing leads to
        endings, number = np.unique(kinds, axis=0, return_inverse=True)  # (E, 2)
        follower = graph.follower.copy()
        follower[ended] = self.states + number.ravel()[: ended.sum()]
        # What is a success with the first, second ... step. Rewards are added in the order in which a world adds them,
        # so that a return of nearly 0 has the world's own sign.
        verdict, last = endings.T[:, :, None]  # (E, 1) each
        before = np.cumsum(np.r_[0.0, np.full(self.limit - 1, step_reward)])  # (limit,)
        won = (verdict == WON) | ((verdict == PAID) & (before + last > 0.0))
        self.wins = torch.from_numpy(won).double()  # (E, limit)
        self.follower, self.reward = torch.from_numpy(follower), torch.from_numpy(graph.reward)  # (S, A)
        self.observation, self.initial = torch.from_numpy(graph.observation), torch.from_numpy(graph.initial)

    def score(self, tables: Tensor) -> Tensor:
        """Return mean success and mean return (2, K) of tables (K, O) int64, an action for each observation.

        By doubling: where 2 t steps lead, what they bring and how many they are, follows from what t steps do.
        """
        action = tables[:, self.observation]  # (K, S)
        ends = self.states + torch.arange(len(self.wins)).expand(len(tables), -1)  # (K, E)
        leads = torch.cat((self.follower.gather(1, action.T).T, ends), 1)  # (K, S + E)
        brings = torch.cat((self.reward.gather(1, action.T).T, torch.zeros(ends.shape, dtype=torch.float64)), 1)
        takes = torch.cat((torch.ones_like(action), torch.zeros_like(ends)), 1)
        state = self.initial.expand(len(tables), -1)  # (K, M)
        total, steps = torch.zeros(state.shape, dtype=torch.float64), torch.zeros_like(state)
        left = self.limit
        while left:
            if left & 1:
                total, steps = total + brings.gather(1, state), steps + takes.gather(1, state)
                state = leads.gather(1, state)
            brings, takes = brings + brings.gather(1, leads), takes + takes.gather(1, leads)
            leads = leads.gather(1, leads)
            left >>= 1
        won = self.wins[(state - self.states).clamp(min=0), steps - 1] * (state >= self.states)
        return torch.stack((won.mean(1), total.mean(1)))

    def expect(self, policy: Tensor) -> Tensor:
        """Score one stochastic policy (O, A), (2,), in a form whose gradient leads to a better one.

        By as many steps of dynamic programming as an episode has, from its last one back.
        """
        chance = policy[self.observation]  # (S, A)
        gain = (chance * self.reward).sum(1)
        value = torch.zeros(2, self.states, dtype=torch.float64)
        for step in reversed(range(self.limit)):
            tail = torch.stack((self.wins[:, step], torch.zeros(len(self.wins), dtype=torch.float64)))
            after = torch.cat((value, tail), 1)  # (2, S + E)
            value = (chance * after[:, self.follower]).sum(2) + torch.stack((torch.zeros_like(gain), gain))
        return value[:, self.initial].mean(1)

    judge = torch.no_grad()(expect)

    def first_tables(self, count: int, generator: torch.Generator) -> Tensor:
        """Return tables (count, O) of uniformly random actions to begin searches with."""
        return torch.randint(self.actions, (count, self.observations), generator=generator)


class SampledGame:
    """Any world, played with the same random numbers for every table: `episodes` initial states and what follows."""

    exact = False

    def __init__(self, world: World[Any], episodes: int, seed: int, fresh: int) -> None:
        self.world, self.actions, self.fresh = world, world.num_actions, fresh
        self.generator = torch.Generator().manual_seed(seed)
        self.start = draw_uniforms(self.generator, episodes, world.reset_draws)
        self.chance = [draw_uniforms(self.generator, episodes, world.step_draws) for _ in range(world.time_limit)]
        self.identify, self.points = identifier(world, self.generator)
        self.observations = len(self.points)

    def score(self, tables: Tensor) -> Tensor:
        """Play all tables at once, from the same initial states; see `ExactGame.score`."""
        count = len(tables)
        row = torch.arange(count).repeat_interleave(len(self.start))
        chance = (u.repeat(count, 1) for u in self.chance)
        outcome = self._play(self.start.repeat(count, 1), lambda seen: tables[row, seen], chance.__next__)
        return outcome.unflatten(1, (count, -1)).mean(2)

    def expect(self, policy: Tensor) -> Tensor:
        """Estimate by the score function on new episodes: right in value and, in expectation, in gradient."""
        logs = policy.log()
        score = torch.zeros(len(self.start), dtype=torch.float64)

        def act(seen: Tensor) -> Tensor:
            nonlocal score
            action = self._draw(policy, seen)
            score = score + logs[seen, action]
            return action

        outcome = self._play(draw_uniforms(self.generator, len(self.start), self.world.reset_draws), act)
        apart = outcome - outcome.mean(1, keepdim=True)
        return outcome.mean(1) + (apart * (score - score.detach())).mean(1)

    @torch.no_grad()
    def judge(self, policy: Tensor) -> Tensor:
        """Score without gradient, (2,), on episodes that no search has seen."""
        start = draw_uniforms(self.generator, self.fresh, self.world.reset_draws)
        return self._play(start, lambda seen: self._draw(policy, seen)).mean(1)

    def first_tables(self, count: int, generator: torch.Generator) -> Tensor:
        """Choose actions by random linear rules of what an observation shows; an even row is uniformly random."""
        rules = torch.randn(count, self.points.shape[1] + 1, self.actions, generator=generator, dtype=torch.float64)
        ones = torch.ones(self.observations, 1, dtype=torch.float64)
        tables = (torch.cat((self.points, ones), 1) @ rules).argmax(2)  # (count, O)
        tables[::2] = torch.randint(self.actions, tables[::2].shape, generator=generator)
        return tables

    def _play(self, start: Tensor, act: Identify, chance: Callable[[], Tensor] | None = None) -> Tensor:
        """Return success and return (2, N) of one episode a row; without numbers of chance, new ones are drawn."""
        chance = chance or (lambda: draw_uniforms(self.generator, len(start), self.world.step_draws))
        state = self.world.reset(start)
        outcomes = finish(self.world, state, lambda observation, _: act(self.identify(observation)), chance)
        return torch.stack((outcomes.success.double(), outcomes.returns))

    def _draw(self, policy: Tensor, seen: Tensor) -> Tensor:
        total = policy.detach().cumsum(1)[seen]
        return (draw_uniforms(self.generator, len(seen), 1) > total).sum(1).clamp(max=self.actions - 1)


Game = ExactGame | SampledGame


def make_game(world: World[Any], episodes: int, seed: int, fresh: int) -> Game:
    """Choose the exact game where the world has a list of initial states, and an ending alone tells its success."""
    if world.initial_draws() is not None:
        graph = explore_states(world)
        rewards = np.unique(graph.reward[graph.follower >= 0])  # of steps that end no episode
        if len(rewards) < 2 or not (graph.verdict == PAID).any():
            return ExactGame(world, graph, rewards.sum())
    return SampledGame(world, episodes, seed, fresh)


# Observations: how they are told apart


def identifier(world: World[Any], generator: torch.Generator) -> tuple[Identify, Tensor]:
    """Assign numbers to a world's observations; the last number is for all that random play did not meet.

    Whole numbers and pictures count as they are, fractions by the cells of a grid: BINS over each component, and one
    more for 0 alone. Also returns what each number shows, in -1 .. 1 (O, d).
    """
    bounds = entry_bounds("The observation_space", world.observation_space)  # (d,) each
    continuous = bounds[0].dtype.kind == "f"
    if continuous:
        high = torch.from_numpy(np.abs(bounds).max(0).astype(np.float64))  # of what is below 0, too
        bounded = bool(high.isfinite().all()) and len(high) <= MAX_FRACTIONS
        require(bounded, f"A search can tell at most {MAX_FRACTIONS} fractions apart, each between bounds.")
        weights = (BINS + 1) ** torch.arange(len(high))
    else:
        weights = torch.randint(2**40, bounds[0].shape, generator=generator)

    def key(observation: Tensor) -> Tensor:
        if continuous:
            share = observation.flatten(1) / high  # (N, d) in -1 .. 1
            observation = (share.abs() * (BINS // 2)).ceil().clamp(max=BINS // 2) * share.sign() + BINS // 2
        return (observation.flatten(1).long() * weights).sum(1)

    known = visited(world, key, generator)  # sorted

    def identify(observation: Tensor) -> Tensor:
        found = key(observation)
        index = torch.searchsorted(known, found).clamp(max=len(known) - 1)
        return torch.where(known[index] == found, index, len(known))

    shown = torch.zeros(len(known) + 1, len(weights) if continuous else 1, dtype=torch.float64)
    if continuous:
        shown[:-1] = (known[:, None] // weights % (BINS + 1) - BINS // 2).double() / (BINS // 2)
    return identify, shown


def visited(world: World[Any], key: Identify, generator: torch.Generator, episodes: int = 2_000) -> Tensor:
    """Collect all keys, sorted, that random play meets; half of the episodes repeat an action for about 20 steps."""
    keys = []
    state: State = world.reset(draw_uniforms(generator, episodes, world.reset_draws))
    action = torch.randint(world.num_actions, (episodes,), generator=generator)
    steady = torch.arange(episodes) % 2 * 0.95
    for _ in range(world.time_limit):
        keys.append(key(state.observation).unique())
        drawn = torch.randint(world.num_actions, (episodes,), generator=generator)
        action = torch.where(torch.rand(episodes, generator=generator) < steady, action, drawn)
        after, _, _, terminated, _ = world.step(state, action, draw_uniforms(generator, episodes, world.step_draws))
        state = where_state(~terminated, after, state)
    return torch.cat(keys).unique()


# The search


@torch.no_grad()
def search_tables(game: Game, measure: int, args: Args, before: Found | None = None) -> Found:
    """Coordinate ascent of all restarts: for one observation after another, in random order, the best action.

    Among equals an action is drawn, so that a search drifts over plateaus instead of ending there. One half of the
    restarts begins with the best tables of a search `before`.
    """
    generator = torch.Generator().manual_seed(args.seed)
    tables = game.first_tables(args.restarts, generator)
    if before is not None:
        best = before[1].argsort(descending=True)[: (args.restarts + 1) // 2]
        tables[: len(best)] = before[0][best]
    values, idle = game.score(tables)[measure], 0
    for _ in range(args.sweeps):
        last = values.clone()
        for seen in torch.randperm(game.observations, generator=generator).tolist():
            tried = tables.repeat_interleave(game.actions, 0)  # (R A, O)
            tried[:, seen] = torch.arange(game.actions).repeat(len(tables))
            scores = game.score(tried)[measure].unflatten(0, (-1, game.actions))  # (R, A)
            values = scores.amax(1)
            among = torch.rand(scores.shape, generator=generator) * (scores >= values[:, None] - SAME)
            tables[:, seen] = among.argmax(1)
        idle = 0 if bool((values > last + SAME).any()) else idle + 1
        if idle == args.patience:
            break
    return tables, values


def as_policy(table: Tensor, actions: int) -> Tensor:
    """Write a table (O,) as action probabilities (O, A)."""
    return torch.nn.functional.one_hot(table, actions).double()


def search_policy(game: Game, measure: int, table: Tensor, updates: int, rate: float = 0.05) -> Tensor:
    """Improve action probabilities (O, A) by Adam from a table on: the best met if scores are exact, or the last."""
    logits = (SURE * as_policy(table, game.actions)).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=rate)
    best, best_value = logits.detach().softmax(1), -float("inf")
    for _ in range(updates):
        policy = logits.softmax(1)
        value = game.expect(policy)[measure]
        if not game.exact or value.item() > best_value:
            best, best_value = policy.detach(), value.item()
        optimizer.zero_grad()
        (-value).backward()
        optimizer.step()
    return best


def search_measures(game: Game, args: Args, measures: Sequence[str] = MEASURES) -> list[Row]:
    """Search for success, then for return; the second search goes on from the tables of the first.

    Returns a row for each: success and return of the best table and of the best stochastic policy. Where `measures`
    leaves success out, it is neither searched for nor reported.
    """
    rows: list[Row] = []
    found: Found | None = None
    for searched in measures:
        measure = MEASURES.index(searched)
        tables, values = found = search_tables(game, measure, args, found)
        best = tables[int(values.argmax())]
        table = game.judge(as_policy(best, game.actions))
        policy = game.judge(search_policy(game, measure, best, args.updates))
        scores = dict(zip(FORMATS, torch.cat((table, policy)).tolist(), strict=True))
        reached = int((values >= values.max() - SAME).sum())
        scores = {name: value for name, value in scores.items() if name.rpartition("_")[2] in measures}
        rows.append({"searched": searched, **scores, "reached": reached, "restarts": args.restarts})
    return rows


# The script


def search_environment(args: Args, argv: Sequence[str]) -> tuple[list[Row], Row]:
    """Search in one environment: the rows of its policies, and the row that says how they were found."""
    begin = time.perf_counter()
    options = keywords(args.options)
    world = make_world(args.env, "cpu", **options)
    probe(world)
    game = make_game(world, args.episodes, args.seed, args.fresh)
    measures = MEASURES if world.defines_success else MEASURES[1:]
    name: Row = {"env": row_name(args.env, options)}
    rows = [name | row for row in search_measures(game, args, measures)]
    made = name | {"observations": game.observations, "exact": game.exact}
    made |= {"episodes": None if game.exact else args.fresh, "time_limit": world.time_limit, "seed": args.seed}
    made |= {"revision": revision(), "seconds": round(time.perf_counter() - begin, 1), "cpu": cpu()}
    return rows, made | origin("envs.memoryless", argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Search and print; write where asked."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m envs.memoryless")
    load_plugins(args.plugin)
    args.check()
    torch.set_num_threads(1)
    if args.write is not None:  # before the search, whose result would be lost with it
        tables = read_tables(args.write / "memoryless.json")
        make_folder(args.write)
    rows, made = search_environment(args, argv)
    say(Table.from_records(rows, formats=FORMATS).text())
    if args.write is not None:
        policies = tables.get(POLICIES.title, POLICIES).replace_rows("env", rows)
        origins = tables.get(ORIGINS.title, ORIGINS).replace_rows("env", [made])
        write_page(args.write, "memoryless", TITLE, {}, [policies, origins])


if __name__ == "__main__":
    one_line_errors(main)()
