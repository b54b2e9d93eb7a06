"""A trained agent in a loop of one's own: Q-networks, UniZero and GLAM alike.

    agent = Agent.load("runs/demo-1")
    observation, reset = env.reset()[0], True
    while True:
        observation, _, terminated, truncated, _ = env.step(agent.act(observation, reset))
        reset = terminated or truncated  # then observation = env.reset()[0], unless env does so itself

It takes the environment's own observations, of one environment or of a batch, and keeps its own memory. `play` is that
loop, for one environment or a vector of them, in any autoreset mode.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from dqn_memory.actors import NetworkPolicy, make_actor
from dqn_memory.evaluation import LoadedPolicy, Policy, Score, Tally, usable_device
from dqn_memory.export import export_actor
from dqn_memory.interface import Interface, as_array
from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.process import process_restored
from envs.checked import MAX_STEPS, Checked, CheckedVector
from envs.cli import load_plugins
from envs.files import make_folder, write_atomic
from envs.spaces import discrete_actions


class Agent:
    """A trained policy, which keeps its state between calls.

    A Q-network takes the action of the highest value, UniZero the most visited one of a search without noise; PPO
    (unless its config has `policy = "greedy"`) and GLAM draw one, as in training, or take the most probable one.

    Attributes:
        config: of its training.
        step: environment steps of its training.
        q: the numbers that the newest actions were chosen by, (N, A): Q-values of Q-networks, logits of PPO,
            probabilities of UniZero and GLAM.
    """

    def __init__(self, loaded: LoadedPolicy, interface: Interface, rows: int | None = None) -> None:
        self.config, self.step, self.interface, self._loaded = loaded.config, loaded.step, interface, loaded
        self.q = np.zeros((0, interface.num_actions), np.float32)
        self._policy: Policy | None = None
        self._rows = 0
        if rows is not None:
            self._start(rows)

    @classmethod
    @process_restored()
    def load(
        cls, run: Path | str, rows: int | None = None, device: torch.device | str = "cpu", seed: int = 0,
        policy: Literal["sampled", "greedy"] | None = None, plugins: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """Read the agent of a run's latest checkpoint, whatever trained it.

        Args:
            run: its folder.
            rows: batch size N; None: the first `act` says it. An `act` that resets all may change it.
            device: where its networks are.
            seed: of what PPO, UniZero and GLAM draw; a call of `play` begins these draws anew.
            policy: how PPO and GLAM choose actions; None: as its config says, GLAM sampled ones.
            plugins: modules that may be imported as the run names them; a run that you started yourself needs none.

        Raises:
            UserError: there is no run or checkpoint, it is damaged or foreign, it wants a module that is not among
                `plugins`, the device or the seed is none, or the agent has no such policy.
        """
        seed, rows = _whole("seed", seed, 0), None if rows is None else _whole("rows", rows, 1)
        load_plugins(plugins)
        kind = kind_of(Run.open(run).load(with_replay=False))
        loaded = trainer_class(kind).load_policy(Path(run), usable_device(device), seed)
        if policy is not None:
            known = " or ".join(map(repr, loaded.ways)) or "left out, as this agent chooses actions in one way"
            require(policy in loaded.ways, f"policy is {policy!r}; it must be {known}")
            loaded = replace(loaded, start=loaded.ways[policy])
        environment = loaded.config.environment
        interface = Interface.of(environment.env, loaded.env_kwargs, environment.observation_key)
        return cls(loaded, interface, rows)

    def act(self, observation: Any, reset: Any) -> Any:
        """Choose an action for each observation and remember both.

        Args:
            observation: of one environment, as its observation space says, or stacked (N, ...): the first of the
                two that its `reset` returns.
            reset: True where it is the first one of an episode; one bool or bools (N,), as array, tensor or list.

        Returns:
            An int for one environment, else an int64 array (N,): the environment's own action numbers; an array
            where its actions are MultiDiscrete.

        Raises:
            UserError: the observation has another form or lies outside its space, a reset is no bool, or N differs
                from before.
        """
        batch, single = self.interface.batch(observation)
        rows = len(batch)
        again = _resets(reset, rows).to(self._loaded.device)
        policy = self._policy
        if policy is None or (rows != self._rows and bool(again.all())):  # nothing is remembered of other environments
            policy = self._start(rows)
        if rows != self._rows:
            raise UserError(
                f"the agent remembers {self._rows} environments, but got observations of {rows}; begin with another "
                "number where reset is True for all"
            )
        action, q = policy.act(torch.from_numpy(batch).to(self._loaded.device), again)
        self.q = q.float().cpu().numpy()
        chosen = action.cpu().numpy()
        return self.interface.decode(int(chosen[0]) if single else chosen)

    def play(
        self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], episodes: int = 100, seed: int | None = None
    ) -> Score:
        """Play whole episodes from fresh memory, and leave what `act` remembers as it is.

        Args:
            env: one environment, or a vector of them in any autoreset mode; each plays as many episodes as the others,
                so that short ones are not favoured.
            episodes: how many to count.
            seed: of the first reset; None: the environment's own.

        Returns:
            Success, return and length of each. Success is what the environment's info says, as "success" or
            "is_success"; where it says nothing, `env_reports_success` is False.

        Raises:
            UserError: the observations, the actions or the number of episodes do not fit.
        """
        episodes, seed = _whole("episodes", episodes, 1), None if seed is None else _whole("seed", seed, 0)
        if not isinstance(env, (gymnasium.Env, VectorEnv)):
            raise UserError(f"{env!r} is no environment; give one, such as gymnasium.make('CartPole-v1')")
        key = self.config.environment.observation_key
        vector: VectorEnv[Any, Any, Any] = (
            env
            if isinstance(env, VectorEnv)
            else SyncVectorEnv([lambda: Checked(env, key, MAX_STEPS)], autoreset_mode="SameStep")
        )
        found, known = discrete_actions(vector.single_action_space)[0], self.interface.num_actions
        if found != known:
            raise UserError(f"the environment has {found} actions, but the agent was trained with {known}")
        return play_vector(Agent(self._loaded, self.interface, vector.num_envs), vector, episodes, seed)

    def export(self, path: Path | str) -> tuple[Path, Path]:
        """Write what `act` does as two files that need nothing of this package (Q-networks and PPO).

            pt2, onnx = agent.export("exported/memory")  # exported/memory.pt2, exported/memory.onnx

        Both compute one step of any number of rows B, and leave it to the caller to keep the state:

            q, chosen, state_0_after, ... = step(observation, action, reset, state_0, ...)

        `observation` (B, ...) is encoded: whole numbers counted from 0 or real ones, flat (an image as it is).
        `action` (B,) is the one before, `reset` (B,) true where an episode begins, `q` (B, A), and `chosen` (B,) the
        best action, both of actions counted from 0; of PPO `q` are logits to draw one by. The state is that of the
        memories, or the window and its length. Where `reset` is true neither `action` nor the state counts, so that
        zeros do for the first step. The JSON text "interface", an extra file of the one and metadata of the other,
        gives the inputs' types and shapes. It takes seconds, and minutes where a memory with a state is run over
        windows of 50 (`--acting-state window`).

        Args:
            path: of both files, without the ending.

        Returns:
            The torch.export archive and the ONNX file.

        Raises:
            UserError: a file exists, a package is missing, or the agent searches or imagines.
        """
        files = Path(f"{Path(path)}.pt2"), Path(f"{Path(path)}.onnx")
        for file in files:
            if file.exists():
                raise UserError(f"{file} exists already; choose another name")
        policy = self._loaded.start(2)  # of one row, torch would take the number for a constant
        if not isinstance(policy, NetworkPolicy):
            raise UserError(
                "only agents of one network can be exported, as UniZero searches and GLAM draws at every step"
            )
        if find_spec("onnx") is None or find_spec("onnxscript") is None:
            raise UserError("writing ONNX needs packages that are not there; pip install onnx onnxscript")
        make_folder(files[0].parent)
        raw, network = self.interface.raw, deepcopy(policy.actor.network).cpu().requires_grad_(False)
        actor = make_actor(network, 2, torch.device("cpu"), self.config.acting_state)
        observations = np.stack([self.interface.encode(np.zeros(raw.shape or (), raw.dtype))] * 2)
        for file, data in zip(files, export_actor(actor, torch.from_numpy(observations)), strict=True):
            write_atomic(file, data)
        return files

    def _start(self, rows: int) -> Policy:
        self._policy, self._rows = self._loaded.start(rows), rows
        return self._policy


def _whole(name: str, given: Any, least: int) -> int:
    """Give a whole number, whatever type holds it; a UserError says that it is none, or too small."""
    value = given.item() if getattr(given, "shape", None) == () else given
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0 or not least <= value < 2**63:
        raise UserError(f"{name} is {given!r}; it must be {least} or more, a whole number below {2**63}")
    return int(value)


def _resets(reset: Any, rows: int) -> torch.Tensor:
    """Bools (N,); nothing else is taken for one, as any text is true and None is false."""
    given = as_array(reset)
    if given is None or given.dtype != np.bool_:
        raise UserError(f"reset is {reset!r}; it must be True or False, or an array of {rows} bools")
    if given.shape not in ((), (rows,)):
        raise UserError(f"reset has shape {given.shape}; it must be one bool or ({rows},)")
    return torch.tensor(np.broadcast_to(given, rows), device="cpu")


def play_vector(agent: Agent, envs: VectorEnv[Any, Any, Any], episodes: int, seed: int | None) -> Score:
    """Play the first `episodes` episodes, by round and then by row, in a vector of N environments."""
    mode, rows = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)), envs.num_envs
    tally, reported = Tally(math.ceil(episodes / rows), rows), True
    returns, lengths = np.zeros(rows), np.zeros(rows, np.int64)
    reset, idle = np.ones(rows, bool), np.zeros(rows, bool)  # idle: the next step is the row's reset
    given = CheckedVector(envs)
    observation = given.reset(seed=seed)
    while tally.open:
        observation, reward, terminated, truncated, info = given.step(agent.act(observation, reset))
        returns, lengths = returns + np.where(idle, 0.0, reward), lengths + ~idle
        require(
            lengths.max() <= MAX_STEPS or given.limited,
            f"{given.name}: an episode has not ended after {MAX_STEPS:,} steps, and nothing limits it; make the "
            "environment with max_episode_steps",
        )
        done = (terminated | truncated) & ~idle
        success, told = given.success(info, done) or (returns > 0, np.zeros(rows, bool))
        reported &= bool(told[done].all())
        tally.add(done, success, returns, lengths)
        returns[done], lengths[done] = 0.0, 0
        reset, idle = (idle, done) if mode is AutoresetMode.NEXT_STEP else (done, idle)
        if mode is AutoresetMode.DISABLED and done.any():
            observation = given.reset(options={"reset_mask": done})
    return tally.score(episodes, reported=reported)
