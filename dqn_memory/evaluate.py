"""Evaluate a checkpoint of any kind: `python -m dqn_memory.evaluate runs/demo-1`.

The command prints success, return and length. A Q-network takes its best actions; UniZero takes the most
visited ones of a search without noise. Agents of PPO and GLAM play twice: with drawn actions, as in training, and with
the most probable ones.

If an environment has finitely many initial states, an agent that draws no actions plays from each of them once, and
there are no intervals. Otherwise initial states are drawn, and intervals are 95 %: Wilson's for success, normal ones
for means. An agent of --keep-memory plays many episodes in a row in each of 10 environments, the first from an empty
memory, and all of them count. The environment defines success. If it defines none, the return comes first and no
success is printed; the JSON output then says success_told: false, and its success is the share of episodes with a
return above 0.

From top to bottom: how a network is evaluated; how a run's latest checkpoint is evaluated; the command. `play.py` plays
the episodes, `intervals.py` computes the intervals.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from dqn_memory.actors import ActingState, NetworkPolicy, make_actor
from dqn_memory.network import ObservationSpec, QNetwork, observation_spec
from dqn_memory.play import MeanScore, Policy, Score, lines, play, summary
from dqn_memory.play import fields as measures
from dqn_memory.runs.backend import Choice, log_backend
from dqn_memory.runs.base_config import ComputeConfig, EnvironmentConfig
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run, RunArgument
from dqn_memory.runs.kinds import kind_of, trainer_class
from dqn_memory.runs.modules import module_of
from dqn_memory.runs.resume import read_run
from dqn_memory.runs.seeding import Streams, generator, seeded
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.actions import PLAIN, Actions, InterfaceConfig
from envs.baselines import reference_summary
from envs.checked import MAX_STEPS
from envs.cli import load_plugins
from envs.console import say
from envs.registry import WORLDS, make_world
from envs.replayed import spawn_seeds
from envs.vector import TensorVector, VectorEnvironment, make_vector

MAX_EVAL_ENVS = 250  # maximum environments of an evaluation, stepped at once
MAX_KEPT_ENVS = 10  # the same if memory is kept, so that each plays many episodes in a row
TIMED_STEPS = 20  # last steps of acting, the fastest of which is its cost
KINDS_OF_NETWORKS = ("q_network", "pqn", "ppo")  # runs whose agent is one network


# ---- how a network is evaluated --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class EvalSetup:
    """The environment of an evaluation, and how a network acts in it."""

    env: str
    env_kwargs: dict[str, Any]
    device: torch.device
    interface: InterfaceConfig = PLAIN
    acting_state: ActingState = "window"
    reset_memory: bool = False  # before each step
    sampled: bool = False  # outputs are logits by which actions are drawn; else the largest output is taken
    workers: int | None = None  # processes that step the environments
    values: str = "Q-values"  # name of the network's outputs
    keep_memory: bool = False  # where an episode begins

    @classmethod
    def of(cls, config: Any, device: torch.device, environment: EnvironmentConfig | None = None) -> EvalSetup:
        """Make the setup of a run's config in one of its environments (None: the first), or in another one."""
        environment = environment or config.environment.each()[0]
        kwargs = replace(config, environment=environment).env_kwargs(training=False)
        return cls(
            environment.id, kwargs, device, environment.interface,
            config.acting_state, sampled=config.stochastic and config.evaluation.policy == "sampled",
            workers=environment.env_workers, values="Logits of the policy" if config.stochastic else "Q-values",
            keep_memory=config.keep_memory,
        )  # fmt: skip

    def forms(self) -> tuple[ObservationSpec, Actions]:
        """Give the forms of the environment's observations and of the agent's actions."""
        with closing(make_vector(self.env, 1, 0, "cpu", self.env_kwargs, self.interface)) as vector:
            return observation_spec(vector.observation_space), vector.actions

    def vector(self, episodes: int, seed: int) -> tuple[VectorEnvironment, int, bool]:
        """Make environments for at least `episodes` episodes.

        Returns:
            The environments, the episodes to play in each of them, and whether these start from every initial state
            exactly once.
        """
        name = self.env.removeprefix("envs:")
        if name in WORLDS and not self.keep_memory:
            world = make_world(name, device=self.device, **self.env_kwargs)
            draws = world.initial_draws()
            if draws is not None and not self.sampled:  # drawn actions need more than one episode a state
                return TensorVector(world, len(draws), seed, draws, self.interface.form), 1, True
        num_envs = min(episodes, MAX_KEPT_ENVS if self.keep_memory else MAX_EVAL_ENVS)
        vector = make_vector(
            self.env, num_envs, seed, self.device, self.env_kwargs, self.interface, self.workers, MAX_STEPS
        )
        return vector, math.ceil(episodes / num_envs), False

    def policy(self, network: QNetwork, num_envs: int, seed: int) -> NetworkPolicy:
        """Let a network act in N episodes at once; `seed` seeds the actions that it draws."""
        actor = make_actor(network, num_envs, self.device, self.acting_state)
        stream = Streams.spawn(seed).exploration  # environments draw from `seed` itself
        draws = generator(stream, self.device) if self.sampled else None
        return NetworkPolicy(actor, num_envs, draws, self.reset_memory, self.keep_memory)


@torch.no_grad()
def evaluate(network: QNetwork, setup: EvalSetup, episodes: int, seed: int) -> Score:
    """Play episodes without dropout, the same number in every environment."""
    training = network.training
    network.eval()
    vector, quota, exhaustive = setup.vector(episodes, seed)
    with closing(vector):
        tally = play(vector, setup.policy(network, vector.num_envs, seed), quota)
    network.train(training)
    return tally.score(None if exhaustive else episodes, exhaustive, vector.reports_success)


def eval_setups(config: Any, device: torch.device) -> dict[str, EvalSetup]:
    """Make the setups of a run's evaluations by id: its environments of training, then those of `--eval-env`."""
    environment = config.environment
    trained = {id.removeprefix("envs:") for id in environment.ids}
    others = [environment.other(id) for id in config.evaluation.others if id.removeprefix("envs:") not in trained]
    return {each.id: EvalSetup.of(config, device, each) for each in (*environment.each(), *others)}


def evaluate_each(
    network: QNetwork, setups: Mapping[str, EvalSetup], trained: Collection[str], episodes: int, seed: int
) -> Score:
    """Play episodes in several environments; the mean is over those that are `trained`.

    All but the first have seeds of their own: equal seeds would place equal beacons in corridors of two sizes.
    """
    seeds = [seed, *spawn_seeds([seed, 1], len(setups) - 1)]
    pairs = zip(setups.items(), seeds, strict=True)
    scores = {id: evaluate(network, setup, episodes, own) for (id, setup), own in pairs}
    if len(scores) == 1:
        return scores.popitem()[1]
    others = {id: score for id, score in scores.items() if id not in trained}
    return MeanScore.of({id: score for id, score in scores.items() if id in trained}, others)


def check_fits(setup: EvalSetup, network: QNetwork, flag: str, trained: str) -> None:
    """Raise a UserError if a network cannot act in the environment that a flag names."""
    spec, actions = setup.forms()
    if (spec, actions) != (network.spec, network.actions):
        raise UserError(
            f"{flag} {setup.env} has {_form(spec, actions)}, but the network was trained in {trained} with "
            f"{_form(network.spec, network.actions)}"
        )


@torch.no_grad()
def acting_cost(network: QNetwork, setup: EvalSetup) -> dict[str, float]:
    """Measure acting in one environment: microseconds of the fastest timed step, and bytes of the state."""
    actor = make_actor(network, 1, setup.device, setup.acting_state)
    observation = torch.zeros(1, *network.spec.shape, dtype=network.spec.dtype, device=setup.device)
    action, reset = network.actions.none(1, setup.device), torch.zeros(1, dtype=torch.bool, device=setup.device)
    times = []
    for _ in range(network.config.context + TIMED_STEPS):  # the window is full in the timed steps
        began = time.perf_counter()
        actor.observe(observation, action, reset)
        actor.outputs().argmax().item()  # waits for the device
        times.append(time.perf_counter() - began)
    state = sum(tensor.nbytes for tensor in actor.state_tensors)
    return {"time/acting_us": 1e6 * min(times[-TIMED_STEPS:]), "final/remembered_bytes": float(state)}


# ---- how a run of any kind is evaluated ------------------------------------------------------------------------------
@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation, for runs of any kind."""

    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the environments and of the agent's draws (seeds below 2**32 are all different)."""
    env: str | None = None
    """Another environment with the same observations and actions (None: those of training and of --eval-env)."""
    reset_memory: bool = False
    """Reset the memory before each step, to measure the agent without it."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda if there is one)."""
    threads: Annotated[int, Bounds(1, 1_024)] | None = None
    """CPU threads of torch (None: torch's own choice)."""
    episodes: Annotated[int, Bounds(1, 10**9)] | None = None
    """Q-networks, PPO: episodes, unless every initial state is played once (None: 1,000)."""
    num_eval_envs: Annotated[int, Bounds(1)] | None = None
    """World models: environments stepped at once (None: 20)."""
    episodes_per_env: Annotated[int, Bounds(1, 10**9)] | None = None
    """World models: episodes of each environment (None: 5)."""
    simulations: Annotated[int, Bounds(1)] | None = None
    """UniZero: expansions of each search (None: as in training)."""
    policy: Literal["both", "sampled", "greedy"] | None = None
    """PPO, GLAM: sampled (draw actions as in training) or greedy (take the most probable ones); None: both."""
    video: str | None = None
    """Q-networks, PPO: also write a video of episodes: a path that ends in .gif, or in .png for an animated PNG."""
    video_episodes: Annotated[int, Bounds(1, 10**9)] = 1
    """Episodes in the video."""
    overwrite: bool = False
    """Let the video replace an existing file."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of the agent of a run's checkpoint."""

    step: int
    agent: str
    """The agent in words."""
    environments: dict[str, dict[str, Any]]
    """Keywords of each environment, by id."""
    scores: dict[str, Score]
    """Scores by policy, "sampled" and "greedy", or "" if there is only one; that of training comes first."""
    facts: dict[str, Any]
    """Further entries of the JSON output, by the kind of agent."""
    backend: Choice | None = None

    @property
    def env(self) -> str:
        """The ids of the environments of training, or of the one that was asked for."""
        score = self.score
        return " + ".join(score.parts if isinstance(score, MeanScore) else self.environments)

    @property
    def score(self) -> Score:
        """Give the score of actions chosen as in training."""
        return next(iter(self.scores.values()))


@dataclass(frozen=True)
class LoadedPolicy:
    """The agent of a checkpoint, in the environment it was trained in."""

    config: Any
    env_kwargs: dict[str, Any]
    step: int
    """Environment steps of its training."""
    device: torch.device
    start: Callable[[int], Policy]
    """Makes a policy for N episodes, with an empty memory."""
    policies: Mapping[str, Callable[[int], Policy]] = field(default_factory=dict)
    """The same by policy, "sampled" and "greedy"; empty if there is only one."""


# ---- runs whose agent is one network ---------------------------------------------------------------------------------
def usable_device(device: torch.device | str) -> torch.device:
    """Give the device; raise a UserError if it does not exist here."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, TypeError):  # torch would name all its kinds of device, or fail much later
        raise UserError(f"there is no device {str(device)!r} here; use 'cpu', or 'cuda' where torch sees one") from None
    return torch.device(device)


def load_network(run: Path | str, device: torch.device | str = "cpu") -> tuple[QNetwork, Any, int]:
    """Read the network of a run folder's latest checkpoint, averaged if the run averages, in evaluation mode.

    Returns the network, the run's config and the environment step of the checkpoint; nothing is written.

    Raises:
        UserError: there is no run or no checkpoint, it is damaged or foreign, its weights do not fit the config, or
            there is no such device.
    """
    device = usable_device(device)
    kind = kind_of(Run.open(run).load(with_replay=False))
    kind = kind if kind in KINDS_OF_NETWORKS else KINDS_OF_NETWORKS[0]  # whose reader refuses other kinds
    checkpoint, config = read_run(Path(run), trainer_class(kind).config_class)
    spec, actions = EvalSetup.of(config, torch.device("cpu")).forms()
    with seeded(0):  # the first weights are overwritten at once
        network: QNetwork = config.network.build(spec, actions)
    part = "average" if checkpoint.part("average") else "network"
    checkpoint.fill(network, part, f"the weights of {run} do not fit its config and environment")
    return network.to(device).eval(), config, checkpoint.step


def load_policy(run: Path, device: torch.device, seed: int) -> LoadedPolicy:
    """Read the policy of a run's latest checkpoint; `seed` seeds the actions it draws."""
    network, config, step = load_network(run, device)
    setup = EvalSetup.of(config, device)
    policies = {
        name: partial(replace(setup, sampled=name == "sampled").policy, network, seed=seed)
        for name in ("sampled", "greedy")
    }
    trained = policies["sampled" if setup.sampled else "greedy"]
    return LoadedPolicy(config, setup.env_kwargs, step, device, trained, policies if config.stochastic else {})


def evaluate_run(run: Path, options: EvaluationOptions) -> Evaluation:
    """Play episodes with the network of a run's latest checkpoint.

    Raises:
        UserError: the checkpoint cannot be loaded, or its network cannot act in another environment.
    """
    device = ComputeConfig(options.device, options.threads).start()
    network, config, step = load_network(run, device)
    setups = evaluation_setups(options, config, network, device)
    episodes, trained = options.episodes or 1_000, config.environment.ids
    scores = {policy: evaluate_each(network, each, trained, episodes, options.seed) for policy, each in setups.items()}
    architecture = config.network.architecture
    environments = {id: setup.env_kwargs for id, setup in next(iter(setups.values())).items()}
    return Evaluation(step, architecture, environments, scores, {"architecture": architecture})


def evaluation_setups(
    options: EvaluationOptions, config: Any, network: QNetwork, device: torch.device
) -> dict[str, dict[str, EvalSetup]]:
    """Make the setups, by environment, of each policy: "sampled" and "greedy", or "" for Q-networks.

    Raises:
        UserError: the network cannot act in the environment that the options name.
    """
    setups = eval_setups(config, device)
    if options.env is not None:
        setups = {options.env: setup_in(options.env, config, network, device)}
    every = ("sampled", "greedy") if config.stochastic else ("",)
    policies = every if options.policy in (None, "both") else (options.policy,)
    return {
        policy: {
            id: replace(setup, reset_memory=options.reset_memory, sampled=policy == "sampled")
            for id, setup in setups.items()
        }
        for policy in policies
    }


def setup_in(env: str | None, config: Any, network: QNetwork, device: torch.device) -> EvalSetup:
    """Make the setup of the environment that `--env` names (None: the first of training).

    Raises:
        UserError: the network cannot act in it.
    """
    if env is None:
        return EvalSetup.of(config, device)
    own = {each.id: each for each in config.environment.each()}
    setup = EvalSetup.of(config, device, own.get(env, config.environment.other(env)))
    check_fits(setup, network, "--env", config.environment.name)
    return setup


def _form(spec: ObservationSpec, actions: Actions) -> str:
    words = f", {spec.vocabulary} tokens" if spec.vocabulary else ""
    if spec.bounds is not None:
        words += f", values from {min(spec.bounds[0])} to {max(spec.bounds[1])}"
    return f"{spec.kind} observations of shape {spec.shape}{words}, and {actions.words}"


# ---- the command -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Args(EvaluationOptions, RunArgument):
    """Play a run's latest checkpoint without learning, and print its scores with 95 % intervals."""

    format: Literal["text", "json"] = "text"
    """Form of the printed scores; with json, messages go to standard error."""


# Options of some kinds of run only; each trainer lists its own.
OPTIONAL = (
    "episodes", "num_eval_envs", "episodes_per_env", "simulations", "policy", "video", "video_episodes", "overwrite",
)  # fmt: skip


def evaluate_folder(folder: Path, args: Args) -> Evaluation:
    """Evaluate the agent of a run of any kind.

    Raises:
        UserError: no trainer has the run's kind, or an option is not for that kind.
    """
    load_plugins([*args.plugin, *module_of(args.env)])
    kind = kind_of(Run.open(folder).load(with_replay=False))
    trainer = trainer_class(kind)
    given = [option.name for option in fields(EvaluationOptions) if getattr(args, option.name) != option.default]
    wrong = [name for name in given if name in OPTIONAL and name not in trainer.evaluation_flags]
    if wrong:
        flag, *known = (f"--{name.replace('_', '-')}" for name in (wrong[0], *trainer.evaluation_flags))
        raise UserError(f"{flag} is not for runs of the kind '{kind}'; its own are {', '.join(known)}")
    for name in ("video_episodes", "overwrite"):
        if args.video is None and name in given:
            raise UserError(f"--{name.replace('_', '-')} needs --video too, such as --video episode.gif")
    if args.video is not None:
        record_video(folder, args, args.video)
    return trainer.evaluate_run(folder, args)


def record_video(folder: Path, args: Args, file: str) -> None:
    """Write a video of the first episodes that the network of a run plays.

    With --reset-memory the video shows no attention.
    """
    from dqn_memory.analysis.episodes import action_names, play_in
    from dqn_memory.analysis.video import Looks, check_target, save_video  # needs the extra `plots`

    device = ComputeConfig(args.device, args.threads).start()
    check_target(Path(file), args.overwrite)
    network, config, _ = load_network(folder, device)
    setup = next(iter(next(iter(evaluation_setups(args, config, network, device).values())).values()))
    episodes = play_in(setup, network, args.seed, args.video_episodes, draw=True)
    seen = [] if args.reset_memory else episodes
    looks = [Looks.of_episode(network, episode, config.acting_state) for episode in seen]
    save_video(Path(file), episodes, action_names(setup), looks)
    say(f"wrote {file}", file=sys.stderr)


def as_text(folder: Path, args: Args, evaluation: Evaluation) -> str:
    """Write a few lines for people, with the environment's reference scores beside the success rate."""
    blind = ", forgetting everything before each step" if args.reset_memory else ""
    text = [f"{folder} at step {evaluation.step:,}: {evaluation.agent} in {evaluation.env}{blind}"]
    for policy, score in evaluation.scores.items():
        how = f"{policy} actions, " if policy else ""
        if score.exhaustive and isinstance(score, MeanScore):
            how += "exhaustive: each initial state of the deterministic environments once"
        elif score.exhaustive:
            how += f"exhaustive: each of the {score.episodes:,} initial states of the deterministic environment once"
        else:
            how += f"{score.episodes:,} episodes with seed {args.seed}, 95 % intervals"
        indent = "  " if policy else ""
        text += [how, *(f"{indent}{line}" for line in score_lines(score, evaluation))]
    return "\n".join(text)


def score_lines(score: Score, evaluation: Evaluation) -> list[str]:
    """Write a line for each measure; of several environments the means first, then one line for each environment."""
    first, *others = lines(score)
    if isinstance(score, MeanScore):
        trained = [f"  {id}: {_words(each, id, evaluation)}" for id, each in score.parts.items()]
        unseen = [f"  {id} (not trained in): {_words(each, id, evaluation)}" for id, each in score.others.items()]
        return [first, *others, *trained, *unseen]
    id, kwargs = next(iter(evaluation.environments.items()))
    known = reference_summary(score.success_rate, float(score.returns.mean()), id, kwargs)
    if not score.env_reports_success:
        return [f"{first}  {known}" if known else first, *others]
    what = " initial states" if score.exhaustive else ""
    return [f"{first}   {int(score.success.sum()):,} of {score.episodes:,}{what}{known}", *others]


def _words(score: Score, id: str, evaluation: Evaluation) -> str:
    known = reference_summary(score.success_rate, float(score.returns.mean()), id, evaluation.environments[id])
    return summary(score, known)


def as_json(folder: Path, args: Args, evaluation: Evaluation) -> str:
    """Write one JSON object for programs; it holds an object for each policy, if there are several."""
    facts = {"run": str(folder), "step": evaluation.step, "env": evaluation.env, "seed": args.seed}
    facts |= {"reset_memory": args.reset_memory} | evaluation.facts
    parts = {policy: score_facts(score) for policy, score in evaluation.scores.items()}
    return json.dumps(facts | parts.pop("", {}) | parts, indent=1)


def score_facts(score: Score) -> dict[str, Any]:
    """Give a score for programs; of several environments the means, and the score of each."""
    facts: dict[str, Any] = {
        "episodes": score.episodes, "exhaustive": score.exhaustive, "success_told": score.env_reports_success,
    }  # fmt: skip
    facts |= measures(score)
    if isinstance(score, MeanScore):
        for name, scores in (("environments", score.parts), ("not_trained_in", score.others)):
            facts[name] = {id: score_facts(each) for id, each in scores.items()}
    return facts


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Load, play, print."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.evaluate")
    check_numbers(args)
    folder = args.chosen_run()
    evaluation = evaluate_folder(folder, args)
    device = ComputeConfig(args.device).torch_device()
    log_backend(evaluation.backend, device, to=sys.stderr if args.format == "json" else None)
    say(as_json(folder, args, evaluation) if args.format == "json" else as_text(folder, args, evaluation))


if __name__ == "__main__":
    main()
