# pyright: basic, reportGeneralTypeIssues=false
"""Spikes as bits and back, 64 to a word, in Triton: contiguous values, the first in the lowest bit."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch
from .variants import Variant

WORD = 64
WORDS = 64  # that a program packs


@triton.jit
def pack_kernel(spikes, packed, count, words, WORDS: tl.constexpr):
    """Words from values: whatever is not zero is a one."""
    mine, lanes = tl.program_id(0) * WORDS + tl.arange(0, WORDS), tl.arange(0, 64)
    places = mine.to(tl.int64)[:, None] * 64 + lanes[None, :]
    fired = tl.load(spikes + places, mask=places < count, other=0) != 0
    bits = fired.to(tl.int64) << lanes.to(tl.int64)[None, :]
    tl.store(packed + mine, tl.sum(bits, 1), mask=mine < words)  # no two have a bit in common: their sum holds all


@triton.jit
def unpack_kernel(packed, spikes, count, words, WORDS: tl.constexpr):
    """Values from words."""
    mine, lanes = tl.program_id(0) * WORDS + tl.arange(0, WORDS), tl.arange(0, 64)
    places = mine.to(tl.int64)[:, None] * 64 + lanes[None, :]
    bits = tl.load(packed + mine, mask=mine < words, other=0)
    fired = (bits[:, None] >> lanes.to(tl.int64)[None, :]) & 1
    tl.store(spikes + places, tl.where(fired == 1, 1.0, 0.0).to(spikes.dtype.element_ty), mask=places < count)


@triton.jit
def store_bits(bits, fired, place, there):
    """Whether each of a tile (ROWS, LANES) fired, in bytes (ROWS, LANES // 8) at `place`: eight neighbours each."""
    ROWS: tl.constexpr = place.shape[0]
    EIGHTHS: tl.constexpr = place.shape[1]
    lanes = tl.reshape(fired.to(tl.int32), (ROWS, EIGHTHS, 8)) << tl.arange(0, 8)[None, None, :]
    tl.store(bits + place, tl.sum(lanes, 2), mask=there)


def pack(spikes: Tensor) -> Tensor:
    """Bits (words,) int64 of zeros and ones of any shape, in contiguous order; nobody looks whether they are."""
    values = _bytes(spikes.detach().contiguous())
    words = -(-values.numel() // WORD)
    packed = torch.empty(words, dtype=torch.int64, device=values.device)
    if words:
        launch(pack_kernel, (-(-words // WORDS),), values, packed, values.numel(), words, WORDS=WORDS)
    return packed


def unpack(packed: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Spikes of the given shape and dtype, contiguous."""
    spikes = torch.empty(shape, dtype=dtype, device=packed.device)
    if words := len(packed):
        sizes = spikes.numel(), words
        launch(unpack_kernel, (-(-words // WORDS),), packed, _bytes(spikes), *sizes, WORDS=WORDS)
    return spikes


def _bytes(values: Tensor) -> Tensor:
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def variants() -> Iterator[Variant]:
    """Both kernels for every dtype."""
    types = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "u8"}
    for dtype, name in types.items():
        sizes = {"count": "i32", "words": "i32"}
        pack = {"spikes": f"*{name}", "packed": "*i64", **sizes}
        unpack = {"packed": "*i64", "spikes": f"*{name}", **sizes}
        yield Variant(f"pack, {dtype}", pack_kernel, pack, {"WORDS": WORDS})
        yield Variant(f"unpack, {dtype}", unpack_kernel, unpack, {"WORDS": WORDS}, wide=False)
