"""How large a world model is: `python -m world_models.parameters unizero|glam`.

UniZero: parameters and operations under every prior, beside Table 3 of "Learning to Focus". GLAM: every preset and
sequence form part by part, with frozen parameters and those that no loss reaches apart, and the preset `code` beside
what was counted on the released classes. Prints the tables and writes results/unizero or results/glam.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
import tyro
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from dqn_memory.blocks import PRIORS
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import UserError, one_line_errors
from envs.machine import describe_environment
from envs.tables import Table, Value, origin, page, write_page
from world_models.glam.agent import Agent
from world_models.glam.architecture import FORMS, PRESETS
from world_models.glam.architecture import ModelConfig as GlamConfig
from world_models.glam.branches import Branch, Direct, GlobalMamba, LocalMamba, TransformerStack
from world_models.glam.config import AgentConfig
from world_models.glam.learner import losses
from world_models.glam.model import WorldModel as GlamModel
from world_models.glam.replay import Batch
from world_models.unizero import networks
from world_models.unizero.config import ModelConfig
from world_models.unizero.networks import WorldModel

MODULE = "world_models.parameters"
ATARI = ObservationSpec("image", (3, 64, 64), 0, torch.uint8)
GAMES = {"unizero": (3, 6, 8, 9, 18), "glam": (3, 4, 6, 9, 18)}  # numbers of actions for which totals are printed


@dataclass(frozen=True)
class Args:
    """Count the parameters of a world model."""

    model: tyro.conf.Positional[Literal["unizero", "glam"]]
    """Which world model."""
    actions: int | None = None
    """Actions A of the game (None: Pong's 6 for UniZero, all of Atari's 18 for GLAM)."""
    format: Literal["md", "json"] = "md"
    """What is printed; messages go to standard error."""
    write: bool = True
    """Write parameters.md and parameters.json."""
    results: str | None = None
    """Folder of the two files (None: results/unizero or results/glam)."""

    def check(self) -> None:
        """Raise UserError for what cannot be counted."""
        if self.actions is not None and self.actions < 1:
            raise UserError(f"--actions {self.actions} must be at least 1")


def count(module: nn.Module) -> int:
    """Elements of all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def total(build: Callable[[int], nn.Module], actions: int) -> int:
    """Parameters of a model that is never filled with numbers."""
    with torch.device("meta"):
        return count(build(actions))


def formula(build: Callable[[int], nn.Module]) -> tuple[int, int]:
    """Find base and slope of a count that is linear in the number of actions."""
    one, two = (total(build, actions) for actions in (1, 2))
    return 2 * one - two, two - one


def as_text(line: tuple[int, int]) -> str:
    """Write a formula in numbers."""
    return f"{line[0]:,} + {line[1]:,} A"


# ---- UniZero ---------------------------------------------------------------------------------------------------------

# Table 3 of "Learning to Focus": parameters in millions, of all and of the transformer, and MFLOP of one of its passes.
PRINTED = {
    "Baseline": (20.77, 14.18, 454.611), "Adaptive": (20.77, 14.18, 454.615),
    "Gaussian": (20.77, 14.18, 454.619), "Gaussian Adaptive": (20.77, 14.18, 454.619),
}  # fmt: skip
TOKENS = 16  # the only length that gives the printed number
PRINTED_NOTE = (
    "Printed / ours, in millions. `counted`: one pass of the transformer over 16 tokens without a prior, as torch's "
    "profiler counts: two for each multiply-add of linear maps and matrix products, one for each added or multiplied "
    "element, nothing else. What a prior adds by that rule depends on how its formula is written down, see table3.md."
)
FORMS_NOTE = (
    "`encode`, `root`, `expand`, `train`: all operations in MFLOP (softmax 4 an element, LayerNorm 8, everything else "
    "1) of one frame; a root without history; an expansion without history (windows have one static shape, so a full "
    "one costs the same); the forward pass of a training sequence of 10 steps."
)


def profiler_flop(config: ModelConfig, tokens: int = TOKENS) -> int:
    """Operations of the transformer as torch's profiler counts them: products, biases, residuals and the scaling."""
    width, layers = config.width, config.layers
    linear = 2 * tokens * layers * 12 * width**2
    pairs = layers * 2 * 2 * tokens**2 * width  # scores, and the weighted values
    return linear + pairs + 2 * layers * tokens * width + layers * config.heads * tokens**2


def unizero_tables(actions: int) -> list[Table]:
    """All tables of UniZero's size."""

    def build(count: int) -> WorldModel:
        return networks.build(ModelConfig(), ATARI, count)

    configs = [ModelConfig().with_prior(kind) for kind in PRIORS]
    configs += [ModelConfig(dynamics="recurrent"), ModelConfig(dynamics="gru")]
    forms = [unizero_row(networks.build(config, ATARI, actions).eval()) for config in configs]
    ours = [f"{cast(int, forms[0][name]) / 1e6:.2f}" for name in ("total", "stack")]
    counted = f"{profiler_flop(ModelConfig()) / 1e6:.3f}"
    printed: list[list[Value]] = [
        [row, f"{whole} / {ours[0]}", f"{stack} / {ours[1]}", f"{mflop:.3f}", counted if row == "Baseline" else ""]
        for row, (whole, stack, mflop) in PRINTED.items()
    ]
    games = GAMES["unizero"]
    return [
        Table(
            [f"A = {n}" for n in games], [[total(build, n) for n in games]], f"Parameters: {as_text(formula(build))}"
        ),
        Table(["row", "total (M)", "transformer (M)", "MFLOP", "counted"], printed,
              'Table 3 of "Learning to Focus"', PRINTED_NOTE),
        Table.from_records(forms, "Every form of the model", FORMS_NOTE),
    ]  # fmt: skip


def unizero_row(model: WorldModel) -> dict[str, Value]:
    """Parameters of one model, and the MFLOP of each thing that it is asked for, batch 1."""
    config, dynamics = model.config, model.dynamics
    parts = {name: count(part) for name, part in dynamics.named_children()}
    embedding, positions = parts["embedding"], parts.get("positions", 0)
    latent = torch.zeros(1, config.horizon, config.width)
    action = torch.zeros(1, config.horizon, dtype=torch.int64)
    window, frame = model.window(1), torch.zeros(1, *model.spec.shape, dtype=model.spec.dtype)
    return {
        "dynamics": config.dynamics, "prior": config.prior.kind if config.dynamics == "transformer" else "",
        "total": count(model), "encoder": count(model.encoder), "actions": embedding, "positions": positions,
        "stack": count(dynamics) - embedding - positions,
        "learned_prior": sum(count(attention.prior) for attention in model.attentions()),
        "heads": count(model.heads),
        "encode": f"{mflop(lambda: model.encode(frame)):.3f}",
        "root": f"{mflop(lambda: model.root(window, latent[:, 0])):.3f}",
        "expand": f"{mflop(lambda: model.expand(window, latent[:, 0], action[:, 0])):.3f}",
        "train": f"{mflop(lambda: model(latent, action)):.3f}",
    }  # fmt: skip


@torch.no_grad()
def mflop(work: Callable[[], object]) -> float:
    """Millions of operations that `work` performs, elementwise ones included."""
    with sdpa_kernel(SDPBackend.MATH), Counter() as counter:
        work()
    return round(counter.total / 1e6, 3)


# What one output element costs where it is not one operation: maximum, exponential, sum and division of a softmax;
# mean, difference, square, sum, root, quotient, scale and shift of a LayerNorm.
ELEMENT_COST = {"_softmax": 4, "native_layer_norm": 8}
GRU_SCAN = "dqn_memory::gru_scan"
BESIDE_PRODUCTS = {"addmm": 1, GRU_SCAN: 10}  # a bias; five sums, three nonlinearities, two products a unit
FREE = {"arange", "zeros", "ones", "full", "empty"}  # they create a tensor; the next ones move one
FREE |= {"slice", "select", "where", "masked_fill", "clone", "copy_", "_to_copy", "cat", "stack"}


class Counter(TorchDispatchMode):
    """Adds up the operations of everything that runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if products := _products(name, args, out):
            self.total += products + BESIDE_PRODUCTS.get(name, 0) * _elements(out)
        elif not (func.is_view or name in FREE):
            self.total += ELEMENT_COST.get(name, 1) * _elements(out)
        return out


def _products(name: str, args: Any, out: Any) -> int:
    """Two for each multiply-add of a matrix product or convolution: output elements times what each one sums over."""
    if name in ("addmm", "baddbmm"):
        return 2 * out.numel() * args[1].shape[-1]
    if name in ("mm", "bmm"):
        return 2 * out.numel() * args[0].shape[-1]
    if name == "convolution":
        return 2 * out.numel() * args[1][0].numel()
    if name == GRU_SCAN:  # every position's state meets a matrix (H, 3H)
        return 2 * out[0].numel() * args[1].shape[1]
    return 0


def _elements(out: Any) -> int:
    first = out[0] if isinstance(out, tuple | list) else out
    return first.numel() if isinstance(first, Tensor) and first.is_floating_point() else 0


# ---- GLAM ------------------------------------------------------------------------------------------------------------

PROBE = 8  # frames of the sequence that gradients are looked for with

# Counted on the released classes; the stem has 256 more for each action.
RELEASED = {
    "encoder": 690_624,
    "posterior head": 4_195_328,
    "prior head": 263_168,
    "stem": 328_192,
    "GMamba": 438_272,
    "GMamba projection": 66_048,
    "LMamba": 438_272,
    "LMamba projection": 65_536,
    "reward head": 197_631,
    "termination head": 132_353,
    "decoder": 4_884_931,
    "variation head": 263_168,
    "variation projection": 4_195_328,
}
RELEASED_PER_ACTION = 256
GLAM_NOTE = (
    "`trained` parameters get a gradient from the loss of a random sequence, `frozen` ones ask for none, and "
    "`unreached` ones ask for a gradient that never comes. `buffers` are running statistics of batch normalisation."
)


@dataclass(frozen=True)
class Size:
    """Elements of one part."""

    part: str
    parameters: int  # the next three together
    trained: int
    frozen: int  # parameters that ask for no gradient
    unreached: int  # parameters that ask for a gradient and never get one
    buffers: int  # running statistics of batch normalisation


def glam_tables(actions: int) -> list[Table]:
    """All tables of GLAM's size."""
    made = {name: sizes(build(config, actions)) for name, config in PRESETS.items()}
    tables = [
        Table.from_records(
            map(asdict, rows), f"Preset {name}: {as_text(formula(partial(GlamModel, PRESETS[name])))}", GLAM_NOTE
        )
        for name, rows in made.items()
    ]
    games = GAMES["glam"]
    totals: list[list[Value]] = [
        [name, *(total(partial(GlamModel, c), n) for n in games)] for name, c in PRESETS.items()
    ]
    forms = [
        form_row(name, sizes(build(replace(PRESETS["paper"], sequence=name), actions)))  # type: ignore[arg-type]
        for name in FORMS
    ]
    agent = formula(lambda n: Agent(AgentConfig(), PRESETS["paper"].latent + PRESETS["paper"].width, n))
    return [
        *tables,
        Table(["preset", *(f"A = {n}" for n in games)], totals, "Parameters by actions"),
        Table.from_records([beside_released(row, actions) for row in made["code"]], "`code` and the released classes"),
        Table.from_records(forms, "Preset `paper` under every sequence form", "`reads`: what reads the features."),
        Table.from_records(map(asdict, agent_sizes(actions, PRESETS["paper"])), f"Agent: {as_text(agent)}",
                           "The slow critic is an average of the critic and is not trained."),
    ]  # fmt: skip


def form_row(name: str, rows: Sequence[Size]) -> dict[str, Value]:
    """One sequence form: its readers, and the sums of the whole model."""
    reads = sum(row.parameters for row in rows if "Mamba" in row.part or "Transformer" in row.part)
    whole = rows[-1]
    return {"form": name, "reads": reads, "total": whole.parameters, "trained": whole.trained, "frozen": whole.frozen,
            "unreached": whole.unreached}  # fmt: skip


def beside_released(row: Size, actions: int) -> dict[str, Value]:
    """Compare a part of `code` with what was counted on the released class."""
    released = sum(RELEASED.values()) if row.part == "total" else RELEASED[row.part]
    released += RELEASED_PER_ACTION * actions if row.part in ("stem", "total") else 0
    return {"part": row.part, "released": released, "ours": row.parameters, "equal": released == row.parameters}


def parts(model: GlamModel) -> dict[str, nn.Module]:
    """Divide the model in the order of its forward pass; together these parts hold every parameter."""
    found: dict[str, nn.Module | None] = {
        "encoder": model.encoder,
        "posterior head": model.posterior_head,
        "stem": model.sequence_model.stem,
        **_branches(model),
        "prior head": model.prior_head,
        "reward head": model.reward_head,
        "termination head": model.termination_head,
        "variation head": model.variation_head,
        "variation projection": model.random_projection,
        "decoder": model.decoder,
    }
    return {name: part for name, part in found.items() if part is not None}


def _branches(model: GlamModel) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for number, branch in enumerate(cast(list[Branch], list(model.sequence_model.branches)), start=1):
        if isinstance(branch, Direct):
            kind = "Transformer" if isinstance(branch.stack, TransformerStack) else "Mamba"
            name = f"{kind} {number}"
        else:
            name = "GMamba" if isinstance(branch, GlobalMamba) else "LMamba"
        layers = branch.layers if isinstance(branch, LocalMamba) else branch.stack
        found |= {name: layers, f"{name} projection": branch.project}
    return found


def build(config: GlamConfig, actions: int, seed: int = 0) -> GlamModel:
    """Build a model from a seed without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GlamModel(config, actions)


def unreached(model: GlamModel, seed: int = 0) -> set[str]:
    """Names of the parameters that get no gradient from the loss of a random sequence.

    The sequence opens two episodes, and the floors of the KLs are off: a floor stops gradients for a while only.
    """
    config = model.config
    floorless = replace(config, loss=replace(config.loss, free_bits=0.0, variation_free_bits=0.0))
    batch, noise = _random_sequence(model, torch.Generator().manual_seed(seed))
    model.train().zero_grad()
    losses(model.predictions(batch, noise), batch, floorless)[0].backward()
    return {name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}


def _random_sequence(model: GlamModel, source: torch.Generator) -> tuple[Batch, Tensor]:
    config = model.config
    step = torch.arange(PROBE)[None]
    batch = Batch(
        frames=torch.randint(256, (1, PROBE, 3, config.screen, config.screen), generator=source, dtype=torch.uint8),
        action=torch.randint(model.actions, (1, PROBE), generator=source),
        reward=torch.randn(1, PROBE, generator=source),
        terminated=step == 1,
        first=(step == 0) | (step == 2),
    )
    return batch, torch.rand(1, PROBE, config.categoricals, config.classes, generator=source)


def sizes(model: GlamModel) -> list[Size]:
    """One row for each part that has parameters, and their sum."""
    names = unreached(model)
    silent = {id(p) for name, p in model.named_parameters() if name in names}
    rows = [_size(name, part, silent) for name, part in parts(model).items()]
    return [*(row for row in rows if row.parameters), _size("total", model, silent)]


def _size(name: str, module: nn.Module, silent: set[int]) -> Size:
    learning = [p for p in module.parameters() if p.requires_grad]
    return Size(
        part=name,
        parameters=count(module),
        trained=sum(p.numel() for p in learning if id(p) not in silent),
        frozen=sum(p.numel() for p in module.parameters() if not p.requires_grad),
        unreached=sum(p.numel() for p in learning if id(p) in silent),
        buffers=sum(b.numel() for b in module.buffers() if b.is_floating_point()),
    )


def agent_sizes(actions: int, config: GlamConfig) -> list[Size]:
    """Actor, critic and slow critic at the published size."""
    with torch.device("meta"):
        agent = Agent(AgentConfig(), config.latent + config.width, actions)
    named = {"actor": agent.actor, "critic": agent.critic, "slow critic": agent.slow_critic, "total": agent}
    return [_size(name, module, set()) for name, module in named.items()]


# ---- the script ------------------------------------------------------------------------------------------------------


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count, write, print."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog=f"python -m {MODULE}")
    args.check()
    actions = args.actions or (6 if args.model == "unizero" else 18)
    tables = unizero_tables(actions) if args.model == "unizero" else glam_tables(actions)
    machine = describe_environment()
    facts = origin(MODULE, argv, actions=actions, revision=machine["revision"], dirty=machine["dirty"])
    title = "The size and cost of UniZero" if args.model == "unizero" else "The size of GLAM"
    if args.write:
        folder = Path(args.results or f"results/{args.model}")
        write_page(folder, "parameters", title, facts, tables)
        print(f"wrote {folder}/parameters.md and {folder}/parameters.json", file=sys.stderr)
    if args.format == "json":
        print(json.dumps({table.title: table.records() for table in tables}, indent=1))
    else:
        print(page(title, facts, tables).rstrip())


if __name__ == "__main__":
    main()
