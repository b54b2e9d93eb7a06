"""Rollouts and what is learned from them: returns by hand, carried states, bootstraps, and runs that must learn."""

from types import SimpleNamespace

import pytest
import torch
from trained import CAR, MEMORY, in_place_of_a_graph, rollout_flags

from dqn_memory import ppo, rollouts
from dqn_memory.exploration import ExplorationConfig, Explorer
from dqn_memory.network import NetworkConfig, ObservationSpec, observation_spec
from dqn_memory.ppo import ActorCritic, PPOLearnerConfig, PPOTrainer, gae, ppo_loss
from dqn_memory.pqn import PQNTrainer, QValues, q_lambda, q_loss
from dqn_memory.rollouts import CapturedIteration, Collector, Predictor, Rollout
from dqn_memory.runs.metrics import read_metrics
from envs.vector import make_vector

GAMMA, DECAY = 0.5, 0.25


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def rollout(reward, terminated, truncated, **more):
    """One environment's rollout that holds what returns depend on."""
    ended = rows(terminated, dtype=torch.bool)
    known = {"reward": rows(reward), "terminated": ended, "done": ended | rows(truncated, dtype=torch.bool)} | more
    return Rollout(**{name: known.get(name) for name in Rollout._fields})


def test_returns_through_ends_of_every_kind_by_hand():
    """Five steps: the second terminates, the fourth is cut off, the fifth goes on after the rollout."""
    value, bootstrap = rows([10, 20, 30, 40, 50]), rows([0, 0, 0, 44, 55])
    outputs = ActorCritic(None, value)
    steps = rollout([1, 2, 3, 4, 5], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0], outputs=outputs, bootstrap=bootstrap)
    last = 5 + GAMMA * 55
    cut_off = 4 + GAMMA * 44
    third = 3 + GAMMA * (0.75 * 40 + 0.25 * cut_off)
    second = 2.0
    first = 1 + GAMMA * (0.75 * 20 + 0.25 * second)
    advantage, found = gae(steps, GAMMA, DECAY)
    assert found.tolist() == [pytest.approx([first, second, third, cut_off, last])]
    # a sum of temporal differences, discounted by gamma lambda
    differences = [1 + GAMMA * 20 - 10, 2 - 20, 3 + GAMMA * 40 - 30, 4 + GAMMA * 44 - 40, 5 + GAMMA * 55 - 50]
    assert advantage[0, 0] == pytest.approx(differences[0] + GAMMA * DECAY * differences[1])
    assert advantage[0, 2] == pytest.approx(differences[2] + GAMMA * DECAY * differences[3])


def test_targets_of_pqn_mix_the_best_values_by_hand():
    fourth = 1 + GAMMA * 6
    third = 1 + GAMMA * (0.75 * 4 + 0.25 * fourth)
    second = 1 + GAMMA * (0.75 * 3 + 0.25 * third)
    first = 1 + GAMMA * (0.75 * 2 + 0.25 * second)
    steps = rollout([1, 1, 1, 1], [0] * 4, [0] * 4, bootstrap=rows([6] * 4))
    found = q_lambda(steps, rows([[1, 0], [0, 2], [3, 0], [0, 4]]), GAMMA, DECAY)
    assert found.tolist() == [pytest.approx([first, second, third, fourth])]


@pytest.mark.parametrize("env", [MEMORY, CAR, "POPGym/Battleship-Easy-v0"])
def test_predictions_are_of_the_next_observation_in_the_same_episode(env):
    """A head that knows the answer has no error, whatever stands across an episode's end."""
    each = collector(8, env)
    steps = collect(each)
    steps = steps._replace(terminated=steps.done)
    spec = observation_spec(each.vector.observation_space)
    predictor = Predictor(spec, 16, each.vector.actions, 1.0).double()
    after = torch.cat((steps.observation[:, 1:], steps.observation[:, :1]), 1).flatten(2)
    sizes = spec.sizes or (spec.vocabulary,) * len(after[0, 0])
    one_hot = [torch.nn.functional.one_hot(after[..., place].long(), size) for place, size in enumerate(sizes) if size]
    known = torch.cat(one_hot, -1) * 1e3 if one_hot else after
    known = torch.where(steps.done[:, :, None], -known, known)  # wrong where nobody looks
    wrong = steps.reward + torch.where(steps.terminated, 4, 2)
    predictor.head.forward = lambda x: torch.cat((known.double(), wrong.unsqueeze(2)), -1)
    x = torch.zeros(4, 8, 16, dtype=torch.float64)
    assert float(predictor.loss(x, steps)) == pytest.approx((4**2 + 2**2) / 2)  # the reward's alone, ends half of it
    assert steps.done[:, :-1].any()


def collector(length, env=MEMORY, critic=False, scale=None, keep=False):
    """Four environments whose episodes are cut off after 5 steps, and a network in float64."""
    torch.manual_seed(0)
    vector = make_vector(env, 4, 7, env_kwargs={"time_limit": 5})
    config = NetworkConfig("gru", width=16, action_embedding=4, initialisation="torch")
    network = config.build(observation_spec(vector.observation_space), vector.num_actions).double()
    value = torch.nn.Linear(16, 1).double()
    own = Explorer(ExplorationConfig(epsilon_start=0, epsilon_end=0), 4, vector.num_actions, torch.Generator())
    each = Collector(vector, network, own, length, scale, keep)
    each.read = lambda x, seen: QValues(network.read(x, seen))
    if critic:
        each.read = lambda x, seen: ActorCritic(network.read(x, seen), value(x).squeeze(-1))
    return each


def act(outputs):
    return (outputs[0][:, 0].abs() * 1e4).long() % 3  # as good as random, and the same again


def collect(each):
    return each.collect(each.read, act, torch.zeros(each.length))[0]


def steps_of(each):
    """The steps that the collector's environments take from now on."""
    seen, step = [], each.vector.step
    each.vector.step = lambda action: seen.append(step(action)) or seen[-1]
    return seen


def collected(each, times=1):
    parts = [collect(each) for _ in range(times)]
    names = "observation", "previous_action", "reset", "action", "reward", "terminated", "done"
    found = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in names}
    return found | {"q": torch.cat([part.outputs.q for part in parts], 1)}


def test_a_rollout_in_one_piece_equals_two_with_the_carried_state():
    whole, halves = collected(collector(16)), collected(collector(8), 2)
    assert whole["done"].any() and not whole["terminated"].all()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_rewards_are_scaled_by_the_spread_of_the_returns_of_episodes_so_far():
    plain, each = collected(collector(24, scale=1.0)), collector(24)
    seen, returns = steps_of(each), []
    scaled = collect(each).reward
    for t, step in enumerate(seen):
        returns += step.episode_return[step.done].tolist()
        spread = torch.tensor(returns).std(correction=0) if len(returns) >= 4 else 0  # four environments
        spread = spread if spread > 1e-8 else 1.0  # as long as all returns are the same, or there are few
        torch.testing.assert_close(scaled[:, t], plain["reward"][:, t] / spread, rtol=1e-4, atol=0)
    assert len(returns) > 8 and not torch.equal(scaled[:, -1], plain["reward"][:, -1])


@pytest.mark.parametrize("returned", [-100.0, -0.1, 1 / 3, 1e6])
def test_equal_returns_scale_nothing(returned):
    """Not even by what rounding leaves of their spread."""
    each, ends = collector(2), torch.full((4,), returned, dtype=torch.float64)
    done = torch.ones(4, dtype=torch.bool)
    for _ in range(60):
        step = SimpleNamespace(reward=torch.full((4,), -0.1), done=done, episode_return=ends)
        assert torch.equal(each.scaled_reward(step), step.reward)


@pytest.mark.parametrize("critic", [False, True])
def test_updates_compute_what_acting_computed(critic):
    """From the state before the second rollout, through resets inside it."""
    each = collector(8, critic=critic)
    collect(each)
    steps = collect(each)
    x, _ = each.network.encode_sequence(*steps.inputs)
    torch.testing.assert_close(tuple(each.read(x, steps.observation)), tuple(steps.outputs), rtol=0, atol=1e-12)
    assert steps.reset[:, 1:].any() and torch.equal(steps.reset[:, 1:], steps.done[:, :-1])
    actions = torch.where(steps.done[:, :-1], each.vector.num_actions, steps.action[:, :-1])  # none where one begins
    assert torch.equal(steps.previous_action[:, 1:], actions)


@pytest.mark.parametrize("architecture", ["adrqn", "gru"])
def test_no_action_of_the_episode_before_reaches_the_next_one(architecture):
    """Whatever the caller gives as previous action where an episode begins."""
    torch.manual_seed(0)
    spec, actions = ObservationSpec("discrete", (2,), 40, torch.uint8), 3
    net = NetworkConfig(architecture, width=16, action_embedding=4, initialisation="torch").build(spec, actions)
    observation, previous = torch.randint(39, (2, 6, 2)), torch.randint(actions, (2, 6))
    reset = torch.zeros(2, 6, dtype=torch.bool).index_fill(1, torch.tensor([0, 3]), True)
    none = torch.where(reset, actions, previous)
    expected, _ = net.sequence(observation, none, None, reset)
    assert torch.equal(net.sequence(observation, previous, None, reset)[0], expected)
    assert not torch.equal(net.sequence(observation, previous, None, reset & False)[0], expected)
    state = net.initial_state(2, torch.device("cpu"))
    for t in range(6):
        given, masked = (net.step(observation[:, t], each[:, t], state, reset[:, t]) for each in (previous, none))
        assert torch.equal(given[0], masked[0])
        state = given[1]
    for wrong in (reset.long(), reset[:, :1], reset[:, 0]):
        with pytest.raises(ValueError, match="it must be bool"):
            net.sequence(observation, previous, None, wrong)


def test_what_is_cut_off_is_valued_by_its_final_observation_in_its_own_episode():
    each = collector(8, CAR)
    seen = steps_of(each)
    steps = collect(each)
    cut = torch.stack([step.truncated for step in seen], 1)
    expected = torch.zeros_like(steps.bootstrap)
    for row in range(4):
        for t in range(8):
            ends = cut[row, t] or (t == 7 and not steps.terminated[row, t])
            if ends:
                start = int(steps.reset[row, : t + 1].nonzero().max())
                last = seen[t].final_observation[row, None, None]
                observation = torch.cat((steps.observation[row, None, start : t + 1], last), 1)
                action = steps.action[row, None, t : t + 1]
                previous = torch.cat((steps.previous_action[row, None, start : t + 1], action), 1)
                expected[row, t] = each.network.sequence(observation, previous)[0][0, -1].max()
    assert cut.any() and not cut.all()
    torch.testing.assert_close(steps.bootstrap, expected, rtol=0, atol=1e-12)


def test_losses_are_known_at_the_values_that_acted():
    """PQN's error of its own Q is 0, and PPO's ratio is 1."""
    each = collector(8)
    steps = collect(each)
    q = steps.outputs.q
    chosen = q.gather(2, steps.action.unsqueeze(2)).squeeze(2)
    assert q_loss(q, steps.action, chosen)[0] < 1e-20
    assert float(q_loss(q, steps.action, chosen + 1)[0]) == pytest.approx(0.5)
    each = collector(8, critic=True)
    steps = collect(each)
    advantage, config = torch.randn(4, 8, dtype=torch.float64), PPOLearnerConfig(value_weight=1)
    loss, metrics = ppo_loss(each.vector.actions, steps.outputs, steps, advantage, steps.outputs.value + 2, config, 0)
    assert float(loss) == pytest.approx(4) and float(metrics["losses/policy"]) == pytest.approx(0, abs=1e-12)


def test_ppo_earns_nothing_beyond_its_clip():
    """Where the probability of an action has moved far in the direction of its advantage, there is no gradient."""
    each = collector(8, critic=True)
    steps = collect(each)
    outputs = steps.outputs
    changed = torch.randn(outputs.logits.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    before = outputs._replace(logits=outputs.logits + 0.5 * changed)
    advantage, config = torch.randn(4, 8, dtype=torch.float64), PPOLearnerConfig(value_weight=0)
    taken = steps.action.unsqueeze(2)
    new, old = (part.logits.softmax(2).gather(2, taken).squeeze(2) for part in (outputs, before))
    ratio = new / old
    assert ((ratio < 0.8) | (ratio > 1.2)).any()
    for random in (steps.random, torch.arange(32).view(4, 8) % 3 == 0):  # no action, and every third, not its own
        own = ~random
        scaled = (advantage[own] - advantage[own].mean()) / advantage[own].std(correction=0)
        gains = [min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio[own], scaled, strict=True)]
        acted = steps._replace(outputs=before, random=random)
        loss, metrics = ppo_loss(each.vector.actions, outputs, acted, advantage, advantage, config, 0)
        assert float(loss) == pytest.approx(-float(sum(gains)) / len(gains))
        entropy = torch.distributions.Categorical(logits=outputs.logits).entropy()
        assert float(metrics["losses/entropy"]) == pytest.approx(float(entropy[own].mean()))
        known = ratio[own] - 1 - ratio[own].log(), ((ratio[own] - 1).abs() > 0.2).double()
        found = (float(metrics[f"losses/{name}"]) for name in ("approx_kl", "clip_fraction"))
        assert list(found) == pytest.approx([float(each.mean()) for each in known])


def test_a_random_action_that_was_next_to_impossible_harms_no_gradient():
    each = collector(8, critic=True)
    steps = collect(each)
    before, random = steps.outputs.logits.clone(), torch.zeros(4, 8, dtype=torch.bool)
    before[1, 2, steps.action[1, 2]] = -2_000.0
    random[1, 2] = True
    acted = steps._replace(outputs=steps.outputs._replace(logits=before), random=random)
    outputs = ActorCritic(*(part.detach().requires_grad_() for part in steps.outputs))
    config, advantage = PPOLearnerConfig(), torch.randn(4, 8, dtype=torch.float64)
    ppo_loss(each.vector.actions, outputs, acted, advantage, advantage, config, 0.1)[0].backward()
    assert outputs.logits.grad.isfinite().all() and outputs.value.grad.isfinite().all()


def test_the_weight_of_entropy_falls_with_the_learning_rate(tmp_path, monkeypatch):
    """At the beginning and after half of 512 steps, at which the learning rate has fallen by half of 0.8."""
    weights = []

    def noted(*given):
        weights.append(given[-1])
        return ppo_loss(*given)

    monkeypatch.setattr(ppo, "ppo_loss", noted)
    flags = rollout_flags(tmp_path, "--env", MEMORY, "--entropy-weight", "0.5", "--final-lr-fraction", "0.2")
    trainer = PPOTrainer(PPOTrainer.configure(flags))
    for trainer.iterations, expected in ((0, 0.5), (4, 0.3)):
        trainer.iterate()
        assert weights[-1] == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "envs"), [
    (PQNTrainer, (MEMORY,)), (PPOTrainer, (MEMORY,)), (PPOTrainer, (MEMORY, "Gridverse/Memory-7x7-v0")),
])  # fmt: skip
@pytest.mark.parametrize("device", [
    "cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
])  # fmt: skip
def test_a_captured_iteration_equals_an_eager_one(tmp_path, monkeypatch, kind, envs, device):
    """All that it changes it takes in and gives out, so that a graph can stand for it."""
    flags = (
        f"--env {' --env '.join(envs)} --time-limit 6 --prediction-weight 1 --device {device} --engine eager".split()
    )
    flags += ["--sticky-exponent", "2"] if kind is PQNTrainer else []
    eager, captured = (kind(kind.configure(rollout_flags(tmp_path, *flags))) for _ in range(2))
    if device == "cpu":
        monkeypatch.setattr(rollouts, "Captured", in_place_of_a_graph(captured))
    for each in (eager, captured):
        each.begin()
    modules = captured.networks().values()
    captured.learn_once = CapturedIteration(captured.learn, captured.collector, modules, captured.optimizer)
    for _ in range(2):
        eager.iterate()
        captured.iterate()
    assert captured.updates == eager.updates == 2 * eager.config.learner.epochs * 2
    for name, value in eager.weights().items():
        torch.testing.assert_close(captured.weights()[name], value, rtol=0, atol=0 if device == "cpu" else 1e-5)
    for left, right in ((captured.collector, eager.collector), (captured.explorer, eager.explorer)):
        torch.testing.assert_close(left.state_dict(), right.state_dict())
    torch.testing.assert_close(captured.vector.carried(), eager.vector.carried())
    assert captured.scalars() == pytest.approx(eager.scalars())


@pytest.mark.parametrize("kind", [PQNTrainer, PPOTrainer])
def test_the_engine_says_whether_an_iteration_is_captured(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("dqn_memory.runs.base_config.ComputeConfig.check", lambda self: None)  # there may be no GPU
    monkeypatch.setattr(rollouts, "Captured", lambda *_, **__: None)
    engines = {"eager": False, "cudagraph": True}
    for engine, graph in engines.items():
        trainer = kind(kind.configure(rollout_flags(tmp_path, "--env", MEMORY, "--engine", engine)))
        assert isinstance(trainer.learn_once, CapturedIteration) is graph


@pytest.mark.long
@pytest.mark.parametrize(("trainer", "preset"), [(PQNTrainer, "pqn/memory-5x5"), (PPOTrainer, "ppo/memory-5x5")])
def test_memory_5x5_is_learned_within_a_minute(tmp_path, trainer, preset):
    """By one seed of three: the same one learns sooner or later on another machine, which rounds otherwise."""

    def success(seed):
        run = tmp_path / str(seed)
        trainer.main(["--config", preset, "--env", MEMORY, "--seed", str(seed), "--run", str(run)])
        return read_metrics(run / "metrics.jsonl")[-1]["final/success_rate"]

    assert any(success(seed) >= 0.95 for seed in (61, 62, 63))


def test_targets_of_pqn_are_those_of_the_average(tmp_path):
    trainer = PQNTrainer(PQNTrainer.configure(rollout_flags(tmp_path, "--env", MEMORY)))
    trainer.iterate()  # now the two differ
    assert trainer.updates == 4  # two epochs of two minibatches
    steps, _ = trainer.collector.collect(trainer.read, trainer.choose, torch.zeros(16))
    learner, both = trainer.config.learner, (trainer.network, trainer.evaluated)
    own, averaged = (
        q_lambda(steps, each.sequence(*steps.inputs)[0], learner.gamma, learner.trace_decay) for each in both
    )
    assert torch.equal(trainer.targets(steps), averaged) and not torch.allclose(own, averaged)


def test_an_iteration_takes_from_schedules_what_is_due_at_its_steps_and_updates(tmp_path):
    """Four environments, 16 steps, 2 x 2 updates; of 512 steps in all."""
    more = "--epsilon-steps 1000 --final-lr-fraction 0 --learning-rate 0.001"
    trainer = PQNTrainer(PQNTrainer.configure(rollout_flags(tmp_path, "--env", MEMORY, *more.split())))
    schedules, learn = [], trainer.learn
    trainer.learn_once = lambda schedule: schedules.append(schedule) or learn(schedule)
    for trainer.iterations, trainer.updates in ((3, 12), (5, 20)):
        step, updates = trainer.steps, trainer.updates
        trainer.iterate()
        found = schedules[-1]
        assert found.epsilon.tolist() == pytest.approx([1 - 0.9 * (step + 4 * t) / 1000 for t in range(16)])
        decay = [(1 + n) / (10 + n) for n in range(updates + 1, updates + 5)]
        assert found.decay.tolist() == pytest.approx(decay) and trainer.updates == updates + 4
        assert found.order.sort().values.tolist() == [[0, 1, 2, 3]] * 2
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.001 * (1 - step / 512))
