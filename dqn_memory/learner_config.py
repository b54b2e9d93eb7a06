"""What one double-DQN update is: `LearnerConfig`, its defaults and the combinations that cannot work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dqn_memory.runs.errors import UserError

if TYPE_CHECKING:
    from dqn_memory.network import QNetwork


@dataclass(frozen=True)
class LearnerConfig:
    """The update. The defaults are the corrected form; configs/paper.toml holds the published one."""

    batch: int = 32
    """Windows per update."""
    gamma: float = 0.99
    """Discount per environment step."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    final_rate: float = 1.0
    """Share of every step size that is left at the end of the run, reached on a straight line (1: constant)."""
    prior_lr: float | None = None
    """Step size of learned attention priors (None: as all other parameters)."""
    clip_norm: float = 1.0
    """Largest global L2 norm of the gradient."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss on the temporal-difference error."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network values it."""
    n_step: int = 1
    """Steps of reward before the bootstrap (uncorrected for exploration)."""
    target_every: int = 10_000
    """Updates between hard copies into the target network."""
    average: float = 0.0
    """Decay per update of averaged weights, which evaluations and the saved agent use (0: the online weights). The
    greedy policy of a Q-network swings from update to update; the average of its weights does so less."""
    positions: str = "auto"
    """Positions that the loss trains: all (as published: inner positions of bidirectional networks see the future) |
    prefixes (all, each as the newest one of an acting context, which costs no more than `all`; for causal networks,
    where it is the same, and those whose last layer alone is bidirectional) | last | ends:M (M acting contexts a
    window, each encoded by itself) | auto (prefixes where it works, else ends:4)."""
    targets: Literal["full", "shifted"] = "full"
    """`full` keeps the oldest observation in every target's context; `shifted` reads the window that starts one step
    later, as published, so that a cue seen only in the first observation never reaches a target."""
    placement: Literal["around", "ending"] = "around"
    """Where a drawn step lies in its window: `around` anywhere in it, so that all steps are learned from about equally
    often; `ending` at its end, as published, where a terminal step is in one window and all others in K."""
    terminal_share: float = 0.0
    """Share of windows that are drawn to end at a terminal step (0: as often as they happen)."""
    terminal_weight: float = 1.0
    """Weight of terminal steps in the loss, others have 1. Where only the end pays, what it depends on is told by one
    position in a window's K, and the comparison it takes is learned late."""
    weight_updates: int = 0
    """Updates over which that weight falls to 1, by equal factors (0: it stays). What an end pays by chance is noise to
    all steps before it, so a weight that helps at first is in the way of values later."""
    tails: float = 1.0
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
        if self.positions == "prefixes" and not network.supports_prefixes:
            raise UserError(
                "--positions prefixes needs a network whose last layer alone is bidirectional; use --layers 1 or ends:4"
            )
        if self.positions == "auto":
            return None if network.supports_prefixes else 4
        if self.positions in ("all", "prefixes", "last"):
            return 1 if self.positions == "last" else None
        kind, _, number = self.positions.partition(":")
        if kind != "ends" or not number.isdigit() or int(number) < 1:
            raise UserError(
                f"--positions {self.positions!r} is not known; use all, prefixes, last, ends:M (M >= 1) or auto"
            )
        return int(number)

    def weight_at(self, updates: int) -> float:
        """Weight of terminal steps after that many updates."""
        left = max(0.0, 1 - updates / self.weight_updates) if self.weight_updates else 1.0
        return float(self.terminal_weight**left)

    def check(self, network: QNetwork) -> None:
        """One sentence for every combination that cannot work."""
        ends = self.ends(network)
        if self.targets == "shifted" and not (self.positions == "all" or (network.causal and ends is None)):
            raise UserError(f"--targets shifted needs --positions all, but --positions is {self.positions}")
        if ends is not None and not (self.mask_padding and self.lengths):
            raise UserError(
                f"--positions {self.positions} trains single contexts, which have no padding to keep in the loss; "
                "leave --mask-padding and --lengths on"
            )
        if self.n_step > 1 and self.targets == "shifted":
            raise UserError(f"--n-step {self.n_step} needs --targets full (shifted windows hold one step each)")
        if not 0 <= self.final_rate <= 1:
            raise UserError(f"--final-rate {self.final_rate} must lie between 0 and 1")
        if not 0 <= self.average < 1:
            raise UserError(f"--average {self.average} must be at least 0 and below 1")
        if self.terminal_weight <= 0:
            raise UserError(f"--terminal-weight {self.terminal_weight} must be above 0")
        if self.terminal_weight != 1 and (ends is not None or not self.mask_padding):
            raise UserError(
                f"--terminal-weight {self.terminal_weight} weighs steps among all positions of a window; it needs "
                "--positions all or prefixes, and --mask-padding"
            )
        if not 0 < self.tails <= 1:
            raise UserError(f"--tails {self.tails} must be above 0 and at most 1")
        if self.tails < 1 and (ends is not None or not self.mask_padding or self.targets == "shifted"):
            raise UserError(
                f"--tails {self.tails} leaves steps out of windows; it needs --positions all or prefixes, "
                "--targets full and --mask-padding"
            )
        if self.weight_updates < 0:
            raise UserError(f"--weight-updates {self.weight_updates} must not be negative")
        if not 0 <= self.terminal_share <= 1:
            raise UserError(f"--terminal-share {self.terminal_share} must lie between 0 and 1")
        for name in ("batch", "n_step", "target_every"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1")
