"""Functions for tensors and numpy arrays alike, for operations whose names differ between torch and numpy.

A World that uses only these functions and operators runs on both: on tensors for trainers and accelerators, and on
numpy arrays for a Gymnasium environment on a CPU. There the arrays are so small that the overhead of a call dominates,
and numpy's overhead is a third of torch's. Arguments are all tensors or all arrays; the resulting numbers are equal.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch

Values = Any  # a torch.Tensor, or a numpy array with the same methods and operators


def take(table: Values, index: Values) -> Values:
    """Take rows of a table (K, ...) at index (N,): (N, ...)."""
    return table.index_select(0, index) if isinstance(table, torch.Tensor) else table.take(index, 0)


def take_column(table: Values, column: Values) -> Values:
    """Take one entry of every row of a table (N, K), at column (N,): (N,)."""
    if isinstance(table, torch.Tensor):
        return table.gather(1, column.unsqueeze(1)).squeeze(1)
    return table.reshape(-1).take(_row_starts(*table.shape) + column)


def take_columns(table: Values, columns: Values) -> Values:
    """Take entries of every row of a table (N, K), at columns (N, M): (N, M)."""
    if isinstance(table, torch.Tensor):
        return table.gather(1, columns)
    return table.reshape(-1).take(_row_starts(*table.shape)[:, None] + columns)


def put_column(table: Values, column: Values, value: Values) -> Values:
    """Write `value` (N,) into every row of a table (N, K) at column (N,), in place; returns the table."""
    if isinstance(table, torch.Tensor):
        return table.scatter_(1, column.unsqueeze(1), value.unsqueeze(1))
    table.reshape(-1)[_row_starts(*table.shape) + column] = value
    return table


def put_rows(table: Values, rows: Values, values: Values) -> Values:
    """Copy a table (N, ...) with `values` (M, ...) in its rows (M,)."""
    if isinstance(table, torch.Tensor):
        return table.index_copy(0, rows, values)
    table = table.copy()
    table[rows] = values
    return table


def where(mask: Values, chosen: Values, other: Values) -> Values:
    """Choose `chosen` where the mask is True, else `other`; both may be arrays or single numbers."""
    return torch.where(mask, chosen, other) if isinstance(mask, torch.Tensor) else np.where(mask, chosen, other)


def minimum(first: Values, second: Values) -> Values:
    """Take the smaller one of each pair; both may be arrays or single numbers."""
    return torch.minimum(first, second) if isinstance(first, torch.Tensor) else np.minimum(first, second)


def maximum(first: Values, second: Values) -> Values:
    """Take the larger one of each pair; both may be arrays or single numbers."""
    return torch.maximum(first, second) if isinstance(first, torch.Tensor) else np.maximum(first, second)


def stack(columns: list[Values]) -> Values:
    """Stack columns (N,) to a table (N, K)."""
    if isinstance(columns[0], torch.Tensor):
        return torch.stack(columns, -1)
    table = np.empty((len(columns[0]), len(columns)), columns[0].dtype)
    for index, column in enumerate(columns):
        table[:, index] = column
    return table


def concatenate(tables: list[Values]) -> Values:
    """Concatenate tables (N, K), (N, L), ... to (N, K + L + ...)."""
    return torch.cat(tables, 1) if isinstance(tables[0], torch.Tensor) else np.concatenate(tables, 1)


def copied(values: Values) -> Values:
    """Return a copy."""
    return values.clone() if isinstance(values, torch.Tensor) else values.copy()


def zeros(like: Values, count: int) -> Values:
    """Make zeros (N,) of the dtype and on the device of `like`."""
    return like.new_zeros(count) if isinstance(like, torch.Tensor) else np.zeros(count, like.dtype)


def integers(values: Values) -> Values:
    """Round towards zero, to int64."""
    return values.long() if isinstance(values, torch.Tensor) else values.astype(np.int64)


def single(values: Values) -> Values:
    """Round to float32."""
    return values.float() if isinstance(values, torch.Tensor) else values.astype(np.float32)


def double(values: Values) -> Values:
    """Convert to float64."""
    return values.double() if isinstance(values, torch.Tensor) else values.astype(np.float64)


def converted(values: Values, like: Values) -> Values:
    """Convert to the dtype of `like`."""
    return values.to(like.dtype) if isinstance(values, torch.Tensor) else values.astype(like.dtype)


def truncate(values: Values) -> Values:
    """Round towards zero."""
    return values.trunc() if isinstance(values, torch.Tensor) else np.trunc(values)


def square_root(values: Values) -> Values:
    """Return the square root, also of a single number."""
    if isinstance(values, float):
        return math.sqrt(values)
    return values.sqrt() if isinstance(values, torch.Tensor) else np.sqrt(values)


def parted(values: Values) -> tuple[Values, Values]:
    """Return the part from [1/2, 1) and the exponent of 2 of positive numbers, or of a single one."""
    if isinstance(values, float):
        return math.frexp(values)
    part, power = torch.frexp(values) if isinstance(values, torch.Tensor) else np.frexp(values)
    return part, double(power)


def float32(value: float) -> float:
    """Round a single number to float32."""
    return float(np.float32(value))


def argsort(keys: Values) -> Values:
    """Sort the columns of every row (N, K) by their keys, ascending, stable; returns their indices."""
    return keys.argsort(dim=1, stable=True) if isinstance(keys, torch.Tensor) else keys.argsort(1, kind="stable")


def running_count(mask: Values) -> Values:
    """Count the True entries up to each column of a mask (N, K < 2**15): (N, K) int16, twice as fast as int64."""
    return mask.cumsum(1, dtype=torch.int16 if isinstance(mask, torch.Tensor) else np.int16)


def first_true(mask: Values) -> Values:
    """Return the first column (N,) int64 with a True in every row of a mask (N, K); 0 where there is none."""
    return mask.byte().argmax(1) if isinstance(mask, torch.Tensor) else mask.argmax(1)


class PowerSeries:
    """Sine and cosine in float64 as sums of series, with so many `terms` after the first.

    Libraries and devices round their sines differently, but sums and products alike.
    """

    runs_on_numpy = True

    def __init__(self, terms: int, device: torch.device) -> None:
        series = [[(-1) ** n / math.factorial(2 * n + odd) for n in range(terms, 0, -1)] for odd in (1, 0)]
        self.sines, self.cosines = map(torch.unbind, torch.tensor(series, dtype=torch.float64, device=device))
        self.unit = torch.tensor(1.0, dtype=torch.float64, device=device)

    def __call__(self, angle: Values) -> tuple[Values, Values]:
        """Return sine and cosine (N,) of angles (N,)."""
        square = angle * angle
        sine = angle + angle * square * _polynomial(self.sines, square)
        return sine, self.unit + square * _polynomial(self.cosines, square)

    def cosine(self, angle: Values) -> Values:
        """Return the cosine (N,) of angles (N,)."""
        square = angle * angle
        return self.unit + square * _polynomial(self.cosines, square)


class NormalPairs:
    """Two standard normal numbers from two uniforms, by Box and Muller, to seven digits at least.

    The logarithm is a sum of a series, for the reason of `PowerSeries`.
    """

    runs_on_numpy = True

    def __init__(self, device: torch.device) -> None:
        numbers = [0.5, math.pi, 1.0, 2.0, math.sqrt(0.5), 2 * math.log(2), math.log(2)]
        series = [4 / odd for odd in range(17, 0, -2)]
        constants = torch.tensor([*numbers, *series], dtype=torch.float64, device=device)
        self.half, self.turn, self.unit, self.two, self.middle, self.doubling, self.offset = constants[:7].unbind()
        self.logarithm = constants[7:].unbind()
        self.waves = PowerSeries(7, device)

    def __call__(self, u: Values, v: Values) -> tuple[Values, Values]:
        """Return two normal numbers (N,) each from uniforms u and v (N,)."""
        sine, cosine = self.waves((u - self.half) * self.turn)  # of half the angle, so that few terms are enough
        left = self.unit - v  # from (0, 1]
        part, power = parted(left)
        ratio = (part - self.middle) / (part + self.middle)
        square = self.offset - self.doubling * power - ratio * _polynomial(self.logarithm, ratio * ratio)
        radius = square_root(abs(square))  # square is -2 log(left), and can be below 0 in its last place
        twice = self.two * radius * sine
        return twice * cosine, radius - twice * sine


def _polynomial(coefficients: tuple[Values, ...], x: Values) -> Values:
    """Return the sum (N,) of powers of x (N,), the highest first."""
    value = coefficients[0] * x + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


@lru_cache(maxsize=32)
def _row_starts(count: int, width: int) -> Values:
    starts = np.arange(0, count * width, width)
    starts.flags.writeable = False
    return starts
