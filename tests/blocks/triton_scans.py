"""What the tests of the Triton scan run in a process of their own, because the interpreter is chosen at import.

python triton_scans.py numbers DEVICE    errors of every recorded scan, and of larger random ones against torch
python triton_scans.py binaries          sizes of the kernels' machine code for two accelerators, none needed
"""

import json
import sys

import torch
import triton
from scans import SCANS, TOLERANCE, drawn, errors, numbers
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dqn_memory.blocks.kernels import triton as module
from dqn_memory.blocks.kernels.scan import scan_torch

ODD = ((2, 3, 70, 5), (1, 1, 33, 16), (3, 2, 32, 1))  # more than one block of channels, states not a power of two
SIZES = {"STATES": 16, "PADDED": 16, "BLOCK": module.BLOCK}
KERNELS = {
    "forward": (module.forward_kernel, SIZES | {"RECORD": False}),
    "record": (module.forward_kernel, SIZES | {"RECORD": True}),
    "backward": (module.backward_kernel, SIZES),
}


def numbers_on(device):
    found = {}
    for dtype in TOLERANCE:
        for name in SCANS:
            found[f"{name} {dtype}"] = errors(name, dtype, module.scan_triton, device)
        for shape in ODD:
            inputs, known = drawn(*shape, dtype, device), drawn(*shape)
            pairs = zip(numbers(module.scan_triton, inputs), numbers(scan_torch, known), strict=True)
            found[f"{shape} {dtype}"] = {
                str(place): float((ours.cpu().double() - right).abs().max() / (right.abs().max() or 1))
                for place, (ours, right) in enumerate(pairs)
            }
    return found


def binaries():
    """One position is compiled as a constant, as a launch does it."""
    found = {}
    for name, (kernel, constants) in KERNELS.items():
        for number, architecture, time in (("fp32", 80, 1), ("fp32", 80, 64), ("fp32", 90, 64), ("fp64", 90, 64)):
            fixed = constants | ({"time": 1} if time == 1 else {})
            whole = {"time", "channels", "rows"}
            signature = {
                p.name: "constexpr" if p.name in fixed else "i32" if p.name in whole else f"*{number}"
                for p in kernel.params
            }
            source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
            made = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
            found[f"{name} {number} sm_{architecture} {time}"] = len(made.asm["cubin"])
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(numbers_on(sys.argv[2]) if sys.argv[1] == "numbers" else binaries()))
