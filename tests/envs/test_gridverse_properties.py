"""What holds in every grid world, whatever the agent does."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from world_keywords import uniforms

from envs import WORLDS
from envs.fleet import advance
from envs.gridverse import objects
from envs.gridverse.objects import CLOSED, DOOR, EXIT, FLOOR, KEY, LOCKED, OPEN, YELLOW, blocks_movement, kinds, pack
from envs.gridverse.rules import ACTUATE, FORWARD, PICK_N_DROP
from envs.registry import make_world

IDS = [id for id, entry in sorted(WORLDS.items()) if entry.entry.startswith("envs.gridverse.tasks:")]
KEYDOOR = [id for id in IDS if "Keydoor" in id]
ROWS = 6
EPISODES = {
    "seed": st.integers(0, 2**31),
    "plan": st.lists(st.integers(0, 5), min_size=8, max_size=8),  # favours straight walks over single steps
}
few = settings(max_examples=8, deadline=None, derandomize=True, database=None)


def actions(world, seed, plan):
    """Actions (T, ROWS): each entry of the plan is held for some steps, with random ones in between."""
    held = torch.tensor(plan).repeat_interleave(4)[:, None].expand(-1, ROWS) % world.num_actions
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(world.num_actions, held.shape, generator=generator)
    return torch.where(torch.rand(held.shape, generator=generator) < 0.5, held, random)


def none(rows=ROWS):
    return torch.empty(rows, 0, dtype=torch.float64)


@pytest.mark.parametrize("id", IDS)
@few
@given(**EPISODES)
def test_what_holds_after_every_step(id, seed, plan):
    """No wall is entered; in Keydoor is one key, one door and one exit; a memory world never changes."""
    world = make_world(id)
    first = state = world.reset(uniforms(ROWS, world.reset_draws, seed=seed))
    for action in actions(world, seed, plan):  # a row goes on after its end, which changes nothing in what is tested
        state = world.step(state, action, none())[0]
        assert not blocks_movement(state.cells.gather(1, state.position[:, None]).long()).any()
        y, x = state.position // world.width, state.position % world.width
        assert ((y > 0) & (y < world.height - 1) & (x > 0) & (x < world.width - 1)).all()
        assert ((state.heading >= 0) & (state.heading < 4)).all()
        if id in KEYDOOR:
            kind = kinds(state.cells.long())
            assert ((kind == KEY).sum(1) + (state.held == pack(KEY, colour=YELLOW)) == 1).all()
            assert ((kind == DOOR).sum(1) == 1).all() and ((kind == EXIT).sum(1) == 1).all()
        else:
            assert torch.equal(state.cells, first.cells) and not state.held.any()


@pytest.mark.parametrize("id", KEYDOOR)
def test_a_player_who_knows_the_way_wins(id):
    """Key, door, exit from a fixed start: every reward term is paid once, in order."""
    world = make_world(id)
    size = world.width
    state = world.reset(uniforms(1, world.reset_draws))
    cells = torch.full((size, size), pack(FLOOR), dtype=torch.int16)
    cells[[0, -1]] = cells[:, [0, -1]] = pack(3)
    cells[1:-1, 2] = pack(3)
    cells[1, 2], cells[1, 1], cells[-2, -2] = pack(DOOR, LOCKED, YELLOW), pack(KEY, colour=YELLOW), pack(EXIT)
    start = torch.tensor([2 * size + 1])
    state = dataclasses.replace(state, cells=cells.view(1, -1), position=start, heading=torch.tensor([objects.NORTH]))
    script = [PICK_N_DROP, FORWARD, 5, ACTUATE, *[FORWARD] * (size - 3), 5, *[FORWARD] * (size - 3)]
    rewards = []
    for action in script:
        state, _, reward, terminated, success = world.step(state, torch.tensor([action]), none(1))
        rewards.append(round(float(reward), 9))
    steps = [0.15] * (size - 4)
    assert rewards == [0.95, -0.25, -0.05, 0.95, 0.15, *steps, -0.05, *steps, 5.15]
    assert bool(terminated)
    assert bool(success)


@pytest.mark.parametrize(
    ("status", "held", "opens"), [(CLOSED, 0, True), (LOCKED, 0, False), (LOCKED, 4, True), (LOCKED, 1, False)]
)
def test_doors_open_at_once_or_with_the_key_of_their_colour(status, held, opens):
    world = make_world("Gridverse/Keydoor-5x5-v0")
    state = world.reset(uniforms(1, world.reset_draws))
    door = (kinds(state.cells.long()) == DOOR).nonzero()[0, 1]
    cells = state.cells.clone()
    cells[0, door] = pack(DOOR, status, YELLOW)
    below = door + world.width if door < world.width * 3 else door - world.width
    hand = torch.tensor([pack(KEY, colour=held) if held else 0])
    cells[0, below] = pack(FLOOR)
    state = dataclasses.replace(
        state, cells=cells, position=below[None], heading=torch.tensor([0 if below > door else 1]), held=hand
    )
    after = world.step(state, torch.tensor([ACTUATE]), none(1))[0]
    assert after.cells[0, door] == pack(DOOR, OPEN if opens else status, YELLOW)
    assert torch.equal(after.held, hand)


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("kwargs", [{}, {"view": (7, 7), "dictionary": True, "phantom_rooms": (2, 2)}])
def test_a_world_and_all_it_makes_is_on_its_device(id, kwargs):
    """On the device that holds no numbers, which an operation with a tensor of another device mostly refuses."""
    world = make_world(id, "meta", **kwargs)
    u = torch.empty(4, world.reset_draws, dtype=torch.float64, device="meta")
    state, step = advance(world, world.reset(u), torch.empty(4, dtype=torch.int64, device="meta"), u)
    held = tensors([world, state, step])
    assert len(held) > 30
    assert {tensor.device.type for tensor in held} == {"meta"}


def tensors(part):
    """All tensors that belong to parts of ours."""
    if isinstance(part, torch.Tensor):
        return [part]
    if isinstance(part, list | tuple):
        return [tensor for each in part for tensor in tensors(each)]
    ours = type(part).__module__.startswith("envs.")
    return [tensor for each in vars(part).values() for tensor in tensors(each)] if ours else []


def test_text_shows_the_hand_and_the_heading():
    world = make_world("Gridverse/Keydoor-5x5-v0")
    state = world.reset(uniforms(1, world.reset_draws))
    held = dataclasses.replace(state, held=torch.tensor([pack(KEY, colour=YELLOW)]))
    assert [world.text(each, 0).split("\n")[-1] for each in (state, held)] == ["holds nothing", "holds Ky"]
    assert (world.frame(held, 0) != world.frame(state, 0)).any()
    y, x = divmod(int(state.position), 5)
    for heading, sign in enumerate("^v<>"):
        turned = dataclasses.replace(state, heading=torch.tensor([heading]))
        assert world.text(turned, 0).split("\n")[y][2 * x] == sign
