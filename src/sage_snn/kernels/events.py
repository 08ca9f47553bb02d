"""Event-driven products on CPUs: 3 x 3 convolutions and token-wise maps that walk what is not zero, in C++.

x: (N, C, H, W) with channels last in memory, or (..., C) contiguous; W (C', C, 3, 3) or (C', C). The twin of each is
torch's own, dense; it also runs where the call does not pay: too many values that are not zero, too small a product.
Every sum has the order of the dense one, and leaves out zeros only. The gradient of x is dense. Spikes that are kept as
bits between forward and backward are read as such.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..compat import has_dispatch_mode
from . import dense
from .additions import tell_additions
from .arguments import wants_gradients
from .bits import bits_to_keep, unpack_bits
from .calls import SUFFIX, function, operator, pointer, register
from .limits import INPUTS, OUTPUTS, ROWS, gradient_limit, limit
from .packed import Packed
from .path import path
from .room import room

_aten = torch.ops.aten
_is_off = False


@contextmanager
def dense_products() -> Generator[None]:
    """Inside, all products are dense, as with `SAGE_SNN_EVENTS=off` in the environment."""
    global _is_off
    before, _is_off = _is_off, True
    try:
        yield
    finally:
        _is_off = before


@torch.compiler.assume_constant_result  # pyright: ignore[reportUnknownMemberType]
def are_off() -> bool:
    """Did somebody ask for dense products? A constant of a compiled graph."""
    return _is_off or os.environ.get("SAGE_SNN_EVENTS", "").lower() in ("off", "0", "false", "no")


def event_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, packed: Packed | None = None
) -> Tensor:
    """`F.conv2d(x, weight, bias, stride, padding=1)` of a kernel of 3 x 3; in inference with weights kept packed."""
    is_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    if not is_last or not _may_pay(x, x.shape[1], weight, bias, stride**2):
        return F.conv2d(x, weight, bias, stride, 1)
    if wants_gradients(x, weight, bias):
        return EventConv.apply(x, bits_to_keep(x), weight, bias, stride)  # pyright: ignore[reportReturnType]
    return operator("event_conv", x)(x, weight, bias, stride, *_limit_and_packed(packed, weight))


def event_map(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Packed | None = None) -> Tensor:
    """`F.linear(x, weight, bias)`; in inference with weights kept packed."""
    if not x.is_contiguous() or not _may_pay(x, x.shape[-1], weight, bias):
        return dense.linear(x, weight, bias) if _is_ours(x, weight, bias) else F.linear(x, weight, bias)
    if wants_gradients(x, weight, bias):
        return EventMap.apply(x, bits_to_keep(x), weight, bias)  # pyright: ignore[reportReturnType]
    return operator("event_map", x)(x, weight, bias, *_limit_and_packed(packed, weight))


def _may_pay(x: Tensor, inputs: int, weight: Tensor, bias: Tensor | None, left_out: int = 1) -> bool:
    """Of so many positions one is computed. What does not fit together goes to torch, which says why."""
    return (
        path(x) == "C++"  # first: a graph that is exported is to know nothing of how large its batch must be
        and inputs >= INPUTS
        and len(weight) >= OUTPUTS
        and weight.numel() >= limit("least_forward")
        and x.numel() >= ROWS * inputs * left_out
        and weight.shape[1] == inputs
        and (bias is None or bias.shape == weight.shape[:1])
        and x.dtype in SUFFIX
        and not are_off()
        and _is_ours(x, weight, bias)
    )


def _is_ours(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Is the product of one precision, on one device, and does nobody want to see torch's operations?"""
    operands = [weight] if bias is None else [weight, bias]
    return (
        all(operand.dtype == x.dtype and operand.device == x.device for operand in operands)
        and not torch.is_autocast_enabled(x.device.type)
        # Whoever counts or records torch's operations is to see them.
        and (torch.compiler.is_compiling() or not has_dispatch_mode())
    )


def _limit_and_packed(packed: Packed | None, weight: Tensor) -> tuple[int, Tensor | None]:
    """Nothing is kept in a graph that is compiled: it would hold the weights of today."""
    if packed is None or torch.compiler.is_compiling():
        return limit("forward"), None
    kept = packed.of(weight, pack_events)
    return limit("forward") if kept is None else limit("packed"), kept


def pack_events(weight: Tensor) -> Tensor | None:
    """Weights (C', C, 3, 3) or (C', C) as the kernels want them; None if one of them is not finite."""
    outputs, inputs, taps = len(weight), weight.shape[1], weight[0, 0].numel()
    values = weight.detach().contiguous()
    to = weight.new_empty(function("sage_event_size", weight.dtype)(outputs, inputs, taps))
    is_finite = function("sage_event_pack", weight.dtype)(
        *(values.data_ptr(), inputs * taps, taps, 1, outputs, inputs, taps, to.data_ptr(), torch.get_num_threads())
    )
    return to if is_finite else None


class EventConv(torch.autograd.Function):
    """The convolution and its gradients."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, bits: Tensor | None, weight: Tensor, bias: Tensor | None, stride: int
    ) -> Tensor:
        """Currents."""
        _keep(ctx, x, bits, weight)
        ctx.stride = stride
        return torch.ops.sage_snn.event_conv(x, weight, bias, stride, limit("forward"))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of x dense, of the weight by events."""
        x, bits, weight = _kept(ctx)
        wants_x, _, wants_weight, wants_bias, _ = ctx.needs_input_grad
        of_x = _conv_backward(grad, x, weight, ctx.stride, 0) if wants_x else None
        options = ctx.stride, gradient_limit(weight)
        of_weight = torch.ops.sage_snn.event_conv_weight(grad, x, bits, weight, *options) if wants_weight else None
        return of_x, None, of_weight, _last(grad).sum((0, 2, 3)) if wants_bias else None, None


class EventMap(torch.autograd.Function):
    """The map and its gradients."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, bits: Tensor | None, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Currents."""
        _keep(ctx, x, bits, weight)
        return torch.ops.sage_snn.event_map(x, weight, bias, limit("forward"))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of x dense, of the weight by events."""
        x, bits, weight = _kept(ctx)
        wants_x, _, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        of_x = dense.of_input(grad, x, weight) if wants_x else None
        most = gradient_limit(weight)
        of_weight = torch.ops.sage_snn.event_map_weight(grad, x, bits, most) if wants_weight else None
        return of_x, None, of_weight, rows.sum(0) if wants_bias else None


def _keep(ctx: Any, x: Tensor, bits: Tensor | None, weight: Tensor) -> None:
    """Keep the bits of x, or x itself where it has none."""
    ctx.save_for_backward(x if bits is None else bits, weight)
    ctx.lay = None if bits is None else (x.shape, x.stride())


def _kept(ctx: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """x, its bits and the weight; where there are bits x is only its size, and nothing is written in it."""
    kept, weight = ctx.saved_tensors
    return (kept, None, weight) if ctx.lay is None else (weight.new_empty_strided(*ctx.lay), kept, weight)


def _conv_backward(grad: Tensor, x: Tensor, weight: Tensor, stride: int, which: int) -> Tensor:
    """torch's gradient of x (0) or of the weight (1)."""
    wanted = [which == 0, which == 1, False]
    return _aten.convolution_backward(grad, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, wanted)[
        which
    ]


def _size(x: Tensor, weight: Tensor, stride: int) -> tuple[int, int, int, int]:
    return x.shape[0], weight.shape[0], (x.shape[2] - 1) // stride + 1, (x.shape[3] - 1) // stride + 1


def _empty_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, per_mille: int, packed: Tensor | None = None
) -> Tensor:
    size = _size(x, weight, stride)
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _last(x: Tensor) -> Tensor:
    return x.detach().contiguous(memory_format=torch.channels_last)


def _event_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, per_mille: int, packed: Tensor | None = None
) -> Tensor:
    values, out = _last(x), room(_size(x, weight, stride), x.dtype, last=True)
    is_last = weight.is_contiguous(memory_format=torch.channels_last)
    weights = weight.detach() if is_last else weight.detach().contiguous()
    offsets = None if bias is None else bias.detach().contiguous()
    images, inputs, height, width = x.shape
    sizes = images, height, width, inputs, weight.shape[0], stride
    strides = 9 * inputs, *((1, inputs) if is_last else (9, 1))
    is_done = function("sage_event_conv", x.dtype)(
        *(values.data_ptr(), weights.data_ptr(), *strides, pointer(packed), pointer(offsets), *sizes),
        *(per_mille, out.data_ptr(), torch.get_num_threads()),
    )
    if is_done:
        tell_additions(values, weight.shape[0], stride)
        return out
    return _last(F.conv2d(values, weight.detach(), offsets, stride, 1))  # in the layout that the graph was told of


def _event_conv_weight(
    grad: Tensor, x: Tensor, bits: Tensor | None, weight: Tensor, stride: int, per_mille: int
) -> Tensor:
    values, grads = None if bits is not None else _last(x), _last(grad)
    of_weight = torch.empty(weight.shape, dtype=x.dtype)
    images, inputs, height, width = x.shape
    sizes = images, height, width, inputs, weight.shape[0], stride
    is_done = per_mille and function("sage_event_conv_weight", x.dtype)(
        *(pointer(values), pointer(bits), grads.data_ptr(), *sizes, per_mille),
        *(of_weight.data_ptr(), torch.get_num_threads()),
    )
    if is_done:
        return of_weight
    if bits is not None:
        x = unpack_bits(bits, (x.numel(),), x.dtype).as_strided(x.shape, x.stride())
    return _conv_backward(grad, x, weight, stride, 1).contiguous()


def _fake_conv_weight(
    grad: Tensor, x: Tensor, bits: Tensor | None, weight: Tensor, stride: int, per_mille: int
) -> Tensor:
    return x.new_empty(weight.shape)


def _event_map(x: Tensor, weight: Tensor, bias: Tensor | None, per_mille: int, packed: Tensor | None = None) -> Tensor:
    values, weights = x.detach().contiguous(), weight.detach().contiguous()
    offsets = None if bias is None else bias.detach().contiguous()
    out = room((*x.shape[:-1], weight.shape[0]), x.dtype)
    sizes = x.numel() // x.shape[-1], x.shape[-1], weight.shape[0]
    is_done = function("sage_event_map", x.dtype)(
        *(values.data_ptr(), weights.data_ptr(), pointer(packed), pointer(offsets), *sizes),
        *(dense.is_by_onednn(values, weights), per_mille, out.data_ptr(), torch.get_num_threads()),
    )
    if is_done:
        tell_additions(values, weight.shape[0])
        return out
    return dense.linear(values, weights, offsets)


def _empty_map(x: Tensor, weight: Tensor, bias: Tensor | None, per_mille: int, packed: Tensor | None = None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _event_map_weight(grad: Tensor, x: Tensor, bits: Tensor | None, per_mille: int) -> Tensor:
    rows, inputs = x.numel() // x.shape[-1], x.shape[-1]
    values = None if bits is not None else x.detach().contiguous()
    grads = grad.detach().reshape(-1, grad.shape[-1]).contiguous()
    of_weight = _fake_map_weight(grad, x, bits, per_mille)
    is_done = per_mille and function("sage_event_map_weight", x.dtype)(
        *(pointer(values), pointer(bits), grads.data_ptr(), rows, inputs, grads.shape[1]),
        *(per_mille, of_weight.data_ptr(), torch.get_num_threads()),
    )
    if is_done:
        return of_weight
    return dense.of_weight(grads, x.detach() if bits is None else unpack_bits(bits, (rows, inputs), x.dtype))


def _fake_map_weight(grad: Tensor, x: Tensor, bits: Tensor | None, per_mille: int) -> Tensor:
    return x.new_empty(grad.shape[-1], x.shape[-1])


register(
    "event_conv(Tensor x, Tensor weight, Tensor? bias, int stride, int per_mille, Tensor? packed=None) -> Tensor",
    _event_conv,
    _empty_conv,
)
register(
    "event_conv_weight(Tensor grad, Tensor x, Tensor? bits, Tensor weight, int stride, int per_mille) -> Tensor",
    _event_conv_weight,
    _fake_conv_weight,
)
register(
    "event_map(Tensor x, Tensor weight, Tensor? bias, int per_mille, Tensor? packed=None) -> Tensor",
    _event_map,
    _empty_map,
)
register(
    "event_map_weight(Tensor grad, Tensor x, Tensor? bits, int per_mille) -> Tensor",
    _event_map_weight,
    _fake_map_weight,
)
