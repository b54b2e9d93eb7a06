"""Search the best policy without a memory: `python -m envs.memoryless ENV_ID`.

Two kinds of reactive policies are searched: deterministic ones, a table from the newest observation to an action, and
stochastic ones, a table of action probabilities. What is found is a lower bound on the best policy of its kind: every
number is that of a policy, and nothing proves that there is no better one. How many restarts of the search end with
the best value says how firm it is. Observations of integers and pictures are told apart as they are, the components of
a continuous observation by the cells of a grid (`games.BINS`).

A policy without a memory can still do what a memory would: position, speed and direction are visible, and a policy can
arrange that they say what was seen before.

Writes results/memoryless.json and memoryless.md; environments that are not asked for keep their rows there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from envs.cli import Options, Plugins, check_id, keywords, load_plugins, named
from envs.contract import probe
from envs.errors import UserError, one_line_errors
from envs.files import make_folder
from envs.machine import cpu, revision
from envs.memoryless.games import Game, make_game
from envs.registry import make_world
from envs.tables import Table, origin, read_tables, write_page

TITLE = "How far one gets without a memory"
POLICIES, ORIGINS = "Best policies", "How the rows were made"
POLICIES_NOTE = """\
The best policy from the newest observation alone that a search found: a table with one action for every observation,
and a stochastic policy that begins at it. Both are lower bounds on the best policy of their kind. One search goes for
success, one for return; `reached`: how many of its restarts ended with the best value that it found. Where initial
states are few and only they are random, numbers are exact; elsewhere they are means of fresh episodes.

Such a policy is not without any past: the position, the speed and the direction that it sees are what it has done
before, and a table can make them say what it has seen. Where it comes near the best known player, an environment does
not show that an agent remembers; there, only the number of steps or another environment does."""
ORIGINS_NOTE = """\
`exact`: judged on every initial state, else on `episodes`. Seconds on the wall of machines that had other work. A +
behind a revision: with uncommitted changes."""
FORMATS = {f"{kind}_{measure}": ".3f" for kind in ("table", "stochastic") for measure in ("success", "return")}

MEASURES = ("success", "return")  # rows of a score
SAME = 1e-9  # difference of two scores that is taken for rounding
SURE = 3.0  # logit of a table's own action where a stochastic policy begins; all others begin at 0
Row = dict[str, Any]  # of a table of results


@dataclass(frozen=True)
class Args:
    """Search the best policy without a memory in one environment, and keep what it reaches."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment."""
    options: Options = ()
    """Keywords of the environment and their values, such as grid 5 blink 4, or path my.pomdp."""
    plugin: Plugins = ()
    """A module that registers environments of your own, by its name without .py; repeatable."""
    restarts: int = 16
    """Searches from tables of their own."""
    sweeps: int = 8
    """Most passes of a search over all observations."""
    patience: int = 2
    """Passes without a gain after which it ends."""
    updates: int = 100
    """Updates of the stochastic policy, which begins at the best table."""
    episodes: int = 200
    """Initial states that a search judges by, where they cannot all be tried."""
    fresh: int = 10_000
    """Other episodes that its result is judged by then."""
    seed: int = 0
    """Seed of the searches."""
    folder: str = "results"
    """Where memoryless.json and memoryless.md go."""
    write: bool = True
    """Write the two files."""

    def check(self) -> None:
        """Refuse in one sentence what cannot work."""
        check_id(self.env, self.plugin)
        keywords(self.options)
        for name in ("restarts", "sweeps", "patience", "updates", "episodes", "fresh"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 1.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative.")


@dataclass(frozen=True)
class Found:
    """The tables that all restarts ended with, and their scores on what they were chosen by."""

    tables: Tensor  # (R, O)
    values: Tensor  # (R,)

    @property
    def best(self) -> Tensor:
        """The best table (O,)."""
        return self.tables[int(self.values.argmax())]

    @property
    def reached(self) -> int:
        """Restarts that are as good as the best."""
        return int((self.values >= self.values.max() - SAME).sum())


@torch.no_grad()
def search_tables(game: Game, measure: int, args: Args, before: Found | None = None) -> Found:
    """Coordinate ascent of all restarts: for one observation after another, in random order, the best action.

    Among equals an action is drawn, so that a search drifts over plateaus instead of ending there. One half of the
    restarts begins with the best tables of a search `before`.
    """
    draws = torch.Generator().manual_seed(args.seed)
    tables = game.first_tables(args.restarts, draws)
    if before is not None:
        best = before.values.argsort(descending=True)[: (args.restarts + 1) // 2]
        tables[: len(best)] = before.tables[best]
    values, idle = game.score(tables)[measure], 0
    for _ in range(args.sweeps):
        last = values.clone()
        for seen in torch.randperm(game.observations, generator=draws).tolist():
            values = _improve(game, measure, tables, seen, draws)
        idle = 0 if bool((values > last + SAME).any()) else idle + 1
        if idle == args.patience:
            break
    return Found(tables, values)


def _improve(game: Game, measure: int, tables: Tensor, seen: int, draws: torch.Generator) -> Tensor:
    """Put the best action for one observation into each of R tables; returns their scores (R,)."""
    tried = tables.repeat_interleave(game.actions, 0)  # (R A, O)
    tried[:, seen] = torch.arange(game.actions).repeat(len(tables))
    scores = game.score(tried)[measure].unflatten(0, (-1, game.actions))  # (R, A)
    best = scores.amax(1)
    among = torch.rand(scores.shape, generator=draws) * (scores >= best[:, None] - SAME)
    tables[:, seen] = among.argmax(1)
    return best


def as_policy(table: Tensor, actions: int) -> Tensor:
    """Write a table (O,) as action probabilities (O, A)."""
    return torch.nn.functional.one_hot(table, actions).double()


def search_policy(game: Game, measure: int, table: Tensor, updates: int, rate: float = 0.05) -> Tensor:
    """Improve action probabilities (O, A) by Adam, beginning at a table.

    Returns:
        The best ones met where scores are exact, else the last ones.
    """
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


def search(game: Game, args: Args) -> list[Row]:
    """Search for success, then for return; the second search goes on from the tables of the first.

    Returns:
        A row for each search: the success and the return of the best table and of the best stochastic policy.
    """
    rows, found = [], None
    for measure, searched in enumerate(MEASURES):
        found = search_tables(game, measure, args, found)
        table = game.judge(as_policy(found.best, game.actions))
        policy = game.judge(search_policy(game, measure, found.best, args.updates))
        row: Row = {"searched": searched}
        row |= {f"table_{name}": float(value) for name, value in zip(MEASURES, table, strict=True)}
        row |= {f"stochastic_{name}": float(value) for name, value in zip(MEASURES, policy, strict=True)}
        rows.append(row | {"reached": found.reached, "restarts": args.restarts})
    return rows


# The script


def compute(args: Args, argv: Sequence[str]) -> tuple[list[Row], Row]:
    """Search in one environment: the rows of its policies, and the row that says how they were found."""
    begin = time.perf_counter()
    options = keywords(args.options)
    world = make_world(args.env, "cpu", **options)
    probe(world)
    game = make_game(world, args.episodes, args.seed, args.fresh)
    name: Row = {"env": named(args.env, options)}
    rows = [name | row for row in search(game, args)]
    made: Row = {
        "observations": game.observations, "exact": game.exact, "episodes": None if game.exact else args.fresh,
        "time_limit": world.time_limit, "seed": args.seed, "revision": revision(),
        "seconds": round(time.perf_counter() - begin, 1), "cpu": cpu(),
    }  # fmt: skip
    return rows, name | made | origin("envs.memoryless", argv)


def in_words(rows: Sequence[Row]) -> str:
    """Say the best success and return of any policy that was found, and how firm they are."""
    parts = []
    for row in rows:
        measure = row["searched"]
        best = max(each[f"{kind}_{measure}"] for each in rows for kind in ("table", "stochastic"))
        parts.append(f"best {measure} {best:.3f} ({row['reached']} of {row['restarts']} restarts reach its table)")
    return f"{rows[0]['env']} without a memory: {', '.join(parts)}"


def main(argv: Sequence[str] | None = None) -> None:
    """Search, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m envs.memoryless")
    load_plugins(args.plugin)
    args.check()
    torch.set_num_threads(1)
    folder = Path(args.folder)
    if args.write:
        read_tables(folder / "memoryless.json")  # before the search, whose result would be lost with it
        make_folder(folder)
    rows, made = compute(args, argv)
    print(in_words(rows))
    if args.write:
        tables = read_tables(folder / "memoryless.json")
        policies = tables.get(POLICIES, Table((), (), POLICIES, POLICIES_NOTE, FORMATS)).replace_rows("env", rows)
        origins = tables.get(ORIGINS, Table((), (), ORIGINS, ORIGINS_NOTE)).replace_rows("env", [made])
        write_page(folder, "memoryless", TITLE, {}, [policies, origins])


if __name__ == "__main__":
    one_line_errors(main)()
