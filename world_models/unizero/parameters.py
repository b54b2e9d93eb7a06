"""How large the world model is and what it costs: `python -m world_models.unizero.parameters`.

Checks Table 3 of "Learning to Focus" cell by cell, and counts all operations of every prior beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dqn_memory.runs.errors import one_line_errors
from world_models.size_report import Counting, cell, publish, table
from world_models.unizero.table3 import PRINTED, Size, Spelling, sizes, spellings, verdict

GAMES = (3, 6, 8, 9, 18)  # numbers of actions for which totals are printed

EXPLANATION = """\
- **counted**: one pass of the transformer over 16 tokens, batch 1, by the rule that gives the printed 454.611: two for
  each multiply-add of linear maps and matrix products, one for each added or multiplied element (residuals, biases,
  scaling, priors), and nothing for subtraction, division, powers, exponentials, softmax, LayerNorm, GELU and masks. A
  prior costs what its spelling happens to hold of the counted two; every spelling is listed. e is
  (d - mu)^2 / (2 sigma^2), tri is max(0, 1 - d / L), m the ramp.
- **all**: every operation of the same pass (softmax 4 an element, LayerNorm 8, everything else 1).
- **encode, root, expand, train**: all operations, in MFLOP, of what this model runs: one frame; a root without history;
  an expansion without history (windows have one static shape, so a full one costs the same); the forward pass of
  a training sequence of 10 steps. Priors are tables by distance here, and do not grow with the number of pairs."""


@dataclass(frozen=True)
class Args(Counting):
    """Count the parameters and the operations of the published world model under every prior."""

    actions: int = 6
    """Actions A of the game (6: Pong)."""
    results: str = "results/unizero"
    """Folder of the two files."""


def report(args: Args) -> dict[str, Any]:
    """All numbers as plain values."""
    tried, counted = spellings(args.actions), sizes(args.actions)
    base = counted[0].total - 1537 * args.actions  # an embedding row, a policy column and its bias for each action
    return {
        "actions": args.actions,
        "total": counted[0].total,
        "total_without_actions": base,
        "parameters_per_action": 1537,
        "totals_by_actions": {str(n): base + 1537 * n for n in GAMES},
        "table3": [
            {**asdict(row), "transformer_counted": counted[0].stack, "verdict": verdict(row, tried)} for row in PRINTED
        ],
        "spellings": [asdict(spelling) for spelling in tried],
        "models": [asdict(size) for size in counted],
    }


def markdown(numbers: dict[str, Any], origin: Sequence[str]) -> str:
    """The whole report as a page."""
    tried = [Spelling(**row) for row in numbers["spellings"]]
    models = [Size(**row) for row in numbers["models"]]
    totals = ", ".join(f"A = {n}: {total:,}" for n, total in numbers["totals_by_actions"].items())
    return "\n\n".join([
        "# The world model's size and cost",
        "\n".join(f"- {line}" for line in origin),
        f"Total {numbers['total_without_actions']:,} + {numbers['parameters_per_action']:,} A parameters ({totals}); "
        f"transformer {models[0].stack:,}; adaptive priors add 16, Gaussian 32, both 48.",
        "## Table 3 of \"Learning to Focus\"",
        table(["row", "total (M)", "transformer (M)", "MFLOP", "verdict"],
               [[row["row"], f"{row['total']} / {numbers['total'] / 1e6:.2f}",
                 f"{row['transformer']} / {row['transformer_counted'] / 1e6:.2f}", f"{row['mflop']:.3f}",
                 row["verdict"]] for row in numbers["table3"]]),
        "Printed / ours. The released class of the last row raises an error at 16 tokens, so that row was measured "
        "on other code; it is the released formula that gives its number. Under the paper's own equations the same "
        "rule gives several numbers, one for each spelling below.",
        "## How a prior is spelled",
        EXPLANATION,
        table(["row", "printed", "prior", "source", "logits", "counted", "all"],
               [[s.row, f"{s.printed:.3f}", s.prior, s.source, f"`{s.formula}`",
                 f"{s.flop / 1e6:.6f} {'✓' if s.matches else '✗'}", f"{s.all_flop / 1e6:.6f}"] for s in tried]),
        "## Every form of the model",
        table(list(numbers["models"][0]), [[cell(value) for value in asdict(size).values()] for size in models]),
    ]) + "\n"  # fmt: skip


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count, write, print."""
    publish(Args, "world_models.unizero.parameters", argv, report, markdown)


if __name__ == "__main__":
    main()
