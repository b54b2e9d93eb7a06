"""What the benchmark runs: one world model of Atari's form, acting and learning, whole and in its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dqn_memory.analysis.timing import Work
from dqn_memory.blocks import PriorConfig
from dqn_memory.blocks.attention import attend
from dqn_memory.observations import ObservationSpec
from dqn_memory.runs.cuda_graph import Engine
from dqn_memory.runs.precision import set_tf32
from world_models.unizero import compiled_tree, tree
from world_models.unizero.acting import Planner, search_again
from world_models.unizero.config import EncoderConfig, LearnerConfig, ModelConfig, ReplayConfig, SearchConfig
from world_models.unizero.engine import Planning, make_learn, make_planning
from world_models.unizero.learner import make_optimizer, make_target
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.replay import Replay, Sequences
from world_models.unizero.search import Outcome, SearchNumbers, draw, play

IMAGE = ObservationSpec("image", (64, 64, 3), 0, torch.uint8)
ACTIONS = 6
COLUMNS = 60  # of the replay that sequences are drawn from
TEMPERATURE = 0.25


@dataclass(frozen=True)
class Preset:
    """Sizes of a model, of its searches and of its batches."""

    model: ModelConfig
    worlds: int
    simulations: int
    batch: int = 64


TINY = ModelConfig(
    width=64, heads=4, horizon=5, support=20, dropout=0.0, encoder=EncoderConfig(channels=16)
)  # fmt: skip
PRESETS = {"tiny": Preset(TINY, worlds=2, simulations=8), "full": Preset(ModelConfig(), worlds=8, simulations=50)}


@dataclass(frozen=True)
class Case:
    """A preset as it is executed. With `precision` bfloat16 the learner has that and all else tf32."""

    preset: str
    device: str = "cpu"
    engine: Engine = "eager"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    trees: Literal["compiled", "torch"] = "compiled"
    query_per: Literal["auto", "action"] = "auto"
    sizes: Preset | None = None  # in place of the preset's own

    @property
    def size(self) -> Preset:
        """Sizes of all parts."""
        return self.sizes or PRESETS[self.preset]

    @property
    def search(self) -> SearchConfig:
        """As collection searches."""
        return SearchConfig(simulations=self.size.simulations, backend=self.trees, query_per=self.query_per)

    def network(self) -> WorldModel:
        """The same weights at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build(self.size.model, IMAGE, ACTIONS).to(self.device)

    def set_precision(self) -> None:
        """Products of float32 as the case wants them; cases are measured one after another."""
        set_tf32(self.precision != "float32")

    def frames(self, *leading: int) -> Tensor:
        """Noise; (*leading, 64, 64, 3)."""
        draws = torch.Generator().manual_seed(0)
        return torch.randint(256, (*leading, *IMAGE.shape), generator=draws, dtype=torch.uint8).to(self.device)


@dataclass
class Acting:
    """Worlds whose histories are full, and what one step in all of them is made of."""

    case: Case
    draws: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        size, device = self.case.size, torch.device(self.case.device)
        self.draws = torch.Generator(device).manual_seed(0)
        model = enlivened(self.case.network().eval())
        encode, functions = make_planning(self.case.engine, model)
        self.questions: list[tuple[Tensor, ...]] = []
        self.planning = Planning(encode, functions._replace(outcome=self._counted(functions.outcome)))
        self.planner = Planner(model, size.worlds, device, self.case.search, planning=self.planning)
        self.observation = self.case.frames(size.worlds)
        self.going = torch.zeros(size.worlds, dtype=torch.bool, device=device)
        for _ in range(size.model.pairs):
            self.step()

    def step(self) -> Tensor:
        """All of an acting step but the worlds: numbers of chance, search, choice, history."""
        self.questions.clear()
        numbers = self.numbers()
        plan = self.planner.plan(self.observation, numbers)
        action = play(plan.found, numbers, self.case.search, TEMPERATURE)
        self.planner.remember(plan.latent, action, self.going)
        return action

    def numbers(self) -> SearchNumbers:
        """For one search."""
        return draw(self.case.search, self.case.size.worlds, ACTIONS, self.draws)

    def parts(self) -> dict[str, Work]:
        """The step, and its parts alone: `expand` are all questions of one step, `walk` all simulations."""
        encode, functions = self.planning
        with torch.no_grad():
            latent = encode(self.observation)
        self.step()
        window, questions = self.planner.window, list(self.questions)
        return {
            "step": self.step,
            "draw": self.numbers,
            "encode": torch.no_grad()(lambda: encode(self.observation)),
            "root": torch.no_grad()(lambda: functions.root(window, latent)),
            "expand": torch.no_grad()(lambda: [functions.outcome(*question) for question in questions]),
            "walk": self.walk,
        }

    def walk(self) -> None:
        """Selection and backup of a search in which the network says the same of every node."""
        worlds, simulations = self.case.size.worlds, self.case.size.simulations
        window = self.planner.window
        place = torch.device("cpu") if self.case.trees == "compiled" else window.count.device
        prior = torch.full((worlds, ACTIONS), 1 / ACTIONS, dtype=torch.float64, device=place)
        said = torch.cat((torch.zeros(worlds, 2, dtype=torch.float64, device=place), prior), 1)
        ties = torch.full((worlds, simulations), 0.5, dtype=torch.float64, device=place)
        grown = tree.init_tree(prior, simulations, window.action.to(place), window.count.to(place))
        module = compiled_tree if self.case.trees == "compiled" else tree
        walker, free = module.Walker(grown, self.case.search.tree), torch.full((worlds,), -1, device=place)
        for simulation in range(simulations):
            walker.expand(simulation, walker.select(simulation, ties, free), said)

    def _counted(self, outcome: Outcome) -> Outcome:
        def ask(*question: Tensor) -> tuple[Tensor, Tensor]:
            self.questions.append(question)
            return outcome(*question)

        return ask


@torch.no_grad()
def enlivened(model: WorldModel) -> WorldModel:
    """Heads with drawn last layers: zeros, as they begin, make all actions tie, whose trees are flatter than others."""
    draws = torch.Generator().manual_seed(0)
    for head in model.heads.values():
        weight = head[-1].weight  # type: ignore[index]
        weight.copy_(3 * torch.randn(weight.shape, generator=draws) / weight.shape[1] ** 0.5)
    return model


@dataclass
class Learning:
    """A replay of noise and a learner."""

    case: Case

    def __post_init__(self) -> None:
        size, device = self.case.size, torch.device(self.case.device)
        precision: Literal["float32", "bfloat16"] = "bfloat16" if self.case.precision == "bfloat16" else "float32"
        self.config = LearnerConfig(batch_size=size.batch, precision=precision)
        self.model = model = self.case.network()
        optimizer = make_optimizer(model, self.config, capturable=self.case.engine == "cudagraph")
        self.learn = make_learn(self.case.engine, model, make_target(model), optimizer, self.config)
        self.planning = make_planning(self.case.engine, model)
        self.replay = Replay(
            ReplayConfig(COLUMNS * size.worlds), IMAGE, ACTIONS, size.worlds, device, size.model.horizon,
            self.config.n_step, size.model.pairs,
        )  # fmt: skip
        self._fill()
        self.draws = torch.Generator().manual_seed(0)
        self.sequences = self.gather()

    def gather(self) -> Sequences:
        """Draw a batch and collect it."""
        return self.replay.sequences(self.replay.draw(self.config.batch_size, self.draws))

    def parts(self) -> dict[str, Work]:
        """Collecting a batch, everything from there to moved weights, and a batch's policies searched anew."""
        return {"gather": self.gather, "update": lambda: self.learn(self.sequences), "reanalysis": self.reanalyse}

    def reanalyse(self) -> Tensor:
        """Policies (B, T, A) of all steps of a batch, from one search."""
        contexts = self.replay.contexts(self.replay.draw(self.config.batch_size, self.draws))
        numbers = draw(self.case.search, contexts.count.numel(), ACTIONS, self.draws).to(contexts.count.device)
        return search_again(self.model, contexts, numbers, self.case.search, self.planning)

    def _fill(self) -> None:
        worlds = self.case.size.worlds
        nothing = torch.zeros(worlds, dtype=torch.bool)
        for column, frames in enumerate(self.case.frames(COLUMNS, worlds)):
            self.replay.add(
                observation=frames, next_observation=frames, action=torch.arange(worlds) % ACTIONS,
                reward=torch.ones(worlds), terminated=nothing, done=nothing, time=torch.full((worlds,), column),
                policy=torch.ones(worlds, ACTIONS),
            )  # fmt: skip


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
        draws = torch.Generator().manual_seed(0)
        shape = (self.batch, self.heads, tokens, self.width)
        query, key, value = (
            torch.randn(shape, generator=draws).to(self.device).requires_grad_(gradient) for _ in range(3)
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
