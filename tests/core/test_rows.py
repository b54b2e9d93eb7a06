"""Observations of several entries and masks of actions, from the environment to the exported agent."""

import json
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import envs
from dqn_memory import action_distributions, inspect, watch
from dqn_memory.api import Agent, evaluate, train
from dqn_memory.network import NetworkConfig, observation_spec
from dqn_memory.ppo import PPOConfig, PPOTrainer
from dqn_memory.runs.base_config import EnvironmentConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.size import count
from dqn_memory.study.collect import count_parameters
from envs.actions import Actions, InterfaceConfig, action_form
from envs.checked import say_once
from envs.checker import check_registered
from envs.core import State, World
from envs.gymnasium import GymnasiumVector
from envs.registry import WORLDS
from envs.rows import Choices, row_encoder
from envs.vector import TensorVector, make_vector

IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
NESTED = spaces.Dict({
    "sight": spaces.Dict({"image": IMAGE, "depth": spaces.Box(0.0, 1.0, (6, 6, 1))}),
    "hands": spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary([2, 2]))),
    "speed": spaces.Box(-np.inf, np.inf, (2, 3)),
    "keys": spaces.MultiDiscrete([3, 5]),
})  # fmt: skip
OBSERVATIONS = {
    "Nested": NESTED, "Pair": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
    "Bytes": spaces.Dict(image=IMAGE, cell=spaces.Discrete(7)), "Vector": spaces.Box(-1.0, 1.0, (2,)),
    "Number": spaces.Discrete(500), "Image": IMAGE,
}  # fmt: skip


def drawn(space, draws):
    """One value of a space, by numpy's generator."""
    if isinstance(space, spaces.Dict):
        return {name: drawn(entry, draws) for name, entry in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(drawn(entry, draws) for entry in space)
    if isinstance(space, spaces.Box):
        return (255 * draws.random(space.shape)).astype(space.dtype) if space.dtype == np.uint8 else (
            draws.random(space.shape, np.float32))  # fmt: skip
    if isinstance(space, spaces.Discrete):
        return int(draws.integers(space.n)) + int(space.start)
    sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
    return draws.integers(sizes).astype(space.dtype)


class Doors(gymnasium.Env):
    """Doors open and close at random, and a step to a closed one raises. `masks`: where they are found."""

    def __init__(self, observations="Vector", actions=None, masks="info", least=1):
        self.observation_space = OBSERVATIONS[observations]
        self.action_space = spaces.Discrete(5) if actions is None else actions
        self.masks, self.least = masks, least
        self.sizes = Choices(self.action_space, False).sizes
        if masks == "function":
            self.action_masks = lambda: np.concatenate(self.open)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._shown()

    def step(self, action):
        values = list(np.ravel(action)) if self.masks != "none" else []
        assert all(flags[value] for value, flags in zip(values, self.open, strict=bool(values))), "a closed door"
        self.time += 1
        return *(seen := self._shown())[:1], float(np.ravel(action)[0] == 1), False, self.time >= 6, seen[1]

    def _shown(self):
        self.open = []
        for size in self.sizes:
            flags = self.np_random.random(size) < 0.4
            flags[self.np_random.permutation(size)[: self.least]] = True
            self.open.append(flags & (self.least > 0))
        mask = np.concatenate(self.open).astype(np.int8)
        return drawn(self.observation_space, self.np_random), {"action_mask": mask} if self.masks == "info" else {}


TWO = spaces.MultiDiscrete([3, 4])
IDS = {
    "Doors-v0": {}, "DoorsFunction-v0": {"masks": "function"}, "DoorsTwo-v0": {"actions": TWO},
    "DoorsNested-v0": {"observations": "Nested"}, "DoorsOpen-v0": {"masks": "none", "observations": "Nested"},
    "DoorsPair-v0": {"masks": "none", "observations": "Pair"}, "DoorsImage-v0": {"observations": "Image"},
    "DoorsNumber-v0": {"observations": "Number"}, "DoorsShut-v0": {"least": 0},
    "DoorsBytes-v0": {"observations": "Bytes"},
}  # fmt: skip
for id, kwargs in IDS.items():
    gymnasium.register(id, Doors, kwargs=kwargs)


@dataclass
class DoorState(State):
    open: torch.Tensor  # (N, 3) bool


class TensorDoors(World):
    """The same on tensors, with a dictionary of a number and a vector."""

    num_actions, reset_draws, step_draws, masks_actions, defines_success = 3, 4, 4, True, False
    observation_space = spaces.Dict(cell=spaces.Box(0, 9, (1,)), near=spaces.Box(0, 1, (2,)))
    runs_on_numpy = True

    def __init__(self, time_limit=6, device="cpu", shut=False):
        super().__init__(time_limit, device)
        self.shut = shut

    def reset(self, u):
        steps, returns = self.counters(len(u))
        return DoorState(self._seen(u), steps, returns, self._open(u))

    def step(self, state, action, u):
        open_now = state.open[[*range(len(action))], action]
        reward = (open_now * 2.0 - 1.0) * (self.nothing + 1)
        after = DoorState(self._seen(u), state.steps + 1, state.returns + reward, self._open(u))
        never = state.steps < 0
        return after, after.observation, reward, never, never

    def mask(self, state):
        return state.open & (state.steps[:, None] < 3) if self.shut else state.open

    def _seen(self, u):
        return u[:, :3].astype(np.float32) if isinstance(u, np.ndarray) else u[:, :3].float()

    def _open(self, u):
        flags = u[:, 1:] < 0.4
        none = ~flags.any(1)
        flags[:, 0] |= none
        return flags

    def frame(self, state, row):
        return np.zeros((4, 4, 3), np.uint8)

    def text(self, state, row):
        return str(state.observation.tolist())


@pytest.fixture(scope="module", autouse=True)
def doors():
    """Register the World for these tests only: others go through all known Worlds."""
    envs.register("Rows/Doors-v0", envs.Entry(f"{__name__}:TensorDoors"))
    yield
    del WORLDS["Rows/Doors-v0"], gymnasium.registry["Rows/Doors-v0"]


SMALL = {
    "total_steps": 256, "memory_ablation": False, "log_every": 0, "evaluate_every": 0, "episodes": 4,
    "final_episodes": 4, "width": 16, "track": ("none",), "threads": 1, "num_envs": 4,
}  # fmt: skip
ROLLOUT = {"rollout_steps": 16, "architecture": "gru"}
WINDOW = {
    "context": 8,
    "learning_starts": 64,
    "batch_size": 8,
    "updates_per_iteration": 1,
    "heads": 2,
    "sticky_exponent": 2.0,
}
TRAINERS = {"ppo": ROLLOUT, "pqn": ROLLOUT, "q_network": WINDOW}


# ---- rows ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["Nested", "Pair", "Bytes"])
def test_a_network_finds_each_entry_in_a_row(name):
    space = OBSERVATIONS[name]
    rows, encode = row_encoder(space)
    given = drawn(space, np.random.default_rng(0))
    row = torch.from_numpy(encode(given))
    assert rows.contains(row.numpy()) and (row.dtype == torch.uint8) == (name == "Bytes")
    spec = observation_spec(rows)
    found = {name: row[place].reshape(part.shape) for (name, _), (place, part) in
             zip(spec.entries, spec.parts, strict=True)}  # fmt: skip
    expected = {
        "Nested": lambda: {
            "hands.0": [given["hands"][0] - 2], "hands.1": given["hands"][1].ravel(), "keys": given["keys"],
            "sight.image": given["sight"]["image"], "sight.depth": given["sight"]["depth"],
            "speed": given["speed"].ravel(),
        },
        "Pair": lambda: {"0": [given[0]], "1": given[1]},
        "Bytes": lambda: {"cell": [given["cell"]], "image": given["image"]},
    }[name]()  # fmt: skip
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name].numpy(), np.asarray(value)) for name, value in expected.items())


def test_every_entry_moves_the_output():
    rows, encode = row_encoder(NESTED)
    network = NetworkConfig("gru", width=16, initialisation="torch").build(observation_spec(rows), 3)
    row, action = torch.from_numpy(encode(drawn(NESTED, np.random.default_rng(0)))), torch.full((1, 1), 3)
    before = network(row[None, None], action)
    for place, _ in network.spec.parts:
        other = row.clone()
        other[place] = torch.where(other[place] > 0, 0, 1).to(row.dtype)
        assert not torch.equal(network(other[None, None], action), before)


def test_an_entry_that_no_network_reads_is_named():
    with pytest.raises(UserError, match=r"'said\.1'.*--observation-key"):
        row_encoder(spaces.Dict(said=spaces.Tuple((spaces.Discrete(2), spaces.Text(4)))))


class Wrong(Doors):
    def __init__(self, given):
        super().__init__("Bytes", masks="none")
        self.given = given

    def _shown(self):
        return self.given, {}


@pytest.mark.parametrize(("given", "words"), [
    ({"cell": 1}, "without the entry 'image'"), ({"cell": 9, "image": IMAGE.low}, "holds 9"), (3, "without the entry"),
    ({"cell": 1, "image": IMAGE.low[0]}, "in the entry 'image' an observation of shape"),
])  # fmt: skip
def test_a_wrong_entry_is_named(given, words):
    with pytest.raises(UserError, match=rf"Wrong: .*{words}.*\(at reset\)|Wrong: reset gives .*{words}"):
        GymnasiumVector(lambda: Wrong(given), 2, 0).reset()


@pytest.mark.long
@pytest.mark.parametrize("id", ["DoorsNested-v0"])
def test_worker_processes_give_the_same_rows(id):
    masked = InterfaceConfig(masks=True)
    here, there = (make_vector(id, 3, 0, interface=masked, workers=workers) for workers in (None, 2))
    same(here.reset(), there.reset())
    legal = here.observation_space.flags
    for _ in range(8):
        flags = torch.from_numpy(here.observation[:, -legal:]).bool() if legal else None
        action = here.actions.random(torch.rand(3, generator=torch.Generator().manual_seed(1)), flags)
        for one, other in zip(vars(here.step(action)).values(), vars(there.step(action)).values(), strict=True):
            same(one, other)
    there.close()


def same(one, other):
    assert torch.equal(one, other)


def test_only_the_real_vectors_of_a_row_are_normalised():
    rows, encode = row_encoder(NESTED)
    config = NetworkConfig("gru", width=16, normalize_observation=True)
    network, draws = config.build(observation_spec(rows), 3), np.random.default_rng(0)
    seen = torch.from_numpy(np.stack([encode(drawn(NESTED, draws)) for _ in range(50)]))
    network.observe(seen)
    found = network.normalized(seen[None])[0]
    for place, part in network.spec.parts:
        if part.kind == "continuous":
            assert torch.allclose(found[:, place].mean(0), torch.tensor(0.0), atol=1e-5)
            assert torch.allclose(found[:, place].std(0, correction=0), torch.tensor(1.0), atol=1e-5)
        else:
            assert torch.equal(found[:, place], seen[:, place])
    with pytest.raises(UserError, match="tokens and images"):
        config.build(observation_spec(row_encoder(OBSERVATIONS["Bytes"])[0]), 3)


# ---- masks -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("space", "given", "flags"), [
    (spaces.Discrete(3), [0, 1, 1], [0, 1, 1]),
    (spaces.Discrete(3), np.array([True, False, True]), [1, 0, 1]),
    (TWO, [1, 0, 1, 0, 0, 1, 1], [1, 0, 1, 0, 0, 1, 1]),
    (TWO, (np.int8([1, 0, 1]), np.int8([0, 0, 1, 1])), [1, 0, 1, 0, 0, 1, 1]),
    (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1)), {"a": np.int8([1, 0]), "b": None}, [1, 0]),
    (spaces.Tuple((TWO, spaces.Discrete(2))), (None, np.int8([0, 1])), [1] * 7 + [0, 1]),
    (spaces.Discrete(3), [0, 1], None), (spaces.Discrete(3), [0, 2, 1], None), (spaces.Discrete(3), "all", None),
    (spaces.MultiBinary(2), [0, 1], None),
])  # fmt: skip
def test_masks_of_all_conventions_are_read(space, given, flags):
    found = Choices(space, False).flags(given)
    assert found is None if flags is None else found.astype(int).tolist() == flags


def test_a_combination_is_legal_if_all_its_parts_are():
    choices, (count, decode) = Choices(TWO, True), (lambda form: (form[0].count, form[1]))(action_form(TWO))
    flags = choices.flags([1, 0, 1, 0, 0, 1, 1])
    legal = {tuple(decode(number).tolist()) for number in range(count) if flags[number]}
    assert legal == {(a, b) for a in (0, 2) for b in (2, 3)}


def test_random_actions_are_uniform_over_the_legal_ones():
    legal = torch.tensor([[False, True, False, True, True]]).expand(30_000, -1)
    drawn = Actions(5).random(torch.rand(30_000, generator=torch.Generator().manual_seed(0)), legal)
    assert torch.allclose(torch.bincount(drawn, minlength=5) / 30_000, torch.tensor([0, 1, 0, 1, 1]) / 3, atol=0.01)


@pytest.mark.parametrize(("kind", "id"), [
    *(("ppo", id) for id in sorted(IDS.keys() - {"DoorsShut-v0"} | {"Rows/Doors-v0"})),
    *(("pqn", id) for id in ("DoorsTwo-v0", "DoorsPair-v0", "Rows/Doors-v0")),
    *(("q_network", id) for id in ("DoorsFunction-v0", "DoorsNested-v0", "Rows/Doors-v0")),
])  # fmt: skip
def test_no_trainer_opens_a_closed_door(kind, id, tmp_path):
    """An environment raises at an illegal action. Random starts, repeated random actions and evaluations included."""
    run, score = train(kind, env=id, run=str(tmp_path / "run"), **SMALL, **TRAINERS[kind])
    assert math.isfinite(score.returns.mean()) and np.isfinite(evaluate(run, episodes=4).score.returns).all()
    if id == "Rows/Doors-v0":  # pays -1 for an illegal action
        assert (score.returns == 6).all()


def masked_trainer(id):
    """A small trainer that obeys masks."""
    config = PPOConfig()
    return PPOTrainer(replace(
        config, environment=replace(config.environment, env=id, num_envs=8, action_masks=True).in_parts(),
        learner=replace(config.learner, rollout_steps=16), network=replace(config.network, width=16),
    ))  # fmt: skip


@pytest.mark.parametrize("id", ["DoorsTwo-v0", "DoorsNested-v0"])
def test_a_report_counts_the_network_that_masks_and_parts_of_actions_make(id):
    trainer, record = masked_trainer(id), SimpleNamespace(summary=None)
    counted = count_parameters(SimpleNamespace(kind="ppo"), None, record, trainer.config)
    assert counted == count(trainer.network).trainable


@pytest.mark.parametrize("id", ["DoorsTwo-v0", "DoorsNested-v0", "Rows/Doors-v0"])
def test_an_update_computes_the_probabilities_of_acting(id):
    trainer = masked_trainer(id)
    trainer.begin()
    rollout, _ = trainer.collector.collect(trainer.read, trainer.choose, torch.zeros(16))
    x, _ = trainer.network.encode_sequence(*rollout.inputs)
    outputs = trainer.read(x, rollout.observation).logits
    new = action_distributions.log_prob(trainer.actions, outputs, rollout.action)
    assert torch.allclose(
        new, action_distributions.log_prob(trainer.actions, rollout.outputs.logits, rollout.action), atol=1e-6
    )
    assert new.isfinite().all() and action_distributions.entropy(trainer.actions, outputs).isfinite().all()
    trainer.iterate()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in trainer.network.parameters())


@pytest.mark.parametrize("outputs", [Actions(3), Actions(0, (3, 2), 1, (0.0,), (1.0,))])
def test_one_legal_action_has_probability_one(outputs):
    flags = outputs.count or sum(outputs.sizes)
    space, _ = row_encoder(spaces.Box(-1.0, 1.0, (2,)), flags=flags)
    network = NetworkConfig("gru", width=16).build(observation_spec(space), outputs)
    row = torch.tensor([0.3, -0.3, *[0, 1, 0, 1, 0][:flags]])
    logits = network(row[None, None], outputs.none(1)[None])[0]
    entropy = action_distributions.entropy(replace(outputs, switches=0, low=(), high=()), logits[:, :flags])
    assert entropy.item() == 0
    action_distributions.log_prob(outputs, logits, action_distributions.best(outputs, logits)).sum().backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in network.parameters())


@pytest.mark.parametrize("id", ["DoorsShut-v0", "Rows/Doors-v0"])
def test_a_state_without_a_legal_action_is_named_with_its_step(id, tmp_path):
    if id == "DoorsShut-v0":
        with pytest.raises(UserError, match=r"DoorsShut-v0: no action is legal, but the episode goes on \(at reset\)"):
            make_vector(id, 2, 0, interface=InterfaceConfig(masks=True)).reset()
        return
    vector = TensorVector(TensorDoors(shut=True), 4, 0)
    vector.reset()
    with pytest.raises(UserError, match=r"TensorDoors: no action is legal.*\(step 3 of an episode\)"):
        for _ in range(4):
            vector.step(torch.zeros(4, dtype=torch.int64))


def test_worlds_tell_their_masks_to_gymnasium():
    check_registered("Rows/Doors-v0")
    env, row = gymnasium.make("Rows/Doors-v0"), gymnasium.make_vec("Rows/Doors-v0", 1)
    assert np.array_equal(env.reset(seed=0)[1]["action_mask"], row.reset(seed=0)[1]["action_mask"][0])
    for _ in range(6):
        info = env.step(0)[4]
        assert info["action_mask"].dtype == np.int8 and info["action_mask"].shape == (3,)


@pytest.mark.parametrize("id", ["Rows/Doors-v0"])
def test_tensors_and_arrays_show_the_same_rows(id):
    made = [TensorDoors(), TensorDoors()]
    made[1].runs_on_numpy = False
    vectors = [TensorVector(world, 5, 3) for world in made]
    same(*(vector.reset() for vector in vectors))
    for _ in range(8):
        steps = [vars(vector.step(torch.ones(5, dtype=torch.int64))) for vector in vectors]
        for name, value in steps[0].items():
            same(value, steps[1][name])


class Unmasked(Doors):
    def step(self, action):
        self.open = [np.ones(5, bool)]
        return super().step(action)


gymnasium.register("DoorsUnmasked-v0", Unmasked, kwargs={"observations": "Vector"})


@pytest.mark.parametrize("obeyed", [None, False])
def test_a_line_says_whether_masks_are_ignored(tmp_path, capsys, obeyed):
    say_once.cache_clear()
    train("ppo", env="DoorsUnmasked-v0", run=str(tmp_path / "run"), action_masks=obeyed, **SMALL, **ROLLOUT)
    assert ("does not obey" in capsys.readouterr().err) == (obeyed is False)


def test_masks_can_be_ignored(tmp_path):
    run, _ = train("ppo", env="DoorsUnmasked-v0", run=str(tmp_path / "run"), action_masks=False, **SMALL, **ROLLOUT)
    agent = Agent.load(run)
    agent.act(np.zeros(2, np.float32), True)
    assert np.isfinite(agent.q).all()


def test_a_run_without_the_setting_goes_on_without_masks(tmp_path, monkeypatch):
    """As a run from before masks were known."""
    monkeypatch.setattr(EnvironmentConfig, "completed", lambda self, *_: self)
    run, _ = train("ppo", env="DoorsUnmasked-v0", run=str(tmp_path / "run"), **SMALL, **ROLLOUT)
    assert "action_masks" not in (run / "config.toml").read_text()
    train("ppo", resume=str(run), total_steps=320)
    assert Agent.load(run).step == 320


def test_unizero_ignores_masks_and_says_so(tmp_path, capsys):
    say_once.cache_clear()
    train(
        "unizero", config="unizero/smoke", env="DoorsUnmasked-v0", run=str(tmp_path / "run"), total_steps=160,
        track=("none",),
    )  # fmt: skip
    assert "does not obey; ppo, pqn and train do" in capsys.readouterr().err


# ---- agents ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["ppo", "q_network"])
@pytest.mark.parametrize("id", ["DoorsNested-v0", "DoorsTwo-v0", "DoorsPair-v0"])
def test_an_agent_acts_in_the_loop_of_its_user(id, kind, tmp_path):
    run, _ = train(kind, env=id, run=str(tmp_path / "run"), **SMALL, **TRAINERS[kind])
    agent, env = Agent.load(run), gymnasium.make(id)
    (observation, info), reset = env.reset(seed=0), True
    for _ in range(14):
        observation, _, _, reset, info = env.step(agent.act(observation, reset, info.get("action_mask")))
        if reset:
            observation, info = env.reset()
    for mode in AutoresetMode:
        vector = gymnasium.make_vec(id, 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
        assert np.isfinite(agent.play(vector, 4, seed=1).returns).all()
    if id != "DoorsPair-v0":
        with pytest.raises(UserError, match="mask is None"):
            agent.act(observation, True)
    else:
        with pytest.raises(UserError, match="without masks"):
            agent.act(observation, True, [1, 1, 1, 1, 1])


class Shut(Doors):
    """No door is open in the last state of an episode, as in finished games; the mask is a dictionary."""

    def __init__(self):
        super().__init__("Pair", spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(2)))

    def step(self, action):
        values = list(action.values())
        assert all(flags[value] for value, flags in zip(values, self.open, strict=True)), "a closed door"
        self.time += 1
        over = self.time >= 3
        observation, info = self._shown(shut=over)
        return observation, 1.0, over, False, info

    def _shown(self, shut=False):
        observation, _ = super()._shown()
        mask = {name: (flags & (not shut)).astype(np.int8) for name, flags in zip("ab", self.open, strict=True)}
        return observation, {"action_mask": mask}


gymnasium.register("DoorsFinished-v0", Shut)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_finished_episodes_need_no_legal_action(mode, tmp_path):
    run, _ = train("ppo", env="DoorsFinished-v0", run=str(tmp_path / "run"), **SMALL, **ROLLOUT)
    agent, kwargs = Agent.load(run), {"autoreset_mode": mode}
    vector = gymnasium.make_vec("DoorsFinished-v0", 2, vectorization_mode="sync", vector_kwargs=kwargs)
    assert (agent.play(vector, 4, seed=1).returns == 3).all()
    assert (agent.play(gymnasium.make("DoorsFinished-v0"), 2).returns == 3).all()


@pytest.mark.parametrize("mask", [1, "all", [[1, 1, 1, 1, 1]], [[1, 1, 1, 1, 1], [0] * 5], [[1] * 5, [0] * 5, [1] * 5]])
def test_wrong_masks_of_a_user_are_one_sentence(mask, tmp_path):
    run, _ = train("ppo", env="Doors-v0", run=str(tmp_path / "run"), **SMALL, **ROLLOUT)
    with pytest.raises(UserError, match="mask is"):
        Agent.load(run).act(np.zeros((2, 2), np.float32), [True, True], mask)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ppo", "q_network"])
def test_masked_runs_are_inspected_and_filmed(kind, tmp_path, monkeypatch):
    run, _ = train(kind, env="Rows/Doors-v0", run=str(tmp_path / "run"), **SMALL, **TRAINERS[kind])
    inspect.main([str(run), "--episodes", "2", "--plugin", __name__])
    text = (run / "inspect" / "inspect.json").read_text()
    facts = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert {None} < {value for row in facts["discrepancy"]["q_window"] for value in row}
    watch.main([str(run), "--video", str(tmp_path / "played.gif"), "--plugin", __name__])
    assert (tmp_path / "played.gif").stat().st_size > 1_000


@pytest.mark.long
@pytest.mark.parametrize(("kind", "id"), [("ppo", "DoorsNested-v0"), ("pqn", "DoorsPair-v0"), ("ppo", "DoorsTwo-v0")])
def test_an_exported_agent_gives_the_same_numbers(kind, id, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run, _ = train(kind, env=id, run=str(tmp_path / "run"), **SMALL, **TRAINERS[kind])
    agent = Agent.load(run)
    archive, onnx = agent.export(tmp_path / "agent")
    extra = {"interface": ""}
    program, session = torch.export.load(archive, extra_files=extra).module(), onnxruntime.InferenceSession(str(onnx))
    environment, facts = agent.config.environment, json.loads(extra["interface"])
    vector = make_vector(id, 3, 0, interface=environment.interface)
    assert facts["flags"] == vector.observation_space.flags
    observation, reset = vector.reset(), torch.ones(3, dtype=torch.bool)
    policy = agent._loaded.policies["greedy"](3) if kind == "ppo" else agent._loaded.start(3)
    action = torch.zeros_like(vector.actions.none(3))
    state = [torch.zeros_like(each) for each in policy.actor.state_tensors]
    for _ in range(8):
        chosen, q = policy.act(observation, reset)
        inputs = [observation, action, reset, *state]
        results = program(*inputs)
        names = [each.name for each in session.get_inputs()]
        other = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
        assert torch.allclose(results[0], q, atol=1e-5) and np.allclose(other[0], q, atol=1e-5)
        assert torch.equal(results[1], chosen) and np.array_equal(other[1], chosen)
        action, state = results[1], list(results[2:])
        step = vector.step(chosen)
        observation, reset = step.observation, step.done


@pytest.mark.parametrize(("kind", "id"), [("ppo", "DoorsNested-v0"), ("q_network", "Rows/Doors-v0")])
def test_a_resumed_run_equals_an_uninterrupted_one(kind, id, tmp_path):
    settings = SMALL | {"final_lr_fraction": 1.0, "checkpoint_every": 128, "env": id} | TRAINERS[kind]
    settings |= {"normalize_observation": True}
    whole, _ = train(kind, run=str(tmp_path / "whole"), **settings)
    part, _ = train(kind, run=str(tmp_path / "part"), **(settings | {"total_steps": 128}))
    train(kind, resume=str(part), total_steps=256)
    ours, theirs = (Agent.load(each)._loaded.start(1).actor.network.state_dict() for each in (whole, part))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
