"""Does a vector environment do what N single ones do? Gymnasium checks single environments only.

    check_registered("POMDP/CarFlag-v0", time_limit=20)
    check_vector_env(lambda n, mode: MyVectorEnv(n, autoreset_mode=mode), MyEnv)

Every step of the vector environment is held against single environments with the same seeds and actions: spaces,
dtypes and shapes, observations, rewards, both flags, infos, final observations, all three autoreset modes, seeds and
`reset_mask`. The first difference is raised as one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.errors import UserError
from envs.spaces import row

Array = np.ndarray[Any, np.dtype[Any]]
MakeVector = Callable[[int, AutoresetMode], VectorEnv[Any, Any, Any]]
Seeds = Any  # what `VectorEnv.reset` takes; Gymnasium's annotation allows an integer only
MakeSingle = Callable[[], gymnasium.Env[Any, Any]]


def check_registered(id: str, num_envs: int = 3, steps: int = 100, seed: int = 0, **kwargs: Any) -> None:
    """Check what `gymnasium.make_vec(id)` gives against what `gymnasium.make(id)` gives, both with `kwargs`.

    Raises:
        UserError: the first difference.
    """

    def make_vector(count: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        return gymnasium.make_vec(id, num_envs=count, autoreset_mode=mode, **kwargs)

    check_vector_env(make_vector, lambda: gymnasium.make(id, **kwargs), num_envs, steps, seed)


def check_vector_env(
    make_vector: MakeVector, make_single: MakeSingle, num_envs: int = 3, steps: int = 100, seed: int = 0
) -> None:
    """Check a vector environment against single ones in every autoreset mode.

    Args:
        make_vector: gives the environment with that many rows in that mode.
        make_single: gives one row of it; episodes must end within `steps`, and `info["success"]` tell how.
        num_envs: rows.
        steps: random actions in each mode.
        seed: of the environments and of the actions.

    Raises:
        UserError: the first difference.
    """
    for mode in AutoresetMode:
        vector, single = make_vector(num_envs, mode), SingleRows(make_single, num_envs)
        try:
            _check_spaces(vector, single.envs[0], num_envs, mode)
            _check_seeds(vector, single, seed)
            _check_play(vector, single, mode, steps, seed)
            _check_reset_mask(vector, single, seed)
            _check_bad_reset_options(vector)
        finally:
            vector.close()
            single.close()


def _check_spaces(
    vector: VectorEnv[Any, Any, Any], single: gymnasium.Env[Any, Any], num_envs: int, mode: AutoresetMode
) -> None:
    declared: dict[str, tuple[Any, Any]] = {
        "num_envs": (vector.num_envs, num_envs),
        "metadata['autoreset_mode']": (vector.metadata.get("autoreset_mode"), mode),
        "single_observation_space": (vector.single_observation_space, single.observation_space),
        "single_action_space": (vector.single_action_space, single.action_space),
        "observation_space": (vector.observation_space, batch_space(single.observation_space, num_envs)),
        "action_space": (vector.action_space, batch_space(single.action_space, num_envs)),
    }
    for name, (ours, wanted) in declared.items():
        _require(ours == wanted, f"{name} is {ours}, but should be {wanted}")


def _check_seeds(vector: VectorEnv[Any, Any, Any], single: SingleRows, seed: int) -> None:
    """One seed, a list of seeds, a list with gaps, and none; each against the single environments."""
    count = vector.num_envs
    gaps: Seeds = [seed + 7, *[None] * (count - 1)]
    apart: Seeds = [seed + 3 * index for index in range(count)]
    for given in (seed, seed, apart, gaps, None):
        observation, info = _pair(vector.reset(seed=given), f"reset(seed={given})")
        _check_observation(observation, vector.observation_space, f"reset(seed={given})")
        _require(isinstance(info, dict), f"reset(seed={given}) gives no dict as info")
        seeds = [given + index for index in range(count)] if isinstance(given, int) else given
        wanted = single.reset(seeds)
        for index in range(count):
            _same(row(observation, index), wanted[index], f"after reset(seed={given}) the observation", index)
    _require(_refuses(vector, seed=[seed] * (count + 1)), f"reset takes a list of {count + 1} seeds for {count} rows")


def _check_play(
    vector: VectorEnv[Any, Any, Any], single: SingleRows, mode: AutoresetMode, steps: int, seed: int
) -> None:
    vector.reset(seed=seed)
    single.reset([seed + index for index in range(vector.num_envs)])
    vector.action_space.seed(seed)
    endings, last, kept = 0, None, None
    for step in range(steps):
        action, place = vector.action_space.sample(), f"{mode.value}: at step {step}"
        result = vector.step(action)
        _require(isinstance(result, tuple) and len(result) == 5, f"{place} the result is not a tuple of five")
        _require(_equal(last, kept), f"{place} arrays that the step before had returned are written into")
        last, kept = result[:4], _copy(result[:4])
        turns = single.step(action, mode)
        _check_result(result, vector, place)
        _check_turns(result, turns, mode, place)
        done = np.array([turn.done for turn in turns])
        endings += int(done.sum())
        if mode is AutoresetMode.DISABLED and done.any():
            _restart(vector, single, done, place)
    _require(endings > 0, f"no episode ended in {steps} steps; make the time limit shorter or take more steps")


def _check_result(result: tuple[Any, ...], vector: VectorEnv[Any, Any, Any], place: str) -> None:
    observation, reward, terminated, truncated, info = result
    _check_observation(observation, vector.observation_space, place)
    _check_array(reward, np.dtype(np.float64), vector.num_envs, f"{place} the reward")
    _check_array(terminated, np.dtype(bool), vector.num_envs, f"{place} `terminated`")
    _check_array(truncated, np.dtype(bool), vector.num_envs, f"{place} `truncated`")
    _require(not (terminated & truncated).any(), f"{place} a row is both terminated and truncated")
    _require(isinstance(info, dict), f"{place} the info is no dict")
    for name in [name for name in info if not name.startswith("_")]:
        _require(f"_{name}" in info, f"{place} info[{name!r}] has no mask info['_{name}']")


def _check_turns(result: tuple[Any, ...], turns: Sequence[Turn], mode: AutoresetMode, place: str) -> None:
    """Every row against the single environment."""
    observation, reward, terminated, truncated, info = result
    final = info.get("final_info", {}) if mode is AutoresetMode.SAME_STEP else info
    for index, turn in enumerate(turns):
        _same(row(observation, index), turn.observation, f"{place} the observation", index)
        _same(reward[index], np.float64(turn.reward), f"{place} the reward", index)
        _same(terminated[index], np.bool_(turn.terminated), f"{place} `terminated`", index)
        _same(truncated[index], np.bool_(turn.truncated), f"{place} `truncated`", index)
        _require("success" in turn.info or not turn.done, f"{place} a single environment tells no success")
        for name in {"success", *turn.info}:
            _check_info(final, name, turn, f"{place} the info", index)
        if mode is AutoresetMode.SAME_STEP:
            _check_final(info, turn, place, index)


def _check_info(info: dict[str, Any], name: str, turn: Turn, place: str, index: int) -> None:
    told = name in info and bool(info[f"_{name}"][index])
    wanted = name in turn.info
    _require(told == wanted, f"{place} {'has no' if wanted else 'has an unexpected'} {name!r} in row {index}")
    if wanted:
        _same(row(info[name], index), np.asarray(turn.info[name])[()], f"{place} {name!r}", index)


def _check_final(info: dict[str, Any], turn: Turn, place: str, index: int) -> None:
    """Last observation and info of an episode, in the step that also begins the next one."""
    for name in ("final_obs", "final_info"):
        told = name in info and bool(info[f"_{name}"][index])
        _require(told == turn.done, f"{place} {name} is {'missing' if turn.done else 'unexpected'} in row {index}")
    if turn.done:
        _same(info["final_obs"][index], turn.final_observation, f"{place} final_obs", index)
    elif "final_obs" in info:
        _require(info["final_obs"][index] is None, f"{place} final_obs of row {index}, which goes on, is not None")


def _check_reset_mask(vector: VectorEnv[Any, Any, Any], single: SingleRows, seed: int) -> None:
    """A masked reset starts its rows over, with or without seeds, and leaves the others alone."""
    count = vector.num_envs
    seeds = [seed + index for index in range(count)]
    vector.reset(seed=seed)
    single.reset(seeds)
    for given in (None, [seed + 50 + index for index in range(count)]):
        for first in range(count):
            mask = np.arange(count) % count == first
            action = vector.action_space.sample()
            mode = AutoresetMode(vector.metadata["autoreset_mode"])
            _check_turns(vector.step(action), turns := single.step(action, mode), mode, "before a masked reset")
            done = np.array([turn.done for turn in turns])
            _restart(vector, single, mask | (done & (mode is AutoresetMode.DISABLED)), "after a masked reset", given)


def _restart(
    vector: VectorEnv[Any, Any, Any], single: SingleRows, mask: Array, place: str, seeds: Seeds = None
) -> None:
    observation, _ = _pair(vector.reset(seed=seeds, options={"reset_mask": mask.copy()}), "reset with a mask")
    _check_observation(observation, vector.observation_space, "reset with a mask")
    wanted = single.reset(seeds, mask)
    for index in range(vector.num_envs):
        what = "row that was reset" if mask[index] else "row that was not to be reset"
        _same(row(observation, index), wanted[index], f"{place}, the observation of a {what}", index)


def _check_bad_reset_options(vector: VectorEnv[Any, Any, Any]) -> None:
    count = vector.num_envs
    for mask in (np.ones(count + 1, bool), np.zeros(count, bool), np.ones(count, np.int64), [True] * count):
        taken = _refuses(vector, options={"reset_mask": mask})
        _require(taken, f"reset takes {mask!r} as reset_mask, but it should be a bool array ({count},) with a True")


def _refuses(vector: VectorEnv[Any, Any, Any], **arguments: Any) -> bool:
    try:
        vector.reset(**arguments)
    except (ValueError, TypeError, AssertionError):
        return True
    return False


def _check_observation(observation: Any, space: gymnasium.Space[Any], place: str) -> None:
    if isinstance(space, gymnasium.spaces.Dict):
        _require(isinstance(observation, dict), f"{place} the observation is no dict")
        _require(set(observation) == set(space), f"{place} the observation has the keys {sorted(observation)}")
        for name, entry in space.items():
            _check_observation(observation[name], entry, f"{place} entry {name!r}:")
        return
    _require(isinstance(observation, np.ndarray), f"{place} the observation is no numpy array")
    form, wanted = (observation.dtype, observation.shape), (space.dtype, space.shape)
    _require(form == wanted, f"{place} the observation's dtype and shape are {form}, but the space says {wanted}")
    _require(space.contains(observation), f"{place} the observation is not in {space}")


def _check_array(array: Any, dtype: np.dtype[Any], count: int, place: str) -> None:
    _require(isinstance(array, np.ndarray), f"{place} is no numpy array")
    _require(array.shape == (count,), f"{place} has the shape {array.shape}, but should have ({count},)")
    _require(array.dtype == dtype, f"{place} has the dtype {array.dtype}, but should have {dtype}")


def _pair(result: Any, place: str) -> tuple[Any, Any]:
    _require(isinstance(result, tuple) and len(result) == 2, f"{place} does not give an observation and an info")
    return result[0], result[1]


def _same(ours: Any, wanted: Any, place: str, index: int) -> None:
    if not _equal(ours, wanted):
        _require(False, f"{place} in row {index} is {_line(ours)}, but a single environment gives {_line(wanted)}")


def _line(value: Any) -> str:
    return " ".join(str(value).split())


def _equal(ours: Any, wanted: Any) -> bool:
    """The same numbers of the same dtypes."""
    if isinstance(ours, dict) and isinstance(wanted, dict):
        return set(ours) == set(wanted) and all(_equal(ours[name], wanted[name]) for name in ours)
    if isinstance(ours, tuple):
        return all(_equal(one, other) for one, other in zip(ours, wanted, strict=True))
    one, other = np.asarray(ours), np.asarray(wanted)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def _copy(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_copy(each) for each in value)
    if isinstance(value, dict):
        return {name: _copy(entry) for name, entry in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(f"Vector environment: {sentence}.")


@dataclass
class Turn:
    """What one row should give in one step."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    final_observation: Any = None
    """The last one of an episode whose row has already been started over."""

    @property
    def done(self) -> bool:
        """The episode ended with this step."""
        return self.terminated or self.truncated


class SingleRows:
    """The rows."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], count: int) -> None:
        self.envs = [make() for _ in range(count)]
        self.current: list[Any] = [None] * count  # last observations
        self.ended = [False] * count

    def reset(self, seeds: Sequence[int | None] | None, mask: Any = None) -> list[Any]:
        """Start all rows, or those of the mask (N,) bool; returns the last observation of every row."""
        for index, env in enumerate(self.envs):
            if mask is None or mask[index]:
                self.current[index], _ = env.reset(seed=None if seeds is None else seeds[index])
                self.ended[index] = False
        return list(self.current)

    def step(self, actions: Any, mode: AutoresetMode) -> list[Turn]:
        """One action in every row."""
        turns = [self._turn(index, action, mode) for index, action in enumerate(np.asarray(actions))]
        for index, turn in enumerate(turns):
            self.current[index], self.ended[index] = turn.observation, turn.done
        return turns

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _turn(self, index: int, action: Any, mode: AutoresetMode) -> Turn:
        env = self.envs[index]
        if self.ended[index] and mode is AutoresetMode.NEXT_STEP:
            return Turn(env.reset()[0], 0.0, False, False, {})
        observation, reward, terminated, truncated, info = env.step(action)
        turn = Turn(observation, float(reward), terminated, truncated, info)
        if turn.done and mode is AutoresetMode.SAME_STEP:
            turn.final_observation, turn.observation = observation, env.reset()[0]
        return turn
