# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
"""How a time step's neurons are cut into tiles, in whichever order they lie in memory: (outer, channels, inner).

Planes (B, C, L) are just that, channels last (B, L, C) are (B * L, C, 1), and neurons without channels (1, 1, M). A
position is a place without its channel. A tile is (ROWS, LANES), its lanes neighbours in memory: channels where they
lie last (ROWS positions), else positions (ROWS channels).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl

LARGEST = 1024  # values of a tile: eight for each of 128 threads, 16 bytes of half precision
PROGRAMS = 1024  # among which kernels that add up divide the tiles: a few for every processor of a large device
SIZES = ["outer", "channels", "inner"]


@dataclass(frozen=True)
class Tiles:
    """The tiles of a step, and what kernels are told of them."""

    outer: int
    channels: int
    inner: int
    largest: int = LARGEST

    @classmethod
    def of(cls, batch: int, channels: int, length: int, last: bool) -> "Tiles":
        """Those of images (B, C, L), channels last in memory or not."""
        return cls(batch * length, channels, 1) if last else cls(batch, channels, length)

    def halved(self) -> "Tiles":
        """With half the values, for kernels that keep many of each."""
        return replace(self, largest=self.largest // 2)

    @property
    def is_last(self) -> bool:
        """Do channels lie last?"""
        return self.inner == 1

    @property
    def unit(self) -> int:
        """What divides the fastest axis; the compiler has to know, or it would not load 16 bytes at a time."""
        return math.gcd(self.channels if self.is_last else self.inner, 16)

    @property
    def positions(self) -> int:
        """Neurons of one channel."""
        return self.outer * self.inner

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and lanes, powers of two."""
        if self.is_last:
            # The fewest lanes that no channel fills; of equals the most.
            lanes = min((64, 32, 16), key=lambda width: -(-self.channels // width) * width)
            lanes = min(lanes, _power_of_two(self.channels))
            return min(self.largest // lanes, _power_of_two(self.positions)), lanes
        lanes = min(self.largest, _power_of_two(self.positions))
        return min(self.largest // lanes, _power_of_two(self.channels)), lanes

    @property
    def blocks(self) -> int:
        """Tiles beside each other, of other channels."""
        return triton.cdiv(self.channels, self.shape[self.is_last])

    @property
    def count(self) -> int:
        """Tiles after each other, of the same channels."""
        return triton.cdiv(self.positions, self.shape[not self.is_last])

    @property
    def each(self) -> int:
        """Tiles of a program that adds up."""
        return triton.cdiv(self.count, min(self.count, triton.cdiv(PROGRAMS, self.blocks)))

    @property
    def splits(self) -> int:
        """Programs that add up the same channels."""
        return triton.cdiv(self.count, self.each)

    @property
    def arguments(self) -> dict[str, Any]:
        """Sizes, in units along the fastest axis, and what is compiled in."""
        rows, lanes = self.shape
        fits = self.outer * self.channels * self.inner < 2**31 - LARGEST * LARGEST
        return {
            "outer": self.outer,
            "channels": self.channels // self.unit if self.is_last else self.channels,
            "inner": self.inner // self.unit,
            "ROWS": rows,
            "LANES": lanes,
            "UNIT": self.unit,
            "LAST": self.is_last,
            "INDEX": tl.int32 if fits else tl.int64,
        }


def _power_of_two(size: int) -> int:
    return triton.next_power_of_2(size)


@triton.jit
def sizes_of(outer, channels, inner, UNIT: tl.constexpr, LAST: tl.constexpr):
    """Positions and channels, neurons of a channel that lie together, and neurons of a step."""
    if LAST:
        all_channels, together = channels * UNIT, 1
    else:
        all_channels, together = channels, inner * UNIT
    positions = outer * together
    return positions, all_channels, together, tl.cast(positions, tl.int64) * all_channels


@triton.jit
def channels_of(block, ROWS: tl.constexpr, LANES: tl.constexpr, LAST: tl.constexpr):
    """Channels of a tile, that broadcast over it."""
    return (block * LANES + tl.arange(0, LANES))[None, :] if LAST else (block * ROWS + tl.arange(0, ROWS))[:, None]


@triton.jit
def tile_of(
    tile,
    channel,
    positions,
    channels,
    together,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    LAST: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Places in a step, and whether each is there (ROWS, LANES)."""
    if LAST:
        position = (tl.cast(tile, INDEX) * ROWS + tl.arange(0, ROWS))[:, None]
        place = position * channels + channel
    else:
        position = (tl.cast(tile, INDEX) * LANES + tl.arange(0, LANES))[None, :]
        place = (position // together * channels + channel) * together + position % together
    return place, (position < positions) & (channel < channels)
