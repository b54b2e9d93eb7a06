"""Scores on a common scale: 0 is a uniformly random player, 1 the best known one, or a human in Atari."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from dqn_memory.runs.errors import UserError, near_names
from envs import baselines


class Scale(NamedTuple):
    """The scores that count as 0 and as 1."""

    zero: float
    one: float

    def __call__(self, score: float) -> float:
        """The score on this scale; below 0 and above 1 are kept."""
        return (score - self.zero) / (self.one - self.zero)


# Random play and a human tester's mean score (Mnih et al. 2015; Wang et al. 2016) in the games of the Atari 100k
# benchmark, under ale-py's names.
HUMAN: Mapping[str, Scale] = {
    "alien": Scale(227.8, 7127.7),
    "amidar": Scale(5.8, 1719.5),
    "assault": Scale(222.4, 742.0),
    "asterix": Scale(210.0, 8503.3),
    "bank_heist": Scale(14.2, 753.1),
    "battle_zone": Scale(2360.0, 37187.5),
    "boxing": Scale(0.1, 12.1),
    "breakout": Scale(1.7, 30.5),
    "chopper_command": Scale(811.0, 7387.8),
    "crazy_climber": Scale(10780.5, 35829.4),
    "demon_attack": Scale(152.1, 1971.0),
    "freeway": Scale(0.0, 29.6),
    "frostbite": Scale(65.2, 4334.7),
    "gopher": Scale(257.6, 2412.5),
    "hero": Scale(1027.0, 30826.4),
    "jamesbond": Scale(29.0, 302.8),
    "kangaroo": Scale(52.0, 3035.0),
    "krull": Scale(1598.0, 2665.5),
    "kung_fu_master": Scale(258.5, 22736.3),
    "ms_pacman": Scale(307.3, 6951.6),
    "pong": Scale(-20.7, 14.6),
    "private_eye": Scale(24.9, 69571.3),
    "qbert": Scale(163.9, 13455.0),
    "road_runner": Scale(11.5, 7845.0),
    "seaquest": Scale(68.4, 42054.7),
    "up_n_down": Scale(533.4, 11693.2),
}


# Of Gymnasium's own worlds: random play (10,000 episodes with seed 0), and what an episode can give at most.
OTHERS: Mapping[str, Scale] = {"CartPole-v1": Scale(22.2, 500.0)}


def world_scale(world: str) -> Scale:
    """Success of random actions, and of the best player known by what it reached, in a world with default options.

    Where the optimum is only bounded the best known player stands at the lower bound, so that a score may exceed 1.
    A UserError names a world for which `envs/baselines/lines.toml` has no lines.
    """
    lines = baselines.lines(world)
    if lines is None:
        known = baselines.known.shipped()
        raise UserError(f"{near_names('world', world, known)}; `python -m envs.baselines` measures others")
    return Scale(lines.random.success.mean, lines.lower.success.mean)


def game(name: str) -> str:
    """ale-py's name of a game, from any spelling: "Ms Pacman", "MsPacman", "ALE/MsPacman-v5"."""
    plain = {candidate.replace("_", ""): candidate for candidate in HUMAN}
    wanted = re.sub(r"[^a-z]", "", re.sub(r"^ALE/|-v\d+$", "", name).lower())
    if wanted not in plain:
        raise UserError(near_names("game with a human score", name, HUMAN))
    return plain[wanted]


def human_normalised(name: str, score: float) -> float:
    """Atari score with 0 at random play and 1 at the human's; a UserError where the game has no human score."""
    return HUMAN[game(name)](score)
