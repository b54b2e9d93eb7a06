"""Check a World of your own against its contract, and its vector form against single environments.

    check_registered("Mine/World-v0", time_limit=20)  # a registered environment, for several episodes

The contract is that of `envs.core.World`. `make_world` checks its members. Vectors and adapters check its tensors
(`probe`), because no later step would notice a wrong shape. Every check raises the first difference as one sentence.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from envs.core import Reobserved, State, StateObserved, World, where_state
from envs.errors import UserError, require
from envs.spaces import entry_bounds, shown
from envs.worlds.tabular import Tabular

MEMBERS = "num_actions, reset_draws, step_draws, observation_space, reset(u), step(state, action, u), frame and text"
RULE = f"a World is a subclass of envs.core.World with {MEMBERS}"
VALUES = "(state, observation, reward, terminated, success)"
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
    for member, minimum in (("num_actions", 0), ("reset_draws", 0), ("step_draws", 0)):
        require(hasattr(world, member), f"{name} has no {member}: {RULE}.")
        value = getattr(world, member)
        integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        wanted = f"a whole number of at least {minimum}"
        require(integer and value >= minimum, f"{member} of {name} must be {wanted}, not {value!r}.")
    space = world.action_space
    box = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32
    require(
        world.num_actions > 0 or box, f"num_actions of {name} is 0, so its action_space must be a Box (k,) of float32."
    )
    require(hasattr(world, "observation_space"), f"{name} has no observation_space: {RULE}.")
    entry_bounds(f"The observation_space of {name}", world.observation_space)
    for member, arguments in (("reset", "u"), ("step", "state, action, u")):
        signature = inspect.signature(getattr(world, member))
        try:
            signature.bind(*arguments.split(", "))
        except TypeError:
            raise UserError(f"{name}.{member} must take ({arguments}), not {signature}.") from None


ROWS = 3  # episodes that the checks play at once


@torch.no_grad()
def probe(world: World[Any]) -> None:
    """Check the members of a World, and the results of one reset and one step with random numbers of their own."""
    check_members(world)
    _check_initial_draws(world)
    numbers = torch.Generator().manual_seed(0)
    state = _checked_reset(world, _draws(world.reset_draws, world, numbers))
    action = _actions(world, state, numbers)
    _checked_step(f"{world_name(world)}.step", world, state, action, _draws(world.step_draws, world, numbers))


@torch.no_grad()
def check_episodes(world: World[Any], steps: int, seed: int = 0) -> None:
    """Play random legal actions; check that every reset and step keeps the contract and is a pure function.

    Each function is called twice with the same arguments, sometimes with a call of the other one in between.

    Raises:
        UserError: the first fault.
    """
    name, numbers = world_name(world), torch.Generator().manual_seed(seed)
    state = _checked_reset(world, _draws(world.reset_draws, world, numbers))
    for number in range(steps):
        where, action = f"{name}.step (step {number} of the check)", _actions(world, state, numbers)
        chance, start = (_draws(count, world, numbers) for count in (world.step_draws, world.reset_draws))
        after, reward, terminated, success = _checked_step(where, world, state, action, chance)
        taken, over = _step_copies(after, reward, terminated, success), terminated | world.truncated(after, terminated)
        fresh = _checked_reset(world, start) if number % 5 == 0 or over.any() else None
        begun = {} if fresh is None else _copies(fresh)
        again, _, *others = world.step(state, action, chance)
        _check_repeated(where, taken, _step_copies(again, *others))
        state = after
        if fresh is not None:
            _check_repeated(f"{name}.reset", begun, _copies(world.reset(start)))
            state = where_state(over, fresh, after)


def _step_copies(after: State, reward: Tensor, terminated: Tensor, success: Tensor) -> dict[str, Tensor]:
    return _copies(after, reward=reward, terminated=terminated, success=success)


def _copies(state: State, **others: Tensor) -> dict[str, Tensor]:
    """Copy the fields of a state, and other results of a step."""
    return {name: value.clone() for name, value in {**vars(state), **others}.items()}


def _check_repeated(where: str, once: dict[str, Tensor], twice: dict[str, Tensor]) -> None:
    for name, value in once.items():
        require(
            _same(value, twice[name]),
            f"{where} must be a pure function, but the same arguments gave another {name} the second time; keep what "
            "an episode needs in its state, and draw only by u.",
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare two tensors; nan equals nan."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and (torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all()))


def _draws(count: int, world: World[Any], numbers: torch.Generator) -> Tensor:
    return torch.rand(ROWS, count, dtype=torch.float64, generator=numbers).to(world.device)


def _checked_reset(world: World[Any], u: Tensor) -> State:
    """Start episodes, and check their first states."""
    where, state = f"{world_name(world)}.reset", world.reset(u)
    _check_state(where, "return", state, ROWS)
    _check_observation(where, state.observation, world.observation_space, ROWS)
    begins = not (state.steps.any() or state.returns.any())
    require(begins, f"{where} must set steps and returns of the state to 0 in every row, see self.counters(len(u)).")
    return state


def _checked_step(
    where: str, world: World[Any], state: State, action: Tensor, chance: Tensor
) -> tuple[State, Tensor, Tensor, Tensor]:
    """Take a step, and check its results: (state, reward, terminated, success)."""
    before = _copies(state)
    result: Any = world.step(state, action, chance)
    count = f"{len(result)} values" if isinstance(result, tuple) else _described(result)
    require(count == "5 values", f"{where} must return five values {VALUES}, not {count}.")
    after, observation, reward, terminated, success = result
    _check_state(where, "return first", after, ROWS)
    _check_observation(where, observation, world.observation_space, ROWS)
    _check_column(f"The reward of {where}", reward, ROWS, torch.float32, torch.float64)
    _check_column(f"terminated of {where}", terminated, ROWS, torch.bool)
    _check_column(f"success of {where}", success, ROWS, torch.bool)
    for field, value in before.items():
        pure = _same(getattr(state, field), value)
        require(pure, f"{where} must not write into the given state ({field}), but return a new one.")
    one_more = torch.equal(after.steps, before["steps"] + 1)
    require(one_more, f"{where} must add 1 to steps of the state in every row.")
    wild = reward[~reward.float().isfinite()].tolist()  # agents learn from float32
    require(not wild, f"The reward of {where} must be a finite number, not {', '.join(map(str, wild[:1]))}.")
    gap, returns = (after.returns - before["returns"] - reward).abs(), before["returns"].abs()
    summed = bool((gap <= 1e-4 * reward.abs() + 1e-6 * returns + 1e-9).all())  # rewards and sums may be of float32
    require(summed, f"{where} must add the reward to returns of the state in every row.")
    same = torch.equal(after.observation, observation)
    require(same, f"{where} must return the observation of the returned state.")
    early = (success & ~terminated).any()
    require(not early, f"{where} returns success without terminated; only a terminated episode can succeed.")
    return after, reward, terminated, success


def _actions(world: World[Any], state: State, numbers: torch.Generator) -> Tensor:
    """Draw a legal action of each row; check the mask of the World."""
    if not world.num_actions:
        box = batch_space(world.action_space, ROWS)
        box.seed(int(torch.randint(2**31, (), generator=numbers)))
        return torch.from_numpy(box.sample()).to(world.device)
    if not world.masks_actions:
        return torch.randint(world.num_actions, (ROWS,), generator=numbers).to(world.device)
    name, mask = world_name(world), world.mask(state)
    wanted = f"a tensor ({ROWS}, {world.num_actions}) of bool"
    fits = isinstance(mask, Tensor) and mask.shape == (ROWS, world.num_actions) and mask.dtype == torch.bool
    require(fits, f"{name}.mask must return {wanted}, not {_described(mask)}.")
    require(bool(mask.any(1).all()), f"{name}.mask allows no action in a state that goes on.")
    return torch.multinomial(mask.double().cpu(), 1, generator=numbers)[:, 0].to(world.device)


def _check_initial_draws(world: World[Any]) -> None:
    """Check the list of initial states, from which an evaluation may play one episode each."""
    own = world
    while isinstance(own, Reobserved):
        own = own.world
    if type(own).initial_draws in (World.initial_draws, Tabular.initial_draws):  # the tables say what draws matter
        return
    name, draws = world_name(world), world.initial_draws()
    if draws is None:
        return
    wanted = f"a tensor (M, {world.reset_draws}) of float64, M > 0"
    fits = isinstance(draws, Tensor) and draws.dim() == 2 and draws.shape[1] == world.reset_draws and len(draws) > 0
    fits = fits and draws.dtype == torch.float64
    require(fits, f"{name}.initial_draws must return None or {wanted}, not {_described(draws)}.")
    require(
        world.step_draws == 0,
        f"{name}.initial_draws must return None, because step_draws is {world.step_draws}: only a World whose steps "
        "draw nothing can list all of its episodes.",
    )


def world_name(world: Any) -> str:
    """Name a World's class in a sentence."""
    if isinstance(world, Reobserved):
        return world_name(world.world) + " with observe='state'" * isinstance(world, StateObserved)
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
    """Compare `gymnasium.make_vec(id)` with single environments of `gymnasium.make(id)`, both with `kwargs`.

    Both play `steps` random actions from the same seeds; at least one episode must end. For a World
    `check_episodes` runs first.

    Raises:
        UserError: the first fault or difference.
    """
    mode = AutoresetMode.SAME_STEP
    vector = gymnasium.make_vec(id, num_envs=num_envs, autoreset_mode=mode, **kwargs)
    single = SyncVectorEnv([lambda: gymnasium.make(id, **kwargs)] * num_envs, autoreset_mode=mode)
    with closing(vector), closing(single):
        world = getattr(single.envs[0].unwrapped, "world", None)
        if isinstance(world, World):
            check_episodes(world, steps, seed)
        _check_same(vector.reset(seed=seed)[0], single.reset(seed=seed)[0], f"{id}: after reset the observation")
        vector.action_space.seed(seed)
        endings = 0
        for step in range(steps):
            action = vector.action_space.sample()
            ours, wanted = (each.step(action) for each in (vector, single))
            for name, one, other in zip(PARTS, ours, wanted, strict=False):
                _check_same(one, other, f"{id}: at step {step} {name}")
            for name in ("final_obs", "final_info"):
                _check_same(ours[4].get(name), wanted[4].get(name), f"{id}: at step {step} the info {name!r}")
            endings += int((wanted[2] | wanted[3]).sum())
    require(endings, f"{id}: no episode ended in {steps} steps; make the time limit shorter or take more steps.")


def _check_same(ours: Any, wanted: Any, what: str) -> None:
    if data_equivalence(ours, wanted, exact=True):
        return
    others = dict(_arrays(wanted))
    for path, one in _arrays(ours):
        other = others.get(path, one)
        entry = what + "".join(f"[{key!r}]" for key in path)
        alike = (
            f"{entry} of the vector environment is of {one.dtype}, but that of single environments of {other.dtype}."
        )
        require(one.dtype == other.dtype, alike)
        numbers = one.dtype.kind != "f" or not np.isnan(one).any() or not np.array_equal(one, other, equal_nan=True)
        require(numbers, f"{entry} holds nan, in the vector environment and in single ones; it must hold numbers.")
    raise UserError(f"{what} of the vector environment is {shown(ours)}, but single environments give {shown(wanted)}.")


def _arrays(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], np.ndarray[Any, Any]]]:
    """List the arrays in dictionaries, lists and arrays of objects, with their keys."""
    if isinstance(value, Mapping):
        named: Any = value.items()
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        named = enumerate(value)
    else:
        yield path, np.asarray(value)
        return
    for key, entry in named:
        yield from _arrays(entry, (*path, key))
