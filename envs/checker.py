"""Check that a vector environment does what N single ones do; Gymnasium itself checks single environments only.

    check_registered("POMDP/CarFlag-v0", time_limit=20)
    check_vector_env(lambda n, mode: MyVectorEnv(n, autoreset_mode=mode), MyEnv)

Every step is compared with that of Gymnasium's `SyncVectorEnv` over single environments with the same seeds and
actions: spaces, dtypes and shapes, observations, rewards, both flags, infos, final observations, all three autoreset
modes, seeds and `reset_mask`. The first difference is raised as one sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.errors import UserError
from envs.spaces import row

Array = np.ndarray[Any, np.dtype[Any]]
Vector = VectorEnv[Any, Any, Any]
MakeVector = Callable[[int, AutoresetMode], Vector]
MakeSingle = Callable[[], gymnasium.Env[Any, Any]]


def check_registered(id: str, num_envs: int = 3, steps: int = 100, seed: int = 0, **kwargs: Any) -> None:
    """Check what `gymnasium.make_vec(id)` gives against what `gymnasium.make(id)` gives, both with `kwargs`.

    Raises:
        UserError: the first difference.
    """

    def make_vector(count: int, mode: AutoresetMode) -> Vector:
        return gymnasium.make_vec(id, num_envs=count, autoreset_mode=mode, **kwargs)

    check_vector_env(make_vector, lambda: gymnasium.make(id, **kwargs), num_envs, steps, seed)


def check_vector_env(
    make_vector: MakeVector, make_single: MakeSingle, num_envs: int = 3, steps: int = 100, seed: int = 0
) -> None:
    """Check a vector environment against single ones in every autoreset mode.

    Args:
        make_vector: makes the environment with that many rows in that mode.
        make_single: makes one row of it; episodes must end within `steps` and set `info["success"]`.
        num_envs: rows.
        steps: random actions in each mode.
        seed: of the environments and of the actions.

    Raises:
        UserError: the first difference.
    """
    for mode in AutoresetMode:
        vector, single = make_vector(num_envs, mode), SyncVectorEnv([make_single] * num_envs, autoreset_mode=mode)
        check = _Check(vector, single, mode, seed)
        try:
            check.spaces()
            check.seeds()
            check.play(steps)
            check.reset_masks()
        finally:
            vector.close()
            single.close()


class _Check:
    """A vector environment and single ones, in one autoreset mode."""

    def __init__(self, vector: Vector, single: SyncVectorEnv, mode: AutoresetMode, seed: int) -> None:
        self.vector, self.single, self.mode, self.seed = vector, single, mode, seed
        self.count = single.num_envs

    def spaces(self) -> None:
        single = self.single.envs[0]
        declared: dict[str, tuple[Any, Any]] = {
            "num_envs": (self.vector.num_envs, self.count),
            "metadata['autoreset_mode']": (self.vector.metadata.get("autoreset_mode"), self.mode),
            "single_observation_space": (self.vector.single_observation_space, single.observation_space),
            "single_action_space": (self.vector.single_action_space, single.action_space),
            "observation_space": (self.vector.observation_space, batch_space(single.observation_space, self.count)),
            "action_space": (self.vector.action_space, batch_space(single.action_space, self.count)),
        }
        for name, (ours, wanted) in declared.items():
            _require(ours == wanted, f"{name} is {ours}, but should be {wanted}")

    def seeds(self) -> None:
        """One seed, a list of seeds, a list with gaps, and none."""
        gaps = [self.seed + 7, *[None] * (self.count - 1)]
        apart = [self.seed + 3 * index for index in range(self.count)]
        for given in (self.seed, self.seed, apart, gaps, None):
            self._reset(f"after reset(seed={given}) the observation", given)
        too_many = [self.seed] * (self.count + 1)
        _require(self._refuses(seed=too_many), f"reset takes a list of {self.count + 1} seeds for {self.count} rows")

    def play(self, steps: int) -> None:
        """Random actions, with resets where the mode leaves them to the caller."""
        self._reset("after reset the observation", self.seed)
        self.vector.action_space.seed(self.seed)
        endings, last, kept = 0, None, None
        for step in range(steps):
            where = f"{self.mode.value}: at step {step}"
            result, done = self._step(where)
            _require(
                _equal(last, kept),
                f"{where} arrays that the step before had returned are written into",
            )
            last, kept = result[:4], deepcopy(result[:4])
            endings += int(done.sum())
            if self.mode is AutoresetMode.DISABLED and done.any():
                self._reset(where, None, done)
        _require(endings > 0, f"no episode ended in {steps} steps; make the time limit shorter or take more steps")

    def reset_masks(self) -> None:
        """Check masked resets, with or without seeds: they start their rows over and leave the others alone."""
        self._reset("after reset the observation", self.seed)
        for given in (None, [self.seed + 50 + index for index in range(self.count)]):
            for first in range(self.count):
                _, done = self._step("before a masked reset")
                mask = np.arange(self.count) % self.count == first
                self._reset("after a masked reset", given, mask | (done & (self.mode is AutoresetMode.DISABLED)))
        n = self.count
        for wrong in (np.ones(n + 1, bool), np.zeros(n, bool), np.ones(n, np.int64), [True] * n):
            taken = self._refuses(options={"reset_mask": wrong})
            _require(taken, f"reset takes {wrong!r} as reset_mask, but it should be a bool array ({n},) with a True")

    def _reset(self, where: str, seed: Any, mask: Array | None = None) -> None:
        """Reset both, all rows or those of the mask (N,), and compare every row's observation."""
        options = [None if mask is None else {"reset_mask": mask.copy()} for _ in range(2)]
        result: Any = self.vector.reset(seed=seed, options=options[0])
        pair = isinstance(result, tuple) and len(result) == 2
        _require(pair, f"{where}: reset does not give an observation and an info")
        observation, info = result
        _check_observation(observation, self.vector.observation_space, f"{where}:")
        _require(isinstance(info, dict), f"{where}: reset gives no dict as info")
        wanted, _ = self.single.reset(seed=seed, options=options[1])
        for index in range(self.count):
            what = where
            if mask is not None:
                what = f"{where}, the observation of a row that was {'' if mask[index] else 'not to be '}reset"
            _check_same(row(observation, index), row(wanted, index), what, index)

    def _step(self, where: str) -> tuple[tuple[Any, ...], Array]:
        """Take a random action in both and compare all that they return; gives that, and which rows (N,) ended."""
        action = self.vector.action_space.sample()
        result: Any = self.vector.step(action)
        _require(isinstance(result, tuple) and len(result) == 5, f"{where} the result is not a tuple of five")
        names = ("the observation", "the reward", "`terminated`", "`truncated`")
        observation, _, terminated, truncated, info = result
        _check_observation(observation, self.vector.observation_space, f"{where} the observation:")
        for name, array, dtype in zip(names[1:], result[1:], (np.float64, bool, bool), strict=False):
            _check_array(array, np.dtype(dtype), self.count, f"{where} {name}")
        _require(not (terminated & truncated).any(), f"{where} a row is both terminated and truncated")
        _require(isinstance(info, dict), f"{where} the info is no dict")
        wanted = self.single.step(action)
        for name, ours, theirs in zip(names, result, wanted, strict=False):
            for index in range(self.count):
                _check_same(row(ours, index), row(theirs, index), f"{where} {name}", index)
        done: Array = wanted[2] | wanted[3]
        self._check_infos(info, wanted[4], done, f"{where} the info")
        return result, done

    def _check_infos(self, info: dict[str, Any], wanted: dict[str, Any], done: Array, where: str) -> None:
        """Compare the infos of a step; where it also begins new episodes, what it says of the finished ones."""
        for name in info:
            _require(name.startswith("_") or f"_{name}" in info, f"{where} {name!r} has no mask '_{name}'")
        final = wanted
        if self.mode is AutoresetMode.SAME_STEP:
            names = ("final_obs", "_final_obs", "final_info", "_final_info")
            final = wanted.get("final_info", {})
            info, wanted = ({name: each[name] for name in names if name in each} for each in (info, wanted))
        present = final.get("_success", np.zeros(self.count, bool))
        _require(bool(present[done].all()), f"{where} of a single environment lacks 'success' at an episode's end")
        _check_info(info, wanted, self.count, where)

    def _refuses(self, **arguments: Any) -> bool:
        try:
            self.vector.reset(**arguments)
        except (ValueError, TypeError, AssertionError):
            return True
        return False


def _check_info(info: dict[str, Any], wanted: dict[str, Any], count: int, where: str) -> None:
    """Compare what is said of each row; "_name" is the mask (N,) of the rows that "name" is said of."""
    for name in dict.fromkeys(each for each in (*wanted, *info) if not each.startswith("_")):
        _require(name not in info or f"_{name}" in info, f"{where} {name!r} has no mask '_{name}'")
        for index in range(count):
            present = name in info and bool(info[f"_{name}"][index])
            due = name in wanted and bool(wanted[f"_{name}"][index])
            _require(present == due, f"{where} {'has no' if due else 'has an unexpected'} {name!r} in row {index}")
            if due and not isinstance(wanted[name], dict):
                _check_same(row(info[name], index), row(wanted[name], index), f"{where} {name!r}", index)
            elif name == "final_obs" and not due and name in info:
                _require(info[name][index] is None, f"{where} {name!r} of row {index}, which goes on, is not None")
        if isinstance(wanted.get(name), dict):
            _check_info(info[name], wanted[name], count, f"{where} {name!r}")


def _check_observation(observation: Any, space: gymnasium.Space[Any], where: str) -> None:
    if isinstance(space, gymnasium.spaces.Dict):
        _require(isinstance(observation, dict), f"{where} the observation is no dict")
        _require(set(observation) == set(space), f"{where} the observation has the keys {sorted(observation)}")
        for name, entry in space.items():
            _check_observation(observation[name], entry, f"{where} entry {name!r}:")
        return
    _require(isinstance(observation, np.ndarray), f"{where} it is no numpy array")
    form, wanted = (observation.dtype, observation.shape), (space.dtype, space.shape)
    _require(form == wanted, f"{where} its dtype and shape are {form}, but the space says {wanted}")
    _require(space.contains(observation), f"{where} it is not in {space}")


def _check_array(array: Any, dtype: np.dtype[Any], count: int, where: str) -> None:
    _require(isinstance(array, np.ndarray), f"{where} is no numpy array")
    _require(array.shape == (count,), f"{where} has the shape {array.shape}, but should have ({count},)")
    _require(array.dtype == dtype, f"{where} has the dtype {array.dtype}, but should have {dtype}")


def _check_same(ours: Any, wanted: Any, where: str, index: int) -> None:
    if not _equal(ours, wanted):
        first, second = (" ".join(str(value).split()) for value in (ours, wanted))
        raise UserError(
            f"Vector environment: {where} in row {index} is {first}, but a single environment gives {second}."
        )


def _equal(ours: Any, wanted: Any) -> bool:
    """Tell whether these are the same numbers of the same dtypes."""
    if isinstance(ours, dict) and isinstance(wanted, dict):
        return set(ours) == set(wanted) and all(_equal(ours[name], wanted[name]) for name in ours)
    if isinstance(ours, tuple):
        return all(_equal(one, other) for one, other in zip(ours, wanted, strict=True))
    one, other = np.asarray(ours), np.asarray(wanted)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(f"Vector environment: {sentence}.")
