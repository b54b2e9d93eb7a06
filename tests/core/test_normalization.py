"""Observations and rewards normalised by running statistics: their numbers, when they change, and who else has them."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from run_folders import error_of
from trained import MEMORY, in_place_of_a_graph, rollout_flags, training_flags

from dqn_memory import rollouts
from dqn_memory.agent import Agent
from dqn_memory.evaluate import load_network
from dqn_memory.network import NetworkConfig, ObservationSpec
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.rollouts import CapturedIteration
from dqn_memory.runs.folder import Run
from dqn_memory.train import QTrainer

REAL = ObservationSpec("continuous", (3,))
ON = "--normalize-observation", "--normalize-reward"
PENDULUM, POLE = "Control/MaskedPendulum-v0", "Control/CartPole-v0"
FLAGS = {
    PPOTrainer: rollout_flags("run", "--env", PENDULUM, "--time-limit", 12, *ON),
    PQNTrainer: rollout_flags("run", "--env", POLE, "--time-limit", 12, *ON),
    QTrainer: training_flags("run", "--env", POLE, "--time-limit", 12, "--ema-decay", 0.9, *ON),
}
EVERY_TRAINER = pytest.mark.parametrize("kind", FLAGS)


def made(kind, *more):
    trainer = kind(kind.configure([*FLAGS[kind], *map(str, more)]))
    trainer.begin()
    return trainer


def stream(parts, seed=0):
    """Real vectors far from 0, whose components differ in spread; the last does not change."""
    drawn = np.random.default_rng(seed).normal(size=(sum(parts), 3))
    return np.split((drawn * [1e-3, 1, 0] + [1e3, -5, 7]).astype(np.float32), np.cumsum(parts)[:-1])


def test_vectors_are_normalised_by_the_mean_and_spread_of_all_before():
    network = NetworkConfig("gru", normalize_observation=True).build(REAL, 2)
    for seen in (parts := stream([1, 7, 40, 2, 1000])):
        network.observe(torch.from_numpy(seen))
    whole = np.concatenate(parts).astype(np.float64)
    found = network.normalized(torch.from_numpy(whole)).numpy()
    expected = (whole - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-8)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    beyond = torch.tensor([[1e6, -1e6, 7.0]])
    np.testing.assert_allclose(network.normalized(beyond).numpy(), [[10, -10, 0]], atol=1e-3)


def test_a_network_embeds_what_is_normalised():
    """As another network embeds what was normalised before."""
    one, other = (
        NetworkConfig("gru", initialisation="torch", normalize_observation=on).build(REAL, 2).double()
        for on in (True, False)
    )
    other.load_state_dict({name: one.state_dict()[name] for name in other.state_dict()})
    seen = torch.from_numpy(stream([64])[0]).double()
    none = torch.zeros(1, 64, dtype=torch.int64)
    clipped = (seen[None] - 1e3).clamp(-10, 10)
    torch.testing.assert_close(one(seen[None] - 1e3, none), other(clipped, none), rtol=0, atol=1e-6)  # nothing known
    one.observe(seen)
    assert torch.equal(one(seen[None], none), other(one.normalized(seen)[None], none))


@EVERY_TRAINER
def test_networks_know_all_observations_of_the_iterations_before(kind, monkeypatch):
    trainer = made(kind)
    seen, step = [trainer.collector.observation if kind is not QTrainer else trainer.observation], trainer.vector.step
    trainer.vector.step = lambda action: seen.append((after := step(action)).observation) or after
    for _ in range(3):
        trainer.iterate()
        whole = torch.cat(seen[:-1]).double()  # the newest has not been acted on
        for network in {trainer.network, trainer.evaluated}:
            found = network.observation_embedding.norm
            torch.testing.assert_close(found.mean, whole.mean(0), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.variance, whole.var(0, correction=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [PPOTrainer, PQNTrainer])
def test_updates_compute_what_acting_computed(kind):
    """With the statistics of earlier iterations, from a state in mid-episode and through resets."""
    trainer = made(kind)
    trainer.network.double()
    for part in trainer.networks().values():
        part.double()
    trainer.begin()
    trainer.iterate()
    steps, _ = trainer.collector.collect(trainer.read, trainer.choose, torch.zeros(16))
    x, _ = trainer.network.encode_sequence(*steps.inputs)
    torch.testing.assert_close(tuple(trainer.read(x, steps.observation)), tuple(steps.outputs), rtol=0, atol=1e-12)
    assert steps.reset[:, 1:].any() and not steps.reset[:, 0].all()


def test_statistics_stay_as_they_are_until_the_last_update():
    """The first update of an iteration finds the policy that acted, though a whole rollout is new."""
    trainer = made(PPOTrainer, "--epochs", 1, "--random-start-steps", 0)
    learn, metrics = trainer.learn, []
    trainer.learn_once = lambda schedule: metrics.append((found := learn(schedule))[1]) or found
    for _ in range(3):
        trainer.iterate()
        first, last = metrics[-1]["losses/approx_kl"].abs()
        assert first < 1e-9 < last


@EVERY_TRAINER
def test_rewards_are_divided_by_the_spread_of_discounted_returns(kind):
    trainer = made(kind, "--gamma", 0.9)
    steps, step = [], trainer.vector.step
    trainer.vector.step = lambda action: steps.append(step(action)) or steps[-1]
    scaled, returns, counted, running = [], trainer.discounted, [], torch.zeros(4, dtype=torch.float64)
    if kind is not QTrainer:
        collect = trainer.collector.collect
        trainer.collector.collect = lambda *given: scaled.append((found := collect(*given))[0].reward) or found
    for _ in range(20 if kind is QTrainer else 3):  # iterations of one step or of 16
        trainer.iterate()
    for each in steps:
        running = 0.9 * running + each.reward
        counted.append(running)
        running = torch.where(each.done, 0.0, running)
    spread = torch.cat(counted).std(correction=0)
    assert any(each.done.any() for each in steps)
    one = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(returns.scaled(one), (one / spread).clamp(-10, 10).float())
    if scaled:
        last = steps[-1].reward / spread
        torch.testing.assert_close(scaled[-1][:, -1], last.clamp(-10, 10).float())


def test_a_batch_of_the_replay_is_divided_by_the_newest_spread(monkeypatch):
    trainer, batches = made(QTrainer, "--prepopulate", 0), []
    monkeypatch.setattr(trainer, "update", lambda batch: batches.append(batch.reward) or {})
    drawn = trainer.drawing.get_state()
    monkeypatch.setattr(trainer.stats, "count_update", lambda *_: None)
    while not batches:
        drawn = trainer.drawing.get_state()
        trainer.iterate()
    trainer.drawing.set_state(drawn)
    monkeypatch.setattr(trainer.discounted, "scaled", lambda reward, _: batches.append(reward) or reward)
    trainer.learn()
    monkeypatch.undo()
    torch.testing.assert_close(batches[0], trainer.discounted.scaled(batches[1]))


@EVERY_TRAINER
def test_an_agent_is_normalised_as_its_run_was(tmp_path, kind):
    run = tmp_path / "run"
    kind.main([*FLAGS[kind], "--run", str(run)])
    network, config, _ = load_network(run)
    checkpoint, statistics = Run.open(run).load(), network.observation_embedding.norm
    assert config.network.normalize_observation and statistics.count >= 512 - 4
    for part in ("network", "average"):
        assert torch.equal(checkpoint.part(part)["observation_embedding.norm.mean"], statistics.mean)
    agent = Agent.load(run)
    space = agent.interface.raw
    space.seed(0)
    seen = np.stack([space.sample() for _ in range(5)])
    agent.act(seen, np.ones(5, bool))
    reset, first = torch.ones(5, dtype=torch.bool), network.actions.none(5)
    with torch.no_grad():
        if config.acting_state == "episode":
            expected, _ = network.step(torch.from_numpy(seen), first, None, reset)
        else:
            expected = network.at(torch.from_numpy(seen)[:, None], first[:, None], torch.ones(5, dtype=torch.int64))
    np.testing.assert_allclose(agent.q, expected.numpy(), atol=1e-6)


def test_the_target_network_is_copied_with_its_statistics():
    trainer = made(QTrainer)
    before = trainer.target.observation_embedding.norm.mean.clone()
    while trainer.updates < 20:
        assert torch.equal(trainer.target.observation_embedding.norm.mean, before)
        trainer.iterate()
    own, copied = (each.observation_embedding.norm for each in (trainer.network, trainer.target))
    assert torch.equal(own.mean, copied.mean) and torch.equal(own.variance, copied.variance)


@pytest.mark.parametrize("kind", [PPOTrainer, PQNTrainer])
@pytest.mark.parametrize("device", [
    "cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
])  # fmt: skip
def test_a_captured_iteration_carries_statistics_and_returns(monkeypatch, kind, device):
    eager, captured = (made(kind, "--device", device, "--engine", "eager") for _ in range(2))
    if device == "cpu":
        monkeypatch.setattr(rollouts, "Captured", in_place_of_a_graph(captured))
    modules = captured.networks().values()
    captured.learn_once = CapturedIteration(captured.learn, captured.collector, modules, captured.optimizer)
    for _ in range(3):
        eager.iterate()
        captured.iterate()
    exact = 0 if device == "cpu" else 1e-5
    for name, value in eager.weights().items():
        torch.testing.assert_close(captured.weights()[name], value, rtol=exact, atol=exact)
    found, expected = captured.discounted.state_dict(), eager.discounted.state_dict()
    torch.testing.assert_close(found, expected, rtol=exact, atol=exact)


def test_predictions_are_of_normalised_observations():
    """The first two minibatches are one whole rollout; statistics are those of the iteration before."""
    trainer = made(PPOTrainer)
    trainer.iterate()
    normalized, given, targets = deepcopy(trainer.network).normalized, [], []
    collect, loss = trainer.collector.collect, trainer.predictor.loss
    trainer.collector.collect = lambda *args: given.append((found := collect(*args))[0].observation) or found
    trainer.predictor.loss = lambda x, part: targets.append(part.observation) or loss(x, part)
    trainer.iterate()
    found, expected = (each.flatten(0, 1).sort(0).values for each in (torch.cat(targets[:2]), normalized(given[0])))
    assert torch.equal(found, expected) and not torch.equal(
        *(each.flatten(0, 1) for each in (normalized(given[0]), given[0]))
    )


def test_what_cannot_be_normalised_is_one_sentence():
    for spec in (ObservationSpec("discrete", (2,), 9), ObservationSpec("image", (9, 9, 3))):
        assert "--normalize-observation" in error_of(NetworkConfig("gru", normalize_observation=True).build, spec, 2)
    config = PPOTrainer.configure(rollout_flags("run", "--env", MEMORY, "--normalize-reward", "--reward-scale", "None"))
    assert "--reward-scale" in error_of(PPOTrainer, config)
