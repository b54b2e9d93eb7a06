"""Atari games, N at once: the only module that uses ale-py.

The emulators run in parallel in ale-py's own vector environment. All its settings are passed, so that no default of
ale-py matters. Frames and rewards equal those of the classic wrappers.
"""

import re
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.actions import Actions
from envs.core import Step
from envs.errors import check_known, require
from envs.extras import extra
from envs.replayed import ReplayedVector, spawn_seeds
from envs.spaces import Array


# UniZero's default is sticky 0.25, as in the text of "Learning to Focus". Its released code plays v4 games (sticky 0)
# and truncates after 108,000 actions, which are 432,000 frames.
@dataclass(frozen=True)
class AtariConfig:
    """Settings of Atari games alone: frames, actions and episodes."""

    size: int = 64
    """Height and width of a frame in pixels."""
    grayscale: bool = False
    """One channel instead of three."""
    frame_skip: int = 4
    """Emulator frames per action; the last two are merged by their maximum."""
    sticky: float = 0.0
    """Probability that an emulator frame repeats the last action (0.25: Machado et al. 2018; 0: v4 games)."""
    noops: int = 30
    """Maximum of the uniformly random number of no-ops at the start of an episode (0: none)."""
    most_frames: int = 108_000
    """Emulator frames after which an episode is truncated (108,000: half an hour of play)."""

    def check(self) -> None:
        require(0 <= self.sticky < 1, f"sticky {self.sticky} must be at least 0 and below 1.")
        for name in ("size", "frame_skip", "most_frames"):
            require(getattr(self, name) >= 1, f"{name} {getattr(self, name)} must be at least 1.")
        require(self.noops >= 0, f"noops {self.noops} must not be negative.")


@dataclass
class AtariStep(Step):
    """A vector's step with the rows that lost a life, which ends the agent's returns but not the game."""

    life_lost: Tensor  # (N,) bool


class AtariVector(ReplayedVector):
    """N copies of one game, each reset when it ends; frames (N, C, size, size) uint8, rewards unclipped.

    Success is a positive return: Atari reports none of its own.
    """

    reports_success = False
    actions = Actions(18)  # of the console; a game has some of them

    def __init__(
        self, game: str, num_envs: int, seed: int, device: str | torch.device = "cpu", config: AtariConfig | None = None
    ) -> None:
        super().__init__(game, num_envs, device)
        self.config = config or AtariConfig()
        self.config.check()
        self.game, self.seeds = rom(game), spawn_seeds(seed, num_envs)
        self._build()
        shape = (1 if self.config.grayscale else 3, self.config.size, self.config.size)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.actions = Actions(int(self.games.single_action_space.n))

    def reset(self) -> Tensor:
        """Start all games; returns the first frames (N, C, size, size).

        The first reset uses the seeds themselves; later ones spawn new seeds from them.
        """
        if self.observation is not None:
            self._reseed()
        return self._start(self.seeds)

    def frame(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one game as a picture (size, size, 3)."""
        picture = np.moveaxis(self._current()[row], 0, -1)
        return np.repeat(picture, 3, -1) if self.config.grayscale else picture.copy()

    def close(self) -> None:
        self.games.close()

    def _build(self) -> None:
        self.games = _games(self.game, self.num_envs, self.config)

    def _first(self, seeds: list[int] | None) -> Array:
        frames, info = self.games.reset(seed=np.array(seeds))
        self._lives = info["lives"].copy()
        return self._arranged(frames)

    def _step(self, chosen: list[int]) -> AtariStep:
        """Step every game; ale-py resets finished ones."""
        frames, rewards, ended, cut, info = self.games.step(np.array(chosen))
        terminated = ended.astype(bool)
        truncated = cut.astype(bool) & ~terminated
        done = terminated | truncated
        self.observation = self._arranged(frames)
        final = self.observation.copy()
        if done.any():
            final[done] = self._arranged(info["final_obs"])[done]
        lost = (info["lives"] < self._lives) & ~done
        self._lives = info["lives"].copy()
        self._count(rewards)
        success = done & (self.returns > 0)
        return AtariStep(**self._fields(final, rewards, terminated, truncated, success), life_lost=self._tensor(lost))

    def _arranged(self, frames: Array) -> Array:
        """Copy ale-py's (N, 1, H, W[, 3]) as (N, C, H, W)."""
        return np.ascontiguousarray(frames if self.config.grayscale else np.moveaxis(frames[:, 0], -1, 1))


def rom(game: str) -> str:
    """Convert "Pong", "MsPacman", "ms_pacman" or "ALE/Pong-v5" to ale-py's spelling."""
    with extra("atari"):
        from ale_py.roms import get_all_rom_ids
    plain = re.sub(r"-v\d+$", "", game.removeprefix("envs:").removeprefix("ALE/")).removesuffix("NoFrameskip")
    known = set(get_all_rom_ids())
    spelt = {name.replace("_", ""): name for name in known}  # UpNDown: not every word begins with a capital
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
    return check_known("Atari game", spelt.get(plain.lower().replace("_", ""), name), known)


def _games(game: str, count: int, config: AtariConfig) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        game,
        num_envs=count,
        batch_size=0,  # all games in every step
        num_threads=0,  # the emulators choose
        thread_affinity_offset=-1,  # threads are not bound to processors
        max_num_frames_per_episode=config.most_frames,
        repeat_action_probability=config.sticky,
        full_action_space=False,
        continuous=False,
        continuous_action_threshold=0.5,  # no effect: no action is continuous
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        img_height=config.size,
        img_width=config.size,
        grayscale=config.grayscale,
        stack_num=1,
        frameskip=config.frame_skip,
        maxpool=True,
        noop_max=config.noops,
        episodic_life=False,  # True would restart the game after each life
        life_loss_info=False,  # True would report the end of a life as the end of the game
        reward_clipping=False,
        use_fire_reset=False,
    )
