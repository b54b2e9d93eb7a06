"""Count the parameters of a world model: `python -m world_models.parameters unizero|glam`.

UniZero: parameters and operations under every prior. GLAM: the parts of every preset and sequence form, with separate
counts of frozen parameters and of those without a gradient. Prints tables; --write FOLDER writes them to parameters.*
too.
"""

import sys
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import nn

from dqn_memory.blocks import PRIORS
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import one_line_errors
from dqn_memory.runs.settings import Bounds, check_numbers, read_config
from dqn_memory.size import count, gigaflop
from envs.cli import WriteArgs
from envs.machine import git_state
from envs.tables import Table, Value, origin, publish
from world_models.glam import acting
from world_models.glam.config import FORMS, GlamConfig
from world_models.glam.layers import TransformerLayer
from world_models.glam.model import GlamModel
from world_models.glam.replay import FrameBatch
from world_models.glam.sequences import Direct, LocalMamba
from world_models.glam.train import model_losses
from world_models.unizero import networks
from world_models.unizero.config import UniZeroModelConfig
from world_models.unizero.networks import UniZeroModel

MODULE = "world_models.parameters"
TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOKENS = 16  # of the pass in Table 3 of "Learning to Focus": no other number reproduces its values
ATARI = ObservationSpec("image", (3, 64, 64), 0, torch.uint8)
Row = dict[str, Value]
Size = dict[str, int]  # elements by kind


@dataclass(frozen=True)
class WorldModelSizeArgs(WriteArgs):
    """Count the parameters of a world model."""

    model: tyro.conf.Positional[Literal["unizero", "glam"]]
    """World model to count."""
    actions: Annotated[int, Bounds(1)] | None = None
    """Actions A of the game (None: Pong's 6 for UniZero, all of Atari's 18 for GLAM)."""


def total(build: Callable[[int], nn.Module], actions: int) -> int:
    """Count the parameters of a model without allocating them."""
    with torch.device("meta"):
        return count(build(actions)).parameters


def formula(build: Callable[[int], nn.Module]) -> str:
    """Write a count, linear in the number of actions A, as base and slope."""
    one, two = (total(build, actions) for actions in (1, 2))
    return f"{2 * one - two:,} + {two - one:,} A"


# ---- UniZero ---------------------------------------------------------------------------------------------------------
def unizero_tables(actions: int) -> list[Table]:
    """Make all tables of UniZero's size."""
    build: Any = partial(networks.build_unizero, UniZeroModelConfig(), ATARI)
    totals: Row = {f"A = {n}": total(build, n) for n in TEXTS["unizero"]["games"]}
    configs = [UniZeroModelConfig().with_prior(kind) for kind in PRIORS]
    configs += [UniZeroModelConfig(dynamics="recurrent"), UniZeroModelConfig(dynamics="gru")]
    forms = [unizero_row(networks.build_unizero(config, ATARI, actions).eval()) for config in configs]
    return [
        Table.from_records([totals], f"Parameters: {formula(build)}"),
        Table.from_records(forms, "Every form of the model", TEXTS["unizero"]["note"]),
        Table.from_records(
            table3(UniZeroModelConfig()), 'Table 3 of "Learning to Focus"', TEXTS["unizero"]["table3"]["note"]
        ),
    ]


def table3(config: UniZeroModelConfig) -> list[Row]:
    """Count the transformer's MFLOP as in Table 3 of "Learning to Focus", beside its printed values."""
    tokens, layers, width = TOKENS, config.layers, config.width
    linear = 2 * tokens * layers * 12 * width**2
    products = layers * 2 * 2 * tokens**2 * width  # of queries and keys, of weights and values
    scores, heads = layers * config.heads * tokens**2, layers * config.heads
    plain = linear + products + 2 * layers * tokens * width + scores  # with residuals, and the scores' scaling
    return [
        {
            "row": row["row"], "logits": row["logits"], "printed": f"{row['printed']:.3f}",
            "counted": f"{(plain + row['scores'] * scores + row['heads'] * heads) / 1e6:.3f}",
        }
        for row in TEXTS["unizero"]["table3"]["rows"]
    ]  # fmt: skip


@torch.no_grad()
def unizero_row(model: UniZeroModel) -> Row:
    """Count one model's parameters, and the MFLOP of each of its functions for one row."""
    config, dynamics = model.config, model.dynamics
    parts = {name: count(part).parameters for name, part in dynamics.named_children()}
    embedding, positions = parts["embedding"], parts.get("positions", 0)
    latent = torch.zeros(1, config.horizon, config.width)
    action = torch.zeros(1, config.horizon, dtype=torch.int64)
    history, frame = model.empty_history(1), torch.zeros(1, *model.spec.shape, dtype=model.spec.dtype)
    return {
        "dynamics": config.dynamics, "prior": config.prior.kind if config.dynamics == "transformer" else "",
        "total": count(model).parameters, "encoder": count(model.encoder).parameters, "actions": embedding,
        "positions": positions, "stack": count(dynamics).parameters - embedding - positions,
        "learned_prior": sum(count(attention.prior).parameters for attention in model.attentions()),
        "heads": count(model.heads).parameters,
        "encode": f"{1e3 * gigaflop(lambda: model.encode(frame)):.3f}",
        "root": f"{1e3 * gigaflop(lambda: model.root(history, latent[:, 0])):.3f}",
        "expand": f"{1e3 * gigaflop(lambda: model.expand(history, latent[:, 0], action[:, 0])):.3f}",
        "train": f"{1e3 * gigaflop(lambda: model(latent, action)):.3f}",
    }  # fmt: skip


# ---- GLAM ------------------------------------------------------------------------------------------------------------
def glam_tables(actions: int) -> list[Table]:
    """Make all tables of GLAM's size."""
    configs = {name: read_config(GlamConfig, f"glam/{name}") for name in ("paper", "code", "fast")}
    device = torch.get_default_device()
    paper, tables, totals = configs["paper"], list[Table](), list[Row]()
    for name, config in configs.items():
        make = partial(GlamModel, config.model)
        rows: list[Row] = [
            {"part": part, **row} for part, row in part_sizes(acting.build_glam(config, actions, 0, device)[0]).items()
        ]
        tables.append(Table.from_records(rows, f"Preset {name}: {formula(make)}", TEXTS["glam"]["note"]))
        totals.append({"preset": name} | {f"A = {n}": total(make, n) for n in TEXTS["glam"]["games"]})
    changed = (replace(paper, model=replace(paper.model, sequence=name)) for name in FORMS)
    forms = [form_row(acting.build_glam(config, actions, 0, device)[0]) for config in changed]
    agent = acting.build_glam(paper, actions, 0, device)[1]
    named = {"actor": agent.actor, "critic": agent.critic, "slow critic": agent.slow_critic, "total": agent}
    agents: list[Row] = [{"part": name, **count_by_fate(part)} for name, part in named.items()]
    title = f"Agent: {formula(lambda number: acting.build_glam(paper, number, 0, torch.get_default_device())[1])}"
    return [
        *tables,
        Table.from_records(totals, "Parameters by actions"),
        Table.from_records(forms, "Preset `paper` under every sequence form", "`reads`: parameters of its layers."),
        Table.from_records(agents, title, "The slow critic is an average of the critic and is not trained."),
    ]


def form_row(model: GlamModel) -> Row:
    """Count the parameters of one sequence form's readers, and of the model."""
    rows = part_sizes(model)
    readers = sum(row["parameters"] for part, row in rows.items() if "Mamba" in part or "Transformer" in part)
    kinds = {kind: rows["total"][kind] for kind in ("trained", "frozen", "unreached")}
    return {"form": model.config.sequence, "reads": readers, "total": rows["total"]["parameters"], **kinds}


def glam_parts(model: GlamModel) -> dict[str, nn.Module]:
    """Divide the model into parts, in the order of its forward pass; every parameter is in a part."""
    core: Any = model.sequence_model
    found = {"encoder": model.encoder, "posterior head": model.posterior_head, "stem": core.stem}
    for number, branch in enumerate(core.branches, start=1):
        local = isinstance(branch, LocalMamba)
        name = "LMamba" if local else "GMamba"
        if type(branch) is Direct:
            kind = "Transformer" if isinstance(branch.stack.layers[0], TransformerLayer) else "Mamba"
            name = f"{kind} {number}"
        found |= {name: branch.layers if local else branch.stack, f"{name} projection": branch.project}
    for attribute in ("prior_head", "reward_head", "termination_head", "variation_head"):
        found[attribute.replace("_", " ")] = getattr(model, attribute)
    found |= {"variation projection": model.random_projection, "decoder": model.decoder}
    return {name: part for name, part in found.items() if part is not None and count(part).parameters}


def unreached(model: GlamModel, probe: int = 8) -> set[str]:
    """Find the names of the parameters that get no gradient from the loss of a random sequence of `probe` frames.

    Two episodes begin in the sequence. The floors of the KLs are off, as they stop gradients only at times.
    """
    config, source = model.config, torch.Generator().manual_seed(0)
    floorless = replace(config, loss=replace(config.loss, free_bits=0.0, variation_free_bits=0.0))
    step = torch.arange(probe)[None]
    batch = FrameBatch(
        frames=torch.randint(256, (1, probe, 3, config.screen, config.screen), generator=source, dtype=torch.uint8),
        action=torch.randint(model.num_actions, (1, probe), generator=source),
        reward=torch.randn(1, probe, generator=source),
        terminated=step == 1,
        first=(step == 0) | (step == 2),
    )
    model.train().zero_grad()
    model_losses(model.predictions(batch, model.noise((1, probe), source)), batch, floorless)[0].backward()
    return {name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}


def part_sizes(model: GlamModel) -> dict[str, Size]:
    """Count each part with parameters, and the model."""
    names = unreached(model)
    without = {id(p) for name, p in model.named_parameters() if name in names}
    return {name: count_by_fate(part, without) for name, part in {**glam_parts(model), "total": model}.items()}


def count_by_fate(module: nn.Module, without: Collection[int] = ()) -> Size:
    """Count trained, frozen and unreached elements; `without` has the ids of parameters without a gradient."""
    counts, missed = count(module), sum(p.numel() for p in module.parameters() if id(p) in without)
    return {
        "parameters": counts.parameters, "trained": counts.trainable - missed,
        "frozen": counts.frozen, "unreached": missed,
        "buffers": sum(b.numel() for b in module.buffers() if b.is_floating_point()),
    }  # fmt: skip


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print; write if --write is set."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(WorldModelSizeArgs, args=argv, prog=f"python -m {MODULE}")
    check_numbers(args)
    actions = args.actions or TEXTS[args.model]["actions"]
    tables = unizero_tables(actions) if args.model == "unizero" else glam_tables(actions)
    facts = origin(MODULE, argv, actions=actions, **git_state())
    publish(tables, args.write, "parameters", TEXTS[args.model]["title"], facts)


if __name__ == "__main__":
    main()
