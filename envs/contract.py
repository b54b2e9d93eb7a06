"""Check a world against the contract of `envs.core.World`: what it must have and what its functions must return.

Nothing later checks these things again: a replay takes observations of any shape that it can broadcast, and an
embedding any number. So a world is checked once, its members when it is made, and its tensors when a fleet or a
Gymnasium environment is made of it. Every difference is one sentence.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from envs.core import State, StateObserved, World
from envs.errors import UserError, require
from envs.spaces import Array, integer_ranges

MEMBERS = "num_actions, reset_draws, step_draws, observation_space, reset(u), step(state, action, u), frame and text"
RULE = f"a world is a subclass of envs.core.World with {MEMBERS}"
FIVE = "(state, observation, reward, terminated, success)"
BRIEF = 100  # characters of a space in a sentence


def check_class(id: str, build: Any, parameters: Mapping[str, Any]) -> None:
    """Raise a UserError where `build`, a class or a function with these parameters, cannot make a world."""
    name = getattr(build, "__name__", build)
    is_world = not inspect.isclass(build) or issubclass(build, World)
    require(is_world, f"{name}, the class of environment {id!r}, is no world: {RULE}.")
    missing = " and ".join(sorted(getattr(build, "__abstractmethods__", ())))
    require(not missing, f"{name}, the class of environment {id!r}, has no {missing}: {RULE}.")
    if "device" not in parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        raise UserError(
            f"{name} of environment {id!r} takes no keyword device; "
            'give its __init__ device="cpu" as last parameter and hand it to super().__init__(time_limit, device).'
        )


def check_members(world: Any) -> None:
    """Raise a UserError for the first thing that every world has and this one has not."""
    name = kind(world)
    require(isinstance(world, World), f"{name} is no world: {RULE}.")
    for member in ("time_limit", "device", "one", "nothing"):
        advice = "its __init__ must call super().__init__(time_limit, device)"
        require(hasattr(world, member), f"{name} has no {member}; {advice}.")
    for member, least in (("num_actions", 1), ("reset_draws", 0), ("step_draws", 0)):
        require(hasattr(world, member), f"{name} has no {member}: {RULE}.")
        value = getattr(world, member)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        wanted = f"a whole number of at least {least}"
        require(whole and value >= least, f"{member} of {name} must be {wanted}, not {value!r}.")
    require(hasattr(world, "observation_space"), f"{name} has no observation_space: {RULE}.")
    entry_bounds(f"The observation_space of {name}", world.observation_space)
    for member, arguments in (("reset", "u"), ("step", "state, action, u")):
        signature = inspect.signature(getattr(world, member))
        try:
            signature.bind(*arguments.split(", "))
        except TypeError:
            raise UserError(f"{name}.{member} must take ({arguments}), not {signature}.") from None


@torch.no_grad()
def probe(world: World[Any], rows: int = 3) -> None:
    """Check the members of a world, and what one reset and one step with numbers of their own return."""
    check_members(world)
    name, space, numbers = kind(world), world.observation_space, torch.Generator().manual_seed(0)
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
    require(count == "5 values", f"{where} must return five values {FIVE}, not {count}.")
    after, observation, reward, terminated, success = result
    _check_state(where, "return first", after, rows)
    _check_observation(where, observation, space, rows)
    _check_column(f"The reward of {where}", reward, rows, torch.float32, torch.float64)
    _check_column(f"terminated of {where}", terminated, rows, torch.bool)
    _check_column(f"success of {where}", success, rows, torch.bool)
    for field, value in before.items():
        pure = torch.equal(getattr(state, field).nan_to_num(), value.nan_to_num())
        require(pure, f"{where} must not write into the state it is given ({field}), but return a new one.")
    one_more = torch.equal(after.steps, before["steps"] + 1)
    require(one_more, f"steps of the state that {where} returns must be one more than before in every row.")
    summed = torch.allclose(after.returns, before["returns"] + reward, rtol=1e-4, atol=1e-4)
    require(summed, f"returns of the state that {where} returns must be those before and the reward in every row.")
    same = torch.equal(after.observation, observation)
    require(same, f"The observation that {where} returns must be that of the state it returns.")
    early = (success & ~terminated).any()
    require(not early, f"{where} tells a success where terminated is False; success belongs to an episode's end.")


def kind(world: Any) -> str:
    """Name a world's class, for a sentence."""
    if isinstance(world, StateObserved):
        return f"{kind(world.world)} with observe='state'"
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
    """Check the form that `envs.core.World` prescribes: flat, but for an image, and within bounds."""
    low, high = entry_bounds(f"The observation_space of {where}", space)
    image = isinstance(space, spaces.Box) and len(space.shape) == 3
    shape, dtype, brief = (rows, *(space.shape if image else low.shape)), low.dtype.name, _brief(space)
    fits = isinstance(observation, Tensor) and observation.shape == shape and _plain(observation.dtype) == dtype
    wanted = f"a tensor {shape} of {dtype}, as its observation_space {brief} says"
    require(fits, f"The observation of {where} must be {wanted}, not {_described(observation)}.")
    shown = observation.detach().cpu().flatten(1).numpy()
    outside = ~((shown >= low) & (shown <= high))  # not the other way round, so that nan is outside
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise UserError(
            f"The observation of {where} holds {shown[row, column]} at index {column}, "
            f"but its observation_space {brief} says {low[column]} to {high[column]} there."
        )


def _described(value: Any) -> str:
    """Describe a tensor by shape and dtype, anything else by its type."""
    if isinstance(value, Tensor):
        return f"one {tuple(value.shape)} of {_plain(value.dtype)}"
    return f"a {type(value).__name__}"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _brief(space: gymnasium.Space[Any]) -> str:
    """Write a space on one line that is not too long."""
    line = " ".join(str(space).split())
    return line if len(line) <= BRIEF else line[: BRIEF - 3] + "..."


def entry_bounds(what: str, space: Any) -> tuple[Array, Array]:
    """Find the least and the greatest value (d,) of each entry, of the dtype that the space says."""
    if isinstance(space, spaces.Dict):
        entries = [entry_bounds(f"{what}, entry {name!r},", entry) for name, entry in space.items()]
        low, high = map(np.concatenate, zip(*entries, strict=True))
        return low, high
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1), space.high.reshape(-1)
    ranges = integer_ranges(space)
    if ranges is None:
        raise UserError(f"{what} must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, not {space!r}.")
    count, start = ranges
    # trainers take such numbers for indices of a table, and the one after the last for padding
    require(not start.any(), f"{what} must count from 0, not {_brief(space)}.")
    return np.zeros(count.shape, space.dtype), (count - 1).astype(space.dtype)
