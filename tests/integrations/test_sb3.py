"""The memories inside sb3-contrib's RecurrentPPO: states survive, updates see what acting saw, and models are saved."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dqn_memory.blocks import MEMORY, build
from dqn_memory.integrations.stacked import StackedMemory

pytest.importorskip("sb3_contrib")
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.env_util import make_vec_env

from dqn_memory.integrations.sb3 import MemoryPolicy, PackedMemory

STREAMING = [name for name in MEMORY if build(name, 8).stateful]
SHARED = {"shared_lstm": True, "enable_critic_lstm": False}
OWN = {"shared_lstm": False, "enable_critic_lstm": True}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1, 1, (2,)),
}
OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,)),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
}


class Random(gymnasium.Env):
    """Random observations and rewards; episodes of random lengths."""

    def __init__(self, observation="vector", action="discrete"):
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        ends, cut, reward = self.np_random.random(3)
        return self.observation_space.sample(), float(reward), bool(ends < 0.1), bool(cut < 0.1), {}


def model(memory="gru", observation="vector", action="discrete", epochs=1, **policy):
    env = make_vec_env(Random, n_envs=3, seed=1, env_kwargs={"observation": observation, "action": action})
    policy = {"lstm_hidden_size": 8, "net_arch": [8], "memory": memory} | policy
    return RecurrentPPO(
        MemoryPolicy, env, n_steps=16, batch_size=24, n_epochs=epochs, seed=1, device="cpu", policy_kwargs=policy
    )


def collected(learner):
    """A rollout of the learner, in its buffer."""
    learner._setup_learn(1)
    for _ in range(2):  # the second begins inside of episodes
        learner.collect_rollouts(learner.env, learner._init_callback(None), learner.rollout_buffer, learner.n_steps)
    return learner.rollout_buffer


def evaluated(learner, batch):
    """Values and log-probabilities of the real positions of a batch."""
    actions = batch.actions
    if isinstance(learner.action_space, spaces.Discrete):
        actions = actions.long().flatten()
    starts = batch.episode_starts
    value, log_prob, _ = learner.policy.evaluate_actions(batch.observations, actions, batch.lstm_states, starts)
    real = batch.mask > 0.5
    return value.flatten()[real], log_prob[real], real


@pytest.mark.parametrize("critic", [SHARED, OWN], ids=["shared", "own"])
@pytest.mark.parametrize("memory", STREAMING)
def test_an_update_computes_the_log_probabilities_and_values_of_acting(memory, critic):
    learner = model(memory, **critic)
    buffer, seen = collected(learner), 0
    with torch.no_grad():
        for batch in buffer.get(24):
            value, log_prob, real = evaluated(learner, batch)
            torch.testing.assert_close(log_prob, batch.old_log_prob[real], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(value, batch.old_values[real], atol=1e-5, rtol=1e-4)
            seen += len(value)
    assert seen == 48


@pytest.mark.parametrize("memory", STREAMING)
def test_a_state_is_packed_without_a_change(memory):
    packed = PackedMemory(StackedMemory(3, 8, memory, layers=2))
    state = packed.stack.initial_state(5)
    state = tuple(
        torch.randn(part.shape) if part.is_floating_point() else torch.randint(2**40, 2**50, part.shape)
        for part in state
    )
    pair = packed.pack(state, 5)
    assert {part.shape for part in pair} == {(1, 5, packed.hidden_size)} and pair[0].dtype == torch.float32
    through = tuple(torch.tensor(np.array(part.numpy()), dtype=torch.float32) for part in pair)  # as the buffer does
    for rows in (slice(0, 5), slice(3, 4)):
        after, blank = packed.unpack(tuple(part[:, rows] for part in through))
        assert not blank.any() and len(after) == len(state)
        for before, now in zip(state, after, strict=True):
            assert now.dtype == before.dtype and torch.equal(now, before[rows])


@pytest.mark.parametrize("memory", STREAMING)
def test_zeros_stand_for_the_initial_state(memory):
    packed, x = PackedMemory(StackedMemory(3, 8, memory)), torch.randn(4, 3)
    blank = torch.zeros(1, 4, packed.hidden_size)
    with torch.no_grad():
        first = packed(x, (blank, blank), torch.zeros(4))[0]
        again = packed(x, packed(x, (blank, blank), torch.zeros(4))[1], torch.ones(4))[0]
    torch.testing.assert_close(first, again)


@pytest.mark.parametrize("memory", STREAMING)
def test_the_past_of_an_episode_never_reaches_the_next(memory):
    learner = model(memory, **SHARED)
    policy, size = learner.policy, learner.policy.lstm_actor.hidden_size
    x, starts = torch.randn(2, 10, 3), torch.zeros(2, 10)
    starts[:, 4] = 1
    other = x.clone()
    other[:, :4] += 1
    states = RNNStates(*[(torch.zeros(1, 2, size), torch.zeros(1, 2, size))] * 2)

    def log_probs(x):
        actions = torch.ones(20, dtype=torch.int64)
        return policy.evaluate_actions(x.reshape(20, 3), actions, states, starts.flatten())[1].view(2, 10)

    with torch.no_grad():
        before, after = log_probs(x), log_probs(other)
    torch.testing.assert_close(before[:, 4:], after[:, 4:])
    assert (before[:, :4] != after[:, :4]).any()


@pytest.mark.parametrize("memory", STREAMING)
def test_every_memory_learns(memory):
    learner = model(memory, **OWN)
    before = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    learner.learn(48)
    after = learner.policy.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert all(torch.isfinite(value).all() for value in after.values())
    for memory in ("lstm_actor.stack", "lstm_critic.stack"):
        for part in ("enter", "memories"):
            assert any(name.startswith(f"{memory}.{part}") for name in changed)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_space_learns_and_predicts(observation, action):
    learner = model("gru", observation, action, **SHARED).learn(48)
    space = learner.env.observation_space
    actions, _ = learner.predict(space.sample())
    assert learner.action_space.contains(
        np.asarray(actions).reshape(learner.action_space.shape).astype(learner.action_space.dtype)
    )


@pytest.mark.parametrize("critic", [SHARED, OWN], ids=["shared", "own"])
@pytest.mark.parametrize("memory", ["gru", "slstm", "attention", "mlp"])
def test_a_loaded_model_acts_as_the_saved_one(memory, critic, tmp_path):
    learner = model(memory, n_lstm_layers=2, **critic).learn(48)
    learner.save(tmp_path / "model")
    learner.policy.save(tmp_path / "policy")
    loaded = RecurrentPPO.load(tmp_path / "model", device="cpu")
    alone = MemoryPolicy.load(tmp_path / "policy", device="cpu")
    observations = np.random.default_rng(1).uniform(-1, 1, (40, 2, 3)).astype(np.float32)
    starts = np.random.default_rng(2).random((40, 2)) < 0.1
    for other in (loaded, alone):
        own_state = other_state = None
        for observation, start in zip(observations, starts, strict=True):
            own, own_state = learner.predict(observation, own_state, start, deterministic=True)
            action, other_state = other.predict(observation, other_state, start, deterministic=True)
            assert (own == action).all()
            assert all((mine == theirs).all() for mine, theirs in zip(own_state, other_state, strict=True))
    loaded.set_env(learner.env)
    loaded.learn(48)


def test_predict_remembers_and_forgets_at_episode_starts():
    learner = model("gru").learn(48)
    observation = np.ones((2, 3), np.float32)
    _, first = learner.predict(observation, None, None)
    _, second = learner.predict(observation, first, np.array([False, True]))
    assert (second[0][:, 0] != first[0][:, 0]).any() and (second[0][:, 1] == first[0][:, 1]).all()


@pytest.mark.parametrize(
    "policy",
    [
        {"shared_lstm": True, "enable_critic_lstm": True},
        {"shared_lstm": False, "enable_critic_lstm": False},
        {**SHARED, "share_features_extractor": False},
        {"lstm_kwargs": {"bias": False}},
        {"memory": "bigru"},
    ],
)
def test_keywords_that_do_not_fit_are_refused(policy):
    with pytest.raises(ValueError, match="|".join(policy) if "memory" not in policy else "bigru"):
        model(**policy)


@pytest.mark.parametrize(
    ("policy", "named"), [({"memory": "gro"}, "gru"), ({"memory_kwargs": {"context": 9}}, "context")]
)
def test_an_unknown_name_or_option_is_refused(policy, named):
    with pytest.raises(ValueError, match=named):
        model(**policy)
