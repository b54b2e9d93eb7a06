"""Sequence blocks in plain torch.nn, and the registries by which architectures name them."""

from dqn_memory.blocks.attention import Attention
from dqn_memory.blocks.block import Block, Memory, State, fresh, lookup
from dqn_memory.blocks.gates import GATES
from dqn_memory.blocks.initialise import initialise
from dqn_memory.blocks.layer import EncoderLayer, LayerConfig, Sublayer
from dqn_memory.blocks.positions import POSITIONS
from dqn_memory.blocks.priors import PRIORS, Prior, PriorConfig
from dqn_memory.blocks.registry import MEMORY, build, names

__all__ = [
    "GATES",
    "MEMORY",
    "POSITIONS",
    "PRIORS",
    "Attention",
    "Block",
    "EncoderLayer",
    "LayerConfig",
    "Memory",
    "Prior",
    "PriorConfig",
    "State",
    "Sublayer",
    "build",
    "fresh",
    "initialise",
    "lookup",
    "names",
]
