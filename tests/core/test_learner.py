"""The update: targets by hand, masks, buckets, and the agreement of training with acting."""

from dataclasses import replace

import pytest
import torch
from helpers import filled_replay, network
from run_folders import error_of

import dqn_memory.train as losses
from dqn_memory.actors import WindowActor
from dqn_memory.blocks import PriorConfig
from dqn_memory.config import LearnerConfig
from dqn_memory.network import trimmed_length
from dqn_memory.network_trainer import average_parameters, averaging
from dqn_memory.runs.base_config import set_tf32
from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.optimizers import restore_optimizer, set_learning_rate
from dqn_memory.train import make_optimizer, make_update, sample, td_loss

CONFIG = LearnerConfig(batch_size=16, gamma=0.9)
K = 6


def batches(config, ends=None, lengths=((3, 9, 4, 2), (5, 5, 8)), context=K, **more):
    replay = filled_replay([list(row) for row in lengths])
    return sample(replay, config, context, ends, torch.Generator().manual_seed(0), **more)


def pair(architecture="dtqn4", **changes):
    """A network and its target."""
    return tuple(network(architecture, seed, **changes) for seed in (0, 1))


def acting_value(net, target, windows, row, end, config):
    """V of what acting sees at observation `end` of a window that starts its episode: the last K observations."""
    start = max(0, end - K + 1)
    observation = windows.observation[row : row + 1, start : end + 1]
    previous = windows.previous_action[row : row + 1, start : end + 1]
    ours, theirs = (n(observation, previous)[0, -1] for n in (net, target))
    return theirs[ours.argmax()] if config.double else theirs.max()


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("architecture", "weight", "tails"), [
    ("dtqn4", 1.0, 1.0), ("dtqn4", 1.0, 0.25), ("dgfqn", 7.0, 1.0), ("drqn", 1.0, 0.5), ("dbgfqn", 1.0, 0.25),
    ("dblfqn", 7.0, 1.0), ("adrqn", 1.0, 1.0),
])  # fmt: skip
def test_targets_are_the_values_that_acting_would_compute(architecture, weight, tails, double, n_step):
    config = replace(CONFIG, n_step=n_step, double=double, terminal_weight=weight, tail_fraction=tails)
    changes = {"layers": 1}  # so that all positions are trained
    if architecture == "adrqn":
        changes |= {"action_embedding": 2, "initialisation": "torch"}  # so large that an action shows
    net, target = pair(architecture, **changes)
    assert config.contexts_per_window(net) is None
    windows = batches(config, trim=False)
    expected, count = 0.0, 0
    with torch.no_grad():
        for row in range(config.batch_size):
            length = int(windows.lengths[row])
            for j in range(length):
                n = min(n_step, length - j)
                goal = sum(config.gamma**i * windows.reward[row, j + i].double() for i in range(n))
                if not (j + n == length and windows.terminated[row, length - 1]):
                    goal = goal + config.gamma**n * acting_value(net, target, windows, row, j + n, config)
                q = net(windows.observation[row : row + 1, : j + 1], windows.previous_action[row : row + 1, : j + 1])
                share = weight if windows.terminated[row, j] else 1.0
                if j + n == K and not windows.terminated[row, K - 1]:  # bootstraps behind the window
                    share = 1 / tails if row < tails * config.batch_size else 0.0
                expected += share * (q[0, -1, windows.action[row, j]] - goal) ** 2
                count += share
    loss, _ = td_loss(net, target, windows, config)
    assert loss.item() == pytest.approx(expected.item() / count, rel=1e-5)


def test_steps_behind_the_window_weigh_one_on_average_beside_terminal_windows():
    """The rows that keep their tails must not be those that were drawn to end at a terminal step."""
    config = replace(CONFIG, tail_fraction=0.25, terminal_fraction=0.5)
    replay, generator, weights = filled_replay([[30, 30], [30, 30]]), torch.Generator().manual_seed(0), []
    for _ in range(400):
        windows = sample(replay, config, K, None, generator)
        behind = (windows.lengths == K) & ~windows.terminated[:, -1]
        weights.append(losses._tail_weight(windows, 4, 1)[behind, -1])
    assert 0.85 < float(torch.cat(weights).mean()) < 1.15


@pytest.mark.parametrize(("updates", "weight"), [(0, 16.0), (50, 4.0), (75, 2.0), (100, 1.0), (1000, 1.0)])
def test_the_weight_of_terminal_steps_falls_by_equal_factors(updates, weight):
    config = replace(CONFIG, terminal_weight=16.0, terminal_weight_updates=100)
    assert float(batches(config, updates=updates).terminal_weight) == pytest.approx(weight)
    assert replace(config, terminal_weight_updates=0).terminal_weight_at(updates) == 16.0


@pytest.mark.parametrize(("architecture", "ends", "full"), [("dgfqn", None, 17), ("dbgfqn", 4, 16)])
def test_a_bucketed_update_equals_the_full_width_one(architecture, ends, full):
    config, (net, target) = replace(CONFIG, batch_size=32, n_step=2), pair(architecture, context=16)
    losses, gradients = [], []
    for trim in (True, False):
        windows = batches(config, ends, ((3, 2, 4, 3, 1, 4), (4, 4, 2, 3, 4)), 16, trim=trim)
        assert windows.observation.shape[1] == (8 if trim else full)
        loss, _ = td_loss(net, target, windows, config)
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, list(net.parameters())))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    # rows of the position table behind the bucket have no gradient in either
    torch.testing.assert_close(*gradients, atol=1e-10, rtol=1e-5)


def test_a_network_that_reads_padding_reads_as_much_of_it_as_acting_may():
    blind = replace(CONFIG, lengths=False)
    assert batches(blind, None, ((3, 2, 4, 3, 1, 4),), 16).action.shape[1] == 16


def test_buckets_leave_room_for_the_last_observation():
    assert [trimmed_length(n + 1, 50) for n in (1, 7, 8, 15, 16, 31, 32, 50)] == [8, 8, 16, 16, 24, 32, 50, 50]
    assert trimmed_length(4, 6) == 6


def test_padding_does_not_reach_the_masked_loss():
    net, target = pair()
    windows = batches(CONFIG, trim=False)
    behind = torch.arange(K + 1) > windows.lengths.unsqueeze(1)
    garbage = torch.where(behind.unsqueeze(2), torch.randint_like(windows.observation, 0, 39), windows.observation)
    for config in (CONFIG, replace(CONFIG, mask_padding=False)):
        both = [replace(windows, observation=each) for each in (windows.observation, garbage)]
        plain, spoiled = (float(td_loss(net, target, each, config)[0]) for each in both)
        # the published loss does see it
        assert (plain == pytest.approx(spoiled, rel=1e-9)) is config.mask_padding


def test_the_observation_after_the_last_step_is_no_padding():
    (net, target), windows, seen = pair(), batches(CONFIG, trim=False), []
    net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2]))
    td_loss(net, target, windows, replace(CONFIG, loss_positions="all"))
    assert torch.equal(seen[0], (windows.lengths + 1).clamp(max=K)) and (windows.lengths < K).any()


def test_shifted_targets_forget_the_first_observation_and_full_ones_do_not(monkeypatch):
    """A cue that only the first observation shows reaches a full target, never a shifted one (spec 1.4)."""
    net, target = pair()
    windows = batches(CONFIG, lengths=((5, 5, 5, 5),), trim=False)
    cue = windows.observation.clone()
    cue[:, 0] = (cue[:, 0] + 7) % 39
    goals, original = [], losses._weighted_loss
    monkeypatch.setattr(
        losses, "_weighted_loss", lambda q, batch, goal, *rest: (goals.append(goal), original(q, batch, goal, *rest))[1]
    )

    def last_value(config, observation):
        td_loss(net, target, replace(windows, observation=observation), config)
        return goals[-1]

    shifted = replace(CONFIG, targets="shifted")
    real = torch.arange(K) < windows.lengths.unsqueeze(1)
    alive, ended = real & ~windows.terminated, real & windows.terminated
    assert ended.any() and torch.allclose(last_value(shifted, cue)[ended].float(), windows.reward[ended])
    assert torch.equal(last_value(shifted, windows.observation)[alive], last_value(shifted, cue)[alive])
    full = (last_value(CONFIG, windows.observation) - last_value(CONFIG, cue)).abs()
    assert (full[alive] > 1e-9).all()


@pytest.mark.parametrize("architecture", ["dbgfqn", "dblfqn", "dgfqn"])
def test_ends_train_exactly_the_q_values_that_acting_computes(architecture):
    """Bidirectional default: Q at each acting step equals Q in training for the same prefix."""
    net, length = network(architecture, 0), 10
    replay = filled_replay([[length]])
    batch = replay.contexts(torch.arange(length), K, 0.9)
    trained = net.at(batch.observation, batch.previous_action, batch.lengths, batch.lengths - 1)
    after = (batch.next_observation, batch.next_previous_action, batch.next_lengths)
    following = net.at(*after, batch.next_lengths - 1)
    actor = WindowActor(net, 1, torch.device("cpu"))
    for t in range(length):
        cell = {name: values[t] for name, values in replay.cells.items()}
        actor.observe(cell["observation"], cell["previous_action"].long(), torch.tensor([t == 0]))
        acted = actor.outputs()
        assert torch.allclose(acted[0], trained[t], atol=1e-12)
        assert not t or torch.allclose(acted[0], following[t - 1], atol=1e-12)


@pytest.mark.parametrize("architecture", ["dtqn4", "dbgfqn", "drqn", "adrqn", "gtrxl", "dqn", "attn", "darqn"])
def test_an_update_lowers_the_loss_on_its_batch(architecture):
    net, target = pair(architecture, **({"action_embedding": 2} if architecture == "adrqn" else {}))
    config = replace(CONFIG, learning_rate=5e-3)
    ends = config.contexts_per_window(net)
    update = make_update("eager", net, target, make_optimizer(net, config), config)
    batch = batches(config, ends)
    first = float(update(batch)["losses/td_loss"])
    for _ in range(80):
        metrics = update(batch)
    assert float(metrics["losses/td_loss"]) < 0.7 * first
    assert all(torch.isfinite(value) for value in metrics.values())


def test_priors_have_their_own_rate_and_regulariser():
    prior = PriorConfig(kind="adaptive", span=3.5, max_span=5.0, regulariser="l1", regulariser_weight=0.025)
    net, target = pair("dtqn1", prior=prior)
    for rate in (0.0, 0.1):
        config = replace(CONFIG, prior_learning_rate=rate)
        optimizer = make_optimizer(net, config)
        assert [group["lr"] for group in optimizer.param_groups] == [CONFIG.learning_rate, rate]
    before = net.memory_scalars()
    metrics = make_update("eager", net, target, optimizer, config)(batches(config))
    assert float(metrics["losses/regularisation"]) == pytest.approx(0.025 * 3.5 * 2 * 2, rel=1e-6)
    moved = [abs(before[name] - value) for name, value in net.memory_scalars().items()]
    assert len(moved) == 4 and min(moved) > 0.03


def test_step_sizes_fall_on_a_straight_line_and_keep_their_ratio():
    net = network("dtqn1", 0, prior=PriorConfig(kind="gaussian", mu=2.0))
    config = replace(CONFIG, learning_rate=1e-3, prior_learning_rate=1e-2, final_lr_fraction=0.1)
    for capturable in (False, True):
        optimizer = make_optimizer(net, config, capturable)
        for share, left in ((0.0, 1.0), (0.5, 0.55), (1.0, 0.1), (2.0, 0.1)):
            set_learning_rate(optimizer, config.final_lr_fraction, share)
            assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx([1e-3 * left, 1e-2 * left])


@pytest.mark.parametrize(("changes", "words"), [
    ({"loss_positions": "ends:0"}, "--loss-positions 'ends:0'"),
    ({"loss_positions": "some"}, "--loss-positions 'some'"),
    ({"loss_positions": "last", "targets": "shifted"}, "--targets shifted needs --loss-positions all"),
    ({"n_step": 3, "targets": "shifted"}, "--n-step 3 needs --targets full"),
    ({"loss_positions": "last", "mask_padding": False}, "--mask-padding"),
    ({"tail_fraction": 0.5, "loss_positions": "last"}, "0.5 leaves steps out of windows; it needs --loss-pos"),
    ({"tail_fraction": 0.5, "targets": "shifted"}, "--tail-fraction 0.5 leaves steps out"),
    ({"tail_fraction": 0.5, "mask_padding": False}, "--tail-fraction 0.5 leaves steps out"),
    ({"terminal_weight": 4.0, "loss_positions": "last"}, "--terminal-weight 4.0 .* needs --loss-positions all"),
])  # fmt: skip
def test_combinations_that_cannot_work_are_one_sentence(changes, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        replace(CONFIG, **changes).check(network("dtqn4", 0))


def test_default_positions_follow_the_network():
    causal, one, two = network("dtqn4", 0), network("dbgfqn", 0, layers=1), network("dbgfqn", 0, layers=2)
    assert [CONFIG.contexts_per_window(net) for net in (causal, one, two)] == [None, None, 4]
    assert replace(CONFIG, loss_positions="last").contexts_per_window(causal) == 1
    replace(CONFIG, loss_positions="prefixes").check(one)
    replace(CONFIG, n_step=K).check(causal)  # as long as a window
    assert "--targets shifted needs --loss-positions all" in error_of(replace(CONFIG, targets="shifted").check, one)


@pytest.mark.parametrize("as_decay", [float, torch.tensor])
def test_averaged_weights_follow_the_recursion_and_forget_the_first_ones(as_decay):
    source, average = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    expected = 5.0
    with torch.no_grad():
        average.weight.fill_(expected)
    for number in range(1, 40):
        with torch.no_grad():
            source.weight.fill_(float(number))
        average_parameters(source, average, as_decay(averaging(0.7, number)))
        share = min(0.7, (1 + number) / (10 + number))
        expected = share * expected + (1 - share) * number
    assert average.weight.item() == pytest.approx(expected, rel=1e-5)


def test_padding_that_is_trained_has_nothing_to_expect():
    """With whole targets too; the published ones are 0 there as well."""
    config = replace(CONFIG, mask_padding=False, lengths=False, n_step=2)
    windows = batches(config, trim=False)
    value = torch.rand(config.batch_size, K + 1, generator=torch.Generator().manual_seed(0))
    goal = losses.n_step_target(windows, value, config)
    padding = torch.arange(K) >= windows.lengths.unsqueeze(1)
    assert padding.any() and not goal[padding].any() and goal[~padding].ne(0).any()


@pytest.mark.parametrize("on_cuda", [True, False])
def test_loaded_step_sizes_are_where_a_graph_reads_them(on_cuda):
    """A checkpoint is read onto a CPU; a graph captures the address of the step size beside the parameters."""
    net = network("dtqn1", 0)
    saved = make_optimizer(net, CONFIG, capturable=on_cuda).state_dict()
    optimizer = make_optimizer(net, CONFIG, capturable=True)
    for group in optimizer.param_groups:
        group["params"] = [torch.nn.Parameter(each.detach().to("meta")) for each in group["params"]]
    restore_optimizer(optimizer, saved)
    assert {(group["lr"].device.type, group["capturable"]) for group in optimizer.param_groups} == {("meta", True)}


def steps(engine, architecture, device="cpu", updates=3, **changes):
    """Losses and last parameters of a few updates on the same batches."""
    net, target = (each.float().to(device) for each in pair(architecture, **changes))
    config = replace(CONFIG, n_step=2, batch_size=8, learning_rate=1e-2)
    optimizer = make_optimizer(net, config, capturable=device == "cuda")
    update = make_update(engine, net, target, optimizer, config)
    replay, generator = filled_replay([[9, 7], [4, 12]]), torch.Generator().manual_seed(0)
    losses = []
    for _ in range(updates):
        batch = sample(replay, config, 6, config.contexts_per_window(net), generator)
        losses.append(float(update(mapped(lambda value: value.to(device), batch))["losses/td_loss"]))
    return losses, [p.detach().cpu() for p in net.parameters()]


def assert_same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-4, rtol=1e-5)


@pytest.mark.long
def test_compiled_updates_equal_eager_ones():
    assert_same(steps("compile", "dtqn4", layers=1), steps("eager", "dtqn4", layers=1))


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["dtqn4", "gtrxl"])
def test_the_compiler_sees_the_loss_in_one_piece(architecture):
    net, target = (each.float() for each in pair(architecture))
    batch = batches(CONFIG, CONFIG.contexts_per_window(net), ((9, 7), (4, 12)))
    whole = torch.compile(td_loss, backend="eager", fullgraph=True)  # a break would raise
    assert torch.equal(whole(net, target, batch, CONFIG)[0], td_loss(net, target, batch, CONFIG)[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("architecture", ["dtqn4", "dgfqn", "dbgfqn", "drqn", "gtrxl"])
def test_captured_updates_equal_eager_ones(architecture):
    set_tf32(False)  # as training does
    eager, captured = (steps(engine, architecture, "cuda", 6) for engine in ("eager", "cudagraph"))
    assert_same(captured, eager)
    assert_same(eager, steps("eager", architecture, "cpu", 6))
