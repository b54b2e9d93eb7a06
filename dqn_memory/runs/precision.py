"""How accelerators multiply float32."""

from __future__ import annotations

import torch


def set_tf32(allowed: bool) -> None:
    """Whether an accelerator may round float32 factors to TF32's 10 bits of mantissa; no effect on a CPU.

    torch by itself rounds in cuDNN's convolutions and recurrent layers and not in matrix products, so that neither
    "float32" nor "tf32" would be true of a whole network.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
