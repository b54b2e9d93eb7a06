"""What holds in every grid world, whatever the agent does."""

import dataclasses

import pytest
import torch
from world_keywords import uniforms

from envs import WORLDS
from envs.gridverse.objects import CLOSED, DOOR, FLOOR, KEY, LOCKED, OPEN, YELLOW, kinds, pack
from envs.gridverse.rules import ACTUATE
from envs.registry import make_world
from envs.vector import advance

IDS = [id for id, entry in sorted(WORLDS.items()) if entry.entry.startswith("envs.gridverse.tasks:")]


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
    after = world.step(state, torch.tensor([ACTUATE]), torch.empty(1, 0, dtype=torch.float64))[0]
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
