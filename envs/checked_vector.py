"""Check vector environments of other people at every step."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from envs.checked import FIVE, limited, name_of, say_learning, truth
from envs.errors import UserError
from envs.spaces import Array, shown


class CheckedVector:
    """A vector environment whose results are as Gymnasium prescribes; anything else raises a UserError."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        first = next(iter(getattr(env, "envs", ())), env)  # of Gymnasium's SyncVectorEnv: one of its environments
        self.env, self.rows, self.name, self.taken = env, env.num_envs, name_of(env if env.spec else first), 0
        self.limited = limited(env) or limited(first)
        self.info: dict[str, Any] = {}  # of the last reset or step
        say_learning(self.name, env)

    def reset(self, **given: Any) -> Any:
        """Start episodes; returns the observations."""
        result: Any = self.env.reset(**given)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.wrong("must give two values, as Gymnasium's: observations, infos", "reset")
        self.info = result[1]
        return result[0]

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take one action in every row; returns observations, rewards (N,), both flags (N,) and infos."""
        self.taken += 1
        result: Any = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5 or not isinstance(result[4], dict):
            given = ", ".join(type(each).__name__ for each in result) if isinstance(result, tuple) else shown(result)
            raise self.wrong(f"gives {given}; Gymnasium's are five: {FIVE}, the info a dict")
        observation, reward, ended, cut, info = result
        self.info = info
        reward = self.column("the reward", reward, "biuf", "finite numbers")
        ended, cut = (self.column("a flag", each, "b", "truth values") for each in (ended, cut))
        return observation, reward, ended, cut, info

    def masks(self, before: list[Any] | None) -> list[Any]:
        """Return the masks of actions of all rows; rows that have none keep those of `before`."""
        masks, own = self.info.get("action_mask"), self.info.get("_action_mask", np.ones(self.rows, bool))
        if masks is None:
            masks = self.env.call("action_masks") if hasattr(self.env, "call") else [None] * self.rows
        known = [None] * self.rows if before is None else before
        return [_row(masks, row) if own[row] else known[row] for row in range(self.rows)]

    def success(self, info: dict[str, Any], done: Array) -> tuple[Array, Array] | None:
        """Return the successes (N,) and the mask (N,) of the rows whose info has one; None without any."""
        final = info.get("final_info", info)
        if not isinstance(final, Mapping):
            raise self.wrong(f"gives a final_info that is no dictionary: {shown(final)}")
        name = next((name for name in ("success", "is_success") if name in final), None)
        if name is None:
            return None
        given = self.column(f"the info '_{name}'", final.get(f"_{name}", np.ones(self.rows, bool)), "b", "truth values")
        values = np.where(given & done, self.column(f"the info {name!r}", final[name], "biufO", "truth values"), False)
        read = [truth(value) for value in values]
        if None in read:
            raise self.wrong(f"gives the info {name!r} as {shown(final[name])}; it must be {self.rows} truth values")
        return np.array(read, bool), given

    def column(self, what: str, given: Any, kinds: str, wanted: str) -> Array:
        """Return an array (N,) whose dtype is one of `kinds`; else raise a UserError."""
        try:
            array = np.asarray(given)
        except ValueError:
            array = np.empty(0, object)
        fits = array.shape == (self.rows,) and array.dtype.kind in kinds
        if not fits or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            raise self.wrong(f"gives {what} as {shown(given)}; it must be {self.rows} {wanted}")
        return array

    def wrong(self, what: str, where: str = "step") -> UserError:
        """Make an error that names the environment, the function, the mistake and the step."""
        at = f" (step {self.taken})" if where == "step" else ""
        return UserError(f"{self.name}: {where} {what}{at}")


def _row(masks: Any, row: int) -> Any:
    """Take one row of masks; Gymnasium's vectors stack the parts of dictionaries."""
    if isinstance(masks, Mapping):
        return {name: _row(part, row) for name, part in masks.items() if not name.startswith("_")}
    return masks[row]
