"""What one double-DQN update is: `LearnerConfig`, its defaults and the combinations that cannot work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds

if TYPE_CHECKING:
    from dqn_memory.network import QNetwork


@dataclass(frozen=True)
class LearnerConfig:
    """The update. The defaults are the corrected form; configs/paper.toml holds the published one."""

    batch_size: Annotated[int, Bounds(1)] = 32
    """Windows per update."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount per environment step."""
    learning_rate: Annotated[float, Bounds(above=0)] = 3e-4
    """Adam's step size."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 1.0
    """Share of every step size that is left at the end of the run, reached on a straight line (1: constant)."""
    prior_learning_rate: Annotated[float, Bounds(0)] | None = None
    """Step size of learned attention priors (None: as all other parameters)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 1.0
    """Largest global L2 norm of the gradient."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss on the temporal-difference error."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network values it."""
    n_step: Annotated[int, Bounds(1)] = 1
    """Steps of reward before the bootstrap (uncorrected for exploration)."""
    target_update_every: Annotated[int, Bounds(1)] = 10_000
    """Updates between hard copies into the target network."""
    ema_decay: Annotated[float, Bounds(0, below=1)] = 0.0
    """Decay per update of averaged weights, which evaluations and the saved agent use (0: the online weights). The
    greedy policy of a Q-network swings from update to update; the average of its weights does so less."""
    loss_positions: str = "auto"
    """Positions that the loss trains: all (as published: inner positions of bidirectional networks see the future) |
    prefixes (all, each as the newest one of an acting context, which costs no more than `all`; for causal networks,
    where it is the same, and those whose last layer alone is bidirectional) | last | ends:M (M acting contexts a
    window, each encoded by itself) | auto (prefixes where it works, else ends:4)."""
    targets: Literal["full", "shifted"] = "full"
    """`full` keeps the oldest observation in every target's context; `shifted` reads the window that starts one step
    later, as published, so that a cue seen only in the first observation never reaches a target."""
    window_placement: Literal["around", "ending"] = "around"
    """Where a drawn step lies in its window: `around` anywhere in it, so that all steps are learned from about equally
    often; `ending` at its end, as published, where a terminal step is in one window and all others in K."""
    terminal_fraction: Annotated[float, Bounds(0, 1)] = 0.0
    """Share of windows that are drawn to end at a terminal step (0: as often as they happen)."""
    terminal_weight: Annotated[float, Bounds(above=0)] = 1.0
    """Weight of terminal steps in the loss, others have 1. Where only the end pays, what it depends on is told by one
    position in a window's K, and the comparison it takes is learned late."""
    terminal_weight_updates: Annotated[int, Bounds(0)] = 0
    """Updates over which that weight falls to 1, by equal factors (0: it stays). What an end pays by chance is noise to
    all steps before it, so a weight that helps at first is in the way of values later."""
    tail_fraction: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """Share of a batch's windows that also train the steps which bootstrap behind the window's end. The network acts
    there on a window that starts one step later, which costs two more forward passes for one position. With a smaller
    share the other windows leave these steps out and the remaining ones weigh its inverse: the expected gradient, for
    less."""
    mask_padding: bool = True
    """Leave padding out of the loss (published: it is in the loss)."""
    lengths: bool = True
    """Tell the network where padding begins (published: it does not know)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Autocast precision of the forward passes."""

    def ends(self, network: QNetwork) -> int | None:
        """Acting contexts a window that are encoded one by one, None where losses are on all positions of windows.

        A UserError names a malformed word, or one that does not fit the network.
        """
        if self.loss_positions == "prefixes" and not network.supports_prefixes:
            raise UserError(
                "--loss-positions prefixes needs a network whose last layer alone is bidirectional; use --layers 1 or "
                "ends:4"
            )
        if self.loss_positions == "auto":
            return None if network.supports_prefixes else 4
        if self.loss_positions in ("all", "prefixes", "last"):
            return 1 if self.loss_positions == "last" else None
        kind, _, number = self.loss_positions.partition(":")
        if kind != "ends" or not number.isdigit() or int(number) < 1:
            raise UserError(
                f"--loss-positions {self.loss_positions!r} is not known; use all, prefixes, last, ends:M (M >= 1) or "
                "auto"
            )
        return int(number)

    def weight_at(self, updates: int) -> float:
        """Weight of terminal steps after that many updates."""
        left = max(0.0, 1 - updates / self.terminal_weight_updates) if self.terminal_weight_updates else 1.0
        return float(self.terminal_weight**left)

    def check(self, network: QNetwork) -> None:
        """One sentence for every combination that cannot work."""
        ends = self.ends(network)
        if self.targets == "shifted" and not (self.loss_positions == "all" or (network.causal and ends is None)):
            raise UserError(
                f"--targets shifted needs --loss-positions all, but --loss-positions is {self.loss_positions}"
            )
        if ends is not None and not (self.mask_padding and self.lengths):
            raise UserError(
                f"--loss-positions {self.loss_positions} trains single contexts, which have no padding to keep in the "
                "loss; leave --mask-padding and --lengths on"
            )
        if self.n_step > 1 and self.targets == "shifted":
            raise UserError(f"--n-step {self.n_step} needs --targets full (shifted windows hold one step each)")
        if self.terminal_weight != 1 and (ends is not None or not self.mask_padding):
            raise UserError(
                f"--terminal-weight {self.terminal_weight} weighs steps among all positions of a window; it needs "
                "--loss-positions all or prefixes, and --mask-padding"
            )
        if self.tail_fraction < 1 and (ends is not None or not self.mask_padding or self.targets == "shifted"):
            raise UserError(
                f"--tail-fraction {self.tail_fraction} leaves steps out of windows; it needs --loss-positions all or "
                "prefixes, --targets full and --mask-padding"
            )
