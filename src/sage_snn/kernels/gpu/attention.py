# pyright: basic, reportGeneralTypeIssues=false
"""Entropy and Gini impurity of attention maps that are never formed, in Triton.

q: (T, B, H, N, K), k: (T, B, H, M, K), of any strides. A program has one map, or a tile of its query rows, and meets
the keys in tiles, with what a softmax needs carried from one to the next. Its sums go to a place of their own in
float64, and a second kernel adds those of a head, always in the same order.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .available import is_interpreting
from .launch import launch
from .variants import Variant

TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
ROWS, KEYS = 32, 64  # of a tile, the second at most; more would not fit registers where no matrix unit helps
WIDTHS = {torch.float32: 16, torch.float16: 32, torch.bfloat16: 32}  # that every thread loads 16 bytes of
SMALLEST = 16  # tile that a matrix product takes on a GPU
PARTS = 1024  # partial sums that are read at once
LOWEST = tl.constexpr(-1.0e38)  # below any score, and finite: times zero it is zero


@triton.jit
def _counts(
    q, k, rows, keys, width, q_row, q_lane, k_row, k_lane, queries, count, WIDTH: tl.constexpr, WIDEN: tl.constexpr
):
    """Products (ROWS, KEYS) of rows of q with rows of k: coincidences, if all are spikes."""
    products = tl.zeros((rows.shape[0], keys.shape[0]), tl.float32)
    for first in tl.range(0, width, WIDTH, num_stages=1):
        lanes = first + tl.arange(0, WIDTH)
        there = (rows < queries)[:, None] & (lanes < width)[None, :]
        left = tl.load(q + rows[:, None] * q_row + lanes[None, :] * q_lane, mask=there, other=0.0)
        there = (keys < count)[None, :] & (lanes < width)[:, None]
        right = tl.load(k + keys[None, :] * k_row + lanes[:, None] * k_lane, mask=there, other=0.0)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        products = tl.dot(left, right, products, input_precision="ieee")
    return products


@triton.jit
def _fold(products, there, factor, top, z, u, squares):
    """The largest score so far and, relative to it, sums of weights, of weights times scores and of squared weights."""
    scores = tl.where(there[None, :], products * factor, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1))
    scores = tl.where(there[None, :], scores - highest[:, None], 0.0)
    weights = tl.where(there[None, :], tl.exp(scores), 0.0)
    lower = top - highest
    shrink = tl.exp(lower)
    u = shrink * (u + lower * z) + tl.sum(weights * scores, 1)
    z = shrink * z + tl.sum(weights, 1)
    squares = shrink * shrink * squares + tl.sum(weights * weights, 1)
    return highest, z, u, squares


@triton.jit
def _share(value, unit):
    """In shares of a unit, kept in [0, 1], which rounding alone leads out of; NaN stays."""
    share = value / unit
    return tl.where(share < 0, 0.0, tl.where(share > 1, 1.0, share))


@triton.jit
def statistics_kernel(
    q,
    k,
    out,
    factors,
    batch,
    heads,
    queries,
    count,
    width,
    q_time,
    q_image,
    q_head,
    q_row,
    q_lane,
    k_time,
    k_image,
    k_head,
    k_row,
    k_lane,
    unit,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDEN: tl.constexpr,
    EACH: tl.constexpr,
):
    """Sums over rows into out (2, S, H, T*B, tiles); with EACH the entropy of every row (T, B, H, N), in `unit`s."""
    place, tile = tl.program_id(0), tl.program_id(1)
    head, image = place % heads, place // heads
    time = (image // batch).to(tl.int64)
    of_batch = (image % batch).to(tl.int64)
    q += time * q_time + of_batch * q_image + head.to(tl.int64) * q_head
    k += time * k_time + of_batch * k_image + head.to(tl.int64) * k_head
    rows, keys = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, KEYS)
    first = _counts(q, k, rows, keys, width, q_row, q_lane, k_row, k_lane, queries, count, WIDTH, WIDEN)
    nothing = tl.zeros((ROWS,), tl.float32)
    images, tiles = tl.num_programs(0) // heads, tl.num_programs(1)
    for s in tl.static_range(len(factors)):
        top, z, u, squares = _fold(first, keys < count, factors[s], nothing + LOWEST, nothing, nothing, nothing)
        for start in tl.range(KEYS, count, KEYS, num_stages=1):
            more = _counts(q, k, rows, start + keys, width, q_row, q_lane, k_row, k_lane, queries, count, WIDTH, WIDEN)
            top, z, u, squares = _fold(more, start + keys < count, factors[s], top, z, u, squares)
        entropy = tl.where(rows < queries, tl.log(z) - u / z, 0.0).to(tl.float64)
        if EACH:
            tl.store(out + place.to(tl.int64) * queries + rows, _share(entropy, unit), mask=rows < queries)
        else:
            gini = tl.where(rows < queries, 1 - squares / (z * z), 0.0).to(tl.float64)
            at = ((s * heads + head) * images + image).to(tl.int64) * tiles + tile
            tl.store(out + at, tl.sum(entropy, 0))
            tl.store(out + at + images.to(tl.int64) * heads * tiles * len(factors), tl.sum(gini, 0))


@triton.jit
def combine_kernel(partial, entropy, gini, count, entropy_unit, gini_unit, PARTS: tl.constexpr):
    """Means (S, H) of both: the `count` partial sums of each in their order."""
    place = tl.program_id(0)
    at, parts = place.to(tl.int64) * count, tl.arange(0, PARTS)
    of_gini = tl.num_programs(0).to(tl.int64) * count
    entropies, ginis = tl.zeros((PARTS,), tl.float64), tl.zeros((PARTS,), tl.float64)
    for first in range(0, count, PARTS):
        there = first + parts < count
        entropies += tl.load(partial + at + first + parts, mask=there, other=0.0)
        ginis += tl.load(partial + of_gini + at + first + parts, mask=there, other=0.0)
    tl.store(entropy + place, _share(tl.sum(entropies, 0), entropy_unit))
    tl.store(gini + place, _share(tl.sum(ginis, 0), gini_unit))


def takes(q: Tensor, k: Tensor) -> bool:
    """Whether the kernels have this pair: of one dtype and device, not empty, and no more precise than float32."""
    return q.dtype == k.dtype and q.dtype in TYPES and q.device == k.device and bool(q.numel() and k.numel())


def statistics(q: Tensor, k: Tensor, factors: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Entropy over keys and Gini impurity, each (S, H) float64, of scores `factor * q k^T`."""
    times, batch, heads, queries, _ = q.shape
    count, rows = times * batch * -(-queries // ROWS), times * batch * queries
    partial = q.new_empty(2, len(factors), heads, count, dtype=torch.float64)
    _launch(q, k, partial, factors, each=False)
    entropy, gini = (q.new_empty(len(factors), heads, dtype=torch.float64) for _ in range(2))
    units = rows * _unit(k.shape[3]), float(rows)
    launch(combine_kernel, (entropy.numel(),), partial, entropy, gini, count, *units, PARTS=PARTS)
    return entropy, gini


def row_entropy(q: Tensor, k: Tensor, factor: float) -> Tensor:
    """Normalised entropy of each query row (T, B, H, N), float64."""
    each = q.new_empty(q.shape[:4], dtype=torch.float64)
    _launch(q, k, each, [factor], each=True)
    return each


def _unit(keys: int) -> float:
    return math.log(keys) if keys > 1 else 1.0  # one key alone has entropy 0 in any unit


def _launch(q: Tensor, k: Tensor, out: Tensor, factors: Sequence[float], *, each: bool) -> None:
    (times, batch, heads, queries, width), keys = q.shape, k.shape[3]
    tile = _tile(q.dtype, keys)
    grid = times * batch * heads, -(-queries // tile["ROWS"])
    sizes = batch, heads, queries, keys, width, *q.stride(), *k.stride(), _unit(keys)
    # The interpreter would multiply the bits of a bf16, not its value.
    widen = is_interpreting() and q.dtype == torch.bfloat16
    launch(statistics_kernel, grid, q, k, out, tuple(factors), *sizes, **tile, WIDEN=widen, EACH=each)


def _tile(dtype: torch.dtype, keys: int) -> dict[str, int]:
    return {"ROWS": ROWS, "KEYS": max(SMALLEST, min(KEYS, triton.next_power_of_2(keys))), "WIDTH": WIDTHS[dtype]}


def variants() -> Iterator[Variant]:
    """The largest tiles: of one temperature, of rows, and of four temperatures; the sums."""
    forms = ("", 1, False), (" of rows", 1, True), (" at four temperatures", 4, False)
    for (dtype, name), (form, factors, each) in itertools.product(TYPES.items(), forms):
        signature = {"q": f"*{name}", "k": f"*{name}", "out": "*fp64", "factors": "fp32," * factors}
        signature |= dict.fromkeys(statistics_kernel.arg_names[4:20], "i32") | {"unit": "fp32"}
        constants = _tile(dtype, KEYS) | {"q_lane": 1, "k_lane": 1, "WIDEN": False, "EACH": each}
        yield Variant(f"attention{form}, {str(dtype)[6:]}", statistics_kernel, signature, constants)
    signature = {"partial": "*fp64", "entropy": "*fp64", "gini": "*fp64", "count": "i32"}
    signature |= {"entropy_unit": "fp32", "gini_unit": "fp32"}
    yield Variant("attention sums", combine_kernel, signature, {"PARTS": PARTS})
