"""Environments that give odd values at odd moments: what they give is read, or refused in one sentence."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import trainer_class
from envs.checked_vector import CheckedVector
from envs.gymnasium import GymnasiumVector

ID = "Fuzz/Odd-v0"
TINY = {
    "env": ID, "track": ["none"], "threads": 1, "total_steps": 64, "num_envs": 2, "rollout_steps": 8, "width": 8,
    "final_episodes": 2, "memory_ablation": False, "minibatches": 1,
}  # fmt: skip
Plan = dict[str, Any]  # what an environment gives, drawn from a seed


class Broken(Exception):
    """Its text steers a terminal."""


def odd(draw: random.Random) -> Any:
    """Draw a value that may be anything."""
    shape = tuple(draw.choice((0, 1, 2, 3, 64)) for _ in range(draw.randrange(4)))
    dtype = draw.choice(("bool", "uint8", "int16", "int64", "float16", "float64", "complex64", "object", "U3", "M8[s]"))
    return draw.choice((
        None, True, 0, 1, -1, 0.0, 0.5, 1.0, 2**40, 10**400, 1e300, float("nan"), float("inf"), 1j, "", "1", "\x1b[2J",
        b"x", [], [0], [[1], [1, 2]], {}, {"success": "no"}, {"success": np.zeros(2)}, (0, {}), object(), np.nan,
        np.int32(3), np.float32(-0.0), np.zeros(shape, dtype), torch.zeros(shape), range(3), lambda: 0, Broken,
        np.ma.masked, iter(()), type, NotImplemented,
    ))  # fmt: skip


def space(draw: random.Random) -> gymnasium.Space[Any]:
    """Draw a space."""
    shape = tuple(draw.choice((1, 2, 3, 4, 7, 20, 40)) for _ in range(draw.choice((0, 1, 1, 2, 3, 3, 3, 4))))
    dtype = draw.choice((bool, np.int8, np.uint8, np.int16, np.uint16, np.int64, np.float16, np.float32, np.float64))
    pairs = [(0, 1), (0, 255), (-1, 1), (0, 0), (3, 7), (-100, 30_000), (-np.inf, np.inf), (0, np.inf)]
    limits = (
        (0, 1) if dtype is bool else (-np.inf, np.inf) if dtype(0.5) else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    low, high = draw.choice([pair for pair in pairs if limits[0] <= pair[0] and pair[1] <= limits[1]])
    if np.isfinite(high) and draw.random() < 0.3:  # bounds of each entry
        tops = np.random.default_rng(draw.randrange(2**32)).uniform(low, high, shape)
        return spaces.Box(np.full(shape, low).astype(dtype), np.ceil(tops).astype(dtype), dtype=dtype)
    box = spaces.Box(low, high, shape, dtype)
    return draw.choice((
        box, box, box, spaces.Discrete(draw.randint(1, 300), start=draw.randint(-3, 3)), spaces.MultiBinary(3),
        spaces.MultiDiscrete([draw.randint(1, 5), 2]), spaces.Dict(a=box), spaces.Tuple((box,)), spaces.Text(3),
    ))  # fmt: skip


class Odd(gymnasium.Env[Any, Any]):
    """Gives samples of its space, and at one moment what its plan says."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.moment = plan, 0
        self.observation_space, self.action_space = plan["space"], plan["actions"]
        self.observation_space.seed(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.spoiled([self.observation_space.sample(), {}])

    def step(self, action: Any) -> Any:
        ended = self.moment % 4 == 3
        info = {"success": ended} if ended else {}
        return self.spoiled([self.observation_space.sample(), 0.5, ended, False, info])

    def spoiled(self, values: list[Any]) -> Any:
        self.moment += 1
        if self.moment != self.plan["moment"]:
            return tuple(values)
        kind, value = self.plan["kind"], self.plan["value"]
        if kind == "error":
            raise self.plan["error"]
        if kind == "length":
            return tuple(values * 2)[: self.plan["length"]]
        if kind == "whole":
            return value
        place = self.plan["place"] % len(values)
        values[place] = (
            {**values[place], self.plan["name"]: value} if kind == "info" and place == len(values) - 1 else value
        )
        return tuple(values)


def planned(draw: random.Random, of: gymnasium.Space[Any] | None = None) -> Plan:
    """Draw what goes wrong, where and when."""
    usual = [spaces.Discrete(3), spaces.Box(0, 1, (3,)), spaces.Box(0, 255, (6, 6, 1), np.uint8)]
    errors = (ValueError, KeyError, Broken, OSError, StopIteration, SystemExit, MemoryError, RecursionError)
    return {
        "space": of or draw.choice(usual), "actions": spaces.Discrete(2, start=draw.randrange(2)),
        "moment": draw.randint(1, 14), "kind": draw.choice(("value", "value", "info", "error", "length", "whole")),
        "value": odd(draw), "place": draw.randrange(5), "length": draw.randrange(8),
        "name": draw.choice(("success", "is_success", "action_mask", "other")),
        "error": draw.choice(errors)("\x1b[31mred\x07 \\ text"),
    }  # fmt: skip


def carried_out(plan: Plan, folder: Path) -> None:
    """Step a vector of two environments, then train for two iterations; what they learn from is finite."""
    gymnasium.register(ID, lambda: Odd(plan))
    try:
        vector = GymnasiumVector(lambda: Odd(plan), 2, 0)
        seen = [vector.reset().double()]
        for _ in range(12):
            step = vector.step(torch.zeros(2, dtype=torch.int64))
            seen += [step.observation.double(), step.final_observation.double(), step.reward.double()]
        assert all(bool(each.isfinite().all()) for each in seen)
        trainer, run = trainer_class("ppo").start(TINY | {"run": str(folder / "run")})
        with run:
            for _ in range(2):
                trainer.iterate()
            assert all(bool(value.isfinite().all()) for value in trainer.weights().values())
    except UserError:
        raise
    except Exception as error:
        notes = [note for note in getattr(error, "__notes__", ()) if "raised this in" in note]
        assert notes and str(error).isprintable(), repr(error)
        raise UserError(notes[0]) from None  # an error of the environment's own, which says where it happened
    finally:
        del gymnasium.registry[ID]


class OddVector(gymnasium.vector.VectorWrapper):
    """Gives what a vector of environments gives, and at one moment an odd value in one place."""

    def __init__(self, plan: Plan) -> None:
        still = plan | {"moment": 0}
        super().__init__(gymnasium.vector.SyncVectorEnv([lambda: Odd(still)] * 2, autoreset_mode=plan["mode"]))
        self.plan, self.moment = plan, 0

    def step(self, actions: Any) -> Any:
        self.moment += 1
        values = list(super().step(actions))
        if self.moment == self.plan["moment"]:
            values[self.plan["place"]] = self.plan["value"]
            values = values[: 5 if self.plan["kind"] != "length" else self.plan["length"]]
        return tuple(values)


def stepped(plan: Plan, _: Path) -> None:
    """Read what a vector environment gives, as an agent that plays in it does."""
    envs = CheckedVector(OddVector(plan))
    envs.reset(seed=0)
    for _ in range(14):
        _, reward, ended, cut, info = envs.step(np.full(2, plan["actions"].start))
        found = envs.success(info, ended | cut)
        assert np.isfinite(reward).all() and (found is None or found[0].dtype == bool)


def vectors(draw: random.Random) -> Plan:
    return planned(draw) | {"mode": draw.choice(("SameStep", "NextStep"))}


def of_all_spaces(draw: random.Random) -> Plan:
    return planned(draw, space(draw)) | {"moment": 0}


def made(change: Callable[[random.Random], Plan], use: Callable[[Plan, Path], None]) -> tuple[Any, Any, Any]:
    """Make what a target has: corpus, change and use."""
    return lambda: [None], lambda _, draw: change(draw), lambda plan, folder: lambda: use(plan, folder)


ENVIRONMENT_TARGETS = {
    "environment values": made(planned, carried_out),
    "environment spaces": made(of_all_spaces, carried_out),
    "vector environments": made(vectors, stepped),
}
