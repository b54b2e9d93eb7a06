"""Check Gymnasium environments of other people at every step.

Values are converted to the form of their spaces, or refused in one sentence.
"""

import inspect
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import gymnasium
import numpy as np

from envs.console import say
from envs.errors import UserError
from envs.rows import Choices, entry_at, leaves, mask_function
from envs.spaces import Array, Unfit, encoder, fitter, shown

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and new line
FIVE = "observation, reward, terminated, truncated, info"
WATCHED_CALLS = 25  # calls of each copy during which the global generators are watched
MAX_STEPS = 3_000  # steps of an evaluation's episode without another limit
MAX_CAUSES = 100  # errors in a chain of causes whose texts are cleaned
BOUND_CHECKS = 10  # first observations of an integer space whose bounds are checked; checking all would cost too much

silent = False  # True in worker processes, if another worker prints the same messages
_draws_globally: set[Any] = set()  # kinds of environments that draw from a global generator
_keeps_to_its_own: set[Any] = set()  # kinds of environments that do not


@cache
def say_once(sentence: str) -> None:
    """Print a sentence on standard error, once per process."""
    if not silent:
        say(sentence, file=sys.stderr)


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose `reset` and `step` return values as Gymnasium prescribes, or raise a UserError.

    Observations have the shape and the dtype of their space, by the rule of `envs.spaces.fitter`. The reward is a
    finite float. Both flags are bools, and `truncated` is never set together with `terminated`. The success in the info
    of an episode's last step is a bool. The environment's own errors keep their traceback and get a note with the step.

    Some environments draw from the global generators of Python, numpy or torch. During their calls these generators get
    states of their own, which the first seed sets. So the same seeds give the same episodes, and the caller's states
    do not change.

    Args:
        env: the environment.
        key: the entry of a Dict observation that is used; the other entries are not checked.
        max_steps: truncate an episode after this many steps if the environment has no limit of its own; None: never.
        choices: how to read its masks of actions; None: it has none.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], key: str | None = None, max_steps: int | None = None,
        choices: Choices | None = None,
    ) -> None:  # fmt: skip
        super().__init__(with_spaces(env))
        self.name = name_of(env)
        seen = env.observation_space
        self._key = key if isinstance(seen, gymnasium.spaces.Dict) and key in seen.spaces else None
        if self._key is not None:
            seen = seen[self._key]  # type: ignore[index]
        self._fit, self._seen = fitter(seen), dict(leaves(seen))
        self._careful = BOUND_CHECKS
        self._masks, self._choices = mask_function(env), choices
        self._max_steps = None if limited(env) else max_steps
        self.taken = 0  # steps of the running episode
        self._where = "reset"
        self._globals: Globals | None = None
        self._kind = tuple(_kinds(env))
        for leaf in self._seen.values():
            if isinstance(leaf, gymnasium.spaces.Box) and len(leaf.shape) == 3 and not _bounded(leaf):
                say_once(f"{self.name}: its images have no bounds ({shown(leaf)}); their values are read as they are")
            if isinstance(leaf, gymnasium.spaces.Box) and len(leaf.shape) > 1 == len(encoder(leaf)[0].shape or ()):
                say_once(f"{self.name}: its observations {shown(leaf)} are no image and are read as flat vectors")
        say_learning(self.name, env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self.taken, self._where = 0, "reset"
        if seed is not None and self._kind not in _keeps_to_its_own:
            self._globals = Globals(seed)
        given = {"seed": seed} if options is None else {"seed": seed, "options": options}
        try:
            reset = self.env.reset
            result: Any = self._watched(reset, **given) if self._globals else reset(**given)
        except (Exception, SystemExit) as error:
            passed = given if self.env.unwrapped is self.env else ("seed", "options")  # Gymnasium's wrappers pass both
            explained = self._explained(error, (), passed)
            if explained is error:
                raise
            raise explained from None
        if not isinstance(result, tuple) or len(result) != 2:
            raise UserError(f"{self.name}: reset must give two values, as Gymnasium's: observation, info")
        info = self._info(result[1])
        return self._observation(result[0]), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        self.taken += 1
        self._where = "step"
        try:
            result: Any = self._watched(self.env.step, action) if self._globals else self.env.step(action)
        except (Exception, SystemExit) as error:
            explained = self._explained(error, (0,), ())
            if explained is error:
                raise
            raise explained from None
        if not isinstance(result, tuple) or len(result) != 5:
            given = f"{len(result)} values" if isinstance(result, tuple) else shown(result)
            raise self.wrong(f"gives {given}; Gymnasium's are five: {FIVE}")
        observation, reward, terminated, truncated, info = result
        if type(reward) is not float:
            reward = self._reward(reward)
        if type(terminated) is not bool:
            terminated = self._flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = self._flag("truncated", truncated)
        if type(info) is not dict or "action_mask" in info:
            info = self._info(info)
        observation = self._observation(observation)
        if self._max_steps is not None and self.taken >= self._max_steps and not (terminated or truncated):
            truncated = True
            say_once(
                f"{self.name}: an evaluation truncates episodes after {self._max_steps:,} steps, because they have no "
                "other limit; --time-limit (of a run) or max_episode_steps (of gymnasium.make) sets one"
            )
        truncated = truncated and not terminated  # an end on the last step is a termination
        if "success" in info or "is_success" in info:
            info = self._success(info, terminated or truncated)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """Draw the environment."""
        try:
            return self.env.render()
        except Exception as error:
            error.add_note(f"The environment {self.name} raised this in render.")
            raise

    def wrong(self, what: str) -> UserError:
        """Make an error that names the function, the mistake and the step of the episode."""
        return self.error(f"{self._where} {what}")

    def error(self, what: str) -> UserError:
        """Make an error that names the environment and the step of its episode."""
        where = " (at reset)" if self._where == "reset" else f" (step {self.taken} of an episode)"
        return UserError(f"{self.name}: {what}{where}")

    def _explained(self, error: Any, args: Any, names: Iterable[str]) -> Exception:
        """Return the error to raise: a UserError for a known mistake, else the error itself with a note of the step.

        `args` and `names` are the arguments of the environment's function.
        """
        if isinstance(error, SystemExit):
            return self.wrong(f"tries to end the program (SystemExit {shown(error.code)})")
        sentence = self._misfit(error, args, names)
        if sentence is not None:
            return UserError(f"{self.name}: {sentence}")
        if not isinstance(error, UserError):
            step = f"step {self.taken} of an episode" if self._where == "step" else "its reset"
            error.add_note(f"The environment {self.name} raised this in {step}.")
        return without_control(error)

    def _watched(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the environment with its own states of the global generators, until it is known not to use them."""
        assert self._globals is not None
        with self._globals.lent():
            result = function(*args, **kwargs)
        if self._globals.used and self._kind not in _draws_globally:
            _draws_globally.add(self._kind)
            say_once(
                f"{self.name} ignores its seed: it draws from {self._globals.used}, not from the generator that "
                "reset(seed=...) seeds (self.np_random); each copy gets seeded states, which makes runs repeatable"
            )
        if self._globals.calls >= WATCHED_CALLS and self._kind not in _draws_globally:
            _keeps_to_its_own.add(self._kind)
            self._globals = None
        return result

    def _misfit(self, error: Exception, args: Any, names: Iterable[str]) -> str | None:
        """Explain an error that wrong arguments or a wrong number of values caused; None for other errors."""
        if not isinstance(error, TypeError | ValueError):
            return None
        step = self._where == "step"
        try:
            signature = inspect.signature(getattr(self.env.unwrapped, self._where))
        except (TypeError, ValueError):
            return None
        try:
            signature.bind(*args, **dict.fromkeys(names))
        except TypeError:
            wanted = "an action" if step else "the keywords seed and options"
            return f"{self._where} must take {wanted}, as Gymnasium's, not {signature}"
        if "unpack" in _text(error) and _raised_in_gymnasium(error):
            wanted = f"five values: {FIVE}" if step else "two values: observation, info"
            return f"{self._where} must give {wanted} ({error})"
        return None

    def _observation(self, given: Any) -> Any:
        """Convert the observation, or its entry `key`, to the form of its space."""
        try:
            if self._key is None:
                fitted = self._fit(given)
            elif isinstance(given, Mapping) and self._key in given:
                fitted = self._fit(given[self._key])
            else:
                raise Unfit(f"an observation without the entry {self._key!r}: {shown(given)}")
        except Unfit as error:
            raise self.wrong(f"gives {error}") from None
        if self._careful:
            self._careful -= 1
            self._check_bounds(fitted)
        return fitted if self._key is None else {**given, self._key: fitted}

    def _check_bounds(self, fitted: Any) -> None:
        """Refuse whole numbers outside of the bounds of a Box."""
        for path, space in self._seen.items():
            if isinstance(space, gymnasium.spaces.Box) and space.dtype.kind in "biu":
                values = entry_at(fitted, path)
                outside = values[(values < space.low) | (values > space.high)]
                if outside.size:
                    raise self.wrong(f"gives an observation that holds {outside[0]}, outside of {shown(space)}")

    def flags(self, info: dict[str, Any], ended: bool) -> Array:
        """Read the flags of legal choices after `reset` or `step`; at an episode's end they may be missing."""
        assert self._choices is not None
        given = info.get("action_mask")
        if given is None and self._masks is not None:
            given = self._masks()
        if given is None and ended:
            return np.ones(self._choices.count, bool)
        flags = None if given is None else self._choices.flags(given)
        if flags is None:
            wanted = f"{sum(self._choices.sizes)} flags, 0 or 1, for the values of {shown(self._choices.space)}"
            raise self.wrong(f"gives the action_mask {shown(given)}; it must be {wanted}")
        if not ended and not self._choices.some(flags):
            raise self.error("no action is legal, but the episode goes on")
        return flags

    def _reward(self, given: Any) -> float:
        with suppress(TypeError, ValueError, OverflowError):
            array = np.asarray(given)
            if array.size == 1 and array.dtype.kind in "biuf":
                return float(array.item())
        reward = "no reward" if given is None else f"the reward {shown(given)}"
        raise self.wrong(f"gives {reward}; it must be a finite number")

    def _flag(self, name: str, given: Any) -> bool:
        flag = truth(given)
        if flag is None:
            raise self.wrong(f"gives {name} as {shown(given)}; it must be true or false")
        return flag

    def _info(self, given: Any) -> dict[str, Any]:
        if type(given) is not dict and not isinstance(given, Mapping):
            raise self.wrong(f"gives an info that is no dictionary: {shown(given)}")
        if self._choices is None and self._where == "step" and "action_mask" in given:  # a reset may be a probe's
            say_once(
                f"{self.name}: its info holds an action_mask, which this agent does not obey; ppo, pqn and train do, "
                "by --action-masks True"
            )
        return given  # type: ignore[return-value]

    def _success(self, info: dict[str, Any], ended: bool) -> dict[str, Any]:
        """Return the info with its success as a bool; before an episode's end it may be None."""
        name = "success" if "success" in info else "is_success"
        given = info[name]
        if type(given) is bool or (given is None and not ended):
            return info
        success = truth(given)
        if success is None:
            raise self.wrong(f"gives the info {name!r} as {shown(given)}; it must be true or false")
        return {**info, name: success}


def say_learning(name: str, env: Any) -> None:
    """Print a warning for each wrapper with running statistics, as NormalizeObservation has."""
    while True:
        values = vars(env).values() if hasattr(env, "__dict__") else ()
        if any(all(not callable(getattr(value, part, abs)) for part in ("mean", "var")) for value in values):
            say_once(
                f"{name}: {type(env).__name__} has running statistics, which no checkpoint contains; every environment "
                "and every evaluation begins with new ones, so observations there differ from those in training: use "
                "fixed statistics"
            )
        if not isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
            return
        env = env.env


def name_of(env: Any) -> str:
    """Name an environment in a sentence."""
    return CONTROL.sub("", env.spec.id if env.spec else type(env.unwrapped).__name__)


def truth(given: Any) -> bool | None:
    """Read a bool, or a single number that is 0 or 1; None for anything else."""
    with suppress(TypeError, ValueError):
        array = np.asarray(given)
        if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
            return bool(array.item())
    return None


def with_spaces(env: Any) -> gymnasium.Env[Any, Any]:
    """Return the environment, or raise a UserError if it is no gymnasium.Env with two spaces."""
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{shown(env)} is no environment: it must be a gymnasium.Env.")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            raise UserError(f"{name_of(env)}: its {name} must be a space of Gymnasium's, not {shown(space)}.")
    return env


def limited(env: Any) -> bool:
    """Tell whether an environment has a known limit of steps, as every `World` has."""
    known = (env.spec is not None and env.spec.max_episode_steps) or hasattr(env.unwrapped, "world")
    while not known and isinstance(env, gymnasium.Wrapper):
        known, env = isinstance(env, gymnasium.wrappers.TimeLimit), env.env
    return bool(known)


def _kinds(env: Any) -> Iterator[Any]:
    """List the types of an environment and its wrappers, and the code of the wrappers' functions."""
    while True:
        yield type(env)
        yield getattr(getattr(env, "func", None), "__code__", None)
        if not isinstance(env, gymnasium.Wrapper):
            return
        env = env.env


def _bounded(space: gymnasium.spaces.Box) -> bool:
    """Tell whether `dqn_memory.blocks.embeddings.UnitScale` can scale all values by their bounds."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((space.high.astype(np.float64) - space.low.astype(np.float64) < 2.0**31).all())


def without_control(error: Exception) -> Exception:
    """Remove control characters from the texts of an error and of its causes."""
    seen: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if seen is None:
            break
        if CONTROL.search(_text(seen)):
            seen.args = tuple(CONTROL.sub("", each) if isinstance(each, str) else each for each in seen.args)
        seen = seen.__cause__ or seen.__context__
    if not CONTROL.search(_text(error)):
        return error
    # The text does not come from the error's arguments.
    plain = RuntimeError(CONTROL.sub("", f"{type(error).__name__}: {_text(error)}"))
    for note in getattr(error, "__notes__", ()):
        plain.add_note(note)
    return plain.with_traceback(error.__traceback__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error's own text may fail
        return ""


def _raised_in_gymnasium(error: Exception) -> bool:
    """Tell whether Gymnasium, such as one of its wrappers, raised an error, and not the environment."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").startswith("gymnasium.")


class Globals:
    """One environment's own states of the global generators, which a seed sets."""

    def __init__(self, seed: int) -> None:
        self.calls = 0
        self.used = ""  # names of the generators that were drawn from
        self._seed: int | None = seed
        self._states: list[Any] = []

    @contextmanager
    def lent(self) -> Any:
        """Put these states into the global generators, and restore the program's states afterwards."""
        sources = generators()
        before = [get() for _, get, _, _ in sources]
        try:
            if self._seed is None:
                for (_, _, put, _), state in zip(sources, self._states, strict=False):
                    put(state)
            else:
                for _, _, _, seed in sources:
                    seed(self._seed % 2**32)
            first = [get() for _, get, _, _ in sources]
            self.calls += 1
            yield
            self._states, self._seed = [get() for _, get, _, _ in sources], None
            drawn = map(differ, first, self._states)
            names = [source[0] for source, used in zip(sources, drawn, strict=True) if used]
            self.used = self.used or " and ".join(names)
        finally:
            for (_, _, put, _), state in zip(sources, before, strict=True):
                put(state)


def generators() -> list[tuple[str, Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]]:
    """List the global generators, each as name, getter, setter and seeder; torch's only if it is imported."""
    sources: list[tuple[str, Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]] = [
        ("Python's global generator", random.getstate, random.setstate, random.seed),
        ("numpy's global generator", np.random.get_state, np.random.set_state, np.random.seed),
    ]
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        own = torch.default_generator
        sources.append(("torch's global generator", own.get_state, own.set_state, own.manual_seed))
    return sources


def differ(old: Any, new: Any) -> bool:
    """Tell whether two states of one generator differ."""
    if isinstance(old, tuple) and isinstance(old[1], np.ndarray):
        return old[2] != new[2] or not np.array_equal(old[1], new[1])  # numpy: (name, key, position, ...)
    return not bool(np.array_equal(old, new)) if hasattr(old, "shape") else bool(old != new)
