"""Every name in docs/memories.md can be built, by the command that the page says."""

import re

import pytest
from pages import ROOT

from dqn_memory.blocks import LayerConfig, build
from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec

PAGE = (ROOT / "docs" / "memories.md").read_text(encoding="utf-8")
FIRST, SECOND = (table.split("\n\n")[0].split("\n")[2:] for table in PAGE.split("\n| `--architecture")[1:])
OTHER = re.compile(r" \((?:no `build`: two of )?`([^`]+)`\)")  # what stands in place of build(name)


def named(rows):
    """What the first column of a table says, a pair for each name: the name, and what is said in place of `build`."""
    for row in rows:
        cell = row.split("|")[1]
        names, other = re.findall(r"`([a-z0-9_]+)`", OTHER.sub("", cell)), OTHER.search(cell)
        yield from ((name, other and other[1]) for name in names)


def network(name):
    return NetworkConfig(name, width=64, heads=4, context=8).build(ObservationSpec("continuous", (3,)), 2)


def test_the_tables_name_every_architecture():
    listed = [name for name, _ in (*named(FIRST), *named(SECOND))]
    assert sorted({*listed, *re.findall(r"`(\w+_bare)`", PAGE)}) == sorted(ARCHITECTURES)


@pytest.mark.parametrize("name", sorted({name for name, _ in (*named(FIRST), *named(SECOND))}))
def test_a_network_of_the_name_is_built(name):
    assert sum(parameter.numel() for parameter in network(name).parameters()) > 0


@pytest.mark.parametrize(("name", "other"), [*named(SECOND)])
def test_a_memory_of_the_name_is_built(name, other):
    if other is None:
        block = build(name, width=64)
    else:
        block = eval(other, {"build": build, "LayerConfig": LayerConfig})
    if isinstance(block, LayerConfig):
        layers = [block.build(64, 8) for _ in range(2)]
        assert [repr(layer) for layer in layers] == [repr(layer) for layer in network(name).layers]
    else:
        assert block.stateful
