"""Use a trained agent of any kind in your own loop.

    agent = Agent.load("runs/demo-1")
    observation, reset = env.reset()[0], True
    while True:
        observation, _, terminated, truncated, _ = env.step(agent.act(observation, reset))
        reset = terminated or truncated  # then observation = env.reset()[0], unless env does so itself

`act` takes the observations of one environment or of a batch, and the agent keeps its memory between calls. `play` runs
this loop for one environment or a vector of them, in any autoreset mode.
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
from dqn_memory.evaluate import LoadedPolicy, usable_device
from dqn_memory.export import export_actor
from dqn_memory.interface import Interface, as_array
from dqn_memory.play import Policy, Score, Tally
from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.process import process_restored
from envs.actions import action_form
from envs.checked import MAX_STEPS, Checked
from envs.checked_vector import CheckedVector
from envs.cli import load_plugins
from envs.files import make_folder, write_atomic


class Agent:
    """A trained policy that keeps its state between calls.

    A Q-network takes the action of the highest value, UniZero the best action of a search without noise. PPO
    (unless its config has `policy = "greedy"`) and GLAM draw actions, as in training; `load` can choose the most
    probable ones instead.

    Attributes:
        config: config of its training.
        step: environment steps of its training.
        q: outputs for the newest observations, (N, A): Q-values of Q-networks, logits of PPO, probabilities of UniZero
            and GLAM.
    """

    def __init__(self, loaded: LoadedPolicy, interface: Interface, rows: int | None = None) -> None:
        self.config, self.step, self.interface, self._loaded = loaded.config, loaded.step, interface, loaded
        self.q = np.zeros((0, interface.actions.outputs), np.float32)
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
        """Read the agent of a run's latest checkpoint, for a run of any kind.

        Args:
            run: the run's folder, or the name of an agent that comes with the package.
            rows: batch size N (None: that of the first `act`). A call of `act` that resets all rows may change it.
            device: device of its networks.
            seed: seed of the draws of PPO, UniZero and GLAM. Every call of `play` starts them again.
            policy: policy of PPO or GLAM (None: that of the config for PPO, sampled for GLAM).
            plugins: modules named by the run that may be imported. A run that you started yourself needs none.

        Raises:
            UserError: there is no run or checkpoint, it is damaged or foreign, it needs a module that is not among
                `plugins`, the device does not exist, the seed is invalid, or the agent has no such policy.
        """
        seed, rows = _whole("seed", seed, 0), None if rows is None else _whole("rows", rows, 1)
        load_plugins(plugins)
        kind = kind_of(Run.open(run).load(with_replay=False))
        loaded = trainer_class(kind).load_policy(Path(run), usable_device(device), seed)
        if policy is not None:
            known = " or ".join(map(repr, loaded.policies)) or "left out: this agent has only one policy"
            require(policy in loaded.policies, f"policy is {policy!r}; it must be {known}")
            loaded = replace(loaded, start=loaded.policies[policy])
        environment = loaded.config.environment
        interface = Interface.of(environment.id, loaded.env_kwargs, environment.interface)
        return cls(loaded, interface, rows)

    def act(self, observation: Any, reset: Any, mask: Any = None) -> Any:
        """Choose an action for each observation and remember both.

        Args:
            observation: observation of one environment, or observations stacked (N, ...). Of the pair that `reset`
                returns it is the first.
            reset: True for the first observation of an episode, or bools (N,) as array, tensor or list. A reset
                empties the memory, but not that of an agent trained with `--keep-memory`.
            mask: flags of the legal actions, `info["action_mask"]`, if the agent was trained with masks; one for each
                observation.

        Returns:
            The environment's own actions: of Discrete ones an int for one environment, else an int64 array (N,); of
            other spaces what the space holds, with an axis N in front for a batch.

        Raises:
            UserError: the observation has another form or lies outside its space, a reset is no bool, the mask has
                another form, or N differs from the last call's.
        """
        batch, single = self.interface.batch(observation, mask)
        rows = len(batch)
        again = _resets(reset, rows).to(self._loaded.device)
        policy = self._policy
        if policy is None or (rows != self._rows and bool(again.all())):  # no row has a state to keep
            policy = self._start(rows)
        if rows != self._rows:
            raise UserError(
                f"the agent remembers {self._rows} environments, but got observations of {rows}; to change the "
                "number, reset all of them"
            )
        action, q = policy.act(torch.from_numpy(batch).to(self._loaded.device), again)
        self.q = q.float().cpu().numpy()
        chosen = action.cpu().numpy()
        return self.interface.decode(chosen[0] if single and chosen.ndim > 1 else int(chosen[0]) if single else chosen)

    def play(
        self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], episodes: int = 100, seed: int | None = None
    ) -> Score:
        """Play whole episodes from an empty memory; the memory of `act` stays as it is.

        An agent trained with `--keep-memory` carries its memory through all episodes of an environment.

        Args:
            env: one environment, or a vector of them in any autoreset mode; each plays as many episodes as the others,
                so that short ones are not favoured.
            episodes: number of episodes to count.
            seed: seed of the first reset (None: the environment's own).

        Returns:
            Success, return and length of each episode. Success is "success" or "is_success" in the environment's
            info. If neither is there, `env_reports_success` is False.

        Raises:
            UserError: the observations, the actions or the number of episodes do not fit.
        """
        episodes, seed = _whole("episodes", episodes, 1), None if seed is None else _whole("seed", seed, 0)
        if not isinstance(env, (gymnasium.Env, VectorEnv)):
            raise UserError(f"{env!r} is no environment; give one, such as gymnasium.make('CartPole-v1')")
        key, choices = self.config.environment.observation_key, self.interface.choices
        vector: VectorEnv[Any, Any, Any] = (
            env
            if isinstance(env, VectorEnv)
            else SyncVectorEnv([lambda: Checked(env, key, MAX_STEPS, choices)], autoreset_mode="SameStep")
        )
        trained, form = self.interface.actions, self.config.environment.action_form
        actions = action_form(vector.single_action_space, form)[0]
        if actions != trained:
            raise UserError(f"the environment has {actions.words}, but the agent was trained with {trained.words}")
        return play_vector(Agent(self._loaded, self.interface, vector.num_envs), vector, episodes, seed)

    def export(self, path: Path | str) -> tuple[Path, Path]:
        """Write one step of the agent as two files that do not need this package (Q-networks and PPO).

            pt2, onnx = agent.export("exported/memory")  # exported/memory.pt2, exported/memory.onnx

        Both compute one step of any number of rows B. The caller keeps the state:

            q, chosen, state_0_after, ... = step(observation, action, reset, state_0, ...)

        - `observation` (B, ...): encoded and flat (an image as it is), whole numbers counted from 0 or real numbers. Of
          several entries it is a row of all their numbers; the flags of legal actions, 0 or 1, end a row.
        - `action` (B,): the previous action, counted from 0.
        - `reset` (B,): true where an episode begins, or with `--keep-memory` where the first one does. There `action`
          and the state are ignored and can be zeros.
        - `state_0`, ...: the states of the memories, or the window and its length.
        - `q` (B, A): Q-values; for PPO logits, from which an action can be drawn.
        - `chosen` (B,): the action of the highest output, counted from 0.

        The JSON text "interface" gives the types and shapes of the inputs. It is an extra file of the archive, and
        metadata of the ONNX file. Writing takes seconds, or minutes for a memory with a state over windows of 50
        (`--acting-state window`).

        Args:
            path: path of both files without the ending.

        Returns:
            The torch.export archive and the ONNX file.

        Raises:
            UserError: a file exists, a package is missing, or the agent is UniZero or GLAM.
        """
        files = Path(f"{Path(path)}.pt2"), Path(f"{Path(path)}.onnx")
        for file in files:
            if file.exists():
                raise UserError(f"{file} exists already; choose another name")
        policy = self._loaded.start(2)  # torch would export a batch of one row as a constant
        if not isinstance(policy, NetworkPolicy):
            raise UserError(
                "only agents of one network can be exported, as UniZero searches and GLAM draws at every step"
            )
        if find_spec("onnx") is None or find_spec("onnxscript") is None:
            raise UserError("writing ONNX needs packages that are not there; pip install onnx onnxscript")
        make_folder(files[0].parent)
        network = deepcopy(policy.actor.network).cpu().requires_grad_(False)
        actor = make_actor(network, 2, torch.device("cpu"), self.config.acting_state)
        encoded: Any = self.interface.encoded
        contents = export_actor(actor, np.zeros((2, *encoded.shape), encoded.dtype))
        for file, data in zip(files, contents, strict=True):
            write_atomic(file, data)
        return files

    def _start(self, rows: int) -> Policy:
        self._policy, self._rows = self._loaded.start(rows), rows
        return self._policy


def _whole(name: str, given: Any, minimum: int) -> int:
    """Convert a whole number of any type to an int; raise a UserError for anything else or below `minimum`."""
    value = given.item() if getattr(given, "shape", None) == () else given
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0 or not minimum <= value < 2**63:
        raise UserError(f"{name} is {given!r}; it must be {minimum} or more, a whole number below {2**63}")
    return int(value)


def _resets(reset: Any, rows: int) -> torch.Tensor:
    """Make bools (N,); refuse other types, since any text would be true and None false."""
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
    observation, mask = given.reset(seed=seed), None
    while tally.open:
        if (choices := agent.interface.choices) is not None:
            masks = zip(idle, given.masks(mask), strict=True)
            mask = [choices.all() if over else each for over, each in masks]
        observation, reward, terminated, truncated, info = given.step(agent.act(observation, reset, mask))
        returns, lengths = returns + np.where(idle, 0.0, reward), lengths + ~idle
        require(
            lengths.max() <= MAX_STEPS or given.limited,
            f"{given.name}: an episode has not ended after {MAX_STEPS:,} steps, and nothing limits it; make the "
            "environment with max_episode_steps",
        )
        done = (terminated | truncated) & ~idle
        success, defined = given.success(info, done) or (returns > 0, np.zeros(rows, bool))
        reported &= bool(defined[done].all())
        tally.add(done, success, returns, lengths)
        returns[done], lengths[done] = 0.0, 0
        reset, idle = (idle, done) if mode is AutoresetMode.NEXT_STEP else (done, idle)
        if mode is AutoresetMode.DISABLED and done.any():
            observation = given.reset(options={"reset_mask": done})
    return tally.score(episodes, reported=reported)
