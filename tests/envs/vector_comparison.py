"""Compare a vector environment with single ones in every autoreset mode."""

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from envs.checker import PARTS
from envs.errors import require
from envs.spaces import Array, row


def check_vector_env(make_vector, make_single, num_envs: int = 3, steps: int = 100, seed: int = 0) -> None:
    """Check a vector environment against single ones in every autoreset mode.

    Args:
        make_vector: makes the vector environment from a number of rows and an autoreset mode.
        make_single: makes one row of it; episodes must end within `steps` and set `info["success"]`.
        num_envs: number of rows.
        steps: number of random actions in each mode.
        seed: seed of the environments and of the actions.

    Raises:
        UserError: the first difference.
    """
    for mode in AutoresetMode:
        vector, single = make_vector(num_envs, mode), SyncVectorEnv([make_single] * num_envs, autoreset_mode=mode)
        comparison = _Comparison(vector, single, mode, seed)
        try:
            comparison.spaces()
            comparison.seeds()
            comparison.play(steps)
            comparison.reset_masks()
        finally:
            vector.close()
            single.close()


class _Comparison:
    """A vector environment beside single ones, in one autoreset mode."""

    def __init__(self, vector: Any, single: SyncVectorEnv, mode: AutoresetMode, seed: int) -> None:
        self.vector, self.single, self.mode, self.seed = vector, single, mode, seed
        world = getattr(vector.unwrapped, "world", None)
        self.defines_success = getattr(world, "defines_success", True)
        self.count = single.num_envs

    def spaces(self) -> None:
        single = self.single.envs[0]
        observations, actions, n = single.observation_space, single.action_space, self.count
        batched = {"observation_space": batch_space(observations, n), "action_space": batch_space(actions, n)}
        singly = {"single_observation_space": observations, "single_action_space": actions}
        for name, wanted in {"num_envs": n, **singly, **batched}.items():
            ours = getattr(self.vector, name)
            _require(ours == wanted, f"{name} is {ours}, but should be {wanted}")
        mode = self.vector.metadata.get("autoreset_mode")
        _require(mode == self.mode, f"metadata['autoreset_mode'] is {mode}, but should be {self.mode}")

    def seeds(self) -> None:
        """Compare resets with one seed, a list of seeds, a list with gaps, and no seed."""
        gaps = [self.seed + 7, *[None] * (self.count - 1)]
        apart = [self.seed + 3 * index for index in range(self.count)]
        for given in (self.seed, self.seed, apart, gaps, None):
            self._reset(f"after reset(seed={given}) the observation", given)
        too_many = [self.seed] * (self.count + 1)
        _require(self._refuses(seed=too_many), f"reset takes a list of {self.count + 1} seeds for {self.count} rows")

    def play(self, steps: int) -> None:
        """Compare steps with random actions, with resets if the mode leaves them to the caller."""
        self._reset("after reset the observation", self.seed)
        self.vector.action_space.seed(self.seed)
        endings = 0
        last: Any = ()
        copied: Any = ()
        for step in range(steps):
            where = f"{self.mode.value}: at step {step}"
            result, done = self._step(where)
            same = data_equivalence(last, copied, exact=True)
            _require(same, f"{where} the step overwrites arrays that the previous step returned")
            last, copied = result[:4], deepcopy(result[:4])
            endings += int(done.sum())
            if self.mode is AutoresetMode.DISABLED and done.any():
                self._reset(where, None, done)
        _require(endings > 0, f"no episode ended in {steps} steps; make the time limit shorter or take more steps")

    def reset_masks(self) -> None:
        """Compare masked resets, with and without seeds: they must reset the masked rows only."""
        self._reset("after reset the observation", self.seed)
        for given in (None, [self.seed + 50 + index for index in range(self.count)]):
            for first in range(self.count):
                _, done = self._step("before a masked reset")
                mask = np.arange(self.count) % self.count == first
                self._reset("after a masked reset", given, mask | (done & (self.mode is AutoresetMode.DISABLED)))
        n = self.count
        for wrong in (np.ones(n + 1, bool), np.zeros(n, bool), np.ones(n, np.int64), [True] * n):
            refused = self._refuses(options={"reset_mask": wrong})
            _require(refused, f"reset takes {wrong!r} as reset_mask, but it should be a bool array ({n},) with a True")

    def _reset(self, where: str, seed: Any, mask: Array | None = None) -> None:
        """Reset all rows or those of the mask (N,) in both, and compare every row's observation."""
        options = [None if mask is None else {"reset_mask": mask.copy()} for _ in range(2)]
        result: Any = self.vector.reset(seed=seed, options=options[0])
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        _require(pair, f"{where}: reset does not give an observation and a dict as info")
        wanted, _ = self.single.reset(seed=seed, options=options[1])
        for index in range(self.count):
            fate = "" if mask is None else "reset" if mask[index] else "not to be reset"
            due = fate and f", the observation of a row that was {fate}"
            _check_same(row(result[0], index), row(wanted, index), f"{where}{due} in row {index}")

    def _step(self, where: str) -> tuple[tuple[Any, ...], Array]:
        """Take a random action in both and compare the results; returns the result and the ended rows (N,)."""
        action = self.vector.action_space.sample()
        result: Any = self.vector.step(action)
        fits = isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)
        _require(fits, f"{where} the result is not a tuple of five, the last of them a dict")
        wanted = self.single.step(action)
        _require(not (result[2] & result[3]).any(), f"{where} a row is both terminated and truncated")
        done: Array = wanted[2] | wanted[3]
        infos = [each[4] for each in (result, wanted)]
        if self.mode is AutoresetMode.SAME_STEP:  # compare only the infos of finished episodes
            infos = [{k: value for k, value in info.items() if k.strip("_").startswith("final_")} for info in infos]
        for index in range(self.count):
            for name, ours, theirs in zip(PARTS, result, wanted, strict=False):
                _check_same(row(ours, index), row(theirs, index), f"{where} {name} in row {index}")
            ours, theirs = (_of_row(info, index, f"{where} the info") for info in infos)
            success = theirs.get("final_info", theirs)
            lacks = f"{where} the info of a single environment lacks 'success' at an episode's end"
            _require(not (done[index] and self.defines_success) or "success" in success, lacks)
            _check_same(ours, theirs, f"{where} the info in row {index}")
        return result, done

    def _refuses(self, **arguments: Any) -> bool:
        try:
            self.vector.reset(**arguments)
        except (ValueError, TypeError, AssertionError):
            return True
        return False


def _of_row(info: dict[str, Any], index: int, where: str) -> dict[str, Any]:
    """Return the info of one row; "_name" is the mask (N,) of the rows that have the entry "name"."""
    entries = {}
    for name in (each for each in info if not each.startswith("_")):
        _require(f"_{name}" in info, f"{where} {name!r} has no mask '_{name}'")
        nested, value = isinstance(info[name], dict), row(info[name], index)
        spilt = not nested and info[name].dtype == object and value is not None
        if info[f"_{name}"][index] or spilt:
            entries[name] = _of_row(info[name], index, f"{where} {name!r}") if nested else value
    return entries


def _check_same(ours: Any, wanted: Any, where: str) -> None:
    """Compare numbers, dtypes, shapes and keys."""
    if isinstance(wanted, dict):
        _require(isinstance(ours, dict), f"{where} is no dict")
        for name in (*wanted, *ours):
            article = "no" if name in wanted else "an unexpected"
            _require(name in ours and name in wanted, f"{where} has {article} {name!r}")
            _check_same(ours[name], wanted[name], f"{where} entry {name!r}")
        return
    one, other = np.asarray(ours), np.asarray(wanted)
    if one.dtype != other.dtype or one.shape != other.shape or not (one == other).all():
        first, second = (f"{' '.join(str(each).split())} ({each.dtype}, shape {each.shape})" for each in (one, other))
        _require(False, f"{where} is {first}, but a single environment gives {second}")


def _require(condition: Any, sentence: str) -> None:
    require(condition, f"Vector environment: {sentence}.")
