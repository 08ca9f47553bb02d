"""Attention without a softmax, scale * Q (K^T V) head by head, from spikes as they lie in memory: in C++; else torch's.

q, k, v: (T, B, C, N), C = heads * K channels. The kernel takes them with channels last in memory and copies nothing;
every spike adds a row of K numbers. Sums of spikes are whole and exact, whatever their order; gradients differ from the
twin's by rounding. Spikes that are kept as bits between forward and backward are read as such.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..compat import has_dispatch_mode
from .additions import tell_additions
from .arguments import wants_gradients
from .bits import bits_to_keep, unpack_bits
from .calls import SUFFIX, function, register
from .events import are_off
from .path import path
from .room import room_like


def mix(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    """(T, B, C, N) each -> (T, B, C, N), in the memory order of q."""
    if not _runs_natively(q, k, v):
        return mix_twin(q, k, v, heads, scale)
    if not wants_gradients(q, k, v):
        return torch.ops.sage_snn.mix(q, k, v, heads, scale)
    bits = [bits_to_keep(x) for x in (q, k, v)]
    bits = [None] * 3 if any(x is None for x in bits) else bits
    return Mix.apply(q, k, v, *bits, heads, scale)  # pyright: ignore[reportReturnType]


def mix_twin(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    """The same in plain torch."""
    times, batch, channels, tokens = q.shape
    apart = times, batch, heads, channels // heads, tokens
    is_in_order = q.is_contiguous()
    q, k, v = (x.reshape(apart) for x in (q, k, v))
    if is_in_order:
        return _product(v, k.transpose(-1, -2), q).mul(scale).flatten(2, 3)
    # all of it transposed: (T, B, H, N, K), so that the width of a head lies together
    q, k, v = (x.transpose(-1, -2).contiguous() for x in (q, k, v))
    return _product(q, k.transpose(-1, -2), v).mul(scale).transpose(2, 3).flatten(3).transpose(2, 3)


def _product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b c in the cheaper order: spikes make every entry a count, exact in either."""
    return (a @ b) @ c if a.shape[-2] <= a.shape[-1] else a @ (b @ c)


class Mix(torch.autograd.Function):
    """The kernel and its gradients; what is kept of query, key and value are they themselves, or their bits."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any
    ) -> Tensor:
        """What the heads make of the values."""
        *bits, ctx.heads, ctx.scale = rest
        ctx.save_for_backward(*((q, k, v) if bits[0] is None else bits))
        return torch.ops.sage_snn.mix(q, k, v, ctx.heads, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of query, key and value."""
        gradients = torch.ops.sage_snn.mix_backward(grad, *ctx.saved_tensors, ctx.heads, ctx.scale)
        return *gradients, None, None, None, None, None


def _runs_natively(*tensors: Tensor) -> bool:
    q = tensors[0]
    return (
        path(q) == "C++"
        and q.dtype in SUFFIX
        and q.numel() > 0
        and not q.is_contiguous()
        and all(x.shape == q.shape and x.dtype == q.dtype for x in tensors)
        and all(x.transpose(2, 3).is_contiguous() for x in tensors)
        and not are_off()
        and not torch.is_autocast_enabled(q.device.type)
        # Whoever counts or records torch's operations is to see them.
        and (torch.compiler.is_compiling() or not has_dispatch_mode())
    )


def _last(x: Tensor) -> Tensor:
    """(T, B, N, C), contiguous."""
    return x.detach().transpose(2, 3).contiguous()


def _empty(x: Tensor) -> Tensor:
    return torch.empty_like(x.transpose(2, 3), memory_format=torch.contiguous_format).transpose(2, 3)


def _sizes(x: Tensor, heads: int) -> tuple[int, ...]:
    times, batch, channels, tokens = x.shape
    return times * batch, tokens, heads, channels // heads


def _mix(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    values = [_last(x) for x in (q, k, v)]
    out = room_like(values[0]).transpose(2, 3)
    sizes = _sizes(q, heads)
    is_done = function("sage_mix", q.dtype)(
        *(x.data_ptr() for x in values), *sizes, scale, out.data_ptr(), torch.get_num_threads()
    )
    if not is_done:
        return mix_twin(q.detach(), k.detach(), v.detach(), heads, scale)
    for x in (values[1], values[0]):  # the key's spikes add up values, the query's the sums
        tell_additions(x, sizes[-1])
    return out


def _fake(q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> Tensor:
    return _empty(q)


def _mix_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> tuple[Tensor, ...]:
    are_bits = q.dtype == torch.int64
    grads, kept = _last(grad), [x if are_bits else _last(x) for x in (q, k, v)]
    gradients = tuple(room_like(grads).transpose(2, 3) for _ in range(3))
    is_done = function("sage_mix_backward", grad.dtype)(
        *(grads.data_ptr(), *(x.data_ptr() for x in kept), are_bits, *_sizes(grad, heads), scale),
        *(*(x.data_ptr() for x in gradients), torch.get_num_threads()),
    )
    return gradients if is_done else _dense_backward(grads, kept, heads, scale)


def _gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float) -> tuple[Tensor, ...]:
    return _empty(grad), _empty(grad), _empty(grad)


def _dense_backward(grad: Tensor, kept: list[Tensor], heads: int, scale: float) -> tuple[Tensor, ...]:
    """Of (T, B, N, C), or of bits; where something is not finite."""
    if kept[0].dtype == torch.int64:
        kept = [unpack_bits(x, tuple(grad.shape), grad.dtype) for x in kept]
    with torch.enable_grad():
        q, k, v = (x.transpose(2, 3).requires_grad_() for x in kept)
        out = mix_twin(q, k, v, heads, scale)
        return tuple(_last(x).transpose(2, 3) for x in torch.autograd.grad(out, (q, k, v), grad.transpose(2, 3)))


register("mix(Tensor q, Tensor k, Tensor v, int heads, float scale) -> Tensor", _mix, _fake)
register(
    "mix_backward(Tensor grad, Tensor q, Tensor k, Tensor v, int heads, float scale) -> (Tensor, Tensor, Tensor)",
    _mix_backward,
    _gradients,
)
