"""A trained agent in a loop of one's own: Q-networks, UniZero and GLAM alike.

    agent = Agent.load("runs/demo-1")
    observation, reset = env.reset()[0], True
    while True:
        observation, _, terminated, truncated, _ = env.step(agent.act(observation, reset))
        reset = terminated or truncated  # then observation = env.reset()[0], unless env does so itself

It takes the environment's own observations, of one environment or of a batch, and keeps its own memory. `play` is that
loop, for one environment or a vector of them, in any autoreset mode.
"""

import io
import json
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from dqn_memory.acting import EvalSetup, GreedyStep, NetworkPolicy, evaluate, make_actor
from dqn_memory.analysis.episodes import action_names, play_in
from dqn_memory.analysis.video import Looks, check_target, save_video
from dqn_memory.config import TrainConfig
from dqn_memory.network import ObservationSpec, QNetwork, observation_spec
from dqn_memory.runs.common import ComputeConfig
from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.process import process_restored
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.score import Evaluation, EvaluationOptions, Policy, Score, Tally
from dqn_memory.runs.seeding import seeded
from dqn_memory.runs.trainer import LoadedPolicy
from envs.checked import LONGEST, Checked, CheckedVector
from envs.cli import load_plugins
from envs.files import make_folder, write_atomic
from envs.fleet import make_fleet
from envs.packages import make_env
from envs.registry import WORLDS
from envs.spaces import Array, Decode, Encode, discrete_actions, encoder, integer_ranges
from envs.terminal import say

KINDS_OF_NETWORKS = ("q_network", "pqn", "ppo")  # runs whose agent is one network


@dataclass(frozen=True)
class Interface:
    """How an environment's own observations and actions become the network's."""

    raw: gymnasium.Space[Any]  # one observation as the environment gives it; of a Dict, the entry that is seen
    encode: Encode  # brings it into the flat form that the network reads
    encoded: gymnasium.Space[Any]  # what training built the network for
    num_actions: int
    decode: Decode  # makes the environment's own actions of the network's numbers

    @classmethod
    def of(cls, env: str, kwargs: dict[str, Any], key: str | None = None) -> Self:
        """Make the interface of an environment made with `kwargs`; a UserError says why there is none."""
        if env.startswith("ALE/") or env.removeprefix("envs:") in WORLDS:
            fleet = make_fleet(env, 1, 0, observation_key=key, env_kwargs=kwargs)
            raw, (_, encode) = fleet.observation_space, encoder(fleet.observation_space)
            return cls(raw, encode, raw, fleet.num_actions, lambda action: action)  # these fleets show it as it is
        made = make_env(env, **kwargs)
        try:
            encoder(made.observation_space, key)  # says what is wrong with the key
            raw = made.observation_space
            raw = raw[str(key)] if isinstance(raw, gymnasium.spaces.Dict) else raw
            encoded, encode = encoder(raw)
            return cls(raw, encode, encoded, *discrete_actions(made.action_space))
        finally:
            made.close()


class Agent:
    """A trained policy, with what it remembers kept between calls.

    A Q-network takes the action of the highest value, UniZero the most visited one of a search without noise; PPO
    (unless its config has `policy = "greedy"`) and GLAM draw one, as in training, or take the most probable one.

    Attributes:
        config: of its training.
        step: environment steps of its training.
        q: what the newest actions were chosen by, (N, A): Q-values; of PPO the policy's logits, of UniZero and GLAM its
            probabilities.
    """

    def __init__(self, loaded: LoadedPolicy, interface: Interface, rows: int | None = None) -> None:
        self.config, self.step, self.interface, self._loaded = loaded.config, loaded.step, interface, loaded
        self.q = np.zeros((0, interface.num_actions), np.float32)
        ranges = integer_ranges(interface.encoded)
        self._sizes = None if ranges is None else ranges[0]  # of each component of an encoded observation
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
        batch, single = self._batch(observation)
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
            else SyncVectorEnv([lambda: Checked(env, key, LONGEST)], autoreset_mode="SameStep")
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
        actor = make_actor(network, 2, torch.device("cpu"), self.config.acting, self.config.acting_state)
        observations = np.stack([self.interface.encode(np.zeros(raw.shape or (), raw.dtype))] * 2)
        for file, data in zip(files, _exported(GreedyStep(actor), torch.from_numpy(observations)), strict=True):
            write_atomic(file, data)
        return files

    def _start(self, rows: int) -> Policy:
        self._policy, self._rows = self._loaded.start(rows), rows
        return self._policy

    def _batch(self, observation: Any) -> tuple[Array, bool]:
        """Encode observations (N, ...); tell whether there was one without the axis N."""
        if isinstance(observation, dict):
            key = self.config.environment.observation_key
            if key is None or key not in observation:
                wanted = "no dictionary" if key is None else f"one with {key!r}"
                names = ", ".join(map(repr, observation))
                raise UserError(f"the observation is a dictionary of {names}; it must be {wanted}")
            observation = observation[key]
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise UserError(
                "the observation is a pair with a dictionary: reset returns (observation, info); give the first"
            )
        given, shape = _array(observation), self.interface.raw.shape or ()
        if given is None:
            raise UserError("the observation is no array: its rows must all have the same shape")
        if (given.shape != shape and given.shape[1:] != shape) or given.ndim < len(shape) or not given.size:
            raise UserError(f"the observation has shape {given.shape}; it must be {shape}, or (N, ...) for a batch")
        self._check_numbers(given)
        if self._sizes is not None and given.dtype.kind == "f":
            given = given.astype(np.int64)  # whole numbers, as has been checked
        single = given.shape == shape
        rows = given[None] if single else given
        batch = np.stack([self.interface.encode(row) for row in rows])  # (N, ...)
        if self._sizes is not None and ((batch < 0) | (batch >= self._sizes)).any():
            raise UserError(
                f"the observation holds {given.min()} .. {given.max()}; it must be within {self.interface.raw}"
            )
        return batch, single

    def _check_numbers(self, given: Array) -> None:
        """Check that there are only numbers, and only whole ones where they name something."""
        if given.dtype.kind not in "biuf":
            raise UserError(f"the observation is of type {given.dtype}; it must hold numbers")
        if given.dtype.kind != "f":
            return
        if given.dtype.itemsize > 4:  # what a float32 cannot hold is infinite to a network
            with np.errstate(over="ignore"):
                finite = np.isfinite(given.astype(np.float32)).all()
        else:
            finite = np.isfinite(given).all()
        if not finite:
            raise UserError("the observation holds NaN, infinity or numbers beyond 1e38; it must hold finite numbers")
        if self._sizes is not None and (given != np.trunc(given)).any():
            raise UserError(f"the observation holds fractions; it must hold whole numbers within {self.interface.raw}")


def _whole(name: str, given: Any, least: int) -> int:
    """Give a whole number, whatever type holds it; a UserError says that it is none, or too small."""
    value = given.item() if getattr(given, "shape", None) == () else given
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0 or not least <= value < 2**63:
        raise UserError(f"{name} is {given!r}; it must be {least} or more, a whole number below {2**63}")
    return int(value)


def _array(given: Any) -> Array | None:
    """Make one array; None for what is none, ragged or of several kinds."""
    try:
        if isinstance(given, torch.Tensor):
            dense = given.detach().to_dense().cpu()
            return (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()  # numpy has no bfloat16
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # also of tensors in a list
        return None


def _resets(reset: Any, rows: int) -> torch.Tensor:
    """Bools (N,); nothing else is taken for one, as any text is true and None is false."""
    given = _array(reset)
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
            lengths.max() <= LONGEST or given.limited,
            f"{given.name}: an episode has not ended after {LONGEST:,} steps, and nothing limits it; make the "
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


def _exported(step: GreedyStep, observation: torch.Tensor) -> tuple[bytes, bytes]:
    """Make the archive and the ONNX file of a step, for observations like the given (2, ...)."""
    state = step.actor.memory
    given = observation, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool), *state
    names = "observation", "action", "reset", *(f"state_{index}" for index in range(len(state)))
    results = "q", "chosen", *(f"{name}_after" for name in names[3:])
    rows = {0: torch.export.Dim("batch")}
    dynamic = rows, rows, rows, *([(rows,) * len(state)] if state else [])
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it says that torchvision, which nobody needs, is missing
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code
            program = torch.export.export(step, given, dynamic_shapes=dynamic)
            model = torch.onnx.export(program, input_names=names, output_names=results, verbose=False)
    finally:
        logger.setLevel(level)
    shapes = {name: [str(each.dtype)[6:], "batch", *each.shape[1:]] for name, each in zip(names, given, strict=True)}
    about, archive = json.dumps({"inputs": shapes, "outputs": results}), io.BytesIO()
    torch.export.save(program, archive, extra_files={"interface": about})
    assert model is not None
    model.model.metadata_props["interface"] = about
    return archive.getvalue(), model.model_proto.SerializeToString()


# ---- Q-networks from checkpoints -------------------------------------------------------------------------------------
def usable_device(device: torch.device | str) -> torch.device:
    """Give a device that tensors can be put on; a UserError says that it is not there."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, TypeError):  # torch would name all its kinds of device, or fail much later
        raise UserError(f"there is no device {str(device)!r} here; use 'cpu', or 'cuda' where torch sees one") from None
    return torch.device(device)


def load_network(run: Path | str, device: torch.device | str = "cpu") -> tuple[QNetwork, TrainConfig, int]:
    """Read the network of a run folder's latest checkpoint, averaged where the run averages, in evaluation mode.

    Returns it with the run's config and the environment step it was saved at; nothing is written.
    Raises UserError for a folder without a run or checkpoint, a damaged or foreign one, weights that do not
    fit the config, or a device that is not there.
    """
    device = usable_device(device)
    kind = kind_of(Run.open(run).load(with_replay=False))
    config_class = trainer_class(kind).config_class if kind in KINDS_OF_NETWORKS else TrainConfig  # its reader refuses
    checkpoint, config = read_run(Path(run), config_class)
    environment = config.environment
    interface = Interface.of(environment.env, environment.kwargs(training=False), environment.observation_key)
    with seeded(0):  # the first weights are overwritten at once
        network = config.network.build(observation_spec(interface.encoded), interface.num_actions)
    part = "average" if checkpoint.part("average") else "network"
    checkpoint.fill(network, part, f"the weights of {run} do not fit its config and environment")
    return network.to(device).eval(), config, checkpoint.step


def load_policy(run: Path, device: torch.device, seed: int) -> LoadedPolicy:
    """Read the policy of one network; `seed` is of the actions it draws, where it draws them."""
    network, config, step = load_network(run, device)

    setup = config.eval_setup(device)
    ways = {
        name: partial(replace(setup, sampled=name == "sampled").policy, network, seed=seed)
        for name in ("sampled", "greedy")
    }
    own = ways["sampled" if setup.sampled else "greedy"]
    return LoadedPolicy(config, setup.env_kwargs, step, device, own, ways if config.stochastic else {})


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play episodes with the network of a run's latest checkpoint, and film some where that is asked for.

    Raises:
        UserError: the checkpoint cannot be loaded, or its network cannot act in another environment.
    """
    device = ComputeConfig(options.device, options.threads).start()
    if options.video is not None:
        check_target(Path(options.video), options.overwrite)
    network, config, step = load_network(run, device)
    setup = _setup(options, config, network, device)
    both = ("sampled", "greedy") if config.stochastic else ("",)
    policies = both if options.policy in (None, "both") else (options.policy,)
    setups = {policy: replace(setup, sampled=policy == "sampled") for policy in policies}
    if options.video is not None:
        film = play_in(setups[policies[0]], network, options.seed, options.video_episodes, draw=True)
    episodes = options.episodes or 1_000
    scores = {policy: evaluate(network, each, episodes, options.seed) for policy, each in setups.items()}
    if options.video is not None:
        played = [] if options.reset_memory else film
        looks = [Looks.found(network, each, config.acting, config.acting_state) for each in played]
        save_video(Path(options.video), film, action_names(setup), looks)
        say(f"wrote {options.video}", file=sys.stderr)
    architecture = config.network.architecture
    return Evaluation(step, architecture, setup.env, setup.env_kwargs, scores, {"architecture": architecture})


def _setup(options: EvaluationOptions, config: TrainConfig, network: QNetwork, device: torch.device) -> EvalSetup:
    """Where to evaluate; a UserError says why the network cannot act in another environment."""
    setup = replace(config.eval_setup(device), reset_memory=options.reset_memory)
    if options.env is None:
        return setup
    environment = replace(config.environment, env=options.env, path=None, env_workers=None)
    setup = replace(setup, env=options.env, env_kwargs=environment.kwargs(training=False), workers=None)
    other = Interface.of(setup.env, setup.env_kwargs, environment.observation_key)
    spec = observation_spec(other.encoded)
    if (spec, other.num_actions) != (network.spec, network.num_actions):
        raise UserError(
            f"--env {options.env} has {_form(spec, other.num_actions)}, but the network was trained in "
            f"{config.environment.env} with {_form(network.spec, network.num_actions)}"
        )
    return setup


def _form(spec: ObservationSpec, num_actions: int) -> str:
    words = f", {spec.vocabulary} tokens" if spec.vocabulary else ""
    if spec.bounds is not None:
        words += f", values from {min(spec.bounds[0])} to {max(spec.bounds[1])}"
    return f"{spec.kind} observations of shape {spec.shape}{words}, and {num_actions} actions"
