"""Search the best policy without a memory: `python -m envs.memoryless --env ENV_ID`.

Two kinds of reactive policies are searched: deterministic ones, a table from the newest observation to an action, and
stochastic ones, a table of action probabilities. Each result is the score of a policy, so it is a lower bound on the
best policy of its kind. The bound is more reliable if more restarts end with it. Integers and pictures are used
unchanged; each component of a continuous observation is divided into bins (`BINS`).

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
from envs.checker import probe, world_name
from envs.cli import Options, Plugins, WriteArgs, check_id, keywords, load_plugins, row_name
from envs.console import say
from envs.core import State, World, where_state
from envs.errors import one_line_errors, require
from envs.files import make_folder
from envs.machine import cpu, revision
from envs.registry import make_world
from envs.spaces import entry_bounds
from envs.tables import Table, origin, read_tables, write_page

TITLE = "How far one gets without a memory"
TEXTS: dict[str, tuple[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MEASURES = ("success", "return")  # the two numbers of a score
FORMATS = {f"{kind}_{measure}": ".3f" for kind in ("table", "stochastic") for measure in MEASURES}
POLICIES = Table((), (), *TEXTS["policies"], FORMATS)
ORIGINS = Table((), (), *TEXTS["origins"])

SAME = 1e-9  # two scores with a smaller difference count as equal
SURE = 3.0  # initial logit of the table's action in a stochastic policy; all others are 0
VISITS = 2_000  # episodes of random play that collect observations
LEARNING_RATE = 0.05  # of a stochastic policy
BINS = 8  # bins of each component of a continuous observation
MAX_FRACTIONS = 20  # maximum of continuous components: more powers of BINS + 1 do not fit into 63 bits
Row = dict[str, Any]  # of a table of results
Found = tuple[Tensor, Tensor]  # the final tables (R, O) of all restarts, and their scores (R,)
Identify = Callable[[Tensor], Tensor]  # from observations (N, ...) to their numbers (N,)


@dataclass(frozen=True)
class Args(WriteArgs):
    """Search the best policy without a memory in one environment."""

    env: str
    """The environment."""
    options: Options = ()
    """Keywords and values of the environment, such as grid 5 blink 4, or path my.pomdp."""
    plugin: Plugins = ()
    """A module that registers environments of your own, by its name without .py; repeatable."""
    restarts: int = 16
    """Number of searches from different initial tables."""
    sweeps: int = 8
    """Maximum of a search's passes over all observations."""
    patience: int = 2
    """Number of passes without a gain that ends a search."""
    updates: int = 100
    """Number of updates of the stochastic policy, which starts at the best table."""
    episodes: int = 200
    """Number of episodes per score during a search without exact scores."""
    fresh: int = 10_000
    """Number of new episodes for the final score of a search without exact scores."""
    seed: int = 0
    """Seed of the searches."""

    def check(self) -> None:
        check_id(self.env, self.plugin)
        keywords(self.options)
        for name in ("restarts", "sweeps", "patience", "updates", "episodes", "fresh", "seed"):
            value, minimum = getattr(self, name), 0 if name == "seed" else 1
            require(value >= minimum, f"--{name} {value} must be at least {minimum}.")


# Games: a game scores many tables at once. If only the initial state is random, and initial states are few, scores are
# exact. Otherwise every table plays the same initial states with the same random numbers.


class ExactGame:
    """A deterministic World with a list of initial states: exact scores by following its S states.

    Each of the E pairs of verdict and last reward is one absorbing state more.
    """

    exact = True

    def __init__(self, world: World[Any], graph: Graph, step_reward: float) -> None:
        self.states, self.actions = graph.follower.shape
        self.observations, self.limit = len(graph.observation_ids), world.time_limit
        ended = graph.follower < 0
        kinds = np.stack((graph.verdict[ended], graph.reward[ended]), 1)
        kinds = kinds if len(kinds) else np.zeros((1, 2))  # no episode terminates: add an unreachable end
        endings, number = np.unique(kinds, axis=0, return_inverse=True)  # (E, 2)
        follower = graph.follower.copy()
        follower[ended] = self.states + number.ravel()[: ended.sum()]
        # Whether an ending at the first, second ... step is a success. Rewards are added in the World's order, so that
        # a return of nearly 0 has the same sign.
        verdict, last = endings.T[:, :, None]  # (E, 1) each
        before = np.cumsum(np.r_[0.0, np.full(self.limit - 1, step_reward)])  # (limit,)
        won = (verdict == WON) | ((verdict == PAID) & (before + last > 0.0))
        self.wins = torch.from_numpy(won).double()  # (E, limit)
        self.follower, self.reward = torch.from_numpy(follower), torch.from_numpy(graph.reward)  # (S, A)
        self.observation, self.initial = torch.from_numpy(graph.observation), torch.from_numpy(graph.initial)

    def score(self, tables: Tensor) -> Tensor:
        """Return mean success and mean return (2, K) of tables (K, O) int64, an action for each observation.

        The maps of t steps (next state, reward, number of steps) are composed to those of 2 t steps.
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
        """Return the score (2,) of one stochastic policy (O, A), differentiable by the policy.

        This is backward dynamic programming over the steps of an episode.
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
        """Return the initial tables (count, O) of searches, with uniformly random actions."""
        return torch.randint(self.actions, (count, self.observations), generator=generator)


class SampledGame:
    """Any World: every table plays the same `episodes` initial states with the same random numbers."""

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
        """Estimate the score and its gradient by the score function (REINFORCE) on new episodes."""
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
        """Return the score (2,) on new episodes, without gradient."""
        start = draw_uniforms(self.generator, self.fresh, self.world.reset_draws)
        return self._play(start, lambda seen: self._draw(policy, seen)).mean(1)

    def first_tables(self, count: int, generator: torch.Generator) -> Tensor:
        """Return initial tables: odd rows act by random linear functions of the observation, even rows at random."""
        rules = torch.randn(count, self.points.shape[1] + 1, self.actions, generator=generator, dtype=torch.float64)
        ones = torch.ones(self.observations, 1, dtype=torch.float64)
        tables = (torch.cat((self.points, ones), 1) @ rules).argmax(2)  # (count, O)
        tables[::2] = torch.randint(self.actions, tables[::2].shape, generator=generator)
        return tables

    def _play(self, start: Tensor, act: Identify, chance: Callable[[], Tensor] | None = None) -> Tensor:
        """Return success and return (2, N) of one episode per row; draw the uniforms if `chance` is None."""
        chance = chance or (lambda: draw_uniforms(self.generator, len(start), self.world.step_draws))
        state = self.world.reset(start)
        outcomes = finish(self.world, state, lambda observation, _: act(self.identify(observation)), chance)
        return torch.stack((outcomes.success.double(), outcomes.returns))

    def _draw(self, policy: Tensor, seen: Tensor) -> Tensor:
        total = policy.detach().cumsum(1)[seen]
        return (draw_uniforms(self.generator, len(seen), 1) > total).sum(1).clamp(max=self.actions - 1)


Game = ExactGame | SampledGame


def make_game(world: World[Any], episodes: int, seed: int, fresh: int) -> Game:
    """Make an exact game if initial states are listed and the ending determines success, else a sampled one."""
    name = world_name(world)
    require(world.num_actions > 0, f"{name} takes real numbers as actions, but a search needs numbered actions.")
    if world.initial_draws() is not None:
        graph = explore_states(world)
        rewards = np.unique(graph.reward[graph.follower >= 0])  # of steps within an episode
        if len(rewards) < 2 or not (graph.verdict == PAID).any():
            return ExactGame(world, graph, rewards.sum())
    return SampledGame(world, episodes, seed, fresh)


# Observations


def identifier(world: World[Any], generator: torch.Generator) -> tuple[Identify, Tensor]:
    """Assign numbers to a World's observations; the last number is for all observations that random play did not meet.

    Whole numbers and pictures are used unchanged. A fraction gets one of BINS bins, or one more for exactly 0. Also
    returns the components (O, d) of each number, scaled to -1 .. 1.
    """
    bounds = entry_bounds("The observation_space", world.observation_space)  # (d,) each
    continuous = bounds[0].dtype.kind == "f"
    if continuous:
        high = torch.from_numpy(np.abs(bounds).max(0).astype(np.float64))  # max of |low| and |high|
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
        keys = key(observation)
        index = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        return torch.where(known[index] == keys, index, len(known))

    shown = torch.zeros(len(known) + 1, len(weights) if continuous else 1, dtype=torch.float64)
    if continuous:
        shown[:-1] = (known[:, None] // weights % (BINS + 1) - BINS // 2).double() / (BINS // 2)
    return identify, shown


def visited(world: World[Any], key: Identify, generator: torch.Generator) -> Tensor:
    """Collect the keys that random play meets, sorted; half of the episodes repeat actions for about 20 steps."""
    keys = []
    state: State = world.reset(draw_uniforms(generator, VISITS, world.reset_draws))
    action = torch.randint(world.num_actions, (VISITS,), generator=generator)
    steady = torch.arange(VISITS) % 2 * 0.95
    for _ in range(world.time_limit):
        keys.append(key(state.observation).unique())
        drawn = torch.randint(world.num_actions, (VISITS,), generator=generator)
        action = torch.where(torch.rand(VISITS, generator=generator) < steady, action, drawn)
        after, _, _, terminated, _ = world.step(state, action, draw_uniforms(generator, VISITS, world.step_draws))
        state = where_state(~terminated, after, state)
    return torch.cat(keys).unique()


# The search


@torch.no_grad()
def search_tables(game: Game, measure: int, args: Args, before: Found | None = None) -> Found:
    """Improve the tables of all restarts by coordinate ascent: observations in random order get their best action.

    Ties are broken at random, so that a search moves across plateaus. Half of the restarts begin with the best tables
    of a search `before`.
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


def search_policy(game: Game, measure: int, table: Tensor, updates: int) -> Tensor:
    """Improve a table to action probabilities (O, A) by Adam; return the best if scores are exact, else the last."""
    logits = (SURE * as_policy(table, game.actions)).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=LEARNING_RATE)
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
    """Search for success, then for return; the second search begins with the tables of the first.

    Returns a row for each: success and return of the best table and of the best stochastic policy. Without success in
    `measures` it is neither searched for nor reported.
    """
    rows: list[Row] = []
    searched_tables: Found | None = None
    for searched in measures:
        measure = MEASURES.index(searched)
        tables, values = searched_tables = search_tables(game, measure, args, searched_tables)
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
    """Search in one environment: return the rows of its policies, and the row of their origin."""
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
    """Search, print, and write if --write is given."""
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
