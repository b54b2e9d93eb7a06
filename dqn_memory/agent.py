"""A trained agent in five lines.

    agent = Agent.load("runs/demo-1")
    observation, reset = env.reset()[0], True
    while True:
        observation, _, terminated, truncated, _ = env.step(agent.act(observation, reset))
        reset = terminated or truncated  # then observation = env.reset()[0], unless env does so itself

It takes the environment's own observations, of one environment or of a batch, and keeps its own memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import torch

from dqn_memory.acting import Actor, EvalSetup, evaluate, make_actor
from dqn_memory.analysis.episodes import action_names, play_in
from dqn_memory.analysis.video import check_target, save_video
from dqn_memory.config import TrainConfig
from dqn_memory.network import ObservationSpec, QNetwork, observation_spec
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.score import Evaluation, EvaluationOptions
from dqn_memory.runs.settings import ComputeConfig, EnvironmentConfig
from envs.fleet import make_fleet
from envs.gymnasium_fleet import make_env
from envs.registry import WORLDS
from envs.spaces import Encode, discrete_actions, encoder, integer_ranges

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Interface:
    """How an environment's own observations and actions become the network's."""

    raw: gymnasium.Space[Any]  # one observation as the environment gives it; of a Dict, the entry that is seen
    encode: Encode  # brings it into the flat form that the network reads
    encoded: gymnasium.Space[Any]  # what training built the network for
    num_actions: int
    first_action: int

    @classmethod
    def of(cls, environment: EnvironmentConfig) -> Interface:
        """Make the interface of an environment; a UserError says why there is none."""
        env, kwargs, key = environment.env, environment.kwargs(training=False), environment.observation_key
        if env.startswith("ALE/") or env.removeprefix("envs:") in WORLDS:
            fleet = make_fleet(env, 1, 0, observation_key=key, env_kwargs=kwargs)
            raw, (_, encode) = fleet.observation_space, encoder(fleet.observation_space)
            return cls(raw, encode, raw, fleet.num_actions, 0)  # these fleets show it as it is
        made = make_env(env, **kwargs)
        try:
            encoder(made.observation_space, key)  # says what is wrong with the key
            raw = made.observation_space
            raw = raw[str(key)] if isinstance(raw, gymnasium.spaces.Dict) else raw
            encoded, encode = encoder(raw)
            return cls(raw, encode, encoded, *discrete_actions(made.action_space))
        finally:
            made.close()


def load_network(run: Path | str, device: torch.device | str = "cpu") -> tuple[QNetwork, TrainConfig, int]:
    """Read the network of a run folder's latest checkpoint, averaged where the run averages, in evaluation mode.

    Returns it with the run's config and the environment step it was saved at; nothing is written.
    Raises UserError for a folder without a run or checkpoint, a damaged or foreign one, weights that do not
    fit the config, or a device that is not there.
    """
    try:
        torch.zeros(1, device=device).cpu()  # torch would name all its kinds of device, or fail much later
    except (RuntimeError, AssertionError, TypeError):
        raise UserError(f"there is no device {str(device)!r} here; use 'cpu', or 'cuda' where torch sees one") from None
    checkpoint, config = read_run(Path(run), TrainConfig)
    interface = Interface.of(config.environment)
    with torch.random.fork_rng(devices=[]):  # the first weights are overwritten at once
        network = config.network.build(observation_spec(interface.encoded), interface.num_actions)
    part = "average" if checkpoint.part("average") else "network"
    checkpoint.fill(network, part, f"the weights of {run} do not fit its config and environment")
    return network.to(device).eval(), config, checkpoint.step


class Agent:
    """Greedy actions of a trained network, with its context or recurrent state kept between calls.

    Attributes:
        q: Q-values (N, A) of the newest call.
    """

    def __init__(self, network: QNetwork, config: TrainConfig, interface: Interface, rows: int | None = None) -> None:
        self.network, self.config, self.interface = network, config, interface
        self.device = next(network.parameters()).device
        self.q = np.zeros((0, network.num_actions), np.float32)
        ranges = integer_ranges(interface.encoded)
        self._sizes = None if ranges is None else ranges[0]  # of each component of an encoded observation
        self._actor: Actor | None = None
        self._previous = torch.zeros(0, dtype=torch.int64)
        if rows is not None:
            self._start(rows)

    @classmethod
    def load(cls, run: Path | str, rows: int | None = None, device: torch.device | str = "cpu") -> Self:
        """Read the agent of a run folder; `rows` fixes the batch size N, else the first `act` does.

        Raises UserError as `load_network` does.
        """
        network, config, _ = load_network(run, device)
        return cls(network, config, Interface.of(config.environment), rows)

    def act(self, observation: Any, reset: Any) -> Any:
        """Choose an action for each observation and remember both.

        Args:
            observation: of one environment, as its observation space says, or stacked (N, ...): the first of the
                two that its `reset` returns.
            reset: True where it is the first one of an episode; one bool or bools (N,), as array, tensor or list.

        Returns:
            An int for one environment, else an int64 array (N,): the environment's own action numbers.

        Raises:
            UserError: the observation has another form or lies outside its space, a reset is no bool, or N differs
                from before.
        """
        batch, single = self._batch(observation)
        rows = len(batch)
        again = _resets(reset, rows).to(self.device)
        actor = self._actor or self._start(rows)
        if rows != len(self._previous):
            raise UserError(f"the agent remembers {len(self._previous)} environments, but got observations of {rows}")
        actor.observe(torch.from_numpy(batch).to(self.device), self._previous, again)
        q = actor.q_values()  # (N, A)
        self.q, self._previous = q.float().cpu().numpy(), q.argmax(1)
        chosen = self._previous.cpu().numpy() + self.interface.first_action
        return int(chosen[0]) if single else chosen

    def _start(self, rows: int) -> Actor:
        if rows < 1:
            raise UserError(f"rows is {rows}; it must be at least 1")
        self._actor = make_actor(self.network, rows, self.device, self.config.acting, self.config.acting_state)
        self._previous = torch.full((rows,), self.network.num_actions, device=self.device)
        return self._actor

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
        if (given.shape != shape and given.shape[1:] != shape) or given.ndim < len(shape):
            raise UserError(f"the observation has shape {given.shape}; it must be {shape}, or (N, ...) for a batch")
        self._check_numbers(given)
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
        if not np.isfinite(given).all():
            raise UserError("the observation holds NaN or infinity; it must hold finite numbers")
        if self._sizes is not None and (given != np.trunc(given)).any():
            raise UserError(f"the observation holds fractions; it must hold whole numbers within {self.interface.raw}")


def _array(given: Any) -> Array | None:
    """Make one array; None for what is none, ragged or of several kinds."""
    try:
        return np.asarray(given.cpu() if isinstance(given, torch.Tensor) else given)
    except ValueError:
        return None


def _resets(reset: Any, rows: int) -> torch.Tensor:
    """Bools (N,); nothing else is taken for one, as any text is true and None is false."""
    given = _array(reset)
    if given is None or given.dtype != np.bool_:
        raise UserError(f"reset is {reset!r}; it must be True or False, or an array of {rows} bools")
    if given.shape not in ((), (rows,)):
        raise UserError(f"reset has shape {given.shape}; it must be one bool or ({rows},)")
    return torch.tensor(np.broadcast_to(given, rows))


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play greedy episodes with the network of a run's latest checkpoint, and film some where that is asked for.

    Raises:
        UserError: the checkpoint cannot be loaded, or its network cannot act in another environment.
    """
    device = ComputeConfig(options.device, options.threads).start()
    if options.video is not None:
        check_target(Path(options.video), options.overwrite)
    network, config, step = load_network(run, device)
    setup = _setup(options, config, network, device)
    if options.video is not None:
        film = play_in(setup, network, options.seed, options.video_episodes, draw=True)
    score = evaluate(network, setup, options.episodes or 1_000, options.seed)
    if options.video is not None:
        save_video(Path(options.video), film, action_names(setup))
        print(f"wrote {options.video}", file=sys.stderr)
    architecture = config.network.architecture
    facts = {"architecture": architecture, "exhaustive": score.exhaustive}
    return Evaluation(step, architecture, setup.env, setup.env_kwargs, {"": score}, facts)


def _setup(options: EvaluationOptions, config: TrainConfig, network: QNetwork, device: torch.device) -> EvalSetup:
    """Where to evaluate; a UserError says why the network cannot act in another environment."""
    setup = replace(config.eval_setup(device), reset_memory=options.reset_memory)
    if options.env is None:
        return setup
    environment = replace(config.environment, env=options.env, path=None)
    setup, other = replace(setup, env=options.env, env_kwargs=environment.kwargs(False)), Interface.of(environment)
    spec = observation_spec(other.encoded)
    if (spec, other.num_actions) != (network.spec, network.num_actions):
        raise UserError(
            f"--env {options.env} has {_form(spec, other.num_actions)}, but the network was trained in "
            f"{config.environment.env} with {_form(network.spec, network.num_actions)}"
        )
    return setup


def _form(spec: ObservationSpec, num_actions: int) -> str:
    words = f", {spec.vocabulary} tokens" if spec.vocabulary else ""
    return f"{spec.kind} observations of shape {spec.shape}{words}, and {num_actions} actions"
