"""The persistent bag: whole pairs from before the window, kept by what Q they promise; nothing by default."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dqn_memory.acting import BagActor
from helpers import NUM_ACTIONS, action_of, filled_replay, network
from run_folders import refused, told
from trained import CARDS, MEMORY, trained

from dqn_memory.actors import WindowActor, make_actor
from dqn_memory.agent import Agent
from dqn_memory.analysis.size import count, forward_operations, gigaflop, part_counts
from dqn_memory.blocks.bag import Bag
from dqn_memory.config import LearnerConfig
from dqn_memory.inspect import main as inspect
from dqn_memory.network import QNetwork
from dqn_memory.runs.metrics import METRICS, read_metrics
from dqn_memory.runs.settings import parse
from dqn_memory.train import TrainConfig, sample, td_loss

N, K, CPU = 3, 6, torch.device("cpu")
LARGE = {"initialisation": "torch", "action_embedding": 2}  # so that every entry and its action show in Q


def steps(rows, length, seed=0):
    """Observations (B, T, 2) and the actions before them (B, T)."""
    draws = torch.Generator().manual_seed(seed)
    observation = torch.randint(39, (rows, length, 2), generator=draws, dtype=torch.uint8)
    return observation, torch.randint(NUM_ACTIONS, (rows, length), generator=draws)


def drawn(bag, config, ends=None):
    replay, draws = filled_replay([[30, 9, 14], [35, 18]]), torch.Generator().manual_seed(0)
    return sample(replay, config, K, ends, draws, bag=bag), torch.rand(1, generator=draws)


def test_without_a_bag_nothing_is_made_or_drawn():
    assert type(make_actor(network(), 2, CPU, "prefix", "window")) is WindowActor
    (plain, after), (bagged, later) = (drawn(size, LearnerConfig()) for size in (0, N))
    assert plain.bag is None and after != later and torch.equal(plain.observation, bagged.observation)


@pytest.mark.parametrize("changes", [{}, {"architecture": "attn"}, {"form": "paper_equations"}, {"head_width": 5}])
def test_parameters_and_operations_are_counted(changes):
    plain, net = network(**changes), network(bag=N, **changes)
    more = 4 * 8**2 + 4 * 8 + 8 * len(next(plain.head.parameters()))
    assert plain.bag is None and count(net).trainable - count(plain).trainable == more
    assert part_counts(net)["head"] - part_counts(plain)["head"] == more
    if net.config.architecture == "attn":  # the counter knows nothing of a GRU in float64
        full = Bag(*steps(1, N), torch.tensor([N]))
        assert forward_operations(net) == round(1e9 * gigaflop(lambda: net(*steps(1, K), None, full)))


@pytest.mark.parametrize("capacity", [10_000, 60])
def test_entries_are_pairs_of_the_same_episode_before_the_window(capacity):
    replay, generator = filled_replay([[9, 30, 5, 20], [40, 24]], capacity), torch.Generator().manual_seed(0)
    drawn, _ = replay.draw(200, K, generator)
    windows, bag = replay.windows(drawn, K, K), replay.bag(drawn, K, 4, generator)
    for row in range(200):
        (episode, start), held = windows.observation[row, 0].tolist(), int(bag.count[row])
        before = int(drawn[row]) // 2 - int(windows.lengths[row]) + 1 - replay.oldest  # columns in the ring
        assert held == min(4, start, before)
        pairs = bag.observation[row, :held].tolist()
        assert {e for e, _ in pairs} <= {episode} and len({t for _, t in pairs}) == held
        assert all(max(0, start - before) <= t < start for _, t in pairs)
        assert bag.previous_action[row, :held].tolist() == [action_of(e, t - 1) if t else NUM_ACTIONS for e, t in pairs]
    assert set(bag.count.tolist()) >= {0, 1, 2, 3, 4}
    contexts = replay.contexts(drawn, K, 0.9, 3)  # observations tell their time
    assert torch.equal(contexts.left, contexts.next_observation[:, 0, 1].int() - contexts.observation[:, 0, 1].int())


def test_every_set_of_entries_is_equally_likely():
    cells = torch.full((20_000,), 10)  # the window is 5 .. 10
    bag = filled_replay([[20]]).bag(cells, K, 2, torch.Generator().manual_seed(0))
    _, counts = bag.observation[..., 1].sort(1).values.unique(dim=0, return_counts=True)
    assert len(counts) == 10 and ((counts - 2000) ** 2 / 2000).sum() < 27.9  # p = 0.001


@pytest.mark.parametrize("architecture", ["dtqn4", "dbgfqn", "dqn", "drqn"])
def test_all_ways_to_read_agree_and_nothing_beyond_the_count_is_read(architecture):
    """An empty bag, that of row 0, is zeros for the head."""
    net = network(architecture, bag=N, initialisation="torch").eval()
    seen, bag, last = steps(4, K), Bag(*steps(4, N, 1), torch.arange(4)), torch.full((4,), K - 1)
    q = net(*seen, None, bag)
    assert torch.allclose(net.at(*seen, None, last, bag), q[:, -1])
    assert torch.equal(net.head(F.pad(net.encode(*seen, None)[0], (0, 8))), q[0])
    assert not torch.isclose(net(*seen)[1:], q[1:]).all(-1).any()
    bag.observation[~bag.held], bag.previous_action[~bag.held] = 7, 0
    assert torch.equal(net(*seen, None, bag), q)
    q[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


CONFIGS = [{}, {"targets": "shifted"}, {"loss_positions": "ends:4"}, {"batch_size": 1}, {"tail_fraction": 0.5}]


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS)
def test_the_compiler_sees_the_loss_in_one_piece(config):
    net, target = (network("dtqn4", seed, bag=N, **LARGE) for seed in (0, 1))
    config = LearnerConfig(n_step=1 + ("loss_positions" in config), **config)
    batch, _ = drawn(N, config, config.contexts_per_window(net))
    whole = torch.compile(td_loss, backend="eager", fullgraph=True)  # a break would raise
    assert torch.allclose(whole(net, target, batch, config)[0], td_loss(net, target, batch, config)[0])


@pytest.mark.parametrize("config", CONFIGS)
def test_every_pass_of_a_loss_reads_the_bag_of_its_windows(config, monkeypatch):
    net, target = (network("dtqn4", seed, bag=N, **LARGE) for seed in (0, 1))
    config = LearnerConfig(n_step=1 + ("loss_positions" in config), **config)
    batch, _ = drawn(N, config, config.contexts_per_window(net))
    read, given = QNetwork.read, []
    monkeypatch.setattr(QNetwork, "read", lambda net, x, bag: given.append(bag) or read(net, x, bag))
    td_loss(net, target, batch, config)
    for bag in given:
        own = batch.bag.first(len(bag.count))
        assert torch.equal(bag.observation[:, :N][own.held], own.observation[own.held])
        rows = (bag.count > own.count).nonzero().squeeze(1)  # what leaves the window stands behind the others
        assert torch.equal(bag.observation[rows, own.count[rows]], batch.observation[rows, 0])
    left = getattr(batch, "left", (batch.lengths == K) * (config.targets == "full"))
    assert torch.equal(given[-1].count, (batch.bag.count + left)[: len(given[-1].count)])


@pytest.mark.parametrize("architecture", ["dtqn4", "dbgfqn"])
@torch.no_grad()
def test_what_stays_is_what_a_loop_over_all_candidates_keeps(architecture):
    net = network(architecture, bag=N, context=4, layers=1, **LARGE).eval()
    actor, (seen, led), chosen, first, bags = BagActor(net, 2, CPU), steps(2, 40), set(), [0, 0], [[], []]
    for t in range(40):
        reset = torch.tensor([t in (0, 17), t in (0, 2)])
        actor.observe(seen[:, t], led[:, t], reset)
        for row in range(2):
            if reset[row]:
                first[row], bags[row], led[row, t] = t, [], NUM_ACTIONS
            if t - first[row] >= 4:
                new, bag = t - 4, bags[row]
                tried = [[*bag[:i], new, *bag[i + 1 :]] for i in range(N)] + [bag] if len(bag) == N else [[*bag, new]]
                window = seen[row : row + 1, new + 1 : t + 1], led[row : row + 1, new + 1 : t + 1]
                trials = [Bag(seen[row, [ids]], led[row, [ids]], torch.tensor([len(ids)])) for ids in tried]
                q = [net.at_every_prefix(*window, None, each) for each in trials]
                best = int(np.argmax([float(each.amax(-1).mean()) for each in q]))
                bags[row], chosen = tried[best], chosen | {best}
            count = int(actor.bag_count[row])
            assert count == len(bags[row]) and torch.equal(actor.bag_action[row, :count], led[row, bags[row]])
            assert torch.equal(actor.bag_observation[row, :count], seen[row, bags[row]])
    assert len(chosen) > 2


def test_an_agent_with_a_bag_plays_and_inspect_refuses_it(tmp_path, capsys):
    run = trained(tmp_path / "run", "--context", "4", "--bag", "4", "--memory-ablation", env=CARDS)
    assert not [line for line in read_metrics(run / METRICS) if "final/recall_distance" in line]  # nor does a run
    assert Agent.load(run).act(np.zeros(10, int), True) < 10 and "--bag of 4" in refused(capsys, [str(run)], inspect)


@pytest.mark.parametrize(("flags", "said"), [
    ("--acting-state episode --architecture drqn", "which --acting-state episode has not"),
    ("--architecture gtrxl_memory", "gtrxl_memory has none"), ("--architecture dqn --heads 3", "does not divide"),
    ("--capacity 190 --context 20", "with its --bag 4"),
])  # fmt: skip
def test_what_cannot_have_a_bag_is_one_sentence(flags, said):
    assert said in told(parse(TrainConfig, ["--env", MEMORY, "--bag", "4", *flags.split()]).check)
