"""Action spaces: what a policy draws, how probable it is, and PPO runs that take parts of actions."""

import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as D

from dqn_memory import action_distributions
from dqn_memory.api import Agent, train
from dqn_memory.ppo import PPOConfig, PPOTrainer
from dqn_memory.runs.errors import UserError
from envs.actions import Actions, InterfaceConfig, action_form
from envs.vector import make_vector

MIXED = spaces.Dict({
    "gear": spaces.Discrete(3, start=1),
    "hands": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(np.float32([-2, 0]), np.float32([2, 5])))),
    "keys": spaces.MultiDiscrete([2, 4]),
    "loose": spaces.Box(-np.inf, np.inf, (1, 2)),
})  # fmt: skip
SPACES = [
    MIXED, spaces.MultiDiscrete([3, 2, 5]), spaces.MultiDiscrete([[2, 3], [4, 2]]), spaces.MultiBinary([2, 2]),
    spaces.Box(-1.0, 1.0, (3,)), spaces.Box(np.float32([-np.inf, 0]), np.float32([1, np.inf])),
    spaces.Box(0, 9, (2,), np.int32),
]  # fmt: skip


class Echo(gymnasium.Env):
    """Pays for the parts of an action that equal those shown at the start; refuses actions outside of its space."""

    observation_space = spaces.Box(-2.0, 2.0, (4,))

    def __init__(self, space=MIXED):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.shown = 0, self.np_random.integers(2, size=4).astype(np.float32)
        return self.shown.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        flat = spaces.flatten(self.action_space, action)
        self.steps += 1
        reward = float((flat[0] > 0.5) == (self.shown[0] > 0.5))
        return np.zeros(4, np.float32), reward, self.steps >= 5, False, {}


for name, space in {
    "Mixed": MIXED,
    "Box": spaces.Box(-1.0, 1.0, (2,)),
    "Several": spaces.MultiDiscrete([2, 3]),
}.items():
    gymnasium.register(f"Echo{name}-v0", Echo, kwargs={"space": space})


def outputs(actions, rows, seed=0):
    return torch.randn(rows, actions.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", ["clip", "tanh"])
@pytest.mark.parametrize("space", SPACES)
def test_whatever_is_drawn_lies_in_its_space(space, form):
    actions, decode = action_form(space, form)
    draws = torch.Generator().manual_seed(1)
    wide = 3 * outputs(actions, 100)
    random = actions.random(torch.rand(100, *actions.shape, generator=draws))
    for rows in (action_distributions.draw(actions, wide, draws), action_distributions.best(actions, wide), random):
        assert all(space.contains(decode(row)) for row in rows)


def reference(actions, row):
    """The distributions of the parts of one row of outputs, by torch."""
    logits, switches, mean, log_spread = row.split(
        (sum(actions.sizes), actions.switches, len(actions.low), len(actions.low))
    )
    real = D.Normal(mean, log_spread.exp())
    return [D.Categorical(logits=each) for each in logits.split(actions.sizes)], D.Bernoulli(logits=switches), real


@pytest.mark.parametrize("form", ["clip", "tanh"])
@pytest.mark.parametrize("space", SPACES)
def test_probabilities_and_entropies_are_those_of_torch(space, form):
    actions, _ = action_form(space, form)
    given = outputs(actions, 50)
    action = action_distributions.draw(actions, given, torch.Generator().manual_seed(2))
    found, spread = action_distributions.log_prob(actions, given, action), action_distributions.entropy(actions, given)
    bounded = torch.tensor([math.isfinite(each) for each in np.subtract(actions.high, actions.low)], dtype=torch.bool)
    for row in range(50):
        choices, switches, real = reference(actions, given[row])
        chosen, on, number = actions.split(action[row])
        total = (
            sum(each.log_prob(value) for each, value in zip(choices, chosen, strict=True)) + switches.log_prob(on).sum()
        )
        density = real.log_prob(number)
        if form == "tanh":
            squashed = D.TransformedDistribution(real, [D.transforms.TanhTransform(cache_size=1)])
            inverse = number.tanh()
            squashed.transforms[0]._cached_x_y = number, inverse
            density = torch.where(bounded, squashed.log_prob(inverse), density)
        assert found[row] == pytest.approx(float(total + density.sum()), abs=1e-6)
        entropy = sum(each.entropy() for each in choices) + switches.entropy().sum() + real.entropy().sum()
        assert spread[row] == pytest.approx(float(entropy), abs=1e-6)


def test_draws_follow_the_probabilities():
    actions, _ = action_form(MIXED, "clip")
    given = outputs(actions, 1)
    drawn = action_distributions.draw(actions, given.expand(20_000, -1), torch.Generator().manual_seed(3))
    choices, switches, real = reference(actions, given[0])
    chosen, on, number = actions.split(drawn)
    for part, each in enumerate(choices):
        shares = torch.bincount(chosen[:, part].long(), minlength=len(each.probs)) / len(drawn)
        assert torch.allclose(shares.double(), each.probs, atol=0.02)
    assert torch.allclose(on.mean(0), switches.probs, atol=0.02)
    assert torch.allclose(number.mean(0), real.mean, atol=0.1) and torch.allclose(number.std(0), real.stddev, rtol=0.05)


def test_bounds_stand_for_minus_one_and_one():
    decode = action_form(spaces.Box(np.float32([-2, 0]), np.float32([2, 5])), "clip")[1]
    found = [decode(torch.tensor([x, x])).tolist() for x in (-7.0, -1.0, 0.0, 1.0)]
    assert found == [[-2, 0], [-2, 0], [0, 2.5], [2, 5]]
    tanh = action_form(spaces.Box(-2.0, 2.0, (1,)), "tanh")[1]
    assert tanh(torch.tensor([0.5])) == pytest.approx(2 * math.tanh(0.5))


def test_one_choice_is_a_number_in_every_form():
    assert [action_form(spaces.Discrete(4), form)[0] for form in ("numbered", "clip", "tanh")] == [Actions(4)] * 3


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict()])
def test_other_spaces_are_refused_in_a_sentence(space):
    with pytest.raises(UserError):
        action_form(space, "clip")


@pytest.mark.parametrize("env", ["EchoMixed-v0", "EchoBox-v0", "EchoSeveral-v0"])
def test_saved_environments_continue_with_rows_of_actions(env):
    vector, actions = make_vector(env, 3, 0, interface=InterfaceConfig(form="clip")), torch.rand(12, 3, 9)
    count = vector.actions.shape[0]
    vector.reset()
    for each in actions[:7]:
        vector.step(vector.actions.random(each[:, :count]))
    again = make_vector(env, 3, 5, interface=InterfaceConfig(form="clip"))
    again.reset()
    again.load_state_dict(vector.state_dict())
    for each in actions[7:]:
        row = vector.actions.random(each[:, :count])
        ours, theirs = vector.step(row), again.step(row)
        assert all(torch.equal(value, getattr(theirs, name)) for name, value in vars(ours).items())


SMALL = {
    "num_envs": 8, "total_steps": 2_560, "rollout_steps": 16, "log_every": 0, "evaluate_every": 0, "episodes": 8,
    "final_episodes": 8, "width": 16, "track": ("none",), "threads": 1, "checkpoint_every": 1_280,
}  # fmt: skip


def settings(env, **changes):
    config = PPOConfig()

    return replace(
        config,
        environment=replace(config.environment, env=env, num_envs=8, **changes).in_parts(),
        learner=replace(config.learner, rollout_steps=16),
        network=replace(config.network, width=16, action_embedding=4),
    )


@pytest.mark.parametrize("form", ["auto", "tanh"])
@pytest.mark.parametrize("env", ["EchoMixed-v0", "EchoBox-v0", "EchoSeveral-v0"])
def test_an_update_computes_the_probabilities_of_acting(env, form):
    trainer = PPOTrainer(settings(env, actions=form))
    trainer.begin()
    rollout, _ = trainer.collector.collect(trainer.read, trainer.choose, torch.zeros(16))
    x, _ = trainer.network.encode_sequence(*rollout.inputs)
    new = action_distributions.log_prob(trainer.actions, trainer.read(x, rollout.observation).logits, rollout.action)
    old = action_distributions.log_prob(trainer.actions, rollout.outputs.logits, rollout.action)
    assert torch.allclose(new, old, atol=1e-5)
    trainer.iterate()
    assert all(parameter.grad is not None for parameter in trainer.network.parameters())


@pytest.mark.long
@pytest.mark.parametrize("env", ["EchoMixed-v0", "EchoBox-v0", "EchoSeveral-v0"])
def test_a_run_learns_plays_and_exports(env, tmp_path):
    run, score = train(
        "ppo", env=env, run=str(tmp_path / "run"), **{**SMALL, "total_steps": 40_960}, learning_rate=3e-3
    )
    assert score.returns.mean() > 3.6  # guesses of the first part give 2.5 of 5
    made = gymnasium.make(env)
    agent = Agent.load(run)
    observation, reset = made.reset(seed=0)[0], True
    for _ in range(20):
        action = agent.act(observation, reset)
        assert made.action_space.contains(action)
        observation, _, terminated, truncated, _ = made.step(action)
        reset = terminated or truncated
        observation = made.reset()[0] if reset else observation
    assert agent.play(made, 8).returns.mean() > 3.2


def test_a_run_of_before_numbers_its_combinations(tmp_path):
    """A config without the setting is one of a run whose network has an output for each combination."""
    config = PPOConfig()

    old = replace(config, environment=replace(config.environment, env="EchoSeveral-v0", num_envs=4))
    assert PPOTrainer(old).network.actions == Actions(6)
    assert PPOTrainer(replace(old, environment=old.environment.in_parts())).network.actions.sizes == (2, 3)


@pytest.mark.parametrize("kind", ["pqn", "q_network"])
def test_q_learners_refuse_real_numbers_and_name_the_way_out(kind, tmp_path):
    with pytest.raises(UserError, match="PPO"):
        train(kind, env="EchoBox-v0", run=str(tmp_path / "run"), total_steps=5_000, num_envs=4)


@pytest.mark.parametrize("kind", ["pqn", "q_network"])
def test_q_learners_refuse_parts_of_actions(kind, tmp_path):
    with pytest.raises(UserError, match="--actions clip"):
        train(kind, env="EchoSeveral-v0", actions="clip", run=str(tmp_path / "run"), total_steps=5_000, num_envs=4)
