"""Kernels give the same bits in the process that compiles them and in one that finds them compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import hashlib
import torch
from dqn_memory.blocks.kernels import cpu_gru

torch.set_num_threads(1)
numbers = torch.Generator().manual_seed(0)
total, change = (torch.randn(9, 1, 11, *shape, generator=numbers) for shape in ((16,), (3, 16)))
gates, weight = torch.rand(9, 3, 1, 11, 16, generator=numbers), torch.randn(1, 48, 16, generator=numbers)
cpu_gru.backward(total, change, gates, weight)
given, bias = torch.randn(1, 11, 9, 3, 16, generator=numbers), torch.randn(1, 48, generator=numbers)
for result in (total, change, *cpu_gru.forward(given, weight, bias)):
    print(hashlib.sha256(result.contiguous().numpy().tobytes()).hexdigest())
print(cpu_gru._backward.stats.cache_hits.total())
"""


@pytest.mark.long
def test_what_is_compiled_rounds_as_what_is_loaded(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT]
    said = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert (said[0].pop(), said[1].pop()) == ("0", "1")  # compiled, then loaded
    assert said[0] == said[1]
