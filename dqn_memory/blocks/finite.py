"""Dtypes of states and of sums over a sequence: float32 at least."""

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Choose the dtype of carried states and of sums over a sequence: float32 at least."""
    return torch.float32 if dtype in (None, torch.float32) else torch.promote_types(dtype, torch.float32)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor of another dtype; the comparison is faster than a conversion that does nothing."""
    return x if x.dtype == dtype else x.to(dtype)


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to their `wide_dtype`."""
    return tuple([x if x.dtype == torch.float32 else x.to(wide_dtype(x.dtype)) for x in tensors])
