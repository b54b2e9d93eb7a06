"""What the benchmark measures of UniZero: acting, learning, attention under each prior, and a projected run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dqn_memory.analysis.timing import Timer, Work, environment_step
from dqn_memory.blocks import PRIORS, PriorConfig
from dqn_memory.blocks.attention import attend
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.settings import Engine, set_tf32
from envs.atari import AtariConfig
from envs.tables import Table, Value
from world_models.unizero import compiled_tree, tree
from world_models.unizero.acting import Planner, search_again
from world_models.unizero.config import (
    CollectionConfig,
    EncoderConfig,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    SearchConfig,
)
from world_models.unizero.engine import Planning, make_learn, make_planning
from world_models.unizero.learner import make_optimizer, make_target
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.replay import Replay, Sequences
from world_models.unizero.search import SearchNumbers, draw, play

IMAGE = ObservationSpec("image", (64, 64, 3), 0, torch.uint8)
ACTIONS = 6
COLUMNS = 60  # of the replay that sequences are drawn from
STEP_BAR, UPDATE_BAR = 15.0, 20.0  # ms of an acting step in 8 environments, and of an update, at full size
RATE_BAR = 30.0  # environment steps/s of the tiny preset on a CPU
RUN_BAR = 20.0  # minutes of a run
CONTEXTS = (16, 20, 32, 64, 128, 256, 512)
STEPS, RATIO, EVERY = 100_000, 0.25, 10_000  # environment steps, updates per step, steps between evaluations
REANALYSE = CollectionConfig().reanalyse_fraction
EPISODE = 2_000  # steps of the longest episode of an evaluation in Pong, roughly; a guess, said in the table
GAME = "ALE/Pong-v5"

ACTING_NOTE = (
    "One step of all environments: draw the random numbers, encode, evaluate the root, expand nodes and walk the trees "
    "(select and back up; `expand` and `walk` are all of a step), play and remember. Parts are measured alone, so "
    "they need not add up. `query_per`: auto queries all actions of a node at once where trees are compiled; "
    "`queries`: how often the model is queried in a step, by trees of a network whose heads are drawn. `steps_s`: "
    "environment steps per second without the time of the environment. `trees`: who walks them. `precision`: "
    "bfloat16 concerns the learner, where acting has tf32."
)
LEARNING_NOTE = (
    "`gather`: draw a batch of sequences and collect it from the replay; `update`: everything from there to moved "
    "weights (targets, encoders, losses, backward, clipping, AdamW, moving average). `reanalysis`: one search that "
    "finds the policies of all steps of a batch anew."
)
PROJECTION_NOTE = (
    f"A run of {STEPS:,} environment steps, {RATIO} updates per step, {REANALYSE} of them with policies "
    f"searched anew (`reanalysis_min`), and {STEPS // EVERY + 1} evaluations, whose episodes are played side by "
    f"side and taken to last {EPISODE:,} steps. `envs_min`: stepping the games "
    f"({GAME}) themselves, measured with random actions. Everything in minutes, one part after another."
)


@dataclass(frozen=True)
class Case:
    """A model and how it is executed. With `precision` bfloat16 the learner has that and everything else tf32."""

    preset: str
    model: ModelConfig
    num_envs: int
    simulations: int
    batch: int = 64
    device: str = "cpu"
    engine: Engine = "eager"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    trees: Literal["compiled", "torch"] = "compiled"
    query_per: Literal["auto", "action"] = "auto"

    @property
    def search(self) -> SearchConfig:
        """The search of training."""
        return SearchConfig(simulations=self.simulations, backend=self.trees, query_per=self.query_per)

    @property
    def at_full_size_on_cuda(self) -> bool:
        """Whether the bars of an accelerator apply."""
        return self.preset == "full" and self.device == "cuda"

    def network(self) -> WorldModel:
        """Build the model with the same weights at every call; set the precision of products too."""
        set_tf32(self.precision != "float32")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build(self.model, IMAGE, ACTIONS).to(self.device)

    def frames(self, *leading: int) -> Tensor:
        """Draw frames of noise (*leading, 64, 64, 3)."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, (*leading, *IMAGE.shape), generator=generator, dtype=torch.uint8).to(self.device)

    def columns(self) -> dict[str, Value]:
        """Give what a row of a table says of the case."""
        names = ("preset", "device", "engine", "precision", "trees", "query_per")
        return {name: getattr(self, name) for name in names}


TINY = Case("tiny", ModelConfig(width=64, heads=4, horizon=5, support=20, dropout=0.0,
                                encoder=EncoderConfig(channels=16)), num_envs=2, simulations=8)  # fmt: skip
FULL = Case("full", ModelConfig(), num_envs=8, simulations=50, device="cuda")


def cases(device: str, engines: Sequence[str] = (), quick: bool = False) -> list[Case]:
    """List the tiny preset on a CPU; on an accelerator the full one in every way."""
    if device == "cpu":
        ways = [TINY, replace(TINY, query_per="action"), replace(TINY, engine="compile")]
        wanted = engines or ("eager",)  # compiling takes minutes
    else:
        graph, wanted = replace(FULL, engine="cudagraph"), engines or ("eager", "compile", "cudagraph")
        ways = [
            FULL, replace(FULL, engine="compile"),
            graph, replace(graph, query_per="action"), replace(graph, trees="torch"),
            replace(FULL, engine="compile", precision="tf32"),
            replace(graph, precision="tf32"), replace(graph, precision="bfloat16"),
        ]  # fmt: skip
    return [smaller(way) if quick else way for way in ways if way.engine in wanted]


def smaller(case: Case) -> Case:
    """Shrink the case to sizes that take no time."""
    model = replace(TINY.model, width=16, heads=2, encoder=EncoderConfig(channels=4))
    return replace(case, model=model, num_envs=2, simulations=2, batch=2)


def tables(timer: Timer, device: str, wanted: Sequence[str], engines: Sequence[str], quick: bool) -> Iterator[Table]:
    """Measure the wanted tables, one after another."""
    chosen = cases(device, engines, quick)
    acting: list[dict[str, Value]] = []
    learning: list[dict[str, Value]] = []
    if {"acting", "projection"} & set(wanted):
        acting = [acting_row(case, timer) for case in chosen]
        yield Table.from_records(acting, "Acting", ACTING_NOTE)
    if {"learning", "projection"} & set(wanted):
        # the trees have no part in learning, and reanalysis queries the model alike in all cases
        learning = [learning_row(case, timer) for case in chosen
                    if case.trees == "compiled" and case.query_per == "auto"]  # fmt: skip
        yield Table.from_records(learning, "Learning", LEARNING_NOTE)
    if "projection" in wanted:
        envs = environment_step(GAME, chosen[0].num_envs, device, vars(AtariConfig()))
        envs_ms = timer({"envs": envs})["envs"].median
        yield Table.from_records(projection_rows(acting, learning, envs_ms), "Projected run", PROJECTION_NOTE)
    if "priors" in wanted:
        heads, width, batch = (2, 4, 1) if quick else (8, 96, 64 if device == "cuda" else 2)
        yield prior_table(timer, Mixing(heads, width, batch, device), (16, 32, 128) if quick else CONTEXTS)


class Acting:
    """A planner whose histories are full, and what one of its steps is made of."""

    def __init__(self, case: Case) -> None:
        device = torch.device(case.device)
        self.case, self.generator = case, torch.Generator(device).manual_seed(0)
        model = with_drawn_heads(case.network().eval())
        encode, functions = make_planning(case.engine, model)
        self.outcome, self.queries = functions.outcome, list[tuple[Tensor, ...]]()
        self.planning = Planning(encode, functions._replace(outcome=self._query))
        self.planner = Planner(model, case.num_envs, device, case.search, planning=self.planning)
        self.observation = case.frames(case.num_envs)
        self.no_end = torch.zeros(case.num_envs, dtype=torch.bool, device=device)
        for _ in range(case.model.pairs):
            self.step()

    def _query(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        self.queries.append(inputs)
        return self.outcome(*inputs)

    def step(self) -> Tensor:
        """Take an acting step without the environments: random numbers, search, choice, history."""
        self.queries.clear()
        numbers = self._numbers()
        plan = self.planner.plan(self.observation, numbers)
        action = play(plan.found, numbers, self.case.search, temperature=0.25)
        self.planner.remember(plan.latent, action, self.no_end)
        return action

    def parts(self) -> dict[str, Work]:
        """Time the step, and its parts alone: `expand` is all queries of one step, `walk` all simulations."""
        encode, functions = self.planning
        with torch.no_grad():
            latent = encode(self.observation)
        self.step()
        window, queries = self.planner.window, list(self.queries)
        return {
            "step": self.step,
            "draw": self._numbers,
            "encode": torch.no_grad()(lambda: encode(self.observation)),
            "root": torch.no_grad()(lambda: functions.root(window, latent)),
            "expand": torch.no_grad()(lambda: [self.outcome(*query) for query in queries]),
            "walk": self.walk,
        }

    def walk(self) -> None:
        """Select and back up as in a search whose network says the same of every node."""
        case, window = self.case, self.planner.window
        device = torch.device("cpu") if case.trees == "compiled" else window.count.device
        prior = torch.full((case.num_envs, ACTIONS), 1 / ACTIONS, dtype=torch.float64, device=device)
        found = torch.cat((torch.zeros(case.num_envs, 2, dtype=torch.float64, device=device), prior), 1)
        ties = torch.full((case.num_envs, case.simulations), 0.5, dtype=torch.float64, device=device)
        grown = tree.init_tree(prior, case.simulations, window.action.to(device), window.count.to(device))
        module = compiled_tree if case.trees == "compiled" else tree
        walker, free = module.Walker(grown, case.search.tree), torch.full((case.num_envs,), -1, device=device)
        for simulation in range(case.simulations):
            walker.expand(simulation, walker.select(simulation, ties, free), found)

    def _numbers(self) -> SearchNumbers:
        return draw(self.case.search, self.case.num_envs, ACTIONS, self.generator)


@torch.no_grad()
def with_drawn_heads(model: WorldModel) -> WorldModel:
    """Draw the heads' last layers: with the zeros that they begin with all actions tie, and trees are flatter."""
    generator = torch.Generator().manual_seed(0)
    for head in model.heads.values():
        weight = head[-1].weight  # type: ignore[index]
        weight.copy_(3 * torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
    return model


def acting_row(case: Case, timer: Timer) -> dict[str, Value]:
    """Measure the milliseconds of an acting step and of its parts."""
    acting = Acting(case)
    parts = acting.parts()
    queries, times = len(acting.queries), timer(parts)
    step = times["step"]
    return {
        **case.columns(), "num_envs": case.num_envs, "simulations": case.simulations, "queries": queries,
        "step_ms": step.median, "fastest_ms": step.fastest, "spread": step.spread,
        **{f"{name}_ms": times[name].median for name in ("draw", "encode", "root", "expand", "walk")},
        "steps_s": 1000 * case.num_envs / step.median,
        "step_bar": STEP_BAR if case.at_full_size_on_cuda else None,
        "steps_s_bar": RATE_BAR if case.preset == "tiny" else None,
    }  # fmt: skip


def learning_parts(case: Case) -> dict[str, Work]:
    """Make the parts of learning: gather a batch, update the weights with it, search a batch's policies anew."""
    device, model = torch.device(case.device), case.network()
    config = LearnerConfig(batch_size=case.batch, precision="bfloat16" if case.precision == "bfloat16" else "float32")
    optimizer = make_optimizer(model, config, capturable=case.engine == "cudagraph")
    learn = make_learn(case.engine, model, make_target(model), optimizer, config)
    planning, generator = make_planning(case.engine, model), torch.Generator().manual_seed(0)
    replay = Replay(
        ReplayConfig(COLUMNS * case.num_envs), IMAGE, ACTIONS, case.num_envs, device, case.model.horizon,
        config.n_step, case.model.pairs,
    )  # fmt: skip
    no_end = torch.zeros(case.num_envs, dtype=torch.bool)
    for column, frames in enumerate(case.frames(COLUMNS, case.num_envs)):
        replay.add(
            observation=frames, next_observation=frames, action=torch.arange(case.num_envs) % ACTIONS,
            reward=torch.ones(case.num_envs), terminated=no_end, done=no_end,
            time=torch.full((case.num_envs,), column), policy=torch.ones(case.num_envs, ACTIONS),
        )  # fmt: skip

    def gather() -> Sequences:
        return replay.sequences(replay.draw(config.batch_size, generator))

    def reanalyse() -> Tensor:
        contexts = replay.contexts(replay.draw(config.batch_size, generator))
        numbers = draw(case.search, contexts.count.numel(), ACTIONS, generator).to(device)
        return search_again(model, contexts, numbers, case.search, planning)

    sequences = gather()
    return {"gather": gather, "update": lambda: learn(sequences), "reanalysis": reanalyse}


def learning_row(case: Case, timer: Timer) -> dict[str, Value]:
    """Measure the milliseconds of an update, of its batch and of a reanalysis."""
    times = timer(learning_parts(case))
    update = times["update"]
    columns = {name: value for name, value in case.columns().items() if name not in ("trees", "query_per")}
    return {
        **columns, "batch": case.batch, "horizon": case.model.horizon, "update_ms": update.median,
        "fastest_ms": update.fastest, "spread": update.spread, "gather_ms": times["gather"].median,
        "reanalysis_ms": times["reanalysis"].median, "update_bar": UPDATE_BAR if case.at_full_size_on_cuda else None,
    }  # fmt: skip


def projection_rows(
    acting: Sequence[Mapping[str, Any]], learning: Sequence[Mapping[str, Any]], envs_ms: float
) -> list[dict[str, Value]]:
    """Project the minutes of a whole run from the measured parts of each engine and precision."""
    updates = {(row["preset"], row["engine"], row["precision"]): row for row in learning}
    evaluated, rows = (STEPS // EVERY + 1) * EPISODE, list[dict[str, Value]]()
    for row in acting:
        update = updates[row["preset"], row["engine"], row["precision"]]
        iterations = STEPS / row["num_envs"]
        milliseconds = {
            "acting_min": iterations * row["step_ms"],
            "learning_min": STEPS * RATIO * (update["update_ms"] + update["gather_ms"]),
            "reanalysis_min": STEPS * RATIO * REANALYSE * update["reanalysis_ms"],
            "evaluation_min": evaluated * row["step_ms"],
            "envs_min": (iterations + evaluated) * envs_ms,
        }
        minutes = {name: value / 60_000 for name, value in milliseconds.items()}
        columns = {name: row[name] for name in ("preset", "device", "engine", "precision", "trees", "query_per")}
        full = row["preset"] == "full" and row["device"] == "cuda"
        rows.append({**columns, **minutes, "run_min": sum(minutes.values()), "run_bar": RUN_BAR if full else None})
    return rows


@dataclass(frozen=True)
class Mixing:
    """Attention under a prior without its projections: heads of one batch of sequences."""

    heads: int
    width: int  # of a head
    batch: int
    device: str

    def work(self, kind: str, tokens: int, gradient: bool, masked: bool = False) -> Work:
        """Mix the values of `tokens` positions; `masked` computes a local prior as all others."""
        prior = PriorConfig(kind=kind).build(self.heads, tokens).to(self.device)
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, self.heads, tokens, self.width)
        query, key, value = (
            torch.randn(shape, generator=generator).to(self.device).requires_grad_(gradient) for _ in range(3)
        )
        window = None if masked else prior.fixed_window

        def mix() -> Tensor:
            scale, bias = prior.tables(tokens)
            mixed = attend(
                query, key, value, scale, bias, future_logit_zero=prior.future_logit_zero, window=window
            )  # fmt: skip
            if gradient:
                torch.autograd.backward(mixed, torch.ones_like(mixed), inputs=[query, key, value])
            return mixed

        return mix if gradient else torch.no_grad()(mix)


def prior_table(timer: Timer, mixing: Mixing, contexts: Sequence[int]) -> Table:
    """Measure the milliseconds of attention under every prior, by context."""
    note = (
        f"Attention without its projections, {mixing.batch} sequences, {mixing.heads} heads of {mixing.width}; forward "
        "(`ms`) and with the gradient (`both_ms`). `local` looks 10 back, in blocks where that pays; `local, masked` "
        "is the same function with all scores computed. `of_causal`, `both_of_causal`: over plain causal attention at "
        "the same context. `growth`: `both_ms` over that of half the context if measured; 2 is linear, 4 square."
    )
    set_tf32(False)
    rows: list[dict[str, Value]] = []
    measured: dict[tuple[str, int], float] = {}  # with the gradient
    for tokens in contexts:
        works: dict[str, Work] = {}
        for name in (*PRIORS, "local, masked"):
            kind, masked = name.removesuffix(", masked"), name.endswith(", masked")
            works[name] = mixing.work(kind, tokens, False, masked)
            works[f"{name} both"] = mixing.work(kind, tokens, True, masked)
        times = timer(works)
        for name in (*PRIORS, "local, masked"):
            forward, both = times[name], times[f"{name} both"]
            measured[name, tokens] = both.median
            half = measured.get((name, tokens // 2))
            rows.append({
                "prior": name, "tokens": tokens, "ms": forward.median, "both_ms": both.median, "spread": both.spread,
                "of_causal": 1 / forward.speed_up(times["causal"]),
                "both_of_causal": 1 / both.speed_up(times["causal both"]),
                "growth": None if half is None else both.median / half,
            })  # fmt: skip
    return Table.from_records(rows, "Priors", note)
