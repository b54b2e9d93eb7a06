"""The ids of POPGym's tasks: the class of each, and the keywords that make its level."""

from typing import Any

LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
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
