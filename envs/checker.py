"""Check environments of your own: a World against its contract, and a vector environment against single ones.

    check_registered("Mine/World-v0", time_limit=20)  # a registered environment, for several episodes
    check_vector_env(lambda n, mode: MyVectorEnv(n, autoreset_mode=mode), MyEnv)

The contract is that of `envs.core.World`. `make_world` checks its members. Vectors and adapters check its tensors
(`probe`), because no later step would notice a wrong shape.

`check_vector_env` compares every step with Gymnasium's `SyncVectorEnv` over single environments with the same seeds and
actions: spaces, dtypes and shapes, observations, rewards, both flags, infos, final observations, all three autoreset
modes, seeds and `reset_mask`. Every check raises the first difference as one sentence.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from envs.core import State, StateObserved, World
from envs.errors import UserError, require
from envs.spaces import Array, entry_bounds, row, shown

MEMBERS = "num_actions, reset_draws, step_draws, observation_space, reset(u), step(state, action, u), frame and text"
RULE = f"a World is a subclass of envs.core.World with {MEMBERS}"
VALUES = "(state, observation, reward, terminated, success)"
Vector = VectorEnv[Any, Any, Any]
MakeVector = Callable[[int, AutoresetMode], Vector]
MakeSingle = Callable[[], gymnasium.Env[Any, Any]]
PARTS = ("the observation", "the reward", "`terminated`", "`truncated`")  # of a step's result, before the info


def check_class(id: str, build: Any, parameters: Mapping[str, Any]) -> None:
    """Raise a UserError if `build`, a class or a function with these parameters, cannot make a World."""
    name = getattr(build, "__name__", build)
    is_world = not inspect.isclass(build) or issubclass(build, World)
    require(is_world, f"{name}, the class of environment {id!r}, is no World: {RULE}.")
    missing = " and ".join(sorted(getattr(build, "__abstractmethods__", ())))
    require(not missing, f"{name}, the class of environment {id!r}, has no {missing}: {RULE}.")
    if "device" not in parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        raise UserError(
            f"{name} of environment {id!r} takes no keyword device; "
            'give its __init__ device="cpu" as last parameter and hand it to super().__init__(time_limit, device).'
        )


def check_members(world: Any) -> None:
    """Raise a UserError for the first missing or wrong member of a World."""
    name = world_name(world)
    require(isinstance(world, World), f"{name} is no World: {RULE}.")
    for member in ("time_limit", "device", "one", "nothing"):
        advice = "its __init__ must call super().__init__(time_limit, device)"
        require(hasattr(world, member), f"{name} has no {member}; {advice}.")
    for member, minimum in (("num_actions", 1), ("reset_draws", 0), ("step_draws", 0)):
        require(hasattr(world, member), f"{name} has no {member}: {RULE}.")
        value = getattr(world, member)
        integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        wanted = f"a whole number of at least {minimum}"
        require(integer and value >= minimum, f"{member} of {name} must be {wanted}, not {value!r}.")
    require(hasattr(world, "observation_space"), f"{name} has no observation_space: {RULE}.")
    entry_bounds(f"The observation_space of {name}", world.observation_space)
    for member, arguments in (("reset", "u"), ("step", "state, action, u")):
        signature = inspect.signature(getattr(world, member))
        try:
            signature.bind(*arguments.split(", "))
        except TypeError:
            raise UserError(f"{name}.{member} must take ({arguments}), not {signature}.") from None


@torch.no_grad()
def probe(world: World[Any]) -> None:
    """Check the members of a World, and the results of one reset and one step with random numbers of their own."""
    check_members(world)
    rows = 3
    name, space, numbers = world_name(world), world.observation_space, torch.Generator().manual_seed(0)
    start, chance = (
        torch.rand(rows, count, dtype=torch.float64, generator=numbers).to(world.device)
        for count in (world.reset_draws, world.step_draws)
    )
    state = world.reset(start)
    _check_state(f"{name}.reset", "return", state, rows)
    _check_observation(f"{name}.reset", state.observation, space, rows)
    before, where = {field: value.clone() for field, value in vars(state).items()}, f"{name}.step"
    result: Any = world.step(state, torch.zeros(rows, dtype=torch.int64, device=world.device), chance)
    count = f"{len(result)} values" if isinstance(result, tuple) else _described(result)
    require(count == "5 values", f"{where} must return five values {VALUES}, not {count}.")
    after, observation, reward, terminated, success = result
    _check_state(where, "return first", after, rows)
    _check_observation(where, observation, space, rows)
    _check_column(f"The reward of {where}", reward, rows, torch.float32, torch.float64)
    _check_column(f"terminated of {where}", terminated, rows, torch.bool)
    _check_column(f"success of {where}", success, rows, torch.bool)
    for field, value in before.items():
        pure = torch.equal(getattr(state, field).nan_to_num(), value.nan_to_num())
        require(pure, f"{where} must not write into the given state ({field}), but return a new one.")
    one_more = torch.equal(after.steps, before["steps"] + 1)
    require(one_more, f"{where} must add 1 to steps of the state in every row.")
    summed = torch.allclose(after.returns, before["returns"] + reward, rtol=1e-4, atol=1e-4)
    require(summed, f"{where} must add the reward to returns of the state in every row.")
    same = torch.equal(after.observation, observation)
    require(same, f"{where} must return the observation of the returned state.")
    early = (success & ~terminated).any()
    require(not early, f"{where} returns success without terminated; only a terminated episode can succeed.")


def world_name(world: Any) -> str:
    """Name a World's class in a sentence."""
    if isinstance(world, StateObserved):
        return f"{world_name(world.world)} with observe='state'"
    return type(world).__name__


def _check_state(where: str, gives: str, state: Any, rows: int) -> None:
    if not isinstance(state, State):
        raise UserError(f"{where} must {gives} a state, a dataclass under envs.core.State, not {_described(state)}.")
    name = f"the state {type(state).__name__} of {where}"
    stray = " and ".join(sorted(set(vars(state)) - {field.name for field in dataclasses.fields(state)}))
    require(not stray, f"{stray} of {name} is in no field; put @dataclass over its class.")
    for field, value in vars(state).items():
        fits = isinstance(value, Tensor) and value.shape[:1] == (rows,)
        require(fits, f"{field} of {name} must be a tensor ({rows}, ...), not {_described(value)}.")
    _check_column(f"steps of {name}", state.steps, rows, torch.int64)
    _check_column(f"returns of {name}", state.returns, rows, torch.float64)


def _check_column(what: str, value: Any, rows: int, *dtypes: torch.dtype) -> None:
    fits = isinstance(value, Tensor) and value.shape == (rows,) and value.dtype in dtypes
    wanted = " or ".join(map(_plain, dtypes))
    require(fits, f"{what} must be a tensor ({rows},) of {wanted}, not {_described(value)}.")


def _check_observation(where: str, observation: Any, space: Any, rows: int) -> None:
    """Check the form that `envs.core.World` prescribes: flat unless it is an image, and within bounds."""
    low, high = entry_bounds(f"The observation_space of {where}", space)
    image = isinstance(space, spaces.Box) and len(space.shape) == 3
    shape, dtype, brief = (rows, *(space.shape if image else low.shape)), low.dtype.name, shown(space)
    fits = isinstance(observation, Tensor) and observation.shape == shape and _plain(observation.dtype) == dtype
    wanted = f"a tensor {shape} of {dtype}, as its observation_space {brief} says"
    require(fits, f"The observation of {where} must be {wanted}, not {_described(observation)}.")
    values = observation.detach().cpu().flatten(1).numpy()
    outside = ~((values >= low) & (values <= high))  # written as a negation, so that nan is outside
    if outside.any():
        index, column = np.argwhere(outside)[0]
        raise UserError(
            f"The observation of {where} holds {values[index, column]} at index {column}, "
            f"but its observation_space {brief} says {low[column]} to {high[column]} there."
        )


def _described(value: Any) -> str:
    """Describe a tensor by shape and dtype, anything else by its type."""
    if isinstance(value, Tensor):
        return f"one {tuple(value.shape)} of {_plain(value.dtype)}"
    return f"a {type(value).__name__}"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Vector environments


def check_registered(id: str, num_envs: int = 3, steps: int = 100, seed: int = 0, **kwargs: Any) -> None:
    """Compare `gymnasium.make_vec(id)` with `gymnasium.make(id)`, both with `kwargs`.

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

    def __init__(self, vector: Vector, single: SyncVectorEnv, mode: AutoresetMode, seed: int) -> None:
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
