"""Vectors of eight float32 numbers for loops that numba compiles, and how those loops share torch's threads.

A compiler vectorises a loop only where it can prove that its arrays do not overlap, and unrolls short loops into single
numbers instead. A value of this type is a vector in LLVM's own sense, so a kernel states which numbers stand side by
side; LLVM maps it to what a processor has (one register of AVX, two of SSE or NEON). Arrays are addresses of float32
numbers, because numba counts references and checks indices of its own; so nothing is checked here.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import register_model

intrinsic: Any = numba_intrinsic
COUNT = 8
NUMBER = ir.FloatType()
FLOATS = ir.VectorType(NUMBER, COUNT)
INTEGERS = ir.VectorType(ir.IntType(32), COUNT)
FEATURES = get_host_cpu_features()
# Whether a product and a sum become one rounding. Always or never: left to the compiler, a function that another one
# takes in may round otherwise than by itself, and a run that compiled would not repeat bit for bit when it is resumed.
FUSES = bool(FEATURES.get("fma") or FEATURES.get("neon"))
SMALLEST = -126.0  # powers of two below are not normal numbers; they become this one, which is 1e-38


def _coefficients() -> np.ndarray:
    """2^x for |x| <= 1/2 as a polynomial at Chebyshev's points: relative error 2e-7, an ulp or two of float32."""
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


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    if not FUSES:
        return builder.fadd(builder.fmul(a, b), c)
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v8f32"), [a, b, c])


def _broadcast(builder: Any, value: Any) -> Any:
    single = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(INTEGERS, [0] * COUNT)
    return builder.shuffle_vector(single, ir.Constant(FLOATS, ir.Undefined), zeros)


def _pointer(builder: Any, address: Any, index: Any, kind: Any = NUMBER) -> Any:
    first = builder.inttoptr(address, NUMBER.as_pointer())
    return builder.bitcast(builder.gep(first, [index]), kind.as_pointer())


@intrinsic
def load(typing: Any, address: Any, index: Any) -> Any:
    """Load eight numbers from `index` on."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_pointer(builder, values[0], values[1], FLOATS), align=4)

    return vector8(types.intp, types.intp), code


@intrinsic
def store(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Write eight numbers from `index` on."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _pointer(builder, values[0], values[1], FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, vector8), code


@intrinsic
def get(typing: Any, address: Any, index: Any) -> Any:
    """Load the number at `index`."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_pointer(builder, *values), align=4)

    return types.float32(types.intp, types.intp), code


@intrinsic
def put(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """Write one number at `index`."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _pointer(builder, *values[:2]), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32), code


@intrinsic
def broadcast(typing: Any, address: Any, index: Any) -> Any:
    """Load the number at `index` into all eight elements."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _broadcast(builder, builder.load(_pointer(builder, *values), align=4))

    return vector8(types.intp, types.intp), code


@intrinsic
def constant(typing: Any, value: Any) -> Any:
    """Set all eight elements to one number."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _broadcast(builder, values[0])

    return vector8(types.float32), code


@intrinsic
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Compute a b + c."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _multiply_add(builder, *values)

    return vector8(vector8, vector8, vector8), code


@intrinsic
def maximum(typing: Any, a: Any, b: Any) -> Any:
    """Take the larger one of each pair, or a if one is NaN."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_unordered(">", *values), *values)

    return vector8(vector8, vector8), code


@intrinsic
def replace_from(typing: Any, first: Any, value: Any, before: Any) -> Any:
    """Take `value` in the elements from number `first` on and `before` in those before it."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bound = builder.trunc(values[0], ir.IntType(32))
        single = builder.insert_element(ir.Constant(INTEGERS, ir.Undefined), bound, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(INTEGERS, [0] * COUNT)
        bounds = builder.shuffle_vector(single, ir.Constant(INTEGERS, ir.Undefined), zeros)
        numbers = ir.Constant(INTEGERS, list(range(COUNT)))
        return builder.select(builder.icmp_signed(">=", numbers, bounds), values[1], values[2])

    return vector8(types.intp, vector8, vector8), code


@intrinsic
def exp2(typing: Any, x: Any) -> Any:
    """Compute 2^x for x from -126 (smaller ones count as that) to 127; NaN for NaN."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        smallest = _same(SMALLEST)
        x = builder.select(builder.fcmp_unordered(">", values[0], smallest), values[0], smallest)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS]), "llvm.floor.v8f32")
        whole = builder.call(function, [builder.fadd(x, _same(0.5))])
        rest = builder.fsub(x, whole)
        result = _same(float(COEFFICIENTS[-1]))
        for coefficient in COEFFICIENTS[-2::-1]:
            result = _multiply_add(builder, result, rest, _same(float(coefficient)))
        exponent = builder.fptosi(builder.fadd(whole, _same(127.0)), INTEGERS)
        power = builder.bitcast(builder.shl(exponent, ir.Constant(INTEGERS, [23] * COUNT)), FLOATS)
        return builder.fmul(result, power)

    return vector8(vector8), code


def _binary(name: str) -> Any:
    @intrinsic
    def operation(typing: Any, a: Any, b: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return getattr(builder, name)(*values)

        return vector8(vector8, vector8), code

    return operation


add = _binary("fadd")
subtract = _binary("fsub")
multiply = _binary("fmul")
divide = _binary("fdiv")


def compiled(function: Any) -> Any:
    """Compile a kernel at its first call; it is kept on disk and runs without Python's lock."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)


def run_in_threads(kernel: Any, batch: int, scratch: int, *arguments: Any) -> None:
    """Run a kernel over all sequences, a part of them on each of torch's threads with `scratch` numbers of its own."""
    parts = min(torch.get_num_threads(), batch)
    buffers = torch.empty(parts, scratch)
    tasks = [(batch * part // parts, batch * (part + 1) // parts, buffers[part].data_ptr()) for part in range(parts)]
    waiting: list[Future[None]] = [_pool(parts).submit(kernel, *task, *arguments) for task in tasks[1:]]
    kernel(*tasks[0], *arguments)
    for other in waiting:
        other.result()


@cache
def _pool(parts: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(parts - 1)


if hasattr(os, "register_at_fork"):  # a forked child has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
