"""The Triton scan: recorded scans interpreted (and on CUDA, where there is one), machine code without a GPU.

Each part runs in a process of its own, because Triton chooses between interpreter and compiler when it is imported.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from scans import SCANS, TOLERANCE

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (it comes with torch for CUDA; make test-triton)",
)


def run(*words, interpret, cache):
    settings = {"TRITON_INTERPRET": "1" if interpret else "0", "TRITON_CACHE_DIR": str(cache)}
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(FOLDER / "triton_scans.py"), *words], capture_output=True, text=True, timeout=300,
        env={**os.environ, **settings, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(found):
    assert len(found) == len(TOLERANCE) * (len(SCANS) + 3)
    for name, errors in found.items():
        tolerance = next(allowed for dtype, allowed in TOLERANCE.items() if name.endswith(str(dtype)))
        assert len(errors) >= 7 and all(error <= tolerance for error in errors.values()), (name, errors)


def cannot_interpret():
    """Triton's issue 9171: interpreted loops ask NumPy 2.4 for something that it has given up."""
    if importlib.util.find_spec("triton") is None:
        return False
    old = Version(importlib.metadata.version("triton")) < Version("3.7")
    return old and Version(importlib.metadata.version("numpy")) >= Version("2.4")


@pytest.mark.skipif(cannot_interpret(), reason="Triton before 3.7 cannot interpret loops beside NumPy 2.4 and newer")
def test_recorded_scans_through_the_interpreter(tmp_path):
    check(run("numbers", "cpu", interpret=True, cache=tmp_path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_recorded_scans_on_cuda(tmp_path):
    check(run("numbers", "cuda", interpret=False, cache=tmp_path))


def test_kernels_compile_without_an_accelerator(tmp_path):
    sizes = run("binaries", interpret=False, cache=tmp_path)
    assert len(sizes) == 12 and all(size > 1000 for size in sizes.values()), sizes
