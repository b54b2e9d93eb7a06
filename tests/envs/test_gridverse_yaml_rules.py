"""What holds in every step of every stock file, and each function of the format by hand."""

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from yaml_helpers import CPU, LIMIT, grid, ground, many, score, uniform, uniforms

from envs.core import where
from envs.gridverse.objects import (
    BEACON,
    DOOR,
    EXIT,
    KEY,
    OBSTACLE,
    RED,
    TELEPOD,
    WALL,
    blocks_movement,
    kinds,
    pack,
)
from envs.gridverse.rules import FORWARD, at
from envs.gridverse.world import scene_of
from envs.gridverse.yaml.parts import MoveObstacles, Teleport
from envs.gridverse.yaml.world import RULES, stock_files
from envs.registry import make_world

NAMES = sorted(stock_files())
WORLDS = {name: make_world("Gridverse/Yaml-v0", path=name) for name in NAMES}


def play(world, count, steps, seed):
    """Yields (before, action, after, observation, reward, terminated); rows that have ended start again."""
    generator = torch.Generator().manual_seed(seed)

    def draw(width):
        return torch.rand(count, width, dtype=torch.float64, generator=generator)

    state = world.reset(draw(world.reset_draws))
    for _ in range(steps):
        action = torch.randint(world.num_actions, (count,), generator=generator)
        after, observation, reward, terminated, _ = world.step(state, action, draw(world.step_draws))
        yield state, action, after, observation, reward, terminated
        state = where(terminated, world.reset(draw(world.reset_draws)), after)


def amount(state, kind):
    return (kinds(state.cells) == kind).sum(1)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("name", NAMES)
def test_what_every_step_keeps(name, seed):
    world = WORLDS[name]
    solid = torch.zeros(world.height, world.width, dtype=torch.bool)
    solid[[0, -1]] = solid[:, [0, -1]] = True
    for before, _, after, observation, reward, terminated in play(world, 8, 25, seed):
        for kind in (WALL, EXIT, BEACON, TELEPOD, DOOR):
            assert torch.equal(kinds(before.cells) == kind, kinds(after.cells) == kind)
        assert (after.cells[:, solid.flatten()] == pack(WALL)).all()
        assert torch.equal(amount(before, OBSTACLE), amount(after, OBSTACLE))
        assert torch.equal(*(amount(each, KEY) + (kinds(each.held) == KEY) for each in (before, after)))
        assert not blocks_movement(at(after.cells, after.position)).any()
        assert (terminated | (kinds(at(after.cells, after.position)) != EXIT)).all()
        assert world.observation_space.contains(observation[0].numpy())
        assert reward.dtype == torch.float64 and (reward.abs() < 9).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_n_is_n_batches_of_one(name):
    world, count = WORLDS[name], 5
    start, moves = uniforms(count, world.reset_draws), uniforms(12 * count, world.step_draws + 1, 1)
    together = world.reset(start)
    alone = [world.reset(start[row : row + 1]) for row in range(count)]
    for u in moves.split(count):
        action = (u[:, 0] * world.num_actions).long()
        together, _, reward, *_ = world.step(together, action, u[:, 1:])
        for row in range(count):
            alone[row], _, single, *_ = world.step(alone[row], action[row : row + 1], u[row : row + 1, 1:])
            assert torch.equal(single[0], reward[row])
            for key, value in vars(alone[row]).items():
                assert torch.equal(value[0], getattr(together, key)[row]), key


def test_obstacles_move_one_after_the_other_to_floor_only():
    lines = ("#####", "#OO^#", "##.##", "#####")
    before = many(grid(*lines), 20_000)
    after = MoveObstacles(4, 5, 2, CPU)(before, before.position, uniforms(20_000, 2))
    found = Counter(tuple(row.nonzero()[:, 0].tolist()) for row in kinds(after.cells) == OBSTACLE)
    # The first has nowhere to go; the second goes down or onto the agent's floor.
    assert score(found, uniform([(6, 8), (6, 12)])) < LIMIT
    lines = ("#####", "#.O.#", "#.O.#", "#####")
    before = many(grid(*lines), 20_000)
    after = MoveObstacles(4, 5, 2, CPU)(before, before.position, uniforms(20_000, 2))
    found = Counter(tuple(row.nonzero()[:, 0].tolist()) for row in kinds(after.cells) == OBSTACLE)
    third = Fraction(1, 6)  # after the first has left, its cell is free for the second
    assert score(found, dict.fromkeys([(6, 11), (6, 13), (6, 7), (7, 8), (8, 11), (8, 13)], third)) < LIMIT


def test_fewer_obstacles_than_declared_and_none():
    lines = ("#####", "#.O.#", "#####")
    after = MoveObstacles(3, 5, 3, CPU)(grid(*lines), torch.zeros(1), uniforms(1, 3))
    assert (kinds(after.cells) == OBSTACLE).sum() == 1 and (kinds(after.cells[0, [5, 9]]) == WALL).all()
    rule, scene = RULES["move_obstacles"](ground(*lines)), grid(*lines)
    assert rule.draws == 0 and rule(scene, torch.zeros(1), uniforms(1, 0)) is scene


def test_a_telepod_leads_to_another_one_of_its_colour():
    lines = ("######", "#T.TT#", "######")
    scene = many(grid(*lines)._replace(position=torch.tensor([7])), 20_000)
    after = Teleport(3, 6, CPU)(scene, scene.position, uniforms(20_000, 1))
    assert score(Counter(after.position.tolist()), uniform([9, 10])) < LIMIT
    blue = scene.cells.clone()
    blue[:, 9:11] = pack(TELEPOD, colour=RED + 2)
    alone = Teleport(3, 6, CPU)(scene._replace(cells=blue), scene.position, uniforms(20_000, 1))
    assert set(alone.position.tolist()) == {7}


@pytest.mark.parametrize("name", ["teleport.5x5", "teleport.7x7"])
def test_stepping_on_a_telepod_comes_out_at_the_other(name):
    world, jumps = WORLDS[name], 0
    motion = world.task.rules[0]
    for before, action, after, *_ in play(world, 64, 40, 3):
        walked = motion(scene_of(before), action, action)
        pods = kinds(before.cells) == TELEPOD
        landed = pods.gather(1, walked.position[:, None])[:, 0]
        assert torch.equal(landed, pods.gather(1, after.position[:, None])[:, 0])
        assert torch.equal(walked.position == after.position, ~landed)
        jumps += int(landed.sum())
    assert jumps > 50


def test_a_chain_is_its_rules_one_by_one():
    lines = ("######", "#O..O#", "#T>T.#", "######")
    parts = [RULES[name](ground(*lines, obstacle=2)) for name in ("move_agent", "move_obstacles", "teleport")]
    whole = RULES["chain"](ground(*lines), transition_functions=tuple(parts))
    scene, action, u = many(grid(*lines), 50), torch.full((50,), FORWARD), uniforms(50, 3)
    assert whole.draws == 3
    one = scene
    for rule, share in zip(parts, (u[:, :0], u[:, :2], u[:, 2:]), strict=True):
        one = rule(one, action, share)
    assert all(torch.equal(a, b) for a, b in zip(whole(scene, action, u), one, strict=True))
    assert set(one.position.tolist()) == {13}
