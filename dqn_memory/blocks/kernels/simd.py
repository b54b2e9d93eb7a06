"""Vectors of eight float32 numbers for loops that numba compiles, and how those loops share torch's threads.

A compiler vectorises a loop only if it can prove that its arrays do not overlap, and unrolls short loops into single
numbers instead. A value of this type is an LLVM vector, so a kernel states which numbers stand side by side. LLVM maps
it to the processor's registers (one of AVX, two of SSE or NEON). Arrays are addresses of float32 numbers, because numba
would count references and check indices of its arrays; nothing is checked here. Kernels import this module as `v`;
`+ - * /` of two vectors act on each of the eight pairs.
"""

import operator
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial, wraps
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model
from torch.nn import functional as F

from dqn_memory.blocks.kernels.custom_operator import environment_alone

environment_alone()
COUNT = 8
NUMBER = ir.FloatType()
INTEGER = ir.IntType(32)
FLOATS = ir.VectorType(NUMBER, COUNT)
INTEGERS = ir.VectorType(INTEGER, COUNT)
FEATURES = get_host_cpu_features()
# Whether a product and a sum are rounded once (FMA), always or never: if the compiler chose, inlining would change
# rounding, and a resumed run would not be bit-exact.
FUSES = bool(FEATURES.get("fma") or FEATURES.get("neon"))
ROUNDING = 1.5 * 2**23  # float32 has no digit after the point there
SMALLEST = -126.0  # min exponent: smaller powers of two are denormal and become this one, 1e-38


def _coefficients() -> np.ndarray:
    """Fit 2^x for |x| <= 1/2 by a polynomial at Chebyshev's points: relative error 2e-7, an ulp or two of float32."""
    fit = np.polynomial.chebyshev.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    return fit.convert(kind=np.polynomial.Polynomial).coef.astype(np.float32)


COEFFICIENTS = _coefficients()


class Vector8Type(types.Type):
    """The type of eight float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Vector8")


vector8 = Vector8Type()


@register_model(Vector8Type)
class _Vector8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, FLOATS)


def _same(value: float) -> ir.Constant:
    return ir.Constant(FLOATS, [value] * COUNT)


def _broadcast(builder: Any, value: Any, kind: Any = FLOATS) -> Any:
    nothing = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(nothing, value, INTEGER(0))
    return builder.shuffle_vector(single, nothing, ir.Constant(INTEGERS, [0] * COUNT))


def _call(builder: Any, name: str, *values: Any) -> Any:
    kind = ir.FunctionType(FLOATS, [FLOATS] * len(values))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v8f32"), values)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, "fma", a, b, c) if FUSES else builder.fadd(builder.fmul(a, b), c)


def _pointer(builder: Any, address: Any, index: Any, kind: Any = NUMBER) -> Any:
    first = builder.inttoptr(address, NUMBER.as_pointer())
    return builder.bitcast(builder.gep(first, [index]), kind.as_pointer())


def _instruction(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a kernel function of these types from a function that emits its code and returns its value, if any."""

    def make(write: Callable[..., Any]) -> Any:
        @wraps(write)  # numba reads the names of the arguments
        def operation(typing: Any, *given: Any) -> Any:
            def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                value = write(builder, *values)
                return context.get_dummy_value() if value is None else value

            return result(*arguments), code

        return intrinsic(operation)

    return make


@_instruction(vector8, types.intp, types.intp)
def load(builder: Any, address: Any, index: Any) -> Any:
    """Load eight numbers from `index` on."""
    return builder.load(_pointer(builder, address, index, FLOATS), align=4)


@_instruction(types.void, types.intp, types.intp, vector8)
def store(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Write eight numbers from `index` on."""
    builder.store(value, _pointer(builder, address, index, FLOATS), align=4)


@_instruction(types.float32, types.intp, types.intp)
def load_one(builder: Any, address: Any, index: Any) -> Any:
    """Load the number at `index`."""
    return builder.load(_pointer(builder, address, index), align=4)


@_instruction(types.void, types.intp, types.intp, types.float32)
def store_one(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Write one number at `index`."""
    builder.store(value, _pointer(builder, address, index), align=4)


@_instruction(vector8, types.intp, types.intp)
def broadcast(builder: Any, address: Any, index: Any) -> Any:
    """Load the number at `index` into all eight elements."""
    return _broadcast(builder, builder.load(_pointer(builder, address, index), align=4))


@_instruction(types.void, types.intp, types.intp)
def prefetch(builder: Any, address: Any, index: Any) -> None:
    """Begin to load the number at `index`, and its neighbours, into the caches."""
    byte, number = ir.IntType(8).as_pointer(), INTEGER
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, everywhere, data = number(0), number(3), number(1)
    builder.call(function, [builder.bitcast(_pointer(builder, address, index), byte), read, everywhere, data])


@_instruction(vector8, types.float32)
def constant(builder: Any, value: Any) -> Any:
    """Set all eight elements to one number."""
    return _broadcast(builder, value)


@_instruction(vector8, vector8, vector8, vector8)
def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Compute a b + c."""
    return _multiply_add(builder, a, b, c)


@_instruction(vector8, vector8, vector8)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """Take the larger one of each pair, or a if one is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)  # in this form one instruction


@_instruction(vector8, vector8)
def root(builder: Any, x: Any) -> Any:
    """Compute the square root."""
    return _call(builder, "sqrt", x)


@_instruction(types.float32, vector8)
def first(builder: Any, x: Any) -> Any:
    """Take the first one of eight numbers."""
    return builder.extract_element(x, INTEGER(0))


@_instruction(vector8, types.intp, vector8, vector8)
def replace_from(builder: Any, first: Any, value: Any, before: Any) -> Any:
    """Take `value` in the elements from number `first` on and `before` in those before it."""
    bounds = _broadcast(builder, builder.trunc(first, INTEGER), INTEGERS)
    numbers = ir.Constant(INTEGERS, list(range(COUNT)))
    return builder.select(builder.icmp_signed(">=", numbers, bounds), value, before)


@_instruction(vector8, vector8, vector8, vector8, vector8)
def where_at_least(builder: Any, number: Any, bound: Any, value: Any, other: Any) -> Any:
    """Take `value` where a number reaches its bound and `other` elsewhere."""
    return builder.select(builder.fcmp_ordered(">=", number, bound), value, other)


def _arranged(builder: Any, x: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(x, ir.Constant(FLOATS, ir.Undefined), ir.Constant(INTEGERS, order))


@_instruction(vector8, vector8)
def even(builder: Any, x: Any) -> Any:
    """Take the first one of each pair of neighbours twice: the real parts of four complex numbers."""
    return _arranged(builder, x, [0, 0, 2, 2, 4, 4, 6, 6])


@_instruction(vector8, vector8)
def odd(builder: Any, x: Any) -> Any:
    """Take the second one of each pair of neighbours twice: the imaginary parts of four complex numbers."""
    return _arranged(builder, x, [1, 1, 3, 3, 5, 5, 7, 7])


@_instruction(vector8, vector8)
def turn(builder: Any, x: Any) -> Any:
    """Multiply four complex numbers by i: (x, y) becomes (-y, x)."""
    swapped = _arranged(builder, x, [1, 0, 3, 2, 5, 4, 7, 6])
    return builder.fmul(swapped, ir.Constant(FLOATS, [-1.0, 1.0] * (COUNT // 2)))


@_instruction(types.UniTuple(vector8, COUNT), *[vector8] * COUNT)
def transpose(builder: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Turn eight rows of eight numbers into its columns: single numbers written to memory are slow to load as eight."""
    rows, lanes = [a, b, c, d, e, f, g, h], range(COUNT)
    for apart in (4, 2, 1):  # swap the blocks of this size beside the diagonal
        for first in [row for row in lanes if not row & apart]:
            pair = rows[first], rows[first + apart]
            low = [lane + COUNT - apart if lane & apart else lane for lane in lanes]
            high = [lane + COUNT if lane & apart else lane + apart for lane in lanes]
            for row, order in ((first, low), (first + apart, high)):
                rows[row] = builder.shuffle_vector(*pair, ir.Constant(INTEGERS, order))
    columns = ir.Constant(ir.ArrayType(FLOATS, COUNT), ir.Undefined)
    for number, column in enumerate(rows):
        columns = builder.insert_value(columns, column, number)
    return columns


@_instruction(vector8, vector8)
def swap(builder: Any, x: Any) -> Any:
    """Exchange the first four and the last four numbers."""
    return _arranged(builder, x, [4, 5, 6, 7, 0, 1, 2, 3])


@_instruction(vector8, vector8)
def total(builder: Any, x: Any) -> Any:
    """Sum eight numbers; all eight elements are the sum."""
    for distance in (4, 2, 1):
        x = builder.fadd(x, _arranged(builder, x, [n ^ distance for n in range(COUNT)]))
    return x


@_instruction(vector8, types.intp, types.intp)
def row_sums(builder: Any, address: Any, index: Any) -> Any:
    """Sum each of eight rows of eight numbers, which lie one after the other from `index` on."""
    starts = [builder.add(index, ir.Constant(index.type, COUNT * row)) for row in range(COUNT)]
    rows = [builder.load(_pointer(builder, address, start, FLOATS), align=4) for start in starts]
    for width in (1, 2, 4):  # of the groups in which the sums of neighbouring rows alternate
        low = [n + (COUNT - width if n & width else 0) for n in range(COUNT)]
        orders = [ir.Constant(INTEGERS, order) for order in (low, [n + width for n in low])]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [builder.fadd(*(builder.shuffle_vector(*pair, order) for order in orders)) for pair in pairs]
    return rows[0]


@_instruction(vector8, vector8)
def exp2(builder: Any, x: Any) -> Any:
    """Compute 2^x for x from -126 (smaller ones count as that) to 127; NaN for NaN."""
    smallest = _same(SMALLEST)
    x = builder.select(builder.fcmp_ordered("<", x, smallest), smallest, x)
    shifted = builder.fadd(x, _same(ROUNDING))  # its last bits are the nearest integer
    rest = builder.fsub(x, builder.fsub(shifted, _same(ROUNDING)))
    result = _same(float(COEFFICIENTS[-1]))
    for coefficient in COEFFICIENTS[-2::-1]:
        result = _multiply_add(builder, result, rest, _same(float(coefficient)))
    exponent = builder.shl(builder.bitcast(shifted, INTEGERS), ir.Constant(INTEGERS, [23] * COUNT))
    one = ir.Constant(INTEGERS, [127 << 23] * COUNT)
    return builder.fmul(result, builder.bitcast(builder.add(exponent, one), FLOATS))


def _arithmetic(symbol: Callable[..., Any], name: str) -> None:
    """Let an operator of Python between two vectors be one instruction."""
    cases = {"key": symbol, "cases": [vector8(vector8, vector8)]}
    infer_global(symbol)(type(name, (ConcreteTemplate,), cases))
    lower_builtin(symbol, vector8, vector8)(lambda context, builder, signature, pair: getattr(builder, name)(*pair))


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


def compiled(function: Any) -> Any:
    """Compile a kernel at its first call, cached on disk if possible; it runs without Python's lock."""
    make = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return make(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written
        return make()(function)


@compiled
def begins(keep, at):
    """Tell whether `keep` is 0 at a position, which then begins an episode; 0 for `keep` itself means no resets."""
    return keep != 0 and load_one(keep, at) == 0


def run_in_threads(kernel: Any, batch: int, scratch: int, *arguments: Any) -> None:
    """Run a kernel over all sequences, a part on each of torch's threads with `scratch` numbers of its own.

    Tensors among the arguments, and in tuples among them, become their addresses, and None becomes 0.
    """
    if not batch:
        return
    given = [_addresses(each) for each in arguments]
    parts = min(torch.get_num_threads(), batch)
    buffers = torch.empty(parts, scratch)
    tasks = [(batch * part // parts, batch * (part + 1) // parts, buffers[part].data_ptr()) for part in range(parts)]
    waiting: list[Future[None]] = [_pool(parts).submit(kernel, *task, *given) for task in tasks[1:]]
    kernel(*tasks[0], *given)
    for other in waiting:
        other.result()


def _addresses(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_addresses, argument))
    if argument is None:
        return 0
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument


def dense(x: torch.Tensor | None) -> torch.Tensor | None:
    """Detach a tensor and make it contiguous; None stays None."""
    return None if x is None else x.detach().contiguous()


def padded_to_eight(x: torch.Tensor) -> torch.Tensor:
    """Fill up (..., n) with zeros to a multiple of eight."""
    missing = -x.shape[-1] % COUNT
    return F.pad(x.detach(), (0, missing)) if missing else x.detach().contiguous()


@cache
def _pool(parts: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(parts - 1)


if hasattr(os, "register_at_fork"):  # a forked child has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
