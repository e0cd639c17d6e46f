"""Attention of one new token a row to what the row holds, on a CPU: compiled by Numba, its two loops as LLVM vectors.

A step of sampling has a few queries a head. PyTorch's kernels are made for many: with a few they spend their time on
setting up small products. Here a row is read as far as it goes and no further, keys and values once for all queries of
a group, and what a row gets does not depend on the others. Sums stay in registers and sixteen scores are added up at
once, which Numba's own loops do not do. LLVM splits the vectors where a processor's registers are shorter.

Every operation and its order is written down, with no freedom for the compiler: what Numba compiles and what it loads
from its cache is optimised differently, and a run that goes on must end in the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import config, extending, njit, prange, set_num_threads, types
from numba.core import cgutils
from torch import Tensor

from modules.samplers.kv_cache import Rows
from modules.samplers.row_attention import Attend

_LANES = 16
_MOST_QUERIES = 8  # of a group: their sums must fit into registers
_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS, _VECTOR = ir.VectorType(_I32, _LANES), ir.VectorType(_F32, _LANES)
_f = np.float32
_cores: int = vars(config)["NUMBA_NUM_THREADS"]
_intrinsic: Any = extending.intrinsic  # callers do not pass the context


def fits(rows: Rows, heads: int) -> bool:
    """Whether `cpu_stepping` can read these rows with so many query heads."""
    kv_heads, head_dim = rows.buffer.shape[2], rows.buffer.shape[4]
    known = rows.buffer.device.type == "cpu" and rows.buffer.dtype in (torch.float32, torch.bfloat16)
    return known and head_dim % _LANES == 0 and heads <= kv_heads * _MOST_QUERIES


def cpu_stepping(rows: Rows, lengths_B: Tensor) -> Attend:
    """What `stepping` gives; scores, their softmax and sums are in float32.

    Args:
        rows: where keys and values lie; `fits` holds for them.
        lengths_B: `[B]` int64, how many tokens each of the first B slots holds beside the new one.
    """
    lengths, threads = lengths_B.numpy(), min(torch.get_num_threads(), _started_threads())
    scale = 1 / math.sqrt(rows.buffer.shape[4])

    def attend(layer: int, queries_BHD: Tensor) -> Tensor:
        keys, values = rows.layer(layer)
        queries_BHGD = (queries_BHD.float() * scale).unflatten(1, (keys.shape[1], -1)).contiguous()
        read_BHGD = torch.empty_like(queries_BHGD)
        set_num_threads(threads)
        kernel = _kernel(*queries_BHGD.shape[2:])
        kernel(*(_array(tensor) for tensor in (queries_BHGD, keys, values, read_BHGD)), lengths)
        return read_BHGD.flatten(1).to(queries_BHD.dtype)

    return attend


@cache
def _started_threads() -> int:
    """Let Numba start its threads, one a core; says how many. It may set PyTorch's number too: both use OpenMP."""
    threads = torch.get_num_threads()
    set_num_threads(_cores)
    torch.set_num_threads(threads)
    return _cores


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory for NumPy, which has no bfloat16: its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@cache
def _kernel(G: int, D: int) -> Any:
    """softmax(q k) v, of queries `[B, heads, G, D]` and keys and values `[slots, heads, columns, D]`."""

    @njit(parallel=True, error_model="numpy", cache=True)
    def kernel(queries: Any, keys: Any, values: Any, read: Any, lengths: Any) -> None:
        B, heads = queries.shape[:2]
        for b in prange(B):
            T = lengths[b] + 1
            p = np.empty((G, (T + _LANES - 1) // _LANES * _LANES), np.float32)
            for h in range(heads):
                _write_scores(queries[b, h], keys[b, h], T, p, G, D)
                for g in range(G):
                    largest = _largest(p[g, :T])
                    for t in range(T):
                        p[g, t] = _exp(p[g, t] - largest)
                _write_means(p, values[b, h], T, read[b, h], G, D)

    return kernel


@njit(fastmath=True)  # in any order it is the same
def _largest(x: Any) -> Any:
    """The greatest of those numbers that are numbers."""
    largest = x[0]
    for i in range(len(x)):
        largest = max(largest, x[i])
    return largest


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
        count, parts = arguments[2], range(D.literal_value // _LANES)
        last = builder.sub(count, _I64(1))
        with cgutils.for_range_slice(builder, _I64(0), count, _I64(_LANES)) as (first, _):
            places = []
            for lane in range(_LANES):
                t = builder.add(first, _I64(lane))  # nothing behind the last column is read: it may not be there
                places.append(builder.mul(builder.select(builder.icmp_signed("<", t, last), t, last), key_stride))
            for g in range(G.literal_value):
                query = [_loaded(builder, queries, _I64(4 * (g * D.literal_value + part * _LANES))) for part in parts]

                def product(place: Any, query: Sequence[Any] = query) -> Any:
                    """A vector whose lanes add up to the score of the column at this place."""
                    sums = _VECTOR([0.0] * _LANES)
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
        groups, parts = range(G.literal_value), range(D.literal_value // _LANES)
        sums = {(g, part): cgutils.alloca_once(builder, _VECTOR) for g in groups for part in (*parts, "weights")}
        for place in sums.values():
            builder.store(_VECTOR([0.0] * _LANES), place)
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
                offset = _I64(4 * (g * D.literal_value + part * _LANES))
                builder.store(mean, _at(builder, means, offset, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(p, v, types.int64, read, G, D), generate


def _arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> list[tuple[Any, Any]]:
    """Pointer to the numbers and first stride, in bytes, of each argument that is an array."""
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
        return _loaded(builder, memory, builder.add(place, _I64(4 * part * _LANES)))
    offset = builder.add(place, _I64(2 * part * _LANES))
    bits = builder.load(_at(builder, memory, offset, ir.VectorType(_I16, _LANES)), align=2)
    return builder.bitcast(builder.shl(builder.zext(bits, _WORDS), _WORDS([16] * _LANES)), _VECTOR)


def _repeated(builder: Any, memory: Any, offset: Any) -> Any:
    """A float32 in all lanes."""
    number = builder.load(_at(builder, memory, offset, _F32))
    vector = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, _I32(0))
    return builder.shuffle_vector(vector, vector, _WORDS([0] * _LANES))


def _added(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """`total + a * b`, rounded once."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{_LANES}f32")
    return builder.call(fused, (a, b, total))


def _lane_sums(builder: Any, vectors: Sequence[Callable[[], Any]]) -> Any:
    """The sum of the lanes of each of sixteen vectors, side by side: neighbours are added until one is left of each.

    A vector is made when it is needed, so few are there at once.
    """
    if len(vectors) == 1:
        return vectors[0]()
    middle = len(vectors) // 2
    a, b = _lane_sums(builder, vectors[:middle]), _lane_sums(builder, vectors[middle:])
    even, odd = _WORDS([2 * i for i in range(_LANES)]), _WORDS([2 * i + 1 for i in range(_LANES)])
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))
