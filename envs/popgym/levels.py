"""The ids of POPGym's tasks: the class of each, and the keywords that make its level."""

from typing import Any

LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    # RepeatFirst: the delay is the episode's length
    "POPGym/RepeatFirst-Easy-v0": ("envs.popgym.repeat:RepeatFirst", {"decks": 1}),
    "POPGym/RepeatFirst-Medium-v0": ("envs.popgym.repeat:RepeatFirst", {"decks": 8}),
    "POPGym/RepeatFirst-Hard-v0": ("envs.popgym.repeat:RepeatFirst", {"decks": 16}),
    # RepeatPrevious: the answer is the k-th newest card
    "POPGym/RepeatPrevious-Easy-v0": ("envs.popgym.repeat:RepeatPrevious", {"decks": 1, "k": 4}),
    "POPGym/RepeatPrevious-Medium-v0": ("envs.popgym.repeat:RepeatPrevious", {"decks": 2, "k": 32}),
    "POPGym/RepeatPrevious-Hard-v0": ("envs.popgym.repeat:RepeatPrevious", {"decks": 3, "k": 64}),
    # Autoencode: all cards are remembered
    "POPGym/Autoencode-Easy-v0": ("envs.popgym.repeat:Autoencode", {"decks": 1}),
    "POPGym/Autoencode-Medium-v0": ("envs.popgym.repeat:Autoencode", {"decks": 2}),
    "POPGym/Autoencode-Hard-v0": ("envs.popgym.repeat:Autoencode", {"decks": 3}),
    # CountRecall: colours, suits and ranks are counted
    "POPGym/CountRecall-Easy-v0": ("envs.popgym.counting:CountRecall", {"decks": 1, "categories": 2}),
    "POPGym/CountRecall-Medium-v0": ("envs.popgym.counting:CountRecall", {"decks": 2, "categories": 4}),
    "POPGym/CountRecall-Hard-v0": ("envs.popgym.counting:CountRecall", {"decks": 4, "categories": 13}),
    # HigherLower: more decks make single cards tell less
    "POPGym/HigherLower-Easy-v0": ("envs.popgym.counting:HigherLower", {"decks": 1}),
    "POPGym/HigherLower-Medium-v0": ("envs.popgym.counting:HigherLower", {"decks": 2}),
    "POPGym/HigherLower-Hard-v0": ("envs.popgym.counting:HigherLower", {"decks": 3}),
    # MultiarmedBandit: the episode's length grows with the arms
    "POPGym/MultiarmedBandit-Easy-v0": ("envs.popgym.bandit:MultiarmedBandit", {"arms": 10, "time_limit": 200}),
    "POPGym/MultiarmedBandit-Medium-v0": ("envs.popgym.bandit:MultiarmedBandit", {"arms": 20, "time_limit": 400}),
    "POPGym/MultiarmedBandit-Hard-v0": ("envs.popgym.bandit:MultiarmedBandit", {"arms": 30, "time_limit": 600}),
    # Concentration: two colours, then thirteen ranks
    "POPGym/Concentration-Easy-v0": ("envs.popgym.concentration:Concentration", {"cards": 52, "categories": 2}),
    "POPGym/Concentration-Medium-v0": ("envs.popgym.concentration:Concentration", {"cards": 104, "categories": 2}),
    "POPGym/Concentration-Hard-v0": ("envs.popgym.concentration:Concentration", {"cards": 52, "categories": 13}),
    # Battleship: the board's side
    "POPGym/Battleship-Easy-v0": ("envs.popgym.boards:Battleship", {"board": 8}),
    "POPGym/Battleship-Medium-v0": ("envs.popgym.boards:Battleship", {"board": 10}),
    "POPGym/Battleship-Hard-v0": ("envs.popgym.boards:Battleship", {"board": 12}),
    # MineSweeper: the board's side and its mines
    "POPGym/MineSweeper-Easy-v0": ("envs.popgym.boards:MineSweeper", {"board": 4, "mines": 2}),
    "POPGym/MineSweeper-Medium-v0": ("envs.popgym.boards:MineSweeper", {"board": 6, "mines": 6}),
    "POPGym/MineSweeper-Hard-v0": ("envs.popgym.boards:MineSweeper", {"board": 8, "mines": 10}),
    # the cart-poles whose observations are exact: the longest episode
    "POPGym/PositionOnlyCartPole-Easy-v0": ("envs.popgym.control:PositionOnlyCartPole", {"time_limit": 200}),
    "POPGym/PositionOnlyCartPole-Medium-v0": ("envs.popgym.control:PositionOnlyCartPole", {"time_limit": 400}),
    "POPGym/PositionOnlyCartPole-Hard-v0": ("envs.popgym.control:PositionOnlyCartPole", {"time_limit": 600}),
    "POPGym/VelocityOnlyCartPole-Easy-v0": ("envs.popgym.control:VelocityOnlyCartPole", {"time_limit": 200}),
    "POPGym/VelocityOnlyCartPole-Medium-v0": ("envs.popgym.control:VelocityOnlyCartPole", {"time_limit": 400}),
    "POPGym/VelocityOnlyCartPole-Hard-v0": ("envs.popgym.control:VelocityOnlyCartPole", {"time_limit": 600}),
    # the noisy cart-pole and the noisy pendulum: the noise
    "POPGym/NoisyPositionOnlyCartPole-Easy-v0": ("envs.popgym.control:NoisyPositionOnlyCartPole", {"noise": 0.1}),
    "POPGym/NoisyPositionOnlyCartPole-Medium-v0": ("envs.popgym.control:NoisyPositionOnlyCartPole", {"noise": 0.2}),
    "POPGym/NoisyPositionOnlyCartPole-Hard-v0": ("envs.popgym.control:NoisyPositionOnlyCartPole", {"noise": 0.3}),
    "POPGym/NoisyPositionOnlyPendulum-Easy-v0": ("envs.popgym.control:NoisyPositionOnlyPendulum", {"noise": 0.1}),
    "POPGym/NoisyPositionOnlyPendulum-Medium-v0": ("envs.popgym.control:NoisyPositionOnlyPendulum", {"noise": 0.2}),
    "POPGym/NoisyPositionOnlyPendulum-Hard-v0": ("envs.popgym.control:NoisyPositionOnlyPendulum", {"noise": 0.3}),
    # the exact pendulum: the longest episode, the harder the shorter
    "POPGym/PositionOnlyPendulum-Easy-v0": ("envs.popgym.control:PositionOnlyPendulum", {"time_limit": 200}),
    "POPGym/PositionOnlyPendulum-Medium-v0": ("envs.popgym.control:PositionOnlyPendulum", {"time_limit": 150}),
    "POPGym/PositionOnlyPendulum-Hard-v0": ("envs.popgym.control:PositionOnlyPendulum", {"time_limit": 100}),
    # the labyrinths: the maze's size
    "POPGym/LabyrinthEscape-Easy-v0": ("envs.popgym.labyrinth:LabyrinthEscape", {"maze": 10}),
    "POPGym/LabyrinthEscape-Medium-v0": ("envs.popgym.labyrinth:LabyrinthEscape", {"maze": 14}),
    "POPGym/LabyrinthEscape-Hard-v0": ("envs.popgym.labyrinth:LabyrinthEscape", {"maze": 18}),
    "POPGym/LabyrinthExplore-Easy-v0": ("envs.popgym.labyrinth:LabyrinthExplore", {"maze": 10}),
    "POPGym/LabyrinthExplore-Medium-v0": ("envs.popgym.labyrinth:LabyrinthExplore", {"maze": 14}),
    "POPGym/LabyrinthExplore-Hard-v0": ("envs.popgym.labyrinth:LabyrinthExplore", {"maze": 18}),
}
