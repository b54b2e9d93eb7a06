"""The Triton scan: recorded scans interpreted (and on CUDA, where there is one), machine code without a GPU.

Each part runs this file in a process of its own, because Triton chooses between interpreter and compiler when it is
imported. `numbers DEVICE` gives the errors of every recorded scan, and of larger random ones against torch. `binaries`
gives the sizes of the kernels' machine code for two accelerators, which need not exist.
"""

import importlib.metadata
import importlib.util
import json
import sys

import pytest
import torch
from packaging.version import Version
from scans import SCANS, TOLERANCE, drawn, errors, machine_code, numbers, off, resets, run_alone

from dqn_memory.blocks.kernels.selective_scan import scan_torch

ODD = ((2, 3, 70, 5), (1, 1, 33, 16), (3, 2, 32, 1))  # more than one block of channels, states not a power of two
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (it comes with torch for CUDA; make test-triton)",
)


def numbers_on(device):
    from dqn_memory.blocks.kernels.triton_selective_scan import scan_triton

    found = {}
    for dtype in TOLERANCE:
        for name in SCANS:
            found[f"{name} {dtype}"] = errors(name, dtype, scan_triton, device)
        for shape in ODD:
            for kind, keep in (("", None), (" resets", resets(*shape[:2]))):
                ours = numbers(
                    scan_triton, drawn(*shape, dtype, device), None if keep is None else keep.to(device, dtype)
                )
                theirs = numbers(scan_torch, drawn(*shape), keep)
                found[f"{shape}{kind} {dtype}"] = dict(enumerate(map(off, ours, theirs)))
    return found


def binaries():
    """Compile the kernels; a time of one position is a constant, as in a launch."""
    from dqn_memory.blocks.kernels.triton_selective_scan import BLOCK, scan_back_kernel, scan_kernel

    sizes, found = {"STATES": 16, "PADDED": 16, "BLOCK": BLOCK, "RESETS": True}, {}
    for name, kernel, constants in (
        ("forward", scan_kernel, {"RECORD": False}), ("record", scan_kernel, {"RECORD": True}),
        ("backward", scan_back_kernel, {}),
    ):  # fmt: skip
        for number, architecture, time in (("fp32", 80, 1), ("fp32", 80, 64), ("fp32", 90, 64), ("fp64", 90, 64)):
            fixed = sizes | constants | ({"time": 1} if time == 1 else {})
            size = machine_code(kernel, number, fixed, ("time", "channels", "rows"), architecture)
            found[f"{name} {number} sm_{architecture} {time}"] = size
    return found


def check(found):
    assert len(found) == len(TOLERANCE) * (len(SCANS) + 2 * len(ODD))
    for name, each in found.items():
        tolerance = next(allowed for dtype, allowed in TOLERANCE.items() if name.endswith(str(dtype)))
        assert len(each) >= 7 and all(error <= tolerance for error in each.values()), (name, each)


def cannot_interpret():
    """Tell whether Triton's issue 9171 applies: interpreted loops need a feature that NumPy 2.4 removed."""
    if importlib.util.find_spec("triton") is None:
        return False
    old = Version(importlib.metadata.version("triton")) < Version("3.7")
    return old and Version(importlib.metadata.version("numpy")) >= Version("2.4")


@pytest.mark.skipif(cannot_interpret(), reason="Triton before 3.7 cannot interpret loops beside NumPy 2.4 and newer")
def test_recorded_scans_through_the_interpreter(tmp_path):
    check(run_alone(__file__, "numbers", "cpu", interpret=True, cache=tmp_path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_recorded_scans_on_cuda(tmp_path):
    check(run_alone(__file__, "numbers", "cuda", interpret=False, cache=tmp_path))


def test_kernels_compile_without_an_accelerator(tmp_path):
    sizes = run_alone(__file__, "binaries", interpret=False, cache=tmp_path)
    assert len(sizes) == 12 and all(size > 1000 for size in sizes.values()), sizes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(numbers_on(sys.argv[2]) if sys.argv[1] == "numbers" else binaries()))
