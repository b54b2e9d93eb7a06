"""Rollouts and what is learned from them: returns by hand, carried states, bootstraps, and runs that must learn."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from trained import CAR, MEMORY, in_place_of_a_graph, rollout_flags

from dqn_memory import rollout_trainer
from dqn_memory.network import NetworkConfig, ObservationSpec, observation_spec
from dqn_memory.ppo import PPOLearnerConfig, PPOTrainer, ppo_loss
from dqn_memory.pqn import PQNLearnerConfig, PQNTrainer, q_lambda, td_loss
from dqn_memory.rollouts import Collector, Predictor, Rollout, lambda_returns
from dqn_memory.runs.metrics import read_metrics
from envs.fleet import make_fleet

GAMMA, DECAY = 0.5, 0.25


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def rollout(reward, terminated, truncated, **more):
    """One environment's rollout that holds what returns depend on."""
    ended = rows(terminated, dtype=torch.bool)
    known = {"reward": rows(reward), "terminated": ended, "done": ended | rows(truncated, dtype=torch.bool)} | more
    return Rollout(**{each.name: known.get(each.name) for each in fields(Rollout)})


def test_returns_through_ends_of_every_kind_by_hand():
    """Five steps: the second terminates, the fourth is cut off, the fifth goes on after the rollout."""
    steps = rollout([1, 2, 3, 4, 5], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0])
    value, following = rows([10, 20, 30, 40, 50]), rows([0, 0, 0, 44, 55])
    last = 5 + GAMMA * 55
    cut_off = 4 + GAMMA * 44
    third = 3 + GAMMA * (0.75 * 40 + 0.25 * cut_off)
    second = 2.0
    first = 1 + GAMMA * (0.75 * 20 + 0.25 * second)
    found = lambda_returns(steps, value, following, GAMMA, DECAY)
    assert found.tolist() == [pytest.approx([first, second, third, cut_off, last])]
    advantage = found - value  # as GAE: a sum of temporal differences, discounted by gamma lambda
    differences = [1 + GAMMA * 20 - 10, 2 - 20, 3 + GAMMA * 40 - 30, 4 + GAMMA * 44 - 40, 5 + GAMMA * 55 - 50]
    assert advantage[0, 0] == pytest.approx(differences[0] + GAMMA * DECAY * differences[1])
    assert advantage[0, 2] == pytest.approx(differences[2] + GAMMA * DECAY * differences[3])


def four_steps(*action):
    """Q of two actions, whose greedy ones are 0, 1, 0, 1."""
    following = torch.full((1, 4, 2), 6.0, dtype=torch.float64)
    return rollout(
        [1, 1, 1, 1], [0] * 4, [0] * 4,
        outputs=rows([[1, 0], [0, 2], [3, 0], [0, 4]]), action=rows(action, dtype=torch.int64), following=following,
    )  # fmt: skip


def test_targets_of_pqn_mix_the_best_values_by_hand():
    fourth = 1 + GAMMA * 6
    third = 1 + GAMMA * (0.75 * 4 + 0.25 * fourth)
    second = 1 + GAMMA * (0.75 * 3 + 0.25 * third)
    first = 1 + GAMMA * (0.75 * 2 + 0.25 * second)
    steps = four_steps(0, 1, 1, 1)
    found = q_lambda(steps, steps.outputs, PQNLearnerConfig(gamma=GAMMA, trace_decay=DECAY))
    assert found.tolist() == [pytest.approx([first, second, third, fourth])]


@pytest.mark.parametrize("env", [MEMORY, CAR])
def test_predictions_are_of_the_next_observation_in_the_same_episode(env):
    """A head that knows the answer has no error, whatever stands across an episode's end."""
    each = collector(8, env)
    steps = collect(each)
    steps = replace(steps, terminated=steps.done)
    spec = observation_spec(each.fleet.observation_space)
    predictor = Predictor(spec, 16, each.fleet.num_actions, 1.0).double()
    after = torch.cat((steps.observation[:, 1:], steps.observation[:, :1]), 1).flatten(2)
    known = torch.nn.functional.one_hot(after.long(), spec.vocabulary) * 1e3 if spec.vocabulary else after
    known = torch.where(steps.done[:, :, None], -known.flatten(2), known.flatten(2))  # wrong where nobody looks
    wrong = steps.reward + torch.where(steps.terminated, 4, 2)
    predictor.head.forward = lambda x: torch.cat((known.double(), wrong.unsqueeze(2)), -1)
    x = torch.zeros(4, 8, 16, dtype=torch.float64)
    assert float(predictor.loss(x, steps)) == pytest.approx((4**2 + 2**2) / 2)  # the reward's alone, ends half of it
    assert steps.done[:, :-1].any()


def collector(length, env=MEMORY, critic=False, scale=None):
    """Four environments whose episodes are cut off after 5 steps, and a network in float64."""
    torch.manual_seed(0)
    fleet = make_fleet(env, 4, 7, env_kwargs={"time_limit": 5})
    config = NetworkConfig("gru", width=16, action_embedding=4, initialisation="torch")
    network = config.build(observation_spec(fleet.observation_space), fleet.num_actions).double()
    value = torch.nn.Linear(16, 1).double()
    read = (lambda x: torch.cat((network.read(x), value(x)), -1)) if critic else network.read
    return Collector(fleet, network, read, length, scale)


def act(outputs):
    return (outputs[:, 0].abs() * 1e4).long() % 3  # as good as random, and the same again


def collect(each, count=lambda step: None):
    """One rollout, as trainers collect it."""
    before, columns = each.state, []
    for t in range(each.length):
        with torch.no_grad():
            x, state = each.network.encode_step(*each.inputs)
            outputs = each.read(x)
        last = t + 1 == each.length
        action, random = act(outputs), torch.zeros(len(outputs), dtype=torch.bool)
        columns.append(each.take(outputs, state, action, random, last, count))
    return Rollout.of(before, columns)


def collected(each, times=1):
    parts = [collect(each) for _ in range(times)]
    return {name: torch.cat([getattr(part, name) for part in parts], 1) for name in (
        "observation", "previous_action", "reset", "action", "reward", "terminated", "done", "outputs"
    )}  # fmt: skip


def test_a_rollout_in_one_piece_equals_two_with_the_carried_state():
    whole, halves = collected(collector(16)), collected(collector(8), 2)
    assert whole["done"].any() and not whole["terminated"].all()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_rewards_are_scaled_by_the_spread_of_the_returns_of_episodes_so_far():
    seen = []
    plain, each = collected(collector(24, scale=1.0)), collector(24)
    scaled, returns = collect(each, seen.append).reward, []
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
        assert torch.equal(each._scaled(step), step.reward)


@pytest.mark.parametrize("critic", [False, True])
def test_updates_compute_what_acting_computed(critic):
    """From the state before the second rollout, through resets inside it."""
    each = collector(8, critic=critic)
    collect(each)
    steps = collect(each)
    x, _ = each.network.encode_sequence(*steps.inputs)
    torch.testing.assert_close(each.read(x), steps.outputs, rtol=0, atol=1e-12)
    assert steps.reset[:, 1:].any() and torch.equal(steps.reset[:, 1:], steps.done[:, :-1])
    actions = torch.where(steps.done[:, :-1], each.fleet.num_actions, steps.action[:, :-1])  # none where one begins
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
    each, seen = collector(8, CAR), []
    steps = collect(each, seen.append)
    cut = torch.stack([step.truncated for step in seen], 1)
    expected = torch.zeros_like(steps.outputs)
    for row in range(4):
        for t in range(8):
            ends = cut[row, t] or (t == 7 and not steps.terminated[row, t])
            if ends:
                start = int(steps.reset[row, : t + 1].nonzero().max())
                last = seen[t].final_observation[row, None, None]
                observation = torch.cat((steps.observation[row, None, start : t + 1], last), 1)
                action = steps.action[row, None, t : t + 1]
                previous = torch.cat((steps.previous_action[row, None, start : t + 1], action), 1)
                expected[row, t] = each.network.sequence(observation, previous)[0][0, -1]
    assert cut.any() and not cut.all()
    torch.testing.assert_close(steps.following, expected, rtol=0, atol=1e-12)


def test_losses_are_known_at_the_values_that_acted():
    """PQN's error of its own Q is 0, and PPO's ratio is 1."""
    each = collector(8)
    steps = collect(each)
    chosen = steps.outputs.gather(2, steps.action.unsqueeze(2)).squeeze(2)
    assert td_loss(steps.outputs, steps.action, chosen)[0] < 1e-20
    assert float(td_loss(steps.outputs, steps.action, chosen + 1)[0]) == pytest.approx(0.5)
    each = collector(8, critic=True)
    steps = collect(each)
    advantage, config = torch.randn(4, 8, dtype=torch.float64), PPOLearnerConfig(value_weight=1)
    loss, metrics = ppo_loss(steps.outputs, steps, (steps.outputs[..., -1] + 2, advantage), config, 0)
    assert float(loss) == pytest.approx(4) and float(metrics["losses/policy"]) == pytest.approx(0, abs=1e-12)


def test_ppo_earns_nothing_beyond_its_clip():
    """Where the probability of an action has moved far in the direction of its advantage, there is no gradient."""
    each = collector(8, critic=True)
    steps = collect(each)
    changed = torch.randn(steps.outputs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    moved = replace(steps, outputs=steps.outputs + 0.5 * changed)
    advantage, config = torch.randn(4, 8, dtype=torch.float64), PPOLearnerConfig(value_weight=0)
    taken = steps.action.unsqueeze(2)
    new, old = (part.outputs[..., :-1].softmax(2).gather(2, taken).squeeze(2) for part in (steps, moved))
    ratio = new / old
    assert ((ratio < 0.8) | (ratio > 1.2)).any()
    for random in (steps.random, torch.arange(32).view(4, 8) % 3 == 0):  # no action, and every third, not its own
        own = ~random
        scaled = (advantage[own] - advantage[own].mean()) / advantage[own].std(correction=0)
        gains = [min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio[own], scaled, strict=True)]
        loss, metrics = ppo_loss(steps.outputs, replace(moved, random=random), (advantage, advantage), config, 0)
        assert float(loss) == pytest.approx(-float(sum(gains)) / len(gains))
        entropy = torch.distributions.Categorical(logits=steps.outputs[..., :-1]).entropy()
        assert float(metrics["losses/entropy"]) == pytest.approx(float(entropy[own].mean()))


def test_a_random_action_that_was_next_to_impossible_harms_no_gradient():
    each = collector(8, critic=True)
    steps = collect(each)
    before, random = steps.outputs.clone(), torch.zeros(4, 8, dtype=torch.bool)
    before[1, 2, steps.action[1, 2]] = -2_000.0
    random[1, 2] = True
    outputs = steps.outputs.detach().requires_grad_()
    config, advantage = PPOLearnerConfig(), torch.randn(4, 8, dtype=torch.float64)
    ppo_loss(outputs, replace(steps, outputs=before, random=random), (advantage, advantage), config, 0.1)[0].backward()
    assert outputs.grad.isfinite().all()


def test_the_weight_of_entropy_falls_with_the_learning_rate(tmp_path):
    flags = rollout_flags(tmp_path, "--env", MEMORY, "--entropy-weight", "0.5")
    trainer = PPOTrainer(PPOTrainer.configure(flags))
    steps = collect(collector(8, critic=True))
    loss, found = {}, {}
    for share in (1.0, 0.25):
        trainer.optimizer.param_groups[0]["lr"] = share * trainer.config.learner.learning_rate
        loss[share], found = trainer.loss(steps.outputs, steps, steps.reward, torch.ones(4, 8))
    assert float(loss[0.25] - loss[1.0]) == pytest.approx(0.75 * 0.5 * float(found["losses/entropy"]), abs=1e-4)


@pytest.mark.parametrize("kind", [PQNTrainer, PPOTrainer])
@pytest.mark.parametrize("device", [
    "cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
])  # fmt: skip
def test_a_captured_iteration_equals_an_eager_one(tmp_path, monkeypatch, kind, device):
    """All that it changes it takes in and gives out, so that a graph can stand for it."""
    flags = f"--env {MEMORY} --time-limit 6 --prediction-weight 1 --device {device}".split()
    flags += ["--sticky-exponent", "2"] if kind is PQNTrainer else []
    eager, captured = (kind(kind.configure(rollout_flags(tmp_path, *flags))) for _ in range(2))
    for each in (eager, captured):
        each.begin()
    graph = replace(captured.config, compute=replace(captured.config.compute, engine="cudagraph"))
    monkeypatch.setattr(captured, "config", graph)
    if device == "cpu":
        monkeypatch.setattr(rollout_trainer, "Captured", in_place_of_a_graph(captured))
    captured.capture()
    for _ in range(2):
        eager.iterate()
        captured.iterate()
    assert captured.captured is not None and captured.updates == eager.updates
    for name, value in eager.weights().items():
        torch.testing.assert_close(captured.weights()[name], value, rtol=0, atol=0 if device == "cpu" else 1e-5)
    torch.testing.assert_close(captured.carried(), eager.carried())
    assert captured.scalars() == pytest.approx(eager.scalars())


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
    steps, both = collect(trainer.collector), (trainer.network, trainer.evaluated)
    own, averaged = (q_lambda(steps, each.sequence(*steps.inputs)[0], trainer.config.learner) for each in both)
    assert torch.equal(trainer.targets(steps)[0], averaged) and not torch.allclose(own, averaged)


def test_an_iteration_takes_from_schedules_what_is_due_at_its_steps_and_updates(tmp_path):
    """Four environments, 16 steps, 2 x 2 updates; of 512 steps in all."""
    more = "--epsilon-steps 1000 --final-lr-fraction 0 --learning-rate 1"
    trainer = PQNTrainer(PQNTrainer.configure(rollout_flags(tmp_path, "--env", MEMORY, *more.split())))
    for trainer.iterations, trainer.updates in ((3, 12), (5, 20)):
        found, step = trainer.schedule(), 64 * trainer.iterations
        assert found.epsilon.tolist() == pytest.approx([1 - 0.9 * (step + 4 * t) / 1000 for t in range(16)])
        decay = [(1 + n) / (10 + n) for n in range(trainer.updates + 1, trainer.updates + 5)]
        assert found.decay.tolist() == pytest.approx(decay)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1 - step / 512)
