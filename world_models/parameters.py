"""How large a world model is: `python -m world_models.parameters unizero|glam`.

UniZero: parameters and operations under every prior. GLAM: every preset and sequence form part by part, with frozen
parameters and those that no loss reaches apart. Prints the tables and writes results/unizero or results/glam.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import torch
import tyro
from torch import Tensor, nn

from dqn_memory.analysis.size import gigaflop
from dqn_memory.blocks import PRIORS
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.settings import Bounds, check_numbers
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
    actions: Annotated[int, Bounds(1)] | None = None
    """Actions A of the game (None: Pong's 6 for UniZero, all of Atari's 18 for GLAM)."""
    format: Literal["md", "json"] = "md"
    """What is printed; messages go to standard error."""
    write: bool = True
    """Write parameters.md and parameters.json."""
    results: str | None = None
    """Folder of the two files (None: results/unizero or results/glam)."""


def count(module: nn.Module) -> int:
    """Count the elements of all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def total(build: Callable[[int], nn.Module], actions: int) -> int:
    """Count the parameters of a model without storing any."""
    with torch.device("meta"):
        return count(build(actions))


def formula(build: Callable[[int], nn.Module]) -> str:
    """Write a count that is linear in the number of actions A as base and slope."""
    one, two = (total(build, actions) for actions in (1, 2))
    return f"{2 * one - two:,} + {two - one:,} A"


# ---- UniZero ---------------------------------------------------------------------------------------------------------

FORMS_NOTE = (
    "`encode`, `root`, `expand`, `train`: MFLOP of matrix products (two for each multiply-add) of one frame; a root "
    "without history; an expansion without history (windows have one static shape, so a full one costs the same); "
    "the forward pass of a training sequence of 10 steps. What the paper's Table 3 counted stands in table3.md."
)


def unizero_tables(actions: int) -> list[Table]:
    """Make all tables of UniZero's size."""

    def build(count: int) -> WorldModel:
        return networks.build(ModelConfig(), ATARI, count)

    configs = [ModelConfig().with_prior(kind) for kind in PRIORS]
    configs += [ModelConfig(dynamics="recurrent"), ModelConfig(dynamics="gru")]
    forms = [unizero_row(networks.build(config, ATARI, actions).eval()) for config in configs]
    games = GAMES["unizero"]
    return [
        Table(
            [f"A = {n}" for n in games], [[total(build, n) for n in games]], f"Parameters: {formula(build)}"
        ),
        Table.from_records(forms, "Every form of the model", FORMS_NOTE),
    ]  # fmt: skip


def unizero_row(model: WorldModel) -> dict[str, Value]:
    """Count one model's parameters, and the MFLOP of each query to it, batch 1."""
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
    """Count the millions of operations of the matrix products in `work`."""
    return 1e3 * gigaflop(work)


# ---- GLAM ------------------------------------------------------------------------------------------------------------

Size = dict[str, int]  # elements by kind, see GLAM_NOTE
PROBE = 8  # frames of the sequence that gradients are looked for with

GLAM_NOTE = (
    "`trained` parameters get a gradient from the loss of a random sequence, `frozen` ones ask for none, and "
    "`unreached` ones ask for a gradient that never comes. `buffers` are running statistics of batch normalisation."
)


def glam_tables(actions: int) -> list[Table]:
    """Make all tables of GLAM's size."""
    made = {name: sizes(build(config, actions)) for name, config in PRESETS.items()}
    games = GAMES["glam"]
    totals: list[list[Value]] = [
        [name, *(total(partial(GlamModel, c), n) for n in games)] for name, c in PRESETS.items()
    ]
    paper = PRESETS["paper"]
    forms = [
        form_row(name, sizes(build(replace(paper, sequence=name), actions)))  # type: ignore[arg-type]
        for name in FORMS
    ]
    make_agent = partial(Agent, AgentConfig(), paper.latent + paper.width)
    with torch.device("meta"):
        agent = make_agent(actions)
    named = {"actor": agent.actor, "critic": agent.critic, "slow critic": agent.slow_critic, "total": agent}
    return [
        *(size_table(rows, f"Preset {name}: {formula(partial(GlamModel, PRESETS[name]))}", GLAM_NOTE)
          for name, rows in made.items()),
        Table(["preset", *(f"A = {n}" for n in games)], totals, "Parameters by actions"),
        Table.from_records(forms, "Preset `paper` under every sequence form", "`reads`: what reads the features."),
        size_table({name: size(part) for name, part in named.items()}, f"Agent: {formula(make_agent)}",
                   "The slow critic is an average of the critic and is not trained."),
    ]  # fmt: skip


def form_row(name: str, rows: Mapping[str, Size]) -> dict[str, Value]:
    """Give one sequence form's readers, and the sums of the whole model."""
    whole = rows["total"]
    return {
        "form": name,
        "reads": sum(row["parameters"] for part, row in rows.items() if "Mamba" in part or "Transformer" in part),
        "total": whole["parameters"], **{kind: whole[kind] for kind in ("trained", "frozen", "unreached")},
    }  # fmt: skip


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
    """Find the names of the parameters that get no gradient from the loss of a random sequence.

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


def sizes(model: GlamModel) -> dict[str, Size]:
    """Size each part that has parameters, and the whole."""
    names = unreached(model)
    without = {id(p) for name, p in model.named_parameters() if name in names}
    found = {name: size(part, without) for name, part in parts(model).items()}
    return {name: row for name, row in found.items() if row["parameters"]} | {"total": size(model, without)}


def size(module: nn.Module, without: Set[int] = frozenset()) -> Size:
    """Count elements by what becomes of them; `without` holds the ids of the parameters that get no gradient."""
    learning = [p for p in module.parameters() if p.requires_grad]
    return {
        "parameters": count(module),
        "trained": sum(p.numel() for p in learning if id(p) not in without),
        "frozen": sum(p.numel() for p in module.parameters() if not p.requires_grad),
        "unreached": sum(p.numel() for p in learning if id(p) in without),
        "buffers": sum(b.numel() for b in module.buffers() if b.is_floating_point()),
    }


def size_table(rows: Mapping[str, Size], title: str, note: str) -> Table:
    """Make a row of each part."""
    return Table.from_records([{"part": part, **row} for part, row in rows.items()], title, note)


# ---- the script ------------------------------------------------------------------------------------------------------


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count, write, print."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog=f"python -m {MODULE}")
    check_numbers(args)
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
