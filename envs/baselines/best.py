"""What is known of the best scores of an environment: bounds, and the best scores with less memory or none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.baselines.players import Player, play_episodes, sampled_level
from envs.baselines.reference import Level, Measure
from envs.core import World

EXACT, BY_RULES = "exact", "upper by the rules"


@dataclass(frozen=True)
class Budget:
    """The computation budget."""

    episodes: int = 4_000
    """Number of episodes of random actions and of players."""
    seed: int = 0
    """Seed of environments and players."""
    gap: float = 0.01
    """Difference of the bounds on a tabular environment's discounted value that ends their search."""
    size: int = 2_500
    """Maximum number of vectors and points in these bounds."""


@dataclass(frozen=True)
class Best:
    """Bounds on the best success and the best return; of a tabular environment also on the discounted value.

    `lines` are the best scores by less than a memory, by their names in `reference.LESS`.
    """

    lower: Level | None  # None: no player is known; random actions or the shipped row replace it
    upper: Level
    discounted: dict[str, float] | None = None
    lines: Mapping[str, Level] = field(default_factory=dict)


def exact_return(returns: float, kind: str = EXACT) -> Level:
    """Make the level of an exact return in an environment without success."""
    return Level(Measure(0.0), Measure(returns), kind)


def best_of(*levels: Level) -> Level:
    """Choose the level with the highest return, of equal ones the first."""
    return max(levels, key=lambda level: level.returns.mean)


def lined(observation: Level, clock: Level, one_step: Level, perfect: Level, upper: Level | None = None) -> Best:
    """Put the lines together; without `upper` what a perfect memory gets is exact.

    Who knows more can play by the rule of who knows less, so a line is at least as high as those of less knowledge.
    """
    clock, one_step = best_of(clock, observation), best_of(one_step, observation)
    lines = {"observation": observation, "clock": clock, "one step": one_step}
    return Best(perfect if upper is None else best_of(perfect, clock, one_step), upper or perfect, lines=lines)


class Played:
    """Plays players in one World, and names the rules by which they play."""

    def __init__(self, world: World[Any], budget: Budget) -> None:
        self.world, self.budget = world, budget

    def __call__(self, rule: str, player: Player) -> Level:
        """Play a lower bound."""
        return self.level(f"lower by {rule}", player)

    def level(self, kind: str, player: Player) -> Level:
        """Play `budget.episodes` episodes."""
        return sampled_level(play_episodes(self.world, player, self.budget.episodes, self.budget.seed), kind)

    def best(self, rules: Mapping[str, Player]) -> Level:
        """Play several players; return the level with the best return."""
        return best_of(*(self(rule, player) for rule, player in rules.items()))
