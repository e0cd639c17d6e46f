"""All that Numba compiles, in one file: what it keeps on disk is made anew when the file of a kept function changes.

A change of a function in another file, which the kept one calls, would go unnoticed.

Inner loops are LLVM vectors of sixteen float32 where Numba's own loops do not become such: sums stay in registers and
sixteen scores are added up at once. LLVM splits the vectors where a processor's registers are shorter.

Every operation and its order is written down, with no freedom for the compiler: what Numba compiles and what it loads
from its cache is optimised differently, and a run that goes on must end in the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, prange, types
from numba.core import cgutils

LANES = 16
_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS, _VECTOR = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_intrinsic: Any = extending.intrinsic  # callers do not pass the context
_f = np.float32


@cache
def attention_kernel(G: int, D: int) -> Any:
    """Keeps keys and values at column `lengths` of their rows; what the queries read goes to `read`.

    `qkv` is `[B, heads, D]`, queries first; `norms` `[query and key heads, D]`; `cos` and `sin` are `[B, D]`, `keys`
    and `values` `[slots, heads, columns, D]`, `read` `[B, query heads, D]`.
    """
    scale = _f(1 / math.sqrt(D))

    @njit(parallel=True, error_model="numpy", cache=True)
    def kernel(
        qkv: Any, norms: Any, cos: Any, sin: Any, eps: Any, keys: Any, values: Any, lengths: Any, read: Any
    ) -> None:
        B, kv_heads = len(lengths), keys.shape[1]
        heads = G * kv_heads
        for b in prange(B):
            T = lengths[b] + 1
            turned = np.empty((heads + kv_heads, D), np.float32)
            _write_placed(qkv[b], norms, cos[b], sin[b], eps, turned)
            p = np.empty((G, (T + LANES - 1) // LANES * LANES), np.float32)
            for h in range(kv_heads):
                _write_column(turned[heads + h], keys[b, h, T - 1], D)
                _write_column(qkv[b, heads + kv_heads + h], values[b, h, T - 1], D)
                queries = turned[h * G : (h + 1) * G]
                for g in range(G):
                    for d in range(D):
                        queries[g, d] *= scale
                _write_scores(queries, keys[b, h], T, p, G, D)
                for g in range(G):
                    largest = _largest(p[g, :T])
                    for t in range(T):
                        p[g, t] = _exp(p[g, t] - largest)
                _write_means(p, values[b, h], T, read[b, h * G : (h + 1) * G], G, D)

    return kernel


@njit(parallel=True, error_model="numpy", cache=True)
def normed_rows(x: Any, weight: Any, eps: Any, normed: Any) -> None:
    """Root mean square layer normalisation of the rows of x, `[T, D]`, to `normed`."""
    for t in prange(len(x)):
        _write_normed(x[t], weight, eps, normed[t])


@njit(parallel=True, error_model="numpy", cache=True)
def gated_rows(gate_up: Any, gated: Any) -> None:
    """`silu(gate) * up` of the halves of each row, `[T, 2 D]`, to `gated`, `[T, D]`."""
    half = gated.shape[1]
    for t in prange(len(gated)):
        for d in range(half):
            gate = gate_up[t, d]
            small = _exp(-abs(gate))
            share = _f(1) if gate >= _f(0) else small
            gated[t, d] = gate * share / (_f(1) + small) * gate_up[t, half + d]


@njit(parallel=True, error_model="numpy", cache=True)
def placed_rows(qk: Any, norms: Any, cos: Any, sin: Any, eps: Any, placed: Any) -> None:
    """`modules.decoder.cpu.elementwise:placed` of `[T, heads, D]`, to `placed`; no norms are `[0, 0]`."""
    for t in prange(len(qk)):
        _write_placed(qk[t], norms, cos[t], sin[t], eps, placed[t])


@njit(inline="always", error_model="numpy")
def _write_placed(x: Any, norms: Any, cos: Any, sin: Any, eps: Any, placed: Any) -> None:
    """`placed` of one token; no norms are `[0, 0]`."""
    half = x.shape[1] // 2
    for h in range(len(placed)):
        turned = placed[h]
        if len(norms):
            _write_normed(x[h], norms[h], eps, turned)
        else:
            turned[:] = x[h]
        for d in range(half):
            a, b = turned[d], turned[half + d]
            turned[d] = a * cos[d] - b * sin[d]
            turned[half + d] = b * cos[half + d] + a * sin[half + d]


@njit(inline="always", error_model="numpy")
def _write_normed(x: Any, weight: Any, eps: Any, normed: Any) -> None:
    """`normed` of one row; squares are added up in lanes, as vectors are."""
    sums = np.zeros(LANES, np.float32)
    for first in range(0, len(x), LANES):
        for lane in range(LANES):
            sums[lane] += x[first + lane] * x[first + lane]
    total = _f(0)
    for lane in range(LANES):
        total += sums[lane]
    factor = _f(1) / np.sqrt(total / _f(len(x)) + eps)
    for d in range(len(x)):
        normed[d] = x[d] * factor * weight[d]


@njit(inline="always")
def _exp(x: Any) -> Any:
    """e^x for x <= 0 without a call for each number: 2^n times the polynomial of the Cephes library for the rest."""
    x = _f(-87) if x < _f(-87) else x  # e^-87 is next to the least float32
    n = np.floor(x * _f(1.44269504) + _f(0.5))
    r = x - n * _f(0.693359375) + n * _f(2.12194440e-4)  # log 2 in two parts, the first of few digits
    y = _f(1.9875691500e-4)
    y = y * r + _f(1.3981999507e-3)
    y = y * r + _f(8.3334519073e-3)
    y = y * r + _f(4.1665795894e-2)
    y = y * r + _f(1.6666665459e-1)
    y = y * r + _f(5.0000001201e-1)
    return (y * r * r + r + _f(1)) * _float_of((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(fastmath=True)  # in any order it is the same
def _largest(x: Any) -> Any:
    """The greatest of those numbers that are numbers."""
    largest = x[0]
    for i in range(len(x)):
        largest = max(largest, x[i])
    return largest


@_intrinsic
def _float_of(context: Any, bits: Any) -> Any:
    """The float32 that these 32 bits are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _F32)

    return types.float32(types.int32), generate


@_intrinsic(prefer_literal=True)
def _write_scores(context: Any, q: Any, k: Any, T: Any, p: Any, G: Any, D: Any) -> Any:
    """`p[g, t] = q[g] k[t]` for t < T; q is `[G, D]`, k `[columns, D]`, p `[G, T or more]`, its rest overwritten."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (queries, _), (keys, key_stride), (scores, score_stride) = _arrays(context, builder, signature, arguments)
        count, parts = arguments[2], range(D.literal_value // LANES)
        last = builder.sub(count, _I64(1))
        with cgutils.for_range_slice(builder, _I64(0), count, _I64(LANES)) as (first, _):
            places = []
            for lane in range(LANES):
                t = builder.add(first, _I64(lane))  # nothing behind the last column is read: it may not be there
                places.append(builder.mul(builder.select(builder.icmp_signed("<", t, last), t, last), key_stride))
            for g in range(G.literal_value):
                query = [_loaded(builder, queries, _I64(4 * (g * D.literal_value + part * LANES))) for part in parts]

                def product(place: Any, query: Sequence[Any] = query) -> Any:
                    """A vector whose lanes add up to the score of the column at this place."""
                    sums = _VECTOR([0.0] * LANES)
                    for part in parts:
                        sums = _added(builder, query[part], _column(builder, keys, place, part, k.dtype), sums)
                    return sums

                sums = _lane_sums(builder, [lambda place=place: product(place) for place in places])
                offset = builder.add(builder.mul(_I64(g), score_stride), builder.mul(first, _I64(4)))
                builder.store(sums, _at(builder, scores, offset, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(q, k, types.int64, p, G, D), generate


@_intrinsic(prefer_literal=True)
def _write_means(context: Any, p: Any, v: Any, T: Any, read: Any, G: Any, D: Any) -> Any:
    """`read[g]` = mean of v[t], t < T, by weights p[g, t]; p is `[G, T or more]`, v `[columns, D]`, read `[G, D]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (weights, weight_stride), (values, value_stride), (means, _) = _arrays(context, builder, signature, arguments)
        groups, parts = range(G.literal_value), range(D.literal_value // LANES)
        sums = {(g, part): cgutils.alloca_once(builder, _VECTOR) for g in groups for part in (*parts, "weights")}
        for place in sums.values():
            builder.store(_VECTOR([0.0] * LANES), place)
        with cgutils.for_range(builder, arguments[2]) as loop:
            start, across = builder.mul(loop.index, value_stride), builder.mul(loop.index, _I64(4))
            for g in groups:
                weight = _repeated(builder, weights, builder.add(builder.mul(_I64(g), weight_stride), across))
                builder.store(builder.fadd(builder.load(sums[g, "weights"]), weight), sums[g, "weights"])
                for part in parts:
                    number = _column(builder, values, start, part, v.dtype)
                    builder.store(_added(builder, weight, number, builder.load(sums[g, part])), sums[g, part])
        for g in groups:
            for part in parts:
                mean = builder.fdiv(builder.load(sums[g, part]), builder.load(sums[g, "weights"]))
                offset = _I64(4 * (g * D.literal_value + part * LANES))
                builder.store(mean, _at(builder, means, offset, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(p, v, types.int64, read, G, D), generate


@_intrinsic(prefer_literal=True)
def _write_column(context: Any, x: Any, column: Any, D: Any) -> Any:
    """`column[:] = x`, of float32 numbers x `[D]`; a column `[D]` of 16-bit words takes them rounded to bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (numbers, _), (memory, _) = _arrays(context, builder, signature, arguments)
        for first in range(0, D.literal_value, LANES):
            vector = _loaded(builder, numbers, _I64(4 * first))
            if column.dtype == types.float32:
                builder.store(vector, _at(builder, memory, _I64(4 * first), _VECTOR), align=4)
                continue
            bits = builder.bitcast(vector, _WORDS)  # the upper half, to the nearest, of two equally near the even one
            odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
            rounded = builder.lshr(builder.add(builder.add(bits, _words(0x7FFF)), odd), _words(16))
            short = builder.trunc(rounded, ir.VectorType(_I16, LANES))
            builder.store(short, _at(builder, memory, _I64(2 * first), short.type), align=2)
        return context.get_dummy_value()

    return types.void(x, column, D), generate


def _arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> list[tuple[Any, Any]]:
    """Pointer to the numbers and first stride, in bytes, of each argument that is an array; the last must be dense."""
    kinds = zip(signature.args, arguments, strict=True)
    arrays = [context.make_array(kind)(context, builder, value) for kind, value in kinds if hasattr(kind, "ndim")]
    return [(array.data, cgutils.unpack_tuple(builder, array.strides)[0]) for array in arrays]


def _at(builder: Any, memory: Any, offset: Any, kind: Any) -> Any:
    """A pointer so many bytes into the memory."""
    start = builder.bitcast(memory, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())


def _loaded(builder: Any, memory: Any, offset: Any) -> Any:
    return builder.load(_at(builder, memory, offset, _VECTOR), align=4)


def _column(builder: Any, memory: Any, place: Any, part: int, dtype: Any) -> Any:
    """Sixteen numbers of the column at a place, as float32: of a bfloat16 the bits are its upper half."""
    if dtype == types.float32:
        return _loaded(builder, memory, builder.add(place, _I64(4 * part * LANES)))
    offset = builder.add(place, _I64(2 * part * LANES))
    bits = builder.load(_at(builder, memory, offset, ir.VectorType(_I16, LANES)), align=2)
    return builder.bitcast(builder.shl(builder.zext(bits, _WORDS), _words(16)), _VECTOR)


def _repeated(builder: Any, memory: Any, offset: Any) -> Any:
    """A float32 in all lanes."""
    number = builder.load(_at(builder, memory, offset, _F32))
    vector = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, _I32(0))
    return builder.shuffle_vector(vector, vector, _words(0))


def _added(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """`total + a * b`, rounded once."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(fused, (a, b, total))


def _lane_sums(builder: Any, vectors: Sequence[Callable[[], Any]]) -> Any:
    """The sum of the lanes of each of sixteen vectors, side by side: neighbours are added until one is left of each.

    A vector is made when it is needed, so few are there at once.
    """
    if len(vectors) == 1:
        return vectors[0]()
    middle = len(vectors) // 2
    a, b = _lane_sums(builder, vectors[:middle]), _lane_sums(builder, vectors[middle:])
    even, odd = _WORDS([2 * i for i in range(LANES)]), _WORDS([2 * i + 1 for i in range(LANES)])
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


def _words(word: int) -> Any:
    """The same 32 bits in all lanes."""
    return _WORDS([word] * LANES)
