"""Which parameters a preset's training never reaches: exactly those of a table, each with its reason."""

import re
from dataclasses import replace

import pytest
import torch

from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec
from dqn_memory.replay import Replay
from dqn_memory.train import QTrainer, sample, td_loss

K, WIDTH, ACTIONS, TOKENS = 6, 32, 3, 12
SPEC = ObservationSpec("discrete", (2,), TOKENS, torch.uint8)
PRESETS = ("car-flag", "demo", "memory-7x7", "prior-adaptive", "prior-gaussian", "prior-gaussian-adaptive", "short")
SOON = ("dtqn4", "dbgfqn", "gtrxl_memory", "mamba_layer")  # of the paper's setting; the others are long
CASES = [
    *((None, name) for name in ARCHITECTURES),
    *(pytest.param("paper", name, marks=() if name in SOON else pytest.mark.long) for name in ARCHITECTURES),
    *((preset, None) for preset in (*PRESETS, "prior-local")),
    (None, "dbgfqn, 1 layer"), (None, "dblfqn, 1 layer"), ("paper", "dbrfqn, 1 layer"),
]  # fmt: skip

UNITS = WIDTH // 2  # of one direction
ALWAYS, ALIKE, LENGTHS = "always", "keys are not turned", "lengths are known"
NEWEST = "the last layer is trained at newest positions alone"


def never_drawn(memory):
    """The rows of theta that no position between the first and the last of a context draws."""
    rows = torch.arange(len(memory.theta.weight))
    return ~torch.isin(rows, memory.order[1:K])


# parameter: when, which part of it (or a function of its block) has no gradient, why
TABLE = {
    r"observation_embedding\.table\.weight": (
        LENGTHS, slice(TOKENS - 1, None), "no real position sees the token of padding"
    ),
    r".*project_in\.bias": (
        ALIKE, slice(WIDTH, 2 * WIDTH), "the keys' bias adds the same to all scores of a query; softmax takes it away"
    ),
    r".*behind\.weight_hh_l0": (
        NEWEST, slice(None), "the backward direction begins at the newest position: it takes one step, from zero"
    ),
    r".*behind\.(weight_ih|bias_ih|bias_hh)_l0, LSTM": (
        NEWEST, slice(UNITS, 2 * UNITS), "likewise; its forget gate has nothing to forget"
    ),
    r".*theta\.weight": (
        ALWAYS, never_drawn, "each position draws one row; that of the first calibrates a memory of zeros"
    ),
    r".*block\.leave\.weight": (
        ALWAYS,
        lambda memory: (slice(None), slice(1, None, 2 * memory.context)),
        "the first frequency is a whole turn a position, so its traces have no imaginary part until training moves it",
    ),
    r".*\.bias, SLSTM": (
        ALWAYS, slice(WIDTH, 2 * WIDTH), "the input gates' bias makes c and n so many times larger; h is their ratio"
    ),
}  # fmt: skip


def case(preset, architecture):
    config = QTrainer.configure([*(["--config", preset] if preset else []), "--env", "Gridverse/Memory-5x5-v0"])
    network, name = config.network, architecture or config.network.architecture
    name, _, one = name.partition(", ")
    none = ARCHITECTURES[name].memory == "none" and not ARCHITECTURES[name].attention
    layers = 1 if one else None if none else network.layers
    prior = replace(network.prior, mu=2.0, span=3.0, local_window=2)
    size = {"layers": layers, "width": WIDTH, "heads": 4, "context": K}
    network = replace(network, architecture=name, dropout=0.0, initialisation="torch", prior=prior, **size)
    return network, replace(config.learner, batch_size=12, n_step=min(config.learner.n_step, K))


def drawn_replay(seed):
    """Episodes of random tokens, whose actions, rewards and lengths are random too."""
    draws = torch.Generator().manual_seed(seed)
    replay, time = Replay(SPEC, ACTIONS, 2, 1_000, torch.device("cpu")), torch.zeros(2, dtype=torch.int64)
    observation, previous = torch.randint(TOKENS - 1, (2, 2), generator=draws), torch.full((2,), ACTIONS)
    for _ in range(200):
        following = torch.randint(TOKENS - 1, (2, 2), generator=draws)
        action, done = torch.randint(ACTIONS, (2,), generator=draws), torch.rand(2, generator=draws) < 0.1
        replay.add(
            observation=observation, next_observation=following, action=action, previous_action=previous,
            reward=torch.randn(2, generator=draws), terminated=done, done=done, time=time,
        )  # fmt: skip
        observation, previous = following, torch.where(done, ACTIONS, action)
        time = torch.where(done, 0, time + 1)
    return replay


def built(config):
    """A network whose first values are of float64, too: a whole turn rounded to float32 is not quite one."""
    torch.set_default_dtype(torch.float64)
    try:
        return config.build(SPEC, ACTIONS)
    finally:
        torch.set_default_dtype(torch.float32)


def never_reached(config: NetworkConfig, learner):
    """By parameter, where (a mask) its gradient was below 1e-12 of the largest one in every draw."""
    zero = {}
    # gradients of decays far below others are small by chance; more draws tell them from 0
    for seed in range(8 if "mamba" in config.architecture else 2):
        torch.manual_seed(seed)
        network, target = (built(config) for _ in range(2))
        for parameter in network.parameters():
            if not parameter.any():  # zeros would hide what depends on them
                torch.nn.init.normal_(parameter)
        learner.check(network)
        batch = sample(
            drawn_replay(seed), learner, K, learner.contexts_per_window(network), torch.Generator().manual_seed(seed)
        )
        loss = td_loss(network, target, batch, learner)[0] + network.regularisation()
        known = dict(network.named_parameters())
        found = torch.autograd.grad(loss, known.values(), allow_unused=True)
        top = max(each.abs().max() for each in found if each is not None)
        for (name, parameter), each in zip(known.items(), found, strict=True):
            small = torch.ones_like(parameter, dtype=torch.bool) if each is None else each.abs() <= 1e-12 * top
            zero[name] = zero.get(name, small) & small
    return zero


def expected(network, learner):
    """By parameter, the mask that the table gives."""
    newest = learner.trains_newest(network)
    holds = {ALWAYS: True, ALIKE: True, LENGTHS: learner.lengths, NEWEST: newest}
    masks = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in network.named_parameters()}
    for name, mask in masks.items():
        module = network.get_submodule(name.rpartition(".")[0])
        block = network.get_submodule(name.rpartition(".")[0].rpartition(".")[0])
        last = name.startswith(f"layers.{len(network.layers) - 1}.")
        full = f"{name}, {type(module).__name__}"
        holds[ALIKE] = not getattr(network.get_submodule(name.rpartition(".project_in")[0]), "rotary", False)
        for pattern, (when, part, _) in TABLE.items():
            meant = re.fullmatch(pattern, full) or re.fullmatch(pattern, name)
            if meant and holds[when] and (last or when != NEWEST):
                mask[part(block) if callable(part) else part] = True
    return masks


@pytest.mark.parametrize(("preset", "architecture"), CASES, ids=str)
def test_training_reaches_all_but_what_the_table_says(preset, architecture, monkeypatch):
    # a ReLU that is silent here may speak elsewhere; a softplus is never silent
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x, inplace=False: torch.nn.functional.softplus(x))
    config, learner = case(preset, architecture)
    found, known = never_reached(config, learner), expected(config.build(SPEC, ACTIONS), learner)
    ours, theirs = ({name: int(mask.sum()) for name, mask in each.items() if mask.any()} for each in (found, known))
    assert ours == theirs
    assert all(torch.equal(found[name], mask) for name, mask in known.items())


UNTRAINED, SHORT = "backward recurrence of the last layer keeps", "only every 10,000 of 12,438 updates"


@pytest.mark.parametrize(("flags", "said"), [
    (["--architecture", "dbgfqn"], [UNTRAINED, SHORT]),
    (["--architecture", "dblfqn", "--layers", "1", "--target-update-every", "4000"], [UNTRAINED]),
    (["--architecture", "dbgfqn", "--loss-positions", "all"], [SHORT]),
    (["--architecture", "dgfqn", "--config", "short"], []),
])  # fmt: skip
def test_a_run_says_what_it_cannot_train_and_that_it_is_short(flags, said, capsys, tmp_path):
    QTrainer.start(["--env", "Gridverse/Memory-5x5-v0", *flags, "--run", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert [words for words in (UNTRAINED, SHORT) if words in out] == said
