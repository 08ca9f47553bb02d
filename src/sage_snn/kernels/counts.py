"""Inference in whole numbers: spikes as bytes, pooled as bytes, and real numbers that are counts as bytes.

Each has a kernel in C++ and a twin in plain torch, equal to the bit. Nothing here has a gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .arguments import Constants, forward_options
from .calls import SUFFIX, function, operator, register
from .layout import Layout
from .lif import lif_twin
from .membrane import UNWATCHED, Membrane, require_constants
from .path import path

MOST = 127  # in one number: two products with weights of -127 to 127 fit in 16 bits, in which AVX2 adds them up


def fire(currents: Tensor, membrane: Membrane, times: int, *, as_counts: bool = False) -> Tensor:
    """Spikes (T, ...) from rest, of currents (T, ...), or of currents (1, ...) that stand still for `times` steps.

    In the currents' precision, or as bytes; to the bit those of `lif`.
    """
    require_constants(membrane, times)
    if len(currents) not in (1, times):
        raise ValueError(f"currents of {len(currents)} time steps cannot be fired over {times}; give one, or all")
    if not currents.numel() or path(currents) != "C++" or currents.dtype not in SUFFIX:
        return _fire_twin(currents, membrane, times, as_counts)
    options = forward_options(membrane.numbers, *membrane.tensors, None)
    return operator("fire", currents)(currents.detach(), times=times, as_counts=as_counts, **options)


def _fire_twin(currents: Tensor, membrane: Membrane, times: int, as_counts: bool) -> Tensor:
    currents = currents.detach().expand(times, *currents.shape[1:])
    rest = currents.new_full(
        currents.shape[1:], membrane.rest, dtype=torch.promote_types(currents.dtype, torch.float32)
    )
    slope = torch.ones((), device=currents.device)  # of no surrogate: there is no backward pass
    spikes, _ = lif_twin(currents, rest, slope, membrane, "Sigmoid", UNWATCHED)
    return spikes.to(torch.uint8) if as_counts else spikes


def pool_counts(x: Tensor) -> Tensor:
    """Bytes (N, C, H, W) -> the largest of 3 x 3, two apart (N, C, (H + 1) // 2, (W + 1) // 2), channels last."""
    if not x.numel() or path(x) != "C++":
        return F.max_pool2d(x.float(), 3, stride=2, padding=1).to(torch.uint8)
    return torch.ops.sage_snn.pool_counts(x)


def as_counts(x: Tensor) -> Tensor | None:
    """The numbers as bytes, in the memory order of x; None if one is not whole, negative, or more than `MOST`."""
    if not x.numel() or path(x) != "C++" or x.dtype not in SUFFIX:
        counts = x.to(torch.uint8)
        is_whole = ((x >= 0) & (x <= MOST) & (counts == x)).all()
        return counts if is_whole else None
    layout = Layout.of(x.unsqueeze(0))
    values = layout.flat(x.unsqueeze(0), x.dtype)
    counts = torch.empty_like(values, dtype=torch.uint8)
    arguments = values.data_ptr(), values.numel(), MOST, counts.data_ptr(), torch.get_num_threads()
    return None if function("sage_count", x.dtype)(*arguments) else layout.back(counts)[0]


def _fire(currents: Tensor, *, times: int, as_counts: bool, **options: Any) -> Tensor:
    layout, constants = Layout.of(currents), Constants(times, **options)
    x, spikes = layout.flat(currents, currents.dtype), _room(currents, layout, times, as_counts)
    size = x[0].numel()
    function("sage_fire", x.dtype)(
        *(x.data_ptr(), 0 if len(x) < times else size, spikes.data_ptr(), as_counts, times, size),
        *(*constants.arguments, torch.get_num_threads()),
    )
    return layout.back(spikes)


def _room(currents: Tensor, layout: Layout, times: int, as_counts: bool) -> Tensor:
    sizes = [currents.shape[1:][axis] for axis in layout.order]
    return currents.new_empty(times, *sizes, dtype=torch.uint8 if as_counts else currents.dtype)


def _fake_fire(currents: Tensor, *, times: int, as_counts: bool, **_: Any) -> Tensor:
    layout = Layout.of(currents)
    return layout.back(_room(currents, layout, times, as_counts))


def _pooled(x: Tensor) -> Tensor:
    height, width = (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2
    return x.new_empty(len(x), height, width, x.shape[1]).movedim(-1, 1)


def _pool_counts(x: Tensor) -> Tensor:
    values, largest = x.movedim(1, -1).contiguous(), _pooled(x)
    function("sage_pool_counts")(values.data_ptr(), *values.shape, largest.data_ptr(), torch.get_num_threads())
    return largest


_MEMBRANE = "float tau, float threshold, float? reset, bool decay_input"
register(
    f"fire(Tensor currents, *, int times, bool as_counts, {_MEMBRANE}, "
    "Tensor? thresholds=None, Tensor? time_constant=None) -> Tensor",
    _fire,
    _fake_fire,
)
register("pool_counts(Tensor x) -> Tensor", _pool_counts, _pooled)
